//! The audit trail: who first read what, and what was refused to whom.
//!
//! A process is a thread group with the time of its start, as a number is used again. It is looked
//! up while the kernel waits for the answer: until then it cannot be gone. Lines are written by a
//! thread of their own, so that no reader waits for the disk.
//!
//! **Invariant:** one line at most for each process, file and outcome while those are among the
//! last `KNOWN`; `LINES` at most in `WINDOW`, and how many more there were.
//!
//! *Absent:* what the kernel answers from its own memory: it asks nobody, so nobody can tell.

use super::refusal::ReadError;
use crate::domain::text::{printable, spelt};
use crate::sync::Mutex;
use lru::LruCache;
use serde::{Deserialize, Serialize};
use std::io;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// So many pairs of a process and a file are known to be in the trail.
const KNOWN: NonZeroUsize = NonZeroUsize::new(4096).unwrap();
/// Lines that wait to be written.
const WAITING: usize = 1024;
/// At most this many lines are written…
const LINES: u32 = 1000;
/// …in this time.
const WINDOW: Duration = Duration::from_secs(10);
/// How often it is looked whether what was left out is to be told.
const TICK: Duration = Duration::from_secs(1);
/// Texts are cut to this many characters.
const TEXT: usize = 1024;
/// What stands for a program that is not known.
const UNKNOWN: &str = "unknown";

/// Where lines go; each with its line feed.
pub type Sink = Box<dyn FnMut(&[u8]) -> io::Result<()> + Send>;

/// A line of the trail.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Line {
    /// A read.
    Read(Box<Record>),
    /// So many reads that belong here were left out.
    More {
        /// When this was written, in seconds since the epoch.
        time: u64,
        /// How many.
        more: u64,
    },
}

/// A read in the trail. Texts are escaped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Seconds since the epoch.
    pub time: u64,
    /// The user whose process it was.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// The process; none if it is in a namespace that is closed to us.
    pub pid: Option<u32>,
    /// What it calls itself, or `unknown`.
    pub command: String,
    /// The file of its program, or `unknown`.
    pub program: String,
    /// The server.
    pub label: String,
    /// The URI of the file.
    pub uri: String,
    /// Its path below the mount point.
    pub path: String,
    /// What was read, or why not.
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// What a read came to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Outcome {
    /// There was content.
    Served {
        /// Its digest; none for a dynamic skill.
        digest: Option<String>,
        /// The size of the file.
        size: u64,
        /// `memory`, `disk` or `server`.
        source: String,
        /// Whether a window opened by this.
        opened_window: bool,
    },
    /// There was none.
    Refused {
        /// The name of the errno.
        errno: String,
        /// What kind of refusal it is.
        error: ReadError,
    },
}

/// Who reads, as far as can be seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    uid: u32,
    gid: u32,
    pid: Option<u32>,
    /// When it started, in ticks since the machine did.
    started: u64,
    command: Option<String>,
    program: Option<String>,
}

impl Process {
    /// The process that a thread belongs to, of which the kernel says this; 0 is a thread that it
    /// cannot name to us.
    pub fn of(uid: u32, gid: u32, thread: u32) -> Self {
        let mut process = Self {
            uid,
            gid,
            pid: (thread != 0).then_some(thread),
            started: 0,
            command: None,
            program: None,
        };
        let Some(thread) = process.pid else {
            return process;
        };
        let read = |what: &str| std::fs::read(format!("/proc/{thread}/{what}"));
        let status = read("status").unwrap_or_default();
        let Some(pid) = group(&String::from_utf8_lossy(&status)) else {
            return process;
        };
        process.pid = Some(pid);
        if let Ok(stat) = std::fs::read(format!("/proc/{pid}/stat"))
            && let Some((command, started)) = name_and_start(&String::from_utf8_lossy(&stat))
        {
            process.command = Some(printable(command, TEXT));
            process.started = started;
        }
        let program = std::fs::read_link(format!("/proc/{pid}/exe"));
        let program = program.map(|p| printable(&p.to_string_lossy(), TEXT));
        process.program = program.ok();
        process
    }
}

/// The thread group that /proc/N/status names.
fn group(status: &str) -> Option<u32> {
    let line = status.lines().find_map(|l| l.strip_prefix("Tgid:"))?;
    line.trim().parse().ok()
}

/// The name and the time of the start in /proc/N/stat. The name may hold anything.
fn name_and_start(stat: &str) -> Option<(&str, u64)> {
    let (before, after) = stat.rsplit_once(')')?;
    let (_, name) = before.split_once('(')?;
    let started = after.split_whitespace().nth(19)?.parse().ok()?;
    Some((name, started))
}

/// By what one line is told from another: who, which inode, and the error if there was one.
type Key = (u32, Option<u32>, u64, u64, Option<ReadError>);

enum Note {
    Line(Box<Record>),
    End,
}

/// The trail of a mount.
#[derive(Debug)]
pub(super) struct Audit {
    known: Mutex<LruCache<Key, ()>>,
    notes: SyncSender<Note>,
    /// Lines for which the writer was too slow.
    missed: Arc<AtomicU64>,
    writer: Mutex<Option<JoinHandle<()>>>,
}

impl Audit {
    /// A trail that is written here.
    pub(super) fn start(sink: Sink) -> io::Result<Self> {
        let (notes, queue) = sync_channel(WAITING);
        let missed = Arc::<AtomicU64>::default();
        let counted = Arc::clone(&missed);
        let writer = std::thread::Builder::new()
            .name("audit".into())
            .spawn(move || write(&queue, &counted, sink))?;
        Ok(Self {
            known: Mutex::new(LruCache::new(KNOWN)),
            notes,
            missed,
            writer: Mutex::new(Some(writer)),
        })
    }

    /// Whether this is to be in the trail and is not; the next time it is.
    pub(super) fn is_new(&self, process: &Process, ino: u64, error: Option<ReadError>) -> bool {
        let key = (process.uid, process.pid, process.started, ino, error);
        self.known.lock().put(key, ()).is_none()
    }

    /// Puts a read into the trail.
    pub(super) fn put(
        &self,
        process: Process,
        time: u64,
        (label, uri, path): (&str, &str, &str),
        outcome: Outcome,
    ) {
        let unknown = || UNKNOWN.to_owned();
        let record = Box::new(Record {
            time,
            uid: process.uid,
            gid: process.gid,
            pid: process.pid,
            command: process.command.unwrap_or_else(unknown),
            program: process.program.unwrap_or_else(unknown),
            label: label.into(),
            uri: spelt(uri),
            path: spelt(path),
            outcome,
        });
        if self.notes.try_send(Note::Line(record)).is_err() {
            self.missed.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Writes what is left to write. Blocks on the disk.
    pub(super) fn end(&self) {
        let _ = self.notes.send(Note::End);
        if let Some(writer) = self.writer.lock().take() {
            let _ = writer.join();
        }
    }
}

/// Writes lines until the end.
fn write(queue: &Receiver<Note>, missed: &AtomicU64, mut sink: Sink) {
    let mut rate = Rate::new(Instant::now());
    let mut failing = false;
    let mut put = |line: &Line| {
        let mut text = serde_json::to_vec(line).unwrap_or_default();
        text.push(b'\n');
        let written = sink(&text);
        if let Err(e) = &written
            && !failing
        {
            tracing::warn!("the audit trail is not written: {e}");
        }
        failing = written.is_err();
    };
    loop {
        let note = queue.recv_timeout(TICK);
        let now = Instant::now();
        rate.left_out(missed.swap(0, Ordering::Relaxed));
        if let Some(more) = rate.due(now) {
            let time = super::unix_now();
            put(&Line::More { time, more });
        }
        match note {
            Ok(Note::Line(record)) if rate.admit(now) => put(&Line::Read(record)),
            Ok(Note::Line(_)) | Err(RecvTimeoutError::Timeout) => {}
            Ok(Note::End) | Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    if rate.more > 0 {
        let (time, more) = (super::unix_now(), rate.more);
        put(&Line::More { time, more });
    }
}

/// How many lines there may be.
#[derive(Debug)]
struct Rate {
    since: Instant,
    lines: u32,
    more: u64,
}

impl Rate {
    fn new(now: Instant) -> Self {
        Self {
            since: now,
            lines: 0,
            more: 0,
        }
    }

    /// Whether a line may be written; one that may not is counted.
    fn admit(&mut self, now: Instant) -> bool {
        if now.saturating_duration_since(self.since) >= WINDOW {
            (self.since, self.lines) = (now, 0);
        }
        let may = self.lines < LINES;
        match may {
            true => self.lines += 1,
            false => self.more += 1,
        }
        may
    }

    fn left_out(&mut self, lines: u64) {
        self.more += lines;
    }

    /// How many lines were left out, once their time is over.
    fn due(&mut self, now: Instant) -> Option<u64> {
        let over = now.saturating_duration_since(self.since) >= WINDOW;
        (over && self.more > 0).then(|| std::mem::take(&mut self.more))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    fn process(pid: u32, started: u64) -> Process {
        Process {
            started,
            ..Process::of(1, 1, 0).with(pid)
        }
    }

    impl Process {
        fn with(mut self, pid: u32) -> Self {
            self.pid = Some(pid);
            self
        }
    }

    fn trail() -> (Audit, mpsc::Receiver<Line>) {
        let (send, lines) = mpsc::channel();
        let sink = move |line: &[u8]| {
            assert_eq!(line.last(), Some(&b'\n'));
            send.send(serde_json::from_slice(line).unwrap()).unwrap();
            Ok(())
        };
        (Audit::start(Box::new(sink)).unwrap(), lines)
    }

    fn denied() -> Outcome {
        Outcome::Refused {
            errno: "EACCES".into(),
            error: ReadError::Denied,
        }
    }

    #[test]
    fn a_process_is_known_by_its_start_and_forgotten_when_many_came_since() {
        let (audit, _lines) = trail();
        assert!(audit.is_new(&process(7, 1), 5, None));
        assert!(!audit.is_new(&process(7, 1), 5, None));
        assert!(
            audit.is_new(&process(7, 2), 5, None),
            "the number is used again"
        );
        assert!(audit.is_new(&process(7, 1), 6, None));
        assert!(audit.is_new(&process(7, 1), 5, Some(ReadError::Stale)));
        for ino in 0..KNOWN.get() as u64 {
            audit.is_new(&process(8, 1), 100 + ino, None);
        }
        assert_eq!(audit.known.lock().len(), KNOWN.get());
        assert!(audit.is_new(&process(7, 1), 5, None), "it was forgotten");
        audit.end();
    }

    #[test]
    fn what_is_too_much_is_counted_and_told() {
        let start = Instant::now();
        let mut rate = Rate::new(start);
        let admitted = (0..LINES + 5).filter(|_| rate.admit(start)).count();
        assert_eq!(admitted, LINES as usize);
        rate.left_out(2);
        let before = start + WINDOW - Duration::from_nanos(1);
        assert_eq!(rate.due(before), None);
        assert!(!rate.admit(before));
        assert_eq!(rate.due(start + WINDOW), Some(8));
        assert_eq!(rate.due(start + WINDOW), None, "once");
        assert!(rate.admit(start + WINDOW));
    }

    #[test]
    fn the_end_waits_for_the_lines_and_tells_what_is_missing() {
        let (audit, lines) = trail();
        for _ in 0..LINES + 3 {
            // A slow writer is waited for, so that all of them arrive.
            while audit.missed.load(Ordering::Relaxed) > 0 {
                std::thread::yield_now();
            }
            let place = ("a", "skill://s/\u{202e}", "a/s");
            audit.put(process(7, 1), 9, place, denied());
        }
        audit.end();
        let lines: Vec<Line> = lines.iter().collect();
        let reads = lines.iter().filter(|l| matches!(l, Line::Read(_))).count();
        let more = lines.iter().map(|l| match l {
            Line::More { more, .. } => *more,
            Line::Read(_) => 0,
        });
        assert_eq!(reads as u64 + more.sum::<u64>(), u64::from(LINES) + 3);
        let Some(Line::Read(first)) = lines.first() else {
            panic!("{lines:?}");
        };
        assert_eq!(first.uri, "skill://s/\\u{202e}");
        assert_eq!((first.pid, &*first.program), (Some(7), UNKNOWN));
        assert_eq!(first.outcome, denied());
    }

    #[test]
    fn a_process_is_found_by_any_of_its_threads() {
        let me = std::process::id();
        // It leads to <pid>/task/<thread>.
        let thread = std::fs::read_link("/proc/thread-self").unwrap();
        let thread = thread.file_name().unwrap().to_str().unwrap();
        let thread = thread.parse().unwrap();
        let found = Process::of(3, 4, thread);
        assert_eq!((found.uid, found.gid, found.pid), (3, 4, Some(me)));
        assert_eq!(found, Process::of(3, 4, me));
        assert!(found.started > 0 && found.command.is_some() && found.program.is_some());
        let nobody = Process::of(3, 4, 0);
        assert_eq!((nobody.pid, nobody.program), (None, None));
        let name = name_and_start("7 (a) (b c) R 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 4711 0 0");
        assert_eq!(name, Some(("a) (b c", 4711)));
        assert_eq!(name_and_start("7 (a"), None);
    }
}
