//! Where the log goes: to stderr, or to a file that is opened anew when it was moved away.
//!
//! *Absent:* rotation and limits, which logrotate has; syslog and journald, since a service manager
//! takes what is written to stderr.

use parking_lot::RwLock;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use tracing_subscriber::fmt::MakeWriter;

/// The file, if the log goes to one.
static FILE: RwLock<Option<Open>> = RwLock::new(None);

struct Open {
    path: PathBuf,
    file: File,
    copies: Copies,
}

/// Whether lines go to stderr as well.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Copies {
    /// To the file only.
    None,
    /// To both: somebody waits at a terminal for how the start goes.
    Stderr,
}

fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.append(true).create(true).mode(0o600).open(path)
}

/// Sends the log to a file from now on, which is made if it is missing.
pub(super) fn to_file(path: &Path, copies: Copies) -> io::Result<()> {
    let path = std::path::absolute(path)?;
    let file = open(&path)?;
    *FILE.write() = Some(Open { path, file, copies });
    Ok(())
}

/// Opens the file anew, which may have been moved away; without one, or without success, all
/// stays as it is.
pub(super) fn reopen() {
    let mut log = FILE.write();
    let Some(log) = log.as_mut() else { return };
    match open(&log.path) {
        Ok(file) => log.file = file,
        Err(e) => {
            let shown = log.path.display();
            let _ = writeln!(log.file, "{shown}: cannot be opened anew: {e}");
        }
    }
    if log.copies == Copies::None {
        // What a library says there is not to be lost, if it is there to be said.
        let _ = rustix::stdio::dup2_stderr(&log.file);
    }
}

/// The log's file takes the place of stderr; `otherwise` does if there is none.
pub(super) fn take_stderr(otherwise: &File) -> io::Result<()> {
    let mut log = FILE.write();
    if let Some(log) = log.as_mut() {
        log.copies = Copies::None;
    }
    let to = log.as_ref().map_or(otherwise, |log| &log.file);
    Ok(rustix::stdio::dup2_stderr(to)?)
}

/// The log as tracing writes to it.
#[derive(Debug, Clone, Copy)]
pub struct Log;

impl Write for Log {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let log = FILE.read();
        match log.as_ref() {
            None => io::stderr().write_all(line)?,
            Some(log) => {
                (&log.file).write_all(line)?;
                if log.copies == Copies::Stderr {
                    io::stderr().write_all(line)?;
                }
            }
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
