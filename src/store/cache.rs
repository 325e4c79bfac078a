//! Checked blobs on disk, per server, named by their digest.
//!
//! A blob is hashed again each time it comes from disk (HR-82): [`Shelf::load`] goes through
//! [`verify`] like a fresh read, so a flipped, truncated, swapped or planted blob is never
//! served; it is removed and fetched again. Writing never delays or fails a read: a full disk or
//! a loosened directory costs one warning and the cache, not the content (HR-83, HR-89).
//!
//! What the kernel has in memory can be loaded at once, by threads that must not wait for a disk;
//! and of what is surely not kept, the disk is not asked. Several daemons may share one cache: names
//! are digests, writes are renames, and each write changes the shelf's directory, so that the others
//! know that there may be more than they know of.

use super::private::{Medium, PrivateDir, Unsafe};
use crate::domain::digest::Digest;
use crate::domain::manifest::MAX_BYTES;
use crate::domain::name::Label;
use crate::domain::verify::{Expected, Untrusted, Verified, verify};
use parking_lot::Mutex;
use rustix::fs::Mode;
use std::collections::HashSet;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The size at which old blobs are removed, unless the user says otherwise: 1 GiB.
pub const DEFAULT_CAP: u64 = 1 << 30;
/// The time of a blob's last use is kept to within this.
const USED_WITHIN: Duration = Duration::from_secs(60);
/// Names that other daemons made are looked for at most this often.
const LIST_GAP: Duration = Duration::from_secs(1);

/// All blobs of this user.
#[derive(Debug)]
pub struct Cache {
    root: PrivateDir,
    cap: u64,
    bytes: AtomicU64,
    /// Held by the one thread that removes old blobs.
    sweeping: Mutex<()>,
    hits: AtomicU64,
    rejected: AtomicU64,
}

/// Figures for `status`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Figures {
    /// Bytes of all blobs, by the last count.
    pub bytes: u64,
    /// The size at which old ones are removed.
    pub cap: u64,
    /// Reads served from disk after hashing.
    pub hits: u64,
    /// Blobs that did not match their name and were removed.
    pub rejected: u64,
}

impl Cache {
    /// Opens `<dir>/mount-skills/v1`. What is there is not counted yet.
    pub fn open(dir: &Path, cap: u64) -> Result<Arc<Self>, Unsafe> {
        let root = PrivateDir::open(&dir.join("mount-skills").join("v1"))?;
        Ok(Arc::new(Self {
            root,
            cap,
            bytes: AtomicU64::new(0),
            sweeping: Mutex::new(()),
            hits: AtomicU64::new(0),
            rejected: AtomicU64::new(0),
        }))
    }

    /// Counts what is there: once, and so that nobody need wait for it. What was written since the
    /// cache was opened is there too, and is not to count twice. Blocks on the disk.
    pub fn count(&self) {
        let written = self.bytes.load(Ordering::Relaxed);
        let bytes: u64 = self.blobs().iter().map(|b| b.size).sum();
        let all = |now: u64| Some((now + bytes).saturating_sub(written));
        let _ = (self.bytes).fetch_update(Ordering::Relaxed, Ordering::Relaxed, all);
    }

    /// The blobs of one server.
    pub fn shelf(self: &Arc<Self>, label: &Label, identity: &str) -> Result<Shelf, Unsafe> {
        let dir = self.root.child(&format!("{label}-{identity}"))?;
        dir.sweep();
        Ok(Shelf {
            cache: Arc::clone(self),
            medium: dir.medium(),
            dir,
            names: Mutex::default(),
            warned: AtomicBool::new(false),
        })
    }

    /// The figures for `status`.
    pub fn figures(&self) -> Figures {
        Figures {
            bytes: self.bytes.load(Ordering::Relaxed),
            cap: self.cap,
            hits: self.hits.load(Ordering::Relaxed),
            rejected: self.rejected.load(Ordering::Relaxed),
        }
    }

    fn blobs(&self) -> Vec<Blob> {
        let mut out = Vec::new();
        for (shelf, _) in self.root.names().unwrap_or_default() {
            let Ok(dir) = self.root.existing(&shelf) else {
                continue;
            };
            for (aa, _) in dir.names().unwrap_or_default() {
                let Ok(sub) = dir.existing(&aa) else { continue };
                for (name, _) in sub.names().unwrap_or_default() {
                    if let Ok((_, stat)) = sub.open_file(&name) {
                        out.push(Blob {
                            used: stat.st_mtime,
                            size: stat.st_size.unsigned_abs(),
                            shelf: shelf.clone(),
                            aa: aa.clone(),
                            name,
                        });
                    }
                }
            }
        }
        out
    }

    /// What is kept, by directory of a server: its name, files and bytes.
    pub fn shelves(&self) -> Vec<(String, usize, u64)> {
        let mut out: std::collections::BTreeMap<String, (usize, u64)> = Default::default();
        for blob in self.blobs() {
            let entry = out.entry(blob.shelf).or_default();
            entry.0 += 1;
            entry.1 += blob.size;
        }
        out.into_iter()
            .map(|(name, (files, bytes))| (name, files, bytes))
            .collect()
    }

    /// Hashes every blob again and removes what does not match its name: how many were checked
    /// and removed.
    pub fn verify(&self) -> (usize, usize) {
        let (mut checked, mut removed) = (0, 0);
        for blob in self.blobs() {
            checked += 1;
            let Ok(dir) = self
                .root
                .existing(&blob.shelf)
                .and_then(|d| d.existing(&blob.aa))
            else {
                continue;
            };
            let bytes = dir.read(&blob.name, blob.size);
            let matches = bytes.is_ok_and(|b| Digest::of(&b).hex() == blob.name);
            if !matches && dir.remove(&blob.name).is_ok() {
                removed += 1;
            }
        }
        (checked, removed)
    }

    /// Removes the blobs that were not used for the longest time, down to this many bytes; how many
    /// bytes went.
    pub fn prune(&self, to: u64) -> u64 {
        let Some(_only_one) = self.sweeping.try_lock() else {
            return 0;
        };
        let mut blobs = self.blobs();
        blobs.sort_by_key(|b| b.used);
        let before: u64 = blobs.iter().map(|b| b.size).sum();
        let mut total = before;
        for blob in &blobs {
            if total <= to {
                break;
            }
            let dir = self
                .root
                .existing(&blob.shelf)
                .and_then(|d| d.existing(&blob.aa));
            if dir.is_ok_and(|d| d.remove(&blob.name).is_ok()) {
                total -= blob.size;
            }
        }
        self.bytes.store(total, Ordering::Relaxed);
        before - total
    }
}

struct Blob {
    used: i64,
    size: u64,
    shelf: String,
    aa: String,
    name: String,
}

/// The blobs of one server.
#[derive(Debug)]
pub struct Shelf {
    cache: Arc<Cache>,
    dir: PrivateDir,
    medium: Medium,
    names: Mutex<Names>,
    warned: AtomicBool,
}

/// The blobs that a shelf is known to hold.
#[derive(Debug, Default)]
struct Names {
    kept: HashSet<Digest>,
    /// What the shelf's directory said of its last change when these were all; none if they were
    /// never listed.
    all_at: Option<(i64, u64)>,
    /// Whether a blob of ours is being added to a shelf whose names are all known.
    adding: bool,
    /// When they were listed last.
    listed: Option<Instant>,
}

impl Shelf {
    /// Whether something bears the name of the blob that this entry describes, right or not.
    /// Blocks on the disk.
    pub fn has(&self, expected: &Expected) -> bool {
        let (aa, name) = place(expected.digest);
        let absent = |e: io::Error| e.kind() == io::ErrorKind::NotFound;
        let sub = self.dir.existing(&aa);
        sub.is_ok_and(|sub| !sub.open_file(&name).is_err_and(absent))
    }

    /// Whether the blob that this entry describes is surely not kept. Never waits.
    pub fn lacks(&self, expected: &Expected) -> bool {
        if self.medium == Medium::Remote {
            return false;
        }
        let changed = self.dir.changed().ok();
        let names = self.names.lock();
        // A blob of ours that is being added changes the directory as well.
        let all = names.all_at.is_some() && (names.all_at == changed || names.adding);
        all && !names.kept.contains(&expected.digest)
    }

    /// Lists what is kept, so that of all else the disk need not be asked. Blocks on the disk.
    fn list(&self) {
        let changed = self.dir.changed().ok();
        {
            let mut names = self.names.lock();
            let lately = |at: &Instant| at.elapsed() < LIST_GAP;
            if names.all_at == changed || names.listed.as_ref().is_some_and(lately) {
                return;
            }
            names.listed = Some(Instant::now());
        }
        let mut kept = HashSet::new();
        let Ok(found) = self.dir.names() else { return };
        // Beside the directories there are files that are being written.
        let dirs = found.iter().filter(|(_, kind)| !kind.is_file());
        for (aa, _) in dirs {
            let sub = self.dir.existing(aa).ok();
            // One that cannot be read holds something unknown.
            let Some(names) = sub.and_then(|sub| sub.names().ok()) else {
                return;
            };
            kept.extend(names.iter().filter_map(|(n, _)| Digest::parse_hex(n)));
        }
        let mut names = self.names.lock();
        names.kept = kept;
        names.all_at = changed;
    }

    /// The blob that this entry describes, hashed now, if that takes no waiting for the disk; else
    /// [`Shelf::load`] is to be asked.
    pub fn load_at_once(&self, expected: &Expected) -> Option<Verified> {
        if self.medium == Medium::Remote {
            return None;
        }
        self.dir.check().ok()?;
        let (aa, name) = place(expected.digest);
        let size = usize::try_from(expected.size).ok()?;
        let path = format!("{aa}/{name}");
        let (bytes, used) = self.dir.read_at_once(&path, size, self.medium)?;
        if is_long_ago(used) {
            return None;
        }
        let verified = verify(Untrusted::new(bytes), expected).ok()?;
        self.cache.hits.fetch_add(1, Ordering::Relaxed);
        Some(verified)
    }

    /// The blob that this entry describes, hashed now; none if it is not there or not right.
    /// Blocks on the disk.
    pub fn load(&self, expected: &Expected) -> Option<Verified> {
        let (aa, name) = place(expected.digest);
        if let Err(e) = self.dir.check() {
            self.warn(&e);
            return None;
        }
        self.list();
        let sub = self.dir.existing(&aa).ok()?;
        let bytes = match sub.read(&name, MAX_BYTES) {
            Ok(bytes) => bytes,
            Err(e) if e.kind() == io::ErrorKind::InvalidData => {
                return self.reject(&sub, &name, &e);
            }
            Err(_) => return None,
        };
        // Right for its digest, but the entry claims another size: as with the frontmatter below.
        if bytes.len() as u64 != expected.size && Digest::of(&bytes) == expected.digest {
            return None;
        }
        match verify(Untrusted::new(bytes), expected) {
            Ok(verified) => {
                self.cache.hits.fetch_add(1, Ordering::Relaxed);
                if let Ok((file, stat)) = sub.open_file(&name)
                    && is_long_ago(stat.st_mtime)
                {
                    // The time of last use, for the size cap; a failure only costs the order.
                    let _ = file.set_modified(SystemTime::now());
                }
                Some(verified)
            }
            // Right bytes for the digest, but the entry claims another frontmatter: the blob is
            // fine and the server must be asked.
            Err(crate::domain::verify::Mismatch::Frontmatter(_)) => None,
            Err(e) => self.reject(&sub, &name, &e),
        }
    }

    fn reject(
        &self,
        sub: &PrivateDir,
        name: &str,
        why: &dyn std::fmt::Display,
    ) -> Option<Verified> {
        self.cache.rejected.fetch_add(1, Ordering::Relaxed);
        tracing::warn!(
            "cached copy {}/{name} was damaged ({why}); removed",
            sub.path().display()
        );
        if let Err(e) = sub.remove(name) {
            self.warn(&e);
        }
        None
    }

    /// Keeps checked bytes. Blocks on the disk; a failure is a warning, not an error.
    pub fn save(&self, digest: Digest, bytes: &Verified) {
        let (aa, name) = place(digest);
        let save = || -> Result<(), Box<dyn std::error::Error>> {
            self.dir.check()?;
            let sub = self.dir.child(&aa)?;
            Ok(self
                .dir
                .write_blob(&sub, &name, Mode::RUSR, bytes.bytes())?)
        };
        let before = self.dir.changed().ok();
        {
            let mut names = self.names.lock();
            names.adding = names.all_at == before;
        }
        let saved = save();
        let after = self.dir.changed().ok();
        {
            let mut names = self.names.lock();
            names.adding = false;
            if saved.is_ok() {
                names.kept.insert(digest);
            }
            // Otherwise somebody else adds blobs as well.
            if names.all_at == before {
                names.all_at = after;
            }
        }
        match saved {
            Ok(()) => {
                self.warned.store(false, Ordering::Relaxed);
                let size = bytes.bytes().len() as u64;
                let total = self.cache.bytes.fetch_add(size, Ordering::Relaxed) + size;
                if total > self.cache.cap {
                    // A tenth below the cap, so that not every write removes something.
                    self.cache.prune(self.cache.cap / 10 * 9);
                }
            }
            Err(e) => self.warn(&*e),
        }
    }

    /// One warning until a write succeeds again (HR-89).
    fn warn(&self, e: &dyn std::fmt::Display) {
        if !self.warned.swap(true, Ordering::Relaxed) {
            tracing::warn!("the cache is not used for now, content is served without it: {e}");
        }
    }
}

/// Removes all blobs of a label, for every identity it ever had (HR-86).
pub fn forget(dir: &Path, label: &Label) -> io::Result<u64> {
    super::private::remove_label(&dir.join("mount-skills").join("v1"), label)
}

/// Whether a blob was last used so long ago that its time is to be set again.
fn is_long_ago(used: i64) -> bool {
    let used = UNIX_EPOCH + Duration::from_secs(used.unsigned_abs());
    used.elapsed().map_or(true, |age| age >= USED_WITHIN)
}

fn place(digest: Digest) -> (String, String) {
    let hex = digest.hex();
    (hex.chars().take(2).collect(), hex)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hr_82_a_blob_goes_when_it_is_wrong_and_not_when_an_entry_is() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::open(&dir.path().join("cache"), DEFAULT_CAP).unwrap();
        let shelf = cache.shelf(&"lab".parse().unwrap(), "id").unwrap();
        let right = Expected {
            uri: "skill://s/x".into(),
            digest: Digest::of(b"some bytes"),
            size: 10,
            frontmatter: None,
        };
        let bytes = verify(Untrusted::new(b"some bytes".to_vec()), &right).unwrap();
        shelf.save(right.digest, &bytes);
        for size in [0, 9, 11, MAX_BYTES] {
            let lie = Expected {
                size,
                ..right.clone()
            };
            assert!(shelf.load(&lie).is_none(), "{size}");
        }
        assert_eq!(cache.figures().rejected, 0);
        assert_eq!(shelf.load(&right).unwrap().bytes(), &b"some bytes"[..]);
        let (aa, name) = place(right.digest);
        let file = shelf.dir.path().join(aa).join(name);
        for wrong in [&b"some byteS"[..], b"some", b""] {
            std::fs::remove_file(&file).unwrap();
            std::fs::write(&file, wrong).unwrap();
            assert!(shelf.load(&right).is_none() && !file.exists(), "{wrong:?}");
            shelf.save(right.digest, &bytes);
        }
        assert_eq!(cache.figures().rejected, 3);
    }

    fn kept(shelf: &Shelf, text: &str) -> Expected {
        let expected = Expected {
            uri: "skill://s/x".into(),
            digest: Digest::of(text.as_bytes()),
            size: text.len() as u64,
            frontmatter: None,
        };
        let bytes = verify(Untrusted::new(text.into()), &expected).unwrap();
        shelf.save(expected.digest, &bytes);
        expected
    }

    #[test]
    fn hr_82_what_is_loaded_at_once_is_checked_like_all_else() {
        // Files in memory can always be had at once.
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let cache = Cache::open(&dir.path().join("cache"), DEFAULT_CAP).unwrap();
        let shelf = cache.shelf(&"lab".parse().unwrap(), "id").unwrap();
        let right = kept(&shelf, "some bytes");
        let at_once = shelf.load_at_once(&right).map(|v| v.bytes().clone());
        assert_eq!(at_once.as_deref(), Some(&b"some bytes"[..]));
        let lie = Expected {
            size: 9,
            ..right.clone()
        };
        assert!(shelf.load_at_once(&lie).is_none());
        let (aa, name) = place(right.digest);
        let file = shelf.dir.path().join(&aa).join(&name);
        std::fs::remove_file(&file).unwrap();
        assert!(shelf.load_at_once(&right).is_none(), "it is gone");
        std::fs::write(&file, b"some byteS").unwrap();
        assert!(shelf.load_at_once(&right).is_none(), "it is another");
        std::fs::write(dir.path().join("aside"), b"some bytes").unwrap();
        std::fs::remove_file(&file).unwrap();
        std::os::unix::fs::symlink(dir.path().join("aside"), &file).unwrap();
        assert!(shelf.load_at_once(&right).is_none(), "it is elsewhere");
        std::fs::remove_dir_all(shelf.dir.path().join(&aa)).unwrap();
        std::fs::create_dir(dir.path().join("dir")).unwrap();
        std::fs::write(dir.path().join("dir").join(&name), b"some bytes").unwrap();
        std::os::unix::fs::symlink(dir.path().join("dir"), shelf.dir.path().join(&aa)).unwrap();
        assert!(
            shelf.load_at_once(&right).is_none(),
            "its folder is elsewhere"
        );
    }

    #[test]
    fn hr_89_what_was_written_before_the_count_counts_once() {
        let dir = tempfile::tempdir().unwrap();
        let open = || Cache::open(&dir.path().join("cache"), DEFAULT_CAP).unwrap();
        let label = "lab".parse().unwrap();
        kept(&open().shelf(&label, "id").unwrap(), "of an earlier run");
        let cache = open();
        kept(&cache.shelf(&label, "id").unwrap(), "of this one");
        cache.count();
        assert_eq!(cache.figures().bytes, 17 + 11);
    }

    #[test]
    fn what_is_not_kept_is_known_until_another_daemon_keeps_something() {
        let dir = tempfile::tempdir().unwrap();
        let shelf = || {
            let cache = Cache::open(&dir.path().join("cache"), DEFAULT_CAP).unwrap();
            cache.shelf(&"lab".parse().unwrap(), "id").unwrap()
        };
        let (ours, theirs) = (shelf(), shelf());
        let missing = Expected {
            digest: Digest::of(b"missing"),
            ..kept(&theirs, "first")
        };
        assert!(!ours.lacks(&missing), "nothing is known yet");
        assert!(ours.load(&missing).is_none());
        assert!(ours.lacks(&missing));
        let second = kept(&ours, "second");
        assert!(ours.lacks(&missing) && !ours.lacks(&second));
        // A clock of the file system may stand still for some milliseconds.
        let before = ours.dir.changed().unwrap();
        let mut n = 0;
        while ours.dir.changed().unwrap() == before {
            n += 1;
            kept(&theirs, &format!("third {n}"));
        }
        assert!(!ours.lacks(&missing), "it may be there by now");
    }
}
