//! Directories and files that only this user can reach.

use super::crash;
use crate::domain::name::Label;
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::{Errno, ReadWriteFlags};
use std::fs::File;
use std::io::{self, IoSliceMut, Read};
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

const DIR_MODE: Mode = Mode::RWXU;
/// At most this much is told of what is wrong below one directory.
const MAX_FOUND: usize = 8;
static NEXT_TEMP: AtomicU64 = AtomicU64::new(0);

/// Why a directory is not used.
#[derive(Debug, thiserror::Error)]
pub enum Unsafe {
    /// It belongs to somebody else.
    #[error("{path} belongs to uid {owner}, not to uid {me}; remove it or choose another place")]
    Owner {
        /// The directory.
        path: String,
        /// Whose it is.
        owner: u32,
        /// Who we are.
        me: u32,
    },
    /// Others may enter or change it.
    #[error("{path} has mode {mode:04o}, it must be 0700; run: chmod 0700 {path}")]
    Mode {
        /// The directory.
        path: String,
        /// Its mode bits.
        mode: u32,
    },
    /// Others may read or change a file.
    #[error("{path} has mode {mode:04o}, others must not reach it; run: chmod go= {path}")]
    File {
        /// The file.
        path: String,
        /// Its mode bits.
        mode: u32,
    },
    /// It cannot be made or opened.
    #[error("{path}: {source}")]
    Io {
        /// The directory.
        path: String,
        /// Why.
        source: io::Error,
    },
}

/// What a file system keeps its files in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Medium {
    /// Something that may let a read wait.
    Disk,
    /// Memory, and nothing else: a read there is never refused for lack of waiting.
    Memory,
    /// Another machine or program, of which any question may wait.
    Remote,
}

/// See statfs(2).
const TMPFS: u32 = 0x0102_1994;
/// NFS, SMB in three forms, FUSE, AFS, 9P, Ceph, Lustre.
const REMOTE: [u32; 9] = [
    0x6969,
    0x517b,
    0xff53_4d42,
    0xfe53_4d42,
    0x6573_5546,
    0x5346_414f,
    0x0102_1997,
    0x00c3_6400,
    0x0bd0_0bd0,
];

/// A directory of mode 0700 that belongs to us, held open.
#[derive(Debug)]
pub struct PrivateDir {
    fd: OwnedFd,
    path: PathBuf,
}

impl PrivateDir {
    /// Opens a directory, making it and all above it where they are missing.
    pub fn open(path: &Path) -> Result<Self, Unsafe> {
        let io = |source| Unsafe::Io {
            path: path.display().to_string(),
            source,
        };
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(path)
            .map_err(io)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::open(path, flags, Mode::empty()).map_err(|e| io(e.into()))?;
        let dir = Self {
            fd,
            path: path.to_owned(),
        };
        dir.check()?;
        Ok(dir)
    }

    /// What is not ours alone of a directory that is there, and of all below it: nothing is made or
    /// changed. Of a directory that is not safe, what is below it is not looked at.
    pub fn audit(path: &Path) -> Vec<Unsafe> {
        let mut found = Vec::new();
        if path.symlink_metadata().is_ok() {
            match Self::open(path) {
                Ok(dir) => dir.audit_below(&mut found),
                Err(e) => found.push(e),
            }
        }
        found
    }

    fn audit_below(&self, found: &mut Vec<Unsafe>) {
        for (name, kind) in self.names().unwrap_or_default() {
            if found.len() >= MAX_FOUND {
                return;
            }
            if kind == FileType::Directory {
                match self.existing(&name) {
                    Ok(dir) => dir.audit_below(found),
                    Err(e) => found.push(e),
                }
                continue;
            }
            let stat = rustix::fs::statat(&self.fd, &*name, AtFlags::SYMLINK_NOFOLLOW);
            let path = || self.path.join(&name).display().to_string();
            let me = rustix::process::geteuid().as_raw();
            match stat {
                // It went while we looked.
                Err(_) => {}
                Ok(stat) if stat.st_uid != me => found.push(Unsafe::Owner {
                    path: path(),
                    owner: stat.st_uid,
                    me,
                }),
                Ok(stat) if kind == FileType::RegularFile && stat.st_mode & 0o077 != 0 => {
                    found.push(Unsafe::File {
                        path: path(),
                        mode: stat.st_mode & 0o7777,
                    });
                }
                Ok(_) => {}
            }
        }
    }

    /// Opens a directory in this one by a name of our own, making it where it is missing.
    pub fn child(&self, name: &str) -> Result<Self, Unsafe> {
        match rustix::fs::mkdirat(&self.fd, name, DIR_MODE) {
            Ok(()) => crash::step("made-directory", name),
            Err(Errno::EXIST) => {}
            Err(e) => return Err(self.io(name, e)),
        }
        self.existing(name)
    }

    /// Opens a directory in this one that is there already.
    pub fn existing(&self, name: &str) -> Result<Self, Unsafe> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(&self.fd, name, flags, Mode::empty())
            .map_err(|e| self.io(name, e))?;
        let dir = Self {
            fd,
            path: self.path.join(name),
        };
        dir.check()?;
        Ok(dir)
    }

    fn io(&self, name: &str, e: Errno) -> Unsafe {
        Unsafe::Io {
            path: self.path.join(name).display().to_string(),
            source: e.into(),
        }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether it is still ours alone (HR-83).
    pub fn check(&self) -> Result<(), Unsafe> {
        let path = || self.path.display().to_string();
        let stat = rustix::fs::fstat(&self.fd).map_err(|e| Unsafe::Io {
            path: path(),
            source: e.into(),
        })?;
        let me = rustix::process::geteuid().as_raw();
        if stat.st_uid != me {
            return Err(Unsafe::Owner {
                path: path(),
                owner: stat.st_uid,
                me,
            });
        }
        match stat.st_mode & 0o7777 {
            mode if mode & 0o077 != 0 => Err(Unsafe::Mode { path: path(), mode }),
            _ => Ok(()),
        }
    }

    /// The names in it, of our own making; `.` and `..` left out.
    pub fn names(&self) -> io::Result<Vec<(String, FileType)>> {
        let mut out = Vec::new();
        for entry in Dir::read_from(&self.fd)? {
            let entry = entry?;
            match entry.file_name().to_str() {
                Ok("." | "..") | Err(_) => {}
                Ok(name) => out.push((name.to_owned(), entry.file_type())),
            }
        }
        Ok(out)
    }

    /// Opens a regular file that belongs to us. Never waits on a FIFO, never follows a link.
    ///
    /// # Errors
    /// `NotFound` if it is not there, `InvalidData` if something else bears the name.
    pub fn open_file(&self, name: &str) -> io::Result<(File, rustix::fs::Stat)> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        self.open_ours(name, flags, Mode::empty())
    }

    fn open_ours(
        &self,
        name: &str,
        flags: OFlags,
        mode: Mode,
    ) -> io::Result<(File, rustix::fs::Stat)> {
        let fd = match rustix::fs::openat(&self.fd, name, flags, mode) {
            Err(Errno::LOOP | Errno::NXIO) => return Err(planted()),
            other => other?,
        };
        let stat = rustix::fs::fstat(&fd)?;
        match is_ours(&stat) {
            true => Ok((File::from(fd), stat)),
            false => Err(planted()),
        }
    }

    /// Reads a whole file of at most `max` bytes.
    ///
    /// # Errors
    /// As [`PrivateDir::open_file`]; `InvalidData` as well if it is larger.
    pub fn read(&self, name: &str, max: u64) -> io::Result<Vec<u8>> {
        let (file, stat) = self.open_file(name)?;
        let mut bytes = Vec::with_capacity(usize::try_from(stat.st_size).unwrap_or(0).min(1 << 24));
        file.take(max.saturating_add(1)).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > max {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "larger than it may be",
            ));
        }
        Ok(bytes)
    }

    /// Reads a whole file of exactly this size, if that takes no waiting: its directories, itself
    /// and its content are in the kernel's memory. `path` may lead through directories below. With
    /// the content comes the time of its modification, in seconds.
    pub fn read_at_once(&self, path: &str, size: usize, medium: Medium) -> Option<(Vec<u8>, i64)> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let resolve = ResolveFlags::CACHED | ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        let fd = rustix::fs::openat2(&self.fd, path, flags, Mode::empty(), resolve).ok()?;
        let whole = |stat: &rustix::fs::Stat| usize::try_from(stat.st_size) == Ok(size);
        let stat = rustix::fs::fstat(&fd).ok();
        let stat = stat.filter(|stat| is_ours(stat) && whole(stat))?;
        let mut bytes = vec![0; size];
        let buffer = &mut [IoSliceMut::new(&mut bytes)];
        let read = match medium {
            Medium::Remote => return None,
            Medium::Disk => rustix::io::preadv2(&fd, buffer, 0, ReadWriteFlags::NOWAIT),
            Medium::Memory => rustix::io::preadv(&fd, buffer, 0),
        };
        (read == Ok(size)).then_some((bytes, stat.st_mtime))
    }

    /// Where its files are.
    pub fn medium(&self) -> Medium {
        match rustix::fs::fstatfs(&self.fd).map(|stat| stat.f_type as u32) {
            Ok(TMPFS) => Medium::Memory,
            Ok(kind) if REMOTE.contains(&kind) => Medium::Remote,
            Ok(_) => Medium::Disk,
            Err(_) => Medium::Remote,
        }
    }

    /// When a name in it was made, renamed or removed last; never waits.
    pub fn changed(&self) -> io::Result<(i64, u64)> {
        let stat = rustix::fs::fstat(&self.fd)?;
        Ok((stat.st_mtime, stat.st_mtime_nsec))
    }

    /// Opens a file to append to, making it where it is missing; how long it is. Never waits on a
    /// FIFO, never follows a link.
    ///
    /// # Errors
    /// `InvalidData` if something else bears the name.
    pub fn append(&self, name: &str) -> io::Result<(File, u64)> {
        let flags = OFlags::WRONLY
            | OFlags::APPEND
            | OFlags::CREATE
            | OFlags::NOFOLLOW
            | OFlags::NONBLOCK
            | OFlags::CLOEXEC;
        let (file, stat) = self.open_ours(name, flags, Mode::RUSR | Mode::WUSR)?;
        Ok((file, u64::try_from(stat.st_size).unwrap_or(0)))
    }

    /// Gives a file in it another name, in place of what had that.
    pub fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        Ok(rustix::fs::renameat(&self.fd, from, &self.fd, to)?)
    }

    /// Writes a file whose name is the digest of its content: in this directory, and renamed into
    /// `place`. After a power cut it may be damaged, which whoever loads it finds out; waiting for
    /// the disk for each of ten thousand files would buy nothing.
    pub fn write_blob(&self, place: &Self, name: &str, mode: Mode, bytes: &[u8]) -> io::Result<()> {
        self.place(place, name, mode, |file| {
            crash::write_all(file, name, bytes)
        })
    }

    /// Writes a file beside its place and renames it there, so that it is whole or not at all, also
    /// after a power cut.
    pub fn write(
        &self,
        name: &str,
        mode: Mode,
        content: impl FnOnce(&mut File) -> io::Result<()>,
    ) -> io::Result<()> {
        self.place(self, name, mode, |file| {
            content(file)?;
            crash::step("written", name);
            // Before the rename: the name must not stand for a half-written file.
            file.sync_all()
        })
    }

    fn place(
        &self,
        place: &Self,
        name: &str,
        mode: Mode,
        content: impl FnOnce(&mut File) -> io::Result<()>,
    ) -> io::Result<()> {
        let n = NEXT_TEMP.fetch_add(1, Ordering::Relaxed);
        let temp = format!("{TEMP}{}-{n}", std::process::id());
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let write = || -> io::Result<()> {
            let mut file = File::from(rustix::fs::openat(&self.fd, &*temp, flags, mode)?);
            crash::step("made", name);
            content(&mut file)?;
            crash::step("complete", name);
            rustix::fs::renameat(&self.fd, &*temp, &place.fd, name)?;
            crash::step("renamed", name);
            Ok(())
        };
        write().inspect_err(|_| {
            let _ = self.remove(&temp);
        })
    }

    /// Makes what was renamed here outlive a crash of the machine as well. A file system that has no
    /// such thing for directories has done what it can.
    pub fn sync(&self) -> io::Result<()> {
        match rustix::fs::fsync(&self.fd) {
            Ok(()) | Err(Errno::INVAL) => {}
            Err(e) => return Err(e.into()),
        }
        crash::step("synced", "directory");
        Ok(())
    }

    /// Removes a file, or an empty directory, by name.
    pub fn remove(&self, name: &str) -> io::Result<()> {
        crash::step("to-be-removed", name);
        match rustix::fs::unlinkat(&self.fd, name, AtFlags::empty()) {
            Err(Errno::ISDIR) => rustix::fs::unlinkat(&self.fd, name, AtFlags::REMOVEDIR)?,
            other => other?,
        }
        crash::step("removed", name);
        Ok(())
    }

    /// Takes turns with other daemons: waits for an exclusive lock on a file in this directory,
    /// which is held until the result is dropped.
    pub fn lock(&self, name: &str) -> io::Result<OwnedFd> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(&self.fd, name, flags, Mode::RUSR | Mode::WUSR)?;
        rustix::fs::flock(&fd, rustix::fs::FlockOperation::LockExclusive)?;
        crash::step("locked", name);
        Ok(fd)
    }

    /// Removes what writers that are no longer alive left behind.
    pub fn sweep(&self) {
        for (name, _) in self.names().unwrap_or_default() {
            let pid = name
                .strip_prefix(TEMP)
                .and_then(|rest| rest.split('-').next());
            let pid = pid
                .and_then(|p| p.parse().ok())
                .and_then(rustix::process::Pid::from_raw);
            if pid.is_some_and(|p| rustix::process::test_kill_process(p) == Err(Errno::SRCH)) {
                let _ = self.remove(&name);
            }
        }
    }
}

/// Removes the directories `<label>-<identity>` below a directory of ours, for every identity;
/// how many there were.
pub(super) fn remove_label(root: &Path, label: &Label) -> io::Result<u64> {
    let mut count = 0;
    let names = match std::fs::read_dir(root) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(0),
        other => other?,
    };
    for entry in names {
        let entry = entry?;
        let name = entry.file_name();
        let identity = name
            .to_str()
            .and_then(|n| n.strip_prefix(label.as_str())?.strip_prefix('-'));
        // Labels may hold hyphens: only what follows the label as an identity is one.
        let is_identity = |i: &str| !i.is_empty() && i.bytes().all(|b| b.is_ascii_alphanumeric());
        if identity.is_some_and(is_identity) {
            std::fs::remove_dir_all(entry.path())?;
            count += 1;
        }
    }
    Ok(count)
}

const TEMP: &str = ".tmp-";

/// Whether it is a regular file that belongs to us.
fn is_ours(stat: &rustix::fs::Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
        && stat.st_uid == rustix::process::geteuid().as_raw()
}

fn planted() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "not a regular file of ours")
}
