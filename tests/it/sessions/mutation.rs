//! Sessions, and what can go wrong in one.

use crate::rig::{project, sha256};
use crate::uris::{Twist, twist, twisted};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use proptest::prelude::*;
use proptest::sample::select;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use std::fs;
use std::sync::LazyLock;

/// What a server is asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Ask {
    /// The page of `skills/list` at this cursor.
    Page(Option<String>),
    Get(String),
    Read(String),
}

impl Ask {
    fn kind(&self) -> u8 {
        match self {
            Self::Page(_) => 0,
            Self::Get(_) => 1,
            Self::Read(_) => 2,
        }
    }
}

/// What becomes of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    Answer,
    Unknown,
    Silent,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Reply {
    pub(super) ask: Ask,
    /// The result as text.
    pub(super) text: String,
    pub(super) fate: Fate,
    /// Its text was changed in a way that a parsed value does not show.
    pub(super) coarse: bool,
}

/// All that a server answers, before and after a change.
#[derive(Debug, Clone)]
pub(super) struct Session {
    pub(super) name: String,
    pub(super) versions: Vec<Vec<Reply>>,
    /// After so many requests of the first version the second one answers.
    pub(super) switch: Option<usize>,
}

impl Session {
    pub(super) fn reply(&self, version: usize, ask: &Ask) -> Option<&Reply> {
        self.versions[version].iter().find(|r| r.ask == *ask)
    }
}

/// The recorded sessions.
pub(super) static RECORDED: LazyLock<Vec<Session>> = LazyLock::new(|| {
    #[derive(Deserialize)]
    struct File {
        versions: Vec<Vec<Line>>,
    }
    #[derive(Deserialize)]
    struct Line {
        method: String,
        #[serde(default)]
        cursor: Option<String>,
        #[serde(default)]
        uri: String,
        result: Box<RawValue>,
    }
    let mut files: Vec<_> = fs::read_dir(project().join("tests/sessions"))
        .unwrap()
        .map(|f| f.unwrap().path())
        .collect();
    files.sort();
    let read = |path: &std::path::PathBuf| {
        let file: File = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
        let reply = |line: Line| Reply {
            ask: match &*line.method {
                "skills/list" => Ask::Page(line.cursor),
                "skills/get" => Ask::Get(line.uri),
                _ => Ask::Read(line.uri),
            },
            text: line.result.get().to_owned(),
            fate: Fate::Answer,
            coarse: false,
        };
        let version = |lines: Vec<Line>| lines.into_iter().map(reply).collect();
        Session {
            name: path.file_stem().unwrap().to_string_lossy().into_owned(),
            versions: file.versions.into_iter().map(version).collect(),
            switch: None,
        }
    };
    files.iter().map(read).collect()
});

// ---- mutations ----

/// Where something is changed: numbers that are taken modulo what there is.
#[derive(Debug, Clone, Copy)]
pub(super) struct At {
    pub(super) version: usize,
    pub(super) reply: usize,
    pub(super) node: usize,
    /// The same value is changed wherever it stands, also in what is asked for.
    pub(super) everywhere: bool,
}

#[derive(Debug, Clone)]
pub(super) enum Change {
    Drop,
    /// An element twice, or a key twice in its object.
    Twice,
    Retype(u8),
    Step(i64),
    Cut(usize),
    Insert(usize, char),
    Twist(Twist),
    /// With the value of the same key somewhere else.
    Swap(usize),
}

#[derive(Debug, Clone)]
pub(super) enum Mutation {
    Change(At, Change),
    /// The text of a reply ends too early.
    CutText(At, usize),
    /// A reply becomes that of another question.
    Misplace(At, usize),
    /// Two replies come for each other.
    Exchange(At, usize),
    /// That of the other version.
    OtherVersion(At),
    Fate(At, Fate),
    /// Where the next page is.
    Cursor(At, &'static str),
    /// Another content, with the digest and size that fit it.
    Rewrite(At, &'static str),
    /// The other version answers after so many requests.
    Switch(usize),
}

/// Stands for a lone surrogate until the text is made: a `char` cannot be one.
const SURROGATE: char = '\u{e000}';

pub(super) fn mutation() -> impl Strategy<Value = Mutation> {
    let at = (
        0..2usize,
        any::<u16>(),
        any::<u16>(),
        prop::bool::weighted(0.3),
    )
        .prop_map(|(version, reply, node, everywhere)| At {
            version,
            reply: reply.into(),
            node: node.into(),
            everywhere,
        });
    let odd = [
        '\0', '\u{1b}', '\n', '\r', '\u{202e}', '\u{2066}', '\u{feff}', '\u{fffd}', '\u{301}', '/',
        '.', '%', ' ', SURROGATE,
    ];
    let number = 0..300usize;
    let change = prop_oneof![
        2 => Just(Change::Drop),
        2 => Just(Change::Twice),
        3 => (0..16u8).prop_map(Change::Retype),
        2 => select(vec![1, -1, 1024, -1024]).prop_map(Change::Step),
        1 => number.clone().prop_map(Change::Cut),
        2 => (number.clone(), select(odd.to_vec())).prop_map(|(n, c)| Change::Insert(n, c)),
        3 => twist().prop_map(Change::Twist),
        4 => (0..1000usize).prop_map(Change::Swap),
    ];
    let other = 0..64usize;
    prop_oneof![
        16 => (at.clone(), change).prop_map(|(at, change)| Mutation::Change(at, change)),
        1 => (at.clone(), 0..4000usize).prop_map(|(at, n)| Mutation::CutText(at, n)),
        1 => (at.clone(), other.clone()).prop_map(|(at, n)| Mutation::Misplace(at, n)),
        1 => (at.clone(), other).prop_map(|(at, n)| Mutation::Exchange(at, n)),
        2 => at.clone().prop_map(Mutation::OtherVersion),
        2 => (at.clone(), select(vec![Fate::Unknown, Fate::Silent])).prop_map(|(at, fate)| Mutation::Fate(at, fate)),
        1 => (at.clone(), select(vec!["", "2", "again", "none"])).prop_map(|(at, c)| Mutation::Cursor(at, c)),
        4 => (at, select(vec!["", "other\n", "---\nname: greet\ndescription: Greets\n---\n", "\0\u{1b}[2J\u{202e}"]))
            .prop_map(|(at, text)| Mutation::Rewrite(at, text)),
        1 => (0..40usize).prop_map(Mutation::Switch),
    ]
}

impl Mutation {
    pub(super) fn apply(&self, session: &mut Session) {
        match self {
            Self::Change(at, change) => apply(session, *at, change),
            Self::CutText(at, n) => {
                let reply = pick(session, *at);
                let end = (0..=n % reply.text.len().max(1))
                    .rev()
                    .find(|i| reply.text.is_char_boundary(*i));
                reply.text.truncate(end.unwrap_or(0));
                reply.coarse = true;
            }
            Self::Misplace(at, n) | Self::Exchange(at, n) => {
                let replies = &mut session.versions[at.version];
                let one = at.reply % replies.len();
                let alike: Vec<usize> = (0..replies.len())
                    .filter(|i| replies[*i].ask.kind() == replies[one].ask.kind())
                    .collect();
                let other = alike[n % alike.len()];
                let (a, b) = (replies[one].clone(), replies[other].clone());
                replies[one] = Reply {
                    ask: a.ask.clone(),
                    ..b.clone()
                };
                if matches!(self, Self::Exchange(..)) {
                    replies[other] = Reply { ask: b.ask, ..a };
                }
            }
            Self::OtherVersion(at) => {
                let ask = pick(session, *at).ask.clone();
                if let Some(other) = session.reply(1 - at.version, &ask).cloned() {
                    *pick(session, *at) = other;
                }
            }
            Self::Fate(at, fate) => pick(session, *at).fate = *fate,
            Self::Cursor(at, cursor) => {
                let pages = session.versions[at.version]
                    .iter_mut()
                    .filter(|r| r.ask.kind() == 0);
                let mut pages: Vec<&mut Reply> = pages.collect();
                let count = pages.len().max(1);
                if let Some(reply) = pages.get_mut(at.reply % count) {
                    edit(reply, |value| {
                        if let Some(map) = value.as_object_mut() {
                            match *cursor {
                                "none" => drop(map.remove("nextCursor")),
                                c => drop(map.insert("nextCursor".into(), json!(c))),
                            }
                        }
                    });
                }
            }
            Self::Rewrite(at, text) => rewrite(session, *at, text),
            Self::Switch(n) => session.switch = Some(*n),
        }
    }
}

fn pick(session: &mut Session, at: At) -> &mut Reply {
    let replies = &mut session.versions[at.version];
    // A page holds most of what can be changed, and there is one of it among many replies.
    let n = replies.len();
    let page = at.reply.is_multiple_of(3).then(|| {
        let pages: Vec<usize> = (0..n).filter(|i| replies[*i].ask.kind() == 0).collect();
        pages[at.reply / 3 % pages.len()]
    });
    &mut replies[page.unwrap_or(at.reply % n)]
}

/// Changes a reply as a value, if it still is one.
fn edit(reply: &mut Reply, change: impl FnOnce(&mut Value)) {
    if let Ok(mut value) = serde_json::from_str::<Value>(&reply.text) {
        change(&mut value);
        put(reply, &value);
    }
}

fn put(reply: &mut Reply, value: &Value) {
    let text = value.to_string();
    if text.contains(SURROGATE) {
        reply.coarse = true;
    }
    reply.text = text.replace(SURROGATE, "\\ud800");
}

/// All places in a value, as JSON pointers.
fn places(value: &Value, here: &str, into: &mut Vec<String>) {
    let escape = |key: &str| key.replace('~', "~0").replace('/', "~1");
    match value {
        Value::Object(map) => map.iter().for_each(|(k, v)| {
            let at = format!("{here}/{}", escape(k));
            into.push(at.clone());
            places(v, &at, into);
        }),
        Value::Array(list) => list.iter().enumerate().for_each(|(i, v)| {
            let at = format!("{here}/{i}");
            into.push(at.clone());
            places(v, &at, into);
        }),
        _ => {}
    }
}

fn key(place: &str) -> &str {
    place.rsplit('/').next().unwrap()
}

fn apply(session: &mut Session, at: At, change: &Change) {
    let reply = pick(session, at);
    let (Ok(mut value), asked) = (
        serde_json::from_str::<Value>(&reply.text),
        reply.ask.clone(),
    ) else {
        return;
    };
    let mut all = Vec::new();
    places(&value, "", &mut all);
    let Some(place) = all.get(at.node % all.len().max(1)).cloned() else {
        return;
    };
    let old = value.pointer(&place).unwrap().clone();
    match change {
        Change::Drop => {
            let (above, key) = place.rsplit_once('/').unwrap();
            match value.pointer_mut(above).unwrap() {
                Value::Object(map) => drop(map.remove(&key.replace("~1", "/").replace("~0", "~"))),
                Value::Array(list) => drop(list.remove(key.parse().unwrap())),
                _ => {}
            }
            return put(reply, &value);
        }
        Change::Twice => {
            let (above, key) = place.rsplit_once('/').unwrap();
            match value.pointer_mut(above).unwrap() {
                Value::Array(list) => list.insert(key.parse().unwrap(), old),
                Value::Object(map) => {
                    // A value cannot hold a key twice; the text can.
                    let key = key.replace("~1", "/").replace("~0", "~");
                    let mark = "\u{e001}";
                    map.insert(mark.into(), old);
                    put(reply, &value);
                    reply.text = reply
                        .text
                        .replace(&format!("{}:", json!(mark)), &format!("{}:", json!(key)));
                    reply.coarse = true;
                    return;
                }
                _ => {}
            }
            return put(reply, &value);
        }
        Change::Swap(n) => return swap(session, at, &place, *n),
        _ => {}
    }
    let new = changed(&old, change);
    if !at.everywhere {
        *value.pointer_mut(&place).unwrap() = new;
        return put(reply, &value);
    }
    let rename = |text: &str| match (&old, &new) {
        (Value::String(old), Value::String(new)) if old == text => Some(new.replace(SURROGATE, "")),
        _ => None,
    };
    for reply in &mut session.versions[at.version] {
        let same = reply.ask == asked;
        edit(reply, |value| {
            let mut all = Vec::new();
            places(value, "", &mut all);
            for p in all {
                let is = key(&p) == key(&place)
                    && (same && p == place || key(&p).parse::<usize>().is_err());
                if let Some(v) = value.pointer_mut(&p).filter(|v| is && **v == old) {
                    *v = new.clone();
                }
            }
        });
        let renamed = match &reply.ask {
            Ask::Page(cursor) => cursor
                .as_deref()
                .and_then(rename)
                .map(|c| Ask::Page(Some(c))),
            Ask::Get(uri) => rename(uri).map(Ask::Get),
            Ask::Read(uri) => rename(uri).map(Ask::Read),
        };
        if let Some(ask) = renamed {
            reply.ask = ask;
        }
    }
}

/// Exchanges the values of one key at two places.
fn swap(session: &mut Session, at: At, place: &str, n: usize) {
    let ask = pick(session, at).ask.clone();
    let replies = &mut session.versions[at.version];
    let mut alike = Vec::new();
    for (i, reply) in replies.iter().enumerate() {
        let Ok(value) = serde_json::from_str::<Value>(&reply.text) else {
            continue;
        };
        let mut all = Vec::new();
        places(&value, "", &mut all);
        alike.extend(
            all.into_iter()
                .filter(|p| key(p) == key(place))
                .map(|p| (i, p)),
        );
    }
    let one = replies.iter().position(|r| r.ask == ask).unwrap();
    let Some((other, there)) = alike.get(n % alike.len().max(1)).cloned() else {
        return;
    };
    let value = |i: usize, p: &str| -> Option<Value> {
        serde_json::from_str::<Value>(&replies[i].text)
            .ok()?
            .pointer(p)
            .cloned()
    };
    let (Some(a), Some(b)) = (value(one, place), value(other, &there)) else {
        return;
    };
    let mut set = |i: usize, p: &str, v: Value| {
        edit(&mut replies[i], |value| {
            if let Some(at) = value.pointer_mut(p) {
                *at = v;
            }
        });
    };
    set(one, place, b);
    set(other, &there, a);
}

fn changed(old: &Value, change: &Change) -> Value {
    let text = match old {
        Value::String(s) => s.clone(),
        other => other.to_string(),
    };
    let at = |n: usize| {
        let chars = text.chars().count();
        text.char_indices()
            .nth(n % (chars + 1))
            .map_or(text.len(), |(i, _)| i)
    };
    match change {
        Change::Retype(n) => match n {
            0 => Value::Null,
            1 => json!(true),
            2 => json!(0),
            3 => json!(-1),
            4 => json!(1.5),
            5 => json!(""),
            6 => json!([]),
            7 => json!({}),
            8 => json!("dynamic"),
            9 => json!(1e308),
            10 => json!(u64::MAX),
            11 => json!([old]),
            12 => json!({ "uri": old }),
            13 => text.parse::<i64>().map_or(json!(text), |n| json!(n)),
            14 => (0..100).fold(old.clone(), |v, _| json!([v])),
            _ => old.as_u64().map_or(json!(text), |n| json!(n as f64)),
        },
        Change::Step(by) => match old {
            Value::Number(n) => n
                .as_i64()
                .map_or(old.clone(), |n| json!(n.saturating_add(*by))),
            // The last letter is the next one.
            _ => {
                let mut chars: Vec<char> = text.chars().collect();
                if let Some(c) = chars.last_mut() {
                    *c = char::from_u32((*c as u32).wrapping_add_signed(*by as i32)).unwrap_or('x');
                }
                json!(chars.into_iter().collect::<String>())
            }
        },
        Change::Cut(n) => match old {
            Value::Array(list) => json!(list[..n % (list.len() + 1)]),
            _ => json!(text[..at(*n)]),
        },
        Change::Insert(n, c) => json!(format!("{}{c}{}", &text[..at(*n)], &text[at(*n)..])),
        Change::Twist(twist) => json!(twisted(&text, twist)),
        _ => old.clone(),
    }
}

/// Gives a file another content that its rows describe.
fn rewrite(session: &mut Session, at: At, new: &str) {
    let reads: Vec<usize> = (0..session.versions[at.version].len())
        .filter(|i| session.versions[at.version][*i].ask.kind() == 2)
        .collect();
    if reads.is_empty() {
        return;
    }
    let read = &mut session.versions[at.version][reads[at.reply % reads.len()]];
    let Ask::Read(uri) = read.ask.clone() else {
        return;
    };
    let mut bytes = super::oracle::content(&read.text, &uri).unwrap_or_default();
    match new {
        "" => bytes.push(b'\n'),
        text => bytes = text.into(),
    }
    edit(read, |value| {
        let item = match std::str::from_utf8(&bytes) {
            Ok(text) if at.node.is_multiple_of(2) => json!({"uri": uri, "text": text}),
            _ => json!({"uri": uri, "blob": STANDARD.encode(&bytes)}),
        };
        if let Some(map) = value.as_object_mut() {
            map.insert("contents".into(), json!([item]));
        }
    });
    for reply in session.versions[at.version]
        .iter_mut()
        .filter(|r| r.ask.kind() != 2)
    {
        edit(reply, |value| {
            let mut all = Vec::new();
            places(value, "", &mut all);
            for row in all {
                if let Some(row) = value
                    .pointer_mut(&row)
                    .filter(|r| r["uri"] == json!(uri) && r.get("digest").is_some())
                {
                    row["digest"] = json!(format!("sha256:{}", sha256(&bytes)));
                    row["size"] = json!(bytes.len());
                }
            }
        });
    }
}
