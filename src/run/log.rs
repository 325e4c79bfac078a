//! The log: which events are in it, how its lines look, and where they go: to stderr, or to a file
//! that is opened anew when it was moved away.
//!
//! In a mount a thread of its own writes, and what waits for it is bounded; a command writes at once.
//!
//! **Invariant:** a line is one line, and holds nothing that a terminal would act on, whatever a
//! server said.
//!
//! **Invariant:** nobody waits for the log of a mount, but for a moment at its end, and nothing
//! depends on whether it can be written; lines that could not be are counted in one of its own.
//!
//! **Invariant:** a file of the log gets its lines whether or not stderr takes any.
//!
//! *Absent:* rotation and limits, which logrotate has, but for the file that is used when none was
//! named; syslog and journald, since a service manager takes what is written to stderr.

use crate::cli::LogFormat;
use crate::domain::text::printable;
use crate::host::report::count;
use crate::store::append::{Trail, Turned};
use parking_lot::{Condvar, Mutex, RwLock};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Serialize;
use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::OnceLock;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::{Duration, Instant};
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::{DefaultFields, Format, FormatEvent, FormatFields, Writer};
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, Formatter, MakeWriter};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::reload::Handle;

/// What is logged if nobody says.
const USUAL: &str = "warn";

/// The thread that writes.
const THREAD: &str = "log";
/// At most so many bytes wait to be written.
const WAITING: usize = 1 << 20;
/// How long the end of a mount, or its way into the background, waits for the log.
const PATIENCE: Duration = Duration::from_secs(3);
/// How long what is in the file as well, or is said before an abort, waits for stderr.
const MOMENT: Duration = Duration::from_secs(1);
/// A pipe that takes anything takes so much without a wait: PIPE_BUF of Linux.
const AT_ONCE: usize = 4096;

/// How lines look.
static FORMAT: RwLock<LogFormat> = RwLock::new(LogFormat::Text);

/// Whether lines of text say whose they are.
static SIGNED: RwLock<Signed> = RwLock::new(Signed::No);

/// Whether lines of text name the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Signed {
    /// They do: several write to one file.
    Yes,
    /// The file is ours alone.
    No,
}

/// What is logged.
static LEVELS: Mutex<Option<Levels>> = Mutex::new(None);

struct Levels {
    /// As the user wrote it.
    asked: String,
    handle: Handle<EnvFilter, Formatter<DefaultFields, Lines, Log>>,
}

/// The filter that a level or a list of directives stands for.
fn filter(asked: &str) -> Result<EnvFilter, String> {
    let asked = asked.trim();
    if asked.is_empty() {
        return Err("it is empty; give a level such as info, or a filter".into());
    }
    // A bare level is about this program and rmcp's catalog of skills, not about every crate.
    let filter = match asked.contains(['=', ',']) {
        // Its word on a login at lower levels holds what the login is made of.
        true => format!("{asked},rmcp::transport::auth=warn"),
        false => format!("off,mount_skills={asked},rmcp::handler::server::skill_catalog={asked}"),
    };
    EnvFilter::try_new(&filter).map_err(|e| e.to_string())
}

/// Starts the log, as the environment says.
pub fn start_log() {
    let asked = std::env::var("MOUNT_SKILLS_LOG").unwrap_or_else(|_| USUAL.into());
    let (asked, filter) = match filter(&asked) {
        Ok(filter) => (asked, filter),
        Err(e) => {
            let _ = writeln!(
                io::stderr(),
                "mount-skills: MOUNT_SKILLS_LOG is not used: {e}"
            );
            (USUAL.to_owned(), EnvFilter::new("off,mount_skills=warn"))
        }
    };
    let builder = tracing_subscriber::fmt()
        .with_writer(Log)
        // They would be printed to stderr by what panics when that fails.
        .log_internal_errors(false)
        .event_format(Lines)
        .with_env_filter(filter)
        .with_filter_reloading();
    let handle = builder.reload_handle();
    *LEVELS.lock() = Some(Levels { asked, handle });
    builder.init();
}

/// What is logged from now on, if something is given; what was logged before.
pub(super) fn level(asked: Option<&str>) -> Result<String, String> {
    let mut levels = LEVELS.lock();
    let levels = levels.as_mut().ok_or("there is no log")?;
    let before = levels.asked.clone();
    if let Some(asked) = asked {
        let new = filter(asked).map_err(|e| {
            let asked = printable(asked, 200);
            format!(
                "{asked:?} is no filter: {}; give off, error, warn, info, debug, trace, or a list \
                 such as mount_skills=debug,rmcp=info",
                printable(&e, 200)
            )
        })?;
        levels.handle.reload(new).map_err(|e| e.to_string())?;
        levels.asked = asked.trim().to_owned();
    }
    Ok(before)
}

/// Has lines look like this from now on.
pub(super) fn look(format: LogFormat) {
    *FORMAT.write() = format;
}

/// Writes an event as a line.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lines;

impl<S, N> FormatEvent<S, N> for Lines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let line = match *FORMAT.read() {
            LogFormat::Text => {
                let mut line = String::new();
                Format::default()
                    .with_target(false)
                    .with_timer(Stamp)
                    .format_event(context, Writer::new(&mut line), event)?;
                printable(line.trim_end_matches('\n'), usize::MAX)
            }
            LogFormat::Json => json(event)?,
        };
        writeln!(writer, "{line}")
    }
}

/// When a line was written and, where that matters, by whom.
struct Stamp;

impl FormatTime for Stamp {
    fn format_time(&self, writer: &mut Writer<'_>) -> fmt::Result {
        SystemTime.format_time(writer)?;
        match *SIGNED.read() {
            Signed::Yes => write!(writer, " [{}]", std::process::id()),
            Signed::No => Ok(()),
        }
    }
}

/// A line of JSON.
#[derive(Serialize)]
struct Line<'a> {
    time: String,
    level: &'a str,
    target: &'a str,
    pid: u32,
    #[serde(flatten)]
    fields: Fields,
}

impl Line<'_> {
    fn text(level: &str, target: &str, fields: Fields) -> Result<String, fmt::Error> {
        let mut time = String::new();
        SystemTime.format_time(&mut Writer::new(&mut time))?;
        let line = Line {
            time,
            level,
            target,
            pid: std::process::id(),
            fields,
        };
        serde_json::to_string(&line).map_err(|_| fmt::Error)
    }
}

/// An event as one line of JSON.
fn json(event: &Event<'_>) -> Result<String, fmt::Error> {
    let mut fields = Fields::default();
    event.record(&mut fields);
    let metadata = event.metadata();
    Line::text(metadata.level().as_str(), metadata.target(), fields)
}

/// What the log says of itself, which goes past the filter.
fn own(text: &str) -> Vec<u8> {
    let text = printable(text, 2000);
    let line = match *FORMAT.read() {
        LogFormat::Text => {
            let mut time = String::new();
            let _ = Stamp.format_time(&mut Writer::new(&mut time));
            format!("{time}  WARN {text}")
        }
        LogFormat::Json => {
            let mut fields = Fields::default();
            fields.0.insert("message".into(), text.into());
            Line::text("WARN", module_path!(), fields).unwrap_or_default()
        }
    };
    format!("{line}\n").into_bytes()
}

/// The fields of an event; its text is `message`.
#[derive(Debug, Default, Serialize)]
#[serde(transparent)]
struct Fields(serde_json::Map<String, serde_json::Value>);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let text = printable(&format!("{value:?}"), usize::MAX);
        self.0.insert(field.name().into(), text.into());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        let text = printable(value, usize::MAX);
        self.0.insert(field.name().into(), text.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.0.insert(field.name().into(), value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.0.insert(field.name().into(), value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.0.insert(field.name().into(), value.into());
    }
}

/// What waits to be written; none in a command, which writes at once.
static QUEUE: OnceLock<Queue> = OnceLock::new();

#[derive(Default)]
struct Queue {
    waiting: Mutex<Waiting>,
    news: Condvar,
}

#[derive(Default)]
struct Waiting {
    notes: Vec<Note>,
    bytes: usize,
    /// So many lines came after these, and there was no room for them.
    left_out: usize,
}

/// What the thread is told.
enum Note {
    /// A line with its line feed.
    Line(Vec<u8>),
    /// The file may have been moved away.
    Reopen,
    /// The file takes the place of stderr; this one, if there is none.
    TakeStderr(File, SyncSender<()>),
    /// Nothing, but that what came before is written.
    Flush(SyncSender<()>),
}

impl Queue {
    fn put(&self, note: Note) {
        let mut waiting = self.waiting.lock();
        match &note {
            Note::Line(line) if waiting.bytes + line.len() > WAITING && waiting.bytes > 0 => {
                waiting.left_out += 1;
                return;
            }
            Note::Line(line) => waiting.bytes += line.len(),
            // One is as good as many, which nobody takes while the disk hangs.
            Note::Reopen if matches!(waiting.notes.last(), Some(Note::Reopen)) => return,
            Note::Reopen | Note::TakeStderr(..) | Note::Flush(_) => {}
        }
        waiting.notes.push(note);
        self.news.notify_one();
    }

    /// Waits for what there is to do.
    fn take(&self) -> Waiting {
        let mut waiting = self.waiting.lock();
        while waiting.notes.is_empty() {
            self.news.wait(&mut waiting);
        }
        std::mem::take(&mut *waiting)
    }
}

/// Whether lines go to stderr as well as to the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Copies {
    /// To the file only.
    None,
    /// To the file, which has taken the place of stderr.
    Instead,
    /// To both, unless stderr takes none: somebody waits at a terminal for how the start goes.
    Stderr,
}

/// Where lines go.
struct Place {
    file: Option<(Trail, Copies)>,
    /// So many lines are not there.
    lost: usize,
    opened: Opened,
}

/// Whether the file could be opened anew when it was looked for.
#[derive(PartialEq, Eq)]
enum Opened {
    Yes,
    No,
}

impl Place {
    /// Writes what comes, for ever.
    fn serve(mut self, queue: &Queue) {
        loop {
            let Waiting {
                notes, left_out, ..
            } = queue.take();
            self.turn();
            let mut waits = Vec::new();
            for note in notes {
                match note {
                    Note::Line(line) => self.put(&line),
                    Note::Reopen => self.turn(),
                    Note::TakeStderr(otherwise, done) => {
                        self.take_stderr(&otherwise);
                        drop(done);
                    }
                    Note::Flush(done) => waits.push(done),
                }
            }
            self.lost += left_out;
            self.tell_lost();
            drop(waits);
        }
    }

    /// Writes a line, or counts it.
    fn put(&mut self, line: &[u8]) {
        self.tell_lost();
        if self.write(line).is_err() {
            self.lost += 1;
        }
        // Whatever became of the file. After a line that was cut off there is none.
        if let Some((_, copies @ Copies::Stderr)) = &mut self.file
            && to_stderr_soon(line).is_err()
        {
            *copies = Copies::None;
        }
    }

    fn tell_lost(&mut self) {
        if self.lost == 0 {
            return;
        }
        let lines = count(self.lost, "line");
        let are = if self.lost == 1 { "is" } else { "are" };
        let text = "missing here, which could not be written, or not in time";
        if self
            .write(&own(&format!("{lines} of the log {are} {text}")))
            .is_ok()
        {
            self.lost = 0;
        }
    }

    fn write(&mut self, line: &[u8]) -> io::Result<()> {
        match &mut self.file {
            None => write(rustix::stdio::stderr(), line, None),
            Some((file, _)) => file.write(line),
        }
    }

    /// Goes on in the file that has the name now; without success all stays as it is.
    fn turn(&mut self) {
        let Some((file, copies)) = &mut self.file else {
            return;
        };
        match file.turn() {
            Ok(turned) => {
                self.opened = Opened::Yes;
                match turned {
                    Turned::Other if *copies == Copies::Instead => {
                        // What a library says there is not to be lost, if it is there to be said.
                        let _ = rustix::stdio::dup2_stderr(file.file());
                    }
                    Turned::Same | Turned::Other => {}
                    Turned::Stays(why) => {
                        let text = format!("{} {why}", file.path().display());
                        self.put(&own(&text));
                    }
                }
            }
            Err(e) if self.opened == Opened::Yes => {
                self.opened = Opened::No;
                let text = format!("{}: cannot be opened anew: {e}", file.path().display());
                self.put(&own(&text));
            }
            Err(_) => {}
        }
    }

    fn take_stderr(&mut self, otherwise: &File) {
        let to = match &mut self.file {
            Some((file, copies)) => {
                *copies = Copies::Instead;
                file.file()
            }
            None => otherwise,
        };
        let _ = rustix::stdio::dup2_stderr(to);
    }
}

/// Writes a line, to stderr past the lock that others hold while they write there. What takes nothing
/// is waited for, without end or for so long.
fn write(to: BorrowedFd<'_>, mut line: &[u8], patience: Option<Duration>) -> io::Result<()> {
    let end = patience.map(|patience| Instant::now() + patience);
    // Who may wait writes it at once: nobody else gets in between in a file.
    let most = end.map_or(usize::MAX, |_| AT_ONCE);
    while !line.is_empty() {
        let left = end.map(|end| end.saturating_duration_since(Instant::now()));
        if left == Some(Duration::ZERO) {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let left = left.map(Timespec::try_from).transpose();
        let left = left.map_err(io::Error::other)?;
        let room = poll(
            &mut [PollFd::from_borrowed_fd(to, PollFlags::OUT)],
            left.as_ref(),
        );
        let wrote = match room {
            Ok(0) => continue,
            Ok(_) => rustix::io::write(to, line.get(..most).unwrap_or(line)),
            Err(e) => Err(e),
        };
        match wrote.map_err(io::Error::from) {
            Ok(n) => line = line.get(n..).unwrap_or_default(),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            // A terminal may have room for a byte, and none for a line feed, which is two.
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Writes a line to stderr, if that takes it in a moment.
fn to_stderr_soon(line: &[u8]) -> io::Result<()> {
    let stderr = rustix::stdio::stderr();
    // With room for a part of the line a terminal says that there is room, and then holds us up.
    let terminal = rustix::termios::isatty(stderr).then(|| {
        let mut options = File::options();
        options.write(true);
        options.custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY);
        options.open("/proc/self/fd/2")
    });
    let apart = terminal.and_then(Result::ok);
    let to = apart.as_ref().map_or(stderr, File::as_fd);
    write(to, line, Some(MOMENT))
}

/// From now on a thread writes the log, to stderr or to a file.
///
/// # Errors
/// There is no thread to be had.
pub(super) fn begin(file: Option<(Trail, Copies)>, signed: Signed) -> io::Result<Begun> {
    *SIGNED.write() = signed;
    let queue = QUEUE.get_or_init(Queue::default);
    let place = Place {
        file,
        lost: 0,
        opened: Opened::Yes,
    };
    std::thread::Builder::new()
        .name(THREAD.into())
        .spawn(move || place.serve(queue))?;
    Ok(Begun)
}

/// A log that is written by a thread. When this goes, what waits is written, if that is possible in
/// a moment.
#[derive(Debug)]
#[must_use]
pub(super) struct Begun;

impl Drop for Begun {
    fn drop(&mut self) {
        await_done(Note::Flush);
    }
}

/// Has the thread do something, and waits for that for a moment; whether it is done.
fn await_done(note: impl FnOnce(SyncSender<()>) -> Note) -> bool {
    let Some(queue) = QUEUE.get() else {
        return false;
    };
    let (done, is_done) = sync_channel(0);
    queue.put(note(done));
    is_done.recv_timeout(PATIENCE) == Err(std::sync::mpsc::RecvTimeoutError::Disconnected)
}

/// Looks whether the file was moved away, and makes it anew then.
pub(super) fn reopen() {
    if let Some(queue) = QUEUE.get() {
        queue.put(Note::Reopen);
    }
}

/// The log's file takes the place of stderr; `otherwise` does if there is none, or if the log cannot
/// be written just now.
pub(super) fn take_stderr(otherwise: &File) -> io::Result<()> {
    let null = otherwise.try_clone()?;
    if !await_done(|done| Note::TakeStderr(null, done)) {
        rustix::stdio::dup2_stderr(otherwise)?;
    }
    Ok(())
}

/// Has a panic in one of these threads end the process: a mount that lacks one of them goes on saying
/// what is not so. The guard unmounts. Any panic is told in the log; one of the thread that writes it,
/// on stderr.
pub(super) fn end_without(threads: &'static [&'static str]) {
    std::panic::set_hook(Box::new(move |info| {
        let thread = std::thread::current();
        let name = thread.name().unwrap_or_default();
        let line = own(&format!("thread {name:?} {info}"));
        if name == THREAD {
            let _ = to_stderr_soon(&line);
        } else if let Some(queue) = QUEUE.get() {
            queue.put(Note::Line(line));
            if threads.contains(&name) {
                await_done(Note::Flush);
            }
        }
        if name == THREAD || threads.contains(&name) {
            std::process::abort();
        }
    }));
}

/// The log as tracing writes to it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Log;

impl Write for Log {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        match QUEUE.get() {
            Some(queue) => queue.put(Note::Line(line.to_vec())),
            None => write(rustix::stdio::stderr(), line, None)?,
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for Log {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        *self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_is_a_level_or_directives_and_nothing_else() {
        for good in ["off", "warn", " debug ", "mount_skills=debug,rmcp=info"] {
            assert!(filter(good).is_ok(), "{good}");
        }
        for bad in ["", " ", "loud", "mount_skills=loud"] {
            assert!(filter(bad).is_err(), "{bad}");
        }
        let login = filter("rmcp=trace").unwrap().to_string();
        assert!(login.contains("rmcp::transport::auth=warn"), "{login}");
    }

    #[test]
    fn what_waits_is_bounded_and_what_was_left_out_is_counted() {
        let queue = Queue::default();
        queue.put(Note::Line(vec![b'x'; WAITING + 1]));
        queue.put(Note::Line(b"no room\n".to_vec()));
        queue.put(Note::Reopen);
        queue.put(Note::Reopen);
        queue.put(Note::Line(b"no room\n".to_vec()));
        let taken = queue.take();
        assert_eq!((taken.notes.len(), taken.left_out), (2, 2));
        queue.put(Note::Line(b"room again\n".to_vec()));
        assert_eq!(queue.take().left_out, 0);
    }

    #[test]
    fn a_stream_that_does_not_block_gets_whole_lines_and_one_that_nobody_reads_holds_up_for_a_moment()
     {
        use std::io::Read as _;
        use std::os::unix::net::UnixStream;
        let lines: Vec<String> = (0..2000).map(|n| format!("{n} {:>9000}\n", "x")).collect();
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let reader = std::thread::spawn(move || {
            let mut all = String::new();
            theirs.read_to_string(&mut all).unwrap();
            all
        });
        for line in &lines {
            write(ours.as_fd(), line.as_bytes(), None).unwrap();
        }
        drop(ours);
        assert!(reader.join().unwrap() == lines.concat());

        for blocks in [true, false] {
            let (ours, _theirs) = UnixStream::pair().unwrap();
            ours.set_nonblocking(!blocks).unwrap();
            let patience = Some(Duration::from_millis(20));
            let put = |line: &String| write(ours.as_fd(), line.as_bytes(), patience);
            let failed = lines.iter().find_map(|line| put(line).err()).unwrap();
            assert_eq!(failed.kind(), io::ErrorKind::TimedOut, "{blocks}");
        }
    }

    #[test]
    fn what_is_missing_and_a_file_that_cannot_be_moved_away_are_told_in_it_once() {
        let tmp = tempfile::tempdir().unwrap();
        let (path, before) = (tmp.path().join("log"), tmp.path().join("log.1"));
        std::fs::create_dir(&before).unwrap();
        let mut place = Place {
            file: Some((Trail::open(&path).unwrap().within(1000), Copies::None)),
            lost: 1,
            opened: Opened::Yes,
        };
        place.put(&own(&"x".repeat(1000)));
        place.lost = 2;
        for _ in 0..3 {
            place.turn();
            place.put(&own("y"));
        }
        let text = std::fs::read_to_string(&path).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 7, "{text}");
        let moved = format!(
            "{} cannot be moved to {}: ",
            path.display(),
            before.display()
        );
        let missing = [
            "1 line of the log is missing here, ",
            "2 lines of the log are missing here, ",
        ];
        for (n, what) in [(0, missing[0]), (2, missing[1]), (3, moved.as_str())] {
            assert!(lines[n].contains(what), "{n}: {text}");
        }
    }

    const CHILD: &str = "MOUNT_SKILLS_TEST_PANICS_IN";

    #[test]
    fn a_panic_is_logged_and_ends_the_process_if_its_thread_is_needed() {
        if let Ok(name) = std::env::var(CHILD) {
            let _log = begin(None, Signed::No).unwrap();
            end_without(&["needed"]);
            let thread = std::thread::Builder::new().name(name);
            let ended = thread.spawn(|| panic!("of its own")).unwrap().join();
            assert!(ended.is_err());
            return;
        }
        for (name, code) in [("needed", None), (THREAD, None), ("other", Some(0))] {
            let mut test = std::process::Command::new(std::env::current_exe().unwrap());
            test.args(["--exact", "--nocapture", "--test-threads=1"]);
            let path = "a_panic_is_logged_and_ends_the_process_if_its_thread_is_needed";
            test.arg(format!("run::log::tests::{path}"));
            let out = test.env(CHILD, name).output().unwrap();
            let said = String::from_utf8_lossy(&out.stderr);
            assert_eq!(out.status.code(), code, "{name}: {said}");
            let line = said.lines().find(|l| l.contains("of its own"));
            let line = line.unwrap_or_else(|| panic!("{name}: {said}"));
            assert!(
                line.contains("WARN") && line.contains(&format!("thread {name:?}")),
                "{line}"
            );
        }
    }
}
