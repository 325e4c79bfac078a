//! From untrusted to verified bytes: the rule that no byte leaves the mount unchecked.
//!
//! [`Untrusted`] holds bytes from a server or from a disk and has no way to them. [`verify`] is
//! the only function that makes a [`Verified`], and it checks size, digest and, for a skill's
//! own SKILL.md, the frontmatter (HR-56 to HR-58, HR-64, HR-65).
//!
//! Absent on purpose: a flag, variable or constructor that skips the check. A match means the
//! bytes are *consistent with the server's manifest*, never that they are good (HR-69).

use super::digest::Digest;
use super::frontmatter::{self, FrontmatterError};
use super::manifest::Frontmatter;
use bytes::Bytes;
use std::fmt;
use std::sync::Arc;

/// Bytes that nobody has checked.
pub struct Untrusted(Vec<u8>);

impl Untrusted {
    /// Takes bytes from outside.
    pub fn new(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }
}

impl fmt::Debug for Untrusted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Untrusted({} bytes)", self.0.len())
    }
}

/// What the entry in force says of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expected {
    /// The URI to read it by, verbatim.
    pub uri: Arc<str>,
    /// The SHA-256 of its bytes.
    pub digest: Digest,
    /// Its length in bytes.
    pub size: u64,
    /// The frontmatter to compare with, when it is the SKILL.md of an entry.
    pub frontmatter: Option<Frontmatter>,
}

/// All that a verdict on bytes depends on: digest, size, and the frontmatter compared with.
pub type Key = (Digest, u64, Option<Digest>);

impl Expected {
    /// What a verdict is about: the same key, the same verdict. The size is part of it: bytes that
    /// fit the digest are refused under a wrong one.
    pub fn key(&self) -> Key {
        let front = self.frontmatter.as_ref().map(|f| f.id);
        (self.digest, self.size, front)
    }
}

/// Bytes that were checked; only [`verify`] makes one.
#[derive(Clone)]
pub struct Verified(Bytes);

impl Verified {
    /// The checked bytes.
    pub fn bytes(&self) -> &Bytes {
        &self.0
    }

    /// What a read of `size` bytes at `offset` gives: short or empty past the end.
    pub fn slice(&self, offset: u64, size: u32) -> &[u8] {
        slice(&self.0, offset, size)
    }
}

impl fmt::Debug for Verified {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Verified({} bytes)", self.0.len())
    }
}

/// Bytes of a dynamic skill: nothing describes them, so nothing but their frontmatter was
/// checked. Only [`unverified`] makes one, and only for a server whose dynamic skills the user
/// allowed (HR-35).
#[derive(Clone)]
pub struct Unverified(Bytes);

impl Unverified {
    /// How many bytes there are.
    pub fn size(&self) -> u64 {
        self.0.len() as u64
    }

    /// What a read of `size` bytes at `offset` gives: short or empty past the end.
    pub fn slice(&self, offset: u64, size: u32) -> &[u8] {
        slice(&self.0, offset, size)
    }
}

impl fmt::Debug for Unverified {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Unverified({} bytes)", self.0.len())
    }
}

/// Takes the content of a dynamic skill as it is, within `budget` bytes; its SKILL.md's
/// frontmatter must still be the entry's (HR-40, HR-64). The size comes with it.
///
/// # Errors
/// It is larger than the budget, or the frontmatter differs.
pub fn unverified(
    bytes: Untrusted,
    frontmatter: Option<&Frontmatter>,
    budget: u64,
) -> Result<(Unverified, u64), Mismatch> {
    let Untrusted(bytes) = bytes;
    let found = bytes.len() as u64;
    if found > budget {
        return Err(Mismatch::Budget { budget, found });
    }
    if let Some(front) = frontmatter {
        frontmatter::compare(&bytes, &front.map())?;
    }
    Ok((Unverified(bytes.into()), found))
}

fn slice(bytes: &[u8], offset: u64, size: u32) -> &[u8] {
    let start = usize::try_from(offset)
        .unwrap_or(usize::MAX)
        .min(bytes.len());
    let end = start.saturating_add(size as usize).min(bytes.len());
    bytes.get(start..end).unwrap_or_default()
}

/// Why bytes are not what the entry describes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Mismatch {
    /// Another length (HR-34).
    #[error("size differs: expected {expected} bytes, found {found}{hint}")]
    Size {
        /// From the entry.
        expected: u64,
        /// What came.
        found: u64,
        /// A likely cause, or nothing.
        hint: &'static str,
    },
    /// Another digest.
    #[error("digest differs: expected {expected}, found {found}{hint}")]
    Digest {
        /// From the entry.
        expected: Digest,
        /// What came.
        found: Digest,
        /// A likely cause, or nothing.
        hint: &'static str,
    },
    /// A dynamic skill gave more than it may (HR-40).
    #[error("the dynamic skill's budget is used: {budget} bytes are left, found {found}")]
    Budget {
        /// What was left.
        budget: u64,
        /// What came.
        found: u64,
    },
    /// The frontmatter in the file is not the entry's.
    #[error("frontmatter differs: {0}")]
    Frontmatter(#[from] FrontmatterError),
}

impl Mismatch {
    /// What the entry promised and what came, as two texts for a status file.
    pub fn sides(&self) -> (String, String) {
        match self {
            Self::Size {
                expected, found, ..
            } => (format!("{expected} bytes"), format!("{found} bytes")),
            Self::Digest {
                expected, found, ..
            } => (expected.to_string(), found.to_string()),
            Self::Budget { budget, found } => {
                (format!("at most {budget} bytes"), format!("{found} bytes"))
            }
            Self::Frontmatter(e) => ("the entry's frontmatter".into(), e.to_string()),
        }
    }
}

/// Checks bytes against what the entry in force says of them.
///
/// # Errors
/// The first difference; the bytes are gone and must be fetched again.
pub fn verify(bytes: Untrusted, expected: &Expected) -> Result<Verified, Mismatch> {
    let Untrusted(bytes) = bytes;
    let found = bytes.len() as u64;
    if found != expected.size {
        let hint = hint(&bytes, expected.digest);
        return Err(Mismatch::Size {
            expected: expected.size,
            found,
            hint,
        });
    }
    let digest = Digest::of(&bytes);
    if digest != expected.digest {
        let hint = hint(&bytes, expected.digest);
        return Err(Mismatch::Digest {
            expected: expected.digest,
            found: digest,
            hint,
        });
    }
    if let Some(front) = &expected.frontmatter {
        frontmatter::compare(&bytes, &front.map())?;
    }
    Ok(Verified(bytes.into()))
}

/// Names the usual accidents between a manifest and a reply. It only explains: bytes that would
/// fit after a repair are refused all the same.
fn hint(bytes: &[u8], want: Digest) -> &'static str {
    let is = |candidate: &[u8]| Digest::of(candidate) == want;
    if is(&[bytes, b"\n"].concat()) {
        return " (the last line break is missing)";
    }
    if bytes.strip_suffix(b"\n").is_some_and(is) {
        return " (one line break too many at the end)";
    }
    let Ok(text) = std::str::from_utf8(bytes) else {
        return "";
    };
    let lf = text.replace("\r\n", "\n");
    if is(lf.as_bytes()) || is(lf.replace('\n', "\r\n").as_bytes()) {
        return " (the line ends differ)";
    }
    if text.contains('\u{fffd}') {
        return " (characters were lost: the text holds U+FFFD)";
    }
    ""
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn expected(bytes: &[u8]) -> Expected {
        Expected {
            uri: "skill://s/x".into(),
            digest: Digest::of(bytes),
            size: bytes.len() as u64,
            frontmatter: None,
        }
    }

    fn check(bytes: &[u8], e: &Expected) -> Result<Verified, Mismatch> {
        verify(Untrusted::new(bytes.to_vec()), e)
    }

    #[test]
    fn the_specifications_sample_files_hash_to_its_digests() {
        let samples: [(&str, u64, &str); 4] = [
            (
                "---\nname: pdf-processing\ndescription: Extract, fill, and assemble PDF documents\n---\n\n# PDF processing\n\nChoose the matching template from `templates/`.\n",
                151,
                "sha256:99b737495721155ece826d57521e2d66141ebdc1344a400487481ea2642ab19e",
            ),
            (
                "# Invoice\n\nCustomer:\nAmount:\n",
                29,
                "sha256:61f4ea6d2c75fde1b4977219e7e3107d491c3c26aefb6686e84d6281c088d9ee",
            ),
            (
                "# Purchase order\n\nSupplier:\nItems:\n",
                35,
                "sha256:f2ff774b1737ff3dec81c47946f9976f18a1a9f69dda0a81f22eabd95173c158",
            ),
            (
                "# Credit note\n\nInvoice:\nCredit amount:\n",
                39,
                "sha256:766bffa8d4908ce897e1727ca22e4bf0fa796620b35218ce2132a124545626f1",
            ),
        ];
        for (text, size, digest) in samples {
            let e = Expected {
                uri: "u".into(),
                digest: Digest::parse(digest).unwrap(),
                size,
                frontmatter: None,
            };
            assert_eq!(check(text.as_bytes(), &e).unwrap().bytes(), text.as_bytes());
        }
    }

    #[test]
    fn hr_56_one_bit_or_one_byte_is_a_mismatch() {
        let e = expected(b"hello\n");
        assert!(check(b"hello\n", &e).is_ok());
        assert!(matches!(
            check(b"hellp\n", &e),
            Err(Mismatch::Digest { .. })
        ));
        assert!(matches!(
            check(b"hello", &e),
            Err(Mismatch::Size {
                expected: 6,
                found: 5,
                ..
            })
        ));
        assert!(matches!(
            check(b"hello\n\n", &e),
            Err(Mismatch::Size {
                expected: 6,
                found: 7,
                ..
            })
        ));
        assert!(matches!(
            check(b"", &e),
            Err(Mismatch::Size {
                expected: 6,
                found: 0,
                ..
            })
        ));
        let lie = Expected {
            size: 5,
            ..e.clone()
        };
        assert!(
            matches!(check(b"hello\n", &lie), Err(Mismatch::Size { .. })),
            "a right digest does not save a wrong size"
        );
    }

    #[test]
    fn c_52_accidents_are_named_and_still_refused() {
        let hint = |want: &[u8], got: &[u8]| check(got, &expected(want)).unwrap_err().to_string();
        assert!(
            hint(b"step one\r\nstep two\r\n", b"step one\nstep two\n").contains("line ends differ")
        );
        assert!(hint(b"a\nb\n", b"a\r\nb\r\n").contains("line ends differ"));
        assert!(hint(b"hello world\n", b"hello world").contains("last line break is missing"));
        assert!(hint(b"hello world", b"hello world\n").contains("one line break too many"));
        assert!(hint(b"caf\xe9\n", "caf\u{fffd}\n".as_bytes()).contains("U+FFFD"));
        assert!(!hint(b"abc", b"abd").contains('('));
    }

    #[test]
    fn hr_64_65_the_frontmatter_must_be_the_entrys() {
        let text = b"---\nname: s\ndescription: d\n---\nBody\n";
        let with = |value: serde_json::Value| Expected {
            frontmatter: Some(Frontmatter::of(value.as_object().unwrap())),
            ..expected(text)
        };
        assert!(check(text, &with(json!({"name": "s", "description": "d"}))).is_ok());
        for lie in [
            json!({"name": "s", "description": "e"}),
            json!({"name": "s", "description": "d", "x": 1}),
            json!({"name": "s"}),
        ] {
            assert!(matches!(
                check(text, &with(lie)),
                Err(Mismatch::Frontmatter(_))
            ));
        }
    }

    #[test]
    fn hr_40_64_dynamic_content_has_a_budget_and_its_frontmatter_is_compared() {
        let text = b"---\nname: s\ndescription: d\n---\nnow\n";
        let front = |d: &str| {
            let value = json!({"name": "s", "description": d});
            Frontmatter::of(value.as_object().unwrap())
        };
        let take = |front: Option<&Frontmatter>, budget| {
            unverified(Untrusted::new(text.to_vec()), front, budget)
                .map(|(bytes, n)| (bytes.slice(0, 9).to_vec(), n))
        };
        let size = text.len() as u64;
        assert_eq!(
            take(Some(&front("d")), size),
            Ok((text[..9].to_vec(), size))
        );
        assert!(matches!(
            take(Some(&front("e")), size),
            Err(Mismatch::Frontmatter(_))
        ));
        assert_eq!(
            take(None, size - 1),
            Err(Mismatch::Budget {
                budget: size - 1,
                found: size
            })
        );
    }

    #[test]
    fn slices_end_with_the_file() {
        let v = check(b"0123456789", &expected(b"0123456789")).unwrap();
        assert_eq!(v.slice(0, 4), b"0123");
        assert_eq!(v.slice(8, 4), b"89");
        assert_eq!(v.slice(10, 4), b"");
        assert_eq!(v.slice(u64::MAX, u32::MAX), b"");
    }
}
