//! When a server that turned us away may be asked again.
//!
//! A server over HTTP can say "later" (429, or 503 with Retry-After) and "not you" (401, 403).
//! After the former nothing is sent until the time it named has passed; after the latter, said
//! twice running of more than a file, its connection counts as lost, and the growing gaps between
//! tries apply.
//!
//! **Invariant:** no server keeps us away for longer than [`LONGEST`] by one reply.

use parking_lot::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime};
use tokio::time::Instant;

/// The longest pause that one reply can ask for.
const LONGEST: Duration = Duration::from_secs(300);
/// The pause after a "later" that names no time.
const USUAL: Duration = Duration::from_secs(1);
/// Refusals running that are meant for all we ask.
const REFUSALS: u32 = 2;

/// What one server said of being asked.
#[derive(Debug, Default)]
pub(super) struct Pace {
    pause: Mutex<Option<Instant>>,
    refusals: AtomicU32,
}

impl Pace {
    /// Takes note of a reply's status; the pause if it says "later".
    pub(super) fn later(&self, status: u16, retry_after: Option<&str>) -> Option<Duration> {
        let pause = match (status, retry_after) {
            (429, None) => USUAL,
            (429 | 503, Some(text)) => pause(text, SystemTime::now()).min(LONGEST),
            _ => return None,
        };
        let until = Instant::now() + pause;
        let mut kept = self.pause.lock();
        *kept = Some(kept.map_or(until, |before| before.max(until)));
        Some(pause)
    }

    /// For how long nothing may be sent.
    pub(super) fn left(&self) -> Duration {
        let until = *self.pause.lock();
        until.map_or(Duration::ZERO, |t| {
            t.saturating_duration_since(Instant::now())
        })
    }

    /// Waits until something may be sent.
    ///
    /// # Errors
    /// What is left of the pause, at once, if that is longer than `patience`.
    pub(super) async fn pass(&self, patience: Duration) -> Result<(), Duration> {
        let end = Instant::now() + patience;
        loop {
            let left = self.left();
            if left.is_zero() {
                return Ok(());
            }
            if Instant::now() + left > end {
                return Err(left);
            }
            tokio::time::sleep(left).await;
        }
    }

    /// A question that was no read was refused; whether that is meant for all we ask.
    pub(super) fn refused(&self) -> bool {
        self.refusals.fetch_add(1, Ordering::Relaxed) + 1 >= REFUSALS
    }

    /// A question was answered.
    pub(super) fn answered(&self) {
        self.refusals.store(0, Ordering::Relaxed);
    }
}

/// The value of Retry-After: seconds or a date. What is neither is as good as none.
fn pause(text: &str, now: SystemTime) -> Duration {
    let text = text.trim();
    if let Ok(seconds) = text.parse() {
        return Duration::from_secs(seconds);
    }
    match httpdate::parse_http_date(text) {
        Ok(date) => date.duration_since(now).unwrap_or_default(),
        Err(_) => USUAL,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c31_retry_after_is_seconds_or_a_date_and_bounded() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777);
        for (text, seconds) in [
            ("30", 30),
            (" 0 ", 0),
            ("Sun, 06 Nov 1994 08:49:57 GMT", 20),
            ("Sun, 06 Nov 1994 08:49:17 GMT", 0),
            ("", 1),
            ("-5", 1),
            ("soon", 1),
        ] {
            assert_eq!(pause(text, now), Duration::from_secs(seconds), "{text:?}");
        }
        let pace = Pace::default();
        for (status, header, want) in [
            (429, Some("99999999999"), Some(LONGEST)),
            (429, None, Some(USUAL)),
            (503, Some("2"), Some(Duration::from_secs(2))),
            (503, None, None),
            (500, Some("2"), None),
            (401, Some("2"), None),
        ] {
            assert_eq!(pace.later(status, header), want, "{status} {header:?}");
        }
        assert!(
            pace.left() > Duration::from_secs(290),
            "a shorter pause ends no longer one"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn c31_nothing_is_sent_in_a_pause_and_nobody_waits_longer_than_they_may() {
        let pace = Pace::default();
        assert_eq!(pace.pass(Duration::ZERO).await, Ok(()));
        pace.later(429, Some("30"));
        let start = Instant::now();
        assert!(pace.pass(Duration::from_secs(10)).await.is_err());
        assert_eq!(start.elapsed(), Duration::ZERO, "at once");
        assert_eq!(pace.pass(Duration::from_secs(60)).await, Ok(()));
        assert!(start.elapsed() >= Duration::from_secs(30));
        assert_eq!(pace.left(), Duration::ZERO);
    }

    #[test]
    fn c31_only_refusals_running_are_meant_for_all() {
        let pace = Pace::default();
        assert!(!pace.refused());
        pace.answered();
        assert!(!pace.refused() && pace.refused() && pace.refused());
        pace.answered();
        assert!(!pace.refused());
    }
}
