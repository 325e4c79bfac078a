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
use std::time::Duration;
use tokio::sync::{Notify, oneshot};

/// HUP, INT, QUIT, KILL and TERM, as bits of a signal mask in /proc.
const ENDING: u64 = 1 << 0 | 1 << 1 | 1 << 2 | 1 << 8 | 1 << 14;
/// How often pending signals are looked up while somebody waits.
const EVERY: Duration = Duration::from_millis(50);
/// …and how much longer for each waiting reader, so that thousands of them cost no CPU.
const EACH: Duration = Duration::from_micros(100);

/// The readers that wait now.
#[derive(Debug, Default)]
pub(super) struct Parked {
    next: AtomicU64,
    waiting: Mutex<HashMap<u64, (u32, oneshot::Sender<()>)>>,
    arrived: Notify,
}

/// A place among the waiting; leaving it is dropping it.
#[derive(Debug)]
pub(super) struct Place {
    id: u64,
    parked: Arc<Parked>,
    signalled: oneshot::Receiver<()>,
}

impl Place {
    /// Ends when the caller was told to end.
    pub(super) async fn signalled(&mut self) {
        if (&mut self.signalled).await.is_err() {
            std::future::pending().await
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.parked.waiting.lock().remove(&self.id);
    }
}

impl Parked {
    /// Adds the thread that made a request, by the number the kernel gave with it.
    pub(super) fn enter(self: &Arc<Self>, thread: u32) -> Place {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let (sender, signalled) = oneshot::channel();
        self.waiting.lock().insert(id, (thread, sender));
        self.arrived.notify_one();
        Place {
            id,
            parked: Arc::clone(self),
            signalled,
        }
    }

    /// Looks after the waiting readers, for ever.
    pub(super) async fn watch(self: Arc<Self>) {
        loop {
            let threads: Vec<(u64, u32)> = self
                .waiting
                .lock()
                .iter()
                .map(|(id, (thread, _))| (*id, *thread))
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
                if let Some((_, sender)) = waiting.remove(&id) {
                    let _ = sender.send(());
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
