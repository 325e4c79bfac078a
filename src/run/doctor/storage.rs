//! What is kept on disk, and the sockets: whether it is this user's alone, and whether it finds
//! room.
//!
//! A mount goes on without cache and state, so what is wrong with them is a warning.

use super::{DISK_PATIENCE, advice, standing, within};
use crate::config::Settings;
use crate::domain::finding::{Finding, Fix};
use crate::domain::text::word;
use crate::fuse::machine::remote;
use crate::run::{Dirs, Failure, mount};
use crate::store::{PrivateDir, Unsafe};
use rustix::fs::Access;
use std::io;
use std::path::{Path, PathBuf};

/// Less room than this is little, in bytes: for the cache, and for the state.
const LITTLE: (u64, u64) = (64 << 20, 4 << 20);

/// Whether this user can write in a directory, or make it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Entry {
    Open,
    /// The file system is read-only.
    Frozen,
    /// The one that is to hold it belongs to somebody else.
    Closed,
}

/// A directory as it was seen.
struct Seen {
    what: &'static str,
    path: PathBuf,
    /// What is wrong with owners and modes.
    faults: Vec<Unsafe>,
    /// The bytes that are left, and how many are little; none if nobody could say.
    room: Option<(u64, u64)>,
    /// Whether anything can be written.
    entry: Entry,
    /// The kind of file system, if other machines or programs stand for it.
    remote: Option<&'static str>,
}

impl Seen {
    fn look(what: &'static str, path: PathBuf, little: u64) -> Self {
        let standing = standing(&path);
        let stat = rustix::fs::statvfs(&standing).ok();
        Self {
            what,
            faults: PrivateDir::audit(&path),
            room: stat
                .as_ref()
                .map(|s| (s.f_bavail.saturating_mul(s.f_frsize), little)),
            entry: match rustix::fs::access(&standing, Access::WRITE_OK | Access::EXEC_OK) {
                Ok(()) => Entry::Open,
                Err(e) if e.kind() == io::ErrorKind::ReadOnlyFilesystem => Entry::Frozen,
                Err(_) => Entry::Closed,
            },
            remote: remote(&standing),
            path,
        }
    }
}

/// Cache, state and sockets.
pub(super) fn findings(dirs: &Dirs, settings: &Settings) -> Vec<Finding> {
    let kept = match mount::kept_in(settings, &settings.mountpoint) {
        Ok(kept) => kept,
        Err(e) => return vec![misplaced(&e)],
    };
    if kept.cache.is_none() && kept.state.is_none() {
        return vec![Finding::warning(
            "storage-none",
            "cache and state",
            "there is no home directory, so nothing is kept: approvals end with the mount",
            Fix::Do("set HOME, or XDG_CACHE_HOME and XDG_STATE_HOME".into()),
        )];
    }
    let v1 = |dir: PathBuf| dir.join("mount-skills").join("v1");
    let asked = [
        kept.cache.map(|dir| ("cache", v1(dir), LITTLE.0)),
        kept.state.map(|dir| ("state", v1(dir), LITTLE.1)),
        Some(("sockets", dirs.control(), 0)),
    ];
    let look = |(what, path, little): (&'static str, PathBuf, u64)| {
        let asked = path.clone();
        let seen = within(DISK_PATIENCE, move || Seen::look(what, asked, little));
        seen.map_or_else(|| vec![silent(what, &path)], |seen| judge(&seen))
    };
    asked.into_iter().flatten().flat_map(look).collect()
}

/// A disk that does not answer.
fn silent(what: &str, path: &Path) -> Finding {
    Finding::warning(
        "storage-silent",
        what,
        format!(
            "{}: the disk does not answer, so a mount may hang at its start",
            path.display()
        ),
        Fix::Run(format!("df {}", word(&path.display().to_string()))),
    )
}

/// A place that a mount refuses.
fn misplaced(e: &Failure) -> Finding {
    let (text, fix) = advice(&e.to_string());
    let fix =
        fix.unwrap_or_else(|| "choose another place, with --cache-dir or XDG_STATE_HOME".into());
    Finding::error("storage-misplaced", "cache and state", text, Fix::Do(fix))
}

fn judge(seen: &Seen) -> Vec<Finding> {
    let (what, path) = (seen.what, seen.path.display());
    let mut found: Vec<Finding> = seen
        .faults
        .iter()
        .map(|fault| unsafe_one(what, fault))
        .collect();
    let elsewhere = |id, why: &str| {
        let fix = "choose another place, with XDG_CACHE_HOME, XDG_STATE_HOME and XDG_RUNTIME_DIR";
        Finding::warning(id, what, format!("{path}: {why}"), Fix::Do(fix.into()))
    };
    match seen.room {
        _ if !found.is_empty() => {}
        _ if seen.entry == Entry::Frozen => found.push(elsewhere(
            "storage-frozen",
            "the file system is read-only, so nothing is kept",
        )),
        _ if seen.entry == Entry::Closed => found.push(elsewhere(
            "storage-closed",
            "this user may not write there, so nothing is kept",
        )),
        Some((left, little)) if left < little => found.push(Finding::warning(
            "storage-full",
            what,
            format!(
                "{path}: {} MiB are left, and what finds no room is not kept",
                left >> 20
            ),
            match what {
                "cache" => Fix::Run("mount-skills cache prune".into()),
                _ => Fix::Run(format!(
                    "df {}",
                    word(&standing(&seen.path).display().to_string())
                )),
            },
        )),
        _ => {}
    }
    if let Some(kind) = seen.remote.filter(|_| what != "sockets") {
        found.push(Finding::note(
            "storage-remote",
            what,
            format!("{path}: on {kind}, which may be slow, and may be gone while it is needed"),
        ));
    }
    if found.is_empty() {
        let text = match (seen.path.exists(), seen.room) {
            (false, _) => format!("{path}: not there yet, it will be made"),
            (true, Some((left, _))) if what != "sockets" => {
                format!("{path}: {} MiB left", left >> 20)
            }
            (true, _) => path.to_string(),
        };
        found.push(Finding::ok("storage", what, text));
    }
    found
}

fn unsafe_one(what: &str, fault: &Unsafe) -> Finding {
    let unused = "so it is not used";
    let of = |path: &str| word(path);
    match fault {
        Unsafe::Owner { path, owner, me } => Finding::warning(
            "storage-owner",
            what,
            format!("{path} belongs to uid {owner}, not to uid {me}, {unused}"),
            match (owner, me) {
                (0, 1..) => Fix::Run(format!("sudo chown -R {me} {}", of(path))),
                // Of another user it may be the home that is still named.
                _ => Fix::Do(
                    "set HOME and XDG_CACHE_HOME, XDG_STATE_HOME, XDG_RUNTIME_DIR to places of this user"
                        .into(),
                ),
            },
        ),
        Unsafe::Mode { path, mode } => Finding::warning(
            "storage-mode",
            what,
            format!("{path} has mode {mode:04o}, it must be 0700, {unused}"),
            Fix::Run(format!("chmod 0700 {}", of(path))),
        ),
        Unsafe::File { path, mode } => Finding::warning(
            "storage-file-mode",
            what,
            format!("{path} has mode {mode:04o}, which lets others reach it"),
            Fix::Run(format!("chmod go= {}", of(path))),
        ),
        Unsafe::Io { path, source } => Finding::warning(
            "storage-unusable",
            what,
            format!("{path}: {source}, {unused}"),
            Fix::Run(format!("ls -ld {}", of(path))),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::finding::Severity;
    use std::os::unix::fs::PermissionsExt;

    fn seen(what: &'static str, path: &Path) -> Seen {
        Seen {
            what,
            path: path.to_owned(),
            faults: Vec::new(),
            room: Some((1 << 30, LITTLE.0)),
            entry: Entry::Open,
            remote: None,
        }
    }

    #[test]
    fn c_56_what_others_reach_is_found_with_its_command_and_nothing_is_made() {
        let dir = tempfile::tempdir().unwrap();
        let v1 = dir.path().join("v1");
        assert!(PrivateDir::audit(&v1).is_empty());
        assert!(!v1.exists());
        let root = PrivateDir::open(&v1).unwrap();
        let shelf = root.child("docs-0123").unwrap();
        shelf
            .write_blob(&shelf, "f", rustix::fs::Mode::RUSR, b"x")
            .unwrap();
        assert!(PrivateDir::audit(&v1).is_empty());
        let mode = |path: &Path, mode| {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        };
        mode(&v1.join("docs-0123/f"), 0o644);
        let faults = PrivateDir::audit(&v1);
        assert_eq!(faults.len(), 1, "{faults:?}");
        let found = unsafe_one("cache", &faults[0]);
        assert_eq!(found.id, "storage-file-mode");
        mode(&v1.join("docs-0123"), 0o755);
        let found = unsafe_one("cache", &PrivateDir::audit(&v1)[0]);
        let path = v1.join("docs-0123").display().to_string();
        assert_eq!(found.fix, Some(Fix::Run(format!("chmod 0700 {path}"))));
        assert_eq!(found.severity, Severity::Warning);
    }

    #[test]
    fn c_56_only_what_root_left_behind_is_taken_over() {
        let fix = |owner, me| {
            let path = "/h/.cache/v 1".into();
            unsafe_one("cache", &Unsafe::Owner { path, owner, me }).fix
        };
        let run = "sudo chown -R 1000 '/h/.cache/v 1'";
        assert_eq!(fix(0, 1000), Some(Fix::Run(run.into())));
        for (owner, me) in [(1001, 1000), (1000, 0)] {
            let fix = fix(owner, me);
            assert!(
                matches!(&fix, Some(Fix::Do(text)) if text.starts_with("set HOME")),
                "{fix:?}"
            );
        }
    }

    #[test]
    fn c_58_a_full_a_frozen_and_a_remote_disk_are_told() {
        let path = Path::new("/nowhere/v1");
        let ids = |seen: &Seen| judge(seen).iter().map(|f| f.id).collect::<Vec<_>>();
        assert_eq!(ids(&seen("cache", path)), ["storage"]);
        let full = Seen {
            room: Some((1, 2)),
            ..seen("cache", path)
        };
        assert_eq!(ids(&full), ["storage-full"]);
        assert_eq!(
            judge(&full)[0].fix,
            Some(Fix::Run("mount-skills cache prune".into()))
        );
        for (entry, id) in [
            (Entry::Frozen, "storage-frozen"),
            (Entry::Closed, "storage-closed"),
        ] {
            let shut = Seen {
                entry,
                ..seen("state", path)
            };
            assert_eq!(ids(&shut), [id]);
        }
        let remote = Seen {
            remote: Some("NFS"),
            ..seen("state", path)
        };
        assert_eq!(judge(&remote)[0].severity, Severity::Note);
    }
}
