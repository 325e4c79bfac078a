//! How a mount is run: the command line before our own file before the defaults.
//!
//! **Invariant:** a setting stands in one file at most, as a label does: which of two counts is
//! never a question of order.

use super::document::{Entry, Node, Value};
use super::{BadConfig, Machine, Place};
use crate::cli::{self, ApprovalArg, HoldArg, LogFormat, ServerArgs};
use crate::domain::text::Quoted;
use crate::fuse::mount::Access;
use clap::ValueEnum;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Where a mount is, unless somebody says otherwise.
const MOUNTPOINT: &str = "/mnt/skills";
/// Where a setting comes from that nobody gave.
const DEFAULT: &str = "default";
/// What is shown of a setting that is not there.
const NONE: &str = "none";
const TIMEOUT: Duration = Duration::from_secs(10);
const START_TIMEOUT: Duration = Duration::from_secs(60);
const CACHE_SIZE: u64 = 1024;
/// Sizes above this many MiB are no sizes of a disk.
const MAX_CACHE_SIZE: u64 = 1 << 40;

/// The settings of a mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Where to mount, for a mount that is not that of one command.
    pub mountpoint: PathBuf,
    /// What it takes to read a skill.
    pub approval: ApprovalArg,
    /// What ends a window.
    pub hold: HoldArg,
    /// Who may read.
    pub access: Access,
    /// How long a read may wait for a server.
    pub timeout: Duration,
    /// How long a server may take to start, if nothing is said of that server.
    pub start_timeout: Duration,
    /// Where checked files are kept, if not where the XDG rules say.
    pub cache_dir: Option<PathBuf>,
    /// How much of them, in MiB.
    pub cache_size: u64,
    /// How the lines of the log look.
    pub log_format: LogFormat,
    /// Where the audit trail goes, if there is one.
    pub audit: Option<PathBuf>,
    /// Where figures for Prometheus are served, if they are.
    pub metrics: Option<SocketAddr>,
    /// Each setting with its value and where that comes from, for people.
    pub shown: Vec<Shown>,
}

impl Settings {
    /// Whether somebody said what a setting is to be.
    pub fn is_given(&self, name: &str) -> bool {
        let shown = self.shown.iter().find(|shown| shown.name == name);
        shown.is_some_and(|shown| shown.from != DEFAULT)
    }
}

/// A setting for people.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Shown {
    /// Its name in a file.
    pub name: &'static str,
    /// Its value.
    pub value: String,
    /// `command line`, `default` or a place in a file.
    pub from: String,
}

/// A value, and where it stands.
#[derive(Debug, Clone)]
struct Set<T> {
    value: T,
    place: Place,
}

/// The settings of files.
#[derive(Debug, Default)]
pub(super) struct FileSettings {
    mountpoint: Option<Set<String>>,
    approval: Option<Set<ApprovalArg>>,
    hold: Option<Set<HoldArg>>,
    access: Option<Set<Access>>,
    timeout: Option<Set<Duration>>,
    start_timeout: Option<Set<Duration>>,
    cache_dir: Option<Set<String>>,
    cache_size: Option<Set<u64>>,
    log_format: Option<Set<LogFormat>>,
    audit: Option<Set<String>>,
    metrics: Option<Set<SocketAddr>>,
}

/// Seconds that make a sensible deadline.
pub(super) fn seconds(node: &Node) -> Option<Duration> {
    match &node.value {
        Value::Number(text) => cli::seconds(text).ok().map(Duration::from_secs_f64),
        _ => None,
    }
}

fn text(node: &Node) -> Option<&str> {
    match &node.value {
        Value::Text(text) if !text.is_empty() => Some(text),
        _ => None,
    }
}

fn choice<T: ValueEnum>(node: &Node) -> Option<T> {
    text(node).and_then(|text| T::from_str(text, false).ok())
}

fn access(node: &Node) -> Option<Access> {
    match &node.value {
        Value::Bool(true) => Some(Access::Everyone),
        Value::Bool(false) => Some(Access::Owner),
        _ => None,
    }
}

fn mebibytes(node: &Node) -> Option<u64> {
    match &node.value {
        Value::Number(text) => text.parse().ok().filter(|n| *n <= MAX_CACHE_SIZE),
        _ => None,
    }
}

impl FileSettings {
    /// Reads one setting of our own file.
    pub(super) fn read(&mut self, entry: &Entry, place: &Place) -> Result<(), BadConfig> {
        let node = &entry.node;
        fn put<T>(slot: &mut Option<Set<T>>, value: Option<T>, place: &Place) -> bool {
            *slot = value.map(|value| Set {
                value,
                place: place.clone(),
            });
            slot.is_some()
        }
        let (good, expected) = match entry.key.as_str() {
            "mountpoint" => (
                put(&mut self.mountpoint, text(node).map(str::to_owned), place),
                "a path",
            ),
            "approval" => (
                put(&mut self.approval, choice(node), place),
                "\"server\" or \"each\"",
            ),
            "hold" => (
                put(&mut self.hold, choice(node), place),
                "\"release\", \"reload\" or \"none\"",
            ),
            "allow-other" => (put(&mut self.access, access(node), place), "true or false"),
            "timeout" => (
                put(&mut self.timeout, seconds(node), place),
                "a number of seconds from 0.1 to 3600",
            ),
            "start-timeout" => (
                put(&mut self.start_timeout, seconds(node), place),
                "a number of seconds from 0.1 to 3600",
            ),
            "cache-dir" => (
                put(&mut self.cache_dir, text(node).map(str::to_owned), place),
                "a path",
            ),
            "cache-size" => (
                put(&mut self.cache_size, mebibytes(node), place),
                "a number of MiB",
            ),
            "log-format" => (
                put(&mut self.log_format, choice(node), place),
                "\"text\" or \"json\"",
            ),
            "audit" => (
                put(&mut self.audit, text(node).map(str::to_owned), place),
                "a path",
            ),
            "metrics" => (
                put(
                    &mut self.metrics,
                    text(node).and_then(|t| cli::loopback(t).ok()),
                    place,
                ),
                "a loopback address and a port, such as \"127.0.0.1:9464\"",
            ),
            other => {
                let why = format!(
                    "{}: not known; expected mountpoint, approval, hold, allow-other, timeout, \
                     start-timeout, cache-dir, cache-size, log-format, audit, metrics or [servers.LABEL] (Codex: [mcp_servers.NAME])",
                    Quoted(other)
                );
                let place = place.clone();
                return Err(BadConfig::Syntax { place, why });
            }
        };
        if good {
            return Ok(());
        }
        let found = match &node.value {
            Value::Text(text) => Quoted(text).to_string(),
            Value::Number(number) => number.clone(),
            _ => node.kind().into(),
        };
        Err(BadConfig::Syntax {
            place: place.clone(),
            why: format!("{}: found {found}, expected {expected}", entry.key),
        })
    }

    /// Takes over the settings of one more file.
    pub(super) fn join(&mut self, other: Self) -> Result<(), BadConfig> {
        fn one<T>(
            name: &'static str,
            slot: &mut Option<Set<T>>,
            other: Option<Set<T>>,
        ) -> Result<(), BadConfig> {
            match (&slot, other) {
                (Some(first), Some(second)) => Err(BadConfig::SetTwice {
                    name,
                    first: first.place.clone(),
                    second: second.place,
                }),
                (None, Some(second)) => {
                    *slot = Some(second);
                    Ok(())
                }
                (_, None) => Ok(()),
            }
        }
        one("mountpoint", &mut self.mountpoint, other.mountpoint)?;
        one("approval", &mut self.approval, other.approval)?;
        one("hold", &mut self.hold, other.hold)?;
        one("allow-other", &mut self.access, other.access)?;
        one("timeout", &mut self.timeout, other.timeout)?;
        one(
            "start-timeout",
            &mut self.start_timeout,
            other.start_timeout,
        )?;
        one("cache-dir", &mut self.cache_dir, other.cache_dir)?;
        one("cache-size", &mut self.cache_size, other.cache_size)?;
        one("log-format", &mut self.log_format, other.log_format)?;
        one("audit", &mut self.audit, other.audit)?;
        one("metrics", &mut self.metrics, other.metrics)
    }

    /// What is in force.
    pub(super) fn settle(
        self,
        args: &ServerArgs,
        mountpoint: Option<&Path>,
        machine: &Machine,
    ) -> Result<Settings, BadConfig> {
        let mut shown = Vec::new();
        let path = |set: Option<Set<String>>| -> Result<_, BadConfig> {
            let Some(Set { value, place }) = set else {
                return Ok(None);
            };
            match machine.path(&value, &place.dir()) {
                Ok(value) => Ok(Some(Set { value, place })),
                Err(why) => Err(BadConfig::Syntax { place, why }),
            }
        };
        let (cache_dir, audit) = (path(self.cache_dir)?, path(self.audit)?);
        let duration = |given: Option<f64>| given.map(Duration::from_secs_f64);
        Ok(Settings {
            mountpoint: choose(
                &mut shown,
                "mountpoint",
                |path| path.display().to_string(),
                mountpoint.map(Path::to_owned),
                path(self.mountpoint)?,
                MOUNTPOINT.into(),
            ),
            approval: choose(
                &mut shown,
                "approval",
                name,
                args.approval,
                self.approval,
                ApprovalArg::default(),
            ),
            hold: choose(
                &mut shown,
                "hold",
                name,
                args.hold,
                self.hold,
                HoldArg::default(),
            ),
            access: choose(
                &mut shown,
                "allow-other",
                |access| (*access == Access::Everyone).to_string(),
                args.allow_other.then_some(Access::Everyone),
                self.access,
                Access::default(),
            ),
            timeout: choose(
                &mut shown,
                "timeout",
                as_seconds,
                duration(args.timeout),
                self.timeout,
                TIMEOUT,
            ),
            start_timeout: choose(
                &mut shown,
                "start-timeout",
                as_seconds,
                duration(args.start_timeout),
                self.start_timeout,
                START_TIMEOUT,
            ),
            cache_dir: choose(
                &mut shown,
                "cache-dir",
                |dir: &Option<PathBuf>| match dir {
                    Some(dir) => dir.display().to_string(),
                    None => "the user's cache directory".into(),
                },
                args.cache_dir.clone().map(Some),
                cache_dir.map(some),
                None,
            ),
            cache_size: choose(
                &mut shown,
                "cache-size",
                |mib| format!("{mib} MiB"),
                args.cache_size,
                self.cache_size,
                CACHE_SIZE,
            ),
            log_format: choose(
                &mut shown,
                "log-format",
                name,
                args.log_format,
                self.log_format,
                LogFormat::default(),
            ),
            audit: choose(
                &mut shown,
                "audit",
                |file: &Option<PathBuf>| match file {
                    Some(file) => file.display().to_string(),
                    None => NONE.into(),
                },
                args.audit.clone().map(Some),
                audit.map(some),
                None,
            ),
            metrics: choose(
                &mut shown,
                "metrics",
                |address: &Option<SocketAddr>| match address {
                    Some(address) => address.to_string(),
                    None => NONE.into(),
                },
                args.metrics.map(Some),
                self.metrics.map(some),
                None,
            ),
            shown,
        })
    }
}

/// A setting that need not be there, and is.
fn some<T>(Set { value, place }: Set<T>) -> Set<Option<T>> {
    let value = Some(value);
    Set { value, place }
}

fn name<T: ValueEnum>(value: &T) -> String {
    let name = value.to_possible_value();
    name.map(|v| v.get_name().to_owned()).unwrap_or_default()
}

fn as_seconds(duration: &Duration) -> String {
    format!("{} s", duration.as_secs_f64())
}

/// The value of the command line before that of a file before the default, noted for people.
fn choose<T>(
    shown: &mut Vec<Shown>,
    name: &'static str,
    text: impl Fn(&T) -> String,
    given: Option<T>,
    file: Option<Set<T>>,
    default: T,
) -> T {
    let (value, from) = match (given, file) {
        (Some(value), _) => (value, "command line".to_owned()),
        (None, Some(set)) => (set.value, set.place.to_string()),
        (None, None) => (default, DEFAULT.to_owned()),
    };
    shown.push(Shown {
        name,
        value: text(&value),
        from,
    });
    value
}
