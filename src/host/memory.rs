//! Checked bytes kept in memory, the least recently used ones let go first.
//!
//! The kernel reads a file in pieces, and each piece of a file that is no longer here costs the
//! whole file again. So whoever loads one asks for [`Room`] first, and a file that is being read
//! stays: with more large files at once than fit, some wait until others have been read.
//!
//! **Invariant:** what is kept and what is being loaded are [`MAX_BYTES`] at most, unless one file
//! alone is larger.

use super::Tick;
use crate::domain::verify::{self, Verified};
use crate::sync::{Mutex, sleep, timeout};
use lru::LruCache;
use std::time::{Duration, Instant};

/// What a verdict was about, and the slot of the server.
pub(super) type Key = (u16, verify::Key);

/// What is kept and loaded at once.
const MAX_BYTES: u64 = 64 << 20;
/// A file counts as being read for this long after a piece of it was asked for…
const READING: Duration = Duration::from_millis(100);
/// …but not for longer than this after it came.
const READING_AT_MOST: Duration = Duration::from_secs(2);
/// How often it is looked whether there is room.
const EVERY: Duration = Duration::from_millis(10);
/// Files larger than this are given room in the order in which they ask.
const IN_TURN: u64 = 1 << 20;

#[derive(Debug)]
pub(super) struct Memory {
    inner: Mutex<Inner>,
    turn: tokio::sync::Mutex<()>,
}

#[derive(Debug)]
struct Inner {
    files: LruCache<Key, Kept>,
    /// Of the files, and of those that room was made for.
    bytes: u64,
}

#[derive(Debug)]
struct Kept {
    file: Verified,
    came: Tick,
    asked: Tick,
}

impl Kept {
    fn is_being_read(&self) -> bool {
        self.asked.elapsed() < READING && self.came.elapsed() < READING_AT_MOST
    }
}

/// Room for a file that is being loaded; given back if the file does not come.
#[derive(Debug)]
pub(super) struct Room<'a> {
    memory: &'a Memory,
    bytes: u64,
}

impl Drop for Room<'_> {
    fn drop(&mut self) {
        self.memory.inner.lock().bytes -= self.bytes;
    }
}

impl Memory {
    pub(super) fn new() -> Self {
        Self {
            inner: Mutex::new(Inner {
                files: LruCache::unbounded(),
                bytes: 0,
            }),
            turn: tokio::sync::Mutex::default(),
        }
    }

    pub(super) fn get(&self, key: &Key) -> Option<Verified> {
        let mut inner = self.inner.lock();
        let kept = inner.files.get_mut(key)?;
        kept.asked = Tick::now();
        Some(kept.file.clone())
    }

    /// What is kept and being loaded.
    pub(super) fn bytes(&self) -> u64 {
        self.inner.lock().bytes
    }

    /// What a lack of room does.
    #[cfg(all(test, shuttle))]
    pub(super) fn evict(&self) {
        let mut inner = self.inner.lock();
        while let Some((_, old)) = inner.files.pop_lru() {
            inner.bytes -= size(&old.file);
        }
    }

    /// Room for so many bytes; none if there is none before the deadline.
    pub(super) async fn room(&self, bytes: u64, deadline: Instant) -> Option<Room<'_>> {
        let wait = async {
            let _turn = match bytes > IN_TURN {
                true => Some(self.turn.lock().await),
                false => None,
            };
            loop {
                if let Some(room) = self.room_now(bytes) {
                    return room;
                }
                sleep(EVERY).await;
            }
        };
        let left = deadline.saturating_duration_since(Instant::now());
        timeout(left, wait).await.ok()
    }

    /// Room for so many bytes, if nobody need be waited for.
    pub(super) fn room_now(&self, bytes: u64) -> Option<Room<'_>> {
        let mut inner = self.inner.lock();
        while inner.bytes > 0 && inner.bytes + bytes > MAX_BYTES {
            let mut oldest_first = inner.files.iter().rev();
            let (key, _) = oldest_first.find(|(_, kept)| !kept.is_being_read())?;
            let key = *key;
            inner.bytes -= inner.files.pop(&key).map_or(0, |kept| size(&kept.file));
        }
        inner.bytes += bytes;
        Some(Room {
            memory: self,
            bytes,
        })
    }

    /// Room for so many bytes, if nothing need go for it.
    pub(super) fn room_left(&self, bytes: u64) -> Option<Room<'_>> {
        let mut inner = self.inner.lock();
        (inner.bytes + bytes <= MAX_BYTES).then(|| {
            inner.bytes += bytes;
            Room {
                memory: self,
                bytes,
            }
        })
    }

    /// Keeps a file in the room that was made for it.
    pub(super) fn put(&self, key: Key, file: Verified, room: Room<'_>) {
        let now = Tick::now();
        let kept = Kept {
            file,
            came: now,
            asked: now,
        };
        let mut inner = self.inner.lock();
        inner.bytes += size(&kept.file);
        if let Some(old) = inner.files.put(key, kept) {
            inner.bytes -= size(&old.file);
        }
        drop(inner);
        drop(room);
    }
}

fn size(file: &Verified) -> u64 {
    file.bytes().len() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::digest::Digest;
    use crate::domain::verify::{Expected, Untrusted, verify};

    fn file(fill: u8, size: u64) -> (Key, Verified) {
        let bytes = vec![fill; size as usize];
        let digest = Digest::of(&bytes);
        let e = Expected {
            uri: "u".into(),
            digest,
            size,
            frontmatter: None,
        };
        ((1, e.key()), verify(Untrusted::new(bytes), &e).unwrap())
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(3600)
    }

    async fn put(memory: &Memory, (key, file): &(Key, Verified)) {
        let room = memory.room(size(file), soon()).await.unwrap();
        memory.put(*key, file.clone(), room);
    }

    #[tokio::test(start_paused = true)]
    async fn the_least_recently_used_goes_and_bytes_are_bounded() {
        let memory = Memory::new();
        let (a, b, c) = (file(1, MAX_BYTES / 2), file(2, MAX_BYTES / 4), file(3, 10));
        put(&memory, &a).await;
        put(&memory, &a).await;
        put(&memory, &b).await;
        tokio::time::advance(READING).await;
        assert!(memory.get(&a.0).is_some());
        let d = file(4, MAX_BYTES / 4);
        put(&memory, &d).await;
        put(&memory, &c).await;
        assert!(
            memory.get(&b.0).is_none() && memory.get(&a.0).is_some() && memory.get(&c.0).is_some()
        );
        let big = file(5, MAX_BYTES + 1);
        put(&memory, &big).await;
        assert!(
            memory.get(&big.0).is_some(),
            "one file larger than the cap is still served"
        );
        assert!(memory.get(&a.0).is_none());
        let other = (2, big.0.1);
        assert!(memory.get(&other).is_none(), "never across servers (HR-10)");
        let (slot, (digest, size, front)) = big.0;
        let shorter = (slot, (digest, size - 1, front));
        assert!(memory.get(&shorter).is_none(), "never under another size");
    }

    #[tokio::test(start_paused = true)]
    async fn a_file_that_is_being_read_stays_but_not_for_ever() {
        let memory = Memory::new();
        let (a, b) = (file(1, MAX_BYTES), file(2, 10));
        put(&memory, &a).await;
        let began = Tick::now();
        let reading = async {
            while memory.get(&a.0).is_some() {
                tokio::time::sleep(READING / 2).await;
            }
        };
        let ((), ()) = tokio::join!(reading, put(&memory, &b));
        assert!(began.elapsed() >= READING_AT_MOST && memory.get(&b.0).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn room_that_is_not_used_is_given_back() {
        let memory = Memory::new();
        let room = memory.room(MAX_BYTES, soon()).await;
        assert!(room.is_some() && memory.room_now(1).is_none());
        drop(room);
        assert!(memory.room_now(MAX_BYTES).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn what_asks_for_no_more_than_is_left_drives_nothing_out() {
        let memory = Memory::new();
        let a = file(1, MAX_BYTES - 10);
        put(&memory, &a).await;
        tokio::time::advance(READING).await;
        assert!(memory.room_left(11).is_none() && memory.room_left(10).is_some());
        assert!(memory.get(&a.0).is_some());
    }
}
