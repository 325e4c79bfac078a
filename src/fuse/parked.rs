//! Readers that wait, and the signals that must get them out.
//!
//! The kernel tells a FUSE daemon of a signal by FUSE_INTERRUPT, which fuser answers itself
//! without a hook. So while a READ waits, its caller's pending signals are looked up in /proc: a
//! caller that was told to end gets EINTR, even when it has a handler for the signal. EINTR is
//! never sent without such a signal, since a reader would just ask again, for ever.
//!
//! Only signals that ask a program to end count. A reader of a plain file does not expect EINTR,
//! and one that is merely told of a child or a window size must not get it.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, oneshot};

/// HUP, INT, QUIT, KILL and TERM, as bits of a signal mask in /proc.
const ENDING: u64 = 1 << 0 | 1 << 1 | 1 << 2 | 1 << 8 | 1 << 14;
/// How often pending signals are looked up while somebody waits.
const EVERY: Duration = Duration::from_millis(50);
/// …and how much longer for each waiting reader, so that thousands of them cost no CPU.
const EACH: Duration = Duration::from_micros(100);

/// How long the readers of a file may take to leave once they were told.
const DISMISS: Duration = Duration::from_secs(1);

/// The readers that wait now.
#[derive(Debug, Default)]
pub(super) struct Parked {
    next: AtomicU64,
    waiting: Mutex<HashMap<u64, Waiting>>,
    arrived: Notify,
}

#[derive(Debug)]
struct Waiting {
    thread: u32,
    ino: u64,
    tell: Option<oneshot::Sender<Told>>,
}

/// Why a reader must not wait longer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Told {
    /// Its program was told to end.
    Signal,
    /// The file's pages are about to be dropped.
    Dropped,
}

/// A place among the waiting; leaving it is dropping it.
#[derive(Debug)]
pub(super) struct Place {
    id: u64,
    parked: Arc<Parked>,
    told: oneshot::Receiver<Told>,
}

impl Place {
    /// Ends when the reader must not wait longer.
    pub(super) async fn told(&mut self) -> Told {
        match (&mut self.told).await {
            Ok(told) => told,
            Err(_) => std::future::pending().await,
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.parked.waiting.lock().remove(&self.id);
    }
}

impl Parked {
    /// Adds the thread that made a request for a file, by the number the kernel gave with it.
    pub(super) fn enter(self: &Arc<Self>, thread: u32, ino: u64) -> Place {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let (tell, told) = oneshot::channel();
        self.waiting.lock().insert(
            id,
            Waiting {
                thread,
                ino,
                tell: Some(tell),
            },
        );
        self.arrived.notify_one();
        Place {
            id,
            parked: Arc::clone(self),
            told,
        }
    }

    /// Gets all readers of a file out: a page that a reader waits for is locked, and dropping it
    /// would wait as long. Blocks, but not for long.
    pub(super) fn dismiss(&self, ino: u64) {
        let until = Instant::now() + DISMISS;
        loop {
            let mut left = false;
            for w in self.waiting.lock().values_mut().filter(|w| w.ino == ino) {
                left = true;
                if let Some(tell) = w.tell.take() {
                    let _ = tell.send(Told::Dropped);
                }
            }
            if !left || Instant::now() > until {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Looks after the waiting readers, for ever.
    pub(super) async fn watch(self: Arc<Self>) {
        loop {
            let threads: Vec<(u64, u32)> = self
                .waiting
                .lock()
                .iter()
                .map(|(id, w)| (*id, w.thread))
                .collect();
            if threads.is_empty() {
                self.arrived.notified().await;
            }
            tokio::time::sleep(EVERY.max(EACH * threads.len() as u32)).await;
            let told: Vec<u64> = threads
                .into_iter()
                .filter(|(_, t)| must_end(*t))
                .map(|(id, _)| id)
                .collect();
            let mut waiting = self.waiting.lock();
            for id in told {
                if let Some(tell) = waiting.get_mut(&id).and_then(|w| w.tell.take()) {
                    let _ = tell.send(Told::Signal);
                }
            }
        }
    }
}

/// Whether a thread has a pending signal that asks it to end. One of another process namespace
/// has number 0 here and is left alone; SIGKILL reaches it all the same.
fn must_end(thread: u32) -> bool {
    thread != 0
        && std::fs::read_to_string(format!("/proc/{thread}/status"))
            .is_ok_and(|status| pending(&status) & ENDING != 0)
}

/// The pending signals that are neither blocked nor ignored.
fn pending(status: &str) -> u64 {
    let mask = |name: &str| {
        let line = status.lines().find_map(|l| l.strip_prefix(name));
        line.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok())
            .unwrap_or(0)
    };
    (mask("SigPnd:") | mask("ShdPnd:")) & !mask("SigBlk:") & !mask("SigIgn:")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_signals_that_are_heard_count() {
        let status = |pnd: u64, shd: u64, blk: u64, ign: u64| {
            format!(
                "Name:\tcat\nSigPnd:\t{pnd:016x}\nShdPnd:\t{shd:016x}\nSigBlk:\t{blk:016x}\nSigIgn:\t{ign:016x}\nSigCgt:\t0\n"
            )
        };
        let int = 1 << 1;
        assert_eq!(pending(&status(int, 0, 0, 0)), int);
        assert_eq!(pending(&status(0, int, 0, 0)), int);
        assert_eq!(pending(&status(0, int, int, 0)), 0, "blocked");
        assert_eq!(pending(&status(0, int, 0, int)), 0, "ignored");
        assert_eq!(pending("garbage"), 0);
        let chld = 1 << 16;
        assert_eq!(pending(&status(0, chld, 0, 0)) & ENDING, 0);
        for signal in [
            libc::SIGHUP,
            libc::SIGINT,
            libc::SIGQUIT,
            libc::SIGKILL,
            libc::SIGTERM,
        ] {
            assert_ne!(ENDING & 1 << (signal - 1), 0, "{signal}");
        }
        assert_eq!(ENDING.count_ones(), 5);
    }
}
