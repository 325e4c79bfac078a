//! `logs` and `audit`: files that grow, read and followed.

use super::{Ask, Dirs, Failure, pretty, said, say};
use crate::cli::print;
use crate::domain::name::Label;
use crate::domain::text::{in_ascii_where_hidden, printable, spelt};
use crate::host::audit::Line;
use crate::host::report::Status;
use crate::store::append::{Ring, STDERR, STDERR_BEFORE};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How often it is looked for something new.
const EVERY: Duration = Duration::from_millis(200);
/// What is read at once.
const PIECE: usize = 64 * 1024;
/// A line that is longer is shown in pieces.
const LONGEST: usize = 256 * 1024;

/// A file that grows, and may be moved away for a new one.
struct Tail {
    path: PathBuf,
    file: Option<File>,
    /// The begin of a line.
    begun: Vec<u8>,
}

impl Tail {
    fn new(path: PathBuf) -> Self {
        let file = File::open(&path).ok();
        let begun = Vec::new();
        Self { path, file, begun }
    }

    /// What was added since the last question, a piece of it; empty if nothing was.
    fn piece(&mut self) -> io::Result<Vec<u8>> {
        let mut piece = vec![0; PIECE];
        loop {
            let n = match &mut self.file {
                Some(file) => file.read(&mut piece)?,
                None => 0,
            };
            piece.truncate(n);
            // Only at the end of the one is the next one looked for.
            if n > 0 || !self.turn() {
                return Ok(piece);
            }
            piece.resize(PIECE, 0);
        }
    }

    /// Opens the file that has the name now; whether it is another one.
    fn turn(&mut self) -> bool {
        let Ok(next) = File::open(&self.path) else {
            return false;
        };
        let id = |file: &File| file.metadata().map(|m| (m.dev(), m.ino())).ok();
        let other = self.file.as_ref().and_then(id) != id(&next);
        if other {
            self.file = Some(next);
        }
        other
    }

    /// The whole lines of the next piece; none if there is no piece.
    fn lines(&mut self) -> io::Result<Option<Vec<String>>> {
        let piece = self.piece()?;
        if piece.is_empty() {
            return Ok(None);
        }
        self.begun.extend_from_slice(&piece);
        let whole = match self.begun.iter().rposition(|b| *b == b'\n') {
            Some(end) => end + 1,
            None if self.begun.len() > LONGEST => self.begun.len(),
            None => 0,
        };
        let rest = self.begun.split_off(whole);
        let lines = String::from_utf8_lossy(&std::mem::replace(&mut self.begun, rest)).into_owned();
        Ok(Some(lines.lines().map(str::to_owned).collect()))
    }
}

/// How what a server wrote is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    /// Escaped.
    Lines,
    /// As strings of JSON, escaped.
    Json,
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
    let name: Label = label.parse().map_err(|e| Failure::Usage(format!("{e}")))?;
    let status = ask.status(Some(label.to_owned())).ok();
    let dir = kept(status.as_ref(), &name)?;
    let mut now = Tail::new(dir.join(STDERR));
    let mut bytes = std::fs::read(dir.join(STDERR_BEFORE)).unwrap_or_default();
    loop {
        let piece = now.piece()?;
        if piece.is_empty() {
            break;
        }
        bytes.extend(piece);
    }
    let end = last(&bytes, lines);
    if shape == Shape::Json {
        let text = String::from_utf8_lossy(end);
        let lines: Vec<String> = text.lines().map(shown).collect();
        return say(pretty(
            &serde_json::json!({"label": label, "lines": lines}),
        )?);
    }
    let lines_of = |lines: &mut dyn Iterator<Item = &str>| -> Vec<u8> {
        let lines = lines.map(|l| format!("{}\n", shown(l)));
        lines.collect::<String>().into_bytes()
    };
    let mut reader = match shape {
        Shape::Raw => put(end)?,
        Shape::Lines | Shape::Json => put(&lines_of(&mut String::from_utf8_lossy(end).lines()))?,
    };
    while then == End::Follow && reader == Reader::There {
        let new = match shape {
            Shape::Raw => Some(now.piece()?).filter(|piece| !piece.is_empty()),
            Shape::Lines | Shape::Json => now
                .lines()?
                .map(|lines| lines_of(&mut lines.iter().map(String::as_str))),
        };
        match new {
            Some(new) => reader = put(&new)?,
            None => std::thread::sleep(EVERY),
        }
    }
    Ok(())
}

/// The directory in which it is kept.
fn kept(status: Option<&Status>, label: &Label) -> Result<PathBuf, Failure> {
    let state = Dirs::find().state;
    let state = state.ok_or_else(|| Failure::Failed("there is no state directory".into()))?;
    let there = status.and_then(|s| s.servers.first());
    let of = |identity: &str| state.join(format!("mount-skills/v1/{label}-{identity}"));
    if let Some(server) = there {
        let dir = of(&server.identity);
        if dir.join(STDERR).exists() {
            return Ok(dir);
        }
        let is_url = ["http://", "https://"]
            .iter()
            .any(|s| server.target.starts_with(s));
        let why = match is_url {
            true => "it is reached by URL, and its stderr is elsewhere",
            false => "it has written nothing to stderr yet",
        };
        return Err(Failure::Failed(format!("{label}: {why}")));
    }
    let newest = Ring::of_label(&state, label).into_iter().next();
    newest.ok_or_else(|| {
        Failure::Failed(format!(
            "nothing is kept of what {label} wrote to stderr; see: mount-skills status"
        ))
    })
}

fn shown(line: &str) -> String {
    printable(line, LONGEST)
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
    File::open(&file).map_err(|e| Failure::Failed(format!("{}: {e}", file.display())))?;
    let mut tail = Tail::new(file);
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
            let shown = spelt(what);
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
        let mut tail = Tail::new(path.clone());
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
}
