//! SHA-256 digests as the extension writes them: `sha256:` and 64 lower-case hex digits.

use super::text::Quoted;
use serde::{Serialize, Serializer};
use sha2::{Digest as _, Sha256};
use std::{fmt, io};

/// A SHA-256 digest (HR-33).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Digest([u8; 32]);

/// The text is not `sha256:` followed by 64 lower-case hex digits.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("digest {} is not `sha256:` and 64 lower-case hex digits", Quoted(.0))]
pub struct BadDigest(pub String);

impl Digest {
    /// The digest of these bytes.
    pub fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    /// Reads `sha256:{hex}`; any other algorithm, length or letter case is refused.
    pub fn parse(text: &str) -> Result<Self, BadDigest> {
        let bad = || BadDigest(text.chars().take(120).collect());
        let hex = text.strip_prefix("sha256:").ok_or_else(bad)?;
        Self::parse_hex(hex).ok_or_else(bad)
    }

    /// Reads the 64 lower-case hex digits alone, as cache objects are named.
    pub fn parse_hex(hex: &str) -> Option<Self> {
        let mut out = [0u8; 32];
        if hex.len() != 64 {
            return None;
        }
        for (byte, pair) in out.iter_mut().zip(hex.as_bytes().chunks_exact(2)) {
            let nibble = |b: &u8| match b {
                b'0'..=b'9' => Some(b - b'0'),
                b'a'..=b'f' => Some(b - b'a' + 10),
                _ => None,
            };
            let [high, low] = pair else { return None };
            *byte = nibble(high)? << 4 | nibble(low)?;
        }
        Some(Self(out))
    }

    /// The 64 hex digits without the prefix.
    pub fn hex(&self) -> String {
        let digit = |n: u8| char::from_digit(n.into(), 16).unwrap_or_default();
        let pairs = self.0.iter().flat_map(|b| [b >> 4, b & 0xf]);
        let mut hex = String::with_capacity(64);
        hex.extend(pairs.map(digit));
        hex
    }
}

/// A digest on its way: what is written to it is what it is of.
#[derive(Debug, Clone, Default)]
pub struct Hasher(Sha256);

impl Hasher {
    /// The digest of all that was written.
    pub fn finish(self) -> Digest {
        Digest(self.0.finalize().into())
    }
}

impl io::Write for Hasher {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("sha256:")?;
        f.write_str(&self.hex())
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hr_33_only_the_canonical_form_parses() {
        let good = Digest::of(b"");
        assert_eq!(
            good.to_string(),
            "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
        );
        assert_eq!(Digest::parse(&good.to_string()), Ok(good));
        let hex = good.hex();
        for bad in [
            hex.clone(),
            format!("sha512:{hex}"),
            format!("sha256:{}", hex.to_uppercase()),
            format!("SHA256:{hex}"),
            format!("sha256:{}", &hex[..63]),
            format!("sha256:{hex}0"),
            format!("sha256:{}g", &hex[..63]),
            format!("sha256: {}", &hex[..63]),
            "sha256:".into(),
            String::new(),
        ] {
            assert!(Digest::parse(&bad).is_err(), "{bad}");
        }
    }
}
