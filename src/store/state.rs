//! The state of one server between runs: its last listing, and when each file was first seen.
//!
//! A state file is one line with the digest of the rest, then JSON. It is written whole, and
//! checked whole when loaded: a damaged, truncated or swapped file counts as absent, loudly
//! (HR-76); it never makes anything readable that the server does not list.

use super::private::{PrivateDir, Unsafe};
use crate::domain::digest::Digest;
use crate::domain::manifest::Entry;
use crate::domain::name::Label;
use crate::domain::tree::Seen;
use rustix::fs::Mode;
use serde::{Deserialize, Serialize};
use std::io;
use std::path::Path;
use std::sync::Arc;

const LISTING: &str = "listing.json";
const VERSION: u32 = 1;
/// At most this many bytes are read of a state file: what a listing may have on the wire.
const MAX_STATE: u64 = 512 << 20;

/// The state of one server.
#[derive(Debug)]
pub struct State {
    dir: PrivateDir,
    label: Label,
    identity: String,
}

/// The last listing of a server, as an earlier run saw it.
#[derive(Debug, Default)]
pub struct Stored {
    /// Its valid entries.
    pub entries: Vec<Arc<Entry>>,
    /// When each digest was first seen.
    pub seen: Seen,
}

#[derive(Serialize, Deserialize)]
struct Record {
    version: u32,
    label: String,
    identity: String,
    entries: Vec<serde_json::Value>,
    seen: Vec<(String, String, u64)>,
}

impl State {
    /// Opens `<dir>/mount-skills/v1/<label>-<identity>`.
    pub fn open(dir: &Path, label: &Label, identity: &str) -> Result<Self, Unsafe> {
        let root = PrivateDir::open(&dir.join("mount-skills").join("v1"))?;
        let dir = root.child(&format!("{label}-{identity}"))?;
        dir.sweep();
        Ok(Self {
            dir,
            label: label.clone(),
            identity: identity.to_owned(),
        })
    }

    /// The stored listing; none if there is none or it is damaged. Blocks on the disk.
    pub fn load(&self) -> Option<Stored> {
        let bytes = match self.dir.read(LISTING, MAX_STATE) {
            Ok(bytes) => bytes,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return None,
            Err(e) => {
                tracing::warn!("{}: the stored listing cannot be read: {e}", self.label);
                return None;
            }
        };
        match self.decode(&bytes) {
            Ok(stored) => Some(stored),
            Err(why) => {
                tracing::warn!(
                    "{}: the stored listing is damaged ({why}); ignored",
                    self.label
                );
                None
            }
        }
    }

    fn decode(&self, bytes: &[u8]) -> Result<Stored, String> {
        let text = std::str::from_utf8(bytes).map_err(|e| e.to_string())?;
        let (head, body) = text.split_once('\n').ok_or("it has no digest line")?;
        if head != Digest::of(body.as_bytes()).to_string() {
            return Err("its digest differs".into());
        }
        let record: Record = serde_json::from_str(body).map_err(|e| e.to_string())?;
        if record.version != VERSION {
            return Err(format!(
                "it has version {}, this program reads {VERSION}",
                record.version
            ));
        }
        if record.label != self.label.as_str() || record.identity != self.identity {
            return Err("it belongs to another server".into());
        }
        let entries = record
            .entries
            .iter()
            .map(|v| {
                Entry::parse(v)
                    .map(Arc::new)
                    .map_err(|d| d.reason.to_string())
            })
            .collect::<Result<_, _>>()?;
        let seen = record
            .seen
            .into_iter()
            .map(|(uri, digest, at)| {
                Ok((
                    uri.into(),
                    (Digest::parse(&digest).map_err(|e| e.to_string())?, at),
                ))
            })
            .collect::<Result<_, String>>()?;
        Ok(Stored { entries, seen })
    }

    /// Keeps a listing for the next run. Blocks on the disk.
    ///
    /// # Errors
    /// The listing that was there before stays.
    pub fn save(&self, entries: &[Arc<Entry>], seen: &Seen) -> io::Result<()> {
        self.dir.check().map_err(io::Error::other)?;
        let record = Record {
            version: VERSION,
            label: self.label.to_string(),
            identity: self.identity.clone(),
            entries: entries.iter().map(|e| e.to_json()).collect(),
            seen: seen
                .iter()
                .map(|(uri, (d, at))| (uri.to_string(), d.to_string(), *at))
                .collect(),
        };
        let body = serde_json::to_string(&record)?;
        let text = format!("{}\n{body}", Digest::of(body.as_bytes()));
        self.dir
            .write(LISTING, Mode::RUSR | Mode::WUSR, text.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn stored(dir: &Path, label: &str, identity: &str) -> State {
        State::open(dir, &label.parse().unwrap(), identity).unwrap()
    }

    fn entry() -> Arc<Entry> {
        let digest = Digest::of(b"x").to_string();
        let row = json!({"uri": "skill://s/SKILL.md", "digest": digest, "size": 1});
        let value = json!({"uri": "skill://s/SKILL.md", "resources": [row],
            "frontmatter": {"name": "s", "description": "d", "n": 1.5, "big": 123456789012345678u64}});
        Arc::new(Entry::parse(&value).unwrap())
    }

    #[test]
    fn a_listing_survives_and_damage_makes_it_absent() {
        let tmp = tempfile::tempdir().unwrap();
        let state = stored(tmp.path(), "a", "id");
        assert!(state.load().is_none());
        let seen: Seen = [("skill://s/SKILL.md".into(), (Digest::of(b"x"), 7))].into();
        state.save(&[entry()], &seen).unwrap();
        let back = state.load().unwrap();
        assert_eq!((back.entries, back.seen), (vec![entry()], seen));

        let file = tmp.path().join("mount-skills/v1/a-id/listing.json");
        let good = std::fs::read(&file).unwrap();
        for at in [0, 10, 80, good.len() / 2, good.len() - 2] {
            let mut bad = good.clone();
            bad[at] ^= 1;
            std::fs::write(&file, &bad).unwrap();
            assert!(state.load().is_none(), "a flipped byte at {at}");
            std::fs::write(&file, &good[..at]).unwrap();
            assert!(state.load().is_none(), "cut at {at}");
        }
        std::fs::write(&file, &good).unwrap();
        assert!(state.load().is_some());
        let other = stored(tmp.path(), "b", "id");
        std::fs::copy(&file, tmp.path().join("mount-skills/v1/b-id/listing.json")).unwrap();
        assert!(other.load().is_none(), "swapped between labels");
    }
}
