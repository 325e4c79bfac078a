//! The only wiring: who is plugged into whom, in which order things start and stop.
//!
//! One function a subcommand. A mount starts so that nothing is left behind when a step fails:
//! machine and mount point are checked first, the mount is up before a server is started, and
//! all is taken down in the opposite order.

use crate::cli::{AskArgs, Cli, Command, MountArgs, print};
use crate::config::{self, ServerSpec};
use crate::control::{self, Control, ControlError, Reply, Verb};
use crate::fuse::Upcalls;
use crate::fuse::mount::{self, MountError, MountPoint, Mounted};
use crate::host::report::Status;
use crate::host::{Host, Server};
use crate::serve::{self, Watch};
use crate::source::Spawner;
use crate::source::session::Session;
use crate::store::cache::Cache;
use crate::store::state::State;
use etcetera::BaseStrategy;
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;

/// How long `ready` waits for the servers' first word, so that a slow one does not hold it up.
const READY_PATIENCE: Duration = Duration::from_secs(5);
/// How long the servers may take to end before the daemon ends without them.
const STOP_PATIENCE: Duration = Duration::from_secs(4);

/// How a run ends: the exit code says what kind of trouble it was.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The command line makes no sense (exit code 2).
    #[error("{0}")]
    Usage(String),
    /// It could not be done (exit code 1).
    #[error("{0}")]
    Failed(String),
}

impl Failure {
    /// The exit code.
    pub fn code(&self) -> u8 {
        match self {
            Self::Usage(_) => 2,
            Self::Failed(_) => 1,
        }
    }
}

impl From<MountError> for Failure {
    fn from(e: MountError) -> Self {
        Self::Failed(e.to_string())
    }
}

impl From<ControlError> for Failure {
    fn from(e: ControlError) -> Self {
        Self::Failed(e.to_string())
    }
}

impl From<io::Error> for Failure {
    fn from(e: io::Error) -> Self {
        Self::Failed(e.to_string())
    }
}

/// Does what the command line asks.
pub fn run(cli: Cli) -> Result<(), Failure> {
    match cli.command {
        None => mount(&cli.mount),
        Some(Command::List(args)) => ask(&args, print::list),
        Some(Command::Status(args)) => ask(&args, print::status),
        Some(Command::Unmount { mountpoint }) => unmount(mountpoint.as_deref()),
        Some(Command::Serve { dir, http, watch }) => {
            let watch = if watch { Watch::Yes } else { Watch::No };
            let ready = |url: &str| {
                let _ = say(&format!("serving {} at {url}", dir.display()));
            };
            let options = serve::Options {
                dir: dir.clone(),
                http,
                watch,
            };
            let served = runtime()?.block_on(serve::serve(options, ready));
            served.map_err(|e| Failure::Failed(format!("{}: {e}", dir.display())))
        }
        Some(Command::Guard { mountpoint, device }) => {
            mount::guard(&mountpoint, &device);
            Ok(())
        }
    }
}

/// Writes a line to stdout; a reader that went away is no fault of ours.
fn say(line: &str) -> io::Result<()> {
    match writeln!(io::stdout().lock(), "{line}") {
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other,
    }
}

fn runtime() -> io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
}

fn ask(args: &AskArgs, print: fn(&Status) -> String) -> Result<(), Failure> {
    let status = match control::ask(args.mountpoint.as_deref(), Verb::Status)? {
        Reply::Status(status) => status,
        Reply::Error(e) => return Err(Failure::Failed(e)),
        Reply::Ok => return Err(Failure::Failed("the daemon gave another answer".into())),
    };
    let text = if args.json {
        serde_json::to_string_pretty(&status).map_err(io::Error::from)?
    } else {
        print(&status)
    };
    Ok(say(text.trim_end())?)
}

fn unmount(mountpoint: Option<&Path>) -> Result<(), Failure> {
    match control::ask(mountpoint, Verb::Unmount) {
        Ok(Reply::Ok | Reply::Status(_)) => Ok(()),
        Ok(Reply::Error(e)) => Err(Failure::Failed(e)),
        Err(ControlError::None { at }) => Ok(say(&format!("nothing is mounted{at}"))?),
        Err(e) => Err(e.into()),
    }
}

fn mount(args: &MountArgs) -> Result<(), Failure> {
    let program = std::env::current_exe()?.display().to_string();
    let find_dir = |path: &Path| path.is_dir().then(|| path.canonicalize().ok()).flatten();
    let specs = config::parse_servers(&args.servers, &program, &find_dir)
        .map_err(|e| Failure::Usage(e.to_string()))?;
    mount::check_machine()?;
    let point = MountPoint::prepare(&args.mountpoint)?;
    // Fails only if another one was installed before, which serves as well.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime = runtime()?;
    let result = runtime.block_on(serve_mount(args, specs, point));
    // Reads that still wait are answered by the kernel once the process is gone.
    runtime.shutdown_background();
    result
}

async fn serve_mount(
    args: &MountArgs,
    specs: Vec<ServerSpec>,
    point: MountPoint,
) -> Result<(), Failure> {
    let path = point.path().to_owned();
    let (servers, cache) = storage(args, &specs, &path)?;
    let timeout = Duration::from_secs_f64(args.timeout);
    let (host, inbox) = Host::new(servers, cache, path.clone(), timeout);
    let upcalls = Arc::<Upcalls>::default();
    let (changes, batches) = mpsc::channel();
    let handle = tokio::runtime::Handle::current();
    let (mounted, gone) = mount::mount(point, &host, &handle, &upcalls, batches)?;
    tokio::spawn(Arc::clone(&host).run(inbox, changes));

    let mut end = End::new(gone)?;
    let (unmount, asked) = tokio::sync::mpsc::channel(1);
    end.asked = Some(asked);
    let control = match Control::bind(&path) {
        Ok(control) => {
            let figures = Arc::new(move || upcalls.figures());
            Some(tokio::spawn(control.serve(
                Arc::clone(&host),
                figures,
                unmount,
            )))
        }
        Err(e) => {
            tracing::warn!("list, status and unmount will not work: {e}");
            None
        }
    };
    let started = start_sessions(args, &specs, &host, &mounted);
    let sessions = match started {
        Ok(sessions) => sessions,
        Err(e) => {
            mounted.unmount();
            return Err(e.into());
        }
    };
    let progress = tokio::spawn(progress(specs, host.settled(), path));
    end.wait().await;
    progress.abort();
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
    if let Some(control) = control {
        // Waited for: its socket goes when it does, and the process may be faster.
        control.abort();
        let _ = control.await;
    }
    Ok(())
}

/// Opens cache and state. Neither is needed to read skills: what cannot be used is a warning.
fn storage(
    args: &MountArgs,
    specs: &[ServerSpec],
    mountpoint: &Path,
) -> Result<(Vec<Server>, Option<Arc<Cache>>), Failure> {
    let xdg = etcetera::base_strategy::Xdg::new();
    let cache_dir = args
        .cache_dir
        .clone()
        .or_else(|| xdg.as_ref().ok().map(|x| x.cache_dir()));
    let state_dir = xdg.as_ref().ok().and_then(|x| x.state_dir());
    for dir in [&cache_dir, &state_dir].into_iter().flatten() {
        if dir.starts_with(mountpoint) {
            let text = format!(
                "{}: the cache and the state must not lie inside the mount",
                dir.display()
            );
            return Err(Failure::Usage(text));
        }
    }
    if let Some(dir) = &args.cache_dir {
        mount::refuse_discovery_path(dir)?;
    }
    let warn = |what: &str, e: &dyn std::fmt::Display| {
        tracing::warn!("{what} is not used: {e}");
    };
    let cache = cache_dir.and_then(|dir| {
        Cache::open(&dir, args.cache_size << 20)
            .inspect_err(|e| warn("the disk cache", e))
            .ok()
    });
    let servers = specs
        .iter()
        .map(|spec| Server {
            label: spec.label.clone(),
            shown: spec.shown.clone(),
            identity: spec.identity.clone(),
            shelf: cache.as_ref().and_then(|cache| {
                cache
                    .shelf(&spec.label, &spec.identity)
                    .inspect_err(|e| warn("the disk cache", e))
                    .ok()
            }),
            state: state_dir.as_ref().and_then(|dir: &PathBuf| {
                State::open(dir, &spec.label, &spec.identity)
                    .inspect_err(|e| warn("the stored state", e))
                    .ok()
            }),
        })
        .collect();
    Ok((servers, cache))
}

fn start_sessions(
    args: &MountArgs,
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
                spec.target.clone(),
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
    signals: [tokio::signal::unix::Signal; 3],
    gone: oneshot::Receiver<()>,
    asked: Option<tokio::sync::mpsc::Receiver<()>>,
}

impl End {
    fn new(gone: oneshot::Receiver<()>) -> io::Result<Self> {
        // Under a limit on the size of files a write must fail, not end the program: the handler
        // stays when this goes.
        drop(signal(SignalKind::from_raw(libc::SIGXFSZ))?);
        let signals = [
            signal(SignalKind::terminate())?,
            signal(SignalKind::interrupt())?,
            signal(SignalKind::hangup())?,
        ];
        Ok(Self {
            signals,
            gone,
            asked: None,
        })
    }

    async fn wait(&mut self) {
        let [term, int, hup] = &mut self.signals;
        let asked = async {
            match &mut self.asked {
                Some(asked) => asked.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = term.recv() => {}
            _ = int.recv() => {}
            _ = hup.recv() => {}
            _ = &mut self.gone => {}
            Some(()) = asked => {}
        }
    }
}

/// A line a server as it connects, then `ready`.
async fn progress(
    specs: Vec<ServerSpec>,
    mut settled: tokio::sync::watch::Receiver<Vec<Option<String>>>,
    path: PathBuf,
) {
    let started = Instant::now();
    let width = specs
        .iter()
        .map(|s| s.label.as_str().len())
        .max()
        .unwrap_or(0);
    let lines = if io::stdout().is_terminal() {
        Lines::Spinners(MultiProgress::new(), Vec::new())
    } else {
        Lines::Plain
    };
    let mut lines = lines.start(&specs, width);
    let mut shown = vec![false; specs.len()];
    let mut ready = false;
    loop {
        let now = settled.borrow_and_update().clone();
        for (index, (spec, line)) in specs.iter().zip(&now).enumerate() {
            if let (Some(line), Some(shown @ false)) = (line, shown.get_mut(index)) {
                *shown = true;
                let seconds = started.elapsed().as_secs_f64();
                lines.done(
                    index,
                    &format!("{:width$}  {line}, {seconds:.1} s", spec.label.as_str()),
                );
            }
        }
        let all = shown.iter().all(|s| *s);
        if !ready && (all || started.elapsed() >= READY_PATIENCE) {
            ready = true;
            lines.say(&format!("ready: {}", path.display()));
        }
        if all {
            return;
        }
        let left = READY_PATIENCE.saturating_sub(started.elapsed());
        let wait = if ready { Duration::MAX } else { left };
        if let Ok(Err(_)) = tokio::time::timeout(wait, settled.changed()).await {
            return;
        }
    }
}

/// Where progress is shown.
enum Lines {
    Plain,
    Spinners(MultiProgress, Vec<ProgressBar>),
}

impl Lines {
    fn start(self, specs: &[ServerSpec], width: usize) -> Self {
        let Self::Spinners(multi, _) = self else {
            return self;
        };
        let style = ProgressStyle::with_template("{spinner} {msg}");
        let style = style.unwrap_or_else(|_| ProgressStyle::default_spinner());
        let bars = specs.iter().map(|spec| {
            let bar = multi.add(ProgressBar::new_spinner().with_style(style.clone()));
            bar.set_message(format!("{:width$}  connecting", spec.label.as_str()));
            bar.enable_steady_tick(Duration::from_millis(100));
            bar
        });
        let bars = bars.collect();
        Self::Spinners(multi, bars)
    }

    fn done(&mut self, index: usize, line: &str) {
        if let Self::Spinners(_, bars) = self
            && let Some(bar) = bars.get(index)
        {
            bar.finish_and_clear();
        }
        self.say(line);
    }

    fn say(&self, line: &str) {
        match self {
            Self::Plain => drop(say(line)),
            Self::Spinners(multi, _) => multi.suspend(|| drop(say(line))),
        }
    }
}
