//! Delays between attempts: capped, jittered, saturating (INV-9). The only module that names the `backoff` crate.

use std::time::Duration;

use backoff::ExponentialBackoff;
use backoff::backoff::Backoff as _;
use tokio::time::Instant;

use crate::mutation::{self, Guard};

mod keyed;

pub use keyed::Backoff;

/// How the delays of one kind of failure grow: from `first`, doubled with every failure in a row, up to `most`, and each
/// changed at random so that what failed together does not come back together.
///
/// Policies compare by their first delay: the least of several is the one to retry soonest under.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Policy {
    first: Duration,
    most: Duration,
    jitter: Jitter,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Jitter {
    /// Up to a quarter longer or shorter, the cap included.
    Around,
    /// Up to a quarter longer, and never longer than the cap.
    Longer,
}

impl Policy {
    /// For calls to etcd: 100 ms to 5 s, quick after a leader change, calm in an outage.
    pub const ETCD: Self = Self::new(Duration::from_millis(100), Duration::from_secs(5));

    /// For what etcd refuses until someone changes something, such as a right: 100 ms to a minute.
    pub const REFUSED: Self = Self::new(Duration::from_millis(100), Duration::from_secs(60));

    /// Each delay is up to a quarter longer or shorter at random; so none is longer than `most` and a quarter.
    pub const fn new(first: Duration, most: Duration) -> Self {
        Self {
            first,
            most,
            jitter: Jitter::Around,
        }
    }

    /// Each delay is up to a quarter longer at random, never shorter; none is longer than `most`.
    pub const fn never_shorter(first: Duration, most: Duration) -> Self {
        Self {
            first,
            most,
            jitter: Jitter::Longer,
        }
    }

    /// The delay after this many failures in a row; the first failure is number 1.
    pub fn delay(self, failures: u32) -> Duration {
        let mut delays = Delays::under(self);
        // 64 doublings bring any delay in use to its cap, where it stays.
        for _ in 1..failures.min(64) {
            delays.next_delay();
        }
        delays.next_delay()
    }
}

/// The growing delay of one retry loop, which never gives up.
#[derive(Debug)]
pub struct Delays {
    backoff: ExponentialBackoff,
    policy: Policy,
}

impl Delays {
    /// Delays under [`Policy::new`].
    pub fn new(first: Duration, most: Duration) -> Self {
        Self::under(Policy::new(first, most))
    }

    /// Delays under [`Policy::ETCD`].
    pub fn etcd() -> Self {
        Self::under(Policy::ETCD)
    }

    /// Delays that grow as the policy says.
    pub fn under(policy: Policy) -> Self {
        let first = policy.first.min(policy.most);
        let backoff = ExponentialBackoff {
            current_interval: first,
            initial_interval: first,
            randomization_factor: 0.25,
            multiplier: 2.0,
            max_interval: policy.most,
            max_elapsed_time: None,
            ..ExponentialBackoff::default()
        };
        Self { backoff, policy }
    }

    /// How long to wait before the next attempt.
    pub fn next_delay(&mut self) -> Duration {
        if mutation::without(Guard::Backoff) {
            return Duration::ZERO;
        }
        let base = self.backoff.current_interval;
        // `max_elapsed_time` is None, so the crate never returns None; its cap stands in all the same.
        let around = self.backoff.next_backoff().unwrap_or(self.policy.most);
        match self.policy.jitter {
            Jitter::Around => around,
            Jitter::Longer => (base + base.abs_diff(around)).min(self.policy.most),
        }
    }

    /// Waits before the next attempt.
    pub async fn wait(&mut self) {
        tokio::time::sleep(self.next_delay()).await;
    }

    /// Waits between two runs of a loop that should run on and on. A run longer than `calm` was a success: the next
    /// follows at once. A shorter one is followed by a delay, so that a run that ends as soon as it begins does not make
    /// its loop hot.
    pub async fn rest_after(&mut self, lasted: Duration, calm: Duration) {
        if lasted > calm {
            self.reset();
        } else {
            self.wait().await;
        }
    }

    /// After a success: the next delay is the first again.
    pub fn reset(&mut self) {
        self.backoff.reset();
    }
}

/// A time from zero to `most`, at random: what fails for all processes at once is tried again at different moments.
pub fn spread(most: Duration) -> Duration {
    let around = Policy::new(most * 2, most * 2);
    around.delay(1).saturating_sub(most * 3 / 2)
}

/// A number from 0 to 1, at random.
pub fn random() -> f64 {
    spread(Duration::from_secs(1)).as_secs_f64().min(1.0)
}

/// Waits until that instant; for ever where there is none.
pub async fn sleep_until(at: Option<impl Into<Instant>>) {
    match at {
        Some(at) => tokio::time::sleep_until(at.into()).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const FIRST: Duration = Duration::from_millis(200);
    const MOST: Duration = Duration::from_secs(600);

    #[test]
    fn delays_grow_from_the_first_to_the_cap_and_never_beyond_its_jitter() {
        let (first, most) = (Duration::from_millis(100), Duration::from_secs(5));
        let mut delays = Delays::new(first, most);
        let early = delays.next_delay();
        assert!(
            early >= first.mul_f64(0.75) && early <= first.mul_f64(1.25),
            "{early:?}"
        );
        for attempt in 0..10_000 {
            let delay = delays.next_delay();
            assert!(delay >= first.mul_f64(0.75), "attempt {attempt}: {delay:?}");
            assert!(delay <= most.mul_f64(1.25), "attempt {attempt}: {delay:?}");
        }
        delays.reset();
        assert!(delays.next_delay() <= first.mul_f64(1.25));
    }

    #[test]
    fn delays_that_are_never_shorter_double_with_up_to_a_quarter_more_until_the_cap() {
        let policy = Policy::never_shorter(FIRST, MOST);
        let mut longest = Duration::ZERO;
        for _ in 0..1_000 {
            for (failures, base) in [(1, FIRST), (2, FIRST * 2), (5, FIRST * 16)] {
                let delay = policy.delay(failures);
                assert!(delay >= base, "{failures}: {delay:?}");
                assert!(
                    delay <= base.mul_f64(1.25) + Duration::from_nanos(1),
                    "{failures}: {delay:?}"
                );
            }
            longest = longest.max(policy.delay(1));
        }
        assert!(longest > FIRST.mul_f64(1.2), "{longest:?} of up to 250 ms");
    }

    #[test]
    fn the_largest_number_of_failures_is_followed_by_the_cap() {
        let around = Policy::new(FIRST, MOST);
        for failures in [13, 31, 32, 33, 56, 63, 64, 65, u32::MAX - 1, u32::MAX] {
            assert_eq!(
                Policy::never_shorter(FIRST, MOST).delay(failures),
                MOST,
                "{failures}"
            );
            assert!(around.delay(failures) >= MOST.mul_f64(0.75), "{failures}");
        }
        let first_beyond_the_cap = MOST * 2;
        assert_eq!(Policy::never_shorter(first_beyond_the_cap, MOST).delay(1), MOST);
        let around = Policy::new(first_beyond_the_cap, MOST).delay(1);
        assert!(around <= MOST.mul_f64(1.25), "{around:?}");
    }

    #[test]
    fn a_spread_reaches_from_nothing_to_its_most() {
        let times: Vec<Duration> = (0..1_000).map(|_| spread(FIRST)).collect();
        assert!(times.iter().all(|time| *time <= FIRST + Duration::from_nanos(1)));
        assert!(times.iter().any(|time| *time < FIRST / 10));
        assert!(times.iter().any(|time| *time > FIRST * 9 / 10));
    }

    proptest! {
        #[test]
        fn every_delay_is_within_its_jitter_of_one_that_doubles(failures in 1..40_u32) {
            let base = FIRST.saturating_mul(1 << (failures - 1).min(20)).min(MOST);
            let around = Policy::new(FIRST, MOST).delay(failures);
            prop_assert!(around >= base.mul_f64(0.75) && around <= base.mul_f64(1.25) + Duration::from_nanos(1));
            let longer = Policy::never_shorter(FIRST, MOST).delay(failures);
            prop_assert!(longer >= base && longer <= MOST);
        }
    }

    #[tokio::test]
    async fn a_run_that_ends_as_soon_as_it_begins_is_followed_by_a_rest_and_a_long_one_is_not() {
        let (first, calm) = (Duration::from_millis(40), Duration::from_secs(1));
        let mut delays = Delays::new(first, Duration::from_secs(60));
        let begun = Instant::now();
        delays.rest_after(Duration::ZERO, calm).await;
        delays.rest_after(calm, calm).await;
        assert!(
            begun.elapsed() >= first.mul_f64(0.75 * 3.0),
            "{:?}",
            begun.elapsed()
        );
        delays.rest_after(calm * 2, calm).await;
        let next = delays.next_delay();
        assert!(next <= first.mul_f64(1.25), "the first again: {next:?}");
    }
}
