//! What a status looks like to a person.

use crate::host::report::{ServerStatus, Status};
use std::fmt::Write as _;

/// One line a skill: path, files, size, description.
pub fn list(status: &Status) -> String {
    let mut out = String::new();
    for server in &status.servers {
        if server.skills.is_empty() {
            let _ = writeln!(out, "{}/  no skills ({})", server.label, state(server));
        }
        for skill in &server.skills {
            let first = skill.description.split("\\n").next().unwrap_or_default();
            let about: String = first.chars().take(80).collect();
            let cut = if about.len() < skill.description.len() {
                "…"
            } else {
                ""
            };
            let _ = writeln!(
                out,
                "{}  ({}, {})  {about}{cut}",
                skill.path,
                files(skill.files),
                size(skill.bytes)
            );
        }
        if !server.declined.is_empty() {
            let _ = writeln!(
                out,
                "{}/  {} declined, see: mount-skills status",
                server.label,
                server.declined.len()
            );
        }
    }
    out
}

/// A block a server, then the counts.
pub fn status(status: &Status) -> String {
    let mut out = format!(
        "{} (mount-skills {}, pid {})\n",
        status.mountpoint, status.version, status.pid
    );
    for server in &status.servers {
        let _ = writeln!(
            out,
            "\n{}  {}  {}",
            server.label,
            state(server),
            server.target
        );
        if let (Some(era), Some(protocol), Some(name)) =
            (&server.era, &server.protocol, &server.calls_itself)
        {
            let _ = writeln!(out, "  {name:?}, revision {protocol}, by {era}");
        }
        let reason = server
            .listing_reason
            .as_ref()
            .map(|r| format!(": {r}"))
            .unwrap_or_default();
        let _ = writeln!(
            out,
            "  {} skills, listing {}{reason}",
            server.skills.len(),
            server.listing
        );
        for declined in &server.declined {
            let uri = declined.uri.as_deref().unwrap_or("(no URI)");
            let _ = writeln!(out, "  declined {uri}: {}", declined.reason);
        }
        for refusal in &server.refused {
            let times = if refusal.times > 1 {
                format!(" ({} times)", refusal.times)
            } else {
                String::new()
            };
            let _ = writeln!(out, "  refused {}{times}: {}", refusal.path, refusal.reason);
            let _ = writeln!(out, "    {}: {}", refusal.uri, refusal.next);
        }
        for warning in &server.warnings {
            let _ = writeln!(out, "  warning: {warning}");
        }
        if let Some(connection) = &server.connection {
            let requests = connection.requests.iter().map(|(m, n)| format!("{m} {n}"));
            let requests: Vec<String> = requests.collect();
            let _ = writeln!(
                out,
                "  requests: {}; connects: {}",
                requests.join(", "),
                connection.connects
            );
            if server.state == "down" && !connection.stderr.is_empty() {
                let _ = writeln!(out, "  its stderr: {}", connection.stderr);
            }
        }
    }
    let upcalls = status
        .upcalls
        .iter()
        .filter(|(_, n)| **n > 0)
        .map(|(k, n)| format!("{k} {n}"));
    let upcalls: Vec<String> = upcalls.collect();
    let _ = writeln!(out, "\nupcalls: {}", upcalls.join(", "));
    match &status.cache {
        Some(c) => {
            let _ = writeln!(
                out,
                "cache: {} of {}, {} hits, {} damaged and removed",
                size(c.bytes),
                size(c.cap),
                c.hits,
                c.rejected
            );
        }
        None => out.push_str("cache: not in use\n"),
    }
    out
}

fn state(server: &ServerStatus) -> String {
    match &server.reason {
        Some(reason) => format!("{}: {reason}", server.state),
        None => server.state.clone(),
    }
}

fn files(n: usize) -> String {
    format!("{n} file{}", if n == 1 { "" } else { "s" })
}

/// Bytes in the largest unit that leaves a number of at least 1.
fn size(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..1_048_576 => format!("{:.1} KiB", bytes as f64 / 1024.0),
        _ => format!("{:.1} MiB", bytes as f64 / 1_048_576.0),
    }
}
