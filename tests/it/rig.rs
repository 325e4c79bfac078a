//! The harness: directories, scenes, servers, the daemon, and what looks at them.
//!
//! - Nothing outlives a rig, also when its test panics: processes are ended by pid, the mount is
//!   detached, the directory removed. A rig whose test did not panic ends the daemon in the
//!   regular way and fails the test if that does not work or leaves anything.
//! - Nothing hangs: each wait has a deadline, and a watchdog ends the whole run, with the name of
//!   the test, when a rig lives longer than it may.
//! - Reads that may fail are made by `cat` in a process of its own: bytes that come out together
//!   with an error are seen, and a hung read can be killed.

use rustix::process::{Pid, Signal};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, Once, RwLock};
use std::time::{Duration, Instant};

/// The program that is tested.
pub(crate) const BIN: &str = env!("CARGO_BIN_EXE_mount-skills");

/// How long a test may take unless it says otherwise.
const LIMIT: u64 = 90;

/// Dropping the kernel's caches hurts every mount: who counts requests of the kernel holds it
/// shared, who drops holds it alone.
static CACHES: RwLock<()> = RwLock::new(());

/// The project's directory.
pub(crate) fn project() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// A file of tests/servers, as text.
pub(crate) fn server_file(name: &str) -> String {
    project()
        .join("tests/servers")
        .join(name)
        .display()
        .to_string()
}

/// What scripts/test-env installs, by its path below .test-env.
pub(crate) fn installed(path: &str) -> String {
    project().join(".test-env").join(path).display().to_string()
}

/// For a test whose name ends with `_as_root`: what it is about takes root, and `scripts/test` leaves
/// it out for others, in sight.
pub(crate) fn needs_root() {
    assert!(
        is_root(),
        "this needs root; as a user: cargo test -- --skip _as_root"
    );
}

pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Polls until there is a value; fails the test when it does not come in time.
#[track_caller]
pub(crate) fn wait<T>(what: &str, seconds: f64, mut probe: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + Duration::from_secs_f64(seconds);
    loop {
        if let Some(value) = probe() {
            return value;
        }
        assert!(Instant::now() < end, "not within {seconds} s: {what}");
        std::thread::sleep(Duration::from_millis(15));
    }
}

/// Polls until a condition holds.
#[track_caller]
pub(crate) fn until(what: &str, seconds: f64, mut probe: impl FnMut() -> bool) {
    wait(what, seconds, || probe().then_some(()));
}

// ---- errno by name ----

const ERRNOS: [(&str, &str); 13] = [
    ("Connection timed out", "ETIMEDOUT"),
    ("File name too long", "ENAMETOOLONG"),
    ("Host is down", "EHOSTDOWN"),
    ("Input/output error", "EIO"),
    ("Interrupted system call", "EINTR"),
    ("Is a directory", "EISDIR"),
    ("No such file or directory", "ENOENT"),
    ("Not a directory", "ENOTDIR"),
    ("Permission denied", "EACCES"),
    ("Read-only file system", "EROFS"),
    ("Resource temporarily unavailable", "EAGAIN"),
    ("Stale file handle", "ESTALE"),
    ("Transport endpoint is not connected", "ENOTCONN"),
];

/// What a reader gets: the content, or the name of an errno.
pub(crate) type Content = Result<String, &'static str>;

pub(crate) fn ok(text: &str) -> Content {
    Ok(text.to_owned())
}

// ---- processes ----

/// How a process ended.
#[derive(Debug)]
pub(crate) struct Out {
    /// The exit code; none if a signal ended it.
    pub(crate) code: Option<i32>,
    pub(crate) out: Vec<u8>,
    pub(crate) err: String,
}

impl Out {
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.out).into_owned()
    }

    /// The errno that a tool's last line on stderr ends with.
    pub(crate) fn errno(&self) -> Option<&'static str> {
        let err = self.err.trim_end();
        let known = ERRNOS.iter().find(|(text, _)| err.ends_with(text));
        known.map(|(_, name)| *name)
    }

    /// Its stdout, of a program that must succeed.
    #[track_caller]
    pub(crate) fn good(self) -> String {
        assert_eq!(self.code, Some(0), "{self:?}");
        self.text()
    }
}

/// A process that is killed when it goes out of scope.
#[derive(Debug)]
pub(crate) struct Proc {
    child: Child,
    out: File,
    err: File,
}

impl Proc {
    /// Starts a program with its output in files, so that it never waits for us.
    pub(crate) fn spawn(command: &mut Command) -> Self {
        let out = tempfile::tempfile().unwrap();
        let err = tempfile::tempfile().unwrap();
        command.stdout(out.try_clone().unwrap());
        command.stderr(err.try_clone().unwrap());
        let child = command.spawn();
        let child = child.unwrap_or_else(|e| panic!("{command:?}: {e}"));
        Self { child, out, err }
    }

    pub(crate) fn pid(&self) -> i32 {
        self.child.id().cast_signed()
    }

    pub(crate) fn runs(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// What it has written to stderr by now.
    pub(crate) fn err_so_far(&self) -> String {
        use std::os::unix::fs::FileExt as _;
        let mut text = vec![0; self.err.metadata().unwrap().len() as usize];
        self.err.read_exact_at(&mut text, 0).unwrap();
        String::from_utf8_lossy(&text).into_owned()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(self.pid(), signal);
    }

    /// Waits for its end.
    #[track_caller]
    pub(crate) fn finish(mut self, seconds: f64) -> Out {
        let what = format!("pid {} to end", self.pid());
        let status = wait(&what, seconds, || self.child.try_wait().unwrap());
        let mut out = Vec::new();
        let mut err = Vec::new();
        for (file, text) in [(&mut self.out, &mut out), (&mut self.err, &mut err)] {
            file.rewind().unwrap();
            file.read_to_end(text).unwrap();
        }
        let err = String::from_utf8_lossy(&err).into_owned();
        Out {
            code: status.code(),
            out,
            err,
        }
    }
}

impl Drop for Proc {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs a program to its end, which must come within 30 s.
#[track_caller]
pub(crate) fn run(command: &mut Command) -> Out {
    Proc::spawn(command.stdin(Stdio::null())).finish(30.0)
}

pub(crate) fn kill(pid: i32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid) {
        let _ = rustix::process::kill_process(pid, signal);
    }
}

/// Whether a process runs; a zombie does not.
pub(crate) fn alive(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat
        .rsplit(')')
        .next()
        .and_then(|s| s.split_whitespace().next());
    !matches!(state, None | Some("Z" | "X"))
}

/// The processes whose command line holds a text, ourselves left out.
pub(crate) fn processes_with(text: &str) -> Vec<(i32, String)> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let Ok(pid) = entry.file_name().to_string_lossy().parse::<i32>() else {
            continue;
        };
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        if line.contains(text) && alive(pid) && pid != std::process::id().cast_signed() {
            found.push((pid, line));
        }
    }
    found
}

/// What was found, if it is still there: a daemon at work removes files while we look.
#[track_caller]
pub(crate) fn still_there<T>(found: io::Result<T>) -> Option<T> {
    match found {
        Err(e) if e.kind() == io::ErrorKind::NotFound => None,
        found => Some(found.unwrap()),
    }
}

/// The file system types mounted at a path, the one on top last.
pub(crate) fn mounts_at(path: &Path) -> Vec<String> {
    let rows = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let at = path.display().to_string().replace(' ', "\\040");
    let here = rows.lines().filter(|r| r.split(' ').nth(4) == Some(&at));
    here.filter_map(|r| Some(r.split(" - ").nth(1)?.split(' ').next()?.to_owned()))
        .collect()
}

/// Takes away what is mounted at a path. Somebody else may be doing the same at the same time.
fn detach(path: &Path) {
    for _ in 0..20 {
        if mounts_at(path).is_empty() {
            return;
        }
        let _ = Command::new("umount").arg("-l").arg(path).output();
        if !is_root() {
            let _ = Command::new("fusermount3").arg("-uz").arg(path).output();
        }
    }
}

// ---- the watchdog ----

/// What the watchdog knows of a rig.
struct Watched {
    test: String,
    deadline: Instant,
    dir: PathBuf,
    mount: PathBuf,
}

static WATCHED: Mutex<Vec<Watched>> = Mutex::new(Vec::new());
static WATCHDOG: Once = Once::new();

fn watched() -> MutexGuard<'static, Vec<Watched>> {
    WATCHED.lock().unwrap_or_else(|e| e.into_inner())
}

fn watch() {
    loop {
        std::thread::sleep(Duration::from_millis(500));
        let rigs = watched();
        if let Some(late) = rigs.iter().find(|r| r.deadline < Instant::now()) {
            // Not a print macro: those are captured with the output of some test.
            let text = format!(
                "\nwatchdog: {} took too long; ending the whole run\n",
                late.test
            );
            let _ = std::io::stderr().write_all(text.as_bytes());
            let log = fs::read_to_string(late.dir.join("daemon.err")).unwrap_or_default();
            let _ = std::io::stderr().write_all(log.as_bytes());
            for rig in rigs.iter() {
                wipe(&rig.dir, &rig.mount);
                let _ = fs::remove_dir_all(&rig.dir);
            }
            if let Some(mode) = FUSE_MODE.lock().ok().and_then(|m| *m) {
                let _ = fs::set_permissions("/dev/fuse", fs::Permissions::from_mode(mode));
            }
            std::process::abort();
        }
    }
}

/// Ends by force all that belongs to a rig's directory.
fn wipe(dir: &Path, mount: &Path) {
    let name = dir.display().to_string();
    let mut logged: Vec<i32> = Vec::new();
    for file in fs::read_dir(dir).into_iter().flatten().flatten() {
        if file.path().extension().is_some_and(|e| e == "log") {
            let rows = log_rows(&file.path());
            let pids = rows.iter().filter_map(|r| r["child"].as_i64());
            logged.extend(pids.map(|p| p as i32));
        }
    }
    let sleeps: Vec<i32> = processes_with("sleep 300")
        .into_iter()
        .map(|(p, _)| p)
        .collect();
    for pid in logged.into_iter().filter(|p| sleeps.contains(p)) {
        kill(pid, Signal::KILL);
    }
    // Again and again: the guard and the servers of a daemon that was just killed end as well.
    for _ in 0..100 {
        let left = processes_with(&name);
        left.iter().for_each(|(pid, _)| kill(*pid, Signal::KILL));
        detach(mount);
        let below = |r: &&str| r.split(' ').nth(4).is_some_and(|p| p.starts_with(&name));
        let rows = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        for row in rows.lines().filter(below) {
            let path = row.split(' ').nth(4).unwrap_or_default();
            let _ = Command::new("umount").arg("-l").arg(path).output();
        }
        if left.is_empty() {
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn log_rows(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap_or_default();
    let whole = text.lines().filter(|l| l.ends_with('}'));
    whole.map(|l| serde_json::from_str(l).unwrap()).collect()
}

// ---- the rig ----

/// A place of its own for one test.
pub(crate) struct Rig {
    test: String,
    dir: Arc<tempfile::TempDir>,
    mount: PathBuf,
    daemon: Option<Child>,
    servers: Vec<Child>,
    /// The program; a copy of it where another user must be able to run it.
    pub(crate) bin: PathBuf,
    /// The user that programs run as, if not our own.
    user: Option<u32>,
    /// Where the scripted server is.
    script: PathBuf,
}

impl Rig {
    pub(crate) fn new() -> Self {
        Self::with_limit(LIMIT)
    }

    /// A rig for a test that takes up to so many seconds.
    pub(crate) fn with_limit(seconds: u64) -> Self {
        assert!(
            Path::new("/dev/fuse").exists(),
            "no /dev/fuse: run scripts/test-env, which says what to do"
        );
        assert!(
            project().join(".test-env/stamp").exists(),
            "the servers of the tests are not installed: run scripts/test-env"
        );
        let dir = tempfile::Builder::new()
            .prefix("mount-skills-it-")
            .tempdir()
            .unwrap();
        for name in ["home", "cache", "state", "run"] {
            fs::DirBuilder::new()
                .mode(0o700)
                .create(dir.path().join(name))
                .unwrap();
        }
        Self::at(Arc::new(dir), "mnt", seconds)
    }

    /// A rig with the directories of another, its cache and state among them, and its own mount.
    /// It may live as long as the other.
    pub(crate) fn beside(other: &Rig, mount: &str) -> Self {
        let deadline = watched()
            .iter()
            .find(|w| w.mount == other.mount)
            .map(|w| w.deadline);
        let left = deadline.map_or(LIMIT, |d| d.duration_since(Instant::now()).as_secs());
        Self::at(Arc::clone(&other.dir), mount, left)
    }

    fn at(dir: Arc<tempfile::TempDir>, mount: &str, seconds: u64) -> Self {
        let test = std::thread::current().name().unwrap_or("?").to_owned();
        let mount = dir.path().canonicalize().unwrap().join(mount);
        fs::create_dir(&mount).unwrap();
        WATCHDOG.call_once(|| drop(std::thread::spawn(watch)));
        watched().push(Watched {
            test: test.clone(),
            deadline: Instant::now() + Duration::from_secs(seconds),
            dir: dir.path().to_owned(),
            mount: mount.clone(),
        });
        Self {
            test,
            dir,
            mount,
            daemon: None,
            servers: Vec::new(),
            bin: BIN.into(),
            user: None,
            script: server_file("scripted.py").into(),
        }
    }

    /// The rig's directory.
    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn mount_point(&self) -> &Path {
        &self.mount
    }

    /// A path in the mount.
    pub(crate) fn path(&self, below: &str) -> PathBuf {
        self.mount.join(below)
    }

    /// A program with this rig's environment and nothing else of ours.
    pub(crate) fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = match self.user {
            None => Command::new(program),
            Some(user) => {
                let mut command = Command::new("setpriv");
                command
                    .arg(format!("--reuid={user}"))
                    .arg(format!("--regid={user}"));
                command.args(["--clear-groups", "--"]).arg(program);
                command
            }
        };
        command.env_clear().current_dir("/").stdin(Stdio::null());
        command
            .env("PATH", std::env::var_os("PATH").unwrap())
            .env("LC_ALL", "C");
        command.env("HOME", self.dir().join("home"));
        for (name, dir) in [
            ("CACHE_HOME", "cache"),
            ("STATE_HOME", "state"),
            ("RUNTIME_DIR", "run"),
        ] {
            command.env(format!("XDG_{name}"), self.dir().join(dir));
        }
        command
    }

    /// Runs a line of shell in the mount point's parent; `$M` is the mount point.
    #[track_caller]
    pub(crate) fn sh(&self, line: &str) -> Out {
        run(self
            .command("bash")
            .args(["-c", line])
            .env("M", &self.mount)
            .current_dir(self.dir()))
    }

    /// Our own program with these arguments.
    #[track_caller]
    pub(crate) fn cli(&self, args: &[&str]) -> Out {
        run(self.command(&self.bin).args(args))
    }

    /// From now on all programs run as this user, who gets the rig's directory. For root only.
    pub(crate) fn become_user(&mut self, user: u32) {
        let own = |path: &Path| std::os::unix::fs::chown(path, Some(user), Some(user)).unwrap();
        self.bin = self.dir().join("program");
        fs::copy(BIN, &self.bin).unwrap();
        for name in ["scripted.py", "scene.py"] {
            fs::copy(server_file(name), self.dir().join(name)).unwrap();
        }
        self.script = self.dir().join("scripted.py");
        own(self.dir());
        fs::read_dir(self.dir())
            .unwrap()
            .for_each(|entry| own(&entry.unwrap().path()));
        self.user = Some(user);
    }

    /// From now on programs run as root again.
    pub(crate) fn become_root(&mut self) {
        self.user = None;
    }

    /// Whether programs run as another user than the tests.
    pub(crate) fn is_of_another(&self) -> bool {
        self.user.is_some()
    }

    /// The Python of the machine: one below somebody's home is closed to other users.
    fn python(&self) -> &'static str {
        match self.user {
            None => "python3",
            Some(_) => "/usr/bin/python3",
        }
    }

    // ---- scenes ----

    fn scene_file(&self, label: &str) -> PathBuf {
        self.dir().join(format!("{label}.scene"))
    }

    /// Sets what the scripted server of a label does, also while it runs.
    pub(crate) fn scene(&self, label: &str, scene: Value) {
        let file = self.scene_file(label);
        let new = file.with_extension("new");
        fs::write(&new, scene.to_string()).unwrap();
        fs::rename(&new, &file).unwrap();
    }

    /// The command line of a label's scripted server.
    pub(crate) fn scripted(&self, label: &str) -> String {
        let (python, script) = (self.python(), self.script.display().to_string());
        let words = [
            python,
            "-S",
            "-E",
            &script,
            &self.scene_file(label).display().to_string(),
        ];
        shlex::try_join(words).unwrap()
    }

    /// Starts a label's scripted server over HTTP, at the same port each time; its URL.
    pub(crate) fn scripted_http(&mut self, label: &str) -> String {
        let port_file = self.dir().join(format!("{label}.url"));
        let before = self.log(label, "start").len();
        let mut command = self.command("python3");
        command
            .args(["-S", "-E"])
            .arg(server_file("scripted.py"))
            .arg(self.scene_file(label));
        command.arg("--http").arg(&port_file);
        self.keep_server(command.stdout(Stdio::null()));
        let (started, url) = ("its start", "the URL of a scripted server");
        until(started, 15.0, || self.log(label, "start").len() > before);
        wait(url, 15.0, || {
            let url = fs::read_to_string(&port_file).ok()?;
            let address = url.strip_prefix("http://")?.strip_suffix("/mcp")?;
            std::net::TcpStream::connect(address)
                .ok()
                .map(|_| url.clone())
        })
    }

    /// Starts a server that ends with this rig: its stdin stays open until then.
    pub(crate) fn keep_server(&mut self, command: &mut Command) {
        let err = File::options()
            .create(true)
            .append(true)
            .open(self.dir().join("servers.err"));
        let child = command.stdin(Stdio::piped()).stderr(err.unwrap()).spawn();
        self.servers.push(child.unwrap());
    }

    /// Ends the servers that this rig started itself.
    pub(crate) fn end_servers(&mut self) {
        for mut server in self.servers.drain(..) {
            let _ = server.kill();
            let _ = server.wait();
        }
    }

    /// Kills a label's stdio server and waits for the listing of the next one.
    pub(crate) fn kill_server_for_a_new_listing(&self, label: &str) {
        let lists = self.seen(label, "skills/list");
        kill(self.server_pid(label), Signal::KILL);
        until("a new listing", 40.0, || {
            self.seen(label, "skills/list") > lists
        });
    }

    /// What a label's scripted server logged, by event.
    pub(crate) fn log(&self, label: &str, event: &str) -> Vec<Value> {
        let rows = log_rows(&self.dir().join(format!("{label}.scene.log")));
        rows.into_iter().filter(|r| r["event"] == event).collect()
    }

    /// The requests of a method that a label's server saw.
    pub(crate) fn seen(&self, label: &str, method: &str) -> usize {
        self.log(label, "request")
            .iter()
            .filter(|r| r["method"] == method)
            .count()
    }

    /// How often each URI was read.
    pub(crate) fn reads(&self, label: &str) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        for row in self.log(label, "request") {
            if row["method"] == "resources/read" {
                let uri = row["params"]["uri"].as_str().unwrap().to_owned();
                *counts.entry(uri).or_default() += 1;
            }
        }
        counts
    }

    /// The pid of the latest process of a label's scripted server.
    pub(crate) fn server_pid(&self, label: &str) -> i32 {
        self.log(label, "start").last().unwrap()["pid"]
            .as_i64()
            .unwrap() as i32
    }

    // ---- the daemon ----

    /// The command that starts the daemon.
    pub(crate) fn daemon_command(&self, servers: &[(&str, &str)], flags: &[&str]) -> Command {
        let mut command = self.command(&self.bin);
        self.daemon_args(&mut command, servers, flags);
        command
    }

    /// Adds the daemon's arguments to a command that runs it in some other way.
    pub(crate) fn daemon_args(
        &self,
        command: &mut Command,
        servers: &[(&str, &str)],
        flags: &[&str],
    ) {
        for (label, target) in servers {
            command.arg("--server").arg(format!("{label}={target}"));
        }
        command.args(flags).arg(&self.mount);
    }

    /// Starts the daemon and waits for the mount.
    #[track_caller]
    pub(crate) fn mount(&mut self, servers: &[(&str, &str)], flags: &[&str]) {
        let command = self.daemon_command(servers, flags);
        self.mount_with(command);
    }

    /// Starts the daemon with this command and waits for the mount.
    #[track_caller]
    pub(crate) fn mount_with(&mut self, mut command: Command) {
        assert!(self.daemon.is_none(), "one daemon a rig");
        let append = |name| {
            File::options()
                .create(true)
                .append(true)
                .open(self.dir().join(name))
                .unwrap()
        };
        command
            .stdout(append("daemon.out"))
            .stderr(append("daemon.err"));
        self.daemon = Some(command.spawn().unwrap());
        until("a mount", 15.0, || {
            if let Some(status) = self.daemon.as_mut().unwrap().try_wait().unwrap() {
                self.daemon = None;
                panic!("the daemon ended ({status}): {}", self.words());
            }
            !mounts_at(&self.mount).is_empty()
        });
    }

    /// Mounts the scripted servers of these labels and waits for their listings.
    #[track_caller]
    pub(crate) fn up(&mut self, labels: &[&str], flags: &[&str]) {
        let targets: Vec<String> = labels.iter().map(|l| self.scripted(l)).collect();
        let servers: Vec<(&str, &str)> = labels
            .iter()
            .copied()
            .zip(targets.iter().map(String::as_str))
            .collect();
        self.mount(&servers, flags);
        labels.iter().for_each(|l| self.ready(l));
    }

    /// Waits until a label has a listing of this run.
    #[track_caller]
    pub(crate) fn ready(&self, label: &str) {
        let mut last = Value::Null;
        let end = Instant::now() + Duration::from_secs(30);
        loop {
            if let Some(status) = self.try_status() {
                last = server(&status, label);
                if last["state"] == "ready"
                    && matches!(last["listing"].as_str(), Some("current" | "truncated"))
                {
                    return;
                }
            }
            assert!(Instant::now() < end, "{label} is not ready: {last:#}");
            std::thread::sleep(Duration::from_millis(15));
        }
    }

    pub(crate) fn daemon_pid(&self) -> i32 {
        self.daemon.as_ref().expect("a daemon").id().cast_signed()
    }

    pub(crate) fn daemon_runs(&mut self) -> bool {
        self.daemon
            .as_mut()
            .is_some_and(|d| d.try_wait().unwrap().is_none())
    }

    /// All that the daemon said.
    pub(crate) fn words(&self) -> String {
        let file = |name| fs::read(self.dir().join(name)).unwrap_or_default();
        let both = [file("daemon.out"), file("daemon.err")].concat();
        String::from_utf8_lossy(&both).into_owned()
    }

    /// Waits for the daemon's end; its exit code.
    #[track_caller]
    pub(crate) fn ended(&mut self, seconds: f64) -> Option<i32> {
        let mut daemon = self.daemon.take().expect("a daemon");
        let end = Instant::now() + Duration::from_secs_f64(seconds);
        loop {
            if let Some(status) = daemon.try_wait().unwrap() {
                return status.code();
            }
            if Instant::now() > end {
                self.daemon = Some(daemon);
                panic!(
                    "the daemon does not end within {seconds} s: {}",
                    self.words()
                );
            }
            std::thread::sleep(Duration::from_millis(15));
        }
    }

    /// Ends the daemon as a user would; nothing may be left.
    #[track_caller]
    pub(crate) fn stop(&mut self) {
        kill(self.daemon_pid(), Signal::TERM);
        let code = self.ended(15.0);
        assert_eq!(code, Some(0), "the daemon's exit: {}", self.words());
        self.nothing_left();
    }

    /// Ends the daemon and starts it again in the same place.
    #[track_caller]
    pub(crate) fn remount(&mut self, servers: &[(&str, &str)], flags: &[&str]) {
        self.stop();
        self.mount(servers, flags);
    }

    /// Kills the daemon with no chance to clean up.
    pub(crate) fn kill_daemon(&mut self) {
        let mut daemon = self.daemon.take().expect("a daemon");
        daemon.kill().unwrap();
        daemon.wait().unwrap();
    }

    /// Waits until there is no mount and none of the processes that belong to it.
    #[track_caller]
    pub(crate) fn nothing_left(&self) {
        until("the mount to go", 5.0, || mounts_at(&self.mount).is_empty());
        if Arc::strong_count(&self.dir) > 1 {
            return;
        }
        let mut left = self.left();
        let end = Instant::now() + Duration::from_secs(5);
        while !left.is_empty() {
            assert!(Instant::now() < end, "processes are left: {left:?}");
            std::thread::sleep(Duration::from_millis(15));
            left = self.left();
        }
    }

    fn left(&self) -> Vec<(i32, String)> {
        let ours: Vec<i32> = self.servers.iter().map(|s| s.id().cast_signed()).collect();
        let mut left = processes_with(&self.dir().display().to_string());
        left.retain(|(pid, _)| !ours.contains(pid));
        let logs = fs::read_dir(self.dir())
            .unwrap()
            .flatten()
            .map(|f| f.path());
        for log in logs.filter(|p| p.extension().is_some_and(|e| e == "log")) {
            for row in log_rows(&log) {
                if let Some(pid) = row["child"]
                    .as_i64()
                    .map(|p| p as i32)
                    .filter(|p| alive(*p))
                {
                    left.push((pid, "a child of a server".into()));
                }
            }
        }
        left
    }

    // ---- looking ----

    /// `cat` of a file in the mount. An error must come without a byte of content.
    #[track_caller]
    pub(crate) fn cat(&self, below: &str) -> Content {
        self.outcome(below, run(self.command("cat").arg(self.path(below))))
    }

    /// What a `cat` of ours came to.
    #[track_caller]
    pub(crate) fn outcome(&self, what: &str, out: Out) -> Content {
        if out.code == Some(0) {
            return Ok(out.text());
        }
        assert!(
            out.out.is_empty(),
            "{what}: bytes came out with an error: {out:?}"
        );
        Err(out.errno().unwrap_or_else(|| panic!("{what}: {out:?}")))
    }

    /// A `cat` that goes on by itself. It has the usual answer to SIGINT, whatever ours is.
    pub(crate) fn cat_later(&self, below: &str) -> Proc {
        let mut command = self.command("env");
        Proc::spawn(
            command
                .args(["--default-signal=INT", "cat"])
                .arg(self.path(below)),
        )
    }

    /// The names in a directory of the mount, sorted; or the errno.
    #[track_caller]
    pub(crate) fn ls(&self, below: &str) -> Result<Vec<String>, &'static str> {
        let out = run(self.command("ls").arg("-A").arg("--").arg(self.path(below)));
        self.outcome(below, out)
            .map(|text| text.lines().map(str::to_owned).collect())
    }

    /// The status, if somebody answers.
    pub(crate) fn try_status(&self) -> Option<Value> {
        let mount = self.mount.display().to_string();
        let out = self.cli(&["status", "--json", &mount]);
        (out.code == Some(0)).then(|| serde_json::from_slice(&out.out).unwrap())
    }

    /// `mount-skills status --json`.
    #[track_caller]
    pub(crate) fn status(&self) -> Value {
        wait("an answer of `status`", 5.0, || self.try_status())
    }

    /// The status of one server.
    #[track_caller]
    pub(crate) fn server(&self, label: &str) -> Value {
        server(&self.status(), label)
    }

    /// The latest refusal of a file, by its path below the mount.
    #[track_caller]
    pub(crate) fn refusal(&self, label: &str, path: &str) -> Value {
        let status = self.server(label);
        let rows = status["refused"].as_array().unwrap();
        let row = rows.iter().rfind(|r| r["path"] == path);
        row.unwrap_or_else(|| panic!("no refusal of {path} in {status:#}"))
            .clone()
    }

    /// Why an entry was declined, by its URI.
    #[track_caller]
    pub(crate) fn declined(&self, label: &str, uri: &str) -> String {
        let status = self.server(label);
        let rows = status["declined"].as_array().unwrap();
        let row = rows.iter().find(|r| r["uri"] == uri);
        let row = row.unwrap_or_else(|| panic!("{uri} is not declined in {status:#}"));
        row["reason"].as_str().unwrap().to_owned()
    }

    /// The status of one skill, by its path below the mount; null if it is not shown.
    #[track_caller]
    pub(crate) fn skill_status(&self, path: &str) -> Value {
        let label = path.split('/').next().unwrap();
        let rows = self.server(label)["skills"].clone();
        let rows = rows.as_array().cloned().unwrap_or_default();
        rows.into_iter()
            .find(|s| s["path"] == path)
            .unwrap_or_default()
    }

    /// Looks at a label, which makes a stale listing refresh, until a skill's status is as said.
    #[track_caller]
    pub(crate) fn seen_as(&self, path: &str, what: &str, is: impl Fn(&Value) -> bool) -> Value {
        let label = path.split('/').next().unwrap();
        let end = Instant::now() + Duration::from_secs(15);
        loop {
            let _ = self.ls(label);
            let status = self.skill_status(path);
            if is(&status) {
                // The status knows it a moment before the tree shows it and the kernel is told.
                std::thread::sleep(Duration::from_millis(30));
                return status;
            }
            assert!(Instant::now() < end, "{path} is not {what}: {status:#}");
            std::thread::sleep(Duration::from_millis(30));
        }
    }

    /// Looks at a label until a skill is in this state.
    #[track_caller]
    pub(crate) fn in_state(&self, path: &str, state: &str) -> Value {
        self.seen_as(path, state, |s| s["state"] == state)
    }

    /// The set that a skill's server publishes, as `approve` would show it.
    #[track_caller]
    pub(crate) fn set(&self, skill: &str) -> String {
        let detail: Value = serde_json::from_str(&self.ask(&["diff", "--json", skill])).unwrap();
        detail["set"].as_str().unwrap().to_owned()
    }

    /// What a command that must succeed prints about this rig's mount.
    #[track_caller]
    pub(crate) fn ask(&self, args: &[&str]) -> String {
        self.tell(args).good()
    }

    /// A command about this rig's mount.
    #[track_caller]
    pub(crate) fn tell(&self, args: &[&str]) -> Out {
        let mount = self.mount.display().to_string();
        self.cli(&[args, &["--mount", &mount]].concat())
    }

    /// Approves what a skill's server publishes.
    #[track_caller]
    pub(crate) fn approve(&self, skill: &str) {
        let set = self.set(skill);
        self.ask(&["approve", "--set", &set, skill]);
    }

    /// Waits until the journals of open windows hold these URIs.
    #[track_caller]
    pub(crate) fn journalled(&self, uris: &[&str]) {
        until("a journal of the windows", 5.0, || {
            let texts = self.journals().into_iter();
            let text: String = texts
                .map(|p| fs::read_to_string(p).unwrap_or_default())
                .collect();
            uris.iter()
                .all(|uri| text.contains(&format!("\"uri\":\"{uri}\"")))
        });
    }

    /// The journals of open windows.
    pub(crate) fn journals(&self) -> Vec<PathBuf> {
        let name = |p: &PathBuf| p.file_name().unwrap().to_string_lossy().into_owned();
        let files = self.stored("state").into_iter().map(|(p, _)| p);
        files.filter(|p| name(p).starts_with("windows-")).collect()
    }

    /// Opens, maps and reads a file in a process that is asked later what it still gets.
    #[track_caller]
    pub(crate) fn keep(&self, below: &str) -> Keeper {
        let mut command = self.command("python3");
        // Not as an argument: it may outlive a daemon, whose leftovers are found by that.
        command
            .args(["-S", "-c", KEEPER])
            .env("KEPT", self.path(below));
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let out = std::io::BufReader::new(child.stdout.take().unwrap());
        let (send, answers) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            use std::io::BufRead as _;
            out.lines()
                .map_while(Result::ok)
                .try_for_each(|line| send.send(line))
        });
        let mut keeper = Keeper { child, answers };
        let (fd, map) = (keeper.fd(), keeper.map());
        assert!(fd.is_ok() && fd == map, "{below}: {fd:?}, {map:?}");
        keeper
    }

    /// Requests of the kernel so far, in all.
    pub(crate) fn upcalls(&self) -> u64 {
        let status = self.status();
        let kinds = status["upcalls"].as_object().unwrap();
        kinds.values().map(|n| n.as_u64().unwrap()).sum()
    }

    /// Keeps others from dropping the kernel's caches meanwhile.
    pub(crate) fn keep_kernel_caches() -> impl Drop {
        CACHES.read().unwrap_or_else(|e| e.into_inner())
    }

    /// Makes the kernel forget what it can; only root can do that.
    pub(crate) fn drop_kernel_caches() {
        let _alone = CACHES.write().unwrap_or_else(|e| e.into_inner());
        fs::write("/proc/sys/vm/drop_caches", "3").unwrap();
    }

    /// The files below a directory of the rig, `cache` or `state`, with their modes.
    pub(crate) fn stored(&self, dir: &str) -> Vec<(PathBuf, u32)> {
        let mut found = Vec::new();
        let mut todo = vec![self.dir().join(dir)];
        assert!(todo[0].is_dir(), "{todo:?}");
        while let Some(dir) = todo.pop() {
            for entry in still_there(fs::read_dir(&dir)).into_iter().flatten() {
                let entry = entry.unwrap();
                let Some(meta) = still_there(entry.path().symlink_metadata()) else {
                    continue;
                };
                found.push((entry.path(), meta.permissions().mode() & 0o7777));
                if meta.is_dir() {
                    todo.push(entry.path());
                }
            }
        }
        found
    }

    /// The place of content in the cache, once it is there.
    #[track_caller]
    pub(crate) fn blob(&self, content: &[u8]) -> PathBuf {
        let name = sha256(content);
        wait("a cached copy", 5.0, || {
            let files = self.stored("cache").into_iter().map(|(p, _)| p);
            files
                .into_iter()
                .find(|p| p.file_name().is_some_and(|n| n == name.as_str()))
        })
    }

    /// Peak memory of the daemon, in MiB.
    pub(crate) fn daemon_peak_mib(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.daemon_pid())).unwrap();
        let line = status.lines().find(|l| l.starts_with("VmHWM:")).unwrap();
        line.split_whitespace()
            .nth(1)
            .unwrap()
            .parse::<u64>()
            .unwrap()
            / 1024
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        let failed = std::thread::panicking();
        if failed {
            eprintln!("the daemon said:\n{}", self.words());
        }
        let regular = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            if !failed && self.daemon.is_some() {
                self.stop();
            }
            self.end_servers();
            if !failed {
                self.nothing_left();
            }
        }));
        if let Some(mut daemon) = self.daemon.take() {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
        self.end_servers();
        detach(&self.mount);
        if Arc::strong_count(&self.dir) == 1 {
            wipe(self.dir.path(), &self.mount);
        }
        watched().retain(|w| w.mount != self.mount);
        if let Err(e) = regular
            && !failed
        {
            std::panic::resume_unwind(e);
        }
        let _ = &self.test;
    }
}

const KEEPER: &str = r#"
import errno, json, mmap, os, signal, sys
fd = os.open(os.environ["KEPT"], os.O_RDONLY)
view = mmap.mmap(fd, 0, access=mmap.ACCESS_READ)
for line in sys.stdin:
    try:
        if line == "fd\n":
            print(json.dumps(os.pread(fd, 1 << 24, 0).decode()), flush=True)
            continue
        pid = os.fork()
        if not pid:
            print(json.dumps(view[:].decode()), flush=True)
            os._exit(0)
        status = os.waitpid(pid, 0)[1]
        if os.WIFSIGNALED(status):
            print(signal.Signals(os.WTERMSIG(status)).name, flush=True)
    except OSError as e:
        print(errno.errorcode[e.errno], flush=True)
"#;

/// A process that has a file open and mapped.
pub(crate) struct Keeper {
    child: Child,
    answers: std::sync::mpsc::Receiver<String>,
}

impl Keeper {
    /// What reading the open file gives now.
    #[track_caller]
    pub(crate) fn fd(&mut self) -> Content {
        self.get("fd\n")
    }

    /// What reading the mapping gives now; a signal instead of an errno.
    #[track_caller]
    pub(crate) fn map(&mut self) -> Content {
        self.get("map\n")
    }

    #[track_caller]
    fn get(&mut self, what: &str) -> Content {
        let stdin = self.child.stdin.as_mut().unwrap();
        stdin.write_all(what.as_bytes()).unwrap();
        let answer = self.answers.recv_timeout(Duration::from_secs(20)).unwrap();
        if answer.starts_with('"') {
            return Ok(serde_json::from_str(&answer).unwrap());
        }
        let names = ERRNOS.iter().map(|(_, name)| *name).chain(["SIGBUS"]);
        let known = names.into_iter().find(|n| *n == answer);
        Err(known.unwrap_or_else(|| panic!("{what}: {answer}")))
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Lets every user mount, for as long as it lives; the device is set back afterwards, also by the
/// watchdog. One at a time.
pub(crate) struct FuseForAll {
    before: u32,
    /// Held alone by one test of one run.
    _alone: File,
}

static FUSE_MODE: Mutex<Option<u32>> = Mutex::new(None);

impl FuseForAll {
    pub(crate) fn open() -> Self {
        Self::with(0o666)
    }

    /// The other way round: only root may use the device.
    pub(crate) fn closed() -> Self {
        Self::with(0o600)
    }

    fn with(mode: u32) -> Self {
        // Another run on this machine may do the same: a lock within the process is not enough.
        let alone = File::open("/dev").unwrap();
        rustix::fs::flock(&alone, rustix::fs::FlockOperation::LockExclusive).unwrap();
        let before = fs::metadata("/dev/fuse").unwrap().permissions().mode() & 0o7777;
        *FUSE_MODE.lock().unwrap() = Some(before);
        fs::set_permissions("/dev/fuse", fs::Permissions::from_mode(mode)).unwrap();
        Self {
            before,
            _alone: alone,
        }
    }
}

impl Drop for FuseForAll {
    fn drop(&mut self) {
        let _ = fs::set_permissions("/dev/fuse", fs::Permissions::from_mode(self.before));
        *FUSE_MODE.lock().unwrap() = None;
    }
}

/// A server's part of a status.
fn server(status: &Value, label: &str) -> Value {
    let servers = status["servers"].as_array().unwrap();
    servers
        .iter()
        .find(|s| s["label"] == label)
        .cloned()
        .unwrap_or(Value::Null)
}

/// The SHA-256 of content in hex, by a way of its own.
pub(crate) fn sha256(content: &[u8]) -> String {
    use sha2::Digest as _;
    sha2::Sha256::digest(content)
        .iter()
        .map(|b| format!("{b:02x}"))
        .collect()
}

/// A skill of a scene, with these files besides its SKILL.md.
pub(crate) fn skill(path: &str, files: Value) -> Value {
    json!({"path": path, "files": files})
}

/// The SKILL.md that a scripted server makes up for a skill.
pub(crate) fn skill_md(name: &str) -> String {
    format!("---\nname: {name}\ndescription: A scripted skill\n---\n\nBody of {name}.\n")
}
