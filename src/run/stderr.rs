//! What servers write to stderr, on its way to the disk.
//!
//! **Invariant:** a server is never held up: what a slow disk does not take in time is left out.

use crate::source::Stderr;
use crate::store::append::Ring;
use parking_lot::Mutex;
use std::sync::Arc;

/// At most this much waits for the disk.
const WAITING: usize = 256 * 1024;
/// Stands where something was left out.
const GAP: &[u8] = b"\n[... the disk was too slow for the rest ...]\n";

/// The way to one server's file.
#[derive(Debug)]
struct Keeper {
    ring: Ring,
    waiting: Mutex<Waiting>,
}

#[derive(Debug, Default)]
struct Waiting {
    bytes: Vec<u8>,
    writer: Writer,
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
        if self.bytes.len() + bytes.len() <= WAITING {
            self.bytes.extend_from_slice(bytes);
        } else if !self.bytes.ends_with(GAP) {
            self.bytes.extend_from_slice(GAP);
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
                std::mem::take(&mut waiting.bytes)
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
    fn what_waits_is_bounded_and_says_so_once() {
        let mut waiting = Waiting::default();
        for _ in 0..3 {
            waiting.add(&vec![b'x'; WAITING - 1]);
        }
        assert_eq!(waiting.bytes.len(), WAITING - 1 + GAP.len());
        assert!(waiting.bytes.ends_with(GAP));
    }
}
