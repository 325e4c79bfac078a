//! What servers write to stderr, on its way to the disk.
//!
//! **Invariant:** a server is never held up: of what a slow disk does not take in time the end is kept, which
//! says most of why a server died.
//!
//! **Invariant:** however much a server writes, so much goes to the disk in a second.

use crate::source::Stderr;
use crate::store::append::Ring;
use parking_lot::Mutex;
use std::sync::{Arc, Once};
use std::time::{Duration, Instant};

/// At most this much waits for the disk.
const WAITING: usize = 256 * 1024;
/// At most this much is written in a second…
const RATE: usize = 1 << 20;
/// …after what is written at once, which is what may be written in this time.
const BURST: Duration = Duration::from_secs(1);
/// Stands where something was left out.
const GAP: &[u8] = b"\n[... left out: it came faster than it is written to the disk ...]\n";

/// The way to one server's file.
#[derive(Debug)]
struct Keeper {
    ring: Ring,
    waiting: Mutex<Waiting>,
    pace: Mutex<Pace>,
    /// That it is not kept is said once.
    warned: Once,
}

#[derive(Debug, Default)]
struct Waiting {
    bytes: Vec<u8>,
    before: Before,
    writer: Writer,
}

/// Whether all is there that came before what waits.
#[derive(Debug, Default, PartialEq, Eq)]
enum Before {
    #[default]
    Whole,
    Gap,
}

/// Whether somebody writes what waits.
#[derive(Debug, Default, PartialEq, Eq)]
enum Writer {
    #[default]
    Rests,
    Writes,
}

/// Keeps in a ring what it is told of. Must be called inside a tokio runtime.
pub(super) fn keep(ring: Ring, label: String) -> Stderr {
    let waiting = Mutex::default();
    let warned = Once::new();
    let keeper = Arc::new(Keeper {
        ring,
        waiting,
        pace: Mutex::new(Pace(Instant::now())),
        warned,
    });
    Arc::new(move |bytes| {
        {
            let mut waiting = keeper.waiting.lock();
            waiting.add(bytes);
            if waiting.writer == Writer::Writes {
                return;
            }
            waiting.writer = Writer::Writes;
        }
        let (keeper, label) = (Arc::clone(&keeper), label.clone());
        tokio::task::spawn_blocking(move || keeper.write(&label));
    })
}

impl Waiting {
    fn add(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        let over = self.bytes.len().saturating_sub(WAITING);
        if over > 0 {
            self.bytes.drain(..over);
            self.before = Before::Gap;
        }
    }

    /// All that waits, with a mark if something is missing.
    fn take(&mut self) -> Vec<u8> {
        let bytes = std::mem::take(&mut self.bytes);
        match std::mem::take(&mut self.before) {
            Before::Whole => bytes,
            Before::Gap => [GAP, &bytes].concat(),
        }
    }
}

impl Keeper {
    /// Writes until nothing waits.
    fn write(&self, label: &str) {
        loop {
            let bytes = {
                let mut waiting = self.waiting.lock();
                if waiting.bytes.is_empty() {
                    waiting.writer = Writer::Rests;
                    return;
                }
                waiting.take()
            };
            if let Err(e) = self.ring.append(&bytes) {
                self.warned.call_once(|| {
                    tracing::warn!("{label}: what it writes to stderr is not kept: {e}");
                });
            }
            let rest = self.pace.lock().rest(bytes.len(), Instant::now());
            std::thread::sleep(rest);
        }
    }
}

/// How much may be written: there is room for it again from a moment on.
#[derive(Debug)]
struct Pace(Instant);

impl Pace {
    /// So many bytes are written now: how long to rest.
    fn rest(&mut self, bytes: usize, now: Instant) -> Duration {
        let takes = Duration::from_secs_f64(bytes as f64 / RATE as f64);
        self.0 = self.0.max(now) + takes;
        let ahead = self.0.saturating_duration_since(now);
        ahead.saturating_sub(BURST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_what_waits_too_long_the_end_is_kept_with_a_mark() {
        let mut waiting = Waiting::default();
        waiting.add(b"begin");
        assert_eq!(waiting.take(), b"begin");
        waiting.add(b"old");
        waiting.add(&vec![b'x'; WAITING - 3]);
        waiting.add(b"end");
        let kept = waiting.take();
        assert_eq!(kept.len(), GAP.len() + WAITING);
        assert!(kept.starts_with(GAP) && kept.ends_with(b"xend"));
        assert_eq!(waiting.take(), b"", "once");
    }

    #[test]
    fn a_burst_is_written_at_once_and_more_at_its_pace() {
        let start = Instant::now();
        let mut pace = Pace(start);
        let quarter = Duration::from_millis(250);
        for _ in 0..4 {
            assert_eq!(pace.rest(RATE / 4, start), Duration::ZERO);
        }
        assert_eq!(pace.rest(RATE / 4, start), quarter);
        assert_eq!(pace.rest(RATE / 4, start + quarter), quarter);
        assert_eq!(pace.rest(RATE, start + 9 * BURST), Duration::ZERO);
    }
}
