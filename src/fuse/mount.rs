//! Mounting and unmounting: the mount point, what may already be there, and what happens when
//! the daemon dies.
//!
//! A dead mount of ours is detached at start; a live or foreign one is refused and left alone.
//! A small second process, the *guard*, watches over the daemon: when it is killed, the guard
//! detaches the mount, so that nobody goes on reading pages that nobody stands for, and ends
//! what is left of the servers' process groups.

use super::adapter::{Adapter, Upcalls};
use super::machine::{Machine, fusermount};
use super::notify;
use super::parked::Parked;
use crate::host::{Batch, Host};
use fuser::{Config, MountOption, Session, SessionACL};
use parking_lot::Mutex;
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::mount::UnmountFlags;
use std::collections::BTreeSet;
use std::fs;
use std::io::{self, BufRead, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// The file system type in /proc/mounts, for PRUNEFS and the like.
pub const FS_TYPE: &str = "fuse.mount-skills";
/// The hidden subcommand that runs the guard.
pub const GUARD: &str = "__guard";
/// How long a daemon may take to end once its mount is gone.
pub const ENDING: Duration = Duration::from_secs(10);
/// Links that are followed, one to another.
const MAX_LINKS: usize = 16;
/// Its last argument when the mount point was made for the mount.
const GUARD_REMOVES: &str = "remove";

/// What fusermount3 says where its configuration does not let users open a mount to others, and
/// the line that lets them.
pub(super) const USER_ALLOW_OTHER: &str = "user_allow_other";

/// Who may read a mount, as far as the modes of its files allow. Nobody but its user ever reaches
/// the daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Access {
    /// The user who mounts; not even root.
    #[default]
    Owner,
    /// Every user.
    Everyone,
}

/// Why nothing was mounted.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// The mount point cannot be used.
    #[error("{path}: {why}")]
    Place {
        /// The mount point.
        path: String,
        /// What is wrong and what to do.
        why: String,
    },
    /// The machine cannot mount.
    #[error("{0}")]
    Machine(String),
}

fn place(path: &Path, why: impl Into<String>) -> MountError {
    MountError::Place {
        path: path.display().to_string(),
        why: why.into(),
    }
}

/// A mount, as the kernel lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Listed {
    device: String,
    path: PathBuf,
    fs_type: String,
    /// Whose it is, of those that belong to somebody.
    user: Option<u32>,
}

fn parse_mountinfo(text: &str) -> Vec<Listed> {
    let row = |line: &str| {
        let (left, right) = line.split_once(" - ")?;
        let mut left = left.split(' ');
        let mut right = right.split(' ');
        Some(Listed {
            device: left.nth(2)?.to_owned(),
            path: unescape(left.nth(1)?),
            fs_type: right.next()?.to_owned(),
            user: right.nth(1).and_then(|options| {
                let mut options = options.split(',');
                options.find_map(|o| o.strip_prefix("user_id=")?.parse().ok())
            }),
        })
    };
    text.lines().filter_map(row).collect()
}

/// Undoes the octal escapes of mountinfo.
fn unescape(text: &str) -> PathBuf {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        let code = (byte == b'\\')
            .then(|| {
                tail.get(..3)
                    .and_then(|d| u8::from_str_radix(std::str::from_utf8(d).ok()?, 8).ok())
            })
            .flatten();
        out.push(code.unwrap_or(byte));
        rest = if code.is_some() {
            tail.get(3..).unwrap_or_default()
        } else {
            tail
        };
    }
    PathBuf::from(std::ffi::OsString::from_vec(out))
}

fn listed() -> Vec<Listed> {
    let text = fs::read(Path::new("/proc/self/mountinfo")).unwrap_or_default();
    parse_mountinfo(&String::from_utf8_lossy(&text))
}

/// The mount on top at a path.
fn mounted_at(path: &Path) -> Option<Listed> {
    listed().into_iter().rfind(|m| m.path == path)
}

/// Where this user has mounts of ours, dead ones among them.
pub fn ours() -> Vec<PathBuf> {
    let me = rustix::process::geteuid().as_raw();
    let all = listed().into_iter();
    let ours = all.filter(|m| m.fs_type == FS_TYPE && m.user == Some(me));
    let paths: BTreeSet<PathBuf> = ours.map(|m| m.path).collect();
    paths.into_iter().collect()
}

/// Whether nobody stands for the mount at a path any more. Waits for a daemon that hangs.
pub fn is_dead(path: &Path) -> bool {
    rustix::fs::statfs(path).err() == Some(rustix::io::Errno::NOTCONN)
}

/// What is at a path where somebody wants to mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Site {
    /// Nothing; it is made.
    Missing,
    /// An empty directory.
    Empty,
    /// A dead mount of ours, which is detached.
    Dead,
    /// A mount of ours that is in use.
    Taken,
}

/// Looks at a path where somebody wants to mount, and changes nothing. Waits for a daemon that
/// hangs.
///
/// # Errors
/// Nobody can mount there.
pub fn survey(path: &Path) -> Result<(PathBuf, Site), MountError> {
    let path = absolute(path)?;
    refuse_discovery_path(&path)?;
    match mounted_at(&path) {
        Some(mount) if mount.fs_type == FS_TYPE => {
            let site = match is_dead(&path) {
                true => Site::Dead,
                false => Site::Taken,
            };
            return Ok((path, site));
        }
        Some(mount) if mount.fs_type != "autofs" => return Err(foreign(&path, &mount)),
        _ => {}
    }
    let needed = rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK;
    let writable = |dir: &Path| rustix::fs::access(dir, needed);
    match fs::metadata(&path) {
        Ok(meta) if !meta.is_dir() => Err(is_file(&path)),
        Ok(_) if !is_empty(&path)? => Err(not_empty(&path)),
        // fusermount lets nobody cover a directory of somebody else's.
        Ok(_) if !is_root() => match writable(&path) {
            Ok(()) => Ok((path, Site::Empty)),
            Err(_) => Err(place(
                &path,
                "this user may not write there, so fusermount3 does not mount there; choose a place of your own, such as ~/skills",
            )),
        },
        Ok(_) => Ok((path, Site::Empty)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            let above = path.ancestors().find(|dir| dir.exists());
            match writable(above.unwrap_or(Path::new("/"))) {
                Ok(()) => Ok((path, Site::Missing)),
                Err(e) => Err(not_made(&path, &e.into())),
            }
        }
        Err(e) => Err(place(&path, e.to_string())),
    }
}

fn is_empty(path: &Path) -> Result<bool, MountError> {
    let mut names = fs::read_dir(path).map_err(|e| place(path, e.to_string()))?;
    Ok(names.next().is_none())
}

fn foreign(path: &Path, mount: &Listed) -> MountError {
    let fs_type = &mount.fs_type;
    let why = format!("another file system ({fs_type}) is mounted there; choose another place");
    place(path, why)
}

fn is_file(path: &Path) -> MountError {
    place(path, "it is a file; give a directory")
}

fn not_empty(path: &Path) -> MountError {
    place(path, "the directory is not empty; choose an empty one")
}

fn not_made(path: &Path, e: &io::Error) -> MountError {
    let why = format!(
        "cannot make the mount point: {e}; make it yourself or choose another place, such as ~/skills"
    );
    place(path, why)
}

/// A place to mount on.
#[derive(Debug)]
pub struct MountPoint {
    path: PathBuf,
    made: bool,
    /// Locked, so that of two daemons started at once only one mounts.
    _lock: OwnedFd,
}

impl MountPoint {
    /// Makes a path ready to be mounted on: creates it if it is missing, detaches a dead mount of
    /// ours, refuses everything else that is there.
    pub fn prepare(path: &Path) -> Result<Self, MountError> {
        let path = absolute(path)?;
        refuse_discovery_path(&path)?;
        while let Some(mount) = mounted_at(&path) {
            if mount.fs_type == "autofs" {
                break;
            }
            if mount.fs_type != FS_TYPE {
                return Err(foreign(&path, &mount));
            }
            // Its guard may be faster, and then it was not the mount that answered.
            let still = || mounted_at(&path).is_some_and(|m| m.device == mount.device);
            if !is_dead(&path) {
                if still() {
                    return Err(taken(&path));
                }
                continue;
            }
            tracing::info!(
                "{}: detaching the dead mount of an earlier run",
                path.display()
            );
            if let Err(e) = detach(&path)
                && still()
            {
                let why = format!(
                    "a dead mount of an earlier run cannot be detached: {e}; run: fusermount3 -uz {}",
                    path.display()
                );
                return Err(place(&path, why));
            }
        }
        let made = match fs::metadata(&path) {
            Ok(meta) if !meta.is_dir() => return Err(is_file(&path)),
            Ok(_) => false,
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                fs::create_dir_all(&path).map_err(|e| not_made(&path, &e))?;
                true
            }
            Err(e) => return Err(place(&path, e.to_string())),
        };
        // What is in the directory says something only once nobody else can mount on it.
        let lock = lock(&path)?;
        if mounted_at(&path).is_some_and(|m| m.fs_type == FS_TYPE) || !is_at(&lock, &path) {
            return Err(taken(&path));
        }
        if !is_empty(&path)? {
            return Err(not_empty(&path));
        }
        Ok(Self {
            path,
            made,
            _lock: lock,
        })
    }

    /// Where it is, absolute.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Removes the directory if we made it.
    pub fn restore(&self) {
        if self.made {
            let _ = fs::remove_dir(&self.path);
        }
    }
}

/// What is wrong where another mount of ours lives, or is about to.
fn taken(path: &Path) -> MountError {
    let shown = path.display();
    place(
        path,
        format!(
            "already mounted by a running mount-skills; to end it: mount-skills unmount {shown}"
        ),
    )
}

/// Locks a directory before it is mounted on; waits for a daemon that is ending.
fn lock(path: &Path) -> Result<OwnedFd, MountError> {
    let io = |e: rustix::io::Errno| place(path, e.to_string());
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let fd = rustix::fs::open(path, flags, Mode::empty()).map_err(io)?;
    let until = Instant::now() + ENDING;
    loop {
        match rustix::fs::flock(&fd, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(fd),
            // Either another one is about to mount, or one whose mount is gone has yet to end.
            Err(rustix::io::Errno::WOULDBLOCK)
                if Instant::now() < until
                    && mounted_at(path).is_none_or(|m| m.fs_type != FS_TYPE) =>
            {
                std::thread::sleep(Duration::from_millis(20));
            }
            Err(rustix::io::Errno::WOULDBLOCK) => return Err(taken(path)),
            Err(e) => return Err(io(e)),
        }
    }
}

/// Whether a directory that is open is the one at a path: not the root of a mount that was there for
/// a moment, whose lock would keep nobody away.
fn is_at(dir: &OwnedFd, path: &Path) -> bool {
    let place = |stat: rustix::fs::Stat| (stat.st_dev, stat.st_ino);
    let there = rustix::fs::stat(path).map(place);
    there.is_ok() && there == rustix::fs::fstat(dir).map(place)
}

/// The absolute path without links. The last name is only read as a link: a dead mount answers
/// nothing else.
fn absolute(path: &Path) -> Result<PathBuf, MountError> {
    let mut full = std::path::absolute(path).map_err(|e| place(path, e.to_string()))?;
    for _ in 0..MAX_LINKS {
        if let Ok(real) = fs::canonicalize(&full) {
            return Ok(real);
        }
        if let (Some(Ok(parent)), Some(name)) =
            (full.parent().map(fs::canonicalize), full.file_name())
        {
            full = parent.join(name);
        }
        match (fs::read_link(&full), full.parent()) {
            (Ok(to), Some(parent)) => full = parent.join(to),
            _ => return Ok(full),
        }
    }
    Err(place(path, "too many links; give the real path"))
}

/// Refuses places where an agent would take the skills for local ones (HR-25).
pub fn refuse_discovery_path(path: &Path) -> Result<(), MountError> {
    let names: Vec<&[u8]> = path.iter().map(OsStrExt::as_bytes).collect();
    let homes: [&[u8]; 5] = [b".claude", b".agents", b".codex", b".gemini", b".cursor"];
    let local = names
        .windows(2)
        .any(|w| matches!(w, [a, b"skills"] if homes.contains(a)));
    if local {
        return Err(place(
            path,
            "agents look for local skills there, and skills of a server must not pass for local ones; choose another place",
        ));
    }
    Ok(())
}

/// Says what is missing before anything is started.
pub fn check_machine() -> Result<(), MountError> {
    match Machine::look().obstacle() {
        Some(found) => Err(MountError::Machine(found.to_string())),
        None => Ok(()),
    }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Detaches whatever is mounted at a path, also when it is busy.
fn detach(path: &Path) -> io::Result<()> {
    let flags = UnmountFlags::DETACH | UnmountFlags::NOFOLLOW;
    match rustix::mount::unmount(path, flags) {
        Err(rustix::io::Errno::PERM) => run_fusermount("-uz", path),
        other => Ok(other?),
    }
}

/// Detaches a dead mount of ours at a path, if there is one: whether there was. A live one is an
/// error: it is not the caller's to end.
pub fn detach_dead(path: &Path) -> Result<bool, MountError> {
    let path = absolute(path)?;
    if mounted_at(&path).is_none_or(|m| m.fs_type != FS_TYPE) {
        return Ok(false);
    }
    if !is_dead(&path) {
        return Err(place(
            &path,
            "it is mounted by a mount-skills that does not answer this user; ask as the user who mounted it, with the same XDG_RUNTIME_DIR",
        ));
    }
    detach(&path).map_err(|e| place(&path, format!("a dead mount cannot be detached: {e}")))?;
    Ok(true)
}

fn run_fusermount(flag: &str, path: &Path) -> io::Result<()> {
    let program = fusermount().ok_or_else(|| io::Error::other("fusermount3 was not found"))?;
    let out = Command::new(program)
        .arg(flag)
        .arg("--")
        .arg(path)
        .stdin(Stdio::null())
        .output()?;
    if out.status.success() {
        return Ok(());
    }
    Err(io::Error::other(
        String::from_utf8_lossy(&out.stderr).trim().to_owned(),
    ))
}

/// A mount that is being served.
#[derive(Debug)]
pub struct Mounted {
    point: MountPoint,
    device: String,
    guard: Guard,
}

/// Mounts the host's tree and serves it from threads of its own. The receiver that comes with it
/// is told when the mount is gone, whoever took it away.
pub fn mount(
    point: MountPoint,
    host: &Arc<Host>,
    runtime: &tokio::runtime::Handle,
    upcalls: &Arc<Upcalls>,
    batches: Receiver<Batch>,
    access: Access,
) -> Result<(Mounted, oneshot::Receiver<()>), MountError> {
    let subtype = "mount-skills".to_owned();
    let mut config = Config::default();
    // Without MountOption::AutoUnmount: it needs access for others, and our guard does as much.
    config.acl = match access {
        Access::Owner => SessionACL::Owner,
        Access::Everyone => SessionACL::All,
    };
    config.n_threads = Some(2);
    config.mount_options = vec![
        MountOption::FSName("mount-skills".into()),
        MountOption::RO,
        MountOption::NoExec,
        MountOption::NoSuid,
        MountOption::NoDev,
        MountOption::DefaultPermissions,
        // fuser gives a subtype only to fusermount; root mounts directly.
        if is_root() {
            MountOption::CUSTOM(format!("subtype={subtype}"))
        } else {
            MountOption::Subtype(subtype)
        },
    ];
    let parked = Arc::<Parked>::default();
    let adapter = Adapter::new(
        Arc::clone(host),
        runtime.clone(),
        Arc::clone(upcalls),
        Arc::clone(&parked),
    );
    let session = Session::new(adapter, point.path(), &config).map_err(|e| {
        point.restore();
        place(point.path(), mounting_failed(&e.to_string()))
    })?;
    let failed = |e: io::Error| MountError::Machine(format!("a thread cannot be started: {e}"));
    notify::start(session.notifier(), parked, batches).map_err(failed)?;
    let (ended, gone) = oneshot::channel();
    let serve = move || {
        if let Err(e) = session.run() {
            tracing::debug!("the FUSE session ended: {e}");
        }
        let _ = ended.send(());
    };
    std::thread::Builder::new()
        .name("fuse".into())
        .spawn(serve)
        .map_err(failed)?;
    let device = mounted_at(point.path())
        .map(|m| m.device)
        .unwrap_or_default();
    let guard = Guard::start(&point, &device);
    Ok((
        Mounted {
            point,
            device,
            guard,
        },
        gone,
    ))
}

/// Why mounting failed, and what to do. Whether users may let others in is fusermount3's to say: it
/// reads its configuration as root, and from where it was built to.
fn mounting_failed(why: &str) -> String {
    if why.contains(USER_ALLOW_OTHER) {
        return format!(
            "a user may let others read only if /etc/fuse.conf has the line {USER_ALLOW_OTHER}; \
             run: echo {USER_ALLOW_OTHER} | sudo tee -a /etc/fuse.conf (or leave out --allow-other)"
        );
    }
    let hint = Machine::look().suspicion();
    format!("mounting failed: {} ({hint})", why.trim_end())
}

impl Mounted {
    /// The guard, to be told of the servers' process groups.
    pub fn guard(&self) -> Guard {
        self.guard.clone()
    }

    /// Takes the mount away, lazily if somebody is in it, and the mount point if we made it.
    pub fn unmount(&self) {
        let path = self.point.path();
        // Somebody else may have unmounted it, and another mount may be there by now.
        if mounted_at(path).is_some_and(|m| m.device == self.device) {
            let plain = match rustix::mount::unmount(path, UnmountFlags::NOFOLLOW) {
                Err(rustix::io::Errno::PERM) => run_fusermount("-u", path),
                other => other.map_err(Into::into),
            };
            if plain.is_err()
                && let Err(e) = detach(path)
            {
                tracing::warn!("{}: cannot be unmounted: {e}", path.display());
            }
        }
        self.point.restore();
    }
}

/// The daemon's end of the guard.
#[derive(Debug, Clone)]
pub struct Guard(Arc<Mutex<Option<Child>>>);

impl Guard {
    fn start(point: &MountPoint, device: &str) -> Self {
        let child = Command::new("/proc/self/exe")
            .arg0("mount-skills")
            .arg(GUARD)
            .arg(point.path())
            .arg(device)
            .args(point.made.then_some(GUARD_REMOVES))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // Ctrl-C in the daemon's terminal must not reach it.
            .process_group(0)
            .current_dir("/")
            .spawn();
        if let Err(e) = &child {
            tracing::warn!("no guard: if this process is killed, the mount stays behind: {e}");
        }
        Self(Arc::new(Mutex::new(child.ok())))
    }

    fn say(&self, line: &str) {
        if let Some(stdin) = self.0.lock().as_mut().and_then(|c| c.stdin.as_mut()) {
            let _ = stdin.write_all(line.as_bytes());
        }
    }

    /// A server's process group that must not outlive the daemon.
    pub fn watch_group(&self, group: i32) {
        self.say(&format!("+{group}\n"));
    }

    /// A process group that has ended.
    pub fn forget_group(&self, group: i32) {
        self.say(&format!("-{group}\n"));
    }

    /// Sends the guard away: all is taken down that it would have to.
    pub fn dismiss(&self) {
        self.say("done\n");
        let child = self.0.lock().take();
        if let Some(mut child) = child {
            drop(child.stdin.take());
            let _ = child.wait();
        }
    }
}

/// The guard itself: waits until the daemon has said `done` or is gone, and cleans up after it.
/// `then` says what becomes of the mount point.
pub fn guard(path: &Path, device: &str, then: Option<&str>) {
    stay();
    let mut groups = BTreeSet::new();
    for line in io::stdin().lock().lines().map_while(Result::ok) {
        match line.split_at_checked(1) {
            Some(("+", group)) => drop(group.parse::<i32>().map(|g| groups.insert(g))),
            Some(("-", group)) => drop(group.parse::<i32>().map(|g| groups.remove(&g))),
            _ => return,
        }
    }
    if mounted_at(path).is_some_and(|m| m.device == device && m.fs_type == FS_TYPE) {
        let _ = detach(path);
        if then == Some(GUARD_REMOVES) {
            let _ = fs::remove_dir(path);
        }
    }
    for group in groups
        .into_iter()
        .filter(|g| *g > 1)
        .filter_map(rustix::process::Pid::from_raw)
    {
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
    }
}

/// Ignores the signals that ask a program to end: a service manager sends them to all processes of a
/// service at once, and the guard is needed until the daemon is gone.
#[allow(unsafe_code)]
fn stay() {
    for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGTERM] {
        // SAFETY: no safe form exists; nothing of ours runs when the signal comes.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mountinfo_rows_with_escapes() {
        let text = "36 35 98:0 / /mnt/a\\040b\\134c rw,noatime shared:1 - ext4 /dev/root rw\n\
                    37 35 0:52 / /mnt/skills ro - fuse.mount-skills mount-skills ro,user_id=0\n\
                    garbage\n";
        let rows = parse_mountinfo(text);
        assert_eq!(rows.len(), 2);
        assert_eq!(rows[0].path, Path::new("/mnt/a b\\c"));
        assert_eq!(
            (rows[1].device.as_str(), rows[1].fs_type.as_str()),
            ("0:52", FS_TYPE)
        );
        assert_eq!((rows[0].user, rows[1].user), (None, Some(0)));
    }

    #[test]
    fn hr_25_places_of_local_skills_are_refused() {
        for bad in [
            "/home/u/.claude/skills",
            "/home/u/.claude/skills/x",
            "/w/.agents/skills",
            "/w/.codex/skills/y",
        ] {
            assert!(refuse_discovery_path(Path::new(bad)).is_err(), "{bad}");
        }
        for good in ["/mnt/skills", "/home/u/skills", "/home/u/.claude/other"] {
            assert!(refuse_discovery_path(Path::new(good)).is_ok(), "{good}");
        }
    }
}
