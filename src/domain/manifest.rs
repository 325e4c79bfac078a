//! A skill's entry: what `skills/list` and `skills/get` say of one skill.
//!
//! An [`Entry`] is valid by construction: [`Entry::parse`] is the only way to one and checks all
//! that can be checked from the entry alone (HR-18, HR-22, HR-30 to HR-34, HR-38, HR-39). What
//! fails becomes a [`Declined`] with its reason and never harms its neighbours (HR-44).
//!
//! Absent on purpose: any reading of frontmatter beyond `name` and `description`. The rest is
//! kept verbatim for comparison and display; it grants nothing (HR-97, HR-99).

use super::digest::{BadDigest, Digest, Hasher};
use super::name::{MAX_PATH, NameError, RelPath, SKILL_MD, prefixes};
use super::text::Quoted;
use serde::ser::SerializeStruct;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::{Arc, OnceLock};

/// At most this many files in a skill, SKILL.md included (HR-38).
pub const MAX_FILES: usize = 512;
/// At most this many bytes in all files of a skill together: 16 MiB (HR-38).
pub const MAX_BYTES: u64 = 16 * 1024 * 1024;

/// One file of a manifest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileEntry {
    /// The URI to read it by, verbatim.
    pub uri: Arc<str>,
    /// Where it lies below the label.
    pub path: RelPath,
    /// The SHA-256 of its bytes.
    pub digest: Digest,
    /// Its length in bytes.
    pub size: u64,
}

/// The files of a skill.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    /// A complete manifest, and the identity of its set.
    Listed {
        /// Every file, SKILL.md among them.
        files: Vec<FileEntry>,
        /// What an approval binds to.
        set: LazySet,
    },
    /// `"dynamic"`: nothing to verify against (HR-35).
    Dynamic,
}

/// The identity of a set, made when somebody asks for it: most skills are never judged, and a large
/// listing has many. It follows from the files, so that it makes no difference between two entries.
#[derive(Debug, Clone, Default)]
pub struct LazySet(OnceLock<SetId>);

impl PartialEq for LazySet {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for LazySet {}

/// The identity of a set of (uri, digest) pairs, whatever their order (HR-107).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct SetId(Digest);

impl SetId {
    fn of(files: &[FileEntry]) -> Self {
        let mut pairs: Vec<(&str, Digest)> = files.iter().map(|f| (&*f.uri, f.digest)).collect();
        pairs.sort();
        // JSON quotes the URIs, so that no two sets have one text.
        let mut text = Hasher::default();
        let written = serde_json::to_writer(&mut text, &pairs);
        debug_assert!(written.is_ok(), "nothing here can fail");
        Self(text.finish())
    }
}

impl fmt::Display for SetId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl Serialize for SetId {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(s)
    }
}

impl<'de> Deserialize<'de> for SetId {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = String::deserialize(d)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

impl std::str::FromStr for SetId {
    type Err = BadDigest;

    fn from_str(text: &str) -> Result<Self, BadDigest> {
        Digest::parse(text).map(Self)
    }
}

impl fmt::Debug for SetId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// In the shape of the extension: [`Entry::parse`] reads it back.
impl Serialize for Entry {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let mut entry = s.serialize_struct("Entry", 3)?;
        entry.serialize_field("uri", &*self.uri)?;
        entry.serialize_field("frontmatter", &self.frontmatter.map())?;
        match &self.content {
            Content::Dynamic => entry.serialize_field("resources", "dynamic")?,
            Content::Listed { files, .. } => entry.serialize_field("resources", files)?,
        }
        entry.end()
    }
}

impl Serialize for FileEntry {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let mut row = s.serialize_struct("FileEntry", 3)?;
        row.serialize_field("uri", &*self.uri)?;
        row.serialize_field("digest", &self.digest)?;
        row.serialize_field("size", &self.size)?;
        row.end()
    }
}

/// The frontmatter an entry claims for its SKILL.md, with the identity of its content. It is kept
/// as text: a server may send a value of a few bytes a million times, and as many are shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frontmatter {
    /// Its canonical JSON text.
    text: Arc<str>,
    /// The digest of that.
    pub id: Digest,
}

impl Frontmatter {
    pub(super) fn of(map: &Map<String, Value>) -> Self {
        let text = serde_json::to_string(map).unwrap_or_default();
        Self {
            id: Digest::of(text.as_bytes()),
            text: text.into(),
        }
    }

    /// The fields.
    pub fn map(&self) -> Map<String, Value> {
        // What was written a moment ago can be read.
        serde_json::from_str(&self.text).unwrap_or_default()
    }
}

/// What an entry says of its files, as the server sent it.
enum Resources<'a> {
    /// A manifest.
    Rows(Vec<Row<'a>>),
    /// `"dynamic"`.
    Dynamic,
}

/// A row of a manifest as the server sent it: what is missing or of another type is none.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Row<'a> {
    #[serde(borrow, default, deserialize_with = "in_place")]
    uri: Option<Cow<'a, str>>,
    #[serde(borrow, default, deserialize_with = "in_place")]
    digest: Option<Cow<'a, str>>,
    #[serde(default)]
    size: Option<u64>,
}

/// Text that is not copied unless an escape is in it.
fn in_place<'a, D: Deserializer<'a>>(de: D) -> Result<Option<Cow<'a, str>>, D::Error> {
    #[derive(Deserialize)]
    struct Text<'a>(#[serde(borrow)] Cow<'a, str>);
    Text::deserialize(de).map(|text| Some(text.0))
}

/// The valid entry of one skill.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The URI of its SKILL.md, verbatim: with the server's label, its identity (HR-09).
    pub uri: Arc<str>,
    /// The skill's directory below the label.
    pub dir: RelPath,
    /// What the entry says its SKILL.md's frontmatter is.
    pub frontmatter: Frontmatter,
    /// Its files.
    pub content: Content,
}

impl Entry {
    /// Reads one entry as the server sent it.
    ///
    /// # Errors
    /// The entry is declined, with the first reason found, and must not be loaded.
    pub fn parse(value: &Value) -> Result<Self, Declined> {
        let uri = value.get("uri").and_then(Value::as_str);
        Self::check(value).map_err(|reason| Declined {
            // A longer one is nothing that anybody could ask for.
            uri: uri.filter(|u| u.len() <= MAX_PATH).map(Arc::from),
            dir: uri.and_then(|u| skill_dir(u).ok()),
            reason,
        })
    }

    /// A valid entry that has exactly the fields of the specification, as nearly all do: most of a
    /// large listing is rows, which are read in place. None for all else, which is read with more
    /// care. `front` reads the frontmatter.
    pub fn plain(raw: &str, front: impl FnOnce(&str) -> Option<Value>) -> Option<Self> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Plain<'a> {
            #[serde(borrow)]
            uri: Cow<'a, str>,
            #[serde(borrow)]
            frontmatter: &'a RawValue,
            #[serde(borrow)]
            resources: Vec<Row<'a>>,
        }
        let entry: Plain = serde_json::from_str(raw).ok()?;
        let front = front(entry.frontmatter.get())?;
        let rows = Ok(Resources::Rows(entry.resources));
        Self::of(&entry.uri, front.as_object(), rows).ok()
    }

    fn check(value: &Value) -> Result<Self, Reason> {
        let text = |value: &'_ Value, field: &str| {
            let text = value.get(field).and_then(Value::as_str);
            text.map(|text| Cow::Owned(text.to_owned()))
        };
        let row = |value: &Value| Row {
            uri: text(value, "uri"),
            digest: text(value, "digest"),
            size: value.get("size").and_then(Value::as_u64),
        };
        let resources = match value.get("resources") {
            Some(Value::Array(rows)) => Ok(Resources::Rows(rows.iter().map(row).collect())),
            Some(Value::String(s)) if s == "dynamic" => Ok(Resources::Dynamic),
            Some(_) => Err(Reason::Resources("neither an array nor \"dynamic\"")),
            None => Err(Reason::Resources("missing")),
        };
        let uri = value.get("uri").and_then(Value::as_str);
        let uri = uri.ok_or(Reason::Field("uri"))?;
        let map = value.get("frontmatter").and_then(Value::as_object);
        Self::of(uri, map, resources)
    }

    /// An entry from its parts.
    ///
    /// # Errors
    /// The first reason found.
    fn of(
        uri: &str,
        frontmatter: Option<&Map<String, Value>>,
        resources: Result<Resources, Reason>,
    ) -> Result<Self, Reason> {
        let dir = skill_dir(uri)?;
        let map = frontmatter.ok_or(Reason::Field("frontmatter"))?;
        let name = map
            .get("name")
            .and_then(Value::as_str)
            .ok_or(Reason::Field("frontmatter.name"))?;
        if !map.get("description").is_some_and(Value::is_string) {
            return Err(Reason::Field("frontmatter.description"));
        }
        if name != dir.last() {
            return Err(Reason::NameDiffers {
                name: cut(name),
                segment: dir.last().into(),
            });
        }
        let content = match resources? {
            Resources::Rows(rows) => {
                let files = parse_files(rows, &dir)?;
                if !files.iter().any(|f| &*f.uri == uri) {
                    return Err(Reason::NoSkillMd);
                }
                let set = LazySet::default();
                Content::Listed { files, set }
            }
            Resources::Dynamic => Content::Dynamic,
        };
        Ok(Self {
            uri: uri.into(),
            dir,
            frontmatter: Frontmatter::of(map),
            content,
        })
    }

    /// The skill's name: a label for people, not an identifier (HR-23).
    pub fn name(&self) -> &str {
        self.dir.last()
    }

    /// The description the entry gives, as the server sent it: escape it before showing it.
    pub fn description(&self) -> String {
        match self.frontmatter.map().remove("description") {
            Some(Value::String(text)) => text,
            _ => String::new(),
        }
    }

    /// Its files; none for a dynamic skill.
    pub fn files(&self) -> &[FileEntry] {
        match &self.content {
            Content::Listed { files, .. } => files,
            Content::Dynamic => &[],
        }
    }

    /// The identity of its set; none for a dynamic skill.
    pub fn set(&self) -> Option<SetId> {
        match &self.content {
            Content::Listed { files, set } => Some(*set.0.get_or_init(|| SetId::of(files))),
            Content::Dynamic => None,
        }
    }

    /// Departures from the Agent Skills naming rules, which bind the server; the skill loads all
    /// the same (HR-19). The description is the entry's.
    pub fn warnings(&self, description: &str) -> Vec<String> {
        let mut out = Vec::new();
        let name = self.name();
        let plain = name.split('-').all(|part| {
            !part.is_empty()
                && part
                    .bytes()
                    .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
        });
        if !plain || name.chars().count() > 64 {
            out.push("name is not 1 to 64 lower-case letters and digits joined by hyphens".into());
        }
        let length = description.chars().count();
        if length > 1024 {
            out.push(format!(
                "description has {length} characters, the format allows 1024"
            ));
        }
        out
    }
}

/// As much of a server's text as a reason needs.
fn cut(text: &str) -> String {
    text.chars().take(300).collect()
}

/// The directory of the skill whose SKILL.md this URI names (HR-18).
pub(super) fn skill_dir(uri: &str) -> Result<RelPath, Reason> {
    let path = RelPath::of_uri(uri)?;
    if !uri.ends_with("/SKILL.md") || path.last() != SKILL_MD {
        return Err(Reason::NotSkillMd);
    }
    let dir = path.parent().ok_or(Reason::NoDirectory)?;
    // `github://SKILL.md` has the scheme's own directory as its parent: no skill path at all.
    if dir.last().ends_with(':') && dir.parent().is_none() {
        return Err(Reason::NoDirectory);
    }
    Ok(dir)
}

/// Reads the rows of a manifest and checks them against each other.
fn parse_files(rows: Vec<Row>, dir: &RelPath) -> Result<Vec<FileEntry>, Reason> {
    if rows.len() > MAX_FILES {
        return Err(Reason::TooManyFiles(rows.len()));
    }
    let mut files = Vec::with_capacity(rows.len());
    let mut total = 0u64;
    for row in rows {
        let uri = row.uri.as_deref().ok_or(Reason::Field("resources[].uri"))?;
        let bad = |reason| Reason::File {
            uri: cut(uri),
            reason: Box::new(reason),
        };
        let uri: Arc<str> = uri.into();
        let path = RelPath::within(&uri).map_err(|e| bad(e.into()))?;
        if !path.is_below(dir) {
            return Err(bad(Reason::Outside));
        }
        let digest = row.digest.ok_or_else(|| bad(Reason::Field("digest")))?;
        let digest = Digest::parse(&digest).map_err(|e| bad(e.into()))?;
        let size = row.size.ok_or_else(|| bad(Reason::Field("size")))?;
        // The kernel answers a read of an empty file by itself: there is no later check.
        if size == 0 && digest != Digest::of(b"") {
            return Err(bad(Reason::NotEmpty));
        }
        total = total.saturating_add(size);
        files.push(FileEntry {
            uri,
            path,
            digest,
            size,
        });
    }
    if total > MAX_BYTES {
        return Err(Reason::TooManyBytes(total));
    }
    clash(&files)?;
    Ok(files)
}

/// Finds two rows of one manifest that cannot both be files.
fn clash(files: &[FileEntry]) -> Result<(), Reason> {
    let mut seen: HashMap<&str, &FileEntry> = HashMap::with_capacity(files.len());
    for file in files {
        if let Some(other) = seen.insert(file.path.as_str(), file) {
            let twice = if other.uri == file.uri {
                Reason::Twice
            } else {
                Reason::SamePath(other.uri.to_string())
            };
            return Err(Reason::File {
                uri: file.uri.to_string(),
                reason: Box::new(twice),
            });
        }
    }
    let dirs: HashSet<&str> = files
        .iter()
        .flat_map(|f| prefixes(f.path.as_str()))
        .collect();
    match files.iter().find(|f| dirs.contains(f.path.as_str())) {
        Some(file) => Err(Reason::File {
            uri: file.uri.to_string(),
            reason: Box::new(Reason::FileAndDirectory),
        }),
        None => Ok(()),
    }
}

/// An entry that must not be loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Declined {
    /// The URI it gave itself, if any.
    pub uri: Option<Arc<str>>,
    /// Where its skill would lie, if its URI has a place.
    pub dir: Option<RelPath>,
    /// Why.
    pub reason: Reason,
}

/// Why an entry is declined. The server's names and URIs in it are quoted; what a JSON parser said
/// of the server's text is not escaped here.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    /// The JSON of the entry is not well-formed, such as a key given twice (HR-43).
    #[error("invalid entry: {0}")]
    Malformed(String),
    /// A field is missing or has the wrong type.
    #[error("invalid entry: `{0}` is missing or has the wrong type")]
    Field(&'static str),
    /// `resources` is absent, or neither an array nor `"dynamic"` (HR-30).
    #[error("invalid entry: `resources` is {0}")]
    Resources(&'static str),
    /// The URI has no path.
    #[error("unsafe URI: {0}")]
    Name(#[from] NameError),
    /// The URI does not end in `/SKILL.md`.
    #[error("invalid entry: the URI does not end in `/SKILL.md`")]
    NotSkillMd,
    /// The URI names a SKILL.md outside any directory.
    #[error("invalid entry: the URI has no skill directory")]
    NoDirectory,
    /// The name and the directory differ (HR-18).
    #[error(
        "invalid entry: frontmatter name {} differs from the last path segment {}",
        Quoted(.name),
        Quoted(.segment)
    )]
    NameDiffers {
        /// `frontmatter.name`.
        name: String,
        /// The last segment of the skill's path.
        segment: String,
    },
    /// `resources` does not list the skill's own SKILL.md (HR-31).
    #[error("invalid entry: `resources` does not list the skill's own SKILL.md")]
    NoSkillMd,
    /// Over 512 files (HR-39).
    #[error("over the limit: {0} files, the limit is {MAX_FILES}")]
    TooManyFiles(usize),
    /// Over 16 MiB (HR-39).
    #[error("over the limit: {0} bytes in all, the limit is {MAX_BYTES}")]
    TooManyBytes(u64),
    /// One row of `resources` is invalid.
    #[error("invalid entry: file {}: {reason}", Quoted(.uri))]
    File {
        /// The row's URI.
        uri: String,
        /// What is wrong with it.
        reason: Box<Reason>,
    },
    /// A file outside the skill's directory (HR-32).
    #[error("it lies outside the skill's directory")]
    Outside,
    /// A digest of another form (HR-33).
    #[error(transparent)]
    Digest(#[from] BadDigest),
    /// A size of 0 beside a digest of something.
    #[error("its size is 0 and its digest is not that of an empty file")]
    NotEmpty,
    /// A URI listed twice (HR-31).
    #[error("it is listed twice")]
    Twice,
    /// Two URIs that decode to one path.
    #[error("it has the same path as {}", Quoted(.0))]
    SamePath(String),
    /// A path that is both a file and a directory (HR-22).
    #[error("its path is a file and a directory")]
    FileAndDirectory,
    /// Another skill of this server claims the same path under another URI (HR-20).
    #[error("conflict: {} and {} would share the path {}", Quoted(.uri), Quoted(.other), Quoted(.path))]
    Conflict {
        /// A URI of this skill.
        uri: String,
        /// The URI it clashes with.
        other: String,
        /// The path both need.
        path: String,
    },
    /// Two entries of one URI that differ, and `skills/get` did not decide (HR-43).
    #[error("invalid entry: listed twice with different contents, and skills/get did not decide")]
    ListedTwice,
    /// `resources` is `"dynamic"`: no digests, so nothing can be verified (HR-35).
    #[error("dynamic skill: it has no digests, so its content cannot be verified; declined")]
    Dynamic,
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn digest(text: &str) -> String {
        Digest::of(text.as_bytes()).to_string()
    }

    fn row(uri: &str) -> Value {
        json!({"uri": uri, "digest": digest(uri), "size": 3})
    }

    fn entry(uri: &str, name: &str, rows: Vec<Value>) -> Value {
        json!({"uri": uri, "frontmatter": {"name": name, "description": "d"}, "resources": rows})
    }

    fn good() -> Value {
        entry(
            "skill://a/b/SKILL.md",
            "b",
            vec![row("skill://a/b/SKILL.md"), row("skill://a/b/x/y.md")],
        )
    }

    fn with(field: &str, value: Value) -> Value {
        let mut e = good();
        e[field] = value;
        e
    }

    fn with_row(row: Value) -> Value {
        with("resources", json!([self::row("skill://a/b/SKILL.md"), row]))
    }

    #[test]
    fn hr_19_departures_from_the_naming_rules_are_warnings() {
        let warnings = |name: &str, description: &str| {
            let uri = format!("skill://{name}/SKILL.md");
            let mut e = entry(&uri, name, vec![row(&uri)]);
            e["frontmatter"]["description"] = description.into();
            let e = Entry::parse(&e).unwrap();
            assert_eq!(e.description(), description);
            e.warnings(description)
        };
        let (n64, d1024) = ("n".repeat(64), "é".repeat(1024));
        for good in ["a", "a-b2", &n64] {
            assert_eq!(warnings(good, &d1024), [""; 0], "{good}");
        }
        for bad in ["A", "a_b", "x--y", "-a", "a-", &format!("{n64}n")] {
            let got = warnings(bad, "d");
            assert!(
                got.len() == 1 && got[0].starts_with("name is not"),
                "{bad}: {got:?}"
            );
        }
        let got = warnings("a", &format!("{d1024}é"));
        assert_eq!(
            got,
            ["description has 1025 characters, the format allows 1024"]
        );
    }

    #[test]
    fn a_set_is_shown_as_a_digest_that_reads_back() {
        let set = Entry::parse(&good()).unwrap().set().unwrap();
        let text = set.to_string();
        assert!(text.starts_with("sha256:") && text.len() == 71, "{text}");
        assert_eq!(text.parse(), Ok(set));
    }

    #[test]
    fn a_valid_entry_survives_a_round_trip() {
        let e = Entry::parse(&good()).unwrap();
        assert_eq!(e.dir.as_str(), "a/b");
        assert_eq!(e.files().len(), 2);
        assert_eq!(
            Entry::parse(&serde_json::to_value(&e).unwrap()),
            Ok(e.clone())
        );
        let extra = with("zzz", json!(1));
        assert_eq!(Entry::parse(&extra), Ok(e), "unknown fields pass");
    }

    #[test]
    fn invalid_entries_are_declined_with_the_reason() {
        let foreign = entry(
            "github://SKILL.md",
            "github:",
            vec![row("github://SKILL.md")],
        );
        let table = [
            ("HR-30", with("resources", Value::Null), "neither an array"),
            (
                "HR-30",
                with("resources", json!("Dynamic")),
                "neither an array",
            ),
            ("HR-30", with("resources", json!({})), "neither an array"),
            (
                "HR-30",
                json!({"uri": "skill://a/b/SKILL.md", "frontmatter": {"name": "b", "description": ""}}),
                "missing",
            ),
            (
                "HR-31",
                with("resources", json!([row("skill://a/b/x")])),
                "own SKILL.md",
            ),
            (
                "HR-31",
                with_row(row("skill://a/b/SKILL.md")),
                "listed twice",
            ),
            ("HR-32", with_row(row("skill://a/bb/x")), "outside"),
            ("HR-32", with_row(row("skill://a/b")), "outside"),
            ("HR-32", with_row(row("other://a/b/x")), "outside"),
            ("HR-32", with_row(row("file:/etc/passwd")), "scheme"),
            (
                "HR-32",
                with_row(row("skill://a/b/%2e%2e/x")),
                "path segment",
            ),
            (
                "HR-20",
                with(
                    "resources",
                    json!([
                        row("skill://a/b/SKILL.md"),
                        row("skill://a/b/%61"),
                        row("skill://a/b/a")
                    ]),
                ),
                "same path",
            ),
            (
                "HR-22",
                with(
                    "resources",
                    json!([
                        row("skill://a/b/SKILL.md"),
                        row("skill://a/b/x"),
                        row("skill://a/b/x/y")
                    ]),
                ),
                "file and a directory",
            ),
            (
                "HR-33",
                with_row(json!({"uri": "skill://a/b/x", "digest": "sha256:a1b2", "size": 1})),
                "64 lower-case",
            ),
            (
                "HR-33",
                with_row(json!({"uri": "skill://a/b/x", "size": 1})),
                "digest",
            ),
            (
                "HR-34",
                with_row(json!({"uri": "skill://a/b/x", "digest": digest("x"), "size": 0})),
                "not that of an empty file",
            ),
            (
                "HR-34",
                with_row(json!({"uri": "skill://a/b/x", "digest": digest("x")})),
                "size",
            ),
            (
                "HR-34",
                with_row(json!({"uri": "skill://a/b/x", "digest": digest("x"), "size": -1})),
                "size",
            ),
            (
                "HR-34",
                with_row(json!({"uri": "skill://a/b/x", "digest": digest("x"), "size": 4.5})),
                "size",
            ),
            (
                "HR-18",
                with("uri", json!("skill://a/b/skill.md")),
                "/SKILL.md",
            ),
            (
                "HR-18",
                with("uri", json!("skill://a/b/SKILL%2Emd")),
                "/SKILL.md",
            ),
            (
                "HR-18",
                with("uri", json!("skill://SKILL.md")),
                "no skill directory",
            ),
            ("HR-18", foreign, "no skill directory"),
            (
                "HR-18",
                with("frontmatter", json!({"name": "B", "description": "d"})),
                "differs",
            ),
            (
                "HR-18",
                with("frontmatter", json!({"name": "b"})),
                "description",
            ),
            (
                "HR-18",
                with("frontmatter", json!({"name": 5, "description": "d"})),
                "name",
            ),
            ("HR-18", json!("text"), "uri"),
        ];
        for (id, value, want) in table {
            let declined = Entry::parse(&value).unwrap_err();
            assert!(
                declined.reason.to_string().contains(want),
                "{id}: {} lacks {want:?}",
                declined.reason
            );
        }
    }

    #[test]
    fn hr_38_39_limits_are_inclusive() {
        let rows = |n: usize, size: u64| {
            let mut rows =
                vec![json!({"uri": "skill://s/SKILL.md", "digest": digest("m"), "size": size})];
            rows.extend((1..n).map(
                |i| json!({"uri": format!("skill://s/{i}"), "digest": digest("f"), "size": size}),
            ));
            entry("skill://s/SKILL.md", "s", rows)
        };
        assert!(Entry::parse(&rows(512, 32 * 1024)).is_ok());
        assert!(Entry::parse(&rows(1, MAX_BYTES)).is_ok());
        let many = Entry::parse(&rows(513, 1)).unwrap_err();
        assert_eq!(
            many.reason.to_string(),
            "over the limit: 513 files, the limit is 512"
        );
        let big = Entry::parse(&rows(1, MAX_BYTES + 1)).unwrap_err();
        assert_eq!(
            big.reason.to_string(),
            "over the limit: 16777217 bytes in all, the limit is 16777216"
        );
        let wrap = entry(
            "skill://s/SKILL.md",
            "s",
            vec![
                json!({"uri": "skill://s/SKILL.md", "digest": digest("m"), "size": u64::MAX}),
                json!({"uri": "skill://s/x", "digest": digest("m"), "size": 2}),
            ],
        );
        assert!(Entry::parse(&wrap).is_err(), "sizes that overflow a sum");
    }

    #[test]
    fn hr_107_a_set_is_its_pairs_in_any_order() {
        let set = |v: &Value| Entry::parse(v).unwrap().set().unwrap();
        let mut turned = good();
        turned["resources"].as_array_mut().unwrap().reverse();
        assert_eq!(set(&good()), set(&turned));
        let mut changed = good();
        changed["resources"][1]["digest"] = json!(digest("other"));
        assert_ne!(set(&good()), set(&changed));
        let mut sized = good();
        sized["resources"][1]["size"] = json!(4);
        assert_eq!(set(&good()), set(&sized), "a set is uri and digest");
    }

    #[test]
    fn hr_19_naming_rules_only_warn() {
        let odd = |uri: &str, name: &str| Entry::parse(&entry(uri, name, vec![row(uri)])).unwrap();
        assert_eq!(odd("skill://a_b/SKILL.md", "a_b").warnings("d").len(), 1);
        assert_eq!(odd("skill://x--y/SKILL.md", "x--y").warnings("d").len(), 1);
        assert_eq!(odd("skill://x-y/SKILL.md", "x-y").warnings("d").len(), 0);
    }
}
