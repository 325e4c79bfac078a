//! The loads of `scripts/bench`, which is the manual: each runs one and prints, as one line of JSON,
//! how long it took without the start of the process.
#![allow(
    missing_docs,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a program whose output is its result; JSON that lacks a key gives null"
)]

use clap::{Args, Parser, Subcommand};
use futures_util::{StreamExt, stream};
use rmcp::model::{ClientConfig, ProtocolVersion, ReadResourceRequestParams, ResourceContents};
use rmcp::service::{
    ClientCacheConfig, ClientLifecycleMode, ClientServiceExt, RoleClient, RunningService,
};
use rmcp::transport::async_rw::AsyncRwTransport;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::error::Error;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, BufRead, Read, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Mutex;
use std::time::{Duration, Instant, SystemTime};

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// Larger than the longest reply: 16 MiB as base64.
const MAX_LINE: usize = 64 << 20;
/// Skills in a page of a made listing.
const SKILLS_IN_PAGE: usize = 1000;

/// One load.
#[derive(Parser)]
struct Cli {
    // `cargo bench` adds it.
    #[arg(long, hide = true)]
    bench: bool,
    #[command(subcommand)]
    load: Load,
}

#[derive(Subcommand)]
enum Load {
    /// Open, fstat, read to the end and close a file, again and again.
    Open { file: PathBuf, times: usize },
    /// Stat a path, again and again.
    Stat { path: PathBuf, times: usize },
    /// List a directory, again and again.
    Readdir { dir: PathBuf, times: usize },
    /// Map a file, add up its bytes and unmap it, again and again.
    Mmap { file: PathBuf, times: usize },
    /// Read the files of a list, in its order, by one or more threads.
    ReadAll {
        root: PathBuf,
        /// Paths below the root, one a line.
        list: PathBuf,
        #[arg(default_value_t = 1)]
        threads: usize,
    },
    /// Read the files of a list from a server over stdio, without a mount: rmcp alone.
    Client {
        /// Paths of files, one a line.
        list: PathBuf,
        /// Requests on their way at once.
        in_flight: usize,
        #[arg(required = true, trailing_var_arg = true)]
        server: Vec<String>,
    },
    /// Be a server over stdio with a made listing.
    Publish {
        #[command(flatten)]
        made: Made,
        /// A file with the version of the first skill; the others never change.
        version: PathBuf,
        /// Where the time goes at which a listing was asked for, in seconds since the epoch.
        asked: PathBuf,
    },
    /// Parse a made listing by serde_json alone.
    Parse {
        #[command(flatten)]
        made: Made,
    },
}

/// A made listing.
#[derive(Args)]
struct Made {
    skills: usize,
    /// Files of each skill.
    files: usize,
}

fn main() -> Outcome<()> {
    let result = match Cli::parse().load {
        Load::Open { file, times } => open(&file, times)?,
        Load::Stat { path, times } => stat(&path, times)?,
        Load::Readdir { dir, times } => readdir(&dir, times)?,
        Load::Mmap { file, times } => mmap(&file, times)?,
        Load::ReadAll {
            root,
            list,
            threads,
        } => read_all(&root, &list, threads)?,
        Load::Client {
            list,
            in_flight,
            server,
        } => client(&list, in_flight, &server)?,
        Load::Publish {
            made,
            version,
            asked,
        } => return publish(&made, &version, &asked),
        Load::Parse { made } => parse(&made)?,
    };
    println!("{result}");
    Ok(())
}

fn seconds_since(start: Instant) -> Value {
    json!({ "elapsed_s": start.elapsed().as_secs_f64() })
}

// ---- loads on files ----

fn open(file: &Path, times: usize) -> Outcome<Value> {
    let mut buffer = Vec::new();
    let start = Instant::now();
    for _ in 0..times {
        read_file(file, &mut buffer)?;
    }
    Ok(seconds_since(start))
}

/// Open, fstat, read to the end, close; the size.
fn read_file(path: &Path, buffer: &mut Vec<u8>) -> io::Result<u64> {
    let mut file = File::open(path)?;
    let size = file.metadata()?.len();
    buffer.clear();
    file.read_to_end(buffer)?;
    if buffer.len() as u64 != size {
        return Err(io::Error::other(format!("{}: cut off", path.display())));
    }
    Ok(size)
}

fn stat(path: &Path, times: usize) -> Outcome<Value> {
    let start = Instant::now();
    for _ in 0..times {
        fs::metadata(path)?;
    }
    Ok(seconds_since(start))
}

fn readdir(dir: &Path, times: usize) -> Outcome<Value> {
    let start = Instant::now();
    for _ in 0..times {
        for entry in fs::read_dir(dir)? {
            entry?;
        }
    }
    Ok(seconds_since(start))
}

fn mmap(file: &Path, times: usize) -> Outcome<Value> {
    let file = File::open(file)?;
    let size = usize::try_from(file.metadata()?.len())?;
    let start = Instant::now();
    let mut sum = 0;
    for _ in 0..times {
        sum = added_up(&file, size)?;
    }
    let mut result = seconds_since(start);
    result["sum"] = sum.into();
    Ok(result)
}

/// The sum of the bytes of a file, by a mapping.
#[allow(unsafe_code, reason = "a mapping has no safe call")]
fn added_up(file: &File, size: usize) -> io::Result<u64> {
    let (read, private) = (libc::PROT_READ, libc::MAP_PRIVATE);
    // SAFETY: a new mapping at a place of the kernel's choice; it replaces nothing.
    let map = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            size,
            read,
            private,
            file.as_raw_fd(),
            0,
        )
    };
    if map == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the mapping is of `size` bytes, readable, unmapped only after the last use, and the
    // files of a bench are not cut while it runs.
    let bytes = unsafe { std::slice::from_raw_parts(map.cast::<u8>(), size) };
    let sum = bytes.iter().map(|b| u64::from(*b)).sum();
    // SAFETY: it is our mapping, of this size.
    unsafe { libc::munmap(map, size) };
    Ok(sum)
}

fn read_all(root: &Path, list: &Path, threads: usize) -> Outcome<Value> {
    let paths: Vec<PathBuf> = lines(list)?.iter().map(|line| root.join(line)).collect();
    let next = Mutex::new(paths.iter());
    let worker = || {
        let (mut buffer, mut bytes) = (Vec::new(), 0);
        loop {
            let path = next
                .lock()
                .map_err(|e| io::Error::other(e.to_string()))?
                .next();
            let Some(path) = path else { return Ok(bytes) };
            bytes += read_file(path, &mut buffer)?;
        }
    };
    let start = Instant::now();
    let bytes: io::Result<u64> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(worker)).collect();
        workers.into_iter().map(joined).sum()
    });
    let mut result = seconds_since(start);
    result["bytes"] = bytes?.into();
    Ok(result)
}

fn joined<T>(thread: std::thread::ScopedJoinHandle<'_, io::Result<T>>) -> io::Result<T> {
    thread
        .join()
        .unwrap_or_else(|_| Err(io::Error::other("a thread panicked")))
}

fn lines(list: &Path) -> io::Result<Vec<String>> {
    Ok(fs::read_to_string(list)?.lines().map(Into::into).collect())
}

// ---- rmcp alone ----

/// Threads as the daemon has.
#[tokio::main(worker_threads = 2)]
async fn client(list: &Path, in_flight: usize, server: &[String]) -> Outcome<Value> {
    let uris: Vec<String> = lines(list)?
        .iter()
        .map(|l| format!("skill://{l}"))
        .collect();
    let start = Instant::now();
    let service = connect(server).await?;
    let initialize = start.elapsed();
    let peer = service.peer();
    let start = Instant::now();
    let mut replies = stream::iter(uris)
        .map(|uri| async move {
            peer.read_resource(ReadResourceRequestParams::new(uri))
                .await
        })
        .buffer_unordered(in_flight);
    let mut bytes = 0;
    while let Some(reply) = replies.next().await {
        bytes += reply?.contents.iter().map(length).sum::<usize>();
    }
    let mut result = seconds_since(start);
    result["initialize_s"] = initialize.as_secs_f64().into();
    result["bytes"] = bytes.into();
    drop(replies);
    service.cancel().await?;
    Ok(result)
}

async fn connect(server: &[String]) -> Outcome<RunningService<RoleClient, ClientConfig>> {
    let (program, args) = server.split_first().ok_or("no server is named")?;
    let mut child = tokio::process::Command::new(program)
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    let pipes = child.stdout.take().zip(child.stdin.take());
    let (stdout, stdin) = pipes.ok_or("the server has no pipes")?;
    let transport = AsyncRwTransport::new_client(stdout, stdin).with_max_line_length(MAX_LINE);
    let mode = ClientLifecycleMode::Discover {
        preferred_versions: vec![ProtocolVersion::V_2026_07_28],
    };
    let service = ClientConfig::default()
        .serve_with_lifecycle(transport, mode)
        .await?;
    service
        .peer()
        .set_response_cache_config(ClientCacheConfig::disabled())
        .await;
    Ok(service)
}

/// Bytes of text or base64, as they came.
fn length(contents: &ResourceContents) -> usize {
    match contents {
        ResourceContents::TextResourceContents { text, .. } => text.len(),
        ResourceContents::BlobResourceContents { blob, .. } => blob.len(),
        _ => 0,
    }
}

// ---- a made listing ----

impl Made {
    fn pages(&self) -> usize {
        self.skills.div_ceil(SKILLS_IN_PAGE)
    }

    /// The result of `skills/list` at a page.
    fn page(&self, page: usize, version: &str) -> String {
        let first = page * SKILLS_IN_PAGE;
        let last = self.skills.min(first + SKILLS_IN_PAGE);
        let entries: Vec<String> = (first..last).map(|n| self.entry(n, version)).collect();
        let next = match page + 1 {
            next if next < self.pages() => format!(r#","nextCursor":"{next}""#),
            _ => String::new(),
        };
        let skills = entries.join(",");
        format!(
            r#"{{"resultType":"complete","ttlMs":0,"cacheScope":"private","skills":[{skills}]{next}}}"#
        )
    }

    /// The entry of a skill.
    fn entry(&self, skill: usize, version: &str) -> String {
        let rows: Vec<String> = (0..self.files)
            .map(|file| {
                let (uri, content) = (uri(skill, file), content(skill, file, version));
                let (digest, size) = (hex(&Sha256::digest(&content)), content.len());
                format!(r#"{{"uri":"{uri}","digest":"sha256:{digest}","size":{size}}}"#)
            })
            .collect();
        let (uri, name, rows) = (uri(skill, 0), name(skill), rows.join(","));
        format!(
            r#"{{"uri":"{uri}","frontmatter":{{"name":"{name}","description":"{DESCRIPTION}"}},"resources":[{rows}]}}"#
        )
    }
}

const DESCRIPTION: &str = "One of many skills. Use when measuring what a large listing costs.";

fn name(skill: usize) -> String {
    format!("skill-{skill:05}")
}

fn uri(skill: usize, file: usize) -> String {
    match file {
        0 => format!("skill://{}/SKILL.md", name(skill)),
        _ => format!("skill://{}/references/topic-{file:02}.md", name(skill)),
    }
}

fn content(skill: usize, file: usize, version: &str) -> String {
    let name = name(skill);
    let version = if skill == 0 { version } else { "0" };
    match file {
        0 => format!("---\nname: {name}\ndescription: {DESCRIPTION}\n---\nVersion {version}.\n"),
        _ => format!("Topic {file} of {name}, version {version}.\n"),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a text cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn parse(made: &Made) -> Outcome<Value> {
    let pages: Vec<String> = (0..made.pages()).map(|n| made.page(n, "0")).collect();
    let start = Instant::now();
    let values: Result<Vec<Value>, _> = pages.iter().map(|p| serde_json::from_str(p)).collect();
    let mut result = seconds_since(start);
    let found = values?
        .iter()
        .filter_map(|v| v["skills"].as_array())
        .map(Vec::len)
        .sum::<usize>();
    result["skills"] = found.into();
    result["bytes"] = pages.iter().map(String::len).sum::<usize>().into();
    result["uri_bytes"] = (0..made.skills)
        .flat_map(|skill| (0..made.files).map(move |file| uri(skill, file).len()))
        .sum::<usize>()
        .into();
    Ok(result)
}

/// Answers until stdin closes.
fn publish(made: &Made, version: &Path, asked: &Path) -> Outcome<()> {
    // Made beforehand, so that they cost nothing when they are asked for.
    let mut pages: Vec<String> = (0..made.pages()).map(|n| made.page(n, "0")).collect();
    let mut out = io::stdout().lock();
    for line in io::stdin().lock().lines() {
        let request: Value = serde_json::from_str(&line?)?;
        let Some(id) = request.get("id") else {
            continue;
        };
        let params = &request["params"];
        let version = || fs::read_to_string(version).unwrap_or_else(|_| "0".into());
        let reply = match request["method"].as_str().unwrap_or_default() {
            "server/discover" => Ok(discovered()),
            "skills/list" => {
                let page = params["cursor"].as_str().map_or(Ok(0), str::parse)?;
                if page == 0 {
                    pages[0] = made.page(0, &version());
                    fs::write(asked, now()?.to_string())?;
                }
                pages.get(page).cloned().ok_or("unknown cursor")
            }
            "skills/get" => numbers(params).map(|(skill, _)| got(&made.entry(skill, &version()))),
            "resources/read" => read(params, &version()),
            _ => Err("unknown method"),
        };
        match reply {
            Ok(result) => writeln!(out, r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#)?,
            Err(why) => {
                let error = json!({"code": -32602, "message": why});
                writeln!(out, r#"{{"jsonrpc":"2.0","id":{id},"error":{error}}}"#)?;
            }
        }
        out.flush()?;
    }
    Ok(())
}

fn discovered() -> String {
    json!({
        "resultType": "complete", "ttlMs": 0, "cacheScope": "private",
        "supportedVersions": ["2026-07-28"],
        "capabilities": {"resources": {}, "extensions": {"io.modelcontextprotocol/skills": {}}},
        "_meta": {"io.modelcontextprotocol/serverInfo": {"name": "made", "version": "1.0.0"}},
    })
    .to_string()
}

fn got(entry: &str) -> String {
    format!(r#"{{"resultType":"complete","ttlMs":0,"cacheScope":"private","skill":{entry}}}"#)
}

fn read(params: &Value, version: &str) -> Result<String, &'static str> {
    let (skill, file) = numbers(params)?;
    let contents = json!([{"uri": params["uri"], "text": content(skill, file, version)}]);
    let result = json!({"resultType": "complete", "ttlMs": 0, "cacheScope": "private", "contents": contents});
    Ok(result.to_string())
}

/// The skill and the file that a request is about.
fn numbers(params: &Value) -> Result<(usize, usize), &'static str> {
    let asked = params["uri"].as_str().unwrap_or_default();
    let digits = |part: &str| {
        part.chars()
            .filter(char::is_ascii_digit)
            .collect::<String>()
    };
    let skill = asked
        .split('/')
        .nth(2)
        .and_then(|part| digits(part).parse().ok());
    let file = asked
        .rsplit('/')
        .next()
        .map(|part| digits(part).parse().unwrap_or(0));
    let found = skill
        .zip(file)
        .filter(|(skill, file)| uri(*skill, *file) == asked);
    found.ok_or("unknown URI")
}

/// Seconds since the epoch.
fn now() -> Outcome<f64> {
    let since: Duration = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
    Ok(since.as_secs_f64())
}
