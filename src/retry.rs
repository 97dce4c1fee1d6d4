//! Delays between attempts: capped, jittered, saturating (INV-9). The only module that names the `backoff` crate.

use std::time::Duration;

use backoff::ExponentialBackoff;
use backoff::backoff::Backoff as _;

/// The growing delay of one retry loop. Doubles from `first` to `most`, each ±25 % at random; never gives up.
#[derive(Debug)]
pub struct Delays(ExponentialBackoff);

impl Delays {
    /// The first delay is about `first`, none is longer than `most` and a quarter.
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

    /// For calls to etcd: 100 ms to 5 s, quick after a leader change, calm in an outage.
    pub fn etcd() -> Self {
        Self::new(Duration::from_millis(100), Duration::from_secs(5))
    }

    /// How long to wait before the next attempt.
    pub fn next_delay(&mut self) -> Duration {
        // `max_elapsed_time` is None, so the crate never answers None; its cap stands in all the same.
        self.0.next_backoff().unwrap_or(self.0.max_interval)
    }

    /// Waits before the next attempt.
    pub async fn wait(&mut self) {
        tokio::time::sleep(self.next_delay()).await;
    }

    /// Between two runs of what is to go on and on: nothing after one that lasted longer than `calm`, which was a success,
    /// else a delay, so that what ends as soon as it begins does not make its loop hot.
    pub async fn rest_after(&mut self, lasted: Duration, calm: Duration) {
        if lasted > calm {
            self.reset();
        } else {
            self.wait().await;
        }
    }

    /// After a success: the next delay is the first again.
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
