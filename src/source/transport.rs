//! Messages to and from a server: a child process over stdio, or HTTP, with our own limits.
//!
//! Both ways hand rmcp the results of our four methods as raw JSON text (a
//! [`CustomResult`] that holds a string), so that `wire` parses them entry by entry; all else is
//! rmcp's.
//!
//! **Invariants**
//! - A message over [`MAX_MESSAGE`] ends the connection before it is held.
//! - A child runs in its own process group, dies with us (parent-death signal), is reaped, and
//!   takes what is left of its group with it. Its stderr is always drained.
//! - Lines on stdout that are no message are counted and skipped; a reply that cannot be parsed
//!   becomes a failed answer, not a silence.

use super::auth::{Auth, Secret, Token};
use super::{SourceError, Stderr};
use crate::domain::name::Label;
use crate::domain::text::{clause, printable, word};
use futures_util::StreamExt;
use http::{HeaderMap, HeaderName, HeaderValue, header};
use parking_lot::Mutex;
use rmcp::RoleClient;
use rmcp::model::{
    ClientJsonRpcMessage, ClientNotification, ClientRequest, CustomResult, JsonRpcMessage,
    RequestId, ServerJsonRpcMessage, ServerResult,
};
use rmcp::transport::Transport;
use rmcp::transport::auth::WWWAuthenticateParams;
use rmcp::transport::streamable_http_client::{
    AuthRequiredError, HttpStatusError, InsufficientScopeError, StreamableHttpClient,
    StreamableHttpError, StreamableHttpPostResponse, StreamableHttpResponseLimits,
};
use rustix::process::{Pid, Signal, WaitIdOptions};
use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;
use sse_stream::SseStream;
use std::borrow::Cow;
use std::collections::{HashMap, VecDeque};
use std::ops::ControlFlow;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use std::{fmt, io};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

/// At most this many bytes in one message: a 16 MiB text of control characters is a line of
/// 96 MiB (HR-63).
const MAX_MESSAGE: usize = 128 << 20;
/// At most this many bytes in a message that rmcp makes values of: all but the results of our
/// methods. A value takes up to ten times its text.
pub(super) const MAX_TYPED: usize = 1 << 20;
/// At most this many bytes of stderr are kept, the last ones.
const STDERR_TAIL: usize = 16 * 1024;
/// How long a child may take to end once its stdin is closed, and again after SIGTERM.
const GRACE: Duration = Duration::from_millis(1500);

/// How long an ended child's output is read on.
const LAST_WORDS: Duration = Duration::from_millis(200);

/// How a server is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// A child process that speaks over stdio.
    Command(Launch),
    /// A streamable HTTP endpoint.
    Http(Endpoint),
}

/// How a child process is started. Arguments and values may be secrets.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Launch {
    /// The program and its arguments, never seen by a shell.
    pub argv: Vec<String>,
    /// What is set in its environment, beside all that the daemon's has.
    pub env: Vec<(String, String)>,
    /// Where it starts; where the daemon did, if nothing is said.
    pub cwd: Option<PathBuf>,
    /// What messages say.
    pub written: Written,
}

/// A program and a directory as the user wrote them, if that is not what they are: what a variable
/// stands for may be a secret.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Written {
    /// The program.
    pub program: Option<String>,
    /// The directory.
    pub cwd: Option<String>,
}

impl fmt::Debug for Launch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.env.iter().map(|(name, _)| name.as_str()).collect();
        f.debug_struct("Launch")
            .field("words", &self.argv.len())
            .field("env", &names)
            .field("written", &self.written)
            .finish_non_exhaustive()
    }
}

/// A streamable HTTP endpoint. URL and values may hold secrets.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Endpoint {
    /// Its URL.
    pub url: String,
    /// What each request carries beside what the protocol asks for. Secrets, mostly.
    pub headers: HeaderMap,
    /// The bearer token that the user gave.
    pub token: Option<Token>,
}

impl Endpoint {
    /// How many things are given that a server may be let in by: user info, a header, a token.
    pub fn keys(&self) -> usize {
        let url = reqwest::Url::parse(&self.url);
        let user = url.is_ok_and(|u| !u.username().is_empty() || u.password().is_some());
        let headers = self.headers.get_all(header::AUTHORIZATION).iter().count();
        usize::from(user) + headers + usize::from(self.token.is_some())
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The URL may hold a password or a token, a header mostly does.
        let host = reqwest::Url::parse(&self.url).ok();
        let host = host.as_ref().and_then(|u| u.host_str());
        let headers: Vec<&HeaderName> = self.headers.keys().collect();
        f.debug_struct("Endpoint")
            .field("host", &host)
            .field("headers", &headers)
            .field("token", &self.token)
            .finish_non_exhaustive()
    }
}

/// What a child process leaves for `status`.
#[derive(Default)]
pub(super) struct Traces {
    /// The server's label, for the log.
    label: String,
    pub(super) noise: AtomicU64,
    stderr: Mutex<VecDeque<u8>>,
    /// Is told of all of it.
    listener: Option<Stderr>,
    /// Why the connection ended, where the transport knows more than "closed".
    pub(super) ended: Mutex<Option<SourceError>>,
    /// When the first of our requests was sent that no line on stdout has followed.
    unheard: Mutex<Option<Instant>>,
}

impl Traces {
    pub(super) fn of(label: &Label, listener: Option<Stderr>) -> Self {
        Self {
            label: label.to_string(),
            listener,
            ..Self::default()
        }
    }

    /// The label of the server whose traces these are.
    pub(super) fn label(&self) -> &str {
        &self.label
    }

    pub(super) fn stderr(&self) -> String {
        let tail = self.stderr.lock();
        let (a, b) = tail.as_slices();
        String::from_utf8_lossy(&[a, b].concat()).into_owned()
    }

    /// For how long the child has been silent although it was asked.
    pub(super) fn silence(&self) -> Duration {
        self.unheard
            .lock()
            .map_or(Duration::ZERO, |since| since.elapsed())
    }

    fn keep_stderr(&self, bytes: &[u8]) {
        if let Some(listener) = &self.listener {
            listener(bytes);
        }
        let mut tail = self.stderr.lock();
        tail.extend(bytes);
        let over = tail.len().saturating_sub(STDERR_TAIL);
        tail.drain(..over);
    }

    fn noise(&self, line: &str) {
        let n = self.noise.fetch_add(1, Ordering::Relaxed);
        if n < 5 && !line.trim_ascii().is_empty() {
            tracing::info!(
                "{}: a line on the server's stdout is no message: {}",
                self.label,
                printable(line, 200)
            );
        }
    }
}

/// Whether the result of this request is wanted as raw text.
fn is_ours(request: &ClientRequest) -> bool {
    matches!(
        request,
        ClientRequest::ListSkillsRequest(_)
            | ClientRequest::GetSkillRequest(_)
            | ClientRequest::ReadResourceRequest(_)
            | ClientRequest::ReadResourceDirectoryRequest(_)
    )
}

/// A message, as far as it must be understood here.
#[derive(Deserialize)]
struct Envelope<'a> {
    #[serde(default)]
    id: Option<RequestId>,
    #[serde(borrow, default)]
    method: Option<&'a RawValue>,
    #[serde(borrow, default)]
    result: Option<&'a RawValue>,
    #[serde(borrow, default)]
    error: Option<&'a RawValue>,
}

/// The answer to a request of ours, with its result as text.
fn raw_response(id: RequestId, result: String) -> ServerJsonRpcMessage {
    let result = ServerResult::CustomResult(CustomResult::new(result.into()));
    ServerJsonRpcMessage::response(result, id)
}

/// How the answer to a request is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Want {
    /// Its result as raw text.
    Raw,
    /// As rmcp reads it.
    Typed,
}

/// Reads one message; the text again if it is no message at all, or answers nothing that was
/// asked. `take` says how the answer of an id is wanted, and that it has come.
fn decode(
    text: Vec<u8>,
    mut take: impl FnMut(&RequestId) -> Option<Want>,
) -> Result<ServerJsonRpcMessage, String> {
    // Bytes that are not UTF-8 cannot be what the digest covers: the text is altered visibly
    // and the check refuses it, rather than that the reader waits for an answer that was given.
    let mut text = String::from_utf8(text)
        .unwrap_or_else(|e| String::from_utf8_lossy(e.as_bytes()).into_owned());
    let (id, result, error) = match serde_json::from_str(&text) {
        Err(_) => {
            let id = id_before_fault(&text);
            return match id.filter(|id| take(id) == Some(Want::Raw)) {
                Some(id) => Ok(raw_response(id, "null".to_owned())),
                None => Err(text),
            };
        }
        Ok(Envelope {
            method: None,
            id: Some(id),
            result,
            error,
        }) => (id, result, error),
        // A request or a notification of the server's, or an error about no request.
        Ok(_) => return typed(&text).ok_or(text),
    };
    let Some(want) = take(&id) else {
        return Err(text);
    };
    match (want, result) {
        // Success and failure at once: no rule says which of them counts.
        (Want::Raw, Some(_)) if error.is_some() => Ok(raw_response(id, "null".to_owned())),
        (Want::Raw, Some(result)) => {
            // The result may be of 96 MiB: it is cut out in place.
            let start = result.get().as_ptr() as usize - text.as_ptr() as usize;
            let end = start + result.get().len();
            text.truncate(end);
            text.drain(..start);
            Ok(raw_response(id, text))
        }
        (want, _) => match typed(&text) {
            Some(message) => Ok(message),
            // JSON-RPC in shape but not in content: whoever waits for it must not wait longer.
            None if want == Want::Raw => Ok(raw_response(id, "null".to_owned())),
            None => Err(text),
        },
    }
}

/// Reads one line of a child's stdout as if request 1 were one of ours and request 2 one of rmcp's;
/// the raw result, if it answers the first. For tests that feed it anything.
pub fn decode_line(line: Vec<u8>) -> Option<String> {
    let want = |id: &RequestId| match id {
        RequestId::Number(1) => Some(Want::Raw),
        RequestId::Number(2) => Some(Want::Typed),
        _ => None,
    };
    match decode(line, want) {
        Ok(JsonRpcMessage::Response(r)) => match r.result {
            ServerResult::CustomResult(CustomResult(serde_json::Value::String(raw))) => Some(raw),
            _ => None,
        },
        _ => None,
    }
}

/// The id of an answer that is no JSON from some point on. Whoever waits for it need not wait
/// until the deadline.
fn id_before_fault(text: &str) -> Option<RequestId> {
    struct Keys<'a>(&'a mut Option<RequestId>);
    impl<'de> Visitor<'de> for Keys<'_> {
        type Value = ();

        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("a message")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
            while let Some(key) = map.next_key::<Cow<'de, str>>()? {
                match &*key {
                    "id" => *self.0 = Some(map.next_value()?),
                    _ => drop(map.next_value::<IgnoredAny>()?),
                }
            }
            Ok(())
        }
    }
    let mut id = None;
    let _ = serde_json::Deserializer::from_str(text).deserialize_map(Keys(&mut id));
    id
}

/// A message as rmcp reads it.
fn typed(text: &str) -> Option<ServerJsonRpcMessage> {
    let fits = text.len() <= MAX_TYPED;
    fits.then(|| serde_json::from_str(text).ok()).flatten()
}

/// A child process as an rmcp transport.
pub(super) struct ChildTransport {
    stdout: BufReader<ChildStdout>,
    line: Vec<u8>,
    asked: Arc<Mutex<HashMap<RequestId, Want>>>,
    out: mpsc::Sender<Vec<u8>>,
    traces: Arc<Traces>,
}

impl ChildTransport {
    /// Waits for the next line; none when the stream ends or the line is too long. May be
    /// dropped and called again: what was read stays in `self.line`.
    async fn next_line(&mut self) -> Option<Vec<u8>> {
        loop {
            let chunk = self.stdout.fill_buf().await.ok()?;
            if chunk.is_empty() {
                return None;
            }
            let end = chunk.iter().position(|b| *b == b'\n');
            let part = chunk.get(..end.unwrap_or(chunk.len())).unwrap_or_default();
            self.line.extend_from_slice(part);
            let used = part.len() + usize::from(end.is_some());
            self.stdout.consume(used);
            if self.line.len() > MAX_MESSAGE {
                let why = format!("a message is longer than {} MiB", MAX_MESSAGE >> 20);
                *self.traces.ended.lock() = Some(SourceError::Down(why));
                return None;
            }
            if end.is_some() {
                return Some(std::mem::take(&mut self.line));
            }
        }
    }
}

impl Transport<RoleClient> for ChildTransport {
    type Error = io::Error;

    fn send(
        &mut self,
        item: ClientJsonRpcMessage,
    ) -> impl Future<Output = io::Result<()>> + Send + 'static {
        match &item {
            ClientJsonRpcMessage::Request(r) => {
                let want = if is_ours(&r.request) {
                    Want::Raw
                } else {
                    Want::Typed
                };
                self.asked.lock().insert(r.id.clone(), want);
                // Of rmcp's own requests some are never answered by design.
                if want == Want::Raw {
                    self.traces.unheard.lock().get_or_insert_with(Instant::now);
                }
            }
            ClientJsonRpcMessage::Notification(n) => {
                // A request given up is answered late or never; its id must not stay.
                if let ClientNotification::CancelledNotification(c) = &n.notification
                    && let Some(id) = &c.params.request_id
                {
                    self.asked.lock().remove(id);
                }
            }
            _ => {}
        }
        let out = self.out.clone();
        async move {
            let mut line = serde_json::to_vec(&item)?;
            line.push(b'\n');
            out.send(line)
                .await
                .map_err(|_| io::ErrorKind::BrokenPipe.into())
        }
    }

    async fn receive(&mut self) -> Option<ServerJsonRpcMessage> {
        loop {
            let line = self.next_line().await?;
            // Also a late answer, or one to nothing, is a sign of life.
            *self.traces.unheard.lock() = None;
            let asked = Arc::clone(&self.asked);
            match decode(line, |id| asked.lock().remove(id)) {
                Ok(message) => return Some(message),
                Err(line) => self.traces.noise(&line),
            }
        }
    }

    async fn close(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A running child and its process group.
pub(super) struct Group {
    child: Child,
    pid: Option<Pid>,
    watch: GroupWatch,
    stderr: tokio::task::JoinHandle<()>,
}

impl Group {
    /// Ends a moment after the child has ended: one that leaves its pipes to a helper closes no
    /// connection by that.
    pub(super) async fn exited(&self) {
        let children = signal(SignalKind::child());
        let (Some(pid), Ok(mut children)) = (self.pid, children) else {
            return std::future::pending().await;
        };
        while !has_exited(pid) {
            children.recv().await;
        }
        // What it said last is still in the pipe.
        tokio::time::sleep(LAST_WORDS).await;
    }

    /// Ends the child and what is left of its group. Its stdin must be closed already: that is
    /// how it is asked first; SIGTERM and SIGKILL follow.
    pub(super) async fn end(mut self) -> Option<std::process::ExitStatus> {
        let pid = self.pid.take()?;
        for signal in [Signal::TERM, Signal::KILL] {
            let until = Instant::now() + GRACE;
            while Instant::now() < until && !has_exited(pid) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            // Not reaped yet, so the group's number is still its own, also when only helpers of
            // the child are left in it.
            let _ = rustix::process::kill_process_group(pid, signal);
        }
        let status = self.child.wait().await.ok();
        // Its last words are worth a moment; a helper that left the group may keep the pipe open.
        let _ = tokio::time::timeout(LAST_WORDS, &mut self.stderr).await;
        (self.watch)(pid.as_raw_nonzero().get(), false);
        status
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(pid) = self.pid {
            let _ = rustix::process::kill_process_group(pid, Signal::KILL);
            // The number may be somebody else's by the time the guard has to clean up.
            (self.watch)(pid.as_raw_nonzero().get(), false);
        }
    }
}

/// Whether a child has ended; it is not reaped.
fn has_exited(pid: Pid) -> bool {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    !matches!(
        rustix::process::waitid(rustix::process::WaitId::Pid(pid), options),
        Ok(None)
    )
}

/// A job for the thread that starts children.
type Job = Box<dyn FnOnce() + Send>;

/// Is told of each process group that starts (`true`) and ends (`false`).
pub type GroupWatch = Arc<dyn Fn(i32, bool) + Send + Sync>;

/// Starts children from one thread that lives as long as the daemon: the parent-death signal is
/// sent when the *thread* that started a child ends.
#[derive(Clone)]
pub struct Spawner {
    jobs: std::sync::mpsc::Sender<Job>,
    watch: GroupWatch,
}

impl std::fmt::Debug for Spawner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Spawner")
    }
}

impl Spawner {
    /// Starts the thread. Must be called inside a tokio runtime, which the children belong to.
    pub fn start(watch: GroupWatch) -> io::Result<Self> {
        let (jobs, queue) = std::sync::mpsc::channel::<Job>();
        let runtime = tokio::runtime::Handle::current();
        std::thread::Builder::new()
            .name("spawner".into())
            .spawn(move || {
                let _in_runtime = runtime.enter();
                for job in queue {
                    job();
                }
            })?;
        Ok(Self { jobs, watch })
    }

    /// Starts a child with its pipes.
    pub(super) async fn spawn(
        &self,
        launch: &Launch,
        traces: Arc<Traces>,
    ) -> Result<(ChildTransport, Group), String> {
        let (program, args) = launch.argv.split_first().ok_or("the command is empty")?;
        let written = launch.written.program.as_ref().unwrap_or(program);
        if let Some(cwd) = launch.cwd.as_ref().filter(|cwd| !cwd.is_dir()) {
            let cwd = cwd.display().to_string();
            return Err(format!(
                "the directory {:?} to start in does not exist; make it, or correct cwd",
                launch.written.cwd.as_ref().unwrap_or(&cwd)
            ));
        }
        let path = find(launch, program, written)?;
        let mut command = Command::new(&path);
        // Our file may have another name, such as the one by which mount(8) finds it.
        if std::env::current_exe().is_ok_and(|own| own == path) {
            command.arg0("mount-skills");
        }
        command.args(args).process_group(0).kill_on_drop(true);
        command.envs(launch.env.iter().map(|(name, value)| (name, value)));
        // What a service manager is told is about us.
        command.env_remove("NOTIFY_SOCKET");
        if let Some(cwd) = &launch.cwd {
            command.current_dir(cwd);
        }
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        confine(command.as_std_mut(), Signal::KILL);
        let (done, result) = tokio::sync::oneshot::channel();
        let job = Box::new(move || {
            let _ = done.send(command.spawn());
        });
        self.jobs
            .send(job)
            .map_err(|_| "the spawner thread has ended")?;
        let child = result.await.map_err(|_| "the spawner thread has ended")?;
        let mut child = child.map_err(|e| format!("cannot start {written:?}: {e}"))?;
        let pid = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
        let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (Some(stdin), Some(stdout), Some(stderr)) = pipes else {
            return Err("the child has no pipes".into());
        };
        *traces.unheard.lock() = None;
        let (out, queue) = mpsc::channel(1024);
        tokio::spawn(write_all(stdin, queue));
        let stderr = tokio::spawn(drain(stderr, Arc::clone(&traces)));
        let transport = ChildTransport {
            stdout: BufReader::with_capacity(64 * 1024, stdout),
            line: Vec::new(),
            asked: Arc::default(),
            out,
            traces,
        };
        if let Some(pid) = pid {
            (self.watch)(pid.as_raw_nonzero().get(), true);
        }
        Ok((
            transport,
            Group {
                child,
                pid,
                watch: Arc::clone(&self.watch),
                stderr,
            },
        ))
    }
}

/// Asks the kernel to send a child this signal when the thread that started it ends, and to give it
/// no descriptor but its streams.
#[allow(unsafe_code)]
pub fn confine(command: &mut std::process::Command, signal: Signal) {
    let parent = rustix::process::getpid();
    // SAFETY: `pre_exec` has no safe form. Between fork and exec the closure makes three system
    // calls; it allocates nothing and takes no lock.
    unsafe {
        command.pre_exec(move || {
            rustix::process::set_parent_process_death_signal(Some(signal))?;
            // The parent may have died before the line above: nobody would send the signal.
            if rustix::process::getppid() != Some(parent) {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            // Ours are close-on-exec; what whoever started us left open is none of its
            // business. By its number: not every libc has it. A kernel before 5.11 does not know
            // the call, which harms nothing.
            libc::syscall(
                libc::SYS_close_range,
                3_u32,
                libc::c_uint::MAX,
                libc::CLOSE_RANGE_CLOEXEC,
            );
            Ok(())
        });
    }
}

/// Finds a program as a shell would, for a better message than "not found". What the message shows
/// of it is what was written.
fn find(launch: &Launch, program: &str, written: &str) -> Result<PathBuf, String> {
    let usable = |path: &PathBuf| {
        path.is_file() && rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok()
    };
    // What a shell would have done with it is the usual mistake.
    let hint = if program.starts_with('~') {
        "; no shell expands ~ here, write the path out"
    } else if program.contains('=') {
        "; no shell reads VAR=value here, write: env VAR=value COMMAND"
    } else {
        ""
    };
    // Where the child starts is where its relative paths are looked for.
    let from = launch.cwd.as_deref().unwrap_or(Path::new(""));
    if program.contains('/') {
        let path = from.join(program);
        return match path.exists() {
            _ if usable(&path) => Ok(path),
            true => Err(format!(
                "{written:?} is not executable; run: chmod +x {}",
                word(&clause(&path.display().to_string(), 4096))
            )),
            false => Err(format!(
                "{written:?} does not exist; give a command, a URL or a directory of skills{hint}"
            )),
        };
    }
    let own = launch.env.iter().rev().find(|(name, _)| name == "PATH");
    let path = match own {
        Some((_, path)) => path.clone(),
        None => std::env::var("PATH").unwrap_or_default(),
    };
    let places = std::env::split_paths(&path).map(|dir| from.join(dir).join(program));
    let places: Vec<PathBuf> = places.collect();
    if let Some(place) = places.iter().find(|p| usable(p)) {
        return Ok(place.clone());
    }
    let whose = match own {
        Some(_) => " (from env)",
        None => "",
    };
    Err(match places.iter().any(|p| p.is_file()) {
        true => format!(
            "command {written:?} is not executable; PATH is {path}{whose}; run chmod +x on its file"
        ),
        false => format!(
            "command {written:?} not found; PATH is {path}{whose}; give its full path or extend PATH{hint}"
        ),
    })
}

async fn write_all(mut stdin: ChildStdin, mut queue: mpsc::Receiver<Vec<u8>>) {
    while let Some(line) = queue.recv().await {
        if stdin.write_all(&line).await.is_err() || stdin.flush().await.is_err() {
            return;
        }
    }
}

async fn drain(mut stderr: impl AsyncRead + Unpin, traces: Arc<Traces>) {
    let mut buffer = vec![0; 16 * 1024];
    while let Ok(n @ 1..) = stderr.read(&mut buffer).await {
        traces.keep_stderr(buffer.get(..n).unwrap_or_default());
    }
}

/// rmcp's HTTP backend, with the replies to our methods read by us, and the token that is in
/// force when a request is sent.
#[derive(Clone)]
pub(super) struct RawHttp {
    client: reqwest::Client,
    auth: Arc<Auth>,
}

/// Follows a redirect only within the origin: a server must not send us to another.
fn same_origin(attempt: reqwest::redirect::Attempt) -> reqwest::redirect::Action {
    let first = attempt.previous().first();
    if attempt.previous().len() <= 5 && first.is_some_and(|u| u.origin() == attempt.url().origin())
    {
        attempt.follow()
    } else {
        attempt.stop()
    }
}

/// What all our HTTP clients have in common.
pub(super) fn client_builder() -> reqwest::ClientBuilder {
    reqwest::Client::builder()
        .connect_timeout(Duration::from_secs(10))
        .redirect(reqwest::redirect::Policy::custom(same_origin))
        .user_agent(concat!("mount-skills/", env!("CARGO_PKG_VERSION")))
}

/// An error with its causes, which mostly say more than it does.
pub(super) fn with_causes(e: &dyn std::error::Error) -> String {
    let mut text = e.to_string();
    let mut cause = e.source();
    while let Some(e) = cause {
        text = format!("{text}: {e}");
        cause = e.source();
    }
    clause(&text, 300)
}

/// One of at most two attempts to send something.
struct Attempt {
    used: Option<Secret>,
    again: Again,
}

/// Whether another attempt may follow.
#[derive(PartialEq, Eq)]
enum Again {
    Yes,
    No,
}

impl Attempt {
    /// The token, as rmcp takes it.
    fn token(&self) -> Option<String> {
        self.used.as_ref().map(|t| t.reveal().to_owned())
    }
}

type HttpResult<T> = Result<T, StreamableHttpError<reqwest::Error>>;

impl RawHttp {
    /// A client with pooled connections and the proxy rules of the environment. No overall
    /// timeout: each request has its own deadline.
    pub(super) fn new(endpoint: &Endpoint, auth: Arc<Auth>) -> Result<Self, String> {
        let client = client_builder()
            .default_headers(endpoint.headers.clone())
            .read_timeout(Duration::from_secs(120))
            .pool_idle_timeout(Duration::from_secs(60))
            .build()
            .map_err(|e| with_causes(&e))?;
        Ok(Self { client, auth })
    }

    /// The first attempt to send something: with the token in force.
    async fn attempt(&self) -> Attempt {
        Attempt {
            used: self.auth.token().await,
            again: Again::Yes,
        }
    }

    /// What an attempt came to, or another one: once, if the server refuses the token and there is
    /// another by now.
    async fn settle<T>(
        &self,
        attempt: Attempt,
        reply: HttpResult<T>,
    ) -> ControlFlow<HttpResult<T>, Attempt> {
        let reply = reply.map_err(normal);
        let used = attempt.used.as_ref();
        match &reply {
            Err(StreamableHttpError::AuthRequired(_)) if attempt.again == Again::Yes => {
                if let Some(other) = self.auth.refused(used).await {
                    return ControlFlow::Continue(Attempt {
                        used: Some(other),
                        again: Again::No,
                    });
                }
            }
            Ok(_) | Err(StreamableHttpError::SessionExpired) => self.auth.taken(used),
            Err(_) => {}
        }
        ControlFlow::Break(reply)
    }

    async fn post_raw(
        &self,
        uri: &str,
        message: &ClientJsonRpcMessage,
        id: &RequestId,
        session: Option<Arc<str>>,
        token: Option<String>,
        headers: HashMap<HeaderName, HeaderValue>,
    ) -> HttpResult<StreamableHttpPostResponse> {
        let had_session = session.is_some();
        let mut request = self
            .client
            .post(uri)
            .header(header::ACCEPT, "text/event-stream, application/json")
            .header(header::CONTENT_TYPE, "application/json")
            .body(serde_json::to_vec(message)?);
        if let Some(token) = token {
            request = request.bearer_auth(token);
        }
        for (name, value) in headers {
            request = request.header(name, value);
        }
        if let Some(session) = &session {
            request = request.header("mcp-session-id", &**session);
        }
        let response = request.send().await?;
        let status = response.status();
        if status == http::StatusCode::NOT_FOUND && had_session {
            return Err(StreamableHttpError::SessionExpired);
        }
        if status == http::StatusCode::UNAUTHORIZED {
            let challenge = response.headers().get(header::WWW_AUTHENTICATE);
            let challenge = challenge.and_then(|v| v.to_str().ok()).unwrap_or_default();
            let error = AuthRequiredError::new(challenge.to_owned());
            return Err(StreamableHttpError::AuthRequired(error));
        }
        if status == http::StatusCode::FORBIDDEN
            && let Some(challenge) = response.headers().get(header::WWW_AUTHENTICATE)
        {
            let challenge = challenge.to_str().unwrap_or_default().to_owned();
            let scope = WWWAuthenticateParams::parse(&challenge, response.url()).scope;
            let error = InsufficientScopeError::new(challenge, scope);
            return Err(StreamableHttpError::InsufficientScope(error));
        }
        let retry_after = response.headers().get(header::RETRY_AFTER);
        let retry_after = retry_after.and_then(|v| v.to_str().ok().map(str::to_owned));
        if status == http::StatusCode::TOO_MANY_REQUESTS {
            return Err(HttpStatusError::new(status.as_u16(), retry_after).into());
        }
        let kind = response.headers().get(header::CONTENT_TYPE);
        let is_events = kind
            .and_then(|v| v.to_str().ok())
            .is_some_and(|v| v.trim_start().starts_with("text/event-stream"));
        let mut seen = 0;
        let bytes = response.bytes_stream().map(move |chunk| {
            let chunk = chunk.map_err(StreamableHttpError::Client)?;
            seen += chunk.len();
            if seen > MAX_MESSAGE {
                return Err(StreamableHttpError::ResponseBodyTooLarge {
                    max_size: MAX_MESSAGE,
                });
            }
            Ok(chunk)
        });
        let mut found = None;
        if is_events && status.is_success() {
            let mut events = std::pin::pin!(SseStream::from_bytes_stream(bytes));
            while let Some(event) = events.next().await {
                let data = event?.data.unwrap_or_default();
                found = decode(data.into_bytes(), |i| (i == id).then_some(Want::Raw))
                    .ok()
                    .filter(|m| is_answer(m, id));
                if found.is_some() {
                    break;
                }
            }
        } else {
            let mut body = Vec::new();
            let mut bytes = std::pin::pin!(bytes);
            while let Some(chunk) = bytes.next().await {
                body.extend_from_slice(&chunk?);
            }
            found = decode(body, |i| (i == id).then_some(Want::Raw))
                .ok()
                .filter(|m| is_answer(m, id));
        }
        match found {
            Some(message) => Ok(StreamableHttpPostResponse::Json(message, None)),
            None if !status.is_success() => {
                Err(HttpStatusError::new(status.as_u16(), retry_after).into())
            }
            None => Err(StreamableHttpError::UnexpectedServerResponse(
                "the reply holds no answer to the request".into(),
            )),
        }
    }
}

/// An error as it is told from here on: without its URL, which may hold a password or a token, and
/// with a 401 or 403 as such, whatever came with it.
fn normal(e: StreamableHttpError<reqwest::Error>) -> StreamableHttpError<reqwest::Error> {
    let status = match &e {
        StreamableHttpError::Client(e) => e.status().map(|s| s.as_u16()),
        // What rmcp makes of one without a challenge.
        StreamableHttpError::UnexpectedServerResponse(text) => ["401", "403"]
            .into_iter()
            .find(|code| {
                text.strip_prefix("HTTP ")
                    .is_some_and(|t| t.starts_with(code))
            })
            .and_then(|code| code.parse().ok()),
        _ => None,
    };
    match (status, e) {
        (Some(401), _) => StreamableHttpError::AuthRequired(AuthRequiredError::new(String::new())),
        (Some(403), _) => HttpStatusError::new(403, None).into(),
        (_, StreamableHttpError::Client(e)) => StreamableHttpError::Client(e.without_url()),
        (_, e) => e,
    }
}

/// Whether a message answers this request; an error may lack the id.
fn is_answer(message: &ServerJsonRpcMessage, id: &RequestId) -> bool {
    match message {
        JsonRpcMessage::Response(r) => r.id == *id,
        JsonRpcMessage::Error(e) => e.id.as_ref().is_none_or(|i| i == id),
        _ => false,
    }
}

impl StreamableHttpClient for RawHttp {
    type Error = reqwest::Error;

    async fn post_message(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session: Option<Arc<str>>,
        auth: Option<String>,
        headers: HashMap<HeaderName, HeaderValue>,
    ) -> HttpResult<StreamableHttpPostResponse> {
        let limits = StreamableHttpResponseLimits::default();
        self.post_message_with_response_limits(uri, message, session, auth, headers, limits)
            .await
    }

    // The token that rmcp would send is none: ours is looked up for each request.
    async fn post_message_with_response_limits(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session: Option<Arc<str>>,
        _: Option<String>,
        headers: HashMap<HeaderName, HeaderValue>,
        limits: StreamableHttpResponseLimits,
    ) -> HttpResult<StreamableHttpPostResponse> {
        let ours = match &message {
            ClientJsonRpcMessage::Request(r) if is_ours(&r.request) => Some(r.id.clone()),
            _ => None,
        };
        let mut attempt = self.attempt().await;
        loop {
            let (token, session, headers) = (attempt.token(), session.clone(), headers.clone());
            let reply = match &ours {
                Some(id) => {
                    self.post_raw(&uri, &message, id, session, token, headers)
                        .await
                }
                None => {
                    let (uri, message) = (Arc::clone(&uri), message.clone());
                    self.client
                        .post_message_with_response_limits(
                            uri, message, session, token, headers, limits,
                        )
                        .await
                }
            };
            match self.settle(attempt, reply).await {
                ControlFlow::Break(reply) => return reply,
                ControlFlow::Continue(next) => attempt = next,
            }
        }
    }

    async fn delete_session(
        &self,
        uri: Arc<str>,
        session: Arc<str>,
        _: Option<String>,
        headers: HashMap<HeaderName, HeaderValue>,
    ) -> HttpResult<()> {
        let mut attempt = self.attempt().await;
        loop {
            let (uri, session, token) = (Arc::clone(&uri), Arc::clone(&session), attempt.token());
            let reply = self
                .client
                .delete_session(uri, session, token, headers.clone());
            match self.settle(attempt, reply.await).await {
                ControlFlow::Break(reply) => return reply,
                ControlFlow::Continue(next) => attempt = next,
            }
        }
    }

    async fn get_stream(
        &self,
        uri: Arc<str>,
        session: Option<Arc<str>>,
        last_event: Option<String>,
        _: Option<String>,
        headers: HashMap<HeaderName, HeaderValue>,
    ) -> HttpResult<
        futures_util::stream::BoxStream<'static, Result<sse_stream::Sse, sse_stream::Error>>,
    > {
        let mut attempt = self.attempt().await;
        loop {
            let (uri, session, token) = (Arc::clone(&uri), session.clone(), attempt.token());
            let stream =
                self.client
                    .get_stream(uri, session, last_event.clone(), token, headers.clone());
            match self.settle(attempt, stream.await).await {
                ControlFlow::Break(stream) => return stream,
                ControlFlow::Continue(next) => attempt = next,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Option<ServerJsonRpcMessage> {
        let want = |id: &RequestId| match id {
            RequestId::Number(1) => Some(Want::Raw),
            RequestId::Number(2) => Some(Want::Typed),
            _ => None,
        };
        decode(text.into(), want).ok()
    }

    fn raw(message: Option<ServerJsonRpcMessage>) -> Option<String> {
        match message? {
            JsonRpcMessage::Response(r) => match r.result {
                ServerResult::CustomResult(CustomResult(serde_json::Value::String(raw))) => {
                    Some(raw)
                }
                _ => None,
            },
            _ => None,
        }
    }

    #[test]
    fn f10_only_what_was_asked_is_answered() {
        let result = r#"{"a":1,"a":2}"#;
        let reply = |id: &str| format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#);
        assert_eq!(
            raw(read(&reply("1"))).as_deref(),
            Some(result),
            "raw, as it came"
        );
        for other in ["3", "\"1\"", "null", "1.5"] {
            assert!(raw(read(&reply(other))).is_none(), "{other}");
        }
        let error = r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"no"}}"#;
        assert!(matches!(read(error), Some(JsonRpcMessage::Error(_))));
        assert!(matches!(
            read(&error.replace("\"id\":1,", "")),
            Some(JsonRpcMessage::Error(_))
        ));
        assert!(read(&error.replace("\"id\":1", "\"id\":3")).is_none());
        let ping = r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;
        assert!(
            matches!(read(ping), Some(JsonRpcMessage::Request(_))),
            "its id is the server's"
        );
    }

    #[test]
    fn f04_a_reply_that_makes_no_sense_is_a_failed_answer() {
        let odd = r#"{"jsonrpc":"2.0","id":1,"error":"text"}"#;
        assert_eq!(raw(read(odd)).as_deref(), Some("null"));
        assert!(read("[INFO] {not json").is_none() && read("").is_none());
    }
}
