//! Mounting: in which order things start and stop.
//!
//! Nothing is left behind when a step fails: machine and mount point are checked first, the
//! mount is up before a server is started, and all is taken down in the opposite order.

use super::progress::{self, Where};
use super::{Dirs, Failure, ServerArgs, lock, login};
use crate::cli::{ApprovalArg, HoldArg, MountArgs};
use crate::config::credentials::{self, Given};
use crate::config::{self, ServerSpec};
use crate::control::Control;
use crate::domain::name::Label;
use crate::domain::skill::{Approval, Hold, Policy};
use crate::fuse::Upcalls;
use crate::fuse::mount::{self, MountPoint, Mounted};
use crate::host::{Dynamic, Host, Server};
use crate::source::Spawner;
use crate::source::session::Session;
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

/// How long the servers may take to end before the daemon ends without them.
const STOP_PATIENCE: Duration = Duration::from_secs(4);
/// How long a skill named on the command line waits between tries, while its server starts.
const ADD_GAP: Duration = Duration::from_secs(1);

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

/// Mounts until it is told to end.
pub(super) fn mount(args: &MountArgs) -> Result<(), Failure> {
    with_mount(&args.servers, &args.mountpoint, async |running| {
        let shown = progress::show(
            &running.specs,
            running.host.settled(),
            Where::Stdout(&running.path),
        );
        tokio::select! {
            () = running.end.wait() => {}
            () = async { shown.await; std::future::pending().await } => {}
        }
        Ok(())
    })
}

/// Mounts, runs a command, unmounts; the command's exit code is ours.
pub(super) fn run(
    servers: &ServerArgs,
    at: Option<&Path>,
    command: &[OsString],
) -> Result<(), Failure> {
    let place = at.map_or_else(private_place, Path::to_owned);
    with_mount(servers, &place, async |running| {
        let settled = running.host.settled();
        progress::show(&running.specs, settled, Where::Stderr).await;
        let Some((program, arguments)) = command.split_first() else {
            return Ok(());
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
            Some(0) => Ok(()),
            code => Err(Failure::Command(
                code.and_then(|c| u8::try_from(c).ok()).unwrap_or(1),
            )),
        }
    })
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

/// Puts a mount up, lets `work` use it, and takes it down.
fn with_mount(
    args: &ServerArgs,
    mountpoint: &Path,
    work: impl AsyncFnOnce(&mut Running) -> Result<(), Failure>,
) -> Result<(), Failure> {
    // Memory holds what other servers sent, and URLs with passwords: programs of this user must
    // not read it, nor must a core file.
    rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable)
        .map_err(io::Error::from)?;
    let program = std::env::current_exe()?.display().to_string();
    let find_dir = |path: &Path| path.is_dir().then(|| path.canonicalize().ok()).flatten();
    let mut specs = config::parse_servers(&args.servers, &program, &find_dir)
        .map_err(|e| Failure::Usage(e.to_string()))?;
    let given = Given {
        headers: &args.headers,
        bearer_env: &args.bearer_env,
        bearer_file: &args.bearer_file,
    };
    credentials::give(&mut specs, given, &|name| std::env::var(name).ok())
        .map_err(|e| Failure::Usage(e.to_string()))?;
    let named = named_skills(args, &specs)?;
    if let Some(label) = args
        .allow_dynamic
        .iter()
        .find(|l| !specs.iter().any(|s| s.label.as_str() == **l))
    {
        return Err(Failure::Usage(format!(
            "--allow-dynamic {label:?}: no --server has this label"
        )));
    }
    let locked = args.locked.as_deref().map(lock::load).transpose()?;
    mount::check_machine()?;
    let point = MountPoint::prepare(mountpoint)?;
    // Fails only if another one was installed before, which serves as well.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime = runtime(WORKERS)?;
    let result = runtime.block_on(async {
        let servers = storage(args, &specs, point.path(), locked.as_ref())?;
        serve_mount(args, specs, named, servers, point, work).await
    });
    // Reads that still wait are answered by the kernel once the process is gone.
    runtime.shutdown_background();
    result
}

async fn serve_mount(
    args: &ServerArgs,
    specs: Vec<ServerSpec>,
    named: Vec<(Label, String)>,
    (servers, cache): (Vec<Server>, Option<Arc<Cache>>),
    point: MountPoint,
    work: impl AsyncFnOnce(&mut Running) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let path = point.path().to_owned();
    let timeout = Duration::from_secs_f64(args.timeout);
    let (host, inbox) = Host::new(servers, policy(args), cache, path.clone(), timeout);
    let upcalls = Arc::<Upcalls>::default();
    let (changes, batches) = mpsc::channel();
    let handle = tokio::runtime::Handle::current();
    let mut end = End::new()?;
    let (mounted, gone) = mount::mount(point, &host, &handle, &upcalls, batches)?;
    end.gone = Some(gone);
    let (unmount, asked) = tokio::sync::mpsc::channel(1);
    end.asked = Some(asked);
    let control = match Control::bind(&Dirs::find().control(), &path) {
        Ok(control) => {
            let figures = Arc::new(move || upcalls.figures());
            Some(tokio::spawn(control.serve(
                Arc::clone(&host),
                figures,
                unmount,
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
    let started = writer.and_then(|_| start_sessions(args, &specs, &host, &mounted));
    let sessions = match started {
        Ok(sessions) => sessions,
        Err(e) => {
            mounted.unmount();
            mounted.guard().dismiss();
            return Err(e.into());
        }
    };
    for (label, uri) in named {
        tokio::spawn(add(Arc::clone(&host), label, uri));
    }
    let mut running = Running {
        host,
        specs,
        path,
        end,
    };
    let result = work(&mut running).await;
    mounted.unmount();
    let stops: Vec<_> = sessions
        .into_iter()
        .map(|s| tokio::spawn(s.stop()))
        .collect();
    let stopped = async {
        for stop in stops {
            let _ = stop.await;
        }
    };
    let _ = tokio::time::timeout(STOP_PATIENCE, stopped).await;
    running.host.end();
    mounted.guard().dismiss();
    // Its socket is the last to go: whoever waits for the end waits for that.
    if let Some(control) = control {
        control.abort();
        let _ = control.await;
    }
    result
}

fn policy(args: &ServerArgs) -> Policy {
    let approval = match args.approval {
        _ if args.locked.is_some() => Approval::Each,
        ApprovalArg::Server => Approval::Server,
        ApprovalArg::Each => Approval::Each,
    };
    let hold = match args.hold {
        HoldArg::Release => Hold::Release,
        HoldArg::Reload => Hold::Reload,
        HoldArg::None => Hold::None,
    };
    Policy { hold, approval }
}

/// Reads the `--skill` values: each names a server that is there.
fn named_skills(args: &ServerArgs, specs: &[ServerSpec]) -> Result<Vec<(Label, String)>, Failure> {
    let one = |text: &String| {
        let usage = |why: &str| Failure::Usage(format!("--skill {text:?}: {why}"));
        let (label, uri) = text
            .split_once('=')
            .ok_or_else(|| usage("write LABEL=URI"))?;
        let spec = specs.iter().find(|s| s.label.as_str() == label);
        let spec = spec.ok_or_else(|| usage("no --server has this label"))?;
        Ok((spec.label.clone(), uri.to_owned()))
    };
    args.skills.iter().map(one).collect()
}

/// Adds a skill named on the command line as soon as its server answers.
async fn add(host: Arc<Host>, label: Label, uri: String) {
    loop {
        match host.add(label.as_str(), &uri).await {
            Ok(_) => return,
            Err(e) if host.is_waiting(&label) => {
                tracing::debug!("{e}");
                tokio::time::sleep(ADD_GAP).await;
            }
            Err(e) => {
                tracing::warn!("{e}");
                return;
            }
        }
    }
}

/// Opens cache and state. Neither is needed to read skills: what cannot be used is a warning.
fn storage(
    args: &ServerArgs,
    specs: &[ServerSpec],
    mountpoint: &Path,
    locked: Option<&lock::Locked>,
) -> Result<(Vec<Server>, Option<Arc<Cache>>), Failure> {
    let dirs = Dirs::find();
    let cache_dir = args.cache_dir.clone().or(dirs.cache);
    for dir in [&cache_dir, &dirs.state].into_iter().flatten() {
        if dir.starts_with(mountpoint) {
            let text = format!(
                "{}: the cache and the state must not lie inside the mount",
                dir.display()
            );
            return Err(Failure::Usage(text));
        }
    }
    if let Some(dir) = &args.cache_dir {
        mount::refuse_discovery_path(dir).map_err(|e| Failure::Usage(e.to_string()))?;
    }
    let warn = |what: &str, e: &dyn std::fmt::Display| {
        tracing::warn!("{what} is not used: {e}");
    };
    let cache = cache_dir.and_then(|dir| {
        Cache::open(&dir, args.cache_size << 20)
            .inspect_err(|e| warn("the disk cache", e))
            .ok()
    });
    if let Some(cache) = cache.clone() {
        tokio::task::spawn_blocking(move || cache.count());
    }
    let server = |spec: &ServerSpec| {
        let shelf = cache.as_ref().and_then(|cache| {
            let shelf = cache.shelf(&spec.label, &spec.identity);
            shelf.inspect_err(|e| warn("the disk cache", e)).ok()
        });
        let state = dirs.state.as_ref().and_then(|dir| {
            let state = State::open(dir, &spec.label, &spec.identity, mountpoint);
            state.inspect_err(|e| warn("the stored state", e)).ok()
        });
        if let Some(Err(e)) = state
            .as_ref()
            .filter(|_| args.new_session)
            .map(|s| s.save_windows(&[]))
        {
            warn("--new-session", &e);
        }
        Server {
            label: spec.label.clone(),
            shown: spec.shown.clone(),
            identity: spec.identity.clone(),
            shelf,
            state,
            dynamic: match args.allow_dynamic.iter().any(|l| l == spec.label.as_str()) {
                true => Dynamic::Allowed,
                false => Dynamic::Declined,
            },
            locked: locked.map(|l| lock::verdicts(l, spec.label.as_str())),
        }
    };
    let servers = specs.iter().map(server).collect();
    Ok((servers, cache))
}

fn start_sessions(
    args: &ServerArgs,
    specs: &[ServerSpec],
    host: &Arc<Host>,
    mounted: &Mounted,
) -> io::Result<Vec<Session>> {
    let guard = mounted.guard();
    let spawner = Spawner::start(Arc::new(move |group, alive| match alive {
        true => guard.watch_group(group),
        false => guard.forget_group(group),
    }))?;
    let start_timeout = Duration::from_secs_f64(args.start_timeout);
    Ok((1u16..)
        .zip(specs)
        .map(|(slot, spec)| {
            let events = Arc::clone(host);
            let session = Session::start(
                &spec.label,
                spec.target.clone(),
                login::vault(spec),
                spawner.clone(),
                start_timeout,
                Arc::new(move |event| events.event(slot, event)),
            );
            host.attach(slot, session.source());
            session
        })
        .collect())
}

/// What ends a mount.
struct End {
    signals: [(Signal, rustix::process::Signal); 3],
    gone: Option<oneshot::Receiver<()>>,
    asked: Option<tokio::sync::mpsc::Receiver<()>>,
}

impl End {
    fn new() -> io::Result<Self> {
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
            asked: None,
        })
    }

    /// Waits for a signal.
    async fn signalled(&mut self) -> rustix::process::Signal {
        let [(term, a), (int, b), (hup, c)] = &mut self.signals;
        tokio::select! {
            _ = term.recv() => *a,
            _ = int.recv() => *b,
            _ = hup.recv() => *c,
        }
    }

    /// Waits for a signal, the user's word, or the mount's disappearance.
    async fn wait(&mut self) {
        let (mut gone, mut asked) = (self.gone.take(), self.asked.take());
        let gone = async {
            match &mut gone {
                Some(gone) => drop(gone.await),
                None => std::future::pending().await,
            }
        };
        let asked = async {
            match &mut asked {
                Some(asked) => drop(asked.recv().await),
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = self.signalled() => {}
            () = gone => {}
            () = asked => {}
        }
    }
}
