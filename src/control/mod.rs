//! The Unix socket between the command line and a running daemon.
//!
//! One socket a mount, `$XDG_RUNTIME_DIR/mount-skills/<hash of the mount point>.sock`, mode 0600;
//! the peer must have the daemon's uid. One request a connection: a line of JSON with the
//! protocol version and a verb; the reply is a line of JSON.

use crate::domain::digest::Digest;
use crate::host::Host;
use crate::host::report::Status;
use crate::store::{PrivateDir, Unsafe};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixListener;
use tokio::sync::mpsc;

/// The version of requests and replies.
const VERSION: u32 = 1;
/// A request is at most this long.
const MAX_REQUEST: u64 = 64 * 1024;
/// A reply is at most this long: the status of a very large mount.
const MAX_REPLY: u64 = 256 << 20;
/// How long either side waits for the other.
const PATIENCE: Duration = Duration::from_secs(15);

/// What the command line may ask.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verb {
    /// The status of the mount.
    Status,
    /// End the mount and the daemon.
    Unmount,
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
    /// It will be done.
    Ok,
    /// It cannot be done.
    Error(String),
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
    #[error("several mounts are running, say which: {}", .0.join(", "))]
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

/// Where the sockets of this user are.
pub fn directory() -> PathBuf {
    let uid = rustix::process::geteuid().as_raw();
    let given = std::env::var_os("XDG_RUNTIME_DIR")
        .map(PathBuf::from)
        .filter(|p| p.is_absolute());
    let usual = PathBuf::from(format!("/run/user/{uid}"));
    let base = given.or_else(|| usual.is_dir().then_some(usual));
    base.unwrap_or_else(|| std::env::temp_dir().join(format!("mount-skills-{uid}")))
        .join("mount-skills")
}

/// The name of a mount point's socket, short enough for a socket address.
fn socket_name(mountpoint: &Path) -> String {
    let hex = Digest::of(mountpoint.as_os_str().as_bytes()).hex();
    format!("{}.sock", hex.chars().take(16).collect::<String>())
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

impl Control {
    /// Binds the socket of a mount point. The mount point is ours by now, so a socket that is
    /// there already is a dead one. Must be called inside a tokio runtime.
    pub fn bind(mountpoint: &Path) -> Result<Self, ControlError> {
        let dir = PrivateDir::open(&directory())?;
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

    /// Answers requests, for ever. `upcalls` gives the counts that only the kernel side has;
    /// `unmount` is told when the user asks for the end.
    pub async fn serve(
        self,
        host: Arc<Host>,
        upcalls: Arc<dyn Fn() -> BTreeMap<String, u64> + Send + Sync>,
        unmount: mpsc::Sender<()>,
    ) {
        let me = rustix::process::geteuid().as_raw();
        loop {
            let Ok((stream, _)) = self.listener.accept().await else {
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            };
            if stream.peer_cred().ok().map(|c| c.uid()) != Some(me) {
                continue;
            }
            let (host, upcalls, unmount) =
                (Arc::clone(&host), Arc::clone(&upcalls), unmount.clone());
            let answer = async move {
                let (read, mut write) = stream.into_split();
                let mut line = String::new();
                let mut read = tokio::io::BufReader::new(read.take(MAX_REQUEST));
                read.read_line(&mut line).await?;
                let reply = match serde_json::from_str::<Request>(&line) {
                    Ok(r) if r.version != VERSION => Reply::Error(format!(
                        "the daemon speaks version {VERSION} of this protocol, the command version {}; restart the mount",
                        r.version
                    )),
                    Ok(Request {
                        verb: Verb::Status, ..
                    }) => {
                        let status = Status {
                            upcalls: upcalls(),
                            ..host.status()
                        };
                        Reply::Status(Box::new(status))
                    }
                    Ok(Request {
                        verb: Verb::Unmount,
                        ..
                    }) => Reply::Ok,
                    Err(e) => Reply::Error(format!("the request cannot be read: {e}")),
                };
                let ends = matches!(reply, Reply::Ok);
                let mut text = serde_json::to_vec(&reply)?;
                text.push(b'\n');
                write.write_all(&text).await?;
                write.shutdown().await?;
                if ends {
                    let _ = unmount.send(()).await;
                }
                io::Result::Ok(())
            };
            tokio::spawn(tokio::time::timeout(PATIENCE, answer));
        }
    }
}

/// Asks the daemon of a mount point, or the only one that is running. The mount point may be
/// any path below it.
pub fn ask(mountpoint: Option<&Path>, verb: Verb) -> Result<Reply, ControlError> {
    let dir = directory();
    let sockets = match mountpoint {
        Some(path) => {
            // The socket bears the name of the real path.
            let real = std::fs::canonicalize(path).or_else(|_| std::path::absolute(path));
            let path = real.unwrap_or_else(|_| path.to_owned());
            let socket = path
                .ancestors()
                .map(|p| dir.join(socket_name(p)))
                .find(|s| s.exists());
            let none = || ControlError::None {
                at: format!(" at {}", path.display()),
            };
            vec![socket.ok_or_else(none)?]
        }
        None => std::fs::read_dir(&dir)
            .map(|names| names.filter_map(Result::ok).map(|e| e.path()).collect())
            .unwrap_or_default(),
    };
    let mut live = Vec::new();
    for socket in sockets
        .into_iter()
        .filter(|s| s.extension().is_some_and(|e| e == "sock"))
    {
        match UnixStream::connect(&socket) {
            Ok(stream) => live.push((socket, stream)),
            // Left behind by a daemon that was killed; the next one at its place replaces it.
            Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => {}
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
        let mounts = live.iter().map(|(socket, _)| {
            match talk(&UnixStream::connect(socket)?, Verb::Status)? {
                Reply::Status(status) => Ok(status.mountpoint),
                _ => Ok(socket.display().to_string()),
            }
        });
        let mounts = mounts.filter_map(|m: io::Result<String>| m.ok()).collect();
        return Err(ControlError::Several(mounts));
    }
    let at = mountpoint
        .map(|p| format!(" at {}", p.display()))
        .unwrap_or_default();
    let (socket, stream) = live.pop().ok_or(ControlError::None { at })?;
    talk(&stream, verb).map_err(|e| ControlError::Broken {
        socket: socket.display().to_string(),
        why: e.to_string(),
    })
}

fn talk(mut stream: &UnixStream, verb: Verb) -> io::Result<Reply> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut request = serde_json::to_vec(&Request {
        version: VERSION,
        verb,
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
