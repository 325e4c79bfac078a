//! Files that only grow: the log, the audit trail, and what servers write to stderr.
//!
//! **Invariant:** what is appended is appended at once, so that no other writer gets in between.

use super::private::{PrivateDir, Unsafe};
use crate::domain::name::Label;
use rustix::io::Errno;
use std::borrow::Cow;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
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
    end: End,
    /// Beyond this size it is moved away, to a name with `.1` at the end.
    limit: Option<u64>,
}

/// What the file ends with, as far as we know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// A whole line.
    Line,
    /// The begin of a line, for the rest of which there was no room.
    Begun,
}

impl Trail {
    /// Opens it, making it with mode 0600 where it is missing.
    ///
    /// # Errors
    /// It is no regular file, among others.
    pub fn open(path: &Path) -> io::Result<Self> {
        let path = std::path::absolute(path)?;
        let file = open(&path)?;
        Ok(Self {
            end: end_of(&path),
            path,
            file,
            limit: None,
        })
    }

    /// With a size beyond which it is moved away, in place of what was moved there before.
    #[must_use]
    pub fn within(mut self, limit: u64) -> Self {
        self.limit = Some(limit);
        self
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The file that is appended to.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Appends a line with its line feed, to the file that has the name now.
    ///
    /// # Errors
    /// It is not in the file, or not all of it.
    pub fn append(&mut self, line: &[u8]) -> io::Result<()> {
        self.turn()?;
        self.write(line)
    }

    /// Opens the file that has the name now, which is made if it is missing; whether that is another
    /// one. Without success all stays as it is.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn turn(&mut self) -> io::Result<bool> {
        let ours = self.file.metadata()?;
        let is_there =
            |there: std::fs::Metadata| (there.dev(), there.ino()) == (ours.dev(), ours.ino());
        if self.path.metadata().is_ok_and(is_there) {
            if self.limit.is_none_or(|limit| ours.len() < limit) {
                return Ok(false);
            }
            let mut before = self.path.clone().into_os_string();
            before.push(".1");
            std::fs::rename(&self.path, before)?;
        }
        (self.file, self.end) = (open(&self.path)?, end_of(&self.path));
        Ok(true)
    }

    /// Appends a line with its line feed, to the file that is open. After a line that was cut off it
    /// begins a new one.
    ///
    /// # Errors
    /// It is not in the file, or not all of it.
    pub fn write(&mut self, line: &[u8]) -> io::Result<()> {
        let whole = match self.end {
            End::Line => Cow::Borrowed(line),
            End::Begun => Cow::Owned([b"\n", line].concat()),
        };
        match self.file.write(&whole)? {
            n if n == whole.len() => {
                self.end = End::Line;
                Ok(())
            }
            _ => {
                self.end = End::Begun;
                let text = "there was room for a part of a line only";
                Err(io::Error::new(io::ErrorKind::StorageFull, text))
            }
        }
    }
}

/// What a file ends with, that an earlier process may have left.
fn end_of(path: &Path) -> End {
    let last = || {
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NONBLOCK)
            .open(path)?;
        let mut last = *b"\n";
        if let Some(before) = file.metadata()?.len().checked_sub(1) {
            file.read_at(&mut last, before)?;
        }
        io::Result::Ok(last)
    };
    match last() {
        Ok([b'\n']) | Err(_) => End::Line,
        Ok(_) => End::Begun,
    }
}

fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.append(true).create(true).mode(0o600);
    // A FIFO without a reader must not hold us up.
    let file = options.custom_flags(libc::O_NONBLOCK).open(path);
    let no_file = || io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file");
    match file {
        Ok(file) if file.metadata()?.is_file() => Ok(file),
        Err(e) if e.raw_os_error() != Some(Errno::NXIO.raw_os_error()) => Err(e),
        Ok(_) | Err(_) => Err(no_file()),
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
    ///
    /// # Errors
    /// It cannot be told; what is not there is no error.
    pub fn of_label(dir: &Path, label: &Label) -> Result<Vec<PathBuf>, Unsafe> {
        let io = |path: &Path, source| Unsafe::Io {
            path: path.display().to_string(),
            source,
        };
        let root = PrivateDir::open(&dir.join("mount-skills").join("v1"))?;
        let mut found = Vec::new();
        for (name, _) in root.names().map_err(|e| io(root.path(), e))? {
            let identity = name.strip_prefix(label.as_str());
            let identity = identity.and_then(|rest| rest.strip_prefix('-'));
            // Labels may hold hyphens: only what follows the label as an identity is one.
            let is_identity = |i: &str| i.bytes().all(|b| b.is_ascii_alphanumeric());
            if !identity.is_some_and(is_identity) {
                continue;
            }
            let dir = root.existing(&name)?;
            // While one is turned over there is only the one before it.
            for file in [STDERR, STDERR_BEFORE] {
                match dir.open_file(file) {
                    Ok((_, stat)) => {
                        let written = (stat.st_mtime, stat.st_mtime_nsec);
                        found.push((written, dir.path().to_owned()));
                        break;
                    }
                    Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                    Err(e) => return Err(io(&dir.path().join(file), e)),
                }
            }
        }
        found.sort();
        Ok(found.into_iter().rev().map(|(_, path)| path).collect())
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
        let dirs = Ring::of_label(tmp.path(), &label).unwrap();
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
        let other = Ring::of_label(tmp.path(), &"b".parse().unwrap());
        assert!(other.unwrap().is_empty());
        fs::remove_file(dir.join(STDERR)).unwrap();
        assert_eq!(Ring::of_label(tmp.path(), &label).unwrap().len(), 1);
        fs::create_dir(dir.join(STDERR)).unwrap();
        let unclear = Ring::of_label(tmp.path(), &label).unwrap_err();
        assert!(unclear.to_string().contains("/stderr"), "{unclear}");
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

    #[test]
    fn a_line_after_one_that_was_cut_off_begins_anew_and_a_limit_moves_a_trail_away() {
        let tmp = tempfile::tempdir().unwrap();
        let path = tmp.path().join("trail");
        fs::write(&path, "cut of").unwrap();
        let mut trail = Trail::open(&path).unwrap();
        trail.append(b"1\n").unwrap();
        trail.append(b"2\n").unwrap();
        trail.end = End::Begun;
        trail.append(b"3\n").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"cut of\n1\n2\n\n3\n");

        let mut trail = Trail::open(&path).unwrap().within(15);
        trail.append(b"4\n").unwrap();
        assert!(!tmp.path().join("trail.1").exists());
        trail.append(b"5\n").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"5\n");
        let before = fs::read(tmp.path().join("trail.1")).unwrap();
        assert!(before.ends_with(b"3\n4\n"), "{before:?}");
    }
}
