//! What servers write to stderr, on its way to the disk.
//!
//! **Invariant:** a server is never held up: of what a slow disk does not take in time the end is kept, which
//! says most of why a server died.

use crate::source::Stderr;
use crate::store::append::Ring;
use parking_lot::Mutex;
use std::sync::Arc;

/// At most this much waits for the disk.
const WAITING: usize = 256 * 1024;
/// Stands where something was left out.
const GAP: &[u8] = b"\n[... left out: the disk was too slow ...]\n";

/// The way to one server's file.
#[derive(Debug)]
struct Keeper {
    ring: Ring,
    waiting: Mutex<Waiting>,
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
    let keeper = Arc::new(Keeper { ring, waiting });
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
                tracing::debug!("{label}: what it writes to stderr is not kept: {e}");
            }
        }
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
}
