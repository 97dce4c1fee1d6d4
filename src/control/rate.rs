//! A limit on how often something happens. Pure.

use std::time::{Duration, Instant};

/// Lets through so many a second, and as many at once after a pause.
#[derive(Debug)]
pub struct Rate {
    /// One is let through in this time.
    each: Duration,
    /// The longest pause that counts.
    pause: Duration,
    /// Up to which moment the time is used up. It lies in the past after a pause.
    used_until: Option<Instant>,
}

impl Rate {
    /// So many a second.
    pub fn per_second(most: u32) -> Self {
        Self {
            each: Duration::from_secs(1) / most,
            pause: Duration::from_secs(1),
            used_until: None,
        }
    }

    /// Whether one more is let through now.
    pub fn take(&mut self, now: Instant) -> bool {
        let earliest = now.checked_sub(self.pause).unwrap_or(now);
        let used = self.used_until.map_or(earliest, |used| used.max(earliest)) + self.each;
        let is_free = used <= now;
        if is_free {
            self.used_until = Some(used);
        }
        is_free
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_pass_in_each_second_and_no_more_after_a_long_pause() {
        let mut rate = Rate::per_second(50);
        let begin = Instant::now() + Duration::from_secs(3600);
        for pause in [0, 1, 60] {
            let now = begin + Duration::from_secs(pause);
            let passed = (0..100).filter(|_| rate.take(now)).count();
            assert_eq!(passed, 50, "after {pause} s");
        }
        let now = begin + Duration::from_secs(60);
        assert!(!rate.take(now + Duration::from_millis(19)));
        assert!(rate.take(now + Duration::from_millis(20)));
        assert!(!rate.take(now + Duration::from_millis(20)));
    }
}
