//! SHA-256 digests as the extension writes them: `sha256:` and 64 lower-case hex digits.

use super::text::Quoted;
use serde::{Serialize, Serializer};
use sha2::{Digest as _, Sha256};
use std::{fmt, io};

/// A SHA-256 digest (HR-33).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Digest([u8; 32]);

const DIGITS: [u8; 16] = *b"0123456789abcdef";
/// What a byte that is no digit stands for.
const NONE: u8 = 0xff;
/// What each byte stands for as a digit.
#[expect(clippy::indexing_slicing, reason = "it runs in the compiler")]
const VALUES: [u8; 256] = {
    let mut values = [NONE; 256];
    let mut n = 0;
    while n < 16 {
        values[DIGITS[n] as usize] = n as u8;
        n += 1;
    }
    values
};

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
        let value = |digit: &u8| VALUES.get(usize::from(*digit)).copied().unwrap_or(NONE);
        let mut all = 0;
        let (pairs, _) = hex.as_bytes().as_chunks::<2>();
        for (byte, [high, low]) in out.iter_mut().zip(pairs) {
            let (high, low) = (value(high), value(low));
            all |= high | low;
            *byte = high << 4 | low;
        }
        // Looked at once, not for each digit: a listing has a million of them.
        (all < 16).then_some(Self(out))
    }

    /// The 64 hex digits without the prefix.
    pub fn hex(&self) -> String {
        let mut hex = [0; 64];
        let (pairs, _) = hex.as_chunks_mut::<2>();
        let digit = |n: u8| DIGITS.get(usize::from(n)).copied().unwrap_or_default();
        for (pair, byte) in pairs.iter_mut().zip(self.0) {
            *pair = [digit(byte >> 4), digit(byte & 0xf)];
        }
        str::from_utf8(&hex).unwrap_or_default().to_owned()
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
