//! Callers that wait, the signals that must get them out, and the kernel's locks they hold.
//!
//! The kernel tells a FUSE daemon of a signal by FUSE_INTERRUPT, which fuser answers itself
//! without a hook. So while a request waits, its caller's pending signals are looked up in /proc:
//! a caller that was told to end gets EINTR, even when it has a handler for the signal. EINTR is
//! never sent without such a signal, since a reader would just ask again, for ever. Only signals
//! that ask a program to end count. A reader of a plain file does not expect EINTR, and one that
//! is merely told of a child or a window size must not get it.
//!
//! A caller that waits holds a lock in the kernel: of the page for a READ, of the directory for a
//! LOOKUP. Telling the kernel about that page or directory waits for the lock without a way out:
//! if this process were killed just then, neither would ever end. So nobody waits on an inode
//! while the kernel is told about it: [`Parked::alone`] sends readers away, waits for lookups,
//! and lets nobody in meanwhile.

use crate::sync::{Condvar, Mutex};
use std::collections::{HashMap, HashSet};
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

/// How long those who wait may take to leave: a lookup waits at most two seconds for its server.
const LEAVE: Duration = Duration::from_secs(4);

/// Those who wait now.
#[derive(Debug, Default)]
pub(super) struct Parked {
    next: AtomicU64,
    inner: Mutex<Inner>,
    arrived: Notify,
    left: Condvar,
}

#[derive(Debug, Default)]
struct Inner {
    waiting: HashMap<u64, Waiting>,
    /// Inodes that the kernel is told about: nobody may wait on them.
    closed: HashSet<u64>,
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

/// How those who wait on an inode get out of the way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Leave {
    /// They are sent away.
    AtOnce,
    /// They have their answer soon.
    ByThemselves,
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
        self.parked.inner.lock().waiting.remove(&self.id);
        self.parked.left.notify_all();
    }
}

impl Parked {
    /// Adds the thread that made a request about an inode, by the number the kernel gave with it;
    /// none if nobody may wait on that inode now.
    pub(super) fn enter(self: &Arc<Self>, thread: u32, ino: u64) -> Option<Place> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let (tell, told) = oneshot::channel();
        {
            let mut inner = self.inner.lock();
            if inner.closed.contains(&ino) {
                return None;
            }
            inner.waiting.insert(
                id,
                Waiting {
                    thread,
                    ino,
                    tell: Some(tell),
                },
            );
        }
        self.arrived.notify_one();
        Some(Place {
            id,
            parked: Arc::clone(self),
            told,
        })
    }

    /// Does something while nobody waits on an inode, and nobody can begin to. Who waits is sent
    /// away or, for `then` being [`Leave::ByThemselves`], waited for. Blocks, but not for long.
    pub(super) fn alone<T>(&self, ino: u64, then: Leave, work: impl FnOnce() -> T) -> T {
        let until = Instant::now() + LEAVE;
        let mut inner = self.inner.lock();
        inner.closed.insert(ino);
        loop {
            let mut left = false;
            for w in inner.waiting.values_mut().filter(|w| w.ino == ino) {
                left = true;
                if let Some(tell) = w.tell.take_if(|_| then == Leave::AtOnce) {
                    let _ = tell.send(Told::Dropped);
                }
            }
            if !left || self.left.wait_until(&mut inner, until).timed_out() {
                break;
            }
        }
        drop(inner);
        let result = work();
        self.inner.lock().closed.remove(&ino);
        result
    }

    /// Looks after the waiting readers, for ever.
    pub(super) async fn watch(self: Arc<Self>) {
        loop {
            let threads: Vec<(u64, u32)> = self
                .inner
                .lock()
                .waiting
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
            let mut inner = self.inner.lock();
            for id in told {
                if let Some(tell) = inner.waiting.get_mut(&id).and_then(|w| w.tell.take()) {
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
    fn nobody_waits_on_an_inode_that_the_kernel_is_told_about() {
        let parked = Arc::<Parked>::default();
        let (mut reader, other) = (parked.enter(1, 7).unwrap(), parked.enter(1, 8).unwrap());
        let threads = std::thread::scope(|s| {
            let telling = s.spawn(|| {
                parked.alone(7, Leave::AtOnce, || {
                    (parked.enter(1, 7).is_none(), parked.enter(1, 8).is_some())
                })
            });
            let told = loop {
                if let Ok(told) = reader.told.try_recv() {
                    break told;
                }
                std::thread::yield_now();
            };
            assert_eq!(told, Told::Dropped);
            drop(reader);
            telling.join().unwrap()
        });
        assert_eq!(threads, (true, true));
        drop(other);
        assert!(parked.enter(1, 7).is_some(), "open again afterwards");
    }

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

/// See [`crate::sync`].
#[cfg(all(test, shuttle))]
mod interleavings {
    use super::*;
    use crate::sync::check;
    use shuttle::future::block_on;
    use shuttle::sync::atomic::{AtomicUsize, Ordering};
    use shuttle::thread;

    const INODES: [u64; 2] = [7, 8];
    const READERS: usize = 3;

    /// Readers come to two inodes while the kernel is told about both, one after the other:
    /// nobody waits on an inode meanwhile, whoever waits is answered or sent away, and all end.
    fn nobody_waits_meanwhile(then: Leave) {
        check(move || {
            let parked = Arc::<Parked>::default();
            let waiting = Arc::<[AtomicUsize; 2]>::default();
            let (answers, questions): (Vec<_>, Vec<_>) =
                (0..READERS).map(|_| oneshot::channel::<()>()).unzip();
            let readers: Vec<_> = questions
                .into_iter()
                .enumerate()
                .map(|(n, mut answer)| {
                    let (parked, waiting) = (Arc::clone(&parked), Arc::clone(&waiting));
                    thread::spawn(move || {
                        // The first inode has two readers.
                        let at = n % 2;
                        let Some(mut place) = parked.enter(1, INODES[at]) else {
                            return;
                        };
                        waiting[at].fetch_add(1, Ordering::SeqCst);
                        block_on(async {
                            tokio::select! {
                                biased;
                                told = place.told() => {
                                    assert_eq!((told, then), (Told::Dropped, Leave::AtOnce));
                                }
                                _ = &mut answer => {}
                            }
                        });
                        waiting[at].fetch_sub(1, Ordering::SeqCst);
                        drop(place);
                    })
                })
                .collect();
            let teller = {
                let (parked, waiting) = (Arc::clone(&parked), Arc::clone(&waiting));
                thread::spawn(move || {
                    for (at, ino) in INODES.into_iter().enumerate() {
                        parked.alone(ino, then, || {
                            for _ in 0..2 {
                                assert_eq!(waiting[at].load(Ordering::SeqCst), 0, "alone");
                                thread::yield_now();
                            }
                        });
                    }
                })
            };
            // For those who are to leave at once, the answer comes too late.
            if then == Leave::AtOnce {
                teller.join().unwrap();
                for answer in answers {
                    let _ = answer.send(());
                }
            } else {
                for answer in answers {
                    let _ = answer.send(());
                    thread::yield_now();
                }
                teller.join().unwrap();
            }
            readers.into_iter().for_each(|t| t.join().unwrap());
            let inner = parked.inner.lock();
            assert!(inner.waiting.is_empty() && inner.closed.is_empty());
        });
    }

    #[test]
    fn nobody_waits_on_an_inode_that_the_kernel_is_told_about_readers() {
        nobody_waits_meanwhile(Leave::AtOnce);
    }

    #[test]
    fn nobody_waits_on_an_inode_that_the_kernel_is_told_about_lookups() {
        nobody_waits_meanwhile(Leave::ByThemselves);
    }
}
