//! `config show` and `config import`: the configuration for people, and our own file.

use super::{Failure, pretty, say};
use crate::cli::ConfigCommand;
use crate::config::{self, Config, Import, Machine, ServerSpec};
use crate::domain::text::{printable, word};
use crate::host::report::count;
use crate::source::Target;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Does what is asked about the configuration.
pub(super) fn config(what: &ConfigCommand, json: bool) -> Result<(), Failure> {
    let machine = Machine::here()?;
    match what {
        ConfigCommand::Show { servers } => {
            let config = config::load(servers, None, &machine)?;
            say(match json {
                true => pretty(&as_json(&config))?,
                false => as_text(&config),
            })
        }
        ConfigCommand::Import {
            write,
            force,
            files,
        } => {
            let import = config::import(files, &machine)?;
            let own = machine.own_file().ok_or_else(|| {
                Failure::Failed("there is no home directory; set XDG_CONFIG_HOME".into())
            })?;
            let written = match write {
                true if import.is_empty() => {
                    return Err(Failure::Failed(
                        "there is no server to take over; see: mount-skills config import".into(),
                    ));
                }
                true => {
                    keep(&own, &import.to_toml(), *force)?;
                    Some(own.as_path())
                }
                false => None,
            };
            say(match json {
                true => pretty(&json!({
                    "files": paths(&import.files),
                    "servers": import.servers,
                    "notices": import.notices,
                    "written": written.map(|p| p.display().to_string()),
                }))?,
                false => import_text(&import, &machine, &own, written),
            })
        }
    }
}

/// Writes our file: for this user alone, whole or not at all.
fn keep(own: &Path, text: &str, force: bool) -> Result<(), Failure> {
    let failed = |e: io::Error| Failure::Failed(format!("{}: {e}", own.display()));
    if !force && own.symlink_metadata().is_ok() {
        let own = own.display();
        let text = format!("{own} is there already; look at it, and use --force to replace it");
        return Err(Failure::Failed(text));
    }
    let mut dir = DirBuilder::new();
    dir.recursive(true).mode(0o700);
    dir.create(own.parent().unwrap_or(own)).map_err(failed)?;
    let new = own.with_extension(format!("{}.new", std::process::id()));
    let write = || {
        let mut options = OpenOptions::new();
        let mut file: File = options
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&new)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&new, own)
    };
    write().map_err(|e| {
        let _ = std::fs::remove_file(&new);
        failed(e)
    })
}

/// Paths as texts: a path need not be UTF-8.
fn paths(paths: &[PathBuf]) -> Vec<String> {
    paths.iter().map(|p| p.display().to_string()).collect()
}

/// The names of what a server is given beside its command or URL.
fn given(spec: &ServerSpec) -> (Vec<&str>, Vec<&str>) {
    match &spec.target {
        Target::Command(launch) => (
            launch.env.iter().map(|(name, _)| name.as_str()).collect(),
            Vec::new(),
        ),
        Target::Http(endpoint) => (
            Vec::new(),
            endpoint.headers.keys().map(|name| name.as_str()).collect(),
        ),
    }
}

/// The directory that a server starts in, as it is written.
fn cwd(spec: &ServerSpec) -> Option<&str> {
    match &spec.target {
        Target::Command(launch) => launch.written.cwd.as_deref(),
        Target::Http(_) => None,
    }
}

fn as_json(config: &Config) -> Value {
    let servers = config.servers.iter().map(|spec| {
        let (env, headers) = given(spec);
        json!({
            "label": spec.label.as_str(),
            "target": printable(&spec.shown, 500),
            "identity": spec.identity,
            "from": spec.origin.to_string(),
            "env": env,
            "headers": headers,
            "cwd": cwd(spec),
            "start_timeout_s": spec.start_timeout.map(|t| t.as_secs_f64()),
            "allow_dynamic": config.allow_dynamic.contains(&spec.label),
        })
    });
    let unused = config.unused.iter().map(|unused| {
        json!({
            "label": unused.name,
            "from": unused.place.to_string(),
            "reason": unused.why.to_string(),
        })
    });
    let skills = config.skills.iter();
    let skills = skills.map(|(label, uri)| json!({"server": label.as_str(), "uri": uri}));
    json!({
        "files": paths(&config.files),
        "servers": servers.collect::<Vec<_>>(),
        "unused": unused.collect::<Vec<_>>(),
        "skills": skills.collect::<Vec<_>>(),
        "settings": config.settings.shown,
        "notices": config.notices,
    })
}

fn as_text(config: &Config) -> String {
    let mut out = String::new();
    for spec in &config.servers {
        let _ = writeln!(out, "{}  {}", spec.label, printable(&spec.shown, 500));
        let _ = writeln!(out, "  from {}", printable(&spec.origin.to_string(), 500));
        let (env, headers) = given(spec);
        for (what, names) in [("env", env), ("headers", headers)] {
            if !names.is_empty() {
                let names: Vec<String> = names.iter().map(|name| format!("{name}=…")).collect();
                let _ = writeln!(out, "  {what} {}", printable(&names.join(", "), 500));
            }
        }
        if let Some(cwd) = cwd(spec) {
            let _ = writeln!(out, "  cwd {}", printable(cwd, 500));
        }
        if let Some(timeout) = spec.start_timeout {
            let _ = writeln!(out, "  start-timeout {} s", timeout.as_secs_f64());
        }
        if config.allow_dynamic.contains(&spec.label) {
            let _ = writeln!(out, "  allow-dynamic");
        }
        for (_, uri) in config.skills.iter().filter(|(l, _)| *l == spec.label) {
            let _ = writeln!(out, "  skill {}", printable(uri, 500));
        }
    }
    for unused in &config.unused {
        let line = format!("{}  not used: {}", unused.name, unused.why);
        let _ = writeln!(out, "{}", printable(&line, 2000));
        let _ = writeln!(out, "  from {}", printable(&unused.place.to_string(), 500));
    }
    for notice in &config.notices {
        let _ = writeln!(out, "note: {}", printable(notice, 2000));
    }
    if config.files.is_empty() && config.servers.is_empty() {
        out.push_str("there is no configuration; see: mount-skills config import\n");
    }
    out.push('\n');
    for set in &config.settings.shown {
        let line = format!("{} = {}  ({})", set.name, set.value, set.from);
        let _ = writeln!(out, "{}", printable(&line, 1000));
    }
    out
}

fn import_text(import: &Import, machine: &Machine, own: &Path, written: Option<&Path>) -> String {
    let mut out = String::new();
    for server in &import.servers {
        let target = server.target.as_deref().unwrap_or_default();
        let line = format!("{}  {}  {target}", server.label, server.becomes);
        let _ = writeln!(out, "{}", printable(line.trim_end(), 500));
        let _ = writeln!(out, "  from {}", printable(&server.from, 500));
        if let Some(reason) = &server.reason {
            let why = match server.becomes {
                "left out" => "because",
                _ => "does not work now:",
            };
            let _ = writeln!(out, "  {why} {}", printable(reason, 2000));
        }
        if !server.literal_secrets.is_empty() {
            let fields = server.literal_secrets.join(", ");
            let _ = writeln!(
                out,
                "  copied as it stands, may be a secret: {}",
                printable(&fields, 500)
            );
        }
    }
    for notice in &import.notices {
        let _ = writeln!(out, "note: {}", printable(notice, 2000));
    }
    if import.files.is_empty() {
        let _ = writeln!(out, "no file of these is there:");
        for place in config::places(machine) {
            let path = printable(&place.path.display().to_string(), 500);
            let _ = writeln!(out, "  {path}  ({})", place.program);
        }
        return out;
    }
    let taken = import.servers.iter();
    let taken = taken.filter(|s| s.becomes.starts_with("taken")).count();
    let own = word(&own.display().to_string());
    let _ = match written {
        Some(_) => writeln!(
            out,
            "wrote {} to {own}; mount with: mount-skills MOUNTPOINT",
            count(taken, "server")
        ),
        None if taken == 0 => writeln!(out, "there is no server to take over"),
        None => writeln!(
            out,
            "nothing is written; to write {} to {own}: mount-skills config import --write",
            count(taken, "server")
        ),
    };
    out
}
