//! `doctor`: what keeps a mount from working here, or would, and the one thing that mends each.
//!
//! ```text
//! fuse::machine   the device, fusermount3, rights, the container
//! place           the mount point, running mounts and dead ones
//! storage         cache, state and sockets
//! servers         each server, asked as a mount asks it
//! ```
//!
//! Looking and judging are apart: what is found is a function of what was seen. What a mount
//! refuses is told in the words of the mount, whose checks these are.
//!
//! **Invariants:** nothing is mounted, made or mended, no skill is read. All that may hang is
//! bounded. Servers that were started are ended.

mod place;
mod servers;
mod storage;

use super::{Dirs, Failure, page, pretty, progress, say};
use crate::cli::{ServerArgs, print};
use crate::config::{self, BadConfig, Config, Why};
use crate::domain::finding::{Finding, Fix, Severity};
use crate::domain::text::printable;
use crate::fuse::machine::Machine;
use crate::fuse::mount::Access;
use crate::host::report::count;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

/// How long a server may take, if nothing is said.
const TIMEOUT: Duration = Duration::from_secs(10);
/// How long a mount may take to answer the kernel, or its daemon to answer us.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long a disk may take to tell what is on it.
const DISK_PATIENCE: Duration = Duration::from_secs(10);
/// Subjects are aligned up to this width.
const WIDTH: usize = 24;
/// At most this many characters of a text are shown.
const TEXT: usize = 2000;

/// Examines all, and says what was found.
pub(super) fn doctor(
    args: &ServerArgs,
    mountpoint: Option<&Path>,
    json: bool,
) -> Result<(), Failure> {
    let machine = config::Machine::here()?;
    let config = config::load(args, mountpoint, &machine);
    let wanted = config.as_ref().ok();
    let mut findings = Machine::look().findings(
        wanted.map_or(0, |config| config.servers.len()),
        wanted.map_or(Access::Owner, |config| config.settings.access),
    );
    let dirs = Dirs::find();
    let mounts = place::mounts(&dirs.control());
    findings.extend(mounts.iter().map(|mount| mount.finding()));
    let mut examined = Vec::new();
    match config {
        Err(e) => {
            findings.extend(mountpoint.map(|path| place::mountpoint(path, &dirs.control())));
            findings.push(unreadable(&e));
        }
        Ok(config) => {
            let settings = &config.settings;
            if settings.is_given("mountpoint") || rustix::process::geteuid().is_root() {
                findings.push(place::mountpoint(&settings.mountpoint, &dirs.control()));
            }
            findings.extend(storage::findings(&dirs, settings));
            findings.extend(configuration(&config, &machine));
            if config.servers.is_empty() {
                findings.extend(mounts.iter().flat_map(place::served));
            }
            let timeout = args.timeout.map_or(TIMEOUT, Duration::from_secs_f64);
            examined = progress::while_waiting("asking the servers", || {
                servers::examine(&config, timeout)
            })?;
            findings.extend(examined.iter().flat_map(|e| e.findings(timeout)));
        }
    }
    for finding in &mut findings {
        clean(finding);
    }
    say(match json {
        true => pretty(&serde_json::json!({
            "version": env!("CARGO_PKG_VERSION"),
            "worst": worst(&findings),
            "findings": findings,
            "servers": examined,
        }))?,
        false => page::flow(&as_text(&findings)),
    })?;
    match worst(&findings) {
        Severity::Ok | Severity::Note => Ok(()),
        worst => Err(Failure::Unwell(worst)),
    }
}

/// Makes all of a finding safe to show.
fn clean(finding: &mut Finding) {
    for text in [&mut finding.subject, &mut finding.text] {
        *text = printable(text, TEXT);
    }
    if let Some(Fix::Run(text) | Fix::Do(text)) = &mut finding.fix {
        *text = printable(text, TEXT);
    }
}

fn worst(findings: &[Finding]) -> Severity {
    let worst = findings.iter().map(|f| f.severity).max();
    worst.unwrap_or(Severity::Ok)
}

/// A line for each finding, and one below it for what mends it.
fn as_text(findings: &[Finding]) -> String {
    let width = findings.iter().map(|f| f.subject.chars().count());
    let width = width.filter(|w| *w <= WIDTH).max().unwrap_or(0);
    let mut out = String::new();
    for finding in findings {
        let (severity, subject) = (print::severity(finding.severity, 7), &finding.subject);
        let _ = writeln!(out, "{severity}  {subject:width$}  {}", finding.text);
        if let Some(fix) = &finding.fix {
            let _ = writeln!(out, "{:11}{fix}", "");
        }
    }
    let number = |severity| findings.iter().filter(|f| f.severity == severity).count();
    let _ = match (number(Severity::Error), number(Severity::Warning)) {
        (0, 0) => writeln!(out, "all is well"),
        (errors, warnings) => {
            let (errors, warnings) = (count(errors, "error"), count(warnings, "warning"));
            writeln!(out, "{errors}, {warnings}")
        }
    };
    out
}

/// A configuration that a mount refuses.
fn unreadable(e: &BadConfig) -> Finding {
    let (text, fix) = advice(&e.to_string());
    let subject = match e {
        BadConfig::Read { .. } | BadConfig::Syntax { .. } => "configuration",
        BadConfig::Server(_)
        | BadConfig::Credentials(_)
        | BadConfig::Twice { .. }
        | BadConfig::SetTwice { .. }
        | BadConfig::Option { .. } => "servers",
    };
    let fix = fix.unwrap_or_else(|| "correct it; see: mount-skills config --help".into());
    let text = format!("{text}: with this nothing is mounted, and no server is asked");
    Finding::error("config", subject, text, Fix::Do(fix))
}

/// What the files say, and what of it is not used.
fn configuration(config: &Config, machine: &config::Machine) -> Vec<Finding> {
    let mut found = Vec::new();
    for file in &config.files {
        let shown = file.display().to_string();
        let used = config.servers.iter();
        let used = used.filter(|s| s.origin.file() == Some(&*shown)).count();
        let left = config.unused.iter().filter(|u| u.place.file() == shown);
        let text = match left.count() {
            0 => count(used, "server"),
            left => format!("{}, {left} not used", count(used, "server")),
        };
        found.push(Finding::ok("config-file", shown, text));
    }
    for notice in &config.notices {
        found.push(Finding::note("config-notice", "configuration", notice));
    }
    for unused in &config.unused {
        let (name, place) = (&unused.name, &unused.place);
        found.push(match &unused.why {
            Why::SwitchedOff => Finding::note(
                "server-off",
                name,
                format!("not used: it is switched off at {place}"),
            ),
            Why::Fault(fault) => Finding::error(
                "server-broken",
                name,
                format!(
                    "not used: {}: found {}, expected {}",
                    fault.field, fault.found, fault.expected
                ),
                Fix::Do(format!("at {place}: {}", fault.next)),
            ),
        });
    }
    if !config.is_anything() {
        let there = config::places(machine).into_iter();
        let there: Vec<String> = there
            .filter(|known| known.path.is_file())
            .map(|known| format!("{} ({})", known.path.display(), known.program))
            .collect();
        let text = "no server is named here, and there is no file of our own";
        let (text, fix) = match there.is_empty() {
            true => (
                text.to_owned(),
                "name one with --server LABEL=TARGET, or a file with --config FILE".to_owned(),
            ),
            false => (
                format!("{text}; other programs have some: {}", there.join(", ")),
                "run: mount-skills config import".to_owned(),
            ),
        };
        found.push(Finding {
            fix: Some(Fix::Do(fix)),
            ..Finding::note("config-none", "servers", text)
        });
    }
    found
}

/// Takes apart a message that ends with what to do, as ours do: the rest, and that.
fn advice(message: &str) -> (String, Option<String>) {
    match message.rsplit_once("; ") {
        Some((text, next)) => (text.to_owned(), Some(next.to_owned())),
        None => (message.to_owned(), None),
    }
}

/// What a question comes to that may hang; none if it takes longer than that.
fn within<T: Send + 'static>(
    patience: Duration,
    ask: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let (answer, answered) = mpsc::channel();
    std::thread::spawn(move || answer.send(ask()));
    answered.recv_timeout(patience).ok()
}

/// The nearest directory that is there, of a path and those above it.
fn standing(path: &Path) -> PathBuf {
    let there = path.ancestors().find(|dir| dir.is_dir());
    there.unwrap_or(Path::new("/")).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fine_check_is_one_line_and_another_has_its_fix_below() {
        let findings = [
            Finding::ok("a", "kernel", "Linux 6"),
            Finding::error(
                "b",
                "x".repeat(WIDTH + 1),
                "gone",
                Fix::Run("mend it".into()),
            ),
            Finding::warning("c", "docs", "old", Fix::Do("look".into())),
        ];
        let long = "x".repeat(WIDTH + 1);
        let text = format!(
            "ok       kernel  Linux 6\nerror    {long}  gone\n           run: mend it\n\
             warning  docs    old\n           look\n1 error, 1 warning\n"
        );
        let plain = anstream::adapter::strip_str(&as_text(&findings)).to_string();
        assert_eq!(plain, text);
        assert_eq!(worst(&findings), Severity::Error);
        assert_eq!(worst(&findings[..1]), Severity::Ok);
        assert!(as_text(&findings[..1]).ends_with("\nall is well\n"));
    }

    #[test]
    fn nothing_of_a_finding_reaches_a_terminal_unescaped() {
        let evil = "a\u{1b}[2Jb\u{202e}\n";
        let mut finding = Finding::error("x", evil, evil, Fix::Do(evil.into()));
        clean(&mut finding);
        // But for the colour that is ours.
        let text = as_text(&[finding]).replace(&print::severity(Severity::Error, 7), "");
        assert_eq!(text.lines().count(), 3, "{text}");
        assert!(!text.contains(['\u{1b}', '\u{202e}']), "{text:?}");
    }

    #[test]
    fn what_to_do_is_the_end_of_a_message() {
        let (text, next) = advice("/m: it is a file; give a directory");
        assert_eq!(
            (text.as_str(), next.as_deref()),
            ("/m: it is a file", Some("give a directory"))
        );
        assert_eq!(advice("gone"), ("gone".to_owned(), None));
    }
}
