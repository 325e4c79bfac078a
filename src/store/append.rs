//! Files that only grow: the log, the audit trail, and what servers write to stderr.
//!
//! **Invariant:** what is appended is appended at once, so that no other writer gets in between.

use super::private::{PrivateDir, Unsafe};
use crate::domain::name::Label;
use rustix::io::Errno;
use std::borrow::Cow;
use std::fs::{File, FileType, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// At most this much is kept in either of the two files of a [`Ring`].
const EACH: u64 = 1 << 20;
/// A FIFO without a reader must not hold us up, nor a terminal become ours.
const OPENED: i32 = libc::O_NONBLOCK | libc::O_NOCTTY;
/// What servers wrote to stderr.
pub const STDERR: &str = "stderr";
/// What they wrote before that.
pub const STDERR_BEFORE: &str = "stderr.1";

/// A file of the user's that lines are appended to. When it was moved or removed, the next line
/// makes it anew: whoever rotates it need tell nobody. A device, such as a terminal or `/dev/null`,
/// stays what it is.
#[derive(Debug)]
pub struct Trail {
    path: PathBuf,
    file: File,
    end: End,
    /// Beyond this size it is moved away, to a name with `.1` at the end.
    limit: Option<u64>,
    /// Its size when it could not be moved away last: that is tried again when as much came since as
    /// the limit allows.
    stayed: u64,
}

/// What [`Trail::turn`] came to.
#[derive(Debug)]
pub enum Turned {
    /// The file is the one that it was.
    Same,
    /// It is another one.
    Other,
    /// It is the one that it was, which is beyond its limit: why it could not be moved away.
    Stays(String),
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
    /// It is neither a regular file nor a character device, among others.
    pub fn open(path: &Path) -> io::Result<Self> {
        let path = std::path::absolute(path)?;
        let file = open(&path, |kind| kind.is_file() || kind.is_char_device())?;
        Ok(Self {
            end: end_of(&path),
            path,
            file,
            limit: None,
            stayed: 0,
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

    /// Opens the file that has the name now, which is made if it is missing. Without success all stays
    /// as it is.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn turn(&mut self) -> io::Result<Turned> {
        let ours = self.file.metadata()?;
        let is_there =
            |there: std::fs::Metadata| (there.dev(), there.ino()) == (ours.dev(), ours.ino());
        if !ours.is_file() {
            return Ok(Turned::Same);
        }
        if self.path.metadata().is_ok_and(is_there) {
            if self
                .limit
                .is_none_or(|limit| ours.len() < self.stayed + limit)
            {
                return Ok(Turned::Same);
            }
            let mut before = self.path.clone().into_os_string();
            before.push(".1");
            if let Err(e) = std::fs::rename(&self.path, &before) {
                self.stayed = ours.len();
                let text = format!("cannot be moved to {}: {e}", before.display());
                return Ok(Turned::Stays(text));
            }
        }
        let file = open(&self.path, FileType::is_file)?;
        (self.file, self.end, self.stayed) = (file, end_of(&self.path), 0);
        Ok(Turned::Other)
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
            .custom_flags(OPENED)
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

fn open(path: &Path, takes: impl Fn(&FileType) -> bool) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.append(true).create(true).mode(0o600);
    let file = options.custom_flags(OPENED).open(path);
    let no_file = || {
        let text = "it is no regular file or character device";
        io::Error::new(io::ErrorKind::InvalidInput, text)
    };
    match file {
        Ok(file) if takes(&file.metadata()?.file_type()) => Ok(file),
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

    #[test]
    fn a_trail_that_cannot_be_moved_away_goes_on_and_is_tried_again_after_as_much() {
        let tmp = tempfile::tempdir().unwrap();
        let (path, before) = (tmp.path().join("trail"), tmp.path().join("trail.1"));
        fs::create_dir(&before).unwrap();
        let mut trail = Trail::open(&path).unwrap().within(10);
        let mut stays = Vec::new();
        for n in 0..10 {
            if let Turned::Stays(why) = trail.turn().unwrap() {
                assert!(why.contains(&before.display().to_string()), "{why}");
                stays.push(n);
            }
            trail.append(b"1234\n").unwrap();
        }
        assert_eq!(stays, [2, 4, 6, 8]);
        assert_eq!(fs::read(&path).unwrap(), b"1234\n".repeat(10));
        fs::remove_dir(&before).unwrap();
        trail.append(b"new\n").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new\n");
        assert_eq!(fs::metadata(&before).unwrap().len(), 50);
    }

    #[test]
    fn a_device_takes_lines_stays_what_it_is_and_takes_the_place_of_no_file() {
        let tmp = tempfile::tempdir().unwrap();
        let link = tmp.path().join("link");
        std::os::unix::fs::symlink("/dev/null", &link).unwrap();
        let mut null = Trail::open(&link).unwrap().within(0);
        null.append(b"1\n").unwrap();
        fs::remove_file(&link).unwrap();
        null.append(b"2\n").unwrap();
        assert!(!link.exists(), "nothing was made in its place");
        let mut full = Trail::open(Path::new("/dev/full")).unwrap();
        let e = full.append(b"1\n").unwrap_err();
        assert_eq!(e.kind(), io::ErrorKind::StorageFull);

        let mut trail = Trail::open(&link).unwrap();
        fs::remove_file(&link).unwrap();
        std::os::unix::fs::symlink("/dev/null", &link).unwrap();
        assert!(trail.append(b"3\n").is_err());
        assert!(trail.file().metadata().unwrap().is_file());
    }
}
