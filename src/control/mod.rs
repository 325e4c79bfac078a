//! The Unix socket between the command line and a running daemon.
//!
//! One socket a mount, `$XDG_RUNTIME_DIR/mount-skills/run/<hash of the mount point>.sock`, mode 0600;
//! either side must have the other's uid. One request a connection: a line of JSON with the
//! protocol version and a verb; the reply is a line of JSON. Both are bounded, in size and time.

use crate::domain::digest::Digest;
use crate::domain::skill::Scope;
use crate::host::command::{Detail, Lock, Trouble};
use crate::host::report::Status;
use crate::host::review::Review;
use crate::host::{Host, Windows};
use crate::store::{PrivateDir, Unsafe};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixListener;
use tokio::sync::{mpsc, oneshot};

/// The version of requests and replies.
const VERSION: u32 = 1;
/// A request is at most this long.
const MAX_REQUEST: u64 = 64 * 1024;
/// A reply is at most this long: the status of a very large mount.
const MAX_REPLY: u64 = 256 << 20;
/// How long the command line waits for the daemon, which may have to ask a server.
const PATIENCE: Duration = Duration::from_secs(90);

/// What the command line may ask. Skills are named as on the command line: `LABEL/SKILL-PATH`, as it is
/// or as it is shown, or `LABEL/URI`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verb {
    /// The status of the mount, or of one server.
    Status {
        /// Its label.
        label: Option<String>,
    },
    /// End the mount and the daemon.
    Unmount,
    /// End them and leave the windows open for the next mount at the place.
    UnmountKeepingWindows,
    /// Read the configuration again and make the servers those that it names.
    Reload,
    /// What there is to know of a skill.
    Describe {
        /// The skill.
        skill: String,
    },
    /// What there is to know of a skill, with the content of what changed.
    Review {
        /// The skill.
        skill: String,
    },
    /// The content of a file, without loading the skill.
    Show {
        /// The skill.
        skill: String,
        /// The file below it; SKILL.md if not given.
        file: Option<String>,
    },
    /// Approve a set.
    Approve {
        /// The skill.
        skill: String,
        /// The set that the user was shown.
        set: String,
        /// What the approval covers.
        scope: Scope,
    },
    /// Take a skill away from readers.
    Revoke {
        /// The skill.
        skill: String,
    },
    /// Ask the server anew and move on to what it publishes.
    Refresh {
        /// A skill or a label.
        target: String,
    },
    /// End windows.
    Release {
        /// A skill or a label.
        target: String,
    },
    /// Add a skill by its URI.
    Add {
        /// The server.
        label: String,
        /// The URI of its SKILL.md.
        uri: String,
    },
    /// What the server has in a directory now.
    Live {
        /// The directory.
        target: String,
    },
    /// Whether execution is approved.
    Gate {
        /// A path of the skill.
        skill: String,
    },
    /// Every skill with the set in force.
    Lock,
    /// What is logged.
    LogLevel {
        /// What is to be logged from now on; as it is if not given.
        filter: Option<String>,
    },
    /// All figures, for Prometheus.
    Metrics,
}

#[derive(Debug, Serialize, Deserialize)]
struct Request {
    version: u32,
    verb: Verb,
}

/// What the daemon answers.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reply {
    /// The status.
    Status(Box<Status>),
    /// A skill.
    Detail(Box<Detail>),
    /// A skill, and what changed in it.
    Review(Box<Review>),
    /// A file of a skill: its path as it is shown, and base64 of its checked bytes.
    Content(Box<Detail>, String, String),
    /// Paths, and whether an entry has them.
    Live(Vec<(String, bool)>),
    /// Each skill and its set.
    Lock(Vec<Lock>),
    /// What was logged before.
    LogLevel(String),
    /// Text for Prometheus.
    Metrics(String),
    /// It is done; what to tell the user, if anything.
    Done(String),
    /// It cannot be done.
    Trouble(Trouble),
}

/// Why a daemon could not be asked.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// No daemon is running, or none at this mount point.
    #[error("no mount-skills is running{at}; start one with: mount-skills --server LABEL=TARGET")]
    None {
        /// " at PATH", or nothing.
        at: String,
    },
    /// Several are running.
    #[error("several mounts are running; say which with --mount: {}", .0.join(", "))]
    Several(Vec<String>),
    /// The socket directory is not ours alone.
    #[error(transparent)]
    Dir(#[from] Unsafe),
    /// It is there and does not answer as it should.
    #[error("the daemon at {socket} does not answer as it should: {why}")]
    Broken {
        /// The socket.
        socket: String,
        /// Why.
        why: String,
    },
}

/// Where the sockets of this user are: the runtime directory, or, where there is none, a place
/// in the state directory.
pub fn directory(state_dir: Option<&Path>) -> PathBuf {
    let uid = rustix::process::geteuid().as_raw();
    let given = std::env::var_os("XDG_RUNTIME_DIR")
        .map(PathBuf::from)
        .filter(|p| p.is_absolute());
    let usual = PathBuf::from(format!("/run/user/{uid}"));
    let base = given.or_else(|| usual.is_dir().then_some(usual));
    let base = base.or_else(|| state_dir.map(Path::to_owned));
    base.unwrap_or(PathBuf::from("/run"))
        .join("mount-skills")
        .join("run")
}

/// The name of a mount point's socket, short enough for a socket address.
fn socket_name(mountpoint: &Path) -> String {
    let hex = Digest::of(mountpoint.as_os_str().as_bytes()).hex();
    format!("{}.sock", hex.chars().take(16).collect::<String>())
}

/// Waits until a daemon whose mount at a place is gone has ended as well; for so long at most.
pub fn wait_for_end(dir: &Path, mountpoint: &Path, at_most: Duration) {
    let socket = dir.join(socket_name(mountpoint));
    let until = Instant::now() + at_most;
    while UnixStream::connect(&socket).is_ok() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A daemon's socket; gone when it is dropped.
#[derive(Debug)]
pub struct Control {
    listener: UnixListener,
    path: PathBuf,
}

impl Drop for Control {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Where what is asked of the daemon itself goes.
#[derive(Debug, Clone)]
pub struct Orders {
    /// The end, and what becomes of the windows.
    pub unmount: mpsc::Sender<Windows>,
    /// That the configuration is read again.
    pub reload: mpsc::Sender<Reload>,
    /// Changes what is logged, if something is given; says what was logged before.
    pub log_level: fn(Option<&str>) -> Result<String, String>,
    /// What a status tells of them.
    pub places: Places,
}

/// A request to read the configuration again.
#[derive(Debug)]
pub struct Reload {
    /// Told what changed, or why nothing did.
    pub answer: oneshot::Sender<Result<String, String>>,
}

/// What of a mount can be found elsewhere.
#[derive(Debug, Clone, Default)]
pub struct Places {
    /// The audit trail.
    pub audit: Option<String>,
    /// The figures for Prometheus.
    pub metrics: Option<String>,
}

/// Gives the counts that only the kernel side has.
pub type Upcalls = Arc<dyn Fn() -> BTreeMap<String, u64> + Send + Sync>;

impl Control {
    /// Binds the socket of a mount point. The mount point is ours by now, so a socket that is
    /// there already is a dead one. Must be called inside a tokio runtime.
    pub fn bind(dir: &Path, mountpoint: &Path) -> Result<Self, ControlError> {
        let dir = PrivateDir::open(dir)?;
        let path = dir.path().join(socket_name(mountpoint));
        let broken = |e: io::Error| ControlError::Broken {
            socket: path.display().to_string(),
            why: e.to_string(),
        };
        match std::fs::remove_file(&path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(broken(e)),
            _ => {}
        }
        let listener = UnixListener::bind(&path).map_err(broken)?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).map_err(broken)?;
        Ok(Self { listener, path })
    }

    /// Answers requests, for ever.
    pub async fn serve(self, host: Arc<Host>, upcalls: Upcalls, orders: Orders) {
        let me = rustix::process::geteuid().as_raw();
        loop {
            let Ok((stream, _)) = self.listener.accept().await else {
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            };
            if stream.peer_cred().ok().map(|c| c.uid()) != Some(me) {
                continue;
            }
            let (host, upcalls, orders) = (Arc::clone(&host), Arc::clone(&upcalls), orders.clone());
            let answer = async move {
                let (read, mut write) = stream.into_split();
                let mut line = String::new();
                let mut read = tokio::io::BufReader::new(read.take(MAX_REQUEST));
                read.read_line(&mut line).await?;
                let (reply, ends) = match parse(&line) {
                    Ok(verb) => {
                        let ends = match verb {
                            Verb::Unmount => Some(Windows::End),
                            Verb::UnmountKeepingWindows => Some(Windows::Keep),
                            _ => None,
                        };
                        let reply = answer(&host, &upcalls, &orders, verb).await;
                        (reply.unwrap_or_else(Reply::Trouble), ends)
                    }
                    Err(why) => (Reply::Trouble(Trouble::Failed(why)), None),
                };
                let mut text = serde_json::to_vec(&reply)?;
                text.push(b'\n');
                write.write_all(&text).await?;
                write.shutdown().await?;
                if let Some(windows) = ends {
                    let _ = orders.unmount.send(windows).await;
                }
                io::Result::Ok(())
            };
            tokio::spawn(tokio::time::timeout(PATIENCE, answer));
        }
    }
}

fn parse(line: &str) -> Result<Verb, String> {
    #[derive(Deserialize)]
    struct Head {
        version: u32,
    }
    let head: Head =
        serde_json::from_str(line).map_err(|e| format!("the request cannot be read: {e}"))?;
    if head.version != VERSION {
        return Err(format!(
            "the daemon speaks version {VERSION} of this protocol and the command version {}; restart the mount",
            head.version
        ));
    }
    let request: Request = serde_json::from_str(line)
        .map_err(|e| format!("the daemon does not know this request ({e}); restart the mount"))?;
    Ok(request.verb)
}

async fn answer(
    host: &Arc<Host>,
    upcalls: &Upcalls,
    orders: &Orders,
    verb: Verb,
) -> Result<Reply, Trouble> {
    Ok(match verb {
        Verb::Status { label } => {
            if let Some(label) = &label {
                host.find(label)?;
            }
            let status = Status {
                upcalls: upcalls(),
                audit: orders.places.audit.clone(),
                metrics: orders.places.metrics.clone(),
                ..host.status_of(label.as_deref())
            };
            Reply::Status(Box::new(status))
        }
        Verb::Unmount | Verb::UnmountKeepingWindows => Reply::Done(String::new()),
        Verb::Reload => {
            let (answer, answered) = oneshot::channel();
            let _ = orders.reload.send(Reload { answer }).await;
            let answer = answered.await;
            let answer = answer.unwrap_or_else(|_| Err("the mount is ending".into()));
            Reply::Done(answer.map_err(Trouble::Failed)?)
        }
        Verb::Describe { skill } => Reply::Detail(Box::new(host.describe(&skill)?)),
        Verb::Review { skill } => Reply::Review(Box::new(host.review(&skill).await?)),
        Verb::Show { skill, file } => {
            let (detail, file, bytes) = host.inspect(&skill, file.as_deref()).await?;
            Reply::Content(Box::new(detail), file, STANDARD.encode(bytes.bytes()))
        }
        Verb::Approve { skill, set, scope } => {
            Reply::Done(host.approve(&skill, &set, scope).await?)
        }
        Verb::Revoke { skill } => Reply::Done(host.revoke(&skill).await?),
        Verb::Refresh { target } => Reply::Done(host.refresh(&target).await?),
        Verb::Release { target } => Reply::Done(host.release(&target).await?),
        Verb::Add { label, uri } => Reply::Done(host.add(&label, &uri).await?),
        Verb::Gate { skill } => {
            host.gate(&skill)?;
            Reply::Done(String::new())
        }
        Verb::Live { target } => Reply::Live(host.live(&target).await?),
        Verb::Lock => Reply::Lock(host.locked()),
        Verb::LogLevel { filter } => {
            let before = (orders.log_level)(filter.as_deref());
            Reply::LogLevel(before.map_err(Trouble::Failed)?)
        }
        Verb::Metrics => Reply::Metrics(host.metrics(upcalls())),
    })
}

/// Asks the daemon of a mount point, or the only one that is running. The mount point may be
/// any path below it.
pub fn ask(dir: &Path, mountpoint: Option<&Path>, verb: &Verb) -> Result<Reply, ControlError> {
    let at = || {
        mountpoint
            .map(|p| format!(" at {}", p.display()))
            .unwrap_or_default()
    };
    if !dir.exists() {
        return Err(ControlError::None { at: at() });
    }
    // Only a directory of ours alone holds sockets of ours.
    let dir = PrivateDir::open(dir)?;
    let sockets: Vec<PathBuf> = match mountpoint {
        Some(path) => {
            // The socket bears the name of the real path.
            let real = std::fs::canonicalize(path).or_else(|_| std::path::absolute(path));
            let path = real.unwrap_or_else(|_| path.to_owned());
            let socket = path
                .ancestors()
                .map(|p| dir.path().join(socket_name(p)))
                .find(|s| s.exists());
            socket.into_iter().collect()
        }
        None => {
            let names = dir
                .names()
                .unwrap_or_default()
                .into_iter()
                .map(|(name, _)| name);
            names
                .filter(|n| n.ends_with(".sock"))
                .map(|n| dir.path().join(n))
                .collect()
        }
    };
    let mut live = Vec::new();
    for socket in sockets {
        match UnixStream::connect(&socket) {
            Ok(stream) => live.push((socket, stream)),
            // Left behind by a daemon that was killed; the next one at its place replaces it.
            Err(e)
                if matches!(
                    e.kind(),
                    io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound
                ) => {}
            Err(e) => {
                let socket = socket.display().to_string();
                return Err(ControlError::Broken {
                    socket,
                    why: e.to_string(),
                });
            }
        }
    }
    if live.len() > 1 {
        let mounts =
            live.iter().map(
                |(socket, stream)| match talk(stream, &Verb::Status { label: None }) {
                    Ok(Reply::Status(status)) => status.mountpoint,
                    _ => socket.display().to_string(),
                },
            );
        return Err(ControlError::Several(mounts.collect()));
    }
    let (socket, stream) = live.pop().ok_or_else(|| ControlError::None { at: at() })?;
    talk(&stream, verb).map_err(|e| ControlError::Broken {
        socket: socket.display().to_string(),
        why: e.to_string(),
    })
}

/// The process that answers for a mount point; none if nobody does, or nobody that can be found.
/// It is not asked anything, so that one that hangs is found as well.
pub fn daemon_of(dir: &Path, mountpoint: &Path) -> Option<i32> {
    let stream = UnixStream::connect(dir.join(socket_name(mountpoint))).ok()?;
    let peer = rustix::net::sockopt::socket_peercred(&stream).ok()?;
    let ours = peer.uid == rustix::process::geteuid();
    ours.then(|| peer.pid.as_raw_nonzero().get())
}

fn talk(mut stream: &UnixStream, verb: &Verb) -> io::Result<Reply> {
    let peer = rustix::net::sockopt::socket_peercred(stream)?;
    if peer.uid != rustix::process::geteuid() {
        return Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            "it belongs to another user",
        ));
    }
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut request = serde_json::to_vec(&Request {
        version: VERSION,
        verb: verb.clone(),
    })?;
    request.push(b'\n');
    stream.write_all(&request)?;
    let mut line = String::new();
    BufReader::new(stream.take(MAX_REPLY)).read_line(&mut line)?;
    if line.is_empty() {
        return Err(io::Error::new(
            io::ErrorKind::UnexpectedEof,
            "it closed the connection",
        ));
    }
    Ok(serde_json::from_str(&line)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn older_and_newer_commands_get_a_clear_answer() {
        let good = serde_json::to_string(&Request {
            version: 1,
            verb: Verb::Lock,
        })
        .unwrap();
        assert_eq!(parse(&good), Ok(Verb::Lock));
        assert!(
            parse(r#"{"version":2,"verb":{"fly":{}}}"#)
                .unwrap_err()
                .contains("version 2")
        );
        assert!(
            parse(r#"{"version":1,"verb":"fly"}"#)
                .unwrap_err()
                .contains("does not know")
        );
        assert!(parse("nonsense").unwrap_err().contains("cannot be read"));
    }
}
