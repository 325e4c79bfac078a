//! The audit trail: who first read what, and what was refused to whom.
//!
//! A process is a thread group with the time of its start, as a number is used again. It is looked
//! up while the kernel waits for the answer: until then it cannot be gone. Lines are written by a
//! thread of their own, so that no reader waits for the disk.
//!
//! **Invariant:** one line at most for each process, program, file and outcome while those are among
//! the last `KNOWN`, and one for each window; `LINES` at most in `WINDOW`. A line that is missing,
//! for whatever reason, is counted in one that follows.
//!
//! *Absent:* what the kernel answers from its own memory: it asks nobody, so nobody can tell.

use super::refusal::ReadError;
use crate::domain::text::{printable, spelt_whole};
use crate::sync::Mutex;
use lru::LruCache;
use serde::{Deserialize, Serialize};
use std::hash::{BuildHasher, RandomState};
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
/// How long the end of a mount waits for the last lines.
const PATIENCE: Duration = Duration::from_secs(5);
/// Texts are cut to this many characters.
const TEXT: usize = 1024;
/// What stands for a program that is not known.
const UNKNOWN: &str = "unknown";

/// Where lines go; each with its line feed. One that fails is not there.
pub type Sink = Box<dyn FnMut(&[u8]) -> io::Result<()> + Send>;

/// Since when no line could be written, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gap {
    /// Seconds since the epoch.
    pub since: u64,
    /// Why.
    pub reason: String,
}

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

/// By what one line is told from another: who, a hash of what it runs, which inode, and the error if
/// there was one. A process may go on as another program.
type Key = (u32, Option<u32>, u64, u64, u64, Option<ReadError>);

enum Note {
    Line(Box<Record>),
    End,
}

/// The trail of a mount.
#[derive(Debug)]
pub(super) struct Audit {
    known: Mutex<LruCache<Key, ()>>,
    programs: RandomState,
    notes: SyncSender<Note>,
    /// Lines for which the writer was too slow.
    missed: Arc<AtomicU64>,
    gap: Arc<Mutex<Option<Gap>>>,
    writer: Mutex<Option<JoinHandle<()>>>,
}

impl Audit {
    /// A trail that is written here.
    pub(super) fn start(sink: Sink) -> io::Result<Self> {
        let (notes, queue) = sync_channel(WAITING);
        let missed = Arc::<AtomicU64>::default();
        let gap = Arc::<Mutex<Option<Gap>>>::default();
        let (counted, noted) = (Arc::clone(&missed), Arc::clone(&gap));
        let writer = std::thread::Builder::new()
            .name("audit".into())
            .spawn(move || write(&queue, &counted, Pen { sink, gap: noted }))?;
        Ok(Self {
            known: Mutex::new(LruCache::new(KNOWN)),
            programs: RandomState::new(),
            notes,
            missed,
            gap,
            writer: Mutex::new(Some(writer)),
        })
    }

    /// Whether this is to be in the trail and is not; the next time it is.
    pub(super) fn is_new(&self, process: &Process, ino: u64, error: Option<ReadError>) -> bool {
        let Process {
            uid, pid, started, ..
        } = *process;
        let runs = (&process.command, &process.program);
        let runs = self.programs.hash_one(runs);
        let key = (uid, pid, started, runs, ino, error);
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
            uri: spelt_whole(uri),
            path: spelt_whole(path),
            outcome,
        });
        if self.notes.try_send(Note::Line(record)).is_err() {
            self.missed.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Since when no line could be written, if that is so.
    pub(super) fn gap(&self) -> Option<Gap> {
        self.gap.lock().clone()
    }

    /// Writes what is left to write. Blocks on the disk, for a moment.
    pub(super) fn end(&self) {
        self.end_within(PATIENCE);
    }

    fn end_within(&self, patience: Duration) {
        let Some(writer) = self.writer.lock().take() else {
            return;
        };
        let by = Instant::now() + patience;
        let mut told = false;
        while !writer.is_finished() {
            if Instant::now() >= by {
                tracing::warn!("the audit trail does not take its last lines; they are lost");
                return;
            }
            // There may be no room for it before the writer has taken something.
            told = told || self.notes.try_send(Note::End).is_ok();
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = writer.join();
    }
}

/// What writes, and what became of it.
struct Pen {
    sink: Sink,
    gap: Arc<Mutex<Option<Gap>>>,
}

impl Pen {
    /// Writes a line, or counts what is missing with it.
    fn put(&mut self, line: &Line, rate: &mut Rate) {
        let mut text = serde_json::to_vec(line).unwrap_or_default();
        text.push(b'\n');
        let written = (self.sink)(&text);
        let before = self.gap.lock().clone();
        let gap = match (written, before) {
            (Ok(()), None) => return,
            (Ok(()), Some(Gap { since, .. })) => {
                let seconds = super::unix_now().saturating_sub(since);
                tracing::warn!("the audit trail is written again, after {seconds} s without it");
                None
            }
            (Err(e), before) => {
                if before.is_none() {
                    tracing::warn!("the audit trail is not written: {e}");
                }
                rate.left_out(match line {
                    Line::Read(_) => 1,
                    Line::More { more, .. } => *more,
                });
                let reason = printable(&e.to_string(), TEXT);
                let since = before.map_or_else(super::unix_now, |gap| gap.since);
                Some(Gap { since, reason })
            }
        };
        *self.gap.lock() = gap;
    }
}

/// Writes lines until the end.
fn write(queue: &Receiver<Note>, missed: &AtomicU64, mut pen: Pen) {
    let mut rate = Rate::new(Instant::now());
    loop {
        let note = queue.recv_timeout(TICK);
        let now = Instant::now();
        rate.left_out(missed.swap(0, Ordering::Relaxed));
        if let Some(more) = rate.due(now) {
            let time = super::unix_now();
            pen.put(&Line::More { time, more }, &mut rate);
        }
        match note {
            Ok(Note::Line(record)) if rate.admit(now) => pen.put(&Line::Read(record), &mut rate),
            Ok(Note::Line(_)) | Err(RecvTimeoutError::Timeout) => {}
            Ok(Note::End) | Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    let more = std::mem::take(&mut rate.more);
    if more > 0 {
        let time = super::unix_now();
        pen.put(&Line::More { time, more }, &mut rate);
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
        let mut other = process(7, 1);
        other.program = Some("/bin/other".into());
        assert!(audit.is_new(&other, 5, None), "it runs another program");
        assert!(!audit.is_new(&process(7, 1), 5, None));
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
    fn a_line_that_cannot_be_written_is_counted_in_one_that_can() {
        let (send, lines) = mpsc::channel();
        let mut n = 0;
        let sink = move |line: &[u8]| {
            n += 1;
            if n == 2 {
                return Err(io::ErrorKind::StorageFull.into());
            }
            let line: Line = serde_json::from_slice(line).unwrap();
            send.send(line).map_err(io::Error::other)
        };
        let audit = Audit::start(Box::new(sink)).unwrap();
        let place = ("a", "skill://s", "a/s");
        audit.put(process(7, 1), 1, place, denied());
        audit.put(process(7, 1), 2, place, denied());
        let start = Instant::now();
        while audit.gap().is_none() {
            assert!(start.elapsed() < Duration::from_secs(10));
            std::thread::yield_now();
        }
        audit.put(process(7, 1), 3, place, denied());
        audit.end();
        assert_eq!(audit.gap(), None);
        let lines: Vec<Line> = lines.iter().collect();
        let told: Vec<u64> = lines
            .iter()
            .map(|l| match l {
                Line::Read(read) => read.time,
                Line::More { more, .. } => 100 + more,
            })
            .collect();
        assert_eq!(told, [1, 3, 101]);
    }

    #[test]
    fn the_end_does_not_wait_for_a_disk_that_hangs() {
        let (go, hang) = mpsc::channel::<()>();
        let (began, begun) = mpsc::channel();
        let sink = move |_: &[u8]| {
            let _ = (began.send(()), hang.recv());
            Ok(())
        };
        let audit = Audit::start(Box::new(sink)).unwrap();
        let put = |n| audit.put(process(7, 1), n, ("a", "", ""), denied());
        put(0);
        begun.recv().unwrap();
        (0..=WAITING as u64).for_each(put);
        audit.end_within(Duration::from_millis(20));
        assert!(audit.writer.lock().is_none(), "it is left behind");
        assert_eq!(audit.missed.load(Ordering::Relaxed), 1);
        drop(go);
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
