//! Labels, skill URIs and paths: the only way from a name that a server chose to a path.
//!
//! `skill://acme/billing/refunds/x.md` becomes `acme/billing/refunds/x.md` below the label; any
//! other scheme keeps its name as a first directory, `github:/owner/repo/…`. The URI is split on
//! `/` first, then each segment is percent-decoded **once**, then each decoded segment must be a
//! safe name. Letter case and Unicode form stay as they are, byte for byte.
//!
//! **Invariants:** a [`RelPath`] never leaves its label and names a file on any Linux file
//! system. Two URIs may still decode to one path (`%61` and `a`); the tree finds that and
//! declines both skills. A node keeps its URI string and is always read by it verbatim.
//!
//! Absent on purpose: resolving, normalising or re-encoding a URI, and any network meaning of
//! its authority part.

use super::text::Quoted;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use std::{borrow::Cow, fmt, str::FromStr, sync::Arc};

/// At most this many directory levels below a label.
pub const MAX_LEVELS: usize = 64;
/// At most this many bytes in a path below a label, and in a URI.
pub const MAX_PATH: usize = 4096;
/// At most this many bytes in one name (NAME_MAX on Linux).
pub const MAX_NAME: usize = 255;
/// The file that makes a directory a skill.
pub const SKILL_MD: &str = "SKILL.md";

/// What is written as `%XX` in a path segment; the rest may stand in a URI (RFC 3986 pchar).
const IN_URI: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~')
    .remove(b'!')
    .remove(b'$')
    .remove(b'&')
    .remove(b'\'')
    .remove(b'(')
    .remove(b')')
    .remove(b'*')
    .remove(b'+')
    .remove(b',')
    .remove(b';')
    .remove(b'=')
    .remove(b':')
    .remove(b'@');

/// Whether a name that no entry mentions may be a skill's or a prefix's, so that it is worth
/// asking the server for (HR-47). Tools look for many names that no skill has; skills are named
/// with lower-case letters, digits and hyphens.
pub fn may_be_unlisted(name: &str) -> bool {
    const PROBES: [&str; 6] = ["target", "build", "dist", "vendor", "venv", "env"];
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    (1..=64).contains(&name.len()) && name.bytes().all(plain) && !PROBES.contains(&name)
}

/// The name that the user gave a server: `[a-z0-9][a-z0-9._-]{0,62}` (HR-12, HR-13).
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Label(Arc<str>);

/// The text is no label.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a label: use 1 to 63 of a-z, 0-9, '.', '_' and '-', the first a letter or digit"
)]
pub struct BadLabel(String);

impl FromStr for Label {
    type Err = BadLabel;

    fn from_str(text: &str) -> Result<Self, BadLabel> {
        let alnum = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
        let ok = (1..=63).contains(&text.len())
            && text.bytes().next().is_some_and(alnum)
            && text
                .bytes()
                .all(|b| alnum(b) || matches!(b, b'.' | b'_' | b'-'));
        if ok {
            Ok(Self(text.into()))
        } else {
            Err(BadLabel(text.into()))
        }
    }
}

impl Label {
    /// The label as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

/// A path below a label: one or more safe names joined by `/`.
#[derive(Clone)]
pub struct RelPath {
    /// The path is the end of this text: most URIs end in their path, and share it.
    text: Arc<str>,
    from: u16,
}

impl RelPath {
    fn new(path: &str) -> Self {
        let text = path.into();
        Self { text, from: 0 }
    }

    /// The path of a URI below its label; takes no memory of its own where the URI ends in it.
    ///
    /// # Errors
    /// As [`RelPath::of_uri`].
    pub fn within(uri: &Arc<str>) -> Result<Self, NameError> {
        let path = path_of(uri)?;
        let from = uri.strip_suffix(&*path).map(|before| before.len());
        Ok(match from.map(u16::try_from) {
            Some(Ok(from)) => Self {
                text: Arc::clone(uri),
                from,
            },
            _ => Self::new(&path),
        })
    }

    /// The path of a URI below its label.
    ///
    /// # Errors
    /// The URI has no safe path.
    pub fn of_uri(uri: &str) -> Result<Self, NameError> {
        path_of(uri).map(|path| Self::new(&path))
    }

    /// The path as text.
    pub fn as_str(&self) -> &str {
        self.text.get(usize::from(self.from)..).unwrap_or_default()
    }

    /// Its names, from the top.
    pub fn components(&self) -> std::str::Split<'_, char> {
        self.as_str().split('/')
    }

    /// The last name.
    pub fn last(&self) -> &str {
        self.as_str().rsplit('/').next().unwrap_or_default()
    }

    /// The directory that holds it; none for a path of one name.
    pub fn parent(&self) -> Option<Self> {
        let (dir, _) = self.as_str().rsplit_once('/')?;
        Some(Self::new(dir))
    }

    /// Whether this path lies below `dir`.
    pub fn is_below(&self, dir: &RelPath) -> bool {
        self.as_str()
            .strip_prefix(dir.as_str())
            .is_some_and(|rest| rest.starts_with('/'))
    }

    /// A URI that maps to this path, with everything percent-encoded that need not stand as it
    /// is. Servers may spell theirs otherwise, so it is only for asking about paths that no
    /// entry has named.
    pub fn to_uri(&self) -> String {
        let (scheme, rest) = match self.as_str().split_once(":/") {
            Some((scheme, rest)) if !scheme.contains('/') => (scheme, rest),
            _ => ("skill", self.as_str()),
        };
        let encoded: Vec<String> = rest
            .split('/')
            .map(|n| utf8_percent_encode(n, IN_URI).to_string())
            .collect();
        format!("{scheme}://{}", encoded.join("/"))
    }

    /// A path below a label from names that were checked before: the inverse of
    /// [`RelPath::components`].
    pub fn of_names(path: &str) -> Option<Self> {
        let safe = |n: &str| !matches!(n, "" | "." | "..") && !n.chars().any(char::is_control);
        path.split('/').all(safe).then(|| Self::new(path))
    }

    /// `name` in this directory. The name must be a safe one of our own, such as `SKILL.md`.
    pub fn join(&self, name: &'static str) -> Self {
        Self::new(&format!("{self}/{name}"))
    }
}

impl PartialEq for RelPath {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Eq for RelPath {}

impl std::hash::Hash for RelPath {
    fn hash<H: std::hash::Hasher>(&self, hasher: &mut H) {
        self.as_str().hash(hasher);
    }
}

/// Equality, order and hash are those of the text.
impl std::borrow::Borrow<str> for RelPath {
    fn borrow(&self) -> &str {
        self.as_str()
    }
}

impl PartialOrd for RelPath {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for RelPath {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.as_str().cmp(other.as_str())
    }
}

impl fmt::Display for RelPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for RelPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

/// Why a URI has no place in the tree.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// No `scheme://` at its start.
    #[error("the URI does not start with a scheme and `://`")]
    NoScheme,
    /// A `?` or `#` that is not percent-encoded.
    #[error("the URI has a `?` or `#`; in a name they are written %3F and %23")]
    QueryOrFragment,
    /// An empty segment, such as `a//b` or a slash at the end.
    #[error("the URI has an empty path segment")]
    Empty,
    /// A segment that decodes to `.` or `..`.
    #[error("the URI has a path segment {}", Quoted(.0))]
    Dots(String),
    /// A decoded name with `/`, NUL or a control character.
    #[error("the decoded name {} has a slash or a control character", Quoted(.0))]
    Unsafe(String),
    /// A name that is not UTF-8 once decoded.
    #[error("the segment {} does not decode to UTF-8", Quoted(.0))]
    NotUtf8(String),
    /// A name over [`MAX_NAME`] bytes.
    #[error("a name has {0} bytes, the limit is {MAX_NAME}")]
    LongName(usize),
    /// More than [`MAX_LEVELS`] levels.
    #[error("the path has {0} levels, the limit is {MAX_LEVELS}")]
    TooDeep(usize),
    /// More than [`MAX_PATH`] bytes.
    #[error("the path has {0} bytes, the limit is {MAX_PATH}")]
    TooLong(usize),
    /// A first segment of a `skill://` URI that would pass for another scheme's directory.
    #[error("the first segment {} ends in ':', which marks another scheme here", Quoted(.0))]
    LooksLikeScheme(String),
}

/// The paths of the directories above a path, from the top.
pub(super) fn prefixes(path: &str) -> impl Iterator<Item = &str> {
    path.match_indices('/').filter_map(|(at, _)| path.get(..at))
}

/// The path of a URI below its label.
fn path_of(uri: &str) -> Result<String, NameError> {
    if uri.len() > MAX_PATH {
        return Err(NameError::TooLong(uri.len()));
    }
    if uri.contains(['?', '#']) {
        return Err(NameError::QueryOrFragment);
    }
    let (scheme, rest) = uri.split_once("://").ok_or(NameError::NoScheme)?;
    let scheme_ok = scheme.starts_with(|c: char| c.is_ascii_alphabetic())
        && scheme
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.'));
    if !scheme_ok {
        return Err(NameError::NoScheme);
    }
    let mut path = String::with_capacity(rest.len() + scheme.len() + 2);
    if scheme != "skill" {
        path.push_str(scheme);
        path.push(':');
    }
    if path.len() > MAX_NAME {
        return Err(NameError::LongName(path.len()));
    }
    for segment in rest.split('/') {
        let name = decode(segment)?;
        if path.is_empty() && name.ends_with(':') {
            return Err(NameError::LooksLikeScheme(name.into_owned()));
        }
        if !path.is_empty() {
            path.push('/');
        }
        path.push_str(&name);
    }
    let levels = path.split('/').count();
    if levels > MAX_LEVELS {
        return Err(NameError::TooDeep(levels));
    }
    // Never longer than the URI.
    Ok(path)
}

/// Decodes one segment once and checks that it is a safe name.
fn decode(segment: &str) -> Result<Cow<'_, str>, NameError> {
    let name = percent_decode_str(segment)
        .decode_utf8()
        .map_err(|_| NameError::NotUtf8(segment.into()))?;
    match &*name {
        "" => Err(NameError::Empty),
        "." | ".." => Err(NameError::Dots(name.into_owned())),
        n if n.contains('/') || n.chars().any(char::is_control) => {
            Err(NameError::Unsafe(name.into_owned()))
        }
        n if n.len() > MAX_NAME => Err(NameError::LongName(n.len())),
        _ => Ok(name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn limits_are_reached_and_not_passed() {
        let deep = |levels: usize| format!("skill://{}", vec!["a"; levels].join("/"));
        assert!(path(&deep(MAX_LEVELS)).is_ok());
        let over = MAX_LEVELS + 1;
        assert_eq!(path(&deep(over)), Err(NameError::TooDeep(over)));
        let named = |bytes: usize| format!("skill://a/{}", "n".repeat(bytes));
        assert!(path(&named(MAX_NAME)).is_ok());
        let over = MAX_NAME + 1;
        assert_eq!(path(&named(over)), Err(NameError::LongName(over)));
        let scheme = |bytes: usize| format!("{}://a/b", "s".repeat(bytes - 1));
        assert!(path(&scheme(MAX_NAME)).is_ok());
        assert_eq!(path(&scheme(over)), Err(NameError::LongName(over)));
        // 16 names of 253 bytes, and one that fills up.
        let start = format!("skill:/{}", format!("/{}", "n".repeat(253)).repeat(16));
        let fill = |uri: usize| format!("{start}/{}", "m".repeat(uri - start.len() - 1));
        assert_eq!(fill(MAX_PATH).len(), MAX_PATH);
        assert!(path(&fill(MAX_PATH)).is_ok());
        let over = MAX_PATH + 1;
        assert_eq!(path(&fill(over)), Err(NameError::TooLong(over)));
    }

    #[test]
    fn a_path_has_a_uri_of_its_scheme() {
        for uri in [
            "skill://a/b:/c",
            "x://a/b",
            "skill://a",
            "x://a/b:/c",
            "skill://a%20b/%3F",
        ] {
            let p = RelPath::of_uri(uri).unwrap();
            assert_eq!(RelPath::of_uri(&p.to_uri()), Ok(p), "{uri}");
        }
        assert_eq!(
            RelPath::of_uri("skill://a/b:/c").unwrap().to_uri(),
            "skill://a/b:/c"
        );
    }

    fn path(uri: &str) -> Result<String, NameError> {
        RelPath::of_uri(uri).map(|p| p.as_str().to_owned())
    }

    #[test]
    fn hr_13_labels() {
        for good in ["a", "docs", "0x", "a.b_c-d", &"a".repeat(63)] {
            assert!(good.parse::<Label>().is_ok(), "{good}");
        }
        for bad in ["", "Docs", ".a", "-a", "a/b", "é", "a b", &"a".repeat(64)] {
            assert!(bad.parse::<Label>().is_err(), "{bad}");
        }
    }

    #[test]
    fn c_11_names_are_decoded_exactly_once() {
        let table = [
            (
                "skill://names/references/setup%20guide.md",
                "names/references/setup guide.md",
            ),
            (
                "skill://names/references/setup%2520guide.md",
                "names/references/setup%20guide.md",
            ),
            (
                "skill://names/references/100%25.md",
                "names/references/100%.md",
            ),
            ("skill://names/caf%C3%A9.md", "names/caf\u{e9}.md"),
            ("skill://names/cafe%CC%81.md", "names/cafe\u{301}.md"),
            ("skill://names/bug%2342%3F.md", "names/bug#42?.md"),
            ("skill://names/7、UI%20设计.md", "names/7、UI 设计.md"),
            ("skill://names/a+b.md", "names/a+b.md"),
            ("skill://names/[br](1)|.md", "names/[br](1)|.md"),
            ("skill://names/raw space.md", "names/raw space.md"),
            ("skill://names/100%.md", "names/100%.md"),
            ("skill://names/a%5Cb.md", "names/a\\b.md"),
            ("skill://names/co:lon.md", "names/co:lon.md"),
            ("github://owner/repo/x.md", "github:/owner/repo/x.md"),
            ("SKILL://a/x.md", "SKILL:/a/x.md"),
            ("skill://a", "a"),
        ];
        for (uri, want) in table {
            assert_eq!(path(uri).as_deref(), Ok(want), "{uri}");
        }
    }

    #[test]
    fn hr_20_unsafe_uris_have_no_path() {
        let long = format!("skill://a/{}", "x".repeat(256));
        let deep = format!("skill://{}x", "a/".repeat(64));
        let huge = format!("skill://a/{}", "x/".repeat(2100));
        for bad in [
            "",
            "skill",
            "skill:/a",
            "://a",
            "1a://x",
            "sk ill://a",
            "file:/etc/passwd",
            "skill://",
            "skill:///a",
            "skill://a//b",
            "skill://a/",
            "skill://a/./b",
            "skill://a/../b",
            "skill://a/%2e%2e/b",
            "skill://a/%2E/b",
            "skill://a/b%2Fc",
            "skill://a/%00",
            "skill://a/%0a",
            "skill://a/%7f",
            "skill://a/%c2%85",
            "skill://a/%ff",
            "skill://a?x",
            "skill://a#x",
            "skill://github:/a",
            "skill://github%3A/a",
            &long,
            &deep,
            &huge,
        ] {
            assert!(path(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn hr_47_probes_of_tools_are_no_skills() {
        for good in ["pdf-processing", "acme", "a1"] {
            assert!(may_be_unlisted(good), "{good}");
        }
        for bad in [
            "",
            ".git",
            ".DS_Store",
            "._SKILL.md",
            "node_modules",
            "__pycache__",
            "autorun.inf",
            "README.md",
            "Cargo.toml",
            "HEAD",
            "target",
            &"a".repeat(65),
        ] {
            assert!(!may_be_unlisted(bad), "{bad}");
        }
    }

    #[test]
    fn a_path_has_a_uri_that_maps_back() {
        for path in [
            "acme/billing",
            "team a/caf\u{e9}#?",
            "github:/o/100%",
            "a:b/c",
        ] {
            let rel = RelPath::of_names(path).unwrap();
            assert_eq!(RelPath::of_uri(&rel.to_uri()).as_ref(), Ok(&rel), "{path}");
        }
        assert_eq!(RelPath::of_names("a//b"), None);
    }

    #[test]
    fn below_compares_whole_names() {
        let p = |uri| RelPath::of_uri(uri).unwrap();
        assert!(p("skill://a/x").is_below(&p("skill://a")));
        assert!(!p("skill://ab/x").is_below(&p("skill://a")));
        assert!(!p("skill://a").is_below(&p("skill://a")));
    }

    fn uri() -> impl Strategy<Value = String> {
        let piece = prop_oneof![
            Just("a".to_owned()),
            Just("%61".to_owned()),
            Just("..".to_owned()),
            Just("%2e".to_owned()),
            Just("%2F".to_owned()),
            Just("%25".to_owned()),
            Just(":".to_owned()),
            Just("é".to_owned()),
            Just("%C3%A9".to_owned()),
            Just("%".to_owned()),
            Just(" ".to_owned()),
            Just("/".to_owned()),
            any::<String>(),
        ];
        let scheme = prop_oneof![Just("skill"), Just("github"), Just("skill:"), Just("x")];
        (scheme, proptest::collection::vec(piece, 0..12))
            .prop_map(|(scheme, pieces)| format!("{scheme}://{}", pieces.concat()))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20_000))]

        #[test]
        fn hr_11_mapping_is_safe_and_keeps_the_segments(uri in uri()) {
            if let Ok(p) = RelPath::of_uri(&uri) {
                for name in p.components() {
                    prop_assert!(!name.is_empty() && name != "." && name != "..");
                    prop_assert!(name.len() <= MAX_NAME && !name.chars().any(char::is_control));
                }
                // Injective up to percent-decoding: encoding the path again names the same
                // path, and another scheme never lands in the `skill` namespace.
                let (scheme, _) = uri.split_once("://").unwrap();
                let first = p.components().next().unwrap();
                prop_assert_eq!(scheme == "skill", !first.ends_with(':'));
                let encoded: Vec<String> = p.components()
                    .skip(usize::from(scheme != "skill"))
                    .map(|c| c.bytes().map(|b| format!("%{b:02X}")).collect())
                    .collect();
                let again = format!("{scheme}://{}", encoded.join("/"));
                if again.len() <= MAX_PATH {
                    prop_assert_eq!(RelPath::of_uri(&again).map(|q| q == p), Ok(true));
                }
            }
        }
    }
}
