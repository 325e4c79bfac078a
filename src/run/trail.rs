//! `logs` and `audit`: files that grow, read and followed.

use super::{Ask, Dirs, Failure, pretty, said, say};
use crate::cli::print;
use crate::domain::name::Label;
use crate::domain::text::{in_ascii_where_hidden, printable, spelt_whole, word};
use crate::host::audit::Line;
use crate::host::report::ServerStatus;
use crate::store::append::{Ring, STDERR, STDERR_BEFORE};
use std::fmt::Display;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How often it is looked for something new.
const EVERY: Duration = Duration::from_millis(200);
/// After so many looks at nothing it is asked whether the label has another server now.
const ASK: u32 = 10;
/// More than is ever kept.
const ENOUGH: usize = 16 << 20;
/// What is read at once.
const PIECE: usize = 64 * 1024;
/// A line that is longer is shown in pieces while it is followed.
const LONGEST: usize = 256 * 1024;

/// Stands where something is missing.
const LEFT_OUT: &str = "[... left out: it came faster than it was shown ...]";

/// A file that grows, and may be moved away for a new one.
struct Tail {
    path: PathBuf,
    /// Where one goes that is moved away, if that is known: what is not there has been followed by
    /// more than one.
    before: Option<PathBuf>,
    file: Option<File>,
    /// The one that has the name now, once `file` was moved away.
    next: Option<(File, Between)>,
    /// The begin of a line.
    begun: Vec<u8>,
}

/// What lies between a file and the one that has its name now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Between {
    Nothing,
    /// Others, which are gone.
    Files,
}

/// What there is at the next look.
#[derive(Debug, PartialEq, Eq)]
enum Piece {
    Nothing,
    Bytes(Vec<u8>),
    /// What came before this is lost, from where the last piece ended.
    Gap,
}

impl Tail {
    /// The file of this name, which need not be there yet.
    fn new(path: PathBuf, before: Option<PathBuf>) -> io::Result<Self> {
        Ok(Self {
            file: open(&path)?,
            path,
            before,
            next: None,
            begun: Vec::new(),
        })
    }

    /// What was added since the last question, a piece of it.
    fn piece(&mut self) -> io::Result<Piece> {
        loop {
            if let Some(file) = &mut self.file {
                let mut piece = vec![0; PIECE];
                let n = file.read(&mut piece).map_err(|e| named(&self.path, &e))?;
                if n > 0 {
                    piece.truncate(n);
                    return Ok(Piece::Bytes(piece));
                }
            }
            // What was added to the one before it was moved away has been read by now.
            if let Some((next, between)) = self.next.take() {
                self.file = Some(next);
                if between == Between::Files {
                    return Ok(Piece::Gap);
                }
                continue;
            }
            // Only at the end of the one is the next one looked for.
            self.next = self.look()?;
            if self.next.is_none() {
                return Ok(Piece::Nothing);
            }
        }
    }

    /// The file that has the name now, if that is another one.
    fn look(&self) -> io::Result<Option<(File, Between)>> {
        let Some(next) = open(&self.path)? else {
            return Ok(None);
        };
        let Some(file) = &self.file else {
            return Ok(Some((next, Between::Nothing)));
        };
        let id = |m: std::fs::Metadata| (m.dev(), m.ino());
        let here = id(file.metadata()?);
        if here == id(next.metadata()?) {
            return Ok(None);
        }
        let is_before = |before: &PathBuf| before.metadata().is_ok_and(|m| id(m) == here);
        let between = match self.before.as_ref().is_none_or(is_before) {
            true => Between::Nothing,
            false => Between::Files,
        };
        Ok(Some((next, between)))
    }

    /// The whole lines of the next piece; none if there is no piece.
    fn lines(&mut self) -> io::Result<Option<Vec<String>>> {
        let whole = match self.piece()? {
            Piece::Nothing => return Ok(None),
            Piece::Gap => {
                let mut lines = split(&std::mem::take(&mut self.begun));
                lines.push(LEFT_OUT.into());
                return Ok(Some(lines));
            }
            Piece::Bytes(piece) => {
                self.begun.extend_from_slice(&piece);
                match self.begun.iter().rposition(|b| *b == b'\n') {
                    Some(end) => end + 1,
                    None if self.begun.len() > LONGEST => self.begun.len(),
                    None => 0,
                }
            }
        };
        let rest = self.begun.split_off(whole);
        let lines = std::mem::replace(&mut self.begun, rest);
        Ok(Some(split(&lines)))
    }
}

fn split(bytes: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(bytes);
    text.lines().map(str::to_owned).collect()
}

/// Opens a file to read it; none if there is none.
fn open(path: &Path) -> io::Result<Option<File>> {
    match File::open(path) {
        Ok(file) => Ok(Some(file)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(named(path, &e)),
    }
}

/// An error with the file that it is about.
fn named(path: &Path, e: &io::Error) -> io::Error {
    let text = format!(
        "{} cannot be read: {e}; see to its owner and mode",
        path.display()
    );
    io::Error::new(e.kind(), text)
}

/// How what a server wrote is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    /// Escaped.
    Lines,
    /// As it came.
    Raw,
}

/// What is done at the end of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// That was it.
    Stop,
    /// Wait for more, until interrupted.
    Follow,
}

/// Whether the reader of stdout is still there.
#[derive(PartialEq, Eq)]
enum Reader {
    There,
    Gone,
}

fn put(bytes: &[u8]) -> Result<Reader, Failure> {
    let mut out = io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(Reader::Gone),
        written => said(written).map(|()| Reader::There),
    }
}

/// Prints the end of what a server wrote to stderr.
pub(super) fn logs(
    ask: &Ask,
    label: &str,
    shape: Shape,
    lines: usize,
    then: End,
) -> Result<(), Failure> {
    let mut kept = Kept::find(ask, label, then)?;
    let bytes = kept.all()?;
    let mut end = last(&bytes, lines);
    if then == End::Follow && shape == Shape::Lines {
        // The rest of its last line is still to come.
        let whole = end.iter().rposition(|b| *b == b'\n').map_or(0, |n| n + 1);
        let (shown, begun) = end.split_at(whole);
        kept.tail.begun = begun.to_owned();
        end = shown;
    }
    let mut reader = match shape {
        Shape::Raw => put(end)?,
        Shape::Lines => put(&escaped(&split(end)))?,
    };
    let mut idle = 0;
    while then == End::Follow && reader == Reader::There {
        let new = match shape {
            Shape::Raw => match kept.tail.piece()? {
                Piece::Nothing => None,
                Piece::Bytes(bytes) => Some(bytes),
                Piece::Gap => Some(format!("\n{LEFT_OUT}\n").into_bytes()),
            },
            Shape::Lines => kept.tail.lines()?.map(|lines| escaped(&lines)),
        };
        idle = if new.is_some() { 0 } else { idle + 1 };
        match new {
            Some(new) => reader = put(&new)?,
            None if idle % ASK == 0 => {
                if let Some(rest) = kept.moves(ask)? {
                    reader = put(&escaped(&rest))?;
                }
            }
            None => std::thread::sleep(EVERY),
        }
    }
    Ok(())
}

/// As [`logs`], as JSON.
pub(super) fn logs_json(ask: &Ask, label: &str, lines: usize) -> Result<(), Failure> {
    let bytes = Kept::find(ask, label, End::Stop)?.all()?;
    let lines: Vec<String> = split(last(&bytes, lines))
        .iter()
        .map(|l| shown(l))
        .collect();
    say(pretty(
        &serde_json::json!({"label": label, "lines": lines}),
    )?)
}

fn escaped(lines: &[String]) -> Vec<u8> {
    let lines = lines.iter().map(|l| format!("{}\n", shown(l)));
    lines.collect::<String>().into_bytes()
}

fn shown(line: &str) -> String {
    printable(line, usize::MAX)
}

/// What is kept of a server's words.
struct Kept {
    state: PathBuf,
    label: Label,
    dir: PathBuf,
    tail: Tail,
}

impl Kept {
    fn find(ask: &Ask, label: &str, then: End) -> Result<Self, Failure> {
        let label: Label = label
            .parse()
            .map_err(|e| Failure::Usage(format!("{label:?} is no label: {e}")))?;
        let state = Dirs::find().state;
        let state = state.ok_or_else(|| Failure::Failed("there is no state directory".into()))?;
        let dir = match Self::server(ask, &label) {
            Some(server) => {
                let dir = Self::dir_of(&state, &label, &server.identity);
                let is_url = ["http://", "https://"]
                    .iter()
                    .any(|s| server.target.starts_with(s));
                let is_there =
                    open(&dir.join(STDERR))?.is_some() || open(&dir.join(STDERR_BEFORE))?.is_some();
                let why = match (is_there, is_url, then) {
                    (true, ..) | (false, false, End::Follow) => None,
                    (false, true, _) => Some("it is reached by URL, and its stderr is elsewhere"),
                    (false, false, End::Stop) => Some("it has written nothing to stderr yet"),
                };
                match why {
                    Some(why) => return Err(Failure::Failed(format!("{label}: {why}"))),
                    None => dir,
                }
            }
            None => {
                let all = Ring::of_label(&state, &label);
                let all = all.map_err(|e| Failure::Failed(e.to_string()))?;
                all.into_iter().next().ok_or_else(|| {
                    Failure::Failed(format!(
                        "nothing is kept of what {label} wrote to stderr; see: mount-skills status"
                    ))
                })?
            }
        };
        Ok(Self {
            tail: Self::tail(&dir)?,
            state,
            label,
            dir,
        })
    }

    fn tail(dir: &Path) -> io::Result<Tail> {
        Tail::new(dir.join(STDERR), Some(dir.join(STDERR_BEFORE)))
    }

    fn dir_of(state: &Path, label: &Label, identity: &str) -> PathBuf {
        state.join(format!("mount-skills/v1/{label}-{identity}"))
    }

    /// The server that has the label now, in a mount.
    fn server(ask: &Ask, label: &Label) -> Option<ServerStatus> {
        let status = ask.status(Some(label.to_string())).ok()?;
        status.servers.into_iter().next()
    }

    /// All that is there now; what comes later is in the tail.
    fn all(&mut self) -> Result<Vec<u8>, Failure> {
        let before = self.dir.join(STDERR_BEFORE);
        let mut bytes = Vec::new();
        if let Some(mut file) = open(&before)? {
            let id = |m: std::fs::Metadata| (m.dev(), m.ino());
            let ours = self.tail.file.as_ref().map(|f| f.metadata().map(id));
            // Moved away since the tail opened it.
            if ours.transpose()? != Some(id(file.metadata()?)) {
                file.read_to_end(&mut bytes)
                    .map_err(|e| named(&before, &e))?;
            }
        }
        loop {
            match self.tail.piece()? {
                Piece::Nothing => return Ok(bytes),
                Piece::Bytes(piece) => bytes.extend(piece),
                Piece::Gap => bytes.extend(format!("\n{LEFT_OUT}\n").into_bytes()),
            }
            // A server that writes without end is followed, or cut off.
            if bytes.len() > ENOUGH {
                return Ok(bytes);
            }
        }
    }

    /// Goes on with the server that has the label now, if that is another one; then what that of
    /// before had begun.
    fn moves(&mut self, ask: &Ask) -> io::Result<Option<Vec<String>>> {
        let server = Self::server(ask, &self.label);
        let dir = server.map(|s| Self::dir_of(&self.state, &self.label, &s.identity));
        let Some(dir) = dir.filter(|dir| *dir != self.dir) else {
            return Ok(None);
        };
        let before = std::mem::replace(&mut self.tail, Self::tail(&dir)?);
        self.dir = dir;
        Ok(Some(split(&before.begun)))
    }
}

/// The last lines of a text.
fn last(text: &[u8], lines: usize) -> &[u8] {
    let ends = text.iter().enumerate().filter(|(_, b)| **b == b'\n');
    // The end of the last line begins none.
    let begins = ends.map(|(n, _)| n + 1).filter(|n| *n < text.len());
    let begins: Vec<usize> = std::iter::once(0).chain(begins).collect();
    let first = match begins.len().checked_sub(lines) {
        None => 0,
        Some(skipped) => begins.get(skipped).copied().unwrap_or(text.len()),
    };
    text.get(first..).unwrap_or_default()
}

/// Prints the audit trail.
pub(super) fn audit(
    ask: Ask,
    what: Option<String>,
    file: Option<&Path>,
    then: End,
    json: bool,
) -> Result<(), Failure> {
    let (ask, what) = match what {
        None => (ask, None),
        Some(what) => {
            let (ask, what) = ask.below(what);
            // The files of a skill may have URIs of any kind.
            if what.contains("://") {
                let what = word(&what);
                let text =
                    format!("audit takes a path; for that of a URI: mount-skills status {what}");
                return Err(Failure::Usage(text));
            }
            (ask, Some(what))
        }
    };
    let file = match file {
        Some(file) => file.to_owned(),
        None => ask.status(None)?.audit.map(PathBuf::from).ok_or_else(|| {
            Failure::Failed(
                "this mount writes no audit trail; mount with --audit FILE, or name one with --file"
                    .into(),
            )
        })?,
    };
    let here = |e: &dyn Display| Failure::Failed(format!("{}: {e}", file.display()));
    // It would be read without end, or from whoever types there.
    if file
        .metadata()
        .is_ok_and(|m| m.file_type().is_char_device())
    {
        return Err(here(&"a device keeps no lines that could be read again"));
    }
    File::open(&file).map_err(|e| here(&e))?;
    let mut tail = Tail::new(file, None)?;
    loop {
        let Some(lines) = tail.lines()? else {
            if then == End::Stop {
                return Ok(());
            }
            std::thread::sleep(EVERY);
            continue;
        };
        // What is no line of ours was cut off by a full disk.
        let lines = lines.iter().filter_map(|l| serde_json::from_str(l).ok());
        let lines = lines.filter(|l| is_about(l, what.as_deref()));
        let text: Result<Vec<String>, serde_json::Error> = lines
            .map(|line| match json {
                true => serde_json::to_string(&line).map(|json| in_ascii_where_hidden(&json)),
                false => Ok(print::audit(&line)),
            })
            .collect();
        let text: String = text
            .map_err(io::Error::from)?
            .iter()
            .map(|l| format!("{l}\n"))
            .collect();
        if put(text.as_bytes())? == Reader::Gone {
            return Ok(());
        }
    }
}

/// Whether a line is about a server, a skill or a path, as it is or as it is shown.
fn is_about(line: &Line, what: Option<&str>) -> bool {
    match (line, what.map(|w| w.trim_end_matches('/'))) {
        (_, None | Some("")) | (Line::More { .. }, _) => true,
        (Line::Read(read), Some(what)) => {
            let shown = spelt_whole(what);
            let mut below = [what, &shown].into_iter();
            below.any(|what| {
                let rest = read.path.strip_prefix(what);
                rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_about_a_long_path_is_about_the_skill_it_lies_in() {
        let skill = format!("lab/{}", vec!["\u{202e}".repeat(80); 10].join("/"));
        let path = spelt_whole(&format!("{skill}/x"));
        let line = serde_json::json!({"time": 1, "uid": 0, "gid": 0, "pid": 1, "command": "cat",
            "program": "cat", "label": "lab", "uri": "skill://x", "path": path,
            "errno": "EIO", "error": "contradiction"});
        let line: Line = serde_json::from_value(line).unwrap();
        for what in [
            None,
            Some("lab"),
            Some(&*skill),
            Some(&*spelt_whole(&skill)),
        ] {
            assert!(is_about(&line, what), "{what:?}");
        }
        assert!(!is_about(&line, Some("lab/x")));
    }

    #[test]
    fn the_last_lines_are_whole_ones() {
        let text = b"a\nb\n\nc";
        assert_eq!(last(text, 0), b"");
        assert_eq!(last(text, 1), b"c");
        assert_eq!(last(text, 2), b"\nc");
        assert_eq!(last(text, 4), text);
        assert_eq!(last(text, 9), text);
        assert_eq!(last(b"a\nb\n", 1), b"b\n");
        assert_eq!(last(b"", 1), b"");
    }

    #[test]
    fn a_file_is_followed_to_the_one_that_takes_its_place() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let mut tail = Tail::new(path.clone(), None).unwrap();
        let one = |line: &str| Some(vec![line.to_owned()]);
        assert_eq!(tail.lines().unwrap(), None, "not there yet");
        std::fs::write(&path, "one\ntw").unwrap();
        assert_eq!(tail.lines().unwrap(), one("one"));
        let mut file = File::options().append(true).open(&path).unwrap();
        std::fs::rename(&path, dir.path().join("old")).unwrap();
        std::fs::write(&path, "three\n").unwrap();
        file.write_all(b"o\n").unwrap();
        assert_eq!(tail.lines().unwrap(), one("two"));
        assert_eq!(tail.lines().unwrap(), one("three"));
        assert_eq!(tail.lines().unwrap(), None);
    }

    #[test]
    fn what_was_turned_over_twice_between_two_looks_leaves_a_mark_and_no_line_of_two_files() {
        let dir = tempfile::tempdir().unwrap();
        let (path, before) = (dir.path().join("log"), dir.path().join("log.1"));
        let turn = |next: &str| {
            std::fs::rename(&path, &before).unwrap();
            std::fs::write(&path, next).unwrap();
        };
        std::fs::write(&path, "one\ntw").unwrap();
        let mut tail = Tail::new(path.clone(), Some(before.clone())).unwrap();
        assert_eq!(tail.lines().unwrap(), Some(vec!["one".into()]));
        let mut file = File::options().append(true).open(&path).unwrap();
        file.write_all(b"o\nthr").unwrap();
        turn("ee\nfo");
        assert_eq!(tail.lines().unwrap(), Some(vec!["two".into()]));
        assert_eq!(tail.lines().unwrap(), Some(vec!["three".into()]));
        turn("lost\n");
        turn("ur\nfive\n");
        let mark = Some(vec!["fo".into(), LEFT_OUT.into()]);
        assert_eq!(tail.lines().unwrap(), mark);
        assert_eq!(
            tail.lines().unwrap(),
            Some(vec!["ur".into(), "five".into()])
        );
        assert_eq!(tail.lines().unwrap(), None);
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        assert_eq!(tail.lines().unwrap(), Some(vec![LEFT_OUT.into()]));
        let e = tail.lines().unwrap_err().to_string();
        assert!(
            e.contains(&format!("{} cannot be read", path.display())),
            "{e}"
        );
    }
}
