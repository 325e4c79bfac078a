//! From generated URIs to paths: each has a safe place below its label or a reason why it has
//! none, and no two share one.
//!
//! [`path`] says independently of the code what the place of a URI is. Two URIs may decode to
//! one path; then neither a manifest nor two skills may hold both, which the run checks for each
//! pair that it meets.

pub(crate) mod place;

pub(crate) use place::path;

use mount_skills::domain::manifest::{Declined, Entry, Reason};
use mount_skills::domain::name::{MAX_LEVELS, MAX_NAME, MAX_PATH, NameError, RelPath};
use mount_skills::domain::skill::{Approval, Hold, Known, Origin, Policy, Shown, Skill};
use mount_skills::domain::tree::{Beyond, Branch, Seen};
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::{Config, TestRunner};
use serde_json::{Value, json};
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use unicode_normalization::UnicodeNormalization;

/// The URIs of one run; the environment variable says otherwise.
const URIS: u32 = 20_000;
const URIS_VAR: &str = "MOUNT_SKILLS_URIS";

fn percent_encoded(text: &str, upper: bool) -> String {
    let encode = |b: u8| {
        if upper {
            format!("%{b:02X}")
        } else {
            format!("%{b:02x}")
        }
    };
    text.bytes().map(encode).collect()
}

// ---- the URIs ----

/// One segment, in a spelling that servers use or that somebody might try.
fn segment() -> impl Strategy<Value = String> {
    let plain = "[a-c]{1,2}|[a-z][a-z0-9-]{0,12}|[A-Za-z0-9._-]{1,20}";
    const SPELLED: &[&str] = &[
        "SKILL.md",
        "skill.md",
        "C++",
        "a+b.md",
        "[id].tsx",
        "[...slug]",
        "(group)",
        "a|b",
        "co:lon.md",
        "@scope",
        "a b",
        "a%20b",
        "it's",
        "x~1",
        "a=b&c=d",
        "100%",
        "100%25.md",
        "%",
        "%4",
        "%zz",
        "a\\b",
        "a%5Cb",
        "`x`",
        "{x}",
        "<x>",
        "\"x\"",
        "^x",
        "*",
        "7、UI 设计.md",
        "7%E3%80%81UI.md",
        "café.md",
        "cafe\u{301}.md",
        "caf%C3%A9.md",
        "cafe%CC%81.md",
        "Ω",
        "\u{2126}",
        "ﬁ",
        "İ",
        "ß",
        "🦀",
        "👩\u{200d}🚀",
        ".hidden",
        "..a",
        "a..",
        "...",
        "-",
        "~",
        "con",
        "nul.txt",
        "a.",
        "a ",
        " a",
    ];
    const VILE: &[&str] = &[
        "",
        ".",
        "..",
        "%2e",
        "%2E%2e",
        ".%2e",
        "%252e%252e",
        "%2F",
        "a%2Fb",
        "a%2fb",
        "%252F",
        "%5c..",
        "..%2f..",
        "%00",
        "a%00b",
        "\0",
        "%0a",
        "\n",
        "%0d%0a",
        "\r",
        "%1b[31m",
        "\u{1b}[0m",
        "%7f",
        "\u{7f}",
        "%c2%85",
        "\u{85}",
        "\u{202e}gpj.exe",
        "%E2%80%AE",
        "\u{2066}a\u{2069}",
        "\u{feff}",
        "\u{200b}",
        "\u{ad}",
        "%ff",
        "%c0%ae",
        "%c3",
        "%ed%a0%80",
        "%f5%80%80%80",
        "\u{fffd}",
        "github:",
        "skill:",
        "github%3A",
        ":",
        "%3a",
        "a?b",
        "?",
        "a#b",
        "#",
        "%3F",
        "%23",
    ];
    prop_oneof![
        6 => plain,
        4 => select(SPELLED).prop_map(str::to_owned),
        2 => select(VILE).prop_map(str::to_owned),
        1 => (plain, any::<bool>()).prop_map(|(text, upper)| percent_encoded(&text, upper)),
        1 => select(SPELLED).prop_map(|text| percent_encoded(text, true)),
        // Twice.
        1 => plain.prop_map(|text| percent_encoded(&percent_encoded(&text, true), true)),
        1 => any::<String>(),
        1 => (select(vec!["x", "é", "%61", "%C3%A9"]), select(vec![1, 63, 64, 84, 85, 126, 127, 128, 254, 255, 256, 300]))
            .prop_map(|(text, n)| text.repeat(n)),
    ]
}

/// What comes before the path.
fn before() -> impl Strategy<Value = String> {
    let spelled = prop_oneof![
        12 => Just("skill://"),
        4 => select(vec![
            "github://", "SKILL://", "Skill://", "git+ssh://", "a.b-c+1://", "file://", "https://", "x://", "skills://",
        ]),
        1 => select(vec![
            "", "skill:", "skill:/", "skill:///", "://", "1x://", "+x://", "sk ill://", "skíll://", "skill%3A//", "//",
            "file:/etc/", "\u{feff}skill://", "skill://skill://", "skill\n://", " skill://",
        ]),
        1 => select(vec!["skill://user@", "skill://user:secret@", "https://u:p@host:8080/", "skill://[::1]/", "skill://a:80/"]),
    ];
    // With its colon it is the name of a directory.
    let long = select(vec![253, 254, 255, 300]).prop_map(|n| format!("{}://", "s".repeat(n)));
    prop_oneof![40 => spelled.prop_map(str::to_owned), 1 => long]
}

/// What is done to a URI.
#[derive(Debug, Clone)]
pub(crate) enum Twist {
    Encode(usize),
    EncodeAll,
    HexCase,
    Nfc,
    Nfd,
    Case(usize),
    Byte(usize, u8),
    Insert(usize, char),
    Remove(usize),
    Cut(usize),
    Append(&'static str),
    Repeat(usize),
}

pub(crate) fn twist() -> impl Strategy<Value = Twist> {
    let at = || 0..200usize;
    let odd = "\0\u{1b}\n\r\t/%.?#:@\\ \u{7f}\u{202e}\u{301}"
        .chars()
        .collect::<Vec<_>>();
    prop_oneof![
        4 => at().prop_map(Twist::Encode),
        1 => Just(Twist::EncodeAll),
        2 => Just(Twist::HexCase),
        1 => Just(Twist::Nfc),
        1 => Just(Twist::Nfd),
        1 => at().prop_map(Twist::Case),
        2 => (at(), any::<u8>()).prop_map(|(at, byte)| Twist::Byte(at, byte)),
        2 => (at(), select(odd)).prop_map(|(at, c)| Twist::Insert(at, c)),
        1 => at().prop_map(Twist::Remove),
        1 => at().prop_map(Twist::Cut),
        1 => select(vec!["/", "?", "#", "?q=1", "#top", "/..", "/.", "//", "/SKILL.md", "%", "%2", "\0"]).prop_map(Twist::Append),
        1 => select(vec![2, 20, 62, 63, 64, 65, 400, 4096]).prop_map(Twist::Repeat),
    ]
}

pub(crate) fn twisted(uri: &str, twist: &Twist) -> String {
    let chars: Vec<char> = uri.chars().collect();
    let (start, rest) = uri
        .find("://")
        .map_or((0, uri), |at| (at + 3, &uri[at + 3..]));
    let each = |at: usize, change: &dyn Fn(char) -> String| -> String {
        let at = at % chars.len().max(1);
        let one = |(i, c): (usize, &char)| if i == at { change(*c) } else { c.to_string() };
        chars.iter().enumerate().map(one).collect()
    };
    match twist {
        // Beyond the scheme, so that it stays a URI.
        Twist::Encode(at) => {
            let at = rest.char_indices().nth(at % rest.chars().count().max(1));
            at.map_or(uri.to_owned(), |(i, c)| {
                let (head, tail) = (&uri[..start + i], &rest[i + c.len_utf8()..]);
                if c == '/' {
                    uri.to_owned()
                } else {
                    format!(
                        "{head}{}{tail}",
                        percent_encoded(&c.to_string(), i % 2 == 0)
                    )
                }
            })
        }
        Twist::EncodeAll => {
            let all: Vec<String> = rest.split('/').map(|s| percent_encoded(s, true)).collect();
            format!("{}{}", &uri[..start], all.join("/"))
        }
        Twist::HexCase => {
            let mut out = uri.to_owned();
            for (at, _) in uri.match_indices('%') {
                if let Some(hex) = uri.get(at + 1..at + 3).filter(|h| h.is_ascii()) {
                    let other = if hex.chars().any(|c| c.is_ascii_lowercase()) {
                        hex.to_uppercase()
                    } else {
                        hex.to_lowercase()
                    };
                    out.replace_range(at + 1..at + 3, &other);
                }
            }
            out
        }
        Twist::Nfc => uri.nfc().collect(),
        Twist::Nfd => uri.nfd().collect(),
        Twist::Case(at) => each(*at, &|c| {
            if c.is_lowercase() {
                c.to_uppercase().collect()
            } else {
                c.to_lowercase().collect()
            }
        }),
        Twist::Byte(at, byte) => {
            let mut bytes = uri.as_bytes().to_vec();
            let at = at % bytes.len().max(1);
            if let Some(b) = bytes.get_mut(at) {
                *b = *byte;
            }
            String::from_utf8_lossy(&bytes).into_owned()
        }
        Twist::Insert(at, odd) => each(*at, &|c| format!("{odd}{c}")),
        Twist::Remove(at) => each(*at, &|_| String::new()),
        Twist::Cut(at) => chars[..at % chars.len().max(1)].iter().collect(),
        Twist::Append(end) => format!("{uri}{end}"),
        Twist::Repeat(n) => format!("{uri}{}", "/a".repeat(*n)),
    }
}

fn uri() -> impl Strategy<Value = String> {
    let segments = prop_oneof![
        8 => prop::collection::vec(segment(), 1..5),
        1 => prop::collection::vec(segment(), 30..70),
    ];
    let valid = (before(), segments).prop_map(|(before, all)| format!("{before}{}", all.join("/")));
    let twists = prop_oneof![3 => Just(0..1usize), 1 => Just(1..5usize)];
    let twists = twists.prop_flat_map(|n| prop::collection::vec(twist(), n));
    (valid, twists).prop_map(|(uri, twists)| twists.iter().fold(uri, |uri, t| twisted(&uri, t)))
}

// ---- the run ----

/// What a run has met.
#[derive(Default)]
struct Met {
    by_path: HashMap<String, String>,
    kinds: BTreeMap<&'static str, u64>,
}

impl Met {
    fn count(&mut self, kind: &'static str) {
        *self.kinds.entry(kind).or_default() += 1;
    }
}

fn reason(e: &NameError) -> &'static str {
    match e {
        NameError::NoScheme => "no scheme",
        NameError::QueryOrFragment => "query or fragment",
        NameError::Empty => "empty",
        NameError::Dots(_) => "dots",
        NameError::Unsafe(_) => "unsafe",
        NameError::NotUtf8(_) => "not UTF-8",
        NameError::LongName(_) => "long name",
        NameError::TooDeep(_) => "too deep",
        NameError::TooLong(_) => "too long",
        NameError::LooksLikeScheme(_) => "looks like a scheme",
    }
}

fn check(uri: &str, met: &mut Met) -> Result<(), TestCaseError> {
    let got = RelPath::of_uri(uri);
    let (place, want) = (got.as_ref().ok().map(RelPath::as_str), path(uri));
    prop_assert_eq!(place, want.as_deref(), "the place of {:?}", uri);
    let rel = match got {
        Ok(rel) => rel,
        Err(e) => {
            prop_assert!(!e.to_string().is_empty());
            met.count(reason(&e));
            return Ok(());
        }
    };
    met.count("mapped");
    let text = rel.as_str();
    prop_assert!(
        text.len() <= MAX_PATH && text.split('/').count() <= MAX_LEVELS,
        "{uri:?}"
    );
    for name in text.split('/') {
        prop_assert!(
            !matches!(name, "" | "." | "..") && name.len() <= MAX_NAME,
            "{uri:?}: {name:?}"
        );
        prop_assert!(
            !name.contains('\0') && !name.chars().any(char::is_control),
            "{uri:?}: {name:?}"
        );
    }
    let below = std::path::Path::new(text).components();
    let normal = |c: std::path::Component| matches!(c, std::path::Component::Normal(_));
    prop_assert_eq!(
        below.map(normal).filter(|ok| *ok).count(),
        text.split('/').count(),
        "it stays below the label"
    );
    // Back again, from the path and from each directory above but the one of a scheme alone.
    for dir in std::iter::successors(Some(rel.clone()), RelPath::parent) {
        let scheme_alone = dir.parent().is_none() && dir.as_str().ends_with(':');
        let again = dir.to_uri();
        if !scheme_alone && again.len() <= MAX_PATH {
            let back = RelPath::of_uri(&again).ok();
            prop_assert_eq!(back.as_ref(), Some(&dir), "{:?} by {:?}", uri, again);
        }
        let by_names = RelPath::of_names(dir.as_str());
        prop_assert_eq!(by_names.as_ref(), Some(&dir));
    }
    match met.by_path.get(text) {
        Some(other) if other != uri => {
            let other = other.clone();
            met.count("shared");
            apart(&other, uri, &rel)?;
        }
        Some(_) => met.count("again"),
        None => drop(met.by_path.insert(text.to_owned(), uri.to_owned())),
    }
    Ok(())
}

/// Two URIs of one path: a manifest with both is declined, and so are two skills in one place.
fn apart(one: &str, other: &str, path: &RelPath) -> Result<(), TestCaseError> {
    let row =
        |uri: &str| json!({"uri": uri, "digest": format!("sha256:{}", "0".repeat(64)), "size": 1});
    let entry = |uri: &str, dir: &RelPath, files: &[&str]| -> Value {
        json!({"uri": uri, "frontmatter": {"name": dir.last(), "description": "d"},
            "resources": files.iter().map(|f| row(f)).collect::<Vec<_>>()})
    };
    if let Some(dir) = path.parent().filter(|d| !d.as_str().ends_with(':')) {
        let md = format!("{}/SKILL.md", dir.to_uri());
        let mut files = vec![&*md, one, other];
        files.dedup();
        if md.len() <= MAX_PATH && md != other {
            let declined = Entry::parse(&entry(&md, &dir, &files)).map_err(|d| d.reason);
            let same = matches!(&declined, Err(Reason::File { reason, .. }) if matches!(**reason, Reason::SamePath(_)));
            prop_assert!(
                same,
                "one manifest with {one:?} and {other:?}: {declined:?}"
            );
        }
    }
    let [a, b] = [one, other].map(|uri| format!("{uri}/SKILL.md"));
    let skills = [&a, &b].map(|uri| Entry::parse(&entry(uri, path, &[uri])));
    if let [Ok(a), Ok(b)] = skills {
        let (skills, declined) = shown([a, b]);
        prop_assert_eq!(
            (skills, declined.len()),
            (0, 2),
            "two skills at {:?} and {:?}",
            one,
            other
        );
        let conflict = |d: &Arc<Declined>| matches!(d.reason, Reason::Conflict { .. });
        prop_assert!(declined.iter().all(conflict), "{declined:?}");
    }
    Ok(())
}

/// How many of these skills a label shows, and what it declines.
fn shown(entries: [Entry; 2]) -> (usize, Vec<Arc<Declined>>) {
    let policy = Policy {
        hold: Hold::Release,
        approval: Approval::Server,
    };
    let shown = entries.map(|e| {
        let skill = Skill::new(Known::Entry(Arc::new(e)), Origin::Listed);
        skill.shown(policy).map(Arc::<Shown>::new).unwrap()
    });
    let branch = Branch::of_skills(
        1,
        shown.into(),
        Vec::new(),
        &Beyond::default(),
        None,
        &Seen::new(),
        0,
    );
    (
        branch.skills().count(),
        branch.declined().cloned().collect(),
    )
}

#[test]
fn hr11_hr20_every_uri_has_a_safe_place_of_its_own_or_a_reason_why_not() {
    let cases = std::env::var(URIS_VAR).map_or(URIS, |n| n.parse().unwrap());
    let config = Config {
        cases,
        failure_persistence: None,
        ..Config::default()
    };
    let met = RefCell::new(Met::default());
    let held = TestRunner::new(config).run(&uri(), |uri| check(&uri, &mut met.borrow_mut()));
    if let Err(e) = held {
        panic!("{e}");
    }
    // What the run is worth.
    let met = met.into_inner();
    let kinds = &met.kinds;
    eprintln!("{cases} URIs: {kinds:?}");
    assert!(kinds["mapped"] > u64::from(cases) / 4, "{kinds:?}");
    assert!(kinds["shared"] > u64::from(cases) / 1000, "{kinds:?}");
    for reason in [
        "no scheme",
        "query or fragment",
        "empty",
        "dots",
        "unsafe",
        "not UTF-8",
        "long name",
        "too deep",
        "too long",
        "looks like a scheme",
    ] {
        assert!(
            kinds.contains_key(reason),
            "no URI was declined for {reason}: {kinds:?}"
        );
    }
}
