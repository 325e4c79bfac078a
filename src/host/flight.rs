//! One fetch at a time for each key, however many readers wait for it (HR-119).
//!
//! The fetch runs as its own task: a reader that leaves does not end it, and what it brings may
//! still serve the others and the cache.

use crate::sync::{Mutex, spawn};
use std::collections::HashMap;
use std::future::Future;
use std::hash::Hash;
use std::sync::Arc;
use tokio::sync::watch;

#[derive(Debug)]
pub(super) struct Flights<K, T> {
    under_way: Arc<Mutex<HashMap<K, watch::Receiver<Option<T>>>>>,
}

impl<K, T> Flights<K, T>
where
    K: Eq + Hash + Clone + Send + 'static,
    T: Clone + Send + Sync + 'static,
{
    pub(super) fn new() -> Self {
        Self {
            under_way: Arc::default(),
        }
    }

    /// The result of the fetch for this key, started now unless one is under way; none if the
    /// fetch ended without a result.
    pub(super) async fn join<F>(&self, key: K, fetch: impl FnOnce() -> F) -> Option<T>
    where
        F: Future<Output = T> + Send + 'static,
    {
        let mut receiver = {
            let mut under_way = self.under_way.lock();
            match under_way.get(&key) {
                Some(receiver) => receiver.clone(),
                None => {
                    let (sender, receiver) = watch::channel(None);
                    under_way.insert(key.clone(), receiver.clone());
                    let landed = Landed {
                        key,
                        under_way: Arc::clone(&self.under_way),
                    };
                    let fetch = fetch();
                    spawn(async move {
                        let result = fetch.await;
                        drop(landed);
                        sender.send_replace(Some(result));
                    });
                    receiver
                }
            }
        };
        let result = receiver.wait_for(Option::is_some).await.ok()?;
        result.clone()
    }
}

#[cfg(all(test, shuttle))]
impl<K, T> Flights<K, T> {
    pub(super) fn under_way(&self) -> usize {
        self.under_way.lock().len()
    }
}

/// Takes a flight off the list, also when its task panics.
struct Landed<K: Eq + Hash, T> {
    key: K,
    under_way: Arc<Mutex<HashMap<K, watch::Receiver<Option<T>>>>>,
}

impl<K: Eq + Hash, T> Drop for Landed<K, T> {
    fn drop(&mut self) {
        self.under_way.lock().remove(&self.key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[tokio::test]
    async fn hr_119_many_readers_one_fetch() {
        let flights = Flights::<u8, usize>::new();
        let started = Arc::new(AtomicUsize::new(0));
        let gate = Arc::new(tokio::sync::Semaphore::new(0));
        let readers = (0..100).map(|_| {
            let (started, gate) = (Arc::clone(&started), Arc::clone(&gate));
            flights.join(7, || async move {
                let n = started.fetch_add(1, Ordering::SeqCst);
                let _ = gate.acquire().await;
                n
            })
        });
        let all = futures_util::future::join_all(readers);
        // On one thread every reader has joined before the gate opens.
        let (results, ()) = tokio::join!(all, async { gate.add_permits(1) });
        assert_eq!(results, vec![Some(0); 100]);
        assert_eq!(started.load(Ordering::SeqCst), 1);
        assert!(flights.under_way.lock().is_empty());
        assert_eq!(
            flights.join(7, || async { 42 }).await,
            Some(42),
            "the next one is a new fetch"
        );
    }

    #[tokio::test]
    async fn a_fetch_that_panics_wakes_its_readers() {
        let flights = Flights::<u8, u8>::new();
        assert_eq!(
            flights.join(1, || async { panic!("on purpose") }).await,
            None
        );
        assert!(flights.under_way.lock().is_empty());
    }
}

/// See [`crate::sync`].
#[cfg(all(test, shuttle))]
mod interleavings {
    use super::*;
    use crate::sync::check;
    use shuttle::future::{block_on, yield_now};
    use shuttle::sync::atomic::{AtomicUsize, Ordering};
    use shuttle::thread;

    const READERS: usize = 3;

    /// Readers of two keys, one of whom leaves early: one fetch at a time for each key, each reader
    /// gets what a fetch of its key brought, all end, and nothing is left.
    #[test]
    fn hr_119_one_fetch_for_all_that_wait_and_nobody_is_forgotten() {
        check(|| {
            let flights = Arc::new(Flights::<usize, usize>::new());
            let under_way = Arc::<[AtomicUsize; 2]>::default();
            let read = |n: usize| {
                let (key, under_way) = (n % 2, Arc::clone(&under_way));
                let flights = Arc::clone(&flights);
                async move {
                    let fetch = move || async move {
                        let others = under_way[key].fetch_add(1, Ordering::SeqCst);
                        assert_eq!(others, 0, "two fetches of one key");
                        yield_now().await;
                        under_way[key].fetch_sub(1, Ordering::SeqCst);
                        key
                    };
                    assert_eq!(flights.join(key, fetch).await, Some(key));
                }
            };
            let mut threads: Vec<_> = (0..READERS)
                .map(|n| {
                    let read = read(n);
                    thread::spawn(move || block_on(read))
                })
                .collect();
            let leaver = read(0);
            threads.push(thread::spawn(move || {
                let _ = block_on(async { futures_util::poll!(std::pin::pin!(leaver)) });
            }));
            threads.into_iter().for_each(|t| t.join().unwrap());
            // A fetch that nobody waits for any more ends by itself.
            while !flights.under_way.lock().is_empty() {
                thread::yield_now();
            }
        });
    }
}
