//! The locks and tasks of modules whose interleavings are checked: `host::flight`, `fuse::parked`.
//!
//! They are those of parking_lot and tokio, but for `scripts/interleavings`, which builds the unit
//! tests with `--cfg shuttle`: then shuttle stands behind them, which runs one thread at a time and
//! lets a seeded scheduler choose the next one at each lock, wait and spawn. Nothing ever times out
//! there, so whoever is not woken is a deadlock, which shuttle reports.

#[cfg(not(all(test, shuttle)))]
pub(crate) use parking_lot::{Condvar, Mutex};
#[cfg(not(all(test, shuttle)))]
pub(crate) use tokio::spawn;

#[cfg(all(test, shuttle))]
pub(crate) use checked::{Condvar, Mutex, check, spawn};

#[cfg(all(test, shuttle))]
mod checked {
    use std::ops::{Deref, DerefMut};
    use std::time::Instant;

    /// As parking_lot's.
    #[derive(Debug, Default)]
    pub(crate) struct Mutex<T>(shuttle::sync::Mutex<T>);

    /// None only while it waits.
    pub(crate) struct MutexGuard<'a, T>(Option<shuttle::sync::MutexGuard<'a, T>>);

    impl<T> Mutex<T> {
        pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
            MutexGuard(Some(self.0.lock().unwrap()))
        }
    }

    impl<T> Deref for MutexGuard<'_, T> {
        type Target = T;
        fn deref(&self) -> &T {
            self.0.as_ref().unwrap()
        }
    }

    impl<T> DerefMut for MutexGuard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            self.0.as_mut().unwrap()
        }
    }

    /// As parking_lot's.
    #[derive(Debug, Default)]
    pub(crate) struct Condvar(shuttle::sync::Condvar);

    /// It never does.
    pub(crate) struct TimedOut;

    impl TimedOut {
        pub(crate) fn timed_out(&self) -> bool {
            false
        }
    }

    impl Condvar {
        pub(crate) fn notify_all(&self) {
            self.0.notify_all();
        }

        pub(crate) fn wait_until<T>(&self, guard: &mut MutexGuard<'_, T>, _: Instant) -> TimedOut {
            let inner = guard.0.take().unwrap();
            guard.0 = Some(self.0.wait(inner).unwrap());
            TimedOut
        }
    }

    /// A task that goes on by itself.
    pub(crate) fn spawn<F>(task: F)
    where
        F: Future<Output: Send + 'static> + Send + 'static,
    {
        drop(shuttle::future::spawn(task));
    }

    /// Runs something under many schedules: at random, and by priorities that change at three
    /// random places, which finds what needs that many changes at the right moment. The
    /// environment variable says how many of each.
    pub(crate) fn check(work: impl Fn() + Send + Sync + 'static) {
        let schedules = std::env::var("MOUNT_SKILLS_SCHEDULES");
        let schedules = schedules.map_or(300, |n| n.parse().unwrap());
        let work = std::sync::Arc::new(work);
        let again = std::sync::Arc::clone(&work);
        shuttle::check_random(move || work(), schedules);
        shuttle::check_pct(move || again(), schedules, 3);
    }
}
