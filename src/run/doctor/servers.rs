//! The servers: each is started and asked as a mount does it, by the same host and sessions, which
//! are connected to no mount, cache or state.
//!
//! A server that is down is believed to be down after two tries: one of the older kind may answer
//! only the second. No content is read.

use super::advice;
use crate::config::{Config, ServerSpec};
use crate::domain::finding::{Finding, Fix};
use crate::domain::skill::Policy;
use crate::domain::text::word;
use crate::host::report::{DeclinedStatus, ServerStatus, count};
use crate::host::{Host, Server};
use crate::run::servers::{Ground, Servers, Wanted, Wish};
use crate::run::{Failure, login, mount};
use crate::source::{Spawner, Target};
use serde::Serialize;
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};
use tokio::signal::unix::{SignalKind, signal};

/// Tries to connect after which a server is down: two rounds, of one or two handshakes each.
const TRIES: u64 = 3;
/// How often is looked whether a server has come to something.
const GLANCE: Duration = Duration::from_millis(50);
/// At most so many reasons for declined skills are told.
const REASONS: usize = 5;

/// How a server is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Way {
    Command,
    Http,
}

/// What a server came to.
#[derive(Debug, Serialize)]
pub(super) struct Examined {
    label: String,
    target: String,
    way: Way,
    state: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    took_s: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    era: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    protocol: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    calls_itself: Option<String>,
    declares: Vec<String>,
    listing: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    listing_reason: Option<String>,
    skills: usize,
    declined: Vec<DeclinedStatus>,
    warnings: Vec<String>,
    /// Requests that were sent, by method.
    requests: BTreeMap<String, u64>,
}

impl Examined {
    fn of(spec: &ServerSpec, status: ServerStatus, took: Duration) -> Self {
        Self {
            label: status.label,
            target: status.target,
            way: match &spec.target {
                Target::Command(_) => Way::Command,
                Target::Http(_) => Way::Http,
            },
            state: status.state,
            reason: status.reason,
            took_s: (took.as_secs_f64() * 1000.0).round() / 1000.0,
            era: status.era,
            protocol: status.protocol,
            calls_itself: status.calls_itself,
            declares: status.declares,
            listing: status.listing,
            listing_reason: status.listing_reason,
            skills: status.skills.len(),
            declined: status.declined,
            warnings: status.warnings,
            requests: status.connection.map(|c| c.requests).unwrap_or_default(),
        }
    }

    /// What that means.
    pub(super) fn findings(&self, timeout: Duration) -> Vec<Finding> {
        let mut found = vec![self.main_finding(timeout)];
        for warning in &self.warnings {
            found.push(Finding::note("server-breach", &self.label, warning));
        }
        found.extend(self.declined());
        found
    }

    fn main_finding(&self, timeout: Duration) -> Finding {
        let label = &self.label;
        let reason = self.reason.as_deref().unwrap_or_default();
        match self.state.as_str() {
            "ready" if self.reason.is_some() => Finding::error(
                "server-listing-failed",
                label,
                format!("{}, but {reason}, so none of its skills is shown", self.speaks()),
                self.by_hand(),
            ),
            "ready" if self.listing == "none" => Finding::error(
                "server-listing-late",
                label,
                format!(
                    "{}, but its listing did not come within {} s",
                    self.speaks(),
                    timeout.as_secs_f64()
                ),
                longer(timeout),
            ),
            "ready" if self.listing_reason.is_some() => Finding::warning(
                "server-listing-truncated",
                label,
                format!(
                    "{}; {}, and its listing is not whole: {}",
                    self.speaks(),
                    count(self.skills, "skill"),
                    self.listing_reason.as_deref().unwrap_or_default()
                ),
                Fix::Do("tell the author of the server; skills that are missing can be added with --skill".into()),
            ),
            "ready" if self.skills == 0 && self.declined.is_empty() => Finding::note(
                "server-empty",
                label,
                format!("{}; it lists no skill", self.speaks()),
            ),
            "ready" => Finding::ok(
                "server",
                label,
                format!("{}; {}", self.speaks(), count(self.skills, "skill")),
            ),
            "no-skills" => Finding::warning(
                "server-no-skills",
                label,
                format!("{}; it offers no skills: {reason}", self.speaks()),
                Fix::Do("look for a newer version of it, or a flag that turns skills on".into()),
            ),
            "starting" => Finding::error(
                "server-silent",
                label,
                format!(
                    "no answer within {} s; the first start of npx or uvx may download for a minute",
                    timeout.as_secs_f64()
                ),
                longer(timeout),
            ),
            _ => self.down(reason),
        }
    }

    /// What was agreed on, and how soon.
    fn speaks(&self) -> String {
        let unknown = || "?".to_owned();
        let era = self.era.clone().unwrap_or_else(unknown);
        let protocol = self.protocol.clone().unwrap_or_else(unknown);
        let declares = match self.declares.is_empty() {
            true => "nothing of use here".to_owned(),
            false => self.declares.join(", "),
        };
        let took = self.took_s;
        format!("{took:.1} s by {era} ({protocol}); declares {declares}")
    }

    /// A server that cannot be reached.
    fn down(&self, reason: &str) -> Finding {
        let error = |id, text: String, fix| Finding::error(id, &self.label, text, fix);
        let http = self.way == Way::Http;
        let (text, next) = advice(reason);
        if self.state == "needs-credentials" {
            let next = next.filter(|next| is_advice(next));
            let next = next.unwrap_or_else(|| format!("see: mount-skills login {}", self.label));
            let text = format!("it lets nobody in without credentials: {text}");
            return error("server-credentials", text, Fix::Do(next));
        }
        if http && reason.contains("certificate") {
            return error(
                "server-certificate",
                format!("its certificate is not trusted: {reason}"),
                Fix::Do(
                    "have the server renew it, or name the file of its authority in SSL_CERT_FILE"
                        .into(),
                ),
            );
        }
        match next.filter(|next| is_advice(next)) {
            Some(next) => error("server-not-started", text, Fix::Do(next)),
            None => error("server-down", format!("down: {reason}"), self.by_hand()),
        }
    }

    /// How the user can look at it without us.
    fn by_hand(&self) -> Fix {
        match self.way {
            Way::Http => Fix::Run(format!("curl -i {}", word(&self.target))),
            Way::Command => Fix::Do(format!(
                "try it in a shell, where it must wait for input and print nothing: {}",
                self.target
            )),
        }
    }

    /// The skills that are not shown, by reason.
    fn declined(&self) -> Vec<Finding> {
        let mut reasons: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for declined in &self.declined {
            let uri = declined.uri.as_deref().unwrap_or("one without a URI");
            reasons.entry(&declined.reason).or_default().push(uri);
        }
        let all = reasons.len();
        let told = reasons.into_iter().take(REASONS);
        let mut found: Vec<Finding> = told
            .map(|(reason, uris)| {
                let more = match uris.len() {
                    1 => String::new(),
                    n => format!(" and {} more", n - 1),
                };
                let first = uris.first().copied().unwrap_or_default();
                Finding::warning(
                    "skill-declined",
                    &self.label,
                    format!("declined {first}{more}: {reason}"),
                    match reason.starts_with("dynamic") {
                        true => Fix::Do(format!(
                            "to read it all the same, unverified: mount with --allow-dynamic {}",
                            self.label
                        )),
                        false => Fix::Do("tell the author of the server".into()),
                    },
                )
            })
            .collect();
        if all > REASONS {
            let text = format!("{} more, see --json", count(all - REASONS, "reason"));
            found.push(Finding::note("skill-declined", &self.label, text));
        }
        found
    }
}

/// Whether the end of a reason says what to do, as those of servers that were not started, or that
/// want credentials, do.
fn is_advice(next: &str) -> bool {
    let starts = [
        "correct ",
        "give ",
        "if it has a login, run: ",
        "make it",
        "mount again ",
        "mount with ",
        "run ",
        "run: ",
        "write ",
    ];
    starts.iter().any(|start| next.starts_with(start))
}

fn longer(timeout: Duration) -> Fix {
    let more = (timeout.as_secs().max(1) * 6).min(3600);
    Fix::Do(format!(
        "give them more time: mount-skills doctor --timeout {more}, with the same servers"
    ))
}

/// Starts all servers, asks what each offers, and ends them.
pub(super) fn examine(config: &Config, timeout: Duration) -> Result<Vec<Examined>, Failure> {
    if config.servers.is_empty() {
        return Ok(Vec::new());
    }
    // As a mount: memory holds secrets that other programs of the user must not read.
    rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable)
        .map_err(io::Error::from)?;
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime = mount::runtime(1)?;
    let examined = runtime.block_on(ask_all(config, timeout));
    runtime.shutdown_background();
    examined
}

async fn ask_all(config: &Config, timeout: Duration) -> Result<Vec<Examined>, Failure> {
    let mut wanted = mount::wanted(config);
    // All are waited for equally long, whatever a file says of one.
    for wanted in &mut wanted {
        wanted.spec.start_timeout = None;
    }
    let place = config.settings.mountpoint.clone();
    let told = wanted.iter().map(bare).collect();
    let (host, inbox) = Host::new(told, Policy::default(), None, place, timeout);
    // Nobody hears of changes: there is no kernel to tell.
    let (changes, _batches) = mpsc::channel();
    let handle = tokio::runtime::Handle::current();
    let writer = Arc::clone(&host).run(inbox, changes);
    std::thread::Builder::new()
        .name("writer".into())
        .spawn(move || handle.block_on(writer))?;
    let mut signals = [
        signal(SignalKind::interrupt())?,
        signal(SignalKind::terminate())?,
        signal(SignalKind::hangup())?,
    ];
    let [interrupt, terminate, hangup] = &mut signals;
    let ground = Ground {
        host: Arc::clone(&host),
        spawner: Spawner::start(Arc::new(|_, _| {}))?,
        start_timeout: timeout,
        open: Arc::new(bare),
        // A look leaves nothing behind.
        state: None,
        vault: login::as_it_is,
    };
    let wish = Wish {
        servers: wanted,
        ..Wish::default()
    };
    let (_reload, reloads) = tokio::sync::mpsc::channel(1);
    let servers = Servers::start(ground, wish).run(None, reloads);
    let took = tokio::select! {
        took = settled(&host, timeout) => Ok(took),
        _ = interrupt.recv() => Err(Failure::Command(128 + 2)),
        _ = terminate.recv() => Err(Failure::Command(128 + 15)),
        _ = hangup.recv() => Err(Failure::Command(128 + 1)),
    };
    let found = took.map(|took| {
        let each = config.servers.iter().zip(took);
        each.map(|(spec, (status, took))| Examined::of(spec, status, took))
            .collect()
    });
    servers.stop().await;
    found
}

/// What the host is told of a server of which nothing is kept.
fn bare(wanted: &Wanted) -> Server {
    let Wanted { spec, dynamic } = wanted;
    Server {
        label: spec.label.clone(),
        shown: spec.shown.clone(),
        identity: spec.identity.clone(),
        shelf: None,
        state: None,
        dynamic: *dynamic,
        locked: None,
    }
}

/// Waits until all servers have come to something, or for so long; what each came to, and when.
async fn settled(host: &Host, timeout: Duration) -> Vec<(ServerStatus, Duration)> {
    let started = Instant::now();
    let mut took: BTreeMap<String, Duration> = BTreeMap::new();
    loop {
        let now = started.elapsed();
        let servers = host.status().servers;
        for server in servers.iter().filter(|s| is_settled(s)) {
            took.entry(server.label.clone()).or_insert(now);
        }
        if took.len() == servers.len() || now >= timeout {
            let with = |s: ServerStatus| {
                let took = took.get(&s.label).copied().unwrap_or(now);
                (s, took)
            };
            return servers.into_iter().map(with).collect();
        }
        tokio::time::sleep(GLANCE).await;
    }
}

fn is_settled(server: &ServerStatus) -> bool {
    match server.state.as_str() {
        "ready" => server.listing != "none" || server.reason.is_some(),
        "starting" => false,
        "no-skills" => true,
        _ => {
            let tries = server.connection.as_ref().map_or(0, |c| c.connects);
            tries >= TRIES
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::finding::Severity;

    const TIME: Duration = Duration::from_secs(10);

    fn server(state: &str, reason: Option<&str>) -> Examined {
        Examined {
            label: "docs".into(),
            target: "npx docs".into(),
            way: Way::Command,
            state: state.into(),
            reason: reason.map(Into::into),
            took_s: 0.25,
            era: Some("discover".into()),
            protocol: Some("2026-07-28".into()),
            calls_itself: None,
            declares: vec!["skills".into(), "resources".into()],
            listing: "current".into(),
            listing_reason: None,
            skills: 3,
            declined: Vec::new(),
            warnings: Vec::new(),
            requests: BTreeMap::new(),
        }
    }

    fn of(server: &Examined) -> (&'static str, Severity, String) {
        let found = server.findings(TIME);
        assert_eq!(found.len(), 1, "{found:?}");
        let fix = found[0].fix.as_ref().map(Fix::to_string);
        (found[0].id, found[0].severity, fix.unwrap_or_default())
    }

    #[test]
    fn what_a_server_came_to_has_a_severity_and_what_mends_it() {
        let http = |reason| Examined {
            way: Way::Http,
            target: "https://h/mcp?a".into(),
            ..server("down", Some(reason))
        };
        let cases = [
            (server("ready", None), "server", Severity::Ok, ""),
            (
                server("ready", Some("the listing failed: no answer")),
                "server-listing-failed",
                Severity::Error,
                "npx docs",
            ),
            (
                Examined {
                    listing: "none".into(),
                    ..server("ready", None)
                },
                "server-listing-late",
                Severity::Error,
                "--timeout 60",
            ),
            (
                Examined {
                    listing_reason: Some("endless".into()),
                    ..server("ready", None)
                },
                "server-listing-truncated",
                Severity::Warning,
                "--skill",
            ),
            (
                Examined {
                    skills: 0,
                    ..server("ready", None)
                },
                "server-empty",
                Severity::Note,
                "",
            ),
            (
                server("no-skills", Some("not declared")),
                "server-no-skills",
                Severity::Warning,
                "newer version",
            ),
            (
                server("starting", None),
                "server-silent",
                Severity::Error,
                "--timeout 60",
            ),
            (
                server(
                    "down",
                    Some("command \"x\" not found; PATH is /bin; give its full path"),
                ),
                "server-not-started",
                Severity::Error,
                "give its full path",
            ),
            (
                server("down", Some("the server ended; its last words: a; b")),
                "server-down",
                Severity::Error,
                "in a shell",
            ),
            (
                server("needs-credentials", Some("HTTP 401; run: log in")),
                "server-credentials",
                Severity::Error,
                "run: log in",
            ),
            (
                http("invalid peer certificate: UnknownIssuer"),
                "server-certificate",
                Severity::Error,
                "SSL_CERT_FILE",
            ),
            (
                http("Connection refused"),
                "server-down",
                Severity::Error,
                "curl -i 'https://h/mcp?a'",
            ),
        ];
        for (server, id, severity, fix) in cases {
            let (found, found_severity, found_fix) = of(&server);
            assert_eq!((found, found_severity), (id, severity));
            assert!(found_fix.contains(fix), "{id}: {found_fix}");
        }
    }

    #[test]
    fn what_is_no_advice_of_ours_is_never_presented_as_such() {
        let (id, _, fix) = of(&server("needs-credentials", Some("HTTP 401: x; sh evil")));
        assert_eq!(id, "server-credentials");
        assert_eq!(fix, "see: mount-skills login docs");
        for ours in [
            "HTTP 401: the given credentials are not accepted; mount again with others",
            "HTTP 401; mount with a token: --bearer-file docs=FILE",
            "HTTP 401: /t: it holds no token; write another token there",
            "HTTP 403: it does not let us in; if it has a login, run: mount-skills login docs",
        ] {
            let (_, _, fix) = of(&server("needs-credentials", Some(ours)));
            assert!(ours.ends_with(&format!("; {fix}")), "{fix}");
        }
    }

    #[test]
    fn declined_skills_are_told_by_reason_and_not_without_end() {
        let declined = |n: usize, reason: &str| DeclinedStatus {
            path: None,
            uri: Some(format!("skill://n{n}/SKILL.md")),
            reason: reason.into(),
        };
        let mut docs = server("ready", None);
        docs.declined = vec![declined(1, "dynamic skill"), declined(2, "dynamic skill")];
        let found = docs.findings(TIME);
        assert_eq!(found.len(), 2);
        assert!(
            found[1]
                .text
                .contains("skill://n1/SKILL.md and 1 more: dynamic"),
            "{}",
            found[1]
        );
        let fix = found[1].fix.as_ref().map(Fix::to_string);
        assert!(fix.is_some_and(|fix| fix.contains("--allow-dynamic docs")));
        docs.declined = (0..20)
            .map(|n| declined(n, &format!("reason {n}")))
            .collect();
        let found = docs.findings(TIME);
        assert_eq!(found.len(), 1 + REASONS + 1);
        assert!(
            found[REASONS + 1].text.contains("15 reasons more"),
            "{}",
            found[REASONS + 1]
        );
    }
}
