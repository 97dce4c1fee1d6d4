//! Delays between attempts: capped, jittered, saturating (INV-9). Only this module names the `backoff` crate.

use std::time::Duration;

use backoff::ExponentialBackoff;
use backoff::backoff::Backoff as _;

/// The growing delay of one retry loop. It doubles from `first` to `most`, each ±25 % at random, and never gives up.
#[derive(Debug)]
pub struct Delays(ExponentialBackoff);

impl Delays {
    /// Delays of which the first is about `first`, and none longer than `most` and a quarter.
    pub fn new(first: Duration, most: Duration) -> Self {
        Self(ExponentialBackoff {
            current_interval: first,
            initial_interval: first,
            randomization_factor: 0.25,
            multiplier: 2.0,
            max_interval: most,
            max_elapsed_time: None,
            ..ExponentialBackoff::default()
        })
    }

    /// Delays for calls to etcd, 100 ms to 5 s: short after a leader change, long in an outage.
    pub fn etcd() -> Self {
        Self::new(Duration::from_millis(100), Duration::from_secs(5))
    }

    /// The delay before the next attempt.
    pub fn next_delay(&mut self) -> Duration {
        // The crate returns None only after `max_elapsed_time`, which is not set.
        self.0.next_backoff().unwrap_or(self.0.max_interval)
    }

    /// Waits for the delay before the next attempt.
    pub async fn wait(&mut self) {
        tokio::time::sleep(self.next_delay()).await;
    }

    /// Waits before the next run of something that runs again and again. A run that lasted longer than `calm` was a success:
    /// the next follows at once. After a shorter one comes a delay, so that runs which end at once make no hot loop.
    pub async fn rest_after(&mut self, lasted: Duration, calm: Duration) {
        if lasted > calm {
            self.reset();
        } else {
            self.wait().await;
        }
    }

    /// Starts again from the first delay, after a success.
    pub fn reset(&mut self) {
        self.0.reset();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
