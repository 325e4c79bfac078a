//! Checked bytes kept in memory, the least recently used ones let go first.

use crate::domain::digest::Digest;
use crate::domain::verify::Verified;
use crate::sync::Mutex;
use lru::LruCache;

/// What a verdict was about: a server (by slot), a digest, and the frontmatter compared with.
pub(super) type Key = (u16, Digest, Option<Digest>);

/// At most this many bytes, unless one file alone is larger.
const MAX_BYTES: usize = 64 << 20;

#[derive(Debug)]
pub(super) struct Memory(Mutex<Inner>);

#[derive(Debug)]
struct Inner {
    files: LruCache<Key, Verified>,
    bytes: usize,
}

impl Memory {
    pub(super) fn new() -> Self {
        Self(Mutex::new(Inner {
            files: LruCache::unbounded(),
            bytes: 0,
        }))
    }

    pub(super) fn get(&self, key: &Key) -> Option<Verified> {
        self.0.lock().files.get(key).cloned()
    }

    /// What a lack of room does.
    #[cfg(all(test, shuttle))]
    pub(super) fn evict(&self) {
        let mut inner = self.0.lock();
        while let Some((_, old)) = inner.files.pop_lru() {
            inner.bytes -= old.bytes().len();
        }
    }

    pub(super) fn put(&self, key: Key, file: Verified) {
        let mut inner = self.0.lock();
        inner.bytes += file.bytes().len();
        if let Some(old) = inner.files.put(key, file) {
            inner.bytes -= old.bytes().len();
        }
        while inner.bytes > MAX_BYTES && inner.files.len() > 1 {
            let Some((_, old)) = inner.files.pop_lru() else {
                break;
            };
            inner.bytes -= old.bytes().len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::verify::{Expected, Untrusted, verify};

    fn file(fill: u8, size: usize) -> (Key, Verified) {
        let bytes = vec![fill; size];
        let digest = Digest::of(&bytes);
        let e = Expected {
            uri: "u".into(),
            digest,
            size: size as u64,
            frontmatter: None,
        };
        (
            (1, digest, None),
            verify(Untrusted::new(bytes), &e).unwrap(),
        )
    }

    #[test]
    fn the_least_recently_used_goes_and_bytes_are_bounded() {
        let memory = Memory::new();
        let (a, b, c) = (file(1, MAX_BYTES / 2), file(2, MAX_BYTES / 2), file(3, 10));
        memory.put(a.0, a.1.clone());
        memory.put(a.0, a.1);
        memory.put(b.0, b.1);
        assert!(memory.get(&a.0).is_some());
        memory.put(c.0, c.1);
        assert!(
            memory.get(&b.0).is_none() && memory.get(&a.0).is_some() && memory.get(&c.0).is_some()
        );
        let big = file(4, MAX_BYTES + 1);
        memory.put(big.0, big.1);
        assert!(
            memory.get(&big.0).is_some(),
            "one file larger than the cap is still served"
        );
        assert!(memory.get(&a.0).is_none());
        let other = (2, big.0.1, None);
        assert!(memory.get(&other).is_none(), "never across servers (HR-10)");
    }
}
