//! Files that only grow: the audit trail, and what servers write to stderr.
//!
//! **Invariant:** what is appended is appended at once, so that no other writer gets in between.

use super::private::{PrivateDir, Unsafe};
use crate::domain::name::Label;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// At most this much is kept in either of the two files of a [`Ring`].
const EACH: u64 = 1 << 20;
/// What servers wrote to stderr.
pub const STDERR: &str = "stderr";
/// What they wrote before that.
pub const STDERR_BEFORE: &str = "stderr.1";

/// A file of the user's that lines are appended to. When it was moved or removed, the next line
/// makes it anew: whoever rotates it need tell nobody.
#[derive(Debug)]
pub struct Trail {
    path: PathBuf,
    file: File,
}

impl Trail {
    /// Opens it, making it with mode 0600 where it is missing.
    ///
    /// # Errors
    /// It is no regular file, among others.
    pub fn open(path: &Path) -> io::Result<Self> {
        let path = std::path::absolute(path)?;
        let file = open(&path)?;
        Ok(Self { path, file })
    }

    /// Appends a line.
    ///
    /// # Errors
    /// It is not in the file, or not all of it.
    pub fn append(&mut self, line: &[u8]) -> io::Result<()> {
        if !self.is_in_place() {
            self.file = open(&self.path)?;
        }
        match self.file.write(line)? {
            n if n == line.len() => Ok(()),
            _ => Err(io::ErrorKind::WriteZero.into()),
        }
    }

    fn is_in_place(&self) -> bool {
        let (Ok(there), Ok(ours)) = (self.path.metadata(), self.file.metadata()) else {
            return false;
        };
        (there.dev(), there.ino()) == (ours.dev(), ours.ino())
    }
}

fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.append(true).create(true).mode(0o600);
    // A FIFO without a reader must not hold us up.
    let file = options.custom_flags(libc::O_NONBLOCK).open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "it is no regular file",
        )),
    }
}

/// The last one to two MiB of what a server wrote to stderr, over all its runs and mounts. It is
/// the server's word, as it came.
#[derive(Debug)]
pub struct Ring {
    dir: PrivateDir,
}

impl Ring {
    /// Opens that in `<dir>/mount-skills/v1/<label>-<identity>`.
    pub fn open(dir: &Path, label: &Label, identity: &str) -> Result<Self, Unsafe> {
        let root = PrivateDir::open(&dir.join("mount-skills").join("v1"))?;
        let dir = root.child(&format!("{label}-{identity}"))?;
        Ok(Self { dir })
    }

    /// Appends what came. Blocks on the disk.
    pub fn append(&self, bytes: &[u8]) -> io::Result<()> {
        let (mut file, size) = self.dir.append(STDERR)?;
        if size > 0 && size + bytes.len() as u64 > EACH {
            self.dir.rename(STDERR, STDERR_BEFORE)?;
            (file, _) = self.dir.append(STDERR)?;
        }
        file.write_all(bytes)
    }

    /// The directories of a label in which something is kept, the one that was written to last
    /// first.
    pub fn of_label(dir: &Path, label: &Label) -> Vec<PathBuf> {
        let root = dir.join("mount-skills").join("v1");
        let Ok(root) = PrivateDir::open(&root) else {
            return Vec::new();
        };
        let mut found = Vec::new();
        for (name, _) in root.names().unwrap_or_default() {
            let identity = name.strip_prefix(label.as_str());
            let identity = identity.and_then(|rest| rest.strip_prefix('-'));
            // Labels may hold hyphens: only what follows the label as an identity is one.
            let is_identity = |i: &str| i.bytes().all(|b| b.is_ascii_alphanumeric());
            if !identity.is_some_and(is_identity) {
                continue;
            }
            let Ok(dir) = root.existing(&name) else {
                continue;
            };
            if let Ok((_, stat)) = dir.open_file(STDERR) {
                found.push(((stat.st_mtime, stat.st_mtime_nsec), dir.path().to_owned()));
            }
        }
        found.sort();
        found.into_iter().rev().map(|(_, path)| path).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_ring_keeps_the_end_in_two_private_files() {
        let tmp = tempfile::tempdir().unwrap();
        let label: Label = "a".parse().unwrap();
        let ring = Ring::open(tmp.path(), &label, "0123").unwrap();
        let (chunk, chunks) = (vec![b'x'; 64 * 1024], 100);
        for n in 0..chunks {
            ring.append(&chunk).unwrap();
            ring.append(format!("{n}\n").as_bytes()).unwrap();
        }
        let dirs = Ring::of_label(tmp.path(), &label);
        let [dir] = dirs.as_slice() else {
            panic!("{dirs:?}")
        };
        let sizes = [STDERR, STDERR_BEFORE].map(|name| {
            let meta = fs::metadata(dir.join(name)).unwrap();
            assert_eq!(meta.permissions().mode() & 0o777, 0o600);
            meta.len()
        });
        assert!(sizes.iter().all(|s| (1..=EACH).contains(s)), "{sizes:?}");
        assert!(fs::read(dir.join(STDERR)).unwrap().ends_with(b"x99\n"));
        assert!(Ring::of_label(tmp.path(), &"b".parse().unwrap()).is_empty());
    }

    #[test]
    fn a_trail_that_was_moved_away_is_made_anew() {
        let tmp = tempfile::tempdir().unwrap();
        let path = tmp.path().join("trail");
        let mut trail = Trail::open(&path).unwrap();
        trail.append(b"1\n").unwrap();
        fs::rename(&path, tmp.path().join("old")).unwrap();
        trail.append(b"2\n").unwrap();
        fs::remove_file(&path).unwrap();
        trail.append(b"3\n").unwrap();
        assert_eq!(fs::read(tmp.path().join("old")).unwrap(), b"1\n");
        assert_eq!(fs::read(&path).unwrap(), b"3\n");
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert!(Trail::open(tmp.path()).is_err(), "a directory");
    }
}
