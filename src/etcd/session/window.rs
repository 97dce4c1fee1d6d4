//! The window in which the owner of a lease may act, and its arithmetic (INV-2).

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};

use tokio::sync::watch;

use crate::clock;
use crate::mutation::{self, Guard};
use crate::retry::Delays;

/// The times of one lease, all computed from the TTL that etcd granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseTimes {
    granted_ttl: Duration,
    /// From the local deadline to the earliest instant at which etcd may end the lease.
    pub margin: Duration,
    /// From an answered keep-alive to the next.
    pub interval: Duration,
    /// The limit on one keep-alive and its answer, the connection included.
    pub answer_limit: Duration,
    /// From a failed keep-alive to the next, at first.
    pub retry: Duration,
}

/// The granted TTL is too short to act in.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("a lease of {0:?} is too short: at least {LEAST_TTL:?} is needed")]
pub struct TimesError(Duration);

/// With less, one slow round trip ends a term.
const LEAST_TTL: Duration = Duration::from_secs(1);

/// Before etcd 3.5.13 a raft leader that is cut off answers keep-alives for an election timeout, 1 s by default (etcd issue
/// 15247).
const LEAST_MARGIN: Duration = Duration::from_secs(1);

impl LeaseTimes {
    /// Computes the times for a lease of this TTL.
    ///
    /// # Errors
    /// [`TimesError`] below one second.
    pub fn for_granted(granted_ttl: Duration) -> Result<Self, TimesError> {
        if granted_ttl < LEAST_TTL {
            return Err(TimesError(granted_ttl));
        }
        // One lost keep-alive must not end the session: interval + answer_limit + retry < TTL − margin. A second one may be
        // lost too, whose retry is twice as late, and each a quarter later at random, but only if the answer before came
        // within TTL/25: 1/25 + 1/6 + (1/5 + 5/80) + (1/5 + 10/80) < 4/5. With a TTL below 5 s, whose margin is larger, the
        // second one ends the session.
        Ok(Self {
            granted_ttl,
            margin: (granted_ttl / 5).max(LEAST_MARGIN.min(granted_ttl / 3)),
            interval: granted_ttl / 6,
            answer_limit: granted_ttl / 5,
            retry: granted_ttl / 20,
        })
    }

    /// The delays between failed keep-alives. At random, since what ended one connection has ended those of others as well.
    pub fn retries(&self) -> Delays {
        Delays::new(self.retry, self.answer_limit)
    }

    /// Until when the owner may act if a keep-alive sent at `sent` was answered. etcd counts the TTL from a later instant.
    /// The arrival of the answer does not count: the answer may have been under way for long.
    pub fn deadline(&self, sent: Instant) -> Instant {
        if mutation::without(Guard::Window) {
            return sent + 1000 * self.granted_ttl;
        }
        sent + self.granted_ttl - self.margin
    }
}

/// Until when the owner of a session may act. A window that is closed, by its deadline or by [`Window::close`], stays
/// closed.
///
/// It uses a monotonic clock, so that steps of the wall clock do not move it. The clock goes on while the machine is suspended.
#[derive(Clone, Debug)]
pub struct Window(Arc<watch::Sender<Option<Instant>>>);

impl Window {
    /// A window that is open until `deadline`.
    pub fn open_until(deadline: Instant) -> Self {
        Self(Arc::new(watch::Sender::new(Some(deadline))))
    }

    /// Whether a call in the session's name may start now.
    pub fn is_open(&self) -> bool {
        !self.remaining().is_zero()
    }

    /// How long such a call may take; zero once the window is closed.
    pub fn remaining(&self) -> Duration {
        self.remaining_at(clock::now())
    }

    fn remaining_at(&self, now: Instant) -> Duration {
        self.0
            .borrow()
            .map_or(Duration::ZERO, |deadline| deadline.saturating_duration_since(now))
    }

    /// Closes the window for good.
    pub fn close(&self) {
        if mutation::without(Guard::Join) {
            return;
        }
        self.0.send_replace(None);
    }

    /// Resolves when the window is closed. Polled after the deadline it is ready at once, even before the timer fires: after
    /// a pause of the process every timer is overdue at the same moment, a retry's delay as well.
    pub async fn closed(&self) {
        let mut waiting = pin!(self.wait_until_closed());
        poll_fn(|context| match self.is_open() {
            true => waiting.as_mut().poll(context),
            false => Poll::Ready(()),
        })
        .await;
    }

    async fn wait_until_closed(&self) {
        let mut deadlines = self.0.subscribe();
        loop {
            let deadline = *deadlines.borrow_and_update();
            let Some(deadline) = deadline else { return };
            tokio::select! {
                () = clock::passed(deadline) => return,
                _ = deadlines.changed() => {}
            }
        }
    }

    /// Moves the deadline. False if the deadline had passed: then the window is closed for good.
    pub(super) fn extend(&self, now: Instant, deadline: Instant) -> bool {
        let mut open = false;
        self.0.send_modify(|current| {
            open = current.is_some_and(|current| current > now);
            *current = if open {
                (*current).max(Some(deadline))
            } else {
                None
            };
        });
        open
    }
}

/// Shows that the runtime that does the work is alive. A task on that runtime beats it, other threads read its age.
#[derive(Clone, Debug)]
pub struct Pulse {
    start: Instant,
    last_beat_millis: Arc<AtomicU64>,
}

impl Default for Pulse {
    fn default() -> Self {
        Self {
            start: Instant::now(),
            last_beat_millis: Arc::default(),
        }
    }
}

impl Pulse {
    /// The interval between two beats.
    pub const INTERVAL: Duration = Duration::from_millis(250);

    /// Records that the runtime is alive now.
    pub fn beat(&self) {
        let millis = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last_beat_millis.store(millis, Ordering::Relaxed);
    }

    /// Beats until the future is dropped.
    pub async fn beat_forever(self) {
        loop {
            self.beat();
            tokio::time::sleep(Self::INTERVAL).await;
        }
    }

    /// The time since the last beat.
    pub fn age(&self) -> Duration {
        let last = Duration::from_millis(self.last_beat_millis.load(Ordering::Relaxed));
        self.start.elapsed().saturating_sub(last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_lost_keep_alive_never_ends_a_session() {
        for seconds in 1..=3600 {
            let ttl = Duration::from_secs(seconds);
            let times = LeaseTimes::for_granted(ttl).unwrap();
            assert!(
                times.interval + times.answer_limit + times.retry < ttl - times.margin,
                "{ttl:?}"
            );
        }
        assert!(LeaseTimes::for_granted(Duration::from_millis(999)).is_err());
    }

    #[test]
    fn the_margin_of_a_short_lease_covers_an_election_timeout_of_etcd_where_there_is_room() {
        for (seconds, millis) in [(1, 333), (2, 666), (3, 1000), (4, 1000), (5, 1000), (10, 2000)] {
            let times = LeaseTimes::for_granted(Duration::from_secs(seconds)).unwrap();
            assert_eq!(times.margin.as_millis(), millis, "{seconds} s");
        }
    }

    #[test]
    fn the_deadline_counts_from_sending_and_lies_before_etcds_own() {
        let times = LeaseTimes::for_granted(Duration::from_secs(10)).unwrap();
        let sent = Instant::now();
        assert_eq!(times.deadline(sent), sent + Duration::from_secs(8));
    }

    #[test]
    fn a_window_whose_deadline_passed_is_never_opened_again() {
        let start = Instant::now();
        let second = Duration::from_secs(1);
        let window = Window::open_until(start + second);
        assert!(window.extend(start, start + 2 * second));
        assert_eq!(window.remaining_at(start), 2 * second);
        assert!(
            !window.extend(start + 3 * second, start + 9 * second),
            "the answer came too late"
        );
        assert!(!window.extend(start, start + 9 * second), "closed for good");
        assert_eq!(window.remaining_at(start), Duration::ZERO);
    }

    #[test]
    fn an_answer_out_of_order_never_shortens_the_window() {
        let start = Instant::now();
        let second = Duration::from_secs(1);
        let window = Window::open_until(start + 5 * second);
        assert!(window.extend(start, start + 3 * second));
        assert_eq!(window.remaining_at(start), 5 * second);
    }

    #[tokio::test]
    async fn closing_wakes_a_waiter() {
        let window = Window::open_until(Instant::now() + Duration::from_secs(3600));
        let waiting = window.clone();
        let ((), ()) = tokio::join!(waiting.closed(), async { window.close() });
        assert!(!window.is_open());
    }

    #[tokio::test]
    async fn the_window_closes_by_itself_at_its_deadline() {
        let window = Window::open_until(Instant::now() + Duration::from_millis(20));
        window.closed().await;
        assert!(!window.is_open());
    }

    #[tokio::test]
    async fn a_waiter_sees_the_deadline_before_any_timer_fires() {
        let deadline = Instant::now() + Duration::from_secs(1);
        let window = Window::open_until(deadline);
        let mut closed = pin!(window.closed());
        let mut poll = || {
            closed
                .as_mut()
                .poll(&mut std::task::Context::from_waker(std::task::Waker::noop()))
        };
        assert!(poll().is_pending());
        // Like a pause, this keeps the runtime from its timers.
        std::thread::sleep(deadline.saturating_duration_since(Instant::now()));
        assert!(poll().is_ready());
    }
}
