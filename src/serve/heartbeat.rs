//! The sign of life behind `/livez`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::Check;

/// A time stamp that a task on the work runtime renews. While that runtime polls its tasks the stamp is young;
/// when it is wedged the stamp ages, and the probe's thread sees it. Clones share the stamp.
#[derive(Clone, Debug)]
pub struct Heartbeat {
    started: Instant,
    /// Milliseconds from `started` to the last beat.
    last: Arc<AtomicU64>,
}

impl Heartbeat {
    /// Time between beats.
    pub const PERIOD: Duration = Duration::from_secs(1);
    /// Age from which `/livez` fails: ten beats missed in a row are a wedged runtime, not a busy machine.
    pub const LIMIT: Duration = Duration::from_secs(10);

    /// Beats for the first time.
    #[allow(
        clippy::new_without_default,
        reason = "it reads the clock, which a default should not"
    )]
    pub fn new() -> Self {
        Self {
            started: Instant::now(),
            last: Arc::default(),
        }
    }

    /// Beats every [`PERIOD`](Self::PERIOD); runs on the runtime that is watched, until it is dropped.
    pub async fn run(self) {
        let mut ticks = tokio::time::interval(Self::PERIOD);
        loop {
            ticks.tick().await;
            self.beat(Instant::now());
        }
    }

    fn beat(&self, now: Instant) {
        let since = now.saturating_duration_since(self.started).as_millis();
        // u64 milliseconds last for half a billion years.
        self.last
            .store(u64::try_from(since).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// The check that belongs on `/livez`.
    pub fn check(&self) -> Check {
        self.check_at(Instant::now())
    }

    fn check_at(&self, now: Instant) -> Check {
        let last = Duration::from_millis(self.last.load(Ordering::Relaxed));
        let age = now.saturating_duration_since(self.started).saturating_sub(last);
        if age < Self::LIMIT {
            return Check::passed("heartbeat");
        }
        let reason = format!(
            "no task of the work runtime has run for {:.1} s (limit {} s)",
            age.as_secs_f64(),
            Self::LIMIT.as_secs()
        );
        Check::failed("heartbeat", reason)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_heartbeat_counts_from_its_last_beat() {
        let heartbeat = Heartbeat::new();
        let at = |seconds: f64| heartbeat.started + Duration::from_secs_f64(seconds);
        assert!(heartbeat.check_at(at(9.9)).ok, "a new one counts as a beat");
        assert!(!heartbeat.check_at(at(10.0)).ok);

        heartbeat.beat(at(60.0));
        assert!(heartbeat.check_at(at(59.0)).ok, "a clock read before the beat");
        assert!(heartbeat.check_at(at(69.9)).ok);
        let failed = heartbeat.clone().check_at(at(72.5));
        assert_eq!(
            failed.detail,
            "no task of the work runtime has run for 12.5 s (limit 10 s)"
        );
    }

    #[tokio::test]
    async fn a_running_heartbeat_keeps_beating() {
        let heartbeat = Heartbeat::new();
        let mut tasks = tokio::task::JoinSet::new();
        tasks.spawn(heartbeat.clone().run());
        for beat in ["the first", "the next"] {
            heartbeat.last.store(u64::MAX, Ordering::Relaxed);
            let beaten = async {
                while heartbeat.last.load(Ordering::Relaxed) == u64::MAX {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            };
            let limit = Heartbeat::PERIOD * 10;
            assert!(
                tokio::time::timeout(limit, beaten).await.is_ok(),
                "{beat} is missing"
            );
        }
        tasks.shutdown().await;
    }
}
