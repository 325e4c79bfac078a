//! JSON of a server → domain types, entry by entry.
//!
//! Results arrive as raw text, so that one bad entry costs one skill (HR-44), a key given twice
//! in one object is seen (HR-43), and nothing is parsed that is not needed. Pure.

use super::SourceError;
use crate::domain::manifest::{Declined, Entry, Reason};
use crate::domain::name::{MAX_PATH, RelPath};
use crate::domain::text::Quoted;
use crate::domain::verify::Untrusted;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

/// JSON nested deeper than this is malformed (HR-63).
const MAX_DEPTH: usize = 64;
/// At most this many bytes in an entry: 512 files whose names are as long as names may be, and
/// the frontmatter. As values it takes up to ten times that.
const MAX_ENTRY: usize = 4 << 20;
/// At most this many bytes in a page of a listing.
const MAX_PAGE: usize = 64 << 20;
/// At most this many items in a list.
const MAX_ITEMS: usize = 100_000;

/// One page of `skills/list`.
#[derive(Debug)]
pub struct Page {
    /// Each entry, valid or not.
    pub entries: Vec<Result<Entry, Declined>>,
    /// What comes after it.
    pub next: Next,
    /// How long the listing holds, as the server sees it (HR-51).
    pub ttl: Duration,
}

/// What comes after a page.
#[derive(Debug, PartialEq, Eq)]
pub enum Next {
    /// Nothing.
    End,
    /// The page with this cursor; it may be empty text.
    Cursor(String),
    /// Something that no cursor can be: what comes after is out of reach, this page is not.
    Odd,
}

impl Next {
    fn of(raw: Option<&RawValue>) -> Self {
        match raw.map(|raw| serde_json::from_str(raw.get())) {
            None => Self::End,
            Some(Ok(cursor)) => Self::Cursor(cursor),
            Some(Err(_)) => Self::Odd,
        }
    }
}

/// What every result has.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Head<'a> {
    #[serde(borrow, default)]
    result_type: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    ttl_ms: Option<&'a RawValue>,
}

impl Head<'_> {
    /// Absent counts as complete; another type cannot be used (HR-06).
    fn check(&self) -> Result<(), SourceError> {
        match self.result_type.as_deref() {
            None | Some("complete") => Ok(()),
            Some("input_required" | "inputRequired") => Err(SourceError::NeedsInput),
            Some(other) => Err(malformed(format!(
                "resultType {} is unknown",
                Quoted(other)
            ))),
        }
    }

    /// An absent, negative or odd ttl counts as none.
    fn ttl(&self) -> Duration {
        let ms = self
            .ttl_ms
            .and_then(|raw| raw.get().parse::<f64>().ok())
            .unwrap_or(0.0);
        Duration::try_from_secs_f64(ms / 1000.0).unwrap_or_default()
    }
}

fn malformed(why: impl fmt::Display) -> SourceError {
    SourceError::Malformed(why.to_string())
}

/// A list of at most `MAX` items. A longer one ends the reading before its items are held.
fn bounded<'de, const MAX: usize, T: Deserialize<'de>, D: Deserializer<'de>>(
    de: D,
) -> Result<Vec<T>, D::Error> {
    struct Items<T, const MAX: usize>(PhantomData<T>);
    impl<'de, T: Deserialize<'de>, const MAX: usize> Visitor<'de> for Items<T, MAX> {
        type Value = Vec<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Vec<T>, A::Error> {
            let mut items = Vec::new();
            while let Some(item) = seq.next_element()? {
                if items.len() == MAX {
                    return Err(A::Error::custom(format!("more than {MAX} items")));
                }
                items.push(item);
            }
            Ok(items)
        }
    }
    de.deserialize_seq(Items::<T, MAX>(PhantomData))
}

fn parse<'a, T: Deserialize<'a>>(raw: &'a str) -> Result<T, SourceError> {
    serde_json::from_str(raw).map_err(malformed)
}

/// Reads one page of `skills/list`.
///
/// # Errors
/// The reply is no page; a bad entry is none of that.
pub fn list_page(raw: &str) -> Result<Page, SourceError> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Body<'a> {
        #[serde(borrow, deserialize_with = "bounded::<MAX_ITEMS, _, _>")]
        skills: Vec<&'a RawValue>,
        #[serde(borrow, default)]
        next_cursor: Option<&'a RawValue>,
    }
    if raw.len() > MAX_PAGE {
        let (len, most) = (raw.len(), MAX_PAGE >> 20);
        return Err(malformed(format!(
            "{len} bytes in a page, more than {most} MiB"
        )));
    }
    let head: Head = parse(raw)?;
    head.check()?;
    let body: Body = parse(raw)?;
    Ok(Page {
        entries: body
            .skills
            .into_iter()
            .map(|raw| entry(raw.get()))
            .collect(),
        next: Next::of(body.next_cursor),
        ttl: head.ttl(),
    })
}

/// Reads the result of `skills/get` for `uri`: the entry must carry that URI (HR-49).
///
/// # Errors
/// The reply has another shape, or another URI.
pub fn get_result(raw: &str, uri: &str) -> Result<Result<Entry, Declined>, SourceError> {
    #[derive(Deserialize)]
    struct Body<'a> {
        #[serde(borrow)]
        skill: &'a RawValue,
    }
    let head: Head = parse(raw)?;
    head.check()?;
    let body: Body = parse(raw)?;
    let entry = entry(body.skill.get());
    let got = match &entry {
        Ok(e) => Some(&*e.uri),
        Err(d) => d.uri.as_deref(),
    };
    if got != Some(uri) {
        return Err(malformed(format!(
            "skills/get of {} answered with the entry of {}",
            Quoted(uri),
            got.map_or_else(|| "no URI".to_owned(), |got| Quoted(got).to_string())
        )));
    }
    Ok(entry)
}

/// Reads one entry.
fn entry(raw: &str) -> Result<Entry, Declined> {
    if raw.len() > MAX_ENTRY {
        #[derive(Deserialize)]
        struct Named<'a> {
            #[serde(borrow)]
            uri: Cow<'a, str>,
        }
        let named: Option<Named> = serde_json::from_str(raw).ok();
        let (len, most) = (raw.len(), MAX_ENTRY >> 20);
        let why = format!("{len} bytes, more than {most} MiB");
        return Err(unread(named.as_ref().map(|n| &*n.uri), why));
    }
    match strict(raw) {
        Ok(value) => Entry::parse(&value),
        Err(e) => {
            let lenient: Option<Value> = serde_json::from_str(raw).ok();
            let uri = lenient
                .as_ref()
                .and_then(|v| v.get("uri"))
                .and_then(Value::as_str);
            Err(unread(uri, e.to_string()))
        }
    }
}

/// An entry whose JSON is not read, by its URI if that can be one.
fn unread(uri: Option<&str>, why: String) -> Declined {
    let uri = uri.filter(|u| u.len() <= MAX_PATH);
    Declined {
        uri: uri.map(Into::into),
        dir: uri.and_then(|u| RelPath::of_uri(u).ok()?.parent()),
        reason: Reason::Malformed(why),
    }
}

/// Reads the result of `resources/read` of `uri`: exactly one item, of that URI, with either
/// text or standard base64 (HR-62). `size` is what the entry promises.
///
/// # Errors
/// The reply has another shape, or is too long for a file of that size.
pub fn read_result(raw: &str, uri: &str, size: u64) -> Result<Untrusted, SourceError> {
    #[derive(Deserialize)]
    struct Body<'a> {
        #[serde(borrow, deserialize_with = "bounded::<16, _, _>")]
        contents: Vec<Item<'a>>,
    }
    #[derive(Deserialize)]
    struct Item<'a> {
        #[serde(borrow)]
        uri: Cow<'a, str>,
        #[serde(borrow, default)]
        text: Option<Cow<'a, str>>,
        #[serde(borrow, default)]
        blob: Option<Cow<'a, str>>,
    }
    // Escapes make a text up to six times as long as its bytes.
    let most = size.saturating_mul(6).saturating_add(64 * 1024);
    if raw.len() as u64 > most {
        let len = raw.len();
        return Err(malformed(format!(
            "{len} bytes of reply for a file of {size} bytes"
        )));
    }
    let head: Head = parse(raw)?;
    head.check()?;
    let body: Body = parse(raw)?;
    let count = body.contents.len();
    let Ok([item]) = <[Item; 1]>::try_from(body.contents) else {
        return Err(malformed(format!(
            "expected one item of contents, found {count}"
        )));
    };
    if item.uri != uri {
        return Err(malformed(format!(
            "expected contents of {}, found {}",
            Quoted(uri),
            Quoted(&item.uri)
        )));
    }
    match (item.text, item.blob) {
        (Some(text), None) => Ok(Untrusted::new(text.into_owned().into_bytes())),
        (None, Some(blob)) => {
            let bytes = STANDARD
                .decode(&*blob)
                .map_err(|e| malformed(format!("the blob is not standard base64: {e}")))?;
            Ok(Untrusted::new(bytes))
        }
        (Some(_), Some(_)) => Err(malformed("the item has both text and blob")),
        (None, None) => Err(malformed("the item has neither text nor blob")),
    }
}

/// One page of `resources/directory/read`.
#[derive(Debug)]
pub struct DirPage {
    /// The children that can be one.
    pub children: Vec<DirChild>,
    /// How many cannot: not direct children of the directory, or without a safe name.
    pub dropped: usize,
    /// What comes after it.
    pub next: Next,
}

/// A child of a directory resource, as the server shows it now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirChild {
    /// Its URI, verbatim.
    pub uri: String,
    /// Where that lies below the label.
    pub path: RelPath,
    /// What it is.
    pub kind: ChildKind,
}

/// What a child of a directory resource is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChildKind {
    /// A directory resource.
    Directory,
    /// Any other resource.
    File,
}

/// Reads one page of `resources/directory/read` of `uri`: direct children only (HR-94).
///
/// # Errors
/// The reply is no page; what is no child is left out.
pub fn directory_page(raw: &str, uri: &str) -> Result<DirPage, SourceError> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Body<'a> {
        #[serde(borrow, deserialize_with = "bounded::<MAX_ITEMS, _, _>")]
        resources: Vec<&'a RawValue>,
        #[serde(borrow, default)]
        next_cursor: Option<&'a RawValue>,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Item {
        uri: String,
        #[serde(default)]
        mime_type: Option<String>,
    }
    let head: Head = parse(raw)?;
    head.check()?;
    let body: Body = parse(raw)?;
    let dir = RelPath::of_uri(uri).map_err(malformed)?;
    let total = body.resources.len();
    let child = |raw: &RawValue| {
        let item: Item = serde_json::from_str(raw.get()).ok()?;
        let path = RelPath::of_uri(&item.uri)
            .ok()
            .filter(|p| p.parent().as_ref() == Some(&dir))?;
        let kind = match item.mime_type.as_deref() {
            Some("inode/directory") => ChildKind::Directory,
            _ => ChildKind::File,
        };
        Some(DirChild {
            uri: item.uri,
            path,
            kind,
        })
    };
    let children: Vec<DirChild> = body.resources.into_iter().filter_map(child).collect();
    Ok(DirPage {
        dropped: total - children.len(),
        children,
        next: Next::of(body.next_cursor),
    })
}

/// Parses JSON, refusing a key given twice in one object and nesting over [`MAX_DEPTH`].
fn strict(raw: &str) -> Result<Value, serde_json::Error> {
    let mut de = serde_json::Deserializer::from_str(raw);
    let value = Strict(0).deserialize(&mut de)?;
    de.end()?;
    Ok(value)
}

#[derive(Clone, Copy)]
struct Strict(usize);

impl Strict {
    fn deeper<E: serde::de::Error>(self) -> Result<Self, E> {
        if self.0 == MAX_DEPTH {
            return Err(E::custom(format!("nested deeper than {MAX_DEPTH} levels")));
        }
        Ok(Self(self.0 + 1))
    }
}

impl<'de> DeserializeSeed<'de> for Strict {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, de: D) -> Result<Value, D::Error> {
        de.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Strict {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, v: bool) -> Result<Value, E> {
        Ok(v.into())
    }

    fn visit_i64<E>(self, v: i64) -> Result<Value, E> {
        Ok(v.into())
    }

    fn visit_u64<E>(self, v: u64) -> Result<Value, E> {
        Ok(v.into())
    }

    fn visit_f64<E>(self, v: f64) -> Result<Value, E> {
        Ok(v.into())
    }

    fn visit_str<E>(self, v: &str) -> Result<Value, E> {
        Ok(v.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let deeper = self.deeper()?;
        let mut out = Vec::new();
        while let Some(value) = seq.next_element_seed(deeper)? {
            out.push(value);
        }
        Ok(Value::Array(out))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let deeper = self.deeper()?;
        let mut out = Map::new();
        while let Some(key) = map.next_key::<String>()? {
            let value = map.next_value_seed(deeper)?;
            if out.contains_key(&key) {
                return Err(A::Error::custom(format!(
                    "key {} is given twice",
                    Quoted(&key)
                )));
            }
            out.insert(key, value);
        }
        Ok(Value::Object(out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::digest::Digest;
    use crate::domain::verify::{Expected, verify};
    use serde_json::json;

    fn good(uri: &str) -> Value {
        let name = uri.split('/').nth(2).unwrap();
        json!({"uri": uri, "frontmatter": {"name": name, "description": "d"},
            "resources": [{"uri": uri, "digest": Digest::of(b"x").to_string(), "size": 1}]})
    }

    #[test]
    fn hr_44_one_bad_entry_costs_one_skill() {
        let mut entries: Vec<String> = (0..9)
            .map(|i| good(&format!("skill://s{i}/SKILL.md")).to_string())
            .collect();
        for bad in [
            "5".to_owned(),
            "{}".into(),
            r#"{"uri":"skill://t/SKILL.md","uri":"skill://u/SKILL.md"}"#.into(),
            good("skill://t/SKILL.md")
                .to_string()
                .replace("\"d\"", "\"d\",\"description\":\"e\""),
            format!("{}1{}", "[".repeat(100), "]".repeat(100)),
        ] {
            entries.insert(4, bad);
        }
        let raw = format!(
            r#"{{"skills":[{}],"nextCursor":"","ttlMs":1500}}"#,
            entries.join(",")
        );
        let page = list_page(&raw).unwrap();
        assert_eq!(page.entries.iter().filter(|e| e.is_ok()).count(), 9);
        assert_eq!(page.entries.len(), 14);
        assert_eq!(page.next, Next::Cursor(String::new()));
        assert_eq!(page.ttl, Duration::from_millis(1500));
        let reasons: Vec<String> = page
            .entries
            .iter()
            .filter_map(|e| e.as_ref().err())
            .map(|d| d.reason.to_string())
            .collect();
        assert!(
            reasons
                .iter()
                .any(|r| r.contains("\"description\" is given twice")),
            "{reasons:?}"
        );
    }

    #[test]
    fn hr_06_51_result_type_and_ttl() {
        let page = |extra: &str| list_page(&format!(r#"{{"skills":[]{extra}}}"#));
        assert!(page("").is_ok());
        assert!(page(r#","resultType":"complete""#).is_ok());
        assert!(matches!(
            page(r#","resultType":"later""#),
            Err(SourceError::Malformed(_))
        ));
        assert_eq!(
            page(r#","resultType":"input_required""#).unwrap_err(),
            SourceError::NeedsInput
        );
        for odd in ["-5", "null", "\"x\"", "1e400", "{}"] {
            assert_eq!(
                page(&format!(r#","ttlMs":{odd}"#)).unwrap().ttl,
                Duration::ZERO,
                "{odd}"
            );
        }
        let next = |cursor| page(&format!(r#","nextCursor":{cursor}"#)).unwrap().next;
        assert_eq!(next("null"), Next::End);
        for odd in ["2", "{}", "[\"a\"]", "true", r#""\ud800""#] {
            assert_eq!(next(odd), Next::Odd, "{odd}");
        }
        assert!(matches!(list_page("[]"), Err(SourceError::Malformed(_))));
        assert!(matches!(
            list_page(r#"{"skills":{}}"#),
            Err(SourceError::Malformed(_))
        ));
    }

    #[test]
    fn hr_49_get_answers_for_the_uri_asked_for() {
        let raw = json!({"skill": good("skill://a/SKILL.md")}).to_string();
        assert!(get_result(&raw, "skill://a/SKILL.md").unwrap().is_ok());
        assert!(matches!(
            get_result(&raw, "skill://b/SKILL.md"),
            Err(SourceError::Malformed(_))
        ));
        assert!(matches!(
            get_result("{}", "skill://b/SKILL.md"),
            Err(SourceError::Malformed(_))
        ));
    }

    #[test]
    fn hr_94_only_direct_children_of_the_directory_count() {
        let raw = json!({"resources": [
            {"uri": "skill://acme/billing", "name": "billing", "mimeType": "inode/directory"},
            {"uri": "skill://acme/x.md", "name": "other"},
            {"uri": "skill://acme/../x"}, {"uri": "skill://acme/a/b"}, {"uri": "skill://acme"},
            {"uri": "other://acme/x"}, {"uri": "skill://other/x"}, {"name": "no-uri"}, 5,
        ], "nextCursor": "n"})
        .to_string();
        let page = directory_page(&raw, "skill://acme").unwrap();
        let found: Vec<_> = page
            .children
            .iter()
            .map(|c| (c.path.as_str(), c.kind))
            .collect();
        assert_eq!(
            found,
            [
                ("acme/billing", ChildKind::Directory),
                ("acme/x.md", ChildKind::File)
            ]
        );
        assert_eq!((page.dropped, page.next), (7, Next::Cursor("n".into())));
        assert!(directory_page("{}", "skill://acme").is_err());
    }

    #[test]
    fn hr_62_c_53_contents_have_one_shape() {
        let uri = "skill://s/x";
        let read = |contents: Value| {
            read_result(&json!({"contents": contents}).to_string(), uri, 100).map(|u| {
                let text = b"a\r\nb";
                let e = Expected {
                    uri: uri.into(),
                    digest: Digest::of(text),
                    size: 4,
                    frontmatter: None,
                };
                verify(u, &e).is_ok()
            })
        };
        assert_eq!(read(json!([{"uri": uri, "text": "a\r\nb"}])), Ok(true));
        assert_eq!(read(json!([{"uri": uri, "blob": "YQ0KYg=="}])), Ok(true));
        for bad in [
            json!([]),
            json!({}),
            json!([{"uri": uri}]),
            json!([{"text": "a\r\nb"}]),
            json!([{"uri": "skill://s/y", "text": "a\r\nb"}]),
            json!([{"uri": uri, "text": "a\r\nb"}, {"uri": "skill://s/y", "text": ""}]),
            json!([{"uri": uri, "text": "a\r\nb", "blob": "YQ0KYg=="}]),
            json!([{"uri": uri, "text": 5}]),
            json!([{"uri": uri, "blob": "YQ0KYg"}]),
            json!([{"uri": uri, "blob": "YQ0K\r\nYg=="}]),
            json!([{"uri": uri, "blob": "YQ*KYg=="}]),
            json!([{"uri": uri, "blob": "-_=="}]),
        ] {
            assert!(
                matches!(read(bad.clone()), Err(SourceError::Malformed(_))),
                "{bad}"
            );
        }
        let surrogate = r#"{"contents":[{"uri":"skill://s/x","text":"a\ud800b"}]}"#;
        assert!(matches!(
            read_result(surrogate, uri, 100),
            Err(SourceError::Malformed(_))
        ));
        let long = json!({"contents": [{"uri": uri, "text": "x".repeat(70_000)}]}).to_string();
        assert!(
            read_result(&long, uri, 10).is_err(),
            "bounded by the entry's size (HR-63)"
        );
    }
}
