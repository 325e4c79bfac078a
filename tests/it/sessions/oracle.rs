//! What a session may come to, by the words of the documents and nothing of the code.

use super::mutation::{Ask, Fate, RECORDED, Session};
use crate::rig::sha256;
use crate::uris::path;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

/// A reply as a value. A lone surrogate is read as a character: what is said here of a reply is
/// then never less than what there is in it.
fn value(text: &str) -> Option<Value> {
    serde_json::from_str(&text.replace("\\ud800", "\\ufffd")).ok()
}

/// The bytes that a reply to a read carries, if it is one at all.
pub(super) fn content(text: &str, uri: &str) -> Option<Vec<u8>> {
    let value = value(text)?;
    let [item] = value.get("contents")?.as_array()?.as_slice() else {
        return None;
    };
    if item.get("uri")?.as_str()? != uri {
        return None;
    }
    match (
        item.get("text").and_then(Value::as_str),
        item.get("blob").and_then(Value::as_str),
    ) {
        (Some(text), None) => Some(text.as_bytes().to_vec()),
        (None, Some(blob)) => STANDARD.decode(blob).ok(),
        _ => None,
    }
}

/// One row of a manifest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) uri: String,
    pub(super) path: String,
    pub(super) digest: String,
    pub(super) size: u64,
}

/// An entry that may be loaded.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Entry {
    pub(super) uri: String,
    pub(super) md: String,
    pub(super) dir: String,
    pub(super) frontmatter: Value,
    pub(super) rows: Vec<Row>,
}

fn is_below(path: &str, dir: &str) -> bool {
    path.strip_prefix(dir)
        .is_some_and(|rest| rest.starts_with('/'))
}

/// Whether an entry may be loaded, and what it then says.
pub(super) fn entry(value: &Value) -> Option<Entry> {
    let text = |v: &Value, field: &str| v.get(field)?.as_str().map(str::to_owned);
    let uri = text(value, "uri")?;
    let md = path(&uri).filter(|_| uri.ends_with("/SKILL.md"))?;
    let dir = md.strip_suffix("/SKILL.md")?.to_owned();
    let frontmatter = value.get("frontmatter")?;
    text(frontmatter, "description")?;
    if text(frontmatter, "name")? != dir.rsplit('/').next()? {
        return None;
    }
    let row = |row: &Value| {
        let uri = text(row, "uri")?;
        let hex = text(row, "digest")?.strip_prefix("sha256:")?.to_owned();
        let is_hex = hex.len() == 64
            && hex
                .bytes()
                .all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
        let path = path(&uri).filter(|p| is_hex && is_below(p, &dir))?;
        Some(Row {
            uri,
            path,
            digest: hex,
            size: row.get("size")?.as_u64()?,
        })
    };
    let rows: Vec<Row> = value
        .get("resources")?
        .as_array()?
        .iter()
        .map(row)
        .collect::<Option<_>>()?;
    let total = rows.iter().fold(0u64, |n, r| n.saturating_add(r.size));
    let paths: BTreeSet<&str> = rows.iter().map(|r| &*r.path).collect();
    let in_the_way = paths.iter().any(|p| paths.iter().any(|q| is_below(q, p)));
    let own = rows.iter().any(|r| r.uri == uri);
    let good =
        own && !in_the_way && paths.len() == rows.len() && rows.len() <= 512 && total <= 16 << 20;
    good.then(|| Entry {
        frontmatter: frontmatter.clone(),
        uri,
        md,
        dir,
        rows,
    })
}

/// The objects in the places of entries of a reply.
fn objects(ask: &Ask, text: &str) -> Vec<Value> {
    let value = value(text).unwrap_or_default();
    match ask {
        Ask::Page(_) => value
            .get("skills")
            .and_then(Value::as_array)
            .cloned()
            .unwrap_or_default(),
        Ask::Get(_) => value.get("skill").cloned().into_iter().collect(),
        Ask::Read(_) => Vec::new(),
    }
}

/// The part of a SKILL.md that is its frontmatter.
fn fenced(bytes: &[u8]) -> Option<&str> {
    let text = std::str::from_utf8(bytes).ok()?;
    let end = text.get(3..)?.find("\n---")?;
    text.starts_with("---").then(|| &text[..end + 7])
}

/// What the recorded servers said of the frontmatter of their SKILL.md files, by its text.
static SAID: LazyLock<BTreeMap<String, Vec<Value>>> = LazyLock::new(|| {
    let mut said: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    for session in RECORDED.iter() {
        let all = Given::of(session);
        for entry in &all.entries {
            for (uri, bytes) in &all.contents {
                let fits = |r: &Row| r.uri == *uri && r.digest == sha256(bytes);
                if let Some(text) =
                    fenced(bytes).filter(|_| *uri == entry.uri && entry.rows.iter().any(fits))
                {
                    said.entry(text.to_owned())
                        .or_default()
                        .push(entry.frontmatter.clone());
                }
            }
        }
    }
    said
});

/// Whether two values are readings of one text in YAML.
fn alike(a: &Value, b: &Value) -> bool {
    let text = |v: &Value| match v {
        Value::String(s) => s.clone(),
        v => v.to_string(),
    };
    match (a, b) {
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(k, v)| b.get(k).is_some_and(|w| alike(v, w)))
        }
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(v, w)| alike(v, w))
        }
        (Value::Object(_) | Value::Array(_), _) | (_, Value::Object(_) | Value::Array(_)) => false,
        (a, b) => text(a) == text(b),
    }
}

/// All that a session gives at any time.
#[derive(Debug, Default)]
pub(super) struct Given {
    pub(super) entries: Vec<Entry>,
    /// The URIs that entries gave themselves, also those that may not be loaded.
    named: Vec<String>,
    contents: Vec<(String, Vec<u8>)>,
}

impl Given {
    pub(super) fn of(session: &Session) -> Self {
        let mut given = Self::default();
        for reply in session
            .versions
            .iter()
            .flatten()
            .filter(|r| r.fate == Fate::Answer)
        {
            for object in objects(&reply.ask, &reply.text) {
                given
                    .named
                    .extend(object.get("uri").and_then(Value::as_str).map(str::to_owned));
                given.entries.extend(entry(&object));
            }
            if let Ask::Read(uri) = &reply.ask {
                given
                    .contents
                    .extend(content(&reply.text, uri).map(|bytes| (uri.clone(), bytes)));
            }
        }
        given
    }

    /// Whether a file of this name may be in the tree.
    pub(super) fn may_be(&self, file: &str) -> bool {
        let listed = self
            .entries
            .iter()
            .any(|e| e.rows.iter().any(|r| r.path == file));
        let declined = || {
            let dir = |uri: &String| Some(format!("{}/SKILL.md", path(uri)?.rsplit_once('/')?.0));
            self.named.iter().filter_map(dir).any(|p| p == file)
        };
        listed || declined()
    }

    /// Whether these bytes are content that was carried.
    pub(super) fn carried(&self, bytes: &[u8]) -> bool {
        self.contents.iter().any(|(_, b)| b == bytes)
    }

    /// What is wrong with a read of a file that gave these bytes.
    pub(super) fn wrong(&self, file: &str, bytes: &[u8]) -> Option<String> {
        let digest = sha256(bytes);
        let fits = |r: &&Row| r.path == file && r.digest == digest && r.size == bytes.len() as u64;
        let vouching: Vec<(&Entry, &Row)> = self
            .entries
            .iter()
            .filter_map(|e| Some((e, e.rows.iter().find(fits)?)))
            .collect();
        if vouching.is_empty() {
            return Some(format!(
                "no entry describes {} bytes of {file:?}",
                bytes.len()
            ));
        }
        // One digest at two URIs is one blob.
        let same: BTreeSet<&str> = self
            .entries
            .iter()
            .flat_map(|e| &e.rows)
            .filter(|r| r.digest == digest)
            .map(|r| &*r.uri)
            .collect();
        if !bytes.is_empty()
            && !self
                .contents
                .iter()
                .any(|(uri, b)| b == bytes && same.contains(&**uri))
        {
            return Some(format!(
                "no reply carried {} bytes of {file:?}",
                bytes.len()
            ));
        }
        // A skill in another one is content of that.
        let content = vouching.iter().any(|(e, _)| e.md != file);
        let nested = |e: &Entry| self.entries.iter().any(|o| is_below(&e.dir, &o.dir));
        let owners: Vec<&Entry> = vouching
            .iter()
            .map(|(e, _)| *e)
            .filter(|e| e.md == file)
            .collect();
        let honest = |e: &&Entry| match fenced(bytes).map(|t| (t, SAID.get(t))) {
            Some((_, Some(said))) => said.iter().any(|s| alike(s, &e.frontmatter)),
            // Not one of the recorded ones: its strings must stand in it.
            Some((text, None)) => ["name", "description"]
                .iter()
                .all(|f| text.contains(e.frontmatter[f].as_str().unwrap())),
            None => false,
        };
        let fine = content || owners.iter().any(|e| nested(e)) || owners.iter().any(honest);
        (!fine).then(|| format!("{file:?} is read although the entry lies about its frontmatter"))
    }
}

/// The skills of one version that no mutation touched, with what their files hold: these must
/// load.
pub(super) fn untouched(session: &Session, version: usize) -> Vec<(Entry, Vec<Vec<u8>>)> {
    let pristine = RECORDED.iter().find(|s| s.name == session.name).unwrap();
    let (now, then) = (&session.versions[version], &pristine.versions[version]);
    let head = |text: &str| {
        let mut value = value(text).unwrap_or_default();
        if let Some(map) = value.as_object_mut() {
            map.remove("skills");
        }
        value
    };
    for old in then.iter().filter(|r| matches!(r.ask, Ask::Page(_))) {
        let same = session.reply(version, &old.ask).is_some_and(|new| {
            let list = value(&new.text).is_some_and(|v| v["skills"].is_array());
            new.fate == Fate::Answer && !new.coarse && list && head(&new.text) == head(&old.text)
        });
        if !same {
            return Vec::new();
        }
    }
    let all = |replies: &[super::mutation::Reply], pages: bool| -> Vec<Value> {
        let some = replies
            .iter()
            .filter(|r| matches!(r.ask, Ask::Page(_)) == pages);
        some.flat_map(|r| objects(&r.ask, &r.text)).collect()
    };
    let (listed, listed_then) = (all(now, true), all(then, true));
    let got = all(now, false);
    let mut known = listed_then.clone();
    known.extend(all(then, false));
    let odd: Vec<&Value> = listed
        .iter()
        .chain(&got)
        .filter(|v| !known.contains(v))
        .collect();
    // All paths that an object mentions in any way.
    let paths = |v: &Value| -> Vec<String> {
        let rows = v["resources"].as_array().into_iter().flatten();
        let uris = rows.map(|r| &r["uri"]).chain([&v["uri"]]);
        uris.filter_map(Value::as_str).filter_map(path).collect()
    };
    let in_the_way = |e: &Entry| {
        odd.iter().any(|o| {
            paths(o)
                .iter()
                .any(|p| *p == e.dir || is_below(p, &e.dir) || is_below(&e.dir, p))
                || o["uri"].as_str().and_then(path).is_some_and(|p| {
                    p.rsplit_once('/')
                        .is_some_and(|(dir, _)| is_below(&e.dir, dir))
                })
        })
    };
    let mut out = Vec::new();
    for object in &listed_then {
        let Some(e) = entry(object) else { continue };
        let once = listed.iter().filter(|v| v["uri"] == object["uri"]).count() == 1
            && listed.contains(object);
        let as_before = |ask: Ask| {
            let old = pristine.reply(version, &ask);
            old.is_some() && session.reply(version, &ask) == old
        };
        let whole = as_before(Ask::Get(e.uri.clone()))
            && e.rows.iter().all(|r| as_before(Ask::Read(r.uri.clone())));
        if once && whole && !in_the_way(&e) {
            let read = |r: &Row| {
                content(
                    &pristine
                        .reply(version, &Ask::Read(r.uri.clone()))
                        .unwrap()
                        .text,
                    &r.uri,
                )
                .unwrap()
            };
            let contents = e.rows.iter().map(read).collect();
            out.push((e, contents));
        }
    }
    out
}
