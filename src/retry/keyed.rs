//! Backoff of many objects in one loop.

use std::collections::{BTreeMap, BTreeSet};

use tokio::time::Instant;

use super::{Policy, sleep_until};

/// Which objects failed, how often in a row, and until when each rests.
///
/// An object rests from its failure until [`Backoff::next_due`] returns it, or until a change wakes it. Its failures count
/// on until it succeeds, so that one that is woken and fails again rests longer than before. Nothing is kept of an object
/// that did not fail since it last succeeded.
#[derive(Debug)]
pub struct Backoff<K> {
    failed: BTreeMap<K, Failed>,
    /// What rests, by the end of its rest.
    due: BTreeSet<(Instant, K)>,
}

#[derive(Debug, Default)]
struct Failed {
    in_a_row: u32,
    /// `None` once its rest is over.
    until: Option<Instant>,
}

impl<K> Default for Backoff<K> {
    fn default() -> Self {
        Self {
            failed: BTreeMap::new(),
            due: BTreeSet::new(),
        }
    }
}

impl<K: Clone + Ord> Backoff<K> {
    /// An object failed once more: it rests as long as the policy says after that many failures in a row. Policies may
    /// differ from failure to failure; they share the count.
    pub fn failed(&mut self, key: K, policy: Policy) {
        self.wake(&key);
        let failed = self.failed.entry(key.clone()).or_default();
        failed.in_a_row = failed.in_a_row.saturating_add(1);
        let until = Instant::now() + policy.delay(failed.in_a_row);
        failed.until = Some(until);
        self.due.insert((until, key));
    }

    /// An object succeeded, or is no longer wanted: it does not rest, and its next failure is the first again.
    pub fn succeeded(&mut self, key: &K) {
        self.wake(key);
        self.failed.remove(key);
    }

    /// Ends the rest of an object that may succeed now, because something changed.
    pub fn wake(&mut self, key: &K) {
        if let Some(failed) = self.failed.get_mut(key)
            && let Some(until) = failed.until.take()
        {
            self.due.remove(&(until, key.clone()));
        }
    }

    /// Ends every rest.
    pub fn wake_all(&mut self) {
        self.due.clear();
        for failed in self.failed.values_mut() {
            failed.until = None;
        }
    }

    /// How often an object failed since it last succeeded.
    pub fn failures(&self, key: &K) -> u32 {
        self.failed.get(key).map_or(0, |failed| failed.in_a_row)
    }

    /// Whether an object rests.
    pub fn is_resting(&self, key: &K) -> bool {
        self.failed.get(key).is_some_and(|failed| failed.until.is_some())
    }

    /// What rests, the soonest due first.
    pub fn resting(&self) -> impl Iterator<Item = &K> {
        self.due.iter().map(|(_, key)| key)
    }

    /// When the next rest ends; `None` while nothing rests.
    pub fn due_at(&self) -> Option<Instant> {
        self.due.first().map(|(until, _)| *until)
    }

    /// Waits for the end of the next rest and returns every object whose rest is over; waits for ever while nothing
    /// rests. Safe to cancel.
    pub async fn next_due(&mut self) -> Vec<K> {
        sleep_until(self.due_at()).await;
        let now = Instant::now();
        let mut over = Vec::new();
        while let Some((until, key)) = self.due.pop_first() {
            if until > now {
                self.due.insert((until, key));
                break;
            }
            if let Some(failed) = self.failed.get_mut(&key) {
                failed.until = None;
            }
            over.push(key);
        }
        over
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const SHORT: Policy = Policy::never_shorter(Duration::from_millis(20), Duration::from_secs(60));
    const LONG: Policy = Policy::never_shorter(Duration::from_secs(20), Duration::from_secs(60));

    /// How long an object still rests.
    fn rest(backoff: &Backoff<&str>, key: &str) -> Duration {
        let until = backoff.due.iter().find(|(_, resting)| *resting == key);
        until.map_or(Duration::ZERO, |(until, _)| {
            until.saturating_duration_since(Instant::now())
        })
    }

    #[tokio::test]
    async fn what_failed_rests_until_it_is_due_and_longer_after_every_failure() {
        let mut backoff = Backoff::default();
        for (failures, least) in [(1, 20), (2, 40), (3, 80)] {
            let begun = Instant::now();
            backoff.failed("a", SHORT);
            assert!(backoff.is_resting(&"a"));
            assert_eq!(backoff.failures(&"a"), failures);
            assert_eq!(backoff.next_due().await, ["a"]);
            let least = Duration::from_millis(least);
            // The clock of the runtime counts whole milliseconds.
            assert!(
                begun.elapsed() + Duration::from_millis(2) >= least,
                "{:?}",
                begun.elapsed()
            );
            assert!(!backoff.is_resting(&"a"));
            assert_eq!(backoff.resting().count(), 0);
        }
        backoff.succeeded(&"a");
        assert_eq!(backoff.failures(&"a"), 0);
        backoff.failed("a", LONG);
        assert!(rest(&backoff, "a") <= Duration::from_secs(25), "the first again");
    }

    #[tokio::test]
    async fn each_object_rests_by_itself_and_those_that_are_due_come_together() {
        let mut backoff = Backoff::default();
        backoff.failed("late", LONG);
        backoff.failed("a", SHORT);
        backoff.failed("b", SHORT);
        std::thread::sleep(Duration::from_millis(30));
        let mut due = backoff.next_due().await;
        due.sort_unstable();
        assert_eq!(due, ["a", "b"]);
        assert_eq!(backoff.resting().collect::<Vec<_>>(), [&"late"]);
        backoff.failed("a", SHORT);
        assert_eq!(backoff.failures(&"b"), 1);
        assert_eq!(
            backoff.resting().collect::<Vec<_>>(),
            [&"a", &"late"],
            "by their ends"
        );
    }

    #[test]
    fn a_change_ends_a_rest_and_leaves_the_count() {
        let mut backoff = Backoff::default();
        backoff.failed("a", LONG);
        backoff.failed("b", LONG);
        backoff.wake(&"a");
        assert!(!backoff.is_resting(&"a") && backoff.is_resting(&"b"));
        backoff.failed("a", LONG);
        assert!(
            rest(&backoff, "a") > Duration::from_secs(39),
            "{:?}",
            rest(&backoff, "a")
        );
        backoff.wake_all();
        assert_eq!(backoff.due_at(), None);
        assert!(!backoff.is_resting(&"a") && !backoff.is_resting(&"b"));
        assert_eq!((backoff.failures(&"a"), backoff.failures(&"b")), (2, 1));
        backoff.wake(&"never failed");
        assert_eq!(backoff.failures(&"never failed"), 0);
    }

    #[test]
    fn a_failure_while_it_rests_replaces_the_rest_under_another_policy() {
        let mut backoff = Backoff::default();
        backoff.failed("a", LONG);
        backoff.failed("a", SHORT);
        assert_eq!(backoff.resting().count(), 1);
        assert!(
            rest(&backoff, "a") <= Duration::from_millis(50),
            "the second of the short ones"
        );
        backoff.succeeded(&"a");
        assert_eq!(backoff.due_at(), None);
    }

    #[tokio::test]
    async fn while_nothing_rests_nothing_is_due() {
        let mut backoff: Backoff<&str> = Backoff::default();
        let due = tokio::time::timeout(Duration::from_millis(30), backoff.next_due()).await;
        assert!(due.is_err());
    }
}
