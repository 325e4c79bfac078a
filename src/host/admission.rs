//! How much content may be on its way at once, over all servers.
//!
//! A reply is held as it came, JSON around text or base64, and decoded; both are there at once. So
//! reads of large files take turns, over all servers together. A server that hangs keeps its turns
//! until its deadlines: therefore each server has a share of its own for small files, and one turn
//! of its own for a large one, which it takes when no turn has ended for [`PATIENCE`]. No server can
//! hold up another for longer than that.
//!
//! **Invariant:** of files larger than [`SMALL`], [`LARGE_KIB`] are on their way in all and one
//! more for each server; of the others, [`SMALL_KIB`] for each server.

use super::Tick;
use crate::sync::{Mutex, sleep, timeout};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Files up to this size are on their server's own account.
const SMALL: u64 = 1 << 20;
/// Bytes of small files that are on their way from one server at once, in KiB.
const SMALL_KIB: u32 = 8 * 1024;
/// Bytes of large files that are on their way from all servers at once, in KiB.
const LARGE_KIB: u32 = 32 * 1024;
/// Bytes that wait at once to be written to the disk, in KiB.
const SAVES_KIB: u32 = 32 * 1024;
/// How long large files wait while none of the turns ends, before their servers' own turns are
/// taken; and how long a checked file waits for the disk before it is not stored.
const PATIENCE: Duration = Duration::from_secs(1);

/// What all servers share.
#[derive(Debug)]
pub(super) struct Admission {
    large: Arc<Semaphore>,
    /// When one of the turns that all share began or ended last.
    moved: Arc<Mutex<Tick>>,
    saves: Arc<Semaphore>,
}

/// What one server has of its own.
#[derive(Debug)]
pub(super) struct Share {
    small: Arc<Semaphore>,
    turn: Arc<Semaphore>,
}

/// The right to hold the bytes of one file on their way, until it is dropped.
#[derive(Debug)]
pub(super) struct Admitted {
    _permit: OwnedSemaphorePermit,
    /// Of a turn that all share.
    moved: Option<Arc<Mutex<Tick>>>,
}

impl Drop for Admitted {
    fn drop(&mut self) {
        if let Some(moved) = &self.moved {
            *moved.lock() = Tick::now();
        }
    }
}

impl Share {
    pub(super) fn new() -> Self {
        Self {
            small: Arc::new(Semaphore::new(SMALL_KIB as usize)),
            turn: Arc::new(Semaphore::new(1)),
        }
    }
}

impl Admission {
    pub(super) fn new() -> Self {
        Self {
            large: Arc::new(Semaphore::new(LARGE_KIB as usize)),
            moved: Arc::new(Mutex::new(Tick::now())),
            saves: Arc::new(Semaphore::new(SAVES_KIB as usize)),
        }
    }

    /// Waits until a file of this size may be asked for; none if that is not before the deadline.
    pub(super) async fn admit(
        &self,
        share: &Share,
        size: u64,
        deadline: Instant,
    ) -> Option<Admitted> {
        let left = deadline.saturating_duration_since(Instant::now());
        let admitted = async {
            if size <= SMALL {
                return own(take(&share.small, kib(size, SMALL_KIB)).await);
            }
            tokio::select! {
                biased;
                permit = take(&self.large, kib(size, LARGE_KIB)) => {
                    *self.moved.lock() = Tick::now();
                    let moved = Some(Arc::clone(&self.moved));
                    permit.map(|_permit| Admitted { _permit, moved })
                }
                permit = async {
                    self.stuck().await;
                    take(&share.turn, 1).await
                } => own(permit),
            }
        };
        timeout(left, admitted).await.ok()?
    }

    /// Returns when none of the turns that all share has ended for a while.
    async fn stuck(&self) {
        loop {
            let since = *self.moved.lock();
            if since.elapsed() >= PATIENCE {
                return;
            }
            sleep(PATIENCE.saturating_sub(since.elapsed())).await;
        }
    }

    /// Lets a file of this size wait for the disk, if there is room for it now.
    pub(super) fn admit_save_now(&self, size: u64) -> Option<Admitted> {
        let permits = kib(size, SAVES_KIB);
        own(Arc::clone(&self.saves).try_acquire_many_owned(permits).ok())
    }

    /// Waits until a file of this size may wait for the disk; none if the disk is too slow for it.
    pub(super) async fn admit_save(&self, size: u64) -> Option<Admitted> {
        let permit = take(&self.saves, kib(size, SAVES_KIB));
        own(timeout(PATIENCE, permit).await.ok()?)
    }
}

fn own(permit: Option<OwnedSemaphorePermit>) -> Option<Admitted> {
    let moved = None;
    permit.map(|_permit| Admitted { _permit, moved })
}

async fn take(semaphore: &Arc<Semaphore>, n: u32) -> Option<OwnedSemaphorePermit> {
    Arc::clone(semaphore).acquire_many_owned(n).await.ok()
}

fn kib(size: u64, most: u32) -> u32 {
    u32::try_from(size.div_ceil(1024)).map_or(most, |n| n.min(most))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn f30_large_files_take_turns_over_all_servers_and_none_holds_up_another() {
        let (all, hung, good) = (Admission::new(), Share::new(), Share::new());
        let soon = || Instant::now() + Duration::from_secs(5);
        let big = 16 << 20;
        let mut held = Vec::new();
        while let Some(admitted) = all.admit(&hung, big, soon()).await {
            held.push(admitted);
        }
        let large = u64::from(LARGE_KIB) * 1024 / big;
        assert_eq!(held.len() as u64, large + 1, "and one turn of its own");
        let began = tokio::time::Instant::now();
        assert!(all.admit(&good, SMALL, soon()).await.is_some());
        assert_eq!(began.elapsed(), Duration::ZERO);
        let own = all.admit(&good, big, soon()).await;
        assert!(own.is_some() && began.elapsed() < PATIENCE * 2);
        assert!(all.admit(&good, big, soon()).await.is_none());
        drop(own);
        assert!(all.admit(&good, big, soon()).await.is_some());
        held.clear();
        let began = tokio::time::Instant::now();
        assert!(all.admit(&good, big, soon()).await.is_some());
        assert_eq!(began.elapsed(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn a_disk_that_is_too_slow_is_not_waited_for() {
        let all = Admission::new();
        let most = all.admit_save(u64::from(SAVES_KIB) * 1024).await;
        assert!(most.is_some() && all.admit_save(1).await.is_none());
        drop(most);
        assert!(all.admit_save(1).await.is_some());
    }
}
