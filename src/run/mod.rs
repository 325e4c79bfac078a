//! The only wiring: who is plugged into whom.
//!
//! One function a subcommand. What mounts is in `mount`; the rest asks a running daemon over
//! its control socket and prints the answer.

mod complete;
mod config;
mod daemon;
mod doctor;
mod lock;
mod log;
mod login;
mod man;
mod metrics;
mod mount;
mod page;
mod progress;
mod servers;
mod service;
mod stderr;
mod top;
mod trail;

use crate::cli::{CacheCommand, Cli, Command, Format, Look, ServerArgs, help, print, review};
use crate::config::BadConfig;
use crate::control::{self, ControlError, Reply, Verb};
use crate::domain::finding::Severity;
use crate::domain::manifest::SetId;
use crate::domain::name::Label;
use crate::domain::skill::Scope;
use crate::domain::text::{
    Quoted, did_you_mean, in_ascii_where_hidden, nearest, printable, spelt, word,
};
use crate::fuse::mount::{self as fuse_mount, MountError};
use crate::host::command::{Detail, Trouble};
use crate::host::report::{Status, count};
use crate::host::review::Review;
use crate::serve::{self, Watch};
use crate::store::cache::{self, Cache};
use crate::store::state;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use etcetera::BaseStrategy;
use rustix::termios::{QueueSelector, tcflush};
use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use trail::{End, Shape};

pub use complete::complete;
pub use log::start_log;

/// How long `unmount` waits until all is gone.
const UNMOUNT_PATIENCE: Duration = Duration::from_secs(15);

/// How a run ends: the exit code says what kind of trouble it was.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// It could not be done (exit code 1).
    #[error("{0}")]
    Failed(String),
    /// The command line makes no sense (exit code 2).
    #[error("{0}")]
    Usage(String),
    /// Something is not what it was when the user looked (exit code 3).
    #[error("{0}")]
    Moved(String),
    /// `doctor` has said what is wrong, and this is the worst of it (exit codes 1 and 4).
    #[error("something is to be mended")]
    Unwell(Severity),
    /// The command of `run` ended with this exit code.
    #[error("the command ended with exit code {0}")]
    Command(u8),
}

impl Failure {
    /// The exit code.
    pub fn code(&self) -> u8 {
        match self {
            Self::Failed(_) => 1,
            Self::Usage(_) => 2,
            Self::Moved(_) => 3,
            Self::Unwell(Severity::Error) => 1,
            Self::Unwell(Severity::Warning) => 4,
            Self::Unwell(Severity::Ok | Severity::Note) => 0,
            Self::Command(code) => *code,
        }
    }

    /// The exit code by which mount(8) knows it: wrong usage, or a failed mount.
    pub fn mount_code(&self) -> u8 {
        match self.code() {
            2 => 1,
            _ => 32,
        }
    }

    /// Whether the user has been told: a command speaks for itself.
    pub fn is_silent(&self) -> bool {
        matches!(self, Self::Command(_) | Self::Unwell(_))
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

impl From<Trouble> for Failure {
    fn from(e: Trouble) -> Self {
        match e {
            Trouble::Failed(text) => Self::Failed(text),
            Trouble::Moved(text) => Self::Moved(text),
        }
    }
}

impl From<BadConfig> for Failure {
    fn from(e: BadConfig) -> Self {
        Self::Usage(printable(&e.to_string(), 2000))
    }
}

impl From<io::Error> for Failure {
    fn from(e: io::Error) -> Self {
        Self::Failed(e.to_string())
    }
}

/// Does what the command line asks. `arguments` are its words, without the program's name.
pub fn run(cli: Cli, arguments: &[OsString]) -> Result<(), Failure> {
    let Some(command) = cli.command else {
        if cli.json {
            return Err(no_json());
        }
        return mount::mount(&cli.mount, arguments);
    };
    let servers = &cli.mount.servers;
    if !servers.servers.is_empty() || !servers.configs.is_empty() {
        let text = "--server and --config before a command go with mounting; for a mount point of that name write ./NAME";
        return Err(Failure::Usage(text.into()));
    }
    if cli.mount.daemon || cli.mount.log_file.is_some() {
        let text = "--daemon and --log-file go with mounting, not with a command";
        return Err(Failure::Usage(text.into()));
    }
    let answers = !matches!(
        command,
        Command::Run { .. }
            | Command::Serve { .. }
            | Command::Completions { .. }
            | Command::Man { .. }
            | Command::Top
            | Command::Guard { .. }
    );
    if cli.json && !answers {
        return Err(no_json());
    }
    let json = cli.json;
    let ask = Ask { mountpoint: cli.at };
    match command {
        Command::Run {
            servers,
            at,
            command,
        } => mount::run(&servers, at.as_deref(), &command),
        Command::List {
            live: Some(target), ..
        } => {
            let Reply::Live(rows) = ask.reply(&Verb::Live { target })? else {
                return Err(unexpected());
            };
            if json {
                let rows = rows
                    .iter()
                    .map(|(path, known)| serde_json::json!({"path": path, "in_entry": known}));
                return say(pretty(&rows.collect::<Vec<_>>())?);
            }
            let rows = rows.iter().map(|(path, known)| match known {
                true => format!("{path}\n"),
                false => format!("{path}  (not in any entry)\n"),
            });
            say(rows.collect())
        }
        Command::List {
            label,
            format,
            max_chars,
            live: None,
        } => {
            let format = if json { Format::Json } else { format };
            if max_chars.is_some() && matches!(format, Format::Text | Format::Json) {
                let text = "--max-chars goes with --format markdown, xml or hint";
                return Err(Failure::Usage(text.into()));
            }
            let status = listed(ask, label)?;
            say(match format {
                Format::Text => page::flow(&print::list(&status)),
                Format::Json => pretty(&print::list_json(&status))?,
                Format::Markdown => print::list_prompt(&status, false, max_chars),
                Format::Xml => print::list_prompt(&status, true, max_chars),
                Format::Hint => print::list_hint(&status, max_chars),
            })
        }
        Command::Status {
            prometheus: true, ..
        } => match ask.reply(&Verb::Metrics)? {
            Reply::Metrics(text) => say(text),
            _ => Err(unexpected()),
        },
        Command::Status {
            what,
            prometheus: false,
        } => status(&ask, what.as_deref(), json),
        Command::Show { skill, file } => {
            let (ask, skill) = ask.about(skill);
            show(&ask, &skill, &file, json)
        }
        Command::Diff { skill, look } => {
            let (ask, skill) = ask.about(skill);
            if json {
                return say(pretty(&ask.describe(&skill)?)?);
            }
            let lines = match look.stat {
                true => review::diff_names(&ask.describe(&skill)?),
                false => {
                    let review = ask.review(&skill)?;
                    progress::while_waiting("comparing", || review::diff(&review))
                }
            };
            page::show(&lines, look).map(drop)
        }
        Command::Approve {
            skill,
            look,
            set,
            exec,
        } => {
            let (ask, skill) = ask.about(skill);
            let scope = match exec {
                true => Scope::ReadAndExecute,
                false => Scope::Read,
            };
            let set = match set {
                Some(set) if set.parse::<SetId>().is_err() => {
                    let text = "give the set as it is shown: --set sha256: and 64 of 0-9 and a-f";
                    return Err(Failure::Usage(text.into()));
                }
                Some(set) => set,
                None => consent(&ask, &skill, look, scope, json)?,
            };
            ask.done(Verb::Approve { skill, set, scope }, json)
        }
        Command::Top => top::top(ask),
        Command::Revoke { skill } => {
            let (ask, skill) = ask.about(skill);
            ask.done(Verb::Revoke { skill }, json)
        }
        Command::Refresh { target } => {
            let (ask, target) = ask.about(target);
            ask.done(Verb::Refresh { target }, json)
        }
        Command::Release { target } => {
            let (ask, target) = ask.about(target);
            ask.done(Verb::Release { target }, json)
        }
        Command::Add { label, uri } => ask.done(Verb::Add { label, uri }, json),
        Command::Gate { path } => {
            let real = std::fs::canonicalize(&path).map(|p| p.display().to_string());
            let (ask, skill) = ask.about(path.clone());
            // It is about what would be run: a file outside the mount is no skill, though its
            // path may read like the name of one.
            let skill = real.ok().filter(|_| skill == path).unwrap_or(skill);
            ask.done(Verb::Gate { skill }, json)
        }
        Command::Lock { check } => lock::lock(&ask, check.as_deref(), json),
        Command::Login(args) => login::login(&ask, &args, json),
        Command::Logout { label } => login::logout(&label, json),
        Command::Forget { label, cache_dir } => forget(&label, cache_dir, json),
        Command::Cache { cache_dir, what } => cached(cache_dir, &what, json),
        Command::Config { what } => config::config(&what, json),
        Command::Doctor {
            servers,
            mountpoint,
        } => {
            let place = mountpoint.or(ask.mountpoint);
            doctor::doctor(&servers, place.as_deref(), json)
        }
        Command::Unmount {
            mountpoint,
            keep_windows,
        } => {
            let mountpoint = mountpoint.or(ask.mountpoint);
            let verb = match keep_windows {
                true => Verb::UnmountKeepingWindows,
                false => Verb::Unmount,
            };
            unmount(&Ask { mountpoint }, &verb, json)
        }
        Command::Reload => ask.done(Verb::Reload, json),
        Command::LogLevel { filter } => log_level(&ask, filter, json),
        Command::Logs {
            label,
            follow,
            lines,
            raw,
        } => {
            let (ask, label) = ask.below(label);
            let shape = if raw { Shape::Raw } else { Shape::Lines };
            match json {
                true => trail::logs_json(&ask, &label, lines),
                false => trail::logs(&ask, &label, shape, lines, end(follow)),
            }
        }
        Command::Audit { what, follow, file } => {
            trail::audit(ask, what, file.as_deref(), end(follow), json)
        }
        Command::Serve { dir, http, watch } => {
            let watch = if watch { Watch::Yes } else { Watch::No };
            let ready = |url: &str| {
                let _ = say(format!("serving {} at {url}", dir.display()));
            };
            let options = serve::Options {
                dir: dir.clone(),
                http,
                watch,
            };
            Ok(mount::runtime(2)?.block_on(serve::serve(options, ready))?)
        }
        Command::Completions { shell } => complete::registration(shell),
        Command::Man { dir } => man::man(dir.as_deref()),
        Command::Guard {
            mountpoint,
            device,
            then,
        } => {
            fuse_mount::guard(&mountpoint, &device, then.as_deref());
            Ok(())
        }
    }
}

fn end(follow: bool) -> End {
    match follow {
        true => End::Follow,
        false => End::Stop,
    }
}

fn no_json() -> Failure {
    Failure::Usage("--json goes with a command that answers; see: mount-skills --help".into())
}

/// Whether a mount point looks like the name of a command.
fn is_word(mountpoint: &Path) -> bool {
    let text = mountpoint.to_str().unwrap_or("/");
    !text.is_empty() && !text.contains('/')
}

fn no_servers(mountpoint: Option<&Path>) -> Failure {
    let name = mountpoint.filter(|m| is_word(m)).map(Path::display);
    let give = "give at least one server: mount-skills --server LABEL=TARGET [MOUNTPOINT]";
    Failure::Usage(match name {
        None => format!("{give}, or --config FILE"),
        Some(name) => {
            let text = name.to_string();
            let meant = did_you_mean(help::meant(&text));
            let (name, path) = (Quoted(&text), word(&format!("./{text}")));
            format!(
                "there is no command {name}{meant}; see: mount-skills --help. To mount, {give}, \
                 or --config FILE; for a mount point of that name write {path}"
            )
        }
    })
}

/// Writes text to stdout, in colours where they are wanted; a reader that went away is no fault
/// of ours.
fn say(text: String) -> Result<(), Failure> {
    let text = text.trim_end_matches('\n');
    if text.is_empty() {
        return Ok(());
    }
    said(writeln!(anstream::stdout().lock(), "{text}"))
}

/// Whether a text reached stdout.
fn said(written: io::Result<()>) -> Result<(), Failure> {
    match written {
        Err(e) if e.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::Failed(format!("stdout cannot be written to: {e}")))
        }
        _ => Ok(()),
    }
}

/// Says that a command is done, and how.
fn done(text: String, json: bool) -> Result<(), Failure> {
    say(if json {
        pretty(&serde_json::json!({"done": true, "text": text}))?
    } else {
        text
    })
}

fn pretty(value: &impl serde::Serialize) -> Result<String, Failure> {
    let text = serde_json::to_string_pretty(value).map_err(io::Error::from)?;
    Ok(in_ascii_where_hidden(&text))
}

/// The directories that the XDG rules give this user.
struct Dirs {
    cache: Option<PathBuf>,
    state: Option<PathBuf>,
}

impl Dirs {
    fn find() -> Self {
        let xdg = etcetera::base_strategy::Xdg::new().ok();
        Self {
            cache: xdg.as_ref().map(|x| x.cache_dir()),
            state: xdg.and_then(|x| x.state_dir()),
        }
    }

    /// Where the control sockets are.
    fn control(&self) -> PathBuf {
        control::directory(self.state.as_deref())
    }
}

/// A question to the daemon of a mount.
struct Ask {
    mountpoint: Option<PathBuf>,
}

impl Ask {
    fn send(&self, verb: &Verb) -> Result<Reply, ControlError> {
        control::ask(&Dirs::find().control(), self.mountpoint.as_deref(), verb)
    }

    /// The daemon's answer. Draws nothing meanwhile.
    fn answer(&self, verb: &Verb) -> Result<Reply, Failure> {
        match self.send(verb)? {
            Reply::Trouble(trouble) => Err(trouble.into()),
            reply => Ok(reply),
        }
    }

    /// The same, and a terminal shows that it is waited for.
    fn reply(&self, verb: &Verb) -> Result<Reply, Failure> {
        progress::while_waiting("waiting for the mount", || self.answer(verb))
    }

    /// The question about a name: a path that is there and lies in a mount says which mount it is
    /// about, whatever links and dots it is written with, and becomes what it really is.
    fn about(self, name: String) -> (Self, String) {
        let (ask, place) = self.place(&name);
        let path = place.map(|(root, below)| root.join(below).display().to_string());
        (ask, path.unwrap_or(name))
    }

    /// The same for what is no question to the daemon: such a path becomes LABEL/PATH.
    fn below(self, name: String) -> (Self, String) {
        let (ask, place) = self.place(&name);
        let below = place.map(|(_, below)| below.display().to_string());
        (ask, below.unwrap_or(name))
    }

    /// The mount that a path lies in, and what it is there.
    fn place(self, name: &str) -> (Self, Option<(PathBuf, PathBuf)>) {
        let Ok(real) = std::fs::canonicalize(name) else {
            return (self, None);
        };
        let at = Self {
            mountpoint: self.mountpoint.clone().or_else(|| Some(real.clone())),
        };
        if let Ok(Reply::Status(status)) = at.send(&Verb::Status { label: None })
            && let Ok(below) = real.strip_prefix(&status.mountpoint)
        {
            let below = below.to_owned();
            return (at, Some((status.mountpoint.into(), below)));
        }
        (self, None)
    }

    /// For verbs whose answer is at most a line.
    fn done(&self, verb: Verb, json: bool) -> Result<(), Failure> {
        match self.reply(&verb)? {
            Reply::Done(text) => done(text, json),
            _ => Err(unexpected()),
        }
    }

    fn status(&self, label: Option<String>) -> Result<Status, Failure> {
        match self.reply(&Verb::Status { label })? {
            Reply::Status(status) => Ok(*status),
            _ => Err(unexpected()),
        }
    }

    fn review(&self, skill: &str) -> Result<Review, Failure> {
        match self.reply(&Verb::Review {
            skill: skill.into(),
        })? {
            Reply::Review(review) => Ok(*review),
            _ => Err(unexpected()),
        }
    }

    fn describe(&self, skill: &str) -> Result<Detail, Failure> {
        match self.reply(&Verb::Describe {
            skill: skill.into(),
        })? {
            Reply::Detail(detail) => Ok(*detail),
            _ => Err(unexpected()),
        }
    }
}

fn unexpected() -> Failure {
    Failure::Failed("the daemon gave an answer to another question; restart the mount".into())
}

/// The status of all servers, or of the one that a label, or a path of its directory, names.
fn listed(ask: Ask, label: Option<String>) -> Result<Status, Failure> {
    let Some(label) = label else {
        return ask.status(None);
    };
    let (ask, label) = ask.below(label);
    if label.is_empty() {
        return ask.status(None);
    }
    if label.contains('/') {
        let skill = word(&label);
        let text = format!("list takes a LABEL; for one skill: mount-skills status {skill}");
        return Err(Failure::Usage(text));
    }
    let status = ask.status(Some(label.clone()))?;
    if status.servers.is_empty() {
        return Err(no_server(&status, &label));
    }
    Ok(status)
}

fn no_server(status: &Status, label: &str) -> Failure {
    let labels = status.servers.iter().map(|s| s.label.as_str());
    let meant = did_you_mean(nearest(label, labels));
    let place = &status.mountpoint;
    Failure::Failed(format!("{place} has no server {}{meant}", Quoted(label)))
}

/// A path without the links in that part of it which is there.
fn resolved(path: PathBuf) -> PathBuf {
    let there = |part: &Path| Some((part.canonicalize().ok()?, path.strip_prefix(part).ok()?));
    match path.ancestors().find_map(there) {
        // Joining nothing to the path of a file would put a slash at its end.
        Some((real, rest)) if rest.as_os_str().is_empty() => real,
        Some((real, rest)) => real.join(rest),
        None => path,
    }
}

fn status(ask: &Ask, what: Option<&str>, json: bool) -> Result<(), Failure> {
    let Some(what) = what else {
        let status = ask.status(None)?;
        return say(if json {
            pretty(&status)?
        } else {
            page::flow(&print::status(&status))
        });
    };
    // A path that is there says which mount it is about, unless that was said.
    let full = std::path::absolute(what).ok().map(resolved);
    let ask = match (&ask.mountpoint, &full) {
        (None, Some(full)) if full.exists() => &Ask {
            mountpoint: Some(full.clone()),
        },
        _ => ask,
    };
    // Of a large mount only what is asked for, where a label says what that is.
    let first = what.split('/').next().unwrap_or(what);
    let there = full.as_ref().is_some_and(|full| full.exists());
    let label = first.parse::<Label>().ok().filter(|_| !there);
    let one = label.and_then(|label| ask.status(Some(label.as_str().to_owned())).ok());
    let lies_in = |place: &str| full.as_ref().is_some_and(|full| full.starts_with(place));
    let one = one.filter(|status| !lies_in(&status.mountpoint));
    let status = match one.map_or_else(|| ask.status(None), Ok) {
        Err(_) if ask.mountpoint.is_some() && ask.mountpoint == full => {
            Ask { mountpoint: None }.status(None)?
        }
        other => other?,
    };
    let below = full
        .as_ref()
        .and_then(|f| f.strip_prefix(&status.mountpoint).ok());
    let below = below.and_then(Path::to_str);
    let path = below.unwrap_or(what).trim_matches('/');
    if path.is_empty() {
        return say(if json {
            pretty(&status)?
        } else {
            page::flow(&print::status(&status))
        });
    }
    let label = path.split('/').next().unwrap_or(path);
    let mut one = status.clone();
    one.servers.retain(|s| s.label == label);
    one.unused
        .retain(|u| u.label == label || u.label == spelt(label));
    if one.servers.is_empty() && one.unused.is_empty() {
        return Err(no_server(&status, label));
    }
    if json {
        return say(pretty(&one)?);
    }
    if let ([], [unused]) = (one.servers.as_slice(), one.unused.as_slice()) {
        return say(format!(
            "{}\n  from {}",
            print::unused_line(unused),
            unused.from
        ));
    }
    if path == label {
        return say(page::flow(&print::status(&one)));
    }
    // A path that is there is exact; another may be written as it is shown, or be a skill's URI.
    let mut ways = vec![print::Way::new(path, spelt)];
    if below.is_none() && path != spelt(path) {
        ways.push(print::Way::new(path, str::to_owned));
    }
    say(page::flow(&print::status_of(&one, &ways)))
}

/// Says what is logged, or changes it and says what was logged before.
fn log_level(ask: &Ask, filter: Option<String>, json: bool) -> Result<(), Failure> {
    let now = filter.clone();
    let Reply::LogLevel(before) = ask.reply(&Verb::LogLevel { filter })? else {
        return Err(unexpected());
    };
    say(match json {
        true => {
            pretty(&serde_json::json!({"now": now.as_ref().unwrap_or(&before), "before": before}))?
        }
        false => before,
    })
}

fn show(ask: &Ask, skill: &str, file: &str, json: bool) -> Result<(), Failure> {
    let verb = Verb::Show {
        skill: skill.into(),
        file: Some(file.into()),
    };
    let Reply::Content(detail, file, content) = ask.reply(&verb)? else {
        return Err(unexpected());
    };
    if json {
        return say(pretty(&serde_json::json!({
            "server": detail.label, "skill": detail.skill, "uri": detail.uri, "file": file,
            "loaded": false, "base64": content,
        }))?);
    }
    let bytes = STANDARD
        .decode(content)
        .map_err(|e| Failure::Failed(e.to_string()))?;
    // The frame goes to stderr, so that the content can be piped as it is.
    let frame = format!(
        "from server {} ({}), not loaded, untrusted",
        detail.label, detail.server
    );
    let _ = writeln!(io::stderr(), "--- {}/{file}: {frame} ---", detail.skill);
    let mut out = io::stdout().lock();
    let written = if io::stdout().is_terminal() {
        let text = String::from_utf8_lossy(&bytes);
        text.lines()
            .try_for_each(|line| writeln!(out, "{}", printable(line, usize::MAX)))
    } else {
        out.write_all(&bytes)
    };
    let _ = writeln!(io::stderr(), "--- end of {}/{file} ---", detail.skill);
    said(written)
}

/// Shows what would be approved and asks; the set, if the answer is yes.
fn consent(
    ask: &Ask,
    skill: &str,
    look: Look,
    scope: Scope,
    json: bool,
) -> Result<String, Failure> {
    let (detail, lines) = match look.stat {
        true => {
            let detail = ask.describe(skill)?;
            let lines = review::approval_names(&detail);
            (detail, lines)
        }
        false => {
            let review = ask.review(skill)?;
            let lines = progress::while_waiting("comparing", || review::approval(&review));
            (review.detail, lines)
        }
    };
    // What is asked about is for a person, and stdout for the answer.
    match json {
        true => page::tell(&lines),
        false => page::show(&lines, look)?,
    }
    if detail.set.is_empty() {
        return Err(Failure::Failed(format!(
            "{}: {}",
            detail.skill,
            Detail::NO_SET
        )));
    }
    if !io::stdin().is_terminal() {
        let exec = match scope {
            Scope::Read => "",
            Scope::ReadAndExecute => "--exec ",
        };
        return Err(Failure::Usage(format!(
            "an approval needs a terminal, or the set: mount-skills approve {exec}--set {} {}",
            detail.set,
            word(&detail.skill)
        )));
    }
    if page::is_long(&lines) {
        // The begin of it is no longer on the screen.
        let reminder = page::in_sight(&review::reminder(&detail, &lines));
        match json {
            true => page::tell(&reminder),
            false => say(review::paint(&reminder, page::colours()))?,
        }
    }
    // What was typed before all this was shown is no answer to it.
    tcflush(io::stdin(), QueueSelector::IFlush).map_err(io::Error::from)?;
    let what = match scope {
        Scope::Read => "reading",
        Scope::ReadAndExecute => "reading and execution",
    };
    let _ = write!(io::stderr(), "approve {what} of exactly this set? [y/N] ");
    let mut answer = String::new();
    io::stdin().read_line(&mut answer)?;
    if !matches!(answer.trim(), "y" | "Y" | "yes") {
        return Err(Failure::Failed("not approved".into()));
    }
    Ok(detail.set)
}

/// Removes all that is kept of a server, unless it is in use.
fn forget(label: &str, cache_dir: Option<PathBuf>, json: bool) -> Result<(), Failure> {
    let label: Label = label.parse().map_err(|e| Failure::Usage(format!("{e}")))?;
    let dirs = Dirs::find();
    let used = match control::ask(&dirs.control(), None, &Verb::Status { label: None }) {
        Ok(Reply::Status(status)) => {
            let uses = status.servers.iter().any(|s| s.label == label.as_str());
            uses.then_some(status.mountpoint)
        }
        Err(ControlError::Several(mounts)) => Some(mounts.join("' or '")),
        _ => None,
    };
    if let Some(mountpoint) = used {
        return Err(Failure::Failed(format!(
            "{label} may be in use at '{mountpoint}'; first run: mount-skills unmount MOUNTPOINT"
        )));
    }
    let of = |dir: &Option<PathBuf>, remove: fn(&Path, &Label) -> io::Result<u64>| {
        dir.as_ref().map_or(Ok(0), |dir| remove(dir, &label))
    };
    let removed = of(&cache_dir.or(dirs.cache), cache::forget)? + of(&dirs.state, state::forget)?;
    let text = match removed {
        0 => format!("nothing was kept of {label}"),
        _ => format!("forgot {label}: cached files, approvals, windows and listing"),
    };
    done(text, json)
}

fn cached(cache_dir: Option<PathBuf>, what: &CacheCommand, json: bool) -> Result<(), Failure> {
    let dir = cache_dir.or_else(|| Dirs::find().cache);
    let dir = dir.ok_or_else(|| Failure::Failed("there is no cache directory".into()))?;
    let cache = Cache::open(&dir, u64::MAX).map_err(|e| Failure::Failed(e.to_string()))?;
    match what {
        CacheCommand::List => {
            let shelves = cache.shelves();
            if json {
                let rows = shelves.iter().map(|(name, files, bytes)| {
                    serde_json::json!({"server": name, "files": files, "bytes": bytes})
                });
                return say(pretty(&rows.collect::<Vec<_>>())?);
            }
            let rows = shelves.iter().map(|(name, files, bytes)| {
                format!(
                    "{name}  {}, {}\n",
                    count(*files, "file"),
                    print::size(*bytes)
                )
            });
            say(rows.collect())
        }
        CacheCommand::Verify => {
            let (checked, removed) =
                progress::while_waiting("hashing the kept files", || cache.verify());
            if json {
                return say(pretty(
                    &serde_json::json!({"checked": checked, "removed": removed}),
                )?);
            }
            say(format!(
                "{} checked, {removed} damaged and removed",
                count(checked, "file")
            ))
        }
        CacheCommand::Prune { to } => {
            let freed = cache.prune(to << 20);
            say(if json {
                pretty(&serde_json::json!({"freed_bytes": freed}))?
            } else {
                format!("freed {}", print::size(freed))
            })
        }
    }
}

fn unmount(ask: &Ask, verb: &Verb, json: bool) -> Result<(), Failure> {
    let text = progress::while_waiting("waiting for the mount to end", || end_mount(ask, verb))?;
    done(text, json)
}

/// Ends a mount, and waits until it is gone; what there is to say of it.
fn end_mount(ask: &Ask, verb: &Verb) -> Result<String, Failure> {
    match ask.send(verb) {
        Ok(Reply::Trouble(trouble)) => Err(trouble.into()),
        Ok(_) => {
            // The daemon's socket goes when all else is gone.
            let until = Instant::now() + UNMOUNT_PATIENCE;
            while Instant::now() < until {
                if let Err(ControlError::None { .. }) = ask.send(&Verb::Status { label: None }) {
                    return Ok(String::new());
                }
                std::thread::sleep(Duration::from_millis(10));
            }
            let text = "the daemon is still ending; look again with: mount-skills status";
            Err(Failure::Failed(text.into()))
        }
        Err(ControlError::None { at }) => {
            // A daemon that was killed together with its guard leaves a mount behind.
            let dead = ask.mountpoint.as_deref().map(fuse_mount::detach_dead);
            Ok(match dead.transpose()? {
                Some(true) => String::new(),
                _ => format!("nothing is mounted{at}"),
            })
        }
        Err(e) => Err(e.into()),
    }
}
