//! The locks, tasks and waits of what is checked for interleavings: `host` and `fuse::parked`.
//!
//! They are those of parking_lot and tokio, but for `scripts/interleavings`, which builds the unit
//! tests with `--cfg shuttle`: then shuttle stands behind them, which runs one thread at a time and
//! lets a seeded scheduler choose the next one at each lock, wait and spawn. Sleeping there is
//! letting others go first, and nothing ever times out, so whoever is not woken waits for ever,
//! which shuttle reports.

#[cfg(not(all(test, shuttle)))]
pub(crate) use parking_lot::{Condvar, Mutex, RwLock};
#[cfg(not(all(test, shuttle)))]
pub(crate) use tokio::{
    spawn,
    task::spawn_blocking,
    time::{sleep, timeout},
};

#[cfg(all(test, shuttle))]
pub(crate) use checked::{Condvar, Mutex, RwLock, check, sleep, spawn_blocking, timeout};
#[cfg(all(test, shuttle))]
pub(crate) use shuttle::future::spawn;

#[cfg(all(test, shuttle))]
mod checked {
    use shuttle::future::{JoinHandle, spawn, yield_now};
    use shuttle::scheduler::{PctScheduler, RandomScheduler};
    use shuttle::{Config, MaxSteps, Runner};
    use std::ops::{Deref, DerefMut};
    use std::time::{Duration, Instant};

    /// As parking_lot's.
    #[derive(Debug, Default)]
    pub(crate) struct Mutex<T>(shuttle::sync::Mutex<T>);

    /// None only while it waits.
    pub(crate) struct MutexGuard<'a, T>(Option<shuttle::sync::MutexGuard<'a, T>>);

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(shuttle::sync::Mutex::new(value))
        }

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

    /// As parking_lot's.
    #[derive(Debug, Default)]
    pub(crate) struct RwLock<T>(shuttle::sync::RwLock<T>);

    impl<T> RwLock<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(shuttle::sync::RwLock::new(value))
        }

        pub(crate) fn read(&self) -> shuttle::sync::RwLockReadGuard<'_, T> {
            self.0.read().unwrap()
        }

        pub(crate) fn write(&self) -> shuttle::sync::RwLockWriteGuard<'_, T> {
            self.0.write().unwrap()
        }
    }

    /// Work that blocks, as one more task.
    pub(crate) fn spawn_blocking<T: Send + 'static>(
        work: impl FnOnce() -> T + Send + 'static,
    ) -> JoinHandle<T> {
        spawn(async move { work() })
    }

    pub(crate) async fn sleep(_: Duration) {
        yield_now().await;
        yield_now().await;
    }

    /// Waits for the end.
    pub(crate) async fn timeout<T>(_: Duration, work: impl Future<Output = T>) -> Result<T, ()> {
        Ok(work.await)
    }

    /// Runs something under many schedules: at random, and by priorities that change at three
    /// random places, which finds what needs that many changes at the right moment. The
    /// environment variable says how many of each.
    pub(crate) fn check(work: impl Fn() + Send + Sync + 'static) {
        let schedules = std::env::var("MOUNT_SKILLS_SCHEDULES");
        let schedules = schedules.map_or(300, |n| n.parse().unwrap());
        let work = std::sync::Arc::new(work);
        let again = std::sync::Arc::clone(&work);
        let config = || {
            let mut config = Config::default();
            config.max_steps = MaxSteps::FailAfter(100_000);
            config.stack_size = 1 << 20;
            config
        };
        let random = RandomScheduler::new(schedules);
        Runner::new(random, config()).run(move || work());
        let priorities = PctScheduler::new(3, schedules);
        Runner::new(priorities, config()).run(move || again());
    }
}
