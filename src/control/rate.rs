//! Limits on how often something happens. Pure.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Lets through so many in a time, and as many at once after a pause.
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
    /// So many in this time.
    pub fn new(most: u32, time: Duration) -> Self {
        Self {
            each: time / most,
            pause: time,
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

/// After this many others those that rest are forgotten.
const MANY: usize = 1024;

/// A limit for each of those that share it, by uid.
#[derive(Debug)]
pub struct RateByUid {
    most: u32,
    time: Duration,
    rates: HashMap<Box<str>, Rate>,
}

impl RateByUid {
    /// So many in this time, for each.
    pub fn new(most: u32, time: Duration) -> Self {
        Self {
            most,
            time,
            rates: HashMap::new(),
        }
    }

    /// Whether one more of this uid is let through now.
    pub fn take(&mut self, uid: &str, now: Instant) -> bool {
        if self.rates.len() >= MANY {
            self.rates
                .retain(|_, rate| rate.used_until.is_some_and(|used| used + rate.pause > now));
        }
        let (most, time) = (self.most, self.time);
        let rate = self.rates.entry(uid.into());
        rate.or_insert_with(|| Rate::new(most, time)).take(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_pass_in_each_second_and_no_more_after_a_long_pause() {
        let mut rate = Rate::new(50, Duration::from_secs(1));
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

    #[test]
    fn each_has_a_limit_of_its_own_and_those_that_rest_are_forgotten() {
        let mut rates = RateByUid::new(2, Duration::from_secs(10));
        let now = Instant::now() + Duration::from_secs(3600);
        let passed = |rates: &mut RateByUid, uid| (0..5).filter(|_| rates.take(uid, now)).count();
        assert_eq!((passed(&mut rates, "a"), passed(&mut rates, "b")), (2, 2));
        for number in 0..MANY {
            rates.take(&number.to_string(), now);
        }
        assert!(!rates.take("a", now), "it is not forgotten while it is limited");
        let later = now + Duration::from_secs(60);
        assert!(rates.take("c", later));
        assert_eq!(rates.rates.len(), 1);
    }
}
