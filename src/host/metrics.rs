//! Figures for Prometheus: what is counted here as it happens, and at each question the rest of
//! them from the status.
//!
//! **Invariant:** labels are the user's names for servers and words of ours, never a text of a
//! server: there are as many series as the configuration asks for, and none of them holds a secret.

use super::report::Status;
use super::{ReadError, Way};
use crate::sync::Mutex;
use prometheus_client::encoding::{EncodeLabelSet, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};
use std::collections::BTreeMap;
use std::hash::Hash;
use std::time::Duration;

/// The upper ends, in seconds, of the ranges that waits are counted in: from a read out of memory
/// to the longest deadline that makes sense.
const RANGES: [f64; 12] = [
    0.0001, 0.0005, 0.0025, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0,
];

fn waits() -> Histogram {
    Histogram::new(RANGES)
}

/// A family that forgets what is of a server which is gone.
#[derive(Debug)]
struct Known<L, M> {
    family: Family<L, M, fn() -> M>,
    /// The labels that are in it, which it does not tell.
    labels: Mutex<Vec<L>>,
}

impl<L: Clone + Eq + Hash, M: Clone> Known<L, M> {
    fn new(constructor: fn() -> M) -> Self {
        Self {
            family: Family::new_with_constructor(constructor),
            labels: Mutex::default(),
        }
    }

    fn of(&self, labels: &L) -> M {
        if self.family.get(labels).is_none() {
            self.labels.lock().push(labels.clone());
        }
        self.family.get_or_create_owned(labels)
    }

    fn forget(&self, is_gone: impl Fn(&L) -> bool) {
        self.labels.lock().retain(|labels| {
            let stays = !is_gone(labels);
            if !stays {
                self.family.remove(labels);
            }
            stays
        });
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfServer {
    server: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfSource {
    server: String,
    source: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfOutcome {
    server: String,
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfMethod {
    server: String,
    method: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfRequest {
    server: String,
    method: &'static str,
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfState {
    server: String,
    state: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfKind {
    kind: String,
}

/// What is counted as it happens.
#[derive(Debug)]
pub(super) struct Metrics {
    reads: Known<OfOutcome, Counter>,
    bytes: Known<OfSource, Counter>,
    read_waits: Known<OfSource, Histogram>,
    requests: Known<OfRequest, Counter>,
    request_waits: Known<OfMethod, Histogram>,
    refusals: Known<OfOutcome, Counter>,
    misses: Counter,
    in_flight: Gauge,
}

impl Metrics {
    pub(super) fn new() -> Self {
        Self {
            reads: Known::new(Counter::default),
            bytes: Known::new(Counter::default),
            read_waits: Known::new(waits),
            requests: Known::new(Counter::default),
            request_waits: Known::new(waits),
            refusals: Known::new(Counter::default),
            misses: Counter::default(),
            in_flight: Gauge::default(),
        }
    }

    /// A read was answered with so many bytes.
    pub(super) fn served(&self, server: &str, way: Way, bytes: usize, took: Duration) {
        let server = server.to_owned();
        let source = way.as_str();
        let of = OfSource { server, source };
        self.read_waits.of(&of).observe(took.as_secs_f64());
        self.bytes.of(&of).inc_by(bytes as u64);
        let (server, outcome) = (of.server, "served");
        let of = OfOutcome { server, outcome };
        self.reads.of(&of).inc();
    }

    /// A read was answered with an error.
    pub(super) fn failed(&self, server: &str, error: ReadError) {
        let (server, outcome) = (server.to_owned(), error.name());
        let of = OfOutcome { server, outcome };
        self.reads.of(&of).inc();
    }

    /// There is a reason for a refusal.
    pub(super) fn refused(&self, server: &str, error: ReadError) {
        let (server, outcome) = (server.to_owned(), error.name());
        let of = OfOutcome { server, outcome };
        self.refusals.of(&of).inc();
    }

    /// A request to a server came to something.
    pub(super) fn asked(
        &self,
        server: &str,
        method: &'static str,
        outcome: &'static str,
        took: Duration,
    ) {
        let server = server.to_owned();
        let of = OfMethod { server, method };
        self.request_waits.of(&of).observe(took.as_secs_f64());
        let server = of.server;
        let of = OfRequest {
            server,
            method,
            outcome,
        };
        self.requests.of(&of).inc();
    }

    /// A server is gone, and its series with it.
    pub(super) fn forget(&self, server: &str) {
        self.reads.forget(|of| of.server == server);
        self.refusals.forget(|of| of.server == server);
        self.bytes.forget(|of| of.server == server);
        self.read_waits.forget(|of| of.server == server);
        self.requests.forget(|of| of.server == server);
        self.request_waits.forget(|of| of.server == server);
    }

    /// A file was not on the disk.
    pub(super) fn missed(&self) {
        self.misses.inc();
    }

    /// A read that waits for something, until this is dropped.
    pub(super) fn waiting(&self) -> Waiting<'_> {
        self.in_flight.inc();
        Waiting(&self.in_flight)
    }

    /// All figures as text.
    pub(super) fn text(&self, status: &Status, memory: u64) -> String {
        let mut registry = Registry::with_prefix("mount_skills");
        let r = &mut registry;
        r.register(
            "reads",
            "Reads of the kernel, by what they came to",
            self.reads.family.clone(),
        );
        r.register_with_unit(
            "read",
            "Content that reads of the kernel were answered with, by where it was",
            Unit::Bytes,
            self.bytes.family.clone(),
        );
        r.register_with_unit(
            "read_wait",
            "How long reads waited that were answered with content, by where it was",
            Unit::Seconds,
            self.read_waits.family.clone(),
        );
        r.register(
            "requests",
            "Requests to servers, by method and what they came to",
            self.requests.family.clone(),
        );
        r.register_with_unit(
            "request_wait",
            "How long requests to servers took, by method",
            Unit::Seconds,
            self.request_waits.family.clone(),
        );
        r.register(
            "refusals",
            "Reasons for refused reads and lookups, by kind",
            self.refusals.family.clone(),
        );
        r.register(
            "reads_waiting",
            "Reads that wait for a disk or a server now",
            self.in_flight.clone(),
        );
        of_status(r, status);
        if let Some(cache) = status.cache {
            let hits = counted(cache.hits);
            r.register("cache_hits", "Files served from the disk cache", hits);
            let help = "Files that the disk cache did not have";
            r.register("cache_misses", help, self.misses.clone());
            let rejected = counted(cache.rejected);
            let help = "Damaged files removed from the disk cache";
            r.register("cache_rejected", help, rejected);
            let help = "Size of the disk cache";
            r.register_with_unit("cache", help, Unit::Bytes, gauge(cache.bytes));
        }
        let help = "Checked content in memory, and what is being loaded";
        r.register_with_unit("memory", help, Unit::Bytes, gauge(memory));
        let mut out = String::new();
        // Writing to a string cannot fail.
        let _ = text::encode(&mut out, &registry);
        out
    }
}

/// The figures that are in the status.
fn of_status(registry: &mut Registry, status: &Status) {
    let upcalls = Family::<OfKind, Counter>::default();
    for (kind, n) in &status.upcalls {
        let kind = kind.clone();
        upcalls.get_or_create(&OfKind { kind }).inc_by(*n);
    }
    registry.register("upcalls", "Requests of the kernel, by kind", upcalls);
    let connects = Family::<OfServer, Counter>::default();
    let servers = Family::<OfState, Gauge>::default();
    let skills = Family::<OfState, Gauge>::default();
    let windows = Family::<OfServer, Gauge>::default();
    for one in &status.servers {
        let server = || one.label.clone();
        let of = |state: &str| OfState {
            server: server(),
            state: state.into(),
        };
        servers.get_or_create(&of(&one.state)).set(1);
        let mut states = BTreeMap::<&str, i64>::new();
        for skill in &one.skills {
            *states.entry(&skill.state).or_default() += 1;
        }
        let held = states.iter().filter(|(state, _)| is_window(state));
        let held: i64 = held.map(|(_, n)| n).sum();
        let here = OfServer { server: server() };
        windows.get_or_create(&here).set(held);
        for (state, n) in states {
            skills.get_or_create(&of(state)).set(n);
        }
        let declined = i64::try_from(one.declined.len()).unwrap_or(i64::MAX);
        skills.get_or_create(&of("declined")).set(declined);
        if let Some(connection) = &one.connection {
            connects.get_or_create(&here).inc_by(connection.connects);
        }
    }
    let help = "Tries to start or reach a server";
    registry.register("connects", help, connects);
    registry.register("servers", "1 for the state that a server is in", servers);
    registry.register("skills", "Skills, by state", skills);
    registry.register("windows", "Windows that are open", windows);
}

/// Whether a skill in this state is held for its readers.
fn is_window(state: &str) -> bool {
    matches!(state, "held" | "changed" | "changed (withdrawn)")
}

fn counted(n: u64) -> Counter {
    let counter = Counter::default();
    counter.inc_by(n);
    counter
}

fn gauge(n: u64) -> Gauge {
    let gauge = Gauge::default();
    gauge.set(i64::try_from(n).unwrap_or(i64::MAX));
    gauge
}

/// A read that waits.
#[derive(Debug)]
pub(super) struct Waiting<'a>(&'a Gauge);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.dec();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(metrics: &Metrics) -> String {
        let mut registry = Registry::default();
        registry.register("waits", "x", metrics.read_waits.family.clone());
        let mut out = String::new();
        text::encode(&mut out, &registry).unwrap();
        out
    }

    fn up_to(text: &str, end: &str) -> u64 {
        let row = text.lines().find(|l| l.contains(&format!("le=\"{end}\"")));
        let row = row.unwrap_or_else(|| panic!("{end}: {text}"));
        row.rsplit(' ').next().unwrap().parse().unwrap()
    }

    #[test]
    fn a_wait_counts_up_to_the_end_of_its_range_and_none_is_lost() {
        let metrics = Metrics::new();
        let wait = |seconds: f64| {
            let took = Duration::from_secs_f64(seconds);
            metrics.served("a", Way::Server, 1, took);
        };
        [0.0, 0.5, 0.500001, 60.0, 61.0, 1e6]
            .into_iter()
            .for_each(wait);
        let text = text(&metrics);
        assert_eq!(up_to(&text, "0.0001"), 1);
        assert_eq!(up_to(&text, "0.25"), 1);
        assert_eq!(up_to(&text, "0.5"), 2, "the end belongs to the range");
        assert_eq!(up_to(&text, "1.0"), 3);
        assert_eq!(up_to(&text, "60.0"), 4);
        assert_eq!(up_to(&text, "+Inf"), 6);
        assert!(RANGES.is_sorted());
    }

    #[test]
    fn a_read_that_is_given_up_waits_no_longer() {
        let metrics = Metrics::new();
        let (one, two) = (metrics.waiting(), metrics.waiting());
        assert_eq!(metrics.in_flight.get(), 2);
        drop((one, two));
        assert_eq!(metrics.in_flight.get(), 0);
    }
}
