//! Whether this machine can mount: what was seen of it, and what that means.
//!
//! [`Machine::look`] gathers, the checks are functions of what was gathered, so that a test can
//! give them any machine. A mount refuses to start only where a check is certain; `doctor` shows
//! all of them.
//!
//! **Invariants:** looking changes nothing and asks nobody. What could not be found out counts as
//! good: a check that is wrong must not keep anybody from mounting.

use super::mount::{Access, USER_ALLOW_OTHER};
use crate::domain::finding::{Finding, Fix};
use crate::domain::text::word;
use rustix::fs::StatVfsMountFlags;
use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// The device that a mount is served through.
const DEVICE: &str = "/dev/fuse";
/// Its major and minor number.
const NUMBERS: (u32, u32) = (10, 229);
/// What a container must be given.
pub(super) const FLAGS: &str = "--device /dev/fuse --cap-add SYS_ADMIN";
/// Directories are opened without asking us since this version of Linux.
const OLDEST_KERNEL: (u32, u32) = (5, 1);
/// The open files that the daemon needs for itself, and for each server.
const OPEN_FILES: (u64, u64) = (64, 16);
/// The number of the capability that mounting takes.
const SYS_ADMIN: u32 = 21;

/// The device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Device {
    /// It can be opened.
    Usable,
    /// It is not there.
    Missing,
    /// Something else has its name.
    Other,
    /// This user may not open it.
    Forbidden,
    /// It cannot be opened for another reason.
    Broken(String),
}

/// The program by which users mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Helper {
    /// It is in none of the directories of PATH.
    Missing,
    /// It is there, with the rights of root.
    Setuid(PathBuf),
    /// It is there, without them.
    Plain(PathBuf),
    /// It is on a file system that gives no such rights.
    Nosuid(PathBuf),
}

/// Whether this process has something.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Has {
    /// It has.
    Yes,
    /// It has not.
    No,
    /// Nobody could say.
    #[default]
    Unknown,
}

/// What was seen of a machine.
#[derive(Debug, Clone)]
pub struct Machine {
    /// The device.
    pub device: Device,
    /// Whether the kernel lists FUSE among its file systems.
    pub driver: Has,
    /// The user.
    pub uid: u32,
    /// The program by which users mount.
    pub helper: Helper,
    /// Whether this process may mount.
    pub admin: Has,
    /// Whether a program with more rights, started by it, may.
    pub bound: Has,
    /// Whether such a program gets no more rights.
    pub no_new_rights: Has,
    /// Whose container it is in, if it is in one.
    pub container: Option<&'static str>,
    /// Whether root here is another user outside.
    pub user_namespace: Has,
    /// The AppArmor profile that is enforced.
    pub profile: Option<String>,
    /// The version of Linux.
    pub kernel: String,
    /// Whether users may let others into their mounts.
    pub allow_other: Has,
    /// How many files may be open.
    pub open_files: Option<u64>,
}

impl Machine {
    /// Looks at this one.
    pub fn look() -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let status = read("/proc/self/status");
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
        let profile = read("/proc/self/attr/current");
        let profile = profile
            .trim_matches(['\0', '\n'])
            .strip_suffix(" (enforce)");
        let systems = read("/proc/filesystems");
        let map = read("/proc/self/uid_map");
        Self {
            device: device(),
            driver: Has::known(!systems.is_empty(), || {
                systems
                    .lines()
                    .any(|l| l.split_whitespace().next_back() == Some("fuse"))
            }),
            uid: rustix::process::geteuid().as_raw(),
            helper: helper(),
            admin: capability(&status, "CapEff:"),
            bound: capability(&status, "CapBnd:"),
            no_new_rights: match field(&status, "NoNewPrivs:") {
                Some("1") => Has::Yes,
                Some("0") => Has::No,
                _ => Has::Unknown,
            },
            container: container(
                |path| Path::new(path).exists(),
                |name| std::env::var(name).ok(),
                &read("/proc/self/cgroup"),
            ),
            user_namespace: Has::known(!map.is_empty(), || {
                !map.split_whitespace().eq(["0", "0", "4294967295"])
            }),
            profile: profile.map(str::to_owned),
            kernel: rustix::system::uname()
                .release()
                .to_string_lossy()
                .into_owned(),
            allow_other: match fs::read_to_string("/etc/fuse.conf") {
                Ok(text) => Has::known(true, || allows_other(&text)),
                Err(e) if e.kind() == io::ErrorKind::NotFound => Has::No,
                Err(_) => Has::Unknown,
            },
            open_files: limit.current,
        }
    }

    fn is_root(&self) -> bool {
        self.uid == 0
    }

    /// How whoever made the machine gives it what it lacks.
    fn give(&self, outside: Fix) -> Fix {
        match self.container {
            Some("Kubernetes") => Fix::Do(
                "give the container the device /dev/fuse, and SYS_ADMIN in securityContext.capabilities.add \
                 (docker: --device /dev/fuse --cap-add SYS_ADMIN)"
                    .into(),
            ),
            Some(_) => Fix::Do(format!("start the container with {FLAGS}")),
            None => match outside {
                Fix::Run(text) | Fix::Do(text) => {
                    Fix::Do(format!("{text} (in a container: start it with {FLAGS})"))
                }
            },
        }
    }

    /// The device. An error is certain: nothing can be mounted.
    pub fn device(&self) -> Finding {
        let error = |id, text: String, fix| Finding::error(id, DEVICE, text, fix);
        let run = |command: &str| Fix::Run(command.to_owned());
        match &self.device {
            Device::Usable => Finding::ok("device", DEVICE, "can be opened"),
            Device::Forbidden => error(
                "device-forbidden",
                "it cannot be opened by this user, so nothing can be mounted".into(),
                run("sudo chmod 0666 /dev/fuse"),
            ),
            Device::Missing => error(
                "device-missing",
                "it is missing, so nothing can be mounted".into(),
                self.give(match self.driver {
                    Has::Yes => run("sudo mknod -m 0666 /dev/fuse c 10 229"),
                    Has::No | Has::Unknown => run("sudo modprobe fuse"),
                }),
            ),
            Device::Other => error(
                "device-other",
                "it is not the FUSE device, so nothing can be mounted".into(),
                self.give(Fix::Do(
                    "take away what is in its place, and have the kernel make it anew".into(),
                )),
            ),
            Device::Broken(why) => error(
                "device-broken",
                format!("it cannot be used ({why}), so nothing can be mounted"),
                self.give(run("sudo modprobe fuse")),
            ),
        }
    }

    /// The program by which users mount; none for root, who needs none. An error is certain.
    pub fn helper(&self) -> Option<Finding> {
        let subject = "fusermount3";
        match &self.helper {
            _ if self.is_root() => None,
            Helper::Missing => Some(Finding::error(
                "helper-missing",
                subject,
                "it was not found in PATH, and only with it users mount",
                Fix::Run("sudo apt-get install fuse3".into()),
            )),
            Helper::Setuid(path) | Helper::Plain(path) | Helper::Nosuid(path) => Some(Finding::ok(
                "helper",
                subject,
                format!("is {}", shown(path)),
            )),
        }
    }

    /// Whether this user may mount.
    pub fn rights(&self) -> Finding {
        let subject = "right to mount";
        let lacks = |who: &str| {
            Finding::error(
                "no-right",
                subject,
                format!("{who} lacks CAP_SYS_ADMIN, without which nobody mounts"),
                self.give(Fix::Do(
                    "start it where that was not taken away: systemd, CapabilityBoundingSet".into(),
                )),
            )
        };
        if self.is_root() {
            return match self.admin {
                Has::No => lacks("root"),
                Has::Yes | Has::Unknown => Finding::ok("right", subject, "root"),
            };
        }
        match &self.helper {
            Helper::Plain(path) => Finding::error(
                "helper-not-setuid",
                subject,
                format!(
                    "{}, the first of its name in PATH, has not the rights of root (setuid), so it cannot mount",
                    shown(path)
                ),
                // Whose file that is we cannot know: rights of root are for the package to give.
                Fix::Do(
                    "reinstall the package fuse3; a file that is not of it must not come first in PATH"
                        .into(),
                ),
            ),
            Helper::Nosuid(path) => Finding::error(
                "helper-nosuid",
                subject,
                format!(
                    "{} is on a file system that is mounted nosuid, so it cannot mount",
                    shown(path)
                ),
                Fix::Do("install fuse3 on a file system without nosuid".into()),
            ),
            _ if self.bound == Has::No => lacks("whatever is started here"),
            _ if self.no_new_rights == Has::Yes => Finding::error(
                "no-new-rights",
                subject,
                "programs get no more rights here (no_new_privs), so fusermount3 cannot mount",
                Fix::Do(match self.container {
                    Some(_) => {
                        "start the container without --security-opt no-new-privileges".into()
                    }
                    None => "start it elsewhere: systemd, NoNewPrivileges=no".into(),
                }),
            ),
            Helper::Missing => Finding::note("right", subject, "as good as fusermount3"),
            Helper::Setuid(_) => Finding::ok("right", subject, "by way of fusermount3"),
        }
    }

    /// A profile that may forbid mounting.
    pub fn profile(&self) -> Option<Finding> {
        let profile = self.profile.as_ref()?;
        self.container?;
        Some(Finding::warning(
            "profile",
            "AppArmor",
            format!("the profile {profile} is enforced, and those of containers forbid mounting"),
            Fix::Do("start the container with --security-opt apparmor=unconfined".into()),
        ))
    }

    /// The container that this is in, and what that means.
    pub fn surroundings(&self) -> Option<Finding> {
        let text = match (self.container, self.user_namespace) {
            (Some(whose), _) => format!(
                "{whose}: what is mounted inside is not seen outside, unless mounts are shared"
            ),
            (None, Has::Yes) => {
                "inside a user namespace: what is mounted here is not seen outside".into()
            }
            (None, Has::No | Has::Unknown) => return None,
        };
        Some(Finding::note("container", "container", text))
    }

    /// The kernel.
    pub fn kernel(&self) -> Finding {
        let mut numbers = self
            .kernel
            .split(|c: char| !c.is_ascii_digit())
            .map(str::parse);
        let text = format!("Linux {}", self.kernel);
        match (numbers.next(), numbers.next()) {
            (Some(Ok(major)), Some(Ok(minor))) if (major, minor) < OLDEST_KERNEL => {
                let (major, minor) = OLDEST_KERNEL;
                Finding::warning(
                    "kernel-old",
                    "kernel",
                    format!("{text} is older than {major}.{minor}: directories may not be listed"),
                    Fix::Do(format!("use Linux {major}.{minor} or newer")),
                )
            }
            _ => Finding::ok("kernel", "kernel", text),
        }
    }

    /// Whether users may let others in; none for root, who need not ask.
    pub fn allow_other(&self, wanted: Access) -> Option<Finding> {
        let file = "/etc/fuse.conf";
        let text = match self.allow_other {
            _ if self.is_root() => return None,
            Has::No if wanted == Access::Everyone => {
                return Some(Finding::error(
                    "fuse-conf-closed",
                    file,
                    format!(
                        "{USER_ALLOW_OTHER} is not set, so a user cannot let others read (allow-other)"
                    ),
                    Fix::Run(format!("echo {USER_ALLOW_OTHER} | sudo tee -a {file}")),
                ));
            }
            Has::Yes => "user_allow_other is set: users may let others read their mounts",
            Has::No => "user_allow_other is not set: a mount is read by its user alone",
            Has::Unknown => "cannot be read; a mount is read by its user",
        };
        Some(Finding::ok("fuse-conf", file, text))
    }

    /// Whether that many servers find room.
    pub fn open_files(&self, servers: usize) -> Finding {
        let (own, each) = OPEN_FILES;
        let needed = own + each * servers as u64;
        let subject = "open files";
        match self.open_files {
            Some(limit) if limit < needed => Finding::warning(
                "open-files",
                subject,
                format!(
                    "at most {limit}, and {servers} servers may need {needed}: some would be down"
                ),
                Fix::Run(format!(
                    "ulimit -n {}",
                    needed.next_power_of_two().max(1024)
                )),
            ),
            Some(limit) => Finding::ok("open-files", subject, format!("up to {limit}")),
            None => Finding::ok("open-files", subject, "any number"),
        }
    }

    /// All that was found, for a mount with so many servers that is open to these.
    pub fn findings(&self, servers: usize, access: Access) -> Vec<Finding> {
        let mut all = vec![self.device()];
        all.extend(self.helper());
        all.push(self.rights());
        all.extend(self.profile());
        all.push(self.kernel());
        all.extend(self.allow_other(access));
        all.push(self.open_files(servers));
        all.extend(self.surroundings());
        all
    }

    /// What keeps this machine from mounting for certain.
    pub(super) fn obstacle(&self) -> Option<Finding> {
        let certain = [Some(self.device()), self.helper()];
        certain.into_iter().flatten().find(Finding::is_error)
    }

    /// What a mount that failed may have failed for.
    pub(super) fn suspicion(&self) -> String {
        let suspect = [Some(self.rights()), self.profile()];
        let mut suspect = suspect.into_iter().flatten();
        match suspect.find(|f| f.fix.is_some()) {
            Some(found) => found.to_string(),
            None => format!("in a container, start it with {FLAGS}"),
        }
    }
}

impl Has {
    fn known(known: bool, has: impl FnOnce() -> bool) -> Self {
        match known {
            false => Self::Unknown,
            true if has() => Self::Yes,
            true => Self::No,
        }
    }
}

fn device() -> Device {
    let meta = match fs::metadata(DEVICE) {
        Ok(meta) => meta,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Device::Missing,
        Err(e) => return Device::Broken(e.to_string()),
    };
    let numbers = (
        rustix::fs::major(meta.rdev()),
        rustix::fs::minor(meta.rdev()),
    );
    if !meta.file_type().is_char_device() || numbers != NUMBERS {
        return Device::Other;
    }
    match fs::OpenOptions::new().read(true).write(true).open(DEVICE) {
        Ok(_) => Device::Usable,
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => Device::Forbidden,
        Err(e) => Device::Broken(e.to_string()),
    }
}

fn shown(path: &Path) -> String {
    word(&path.display().to_string())
}

/// The path of the program by which users mount and unmount. What PATH says of the working
/// directory does not count: anybody may have left a file there.
pub(super) fn fusermount() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let names = ["fusermount3", "fusermount"];
    names.iter().find_map(|n| {
        std::env::split_paths(&path)
            .filter(|d| d.is_absolute())
            .map(|d| d.join(n))
            .find(|p| p.is_file())
    })
}

fn helper() -> Helper {
    let Some(path) = fusermount() else {
        return Helper::Missing;
    };
    let setuid = fs::metadata(&path).is_ok_and(|m| m.uid() == 0 && m.mode() & 0o4000 != 0);
    let flags = rustix::fs::statvfs(&path).map(|s| s.f_flag);
    match flags {
        Ok(flags) if setuid && flags.contains(StatVfsMountFlags::NOSUID) => Helper::Nosuid(path),
        _ if setuid => Helper::Setuid(path),
        _ => Helper::Plain(path),
    }
}

/// A field of /proc/self/status.
fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    let value = status.lines().find_map(|line| line.strip_prefix(name));
    value.map(str::trim)
}

/// Whether a set of capabilities holds the one that mounting takes.
fn capability(status: &str, name: &str) -> Has {
    let set = field(status, name).and_then(|set| u64::from_str_radix(set, 16).ok());
    match set {
        Some(set) if set >> SYS_ADMIN & 1 == 1 => Has::Yes,
        Some(_) => Has::No,
        None => Has::Unknown,
    }
}

/// Whose container a process is in.
fn container(
    exists: impl Fn(&str) -> bool,
    var: impl Fn(&str) -> Option<String>,
    groups: &str,
) -> Option<&'static str> {
    if var("KUBERNETES_SERVICE_HOST").is_some() || groups.contains("kubepods") {
        return Some("Kubernetes");
    }
    let named = var("container").unwrap_or_default();
    if exists("/run/.containerenv") || groups.contains("libpod") || named == "podman" {
        return Some("Podman");
    }
    if exists("/.dockerenv") || groups.contains("docker") {
        return Some("Docker");
    }
    if groups.contains("/lxc") || named == "lxc" {
        return Some("LXC");
    }
    (!named.is_empty()).then_some("of another kind")
}

/// Whether a configuration of FUSE says that users may let others in.
fn allows_other(text: &str) -> bool {
    text.lines().any(|line| line.trim() == USER_ALLOW_OTHER)
}

/// What kind of a file system a directory is on, if it is one that other machines or programs
/// stand for.
pub fn remote(path: &Path) -> Option<&'static str> {
    let magic = rustix::fs::statfs(path).ok()?.f_type;
    // From linux/magic.h and the file systems themselves; what is left of them in 32 bits.
    match magic as u32 {
        0x6969 => Some("NFS"),
        0x517b | 0xff53_4d42 | 0xfe53_4d42 => Some("SMB"),
        0x0102_1997 => Some("9p"),
        0x00c3_6400 => Some("Ceph"),
        0x5346_414f | 0x6b41_4653 => Some("AFS"),
        0x6573_5546 => Some("FUSE"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::finding::Severity;

    /// A machine on which a user can mount.
    fn good() -> Machine {
        Machine {
            device: Device::Usable,
            driver: Has::Yes,
            uid: 1000,
            helper: Helper::Setuid("/usr/bin/fusermount3".into()),
            admin: Has::No,
            bound: Has::Yes,
            no_new_rights: Has::No,
            container: None,
            user_namespace: Has::No,
            profile: None,
            kernel: "6.1.0-13-amd64".into(),
            allow_other: Has::No,
            open_files: Some(1024),
        }
    }

    fn root() -> Machine {
        Machine {
            uid: 0,
            helper: Helper::Missing,
            admin: Has::Yes,
            ..good()
        }
    }

    /// What is not fine: the id, and what mends it.
    fn wrong(machine: &Machine) -> Vec<(&'static str, String)> {
        let found = machine.findings(3, Access::Owner).into_iter();
        let wrong = found.filter(|f| f.severity > Severity::Note);
        wrong
            .map(|f| (f.id, f.fix.map(|fix| fix.to_string()).unwrap_or_default()))
            .collect()
    }

    #[track_caller]
    fn only(machine: &Machine, id: &str, fix: &str) {
        let wrong = wrong(machine);
        assert_eq!(wrong.len(), 1, "{wrong:?}");
        assert_eq!(wrong[0].0, id);
        assert!(wrong[0].1.contains(fix), "{wrong:?}");
    }

    #[test]
    fn c_40_good_machines_are_fine() {
        for machine in [good(), root()] {
            assert_eq!(wrong(&machine), []);
            assert_eq!(machine.obstacle(), None);
        }
        let unknown = Machine {
            driver: Has::Unknown,
            admin: Has::Unknown,
            bound: Has::Unknown,
            no_new_rights: Has::Unknown,
            user_namespace: Has::Unknown,
            allow_other: Has::Unknown,
            open_files: None,
            kernel: "odd".into(),
            ..good()
        };
        assert_eq!(wrong(&unknown), []);
    }

    #[test]
    fn c_40_a_device_that_is_missing_forbidden_or_another_keeps_from_mounting() {
        let with = |device, container| Machine {
            device,
            container,
            ..root()
        };
        only(&with(Device::Missing, None), "device-missing", "mknod");
        let without = Machine {
            driver: Has::No,
            ..with(Device::Missing, None)
        };
        only(
            &without,
            "device-missing",
            "sudo modprobe fuse (in a container: start it with --device",
        );
        for device in [Device::Missing, Device::Other, Device::Broken("x".into())] {
            let machine = with(device, Some("Docker"));
            only(
                &machine,
                machine.device().id,
                "--device /dev/fuse --cap-add SYS_ADMIN",
            );
            assert!(machine.obstacle().is_some());
        }
        let pod = with(Device::Missing, Some("Kubernetes"));
        only(&pod, "device-missing", "securityContext.capabilities.add");
        only(
            &with(Device::Forbidden, None),
            "device-forbidden",
            "run: sudo chmod 0666 /dev/fuse",
        );
    }

    #[test]
    fn c_40_a_user_needs_fusermount3_with_its_rights_and_root_does_not() {
        let with = |helper| Machine { helper, ..good() };
        let missing = with(Helper::Missing);
        only(
            &missing,
            "helper-missing",
            "run: sudo apt-get install fuse3",
        );
        assert!(missing.obstacle().is_some_and(|f| f.id == "helper-missing"));
        let plain = with(Helper::Plain("/b/fusermount3".into()));
        only(&plain, "helper-not-setuid", "reinstall the package fuse3");
        let found = plain.rights();
        assert!(
            found.text.starts_with("/b/fusermount3, the first"),
            "{found}"
        );
        assert!(matches!(found.fix, Some(Fix::Do(_))), "{found}");
        only(
            &with(Helper::Nosuid("/b/f".into())),
            "helper-nosuid",
            "without nosuid",
        );
        // It may be a program that asks somebody else to mount.
        assert_eq!(plain.obstacle(), None);
        let frozen = Machine {
            no_new_rights: Has::Yes,
            ..good()
        };
        only(&frozen, "no-new-rights", "NoNewPrivileges=no");
    }

    #[test]
    fn c_40_without_the_capability_nobody_mounts() {
        let bare = Machine {
            admin: Has::No,
            ..root()
        };
        only(&bare, "no-right", "--cap-add SYS_ADMIN");
        assert!(bare.suspicion().contains("lacks CAP_SYS_ADMIN"));
        // Somebody may mount for it all the same: it is let try.
        assert_eq!(bare.obstacle(), None);
        let bound = Machine {
            bound: Has::No,
            container: Some("Podman"),
            ..good()
        };
        only(&bound, "no-right", "start the container with --device");
        let confined = Machine {
            profile: Some("docker-default".into()),
            container: Some("Docker"),
            ..root()
        };
        only(&confined, "profile", "apparmor=unconfined");
        assert!(confined.suspicion().contains("apparmor=unconfined"));
        assert!(root().suspicion().contains("--cap-add SYS_ADMIN"));
    }

    #[test]
    fn an_old_kernel_and_few_open_files_are_warnings() {
        for old in ["4.19.0-26-amd64", "5.0.21"] {
            let machine = Machine {
                kernel: old.into(),
                ..good()
            };
            only(&machine, "kernel-old", "5.1");
        }
        let narrow = Machine {
            open_files: Some(100),
            ..good()
        };
        only(&narrow, "open-files", "ulimit -n 1024");
        assert_eq!(narrow.open_files(1).severity, Severity::Ok);
    }

    #[test]
    fn c_41_a_user_who_wants_to_let_others_in_is_told_the_line_that_is_missing() {
        let id = |machine: &Machine, access| machine.allow_other(access).map(|f| f.id);
        assert_eq!(id(&good(), Access::Owner), Some("fuse-conf"));
        assert_eq!(id(&good(), Access::Everyone), Some("fuse-conf-closed"));
        let open = Machine {
            allow_other: Has::Yes,
            ..good()
        };
        assert_eq!(id(&open, Access::Everyone), Some("fuse-conf"));
        assert_eq!(id(&root(), Access::Everyone), None);
    }

    #[test]
    fn containers_are_known_by_what_they_leave() {
        let none = |_: &str| None;
        let at = |known: &'static str| move |path: &str| path == known;
        assert_eq!(container(at(""), none, "0::/init.scope\n"), None);
        assert_eq!(container(at("/.dockerenv"), none, ""), Some("Docker"));
        assert_eq!(
            container(at(""), none, "1:cpu:/docker/0abc\n"),
            Some("Docker")
        );
        assert_eq!(
            container(at("/run/.containerenv"), none, ""),
            Some("Podman")
        );
        assert_eq!(
            container(at(""), none, "0::/kubepods/x\n"),
            Some("Kubernetes")
        );
        let var = |name: &str| (name == "container").then(|| "systemd-nspawn".to_owned());
        assert_eq!(container(at(""), var, ""), Some("of another kind"));
    }

    #[test]
    fn what_the_kernel_says_of_a_process_is_read() {
        let status =
            "Name:\tx\nNoNewPrivs:\t1\nCapEff:\t0000000000200000\nCapBnd:\t000001ffffdfffff\n";
        assert_eq!(capability(status, "CapEff:"), Has::Yes);
        assert_eq!(capability(status, "CapBnd:"), Has::No);
        assert_eq!(capability("", "CapBnd:"), Has::Unknown);
        assert_eq!(field(status, "NoNewPrivs:"), Some("1"));
        assert!(allows_other("# x\n  user_allow_other\n"));
        assert!(!allows_other("#user_allow_other\nmount_max = 1\n"));
    }
}
