//! Mounting: in which order things start and stop.
//!
//! Nothing is left behind when a step fails: machine and mount point are checked first, the
//! mount is up before a server is started, and all is taken down in the opposite order.

use super::progress::{Progress, Where};
use super::servers::{self, Ground, Look, Servers, Wanted, Wish};
use super::service::{self, Stage};
use super::{Dirs, Failure, ServerArgs, daemon, lock, log, login, metrics};
use crate::cli::{ApprovalArg, HoldArg, MountArgs};
use crate::config::{self, Config, Machine, ServerSpec, Settings, Unused};
use crate::control::{self, Control, Orders, Places, Reload};
use crate::domain::skill::{Approval, Hold, Policy};
use crate::domain::text::{printable, spelt};
use crate::fuse::Upcalls;
use crate::fuse::mount::{self, MountPoint};
use crate::host::report::UnusedStatus;
use crate::host::{Dynamic, Host, Server, Windows};
use crate::source::{Spawner, Target};
use crate::store::PrivateDir;
use crate::store::append::Trail;
use crate::store::cache::Cache;
use crate::store::state::State;
use std::ffi::OsString;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;

/// How long the servers may take to end, all in all.
const SERVERS_PATIENCE: Duration = Duration::from_secs(8);
/// What is in the cache is counted so long after the start, which has better things to do.
const COUNT_AFTER: Duration = Duration::from_secs(2);
/// The log that all daemons of a user share is moved away when it is larger than this.
const LOG: u64 = 4 << 20;
/// Without one of these a mount is none: it shows or tells what is not so.
const THREADS: [&str; 4] = ["writer", "notify", "spawner", "audit"];
/// Blocks of memory from this size on go back to the system as soon as they are free.
#[cfg(target_env = "gnu")]
const RETURNED: i32 = 256 * 1024;

/// A mount has one worker: most of what a read costs is one thread waking another, and what takes
/// long is done elsewhere.
const WORKERS: usize = 1;

pub(super) fn runtime(workers: usize) -> io::Result<tokio::runtime::Runtime> {
    return_memory();
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(workers)
        .enable_all()
        .build()
}

/// Fixes the size from which glibc maps blocks by themselves. Left alone it rises to that of the
/// largest block that was freed, and then each of many heaps keeps room for large files.
#[allow(unsafe_code)]
fn return_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: no safe form exists; it takes two numbers and sets a field of the allocator, under
    // the allocator's lock.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, RETURNED);
    }
}

/// How a mount lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Life {
    /// As a command that goes on until it is told to end.
    Foreground,
    /// In the background, once it is ready.
    Daemon,
}

/// Mounts until it is told to end. `arguments` are those of the command line.
pub(super) fn mount(args: &MountArgs, arguments: &[OsString]) -> Result<(), Failure> {
    let life = match (args.daemon, args.daemon_child) {
        (_, true) => Life::Daemon,
        (true, false) => return daemon::start(arguments),
        (false, false) => Life::Foreground,
    };
    let given = args.mountpoint.clone();
    let log_file = args.log_file.as_deref();
    let (config, _log) = Loaded::new(&args.servers, given, log_file, life)?;
    let place = config.now.settings.mountpoint.clone();
    with_mount(&args.servers, config, &place, life, async |running| {
        let to = match life {
            Life::Foreground => Where::Stdout,
            Life::Daemon => Where::Lines,
        };
        let mut progress = Progress::new(&running.specs, running.host.settled(), to);
        tokio::select! {
            windows = running.end.wait() => return Ok(windows),
            () = progress.ready() => progress.say_ready(&running.path),
        }
        if life == Life::Daemon {
            let gone = |e| Failure::Failed(format!("nobody waits for the mount any more: {e}"));
            daemon::detach().map_err(gone)?;
        }
        let status = format!("mounted at {}", running.path.display());
        service::tell(Stage::Ready(&printable(&status, 1024)));
        tokio::select! {
            windows = running.end.wait() => Ok(windows),
            () = async { progress.all().await; std::future::pending().await } => Ok(Windows::End),
        }
    })
}

/// Sends the log where it was told to go; that of a daemon to a file of the user's in any case.
fn send_log(file: Option<&Path>, life: Life, mountpoint: &Path) -> Result<log::Begun, Failure> {
    let usual = || {
        let dir = Dirs::find().state?.join("mount-skills");
        let dir = PrivateDir::open(&dir).inspect_err(|e| tracing::warn!("no log is kept: {e}"));
        Some(dir.ok()?.path().join("log"))
    };
    let copies = match life {
        Life::Foreground => log::Copies::None,
        Life::Daemon => log::Copies::Stderr,
    };
    let open = |file: &Path| {
        let shown = file.display();
        if is_inside(file, mountpoint) {
            let text = format!("--log-file {shown}: the log must not lie inside the mount");
            return Err(Failure::Usage(text));
        }
        Trail::open(file).map_err(|e| {
            Failure::Failed(format!(
                "the log cannot be written to {shown}: {e}; name another file with --log-file"
            ))
        })
    };
    let (file, signed) = match (file, life) {
        (Some(file), _) => (Some(open(file)?), log::Signed::No),
        (None, Life::Foreground) => (None, log::Signed::No),
        (None, Life::Daemon) => {
            let file = usual().map(|file| open(&file)).transpose()?;
            (file.map(|file| file.within(LOG)), log::Signed::Yes)
        }
    };
    Ok(log::begin(file.map(|file| (file, copies)), signed)?)
}

/// Whether a file, which may not be there yet, is inside the mount, also by way of links.
fn is_inside(file: &Path, mountpoint: &Path) -> bool {
    let real = |path: &Path| {
        let path = std::path::absolute(path).ok()?;
        let in_dir = || Some(path.parent()?.canonicalize().ok()?.join(path.file_name()?));
        path.canonicalize()
            .ok()
            .or_else(in_dir)
            .or(Some(path.clone()))
    };
    let absolute = |path: &Path| std::path::absolute(path).ok();
    [real, absolute]
        .into_iter()
        .any(|of| match (of(file), of(mountpoint)) {
            (Some(file), Some(mountpoint)) => file.starts_with(mountpoint),
            _ => false,
        })
}

/// Mounts, runs a command, unmounts; the command's exit code is ours.
pub(super) fn run(
    servers: &ServerArgs,
    at: Option<&Path>,
    command: &[OsString],
) -> Result<(), Failure> {
    let (config, _log) = Loaded::new(servers, None, None, Life::Foreground)?;
    let place = at.map_or_else(private_place, Path::to_owned);
    with_mount(servers, config, &place, Life::Foreground, async |running| {
        let settled = running.host.settled();
        Progress::new(&running.specs, settled, Where::Stderr)
            .ready()
            .await;
        let Some((program, arguments)) = command.split_first() else {
            return Ok(Windows::End);
        };
        let mut child = tokio::process::Command::new(program)
            .args(arguments)
            .env("MOUNT_SKILLS", &running.path)
            .spawn()
            .map_err(|e| Failure::Failed(format!("{}: {e}", program.display())))?;
        let pid = child
            .id()
            .and_then(|id| rustix::process::Pid::from_raw(id.cast_signed()));
        let status = loop {
            tokio::select! {
                status = child.wait() => break status?,
                signal = running.end.signalled() => {
                    // The terminal sends its signals to the command as well; passing them on
                    // once more does no harm.
                    if let Some(pid) = pid {
                        let _ = rustix::process::kill_process(pid, signal);
                    }
                }
            }
        };
        match status.code().or_else(|| status.signal().map(|s| 128 + s)) {
            Some(0) => Ok(Windows::End),
            code => Err(Failure::Command(
                code.and_then(|c| u8::try_from(c).ok()).unwrap_or(1),
            )),
        }
    })
}

/// The configuration as it is at the start, and how to look at it again.
struct Loaded {
    now: Config,
    wish: Wish,
    look: Option<Look>,
}

impl Loaded {
    /// Reads the configuration, begins the log, and says there what of it is not used.
    fn new(
        args: &ServerArgs,
        mountpoint: Option<PathBuf>,
        log_file: Option<&Path>,
        life: Life,
    ) -> Result<(Self, log::Begun), Failure> {
        // The file with more of it may have something to say as well.
        args.log_format.into_iter().for_each(log::look);
        let machine = Machine::here()?;
        let now = config::load(args, mountpoint.as_deref(), &machine)?;
        log::look(now.settings.log_format);
        // A misspelt command, with a file of our own there to be mounted, is no mount point.
        let word = mountpoint.as_deref();
        let word = word.filter(|_| args.servers.is_empty() && args.configs.is_empty());
        if !now.is_anything() || word.is_some_and(super::is_word) {
            return Err(super::no_servers(mountpoint.as_deref()));
        }
        let begun = send_log(log_file, life, &now.settings.mountpoint)?;
        let wish = wish_of(&now, None, life, machine.dir());
        let (args, settings) = (args.clone(), now.settings.clone());
        let look = move || {
            let then = config::load(&args, mountpoint.as_deref(), &machine);
            let then = then.map_err(|e| printable(&e.to_string(), 2000))?;
            Ok(wish_of(&then, Some(&settings), life, machine.dir()))
        };
        let look = (!now.files.is_empty()).then(|| Arc::new(look) as Look);
        Ok((Self { now, wish, look }, begun))
    }
}

/// What a configuration asks of the servers; says what of it is not used. `before` are the settings
/// that the mount goes by already.
fn wish_of(config: &Config, before: Option<&Settings>, life: Life, start: &Path) -> Wish {
    for text in config.warnings() {
        tracing::warn!("{}", printable(&text, 2000));
    }
    let mut servers = wanted(config);
    if life == Life::Daemon {
        let targets = servers.iter_mut().map(|w| &mut w.spec.target);
        targets.for_each(|target| stay_put(target, start));
    }
    let differs = |before: &Settings| {
        let pairs = before.shown.iter().zip(&config.settings.shown);
        let other = pairs.filter(|(a, b)| a.value != b.value);
        other.map(|(a, _)| a.name.to_owned()).collect()
    };
    Wish {
        servers,
        skills: config.skills.clone(),
        unused: config.unused.iter().map(left_out).collect(),
        later: before.map(differs).unwrap_or_default(),
    }
}

/// The servers that a configuration asks for.
pub(super) fn wanted(config: &Config) -> Vec<Wanted> {
    let wanted = |spec: &ServerSpec| Wanted {
        spec: spec.clone(),
        dynamic: match config.allow_dynamic.contains(&spec.label) {
            true => Dynamic::Allowed,
            false => Dynamic::Declined,
        },
    };
    config.servers.iter().map(wanted).collect()
}

/// Has a server start where we did, also when we have moved on to another directory.
fn stay_put(target: &mut Target, start: &Path) {
    let Target::Command(launch) = target else {
        return;
    };
    let cwd = start.join(launch.cwd.take().unwrap_or_default());
    if let Some(program) = launch.argv.first_mut().filter(|p| p.contains('/')) {
        *program = cwd.join(&*program).display().to_string();
    }
    launch.cwd = Some(cwd);
}

/// A place of its own for the mount of one command.
fn private_place() -> PathBuf {
    let base = std::env::var_os("XDG_RUNTIME_DIR")
        .map(PathBuf::from)
        .filter(|p| p.is_dir());
    let base = base.unwrap_or_else(std::env::temp_dir);
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let nanos = now.map_or(0, |d| d.subsec_nanos());
    base.join(format!("mount-skills-{}-{nanos}", std::process::id()))
}

/// A mount that is up, with its servers starting.
struct Running {
    host: Arc<Host>,
    specs: Vec<ServerSpec>,
    path: PathBuf,
    end: End,
}

/// Puts a mount up, lets `work` use it, and takes it down. The work says what becomes of the windows.
fn with_mount(
    args: &ServerArgs,
    config: Loaded,
    mountpoint: &Path,
    life: Life,
    work: impl AsyncFnOnce(&mut Running) -> Result<Windows, Failure>,
) -> Result<(), Failure> {
    // Memory holds what other servers sent, and URLs with passwords: programs of this user must
    // not read it, nor must a core file.
    rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable)
        .map_err(io::Error::from)?;
    log::end_without(&THREADS);
    let locked = args.locked.as_deref().map(lock::load).transpose()?;
    mount::check_machine()?;
    let point = MountPoint::prepare(mountpoint)?;
    // One that was unmounted a moment ago may not have stored all that this one goes on with.
    control::wait_for_end(&Dirs::find().control(), point.path(), mount::ENDING);
    // Fails only if another one was installed before, which serves as well.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime = runtime(WORKERS)?;
    let result = runtime.block_on(async {
        let storage = Storage::open(&config.now.settings, point.path(), locked)?;
        serve_mount(args, config, storage, point, life, work).await
    });
    // Reads that still wait are answered by the kernel once the process is gone.
    runtime.shutdown_background();
    result
}

async fn serve_mount(
    args: &ServerArgs,
    config: Loaded,
    storage: Storage,
    point: MountPoint,
    life: Life,
    work: impl AsyncFnOnce(&mut Running) -> Result<Windows, Failure>,
) -> Result<(), Failure> {
    let path = point.path().to_owned();
    let Loaded { now, wish, look } = config;
    let told = wish.servers.iter().map(|w| storage.server(w));
    let told: Vec<Server> = told.collect();
    if args.new_session {
        Storage::drop_windows(&told);
    }
    let trail = trail(&now.settings, &path)?;
    let listener = match now.settings.metrics {
        Some(address) => Some(metrics::Listener::bind(address).await?),
        None => None,
    };
    let places = Places {
        audit: trail.as_ref().map(|(_, path)| path.display().to_string()),
        metrics: listener.as_ref().map(|l| l.url.clone()),
    };
    let (policy, cache) = (policy(args, &now.settings), storage.cache.clone());
    let (host, inbox) = Host::new(told, policy, cache, path.clone(), now.settings.timeout);
    if let Some((mut trail, path)) = trail {
        let named =
            move |e: io::Error| io::Error::new(e.kind(), format!("{}: {e}", path.display()));
        host.audit(Box::new(move |line| trail.append(line).map_err(&named)))?;
    }
    let upcalls = Arc::<Upcalls>::default();
    let (changes, batches) = mpsc::channel();
    let handle = tokio::runtime::Handle::current();
    let (unmount, asked) = tokio::sync::mpsc::channel(1);
    let (reload, reloads) = tokio::sync::mpsc::channel(4);
    let hangup = match (life, &look) {
        (Life::Foreground, None) => Hangup::Ends,
        (Life::Foreground, Some(_)) => Hangup::Reloads(Terminal::find()),
        (Life::Daemon, None) => Hangup::Reopens,
        (Life::Daemon, Some(_)) => Hangup::Reloads(Terminal::None),
    };
    let mut end = End::new(asked, hangup, reload.clone())?;
    let (mounted, gone) = mount::mount(
        point,
        &host,
        &handle,
        &upcalls,
        batches,
        now.settings.access,
    )?;
    end.gone = Some(gone);
    if let Some(listener) = listener {
        let (host, upcalls) = (Arc::clone(&host), Arc::clone(&upcalls));
        let figures = Arc::new(move || host.metrics(upcalls.figures()));
        tokio::spawn(listener.serve(figures));
    }
    let control = match Control::bind(&Dirs::find().control(), &path) {
        Ok(control) => {
            let figures = Arc::new(move || upcalls.figures());
            let log_level = log::level;
            let orders = Orders {
                unmount,
                reload,
                log_level,
                places,
            };
            Some(tokio::spawn(control.serve(
                Arc::clone(&host),
                figures,
                orders,
            )))
        }
        Err(e) => {
            tracing::warn!("commands such as status and unmount will not work: {e}");
            None
        }
    };
    // On a thread of its own: the tree of a large server is a moment's work.
    let writer = Arc::clone(&host).run(inbox, changes);
    let writer = std::thread::Builder::new()
        .name("writer".into())
        .spawn(move || handle.block_on(writer));
    let guard = mounted.guard();
    let spawner = writer.and_then(|_| {
        Spawner::start(Arc::new(move |group, alive| match alive {
            true => guard.watch_group(group),
            false => guard.forget_group(group),
        }))
    });
    let spawner = match spawner {
        Ok(spawner) => spawner,
        Err(e) => {
            mounted.unmount();
            mounted.guard().dismiss();
            return Err(e.into());
        }
    };
    let ground = Ground {
        host: Arc::clone(&host),
        spawner,
        start_timeout: now.settings.start_timeout,
        state: storage.state.clone(),
        open: Arc::new(move |wanted| storage.server(wanted)),
        vault: login::vault,
    };
    let servers = Servers::start(ground, wish).run(look, reloads);
    let mut running = Running {
        host,
        specs: now.servers,
        path,
        end,
    };
    let result = work(&mut running).await;
    service::tell(Stage::Stopping);
    mounted.unmount();
    // A reload that waits for a file system that is silent must not keep the rest from ending.
    let _ = tokio::time::timeout(SERVERS_PATIENCE, servers.stop()).await;
    running.host.end(*result.as_ref().unwrap_or(&Windows::End));
    mounted.guard().dismiss();
    // Its socket is the last to go: whoever waits for the end waits for that.
    if let Some(control) = control {
        control.abort();
        let _ = control.await;
    }
    result.map(drop)
}

/// A server that is not used, for the status.
fn left_out(unused: &Unused) -> UnusedStatus {
    UnusedStatus {
        label: spelt(&unused.name),
        from: printable(&unused.place.to_string(), 500),
        reason: printable(&unused.why.to_string(), 2000),
    }
}

fn policy(args: &ServerArgs, settings: &Settings) -> Policy {
    let approval = match settings.approval {
        _ if args.locked.is_some() => Approval::Each,
        ApprovalArg::Server => Approval::Server,
        ApprovalArg::Each => Approval::Each,
    };
    let hold = match settings.hold {
        HoldArg::Release => Hold::Release,
        HoldArg::Reload => Hold::Reload,
        HoldArg::None => Hold::None,
    };
    Policy { hold, approval }
}

/// Where cache and state are: neither inside the mount, nor where agents look for skills.
pub(super) fn kept_in(settings: &Settings, mountpoint: &Path) -> Result<Dirs, Failure> {
    let dirs = Dirs::find();
    let given = settings.cache_dir.as_deref().map(std::path::absolute);
    let given = given.transpose()?;
    if let Some(dir) = &given {
        mount::refuse_discovery_path(dir).map_err(|e| Failure::Usage(e.to_string()))?;
    }
    let kept = Dirs {
        cache: given.or(dirs.cache),
        state: dirs.state,
    };
    for dir in [&kept.cache, &kept.state].into_iter().flatten() {
        if dir.starts_with(mountpoint) {
            let text = format!(
                "{}: the cache and the state must not lie inside the mount",
                dir.display()
            );
            return Err(Failure::Usage(text));
        }
    }
    Ok(kept)
}

/// The audit trail, if there is to be one, and where it is: not inside the mount, where nothing
/// can be written.
fn trail(settings: &Settings, mountpoint: &Path) -> Result<Option<(Trail, PathBuf)>, Failure> {
    let Some(file) = &settings.audit else {
        return Ok(None);
    };
    let file = std::path::absolute(file)?;
    let shown = file.display();
    if is_inside(&file, mountpoint) {
        let text = format!("--audit {shown}: the audit trail must not lie inside the mount");
        return Err(Failure::Usage(text));
    }
    match Trail::open(&file) {
        Ok(trail) => Ok(Some((trail, file))),
        Err(e) => Err(Failure::Failed(format!(
            "the audit trail cannot be written to {shown}: {e}; name another file with --audit"
        ))),
    }
}

/// Cache and state. Neither is needed to read skills: what cannot be used is a warning.
struct Storage {
    cache: Option<Arc<Cache>>,
    state: Option<PathBuf>,
    mountpoint: PathBuf,
    locked: Option<lock::Locked>,
}

impl Storage {
    fn open(
        settings: &Settings,
        mountpoint: &Path,
        locked: Option<lock::Locked>,
    ) -> Result<Self, Failure> {
        let Dirs { cache, state } = kept_in(settings, mountpoint)?;
        let cache = cache.and_then(|dir| {
            Cache::open(&dir, settings.cache_size << 20)
                .inspect_err(|e| unused("the disk cache", e))
                .ok()
        });
        if let Some(cache) = cache.clone() {
            tokio::spawn(async move {
                tokio::time::sleep(COUNT_AFTER).await;
                let _ = tokio::task::spawn_blocking(move || cache.count()).await;
            });
        }
        Ok(Self {
            cache,
            state,
            mountpoint: mountpoint.to_owned(),
            locked,
        })
    }

    /// What the host is told of a server.
    fn server(&self, wanted: &Wanted) -> Server {
        let Wanted { spec, dynamic } = wanted;
        let shelf = self.cache.as_ref().and_then(|cache| {
            let shelf = cache.shelf(&spec.label, &spec.identity);
            shelf.inspect_err(|e| unused("the disk cache", e)).ok()
        });
        let state = self.state.as_ref().and_then(|dir| {
            let state = State::open(dir, &spec.label, &spec.identity, &self.mountpoint);
            state.inspect_err(|e| unused("the stored state", e)).ok()
        });
        let locked = self.locked.as_ref();
        Server {
            label: spec.label.clone(),
            shown: spec.shown.clone(),
            identity: spec.identity.clone(),
            shelf,
            state,
            dynamic: *dynamic,
            locked: locked.map(|l| lock::verdicts(l, spec.label.as_str())),
        }
    }

    /// Forgets the windows that an earlier run left open.
    fn drop_windows(servers: &[Server]) {
        for state in servers.iter().filter_map(|s| s.state.as_ref()) {
            if let Err(e) = state.save_windows(&[]) {
                unused("--new-session", &e);
            }
        }
    }
}

fn unused(what: &str, e: &dyn std::fmt::Display) {
    tracing::warn!("{what} is not used: {e}");
}

/// What a hang-up means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Hangup {
    /// The end, as of other programs at a terminal.
    Ends,
    /// That the log is opened anew.
    Reopens,
    /// That the configuration is read again, unless the terminal has gone.
    Reloads(Terminal),
}

/// Whether there is a terminal that may go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Terminal {
    There,
    None,
}

impl Terminal {
    /// Looks for the controlling terminal, which cannot be opened once it is gone.
    fn find() -> Self {
        match std::fs::File::open("/dev/tty") {
            Ok(_) => Self::There,
            Err(_) => Self::None,
        }
    }
}

/// What ends a mount, and what a hang-up does.
struct End {
    signals: [(Signal, rustix::process::Signal); 3],
    gone: Option<oneshot::Receiver<()>>,
    asked: tokio::sync::mpsc::Receiver<Windows>,
    hangup: Hangup,
    reload: tokio::sync::mpsc::Sender<Reload>,
}

impl End {
    fn new(
        asked: tokio::sync::mpsc::Receiver<Windows>,
        hangup: Hangup,
        reload: tokio::sync::mpsc::Sender<Reload>,
    ) -> io::Result<Self> {
        // Under a limit on the size of files a write must fail, not end the program: the handler
        // stays when this goes.
        drop(signal(SignalKind::from_raw(libc::SIGXFSZ))?);
        let signals = [
            (
                signal(SignalKind::terminate())?,
                rustix::process::Signal::TERM,
            ),
            (
                signal(SignalKind::interrupt())?,
                rustix::process::Signal::INT,
            ),
            (signal(SignalKind::hangup())?, rustix::process::Signal::HUP),
        ];
        Ok(Self {
            signals,
            gone: None,
            asked,
            hangup,
            reload,
        })
    }

    /// Waits for a signal.
    async fn signalled(&mut self) -> rustix::process::Signal {
        signalled(&mut self.signals).await
    }

    /// Waits for a signal that ends the mount, the user's word, or the mount's disappearance; says
    /// what becomes of the windows. May be dropped and called again.
    async fn wait(&mut self) -> Windows {
        loop {
            let gone = async {
                match &mut self.gone {
                    Some(gone) => drop(gone.await),
                    None => std::future::pending().await,
                }
            };
            let signal = tokio::select! {
                signal = signalled(&mut self.signals) => signal,
                () = gone => return Windows::End,
                Some(windows) = self.asked.recv() => return windows,
            };
            if signal != rustix::process::Signal::HUP {
                return Windows::End;
            }
            match self.hangup {
                Hangup::Reopens => log::reopen(),
                Hangup::Reloads(terminal)
                    if terminal == Terminal::None || Terminal::find() == terminal =>
                {
                    tokio::spawn(reload(self.reload.clone()));
                }
                Hangup::Reloads(_) | Hangup::Ends => return Windows::End,
            }
        }
    }
}

async fn signalled(
    signals: &mut [(Signal, rustix::process::Signal); 3],
) -> rustix::process::Signal {
    let [(term, a), (int, b), (hup, c)] = signals;
    tokio::select! {
        _ = term.recv() => *a,
        _ = int.recv() => *b,
        _ = hup.recv() => *c,
    }
}

/// Has the configuration read again; what comes of it goes to the log.
async fn reload(reload: tokio::sync::mpsc::Sender<Reload>) {
    match servers::ask(&reload).await {
        Ok(changes) => tracing::info!("reloaded: {changes}"),
        Err(e) => tracing::warn!("not reloaded: {e}"),
    }
}
