//! The log: which events are in it, how its lines look, and where they go: to stderr, or to a file
//! that is opened anew when it was moved away.
//!
//! **Invariant:** a line is one line, and holds nothing that a terminal would act on, whatever a
//! server said.
//!
//! *Absent:* rotation and limits, which logrotate has; syslog and journald, since a service manager
//! takes what is written to stderr.

use crate::cli::LogFormat;
use crate::domain::text::printable;
use parking_lot::{Mutex, RwLock};
use serde::Serialize;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
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

/// How lines look.
static FORMAT: RwLock<LogFormat> = RwLock::new(LogFormat::Text);

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
                Format::default().with_target(false).format_event(
                    context,
                    Writer::new(&mut line),
                    event,
                )?;
                printable(line.trim_end_matches('\n'), usize::MAX)
            }
            LogFormat::Json => json(event)?,
        };
        writeln!(writer, "{line}")
    }
}

/// An event as one line of JSON.
fn json(event: &Event<'_>) -> Result<String, fmt::Error> {
    #[derive(Serialize)]
    struct Line<'a> {
        time: String,
        level: &'a str,
        target: &'a str,
        #[serde(flatten)]
        fields: Fields,
    }
    let mut fields = Fields::default();
    event.record(&mut fields);
    let mut time = String::new();
    SystemTime.format_time(&mut Writer::new(&mut time))?;
    let line = Line {
        time,
        level: event.metadata().level().as_str(),
        target: event.metadata().target(),
        fields,
    };
    serde_json::to_string(&line).map_err(|_| fmt::Error)
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
    /// To the file, which has taken the place of stderr.
    Instead,
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
    if log.copies == Copies::Instead {
        // What a library says there is not to be lost, if it is there to be said.
        let _ = rustix::stdio::dup2_stderr(&log.file);
    }
}

/// The log's file takes the place of stderr; `otherwise` does if there is none.
pub(super) fn take_stderr(otherwise: &File) -> io::Result<()> {
    let mut log = FILE.write();
    if let Some(log) = log.as_mut() {
        log.copies = Copies::Instead;
    }
    let to = log.as_ref().map_or(otherwise, |log| &log.file);
    Ok(rustix::stdio::dup2_stderr(to)?)
}

/// The log as tracing writes to it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Log;

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
}
