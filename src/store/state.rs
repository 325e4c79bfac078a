//! The state of one server between runs: its last listing, the open windows, the user's
//! verdicts.
//!
//! A state file is one line with the digest of the rest, then JSON that names the label and the
//! identity it belongs to. It is written whole, and checked whole when loaded: a damaged,
//! truncated or swapped file counts as absent, loudly (HR-76). Damage never makes anything
//! readable: no window, no approval.
//!
//! Windows belong to a mount, so each mount point has its own journal. Verdicts belong to the
//! server: daemons that share them take turns under a lock, and change only what they changed.

use super::crash;
use super::private::{PrivateDir, Unsafe};
use crate::domain::digest::{Digest, Hasher};
use crate::domain::manifest::{Entry, SetId};
use crate::domain::name::Label;
use crate::domain::skill::{Scope, Verdict};
use crate::domain::tree::Seen;
use rustix::fs::Mode;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

const LISTING: &str = "listing.json";
const VERDICTS: &str = "verdicts.json";
const LOCK: &str = "lock";
const VERSION: u32 = 1;
/// At most this many bytes are read of a state file: what a listing may have on the wire.
const MAX_STATE: u64 = 512 << 20;

/// The state of one server.
#[derive(Debug)]
pub struct State {
    dir: PrivateDir,
    label: Label,
    identity: String,
    windows: String,
}

/// What an earlier run left.
#[derive(Debug, Default)]
pub struct Stored {
    /// The last listing; none if none was ever seen.
    pub listing: Option<StoredListing>,
    /// The entries of windows that were open when the daemon died.
    pub held: Vec<Arc<Entry>>,
    /// The user's verdicts, by URI.
    pub verdicts: Verdicts,
}

/// The last listing of a server, as an earlier run saw it.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct StoredListing {
    /// Its valid entries.
    pub entries: Vec<Arc<Entry>>,
    /// The skills that were named by their URI.
    pub named: BTreeSet<Arc<str>>,
    /// When each digest was first seen.
    pub seen: Seen,
}

/// Verdicts by the URI of the skill.
pub type Verdicts = BTreeMap<Arc<str>, Verdict>;

/// What surrounds the content of each file.
#[derive(Serialize, Deserialize)]
struct Record<T> {
    version: u32,
    label: String,
    identity: String,
    content: T,
}

/// A listing as it is loaded. Entries are read one by one, and written one by one: all of them as
/// JSON values would be many times their size.
#[derive(Deserialize)]
struct ListingContent<'a> {
    #[serde(borrow)]
    entries: Vec<&'a RawValue>,
    named: Vec<String>,
    #[serde(borrow)]
    seen: Vec<(Text<'a>, &'a str, u64)>,
}

/// Text that is a part of what it is read from, unless an escape is in it.
#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum VerdictContent {
    Approved { set: SetId, scope: Scope },
    Lapsed { set: SetId },
    Revoked,
}

/// A file, and the digest of what is written to it.
struct Hashed<'a> {
    file: &'a mut File,
    hasher: Hasher,
}

impl<'a> Hashed<'a> {
    fn of(file: &'a mut File) -> Self {
        let hasher = Hasher::default();
        Self { file, hasher }
    }
}

impl Write for Hashed<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.hasher
            .write_all(bytes.get(..written).unwrap_or_default())?;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl State {
    /// Opens `<dir>/mount-skills/v1/<label>-<identity>`, for a mount at this place.
    pub fn open(
        dir: &Path,
        label: &Label,
        identity: &str,
        mountpoint: &Path,
    ) -> Result<Self, Unsafe> {
        let root = PrivateDir::open(&dir.join("mount-skills").join("v1"))?;
        let dir = root.child(&format!("{label}-{identity}"))?;
        dir.sweep();
        let place = Digest::of(mountpoint.as_os_str().as_encoded_bytes()).hex();
        let place: String = place.chars().take(16).collect();
        let windows = format!("windows-{place}.json");
        Ok(Self {
            dir,
            label: label.clone(),
            identity: identity.to_owned(),
            windows,
        })
    }

    /// All that an earlier run left. Blocks on the disk.
    pub fn load(&self) -> Stored {
        Stored {
            listing: self.read(LISTING, decode_listing),
            held: self.read(&self.windows, decode_entries).unwrap_or_default(),
            verdicts: self.read(VERDICTS, decode_verdicts).unwrap_or_default(),
        }
    }

    /// Reads one file; none if it is not there or damaged.
    fn read<R>(
        &self,
        name: &str,
        decode: impl FnOnce(&RawValue) -> Result<R, String>,
    ) -> Option<R> {
        let bytes = match self.dir.read(name, MAX_STATE) {
            Ok(bytes) => bytes,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return None,
            Err(e) => {
                tracing::warn!("{}: {name} in the state cannot be read: {e}", self.label);
                return None;
            }
        };
        match self.open_record(&bytes).and_then(decode) {
            Ok(content) => Some(content),
            Err(why) => {
                tracing::warn!(
                    "{}: {name} in the state is damaged ({why}); ignored",
                    self.label
                );
                None
            }
        }
    }

    fn open_record<'a>(&self, bytes: &'a [u8]) -> Result<&'a RawValue, String> {
        let text = std::str::from_utf8(bytes).map_err(|e| e.to_string())?;
        let (head, body) = text.split_once('\n').ok_or("it has no digest line")?;
        if head != Digest::of(body.as_bytes()).to_string() {
            return Err("its digest differs".into());
        }
        let record: Record<&RawValue> = serde_json::from_str(body).map_err(|e| e.to_string())?;
        if record.version != VERSION {
            return Err(format!(
                "it has version {}, this program reads {VERSION}",
                record.version
            ));
        }
        if record.label != self.label.as_str() || record.identity != self.identity {
            return Err("it belongs to another server".into());
        }
        Ok(record.content)
    }

    fn write<T: Serialize>(&self, name: &str, content: T) -> io::Result<()> {
        self.dir.check().map_err(io::Error::other)?;
        let (label, identity) = (self.label.to_string(), self.identity.clone());
        let record = Record {
            version: VERSION,
            label,
            identity,
            content,
        };
        // Not put together in memory first: a listing may be large.
        self.dir.write_by(name, Mode::RUSR | Mode::WUSR, |file| {
            writeln!(file, "{}", Digest::of(b""))?;
            let mut body = BufWriter::with_capacity(1 << 16, Hashed::of(file));
            serde_json::to_writer(&mut body, &record)?;
            let Hashed { file, hasher } = body.into_inner().map_err(|e| e.into_error())?;
            crash::step("half-written", name);
            file.write_all_at(hasher.finish().to_string().as_bytes(), 0)
        })
    }

    /// Keeps a listing for the next run. Blocks on the disk.
    ///
    /// # Errors
    /// The listing that was there before stays.
    pub fn save_listing<'a>(
        &self,
        entries: &[Arc<Entry>],
        named: &[&str],
        seen: impl Iterator<Item = (&'a str, Digest, u64)> + Clone,
    ) -> io::Result<()> {
        let entries = Entries(entries);
        let seen = Times(seen);
        self.write(
            LISTING,
            Listing {
                entries,
                named,
                seen,
            },
        )
    }

    /// Journals the entries of the open windows, so that they outlive the daemon's death
    /// (HR-72); none ends them. Blocks on the disk.
    pub fn save_windows(&self, held: &[Arc<Entry>]) -> io::Result<()> {
        if held.is_empty() {
            return match self.dir.remove(&self.windows) {
                Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
                other => other,
            };
        }
        self.write(&self.windows, Entries(held))
    }

    /// Changes some verdicts, and no others that another daemon may have changed meanwhile.
    /// Blocks on the disk.
    pub fn save_verdicts(&self, changed: &Verdicts) -> io::Result<()> {
        let _turn = self.dir.lock(LOCK)?;
        let mut all: Verdicts = self.read(VERDICTS, decode_verdicts).unwrap_or_default();
        for (uri, verdict) in changed {
            if !is_late(all.get(uri), *verdict) {
                all.insert(Arc::clone(uri), *verdict);
            }
        }
        let content: BTreeMap<&str, VerdictContent> = all
            .iter()
            .map(|(uri, verdict)| {
                let content = match *verdict {
                    Verdict::Approved(set, scope) => VerdictContent::Approved { set, scope },
                    Verdict::Lapsed(set) => VerdictContent::Lapsed { set },
                    Verdict::Revoked => VerdictContent::Revoked,
                };
                (&**uri, content)
            })
            .collect();
        self.write(VERDICTS, content)?;
        // Whoever is told of a revocation must not find it undone after a power cut.
        self.dir.sync()
    }
}

/// Whether a lapse is none any more: it ends one approval, which the user has revoked or replaced
/// meanwhile by way of another daemon.
fn is_late(stored: Option<&Verdict>, now: Verdict) -> bool {
    match (stored, now) {
        (Some(Verdict::Approved(set, _)), Verdict::Lapsed(ended)) => *set != ended,
        (Some(Verdict::Revoked), Verdict::Lapsed(_)) => true,
        _ => false,
    }
}

/// Entries on their way to a file.
struct Entries<'a>(&'a [Arc<Entry>]);

impl Serialize for Entries<'_> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_seq(self.0.iter().map(|e| &**e))
    }
}

/// Times on their way to a file.
struct Times<I>(I);

impl<'a, I: Iterator<Item = (&'a str, Digest, u64)> + Clone> Serialize for Times<I> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_seq(self.0.clone())
    }
}

/// A listing on its way to a file.
#[derive(Serialize)]
struct Listing<'a, T> {
    entries: Entries<'a>,
    named: &'a [&'a str],
    seen: T,
}

fn parsed<'a, T: Deserialize<'a>>(raw: &'a RawValue) -> Result<T, String> {
    serde_json::from_str(raw.get()).map_err(|e| e.to_string())
}

fn decode_entries(raw: &RawValue) -> Result<Vec<Arc<Entry>>, String> {
    entries(parsed(raw)?)
}

fn entries(raw: Vec<&RawValue>) -> Result<Vec<Arc<Entry>>, String> {
    let entry = |raw| {
        let entry = Entry::parse(&parsed(raw)?).map_err(|d| d.reason.to_string())?;
        Ok(Arc::new(entry))
    };
    raw.into_iter().map(entry).collect()
}

fn decode_listing(raw: &RawValue) -> Result<StoredListing, String> {
    let content: ListingContent = parsed(raw)?;
    let digest = |text: &str| Digest::parse(text).map_err(|e| e.to_string());
    let seen = content.seen.into_iter();
    Ok(StoredListing {
        entries: entries(content.entries)?,
        named: content.named.into_iter().map(Into::into).collect(),
        seen: seen
            .map(|(Text(uri), d, at)| Ok((uri.into(), (digest(d)?, at))))
            .collect::<Result<_, String>>()?,
    })
}

fn decode_verdicts(raw: &RawValue) -> Result<Verdicts, String> {
    let content: BTreeMap<String, VerdictContent> = parsed(raw)?;
    let verdict = |content| match content {
        VerdictContent::Approved { set, scope } => Verdict::Approved(set, scope),
        VerdictContent::Lapsed { set } => Verdict::Lapsed(set),
        VerdictContent::Revoked => Verdict::Revoked,
    };
    Ok(content
        .into_iter()
        .map(|(uri, c)| (uri.into(), verdict(c)))
        .collect())
}

/// Removes all that is kept of a label in the state, for every identity it ever had (HR-86).
pub fn forget(dir: &Path, label: &Label) -> io::Result<u64> {
    super::private::remove_label(&dir.join("mount-skills").join("v1"), label)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn state(dir: &Path, label: &str, identity: &str) -> State {
        State::open(dir, &label.parse().unwrap(), identity, Path::new("/m")).unwrap()
    }

    fn entry() -> Arc<Entry> {
        let digest = Digest::of(b"x").to_string();
        let row = json!({"uri": "skill://s/SKILL.md", "digest": digest, "size": 1});
        let value = json!({"uri": "skill://s/SKILL.md", "resources": [row],
            "frontmatter": {"name": "s", "description": "d", "n": 1.5, "big": 123456789012345678u64}});
        Arc::new(Entry::parse(&value).unwrap())
    }

    #[test]
    fn what_was_saved_comes_back() {
        let tmp = tempfile::tempdir().unwrap();
        let s = state(tmp.path(), "a", "id");
        assert!(s.load().listing.is_none());
        let listing = StoredListing {
            entries: vec![entry()],
            named: [Arc::from("skill://s/SKILL.md")].into(),
            seen: [("skill://s/SKILL.md".into(), (Digest::of(b"x"), 7))].into(),
        };
        let seen = [("skill://s/SKILL.md", Digest::of(b"x"), 7)];
        s.save_listing(&listing.entries, &["skill://s/SKILL.md"], seen.into_iter())
            .unwrap();
        s.save_windows(&[entry()]).unwrap();
        let set = entry().set().unwrap();
        let approved = Verdict::Approved(set, Scope::ReadAndExecute);
        s.save_verdicts(&[("a".into(), approved), ("b".into(), Verdict::Lapsed(set))].into())
            .unwrap();
        s.save_verdicts(&[("b".into(), Verdict::Revoked)].into())
            .unwrap();
        let back = s.load();
        assert_eq!(back.listing, Some(listing));
        assert_eq!(back.held, [entry()]);
        assert_eq!(
            back.verdicts,
            [("a".into(), approved), ("b".into(), Verdict::Revoked)].into()
        );
        let elsewhere =
            State::open(tmp.path(), &"a".parse().unwrap(), "id", Path::new("/n")).unwrap();
        assert!(
            elsewhere.load().held.is_empty(),
            "windows belong to a mount"
        );
        s.save_windows(&[]).unwrap();
        s.save_windows(&[]).unwrap();
        assert!(s.load().held.is_empty());
        assert_eq!(forget(tmp.path(), &"a".parse().unwrap()).unwrap(), 1);
        assert!(!tmp.path().join("mount-skills/v1/a-id").exists());
    }

    #[test]
    fn hr_76_damage_never_holds_or_approves() {
        let tmp = tempfile::tempdir().unwrap();
        let s = state(tmp.path(), "a", "id");
        let set = entry().set().unwrap();
        s.save_listing(&[entry()], &[], std::iter::empty()).unwrap();
        s.save_windows(&[entry()]).unwrap();
        s.save_verdicts(&[("u".into(), Verdict::Approved(set, Scope::Read))].into())
            .unwrap();
        let dir = tmp.path().join("mount-skills/v1/a-id");
        let files: Vec<_> = std::fs::read_dir(&dir)
            .unwrap()
            .map(|e| e.unwrap().path())
            .collect();
        let other = state(tmp.path(), "b", "id");
        let empty = |s: &State| {
            let back = s.load();
            [
                back.listing.is_none(),
                back.held.is_empty(),
                back.verdicts.is_empty(),
            ]
        };
        let mut seen = 0;
        for file in files
            .iter()
            .filter(|f| f.extension().is_some_and(|e| e == "json"))
        {
            seen += 1;
            let good = std::fs::read(file).unwrap();
            let name = file.file_name().unwrap();
            let count = |e: [bool; 3]| e.iter().filter(|b| **b).count();
            for at in [0, 10, 80, good.len() / 2, good.len() - 2] {
                let mut bad = good.clone();
                bad[at] ^= 1;
                std::fs::write(file, &bad).unwrap();
                assert_eq!(count(empty(&s)), 1, "{name:?}: a flipped byte at {at}");
                std::fs::write(file, &good[..at]).unwrap();
                assert_eq!(count(empty(&s)), 1, "{name:?}: cut at {at}");
            }
            std::fs::write(file, &good).unwrap();
            assert_eq!(count(empty(&s)), 0);
            std::fs::copy(file, tmp.path().join("mount-skills/v1/b-id").join(name)).unwrap();
        }
        assert_eq!(seen, 3);
        assert_eq!(empty(&other), [true; 3], "swapped between labels");
    }
}
