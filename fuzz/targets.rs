//! What is fuzzed, and what must hold for any input: also run by the tests of the program, over
//! the seeds and what was found.

use super::place;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use mount_skills::domain::digest::Digest;
use mount_skills::domain::frontmatter::compare;
use mount_skills::domain::manifest::{Declined, Entry, MAX_BYTES, MAX_FILES};
use mount_skills::domain::name::{MAX_LEVELS, MAX_NAME, MAX_PATH, RelPath};
use mount_skills::domain::verify::{Expected, verify};
use mount_skills::source::{decode_line, wire};
use mount_skills::store::state::{State, Stored};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock};

/// Takes any input, and says whether it was accepted; panics when something does not hold.
type Target = fn(&[u8]) -> bool;

/// The targets by name.
pub(crate) const ALL: [(&str, Target); 6] = [
    ("line", line),
    ("entry", entry),
    ("uri", uri),
    ("frontmatter", frontmatter),
    ("contents", contents),
    ("state", state),
];

/// What is asked for in these replies.
const URI: &str = "skill://s/SKILL.md";

/// A line of a server's stdout → a message, and its result → what it says.
pub(crate) fn line(data: &[u8]) -> bool {
    let Some(result) = decode_line(data.to_vec()) else {
        return false;
    };
    assert!(
        serde_json::from_str::<&RawValue>(&result).is_ok(),
        "{result:?}"
    );
    // It is what the line says to request 1, or nothing that could be taken for that.
    let line = String::from_utf8_lossy(data);
    assert!(result == "null" || line.contains(&result), "{result:?}");
    if let (true, Ok(line)) = (result != "null", serde_json::from_str::<Value>(&line)) {
        assert_eq!(line["id"], 1);
        assert_eq!(line["result"], result.parse::<Value>().unwrap());
        assert!(
            line["error"].is_null() && line["method"].is_null(),
            "{line}"
        );
    }
    let listed = wire::list_page(&result).map_or(Vec::new(), |page| page.entries);
    listed.iter().for_each(check_either);
    let got = wire::get_result(&result, URI).ok().and_then(Result::ok);
    if let Some(entry) = &got {
        assert_eq!(&*entry.uri, URI);
        check(entry);
    }
    let children = wire::directory_page(&result, "skill://s").map_or(Vec::new(), |p| p.children);
    for child in &children {
        assert_eq!(child.path.parent().unwrap().as_str(), "s");
        safe(&child.path);
    }
    let read = contents(result.as_bytes());
    listed.iter().any(Result::is_ok) || got.is_some() || !children.is_empty() || read
}

/// One entry of a listing.
pub(crate) fn entry(data: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(data) else {
        return false;
    };
    let Ok(page) = wire::list_page(&format!(r#"{{"skills":[{text}]}}"#)) else {
        return false;
    };
    page.entries.iter().for_each(check_either);
    page.entries.iter().any(Result::is_ok)
}

fn check_either(entry: &Result<Entry, Declined>) {
    match entry {
        Ok(entry) => check(entry),
        Err(declined) => {
            assert!(!declined.reason.to_string().is_empty());
            declined.dir.iter().for_each(safe);
        }
    }
}

/// What is so of every entry that may be loaded.
fn check(entry: &Entry) {
    let again = serde_json::to_value(entry).unwrap();
    assert_eq!(Entry::parse(&again).as_ref(), Ok(entry));
    safe(&entry.dir);
    let md = format!("{}/SKILL.md", entry.dir.as_str());
    assert_eq!(place::path(&entry.uri), Some(md));
    assert_eq!(again["frontmatter"]["name"], entry.dir.last());
    assert!(entry.files().len() <= MAX_FILES);
    assert!(entry.files().iter().map(|f| f.size).sum::<u64>() <= MAX_BYTES);
    assert!(entry.set().is_none() || entry.files().iter().any(|f| f.uri == entry.uri));
    for (i, file) in entry.files().iter().enumerate() {
        safe(&file.path);
        assert_eq!(place::path(&file.uri).as_deref(), Some(file.path.as_str()));
        assert!(file.path.is_below(&entry.dir));
        assert!(file.size > 0 || file.digest == Digest::of(b""));
        assert!(entry.files()[..i].iter().all(|f| f.path != file.path));
    }
    let _ = entry.warnings(&entry.description());
}

fn safe(path: &RelPath) {
    let names: Vec<&str> = path.components().collect();
    assert!(names.len() <= MAX_LEVELS && path.as_str().len() <= MAX_PATH);
    for name in names {
        assert!(
            !matches!(name, "" | "." | "..") && name.len() <= MAX_NAME,
            "{name:?}"
        );
        assert!(
            !name.contains('/') && !name.chars().any(char::is_control),
            "{name:?}"
        );
    }
}

/// A URI → its place, and back.
pub(crate) fn uri(data: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(data) else {
        return false;
    };
    let found = RelPath::of_uri(text);
    let path = found.as_ref().ok().map(RelPath::as_str);
    assert_eq!(path, place::path(text).as_deref());
    let path = match found {
        Ok(path) => path,
        Err(e) => {
            assert!(!e.to_string().is_empty());
            return false;
        }
    };
    safe(&path);
    assert_eq!(RelPath::of_names(path.as_str()).as_ref(), Some(&path));
    let again = path.to_uri();
    if again.len() <= MAX_PATH {
        assert_eq!(RelPath::of_uri(&again).as_ref(), Ok(&path));
    }
    true
}

/// A SKILL.md and, after a NUL, the frontmatter as JSON.
pub(crate) fn frontmatter(data: &[u8]) -> bool {
    let nul = data.iter().position(|b| *b == 0).unwrap_or(data.len());
    let (md, json) = (&data[..nul], data.get(nul + 1..).unwrap_or_default());
    let claimed = match serde_json::from_slice(json) {
        Ok(Value::Object(map)) => map,
        _ => Default::default(),
    };
    if compare(md, &claimed).is_err() {
        return false;
    }
    let start = md.strip_prefix("\u{feff}".as_bytes()).unwrap_or(md);
    let fences = start
        .split(|b| *b == b'\n')
        .filter(|l| l.starts_with(b"---"));
    assert!(start.starts_with(b"---") && fences.count() >= 2);
    // An entry that says more, less or something else is refused.
    let differs = |change: &dyn Fn(&mut Map<String, Value>)| {
        let mut other = claimed.clone();
        change(&mut other);
        assert!(compare(md, &other).is_err(), "{claimed:?} and {other:?}");
    };
    let odd = "not there \u{e000}";
    if !String::from_utf8_lossy(md).contains('\u{e000}') {
        differs(&|map| drop(map.insert(odd.into(), Value::Null)));
        for key in claimed.keys() {
            differs(&|map| drop(map.remove(key)));
            differs(&|map| drop(map.insert(key.clone(), odd.into())));
            differs(&|map| drop(map.insert(key.clone(), json!([odd]))));
        }
    }
    // What it says stands there, word by word, unless it is written by escapes.
    if let (false, Ok(text)) = (md.contains(&b'\\'), std::str::from_utf8(md)) {
        for value in claimed.values().filter_map(Value::as_str) {
            // The form of a timestamp is not the one in the file.
            let is_instant =
                value.ends_with('Z') && value.starts_with(|c: char| c.is_ascii_digit());
            let words = value.split(|c: char| !c.is_alphanumeric());
            let stands = words.filter(|_| !is_instant).all(|w| text.contains(w));
            assert!(stands, "{value:?}");
        }
    }
    true
}

/// The result of a read.
pub(crate) fn contents(data: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(data) else {
        return false;
    };
    let Ok(bytes) = wire::read_result(text, URI, 1 << 20) else {
        return false;
    };
    // What a reader of JSON without any cleverness finds there.
    let Ok(value) = serde_json::from_str::<Value>(text) else {
        return false;
    };
    let item = &value["contents"][0];
    assert_eq!(value["contents"].as_array().unwrap().len(), 1);
    assert_eq!(item["uri"], URI);
    let plain = match (&item["text"], &item["blob"]) {
        (Value::String(text), Value::Null) => text.clone().into_bytes(),
        (Value::Null, Value::String(blob)) => STANDARD.decode(blob).unwrap(),
        other => panic!("{other:?}"),
    };
    let mut expected = Expected {
        uri: URI.into(),
        digest: Digest::of(&plain),
        size: plain.len() as u64,
        frontmatter: None,
    };
    assert!(verify(bytes, &expected).is_ok());
    expected.size += 1;
    let again = wire::read_result(text, URI, 1 << 20).unwrap();
    assert!(verify(again, &expected).is_err());
    true
}

/// A state of its own, and the names of its three files.
static STATE: LazyLock<(tempfile::TempDir, State, Vec<PathBuf>)> = LazyLock::new(|| {
    let shm = PathBuf::from("/dev/shm");
    let dir = if shm.is_dir() {
        tempfile::tempdir_in(shm)
    } else {
        tempfile::tempdir()
    }
    .unwrap();
    let label = "lab".parse().unwrap();
    let state = State::open(&dir.path().join("s"), &label, "id", "/m".as_ref()).unwrap();
    let row = json!({"uri": URI, "digest": Digest::of(b"x").to_string(), "size": 1});
    let front = json!({"name": "s", "description": "d"});
    let entry = json!({"uri": URI, "frontmatter": front, "resources": [row]});
    let entry = Arc::new(Entry::parse(&entry).unwrap());
    state.save_windows(&[entry]).unwrap();
    let mut files = Vec::new();
    let mut todo = vec![dir.path().to_owned()];
    while let Some(at) = todo.pop() {
        for entry in fs::read_dir(at).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                todo.push(path);
            } else if path.extension().is_some_and(|e| e == "json") {
                files.push(path);
            }
        }
    }
    let windows = files.pop().expect("the journal of the windows");
    let beside = |name| windows.with_file_name(name);
    let files = vec![
        beside("listing.json"),
        windows.clone(),
        beside("verdicts.json"),
    ];
    (dir, state, files)
});

/// Writes a file of the state and loads all. A letter says which file. What follows is its content,
/// or after a letter that is no lower-case one the whole file.
pub(crate) fn load(data: &[u8]) -> Stored {
    let (which, body) = data.split_first().unwrap_or((&0, b""));
    load_file(*which, &file_of(*which, body))
}

/// With the digest that fits it, and for the right server: otherwise nothing but these would ever be
/// looked at.
fn file_of(which: u8, body: &[u8]) -> Vec<u8> {
    if !which.is_ascii_lowercase() {
        return body.to_vec();
    }
    let head = br#"{"version":1,"label":"lab","identity":"id","content":"#;
    let record = [head, body, b"}"].concat();
    [format!("{}\n", Digest::of(&record)).as_bytes(), &record].concat()
}

fn load_file(which: u8, whole: &[u8]) -> Stored {
    let (_, state, files) = &*STATE;
    files.iter().for_each(|f| drop(fs::remove_file(f)));
    fs::write(&files[usize::from(which) % files.len()], whole).unwrap();
    state.load()
}

fn is_empty(stored: &Stored) -> bool {
    stored.listing.is_none() && stored.held.is_empty() && stored.verdicts.is_empty()
}

/// A file of the state, as [`load`] has it.
pub(crate) fn state(data: &[u8]) -> bool {
    let stored = load(data);
    let (which, body) = data.split_first().unwrap_or((&0, b""));
    if is_empty(&stored) {
        return false;
    }
    let mut whole = file_of(*which, body);
    let text = std::str::from_utf8(&whole).unwrap();
    let (head, rest) = text.split_once('\n').unwrap();
    assert_eq!(head, Digest::of(rest.as_bytes()).to_string());
    // One bit that differs, and nothing is believed.
    let at = body.iter().map(|b| usize::from(*b)).sum::<usize>() % whole.len();
    whole[at] ^= 1;
    assert!(is_empty(&load_file(*which, &whole)), "a bit at {at}");
    let (_, state, files) = &*STATE;
    stored.held.iter().for_each(|e| check(e));
    if let Some(listing) = &stored.listing {
        listing.entries.iter().for_each(|e| check(e));
        let named: Vec<&str> = listing.named.iter().map(|uri| &**uri).collect();
        let seen = listing.seen.iter();
        let seen = seen.map(|(uri, (digest, at))| (&**uri, *digest, *at));
        state.save_listing(&listing.entries, &named, seen).unwrap();
    }
    state.save_windows(&stored.held).unwrap();
    drop(fs::remove_file(&files[2]));
    state.save_verdicts(&stored.verdicts).unwrap();
    let again = state.load();
    assert_eq!(again.held, stored.held);
    assert_eq!(again.verdicts, stored.verdicts);
    let entries = |s: Stored| s.listing.map(|l| l.entries);
    assert_eq!(entries(again), entries(stored));
    true
}
