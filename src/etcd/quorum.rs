//! Whether etcd has a quorum, as a process sees it.
//!
//! The checks of the endpoints make a linearizable read through each of them, and any one that answers proves a quorum.
//! Without an answer the quorum may be lost, or this process may be cut off from it: processes elsewhere say which.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::watch;

use crate::clock;

/// The quorum counts as lost after this long. The members elect a raft leader in less.
const LOST_AFTER: Duration = Duration::from_secs(5);

/// The least number of checks without an answer in that time: a single one may have come at a bad moment.
const LOST_CHECKS: u32 = 2;

/// While no endpoint serves, the endpoints are checked this often.
const CHECK_AGAIN: Duration = Duration::from_secs(2);

/// What a process knows of the quorum.
#[derive(Default)]
pub(super) struct KnownQuorum {
    pub unserved: watch::Sender<Option<Unserved>>,
    pub ended: watch::Sender<Option<Outage>>,
    reported: watch::Sender<Option<Outage>>,
    last_answer: Mutex<Option<LastAnswer>>,
}

/// The last answer that proves that this process reached a quorum of etcd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LastAnswer {
    /// When its request was sent, by [`clock::now`]: what etcd holds was seen no earlier.
    pub sent: Instant,
    /// The same moment by the clock of this machine.
    pub time: SystemTime,
}

/// No endpoint has served a linearizable read since.
#[derive(Clone, Copy)]
pub(super) struct Unserved {
    /// When the first check that found that began.
    pub since: Instant,
    /// How many checks have found that.
    checks: u32,
}

impl Unserved {
    /// Whether the quorum counts as lost.
    pub fn is_lost(self) -> bool {
        self.checks >= LOST_CHECKS && self.since.elapsed() >= LOST_AFTER
    }
}

/// A time without a quorum, as one process has seen it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outage {
    /// When the first check without an answer began, by the clock of this machine.
    pub since: SystemTime,
    /// When an endpoint served again.
    pub until: SystemTime,
    /// How many voters answered meanwhile, in words.
    pub seen: String,
}

impl KnownQuorum {
    /// Takes note of a check of the endpoints that began at `begun`.
    pub fn checked(&self, begun: Instant, is_served: bool) {
        self.unserved.send_if_modified(|unserved| {
            let (since, checks) = unserved.map_or((begun, 0), |before| (before.since, before.checks));
            let after = (!is_served).then_some(Unserved {
                since,
                checks: checks + 1,
            });
            std::mem::replace(unserved, after).is_some() || after.is_some()
        });
        if is_served {
            // The check is dated by the other clock.
            let now = clock::now();
            self.answered(now.checked_sub(begun.elapsed()).unwrap_or(now));
        }
    }

    /// Takes note that etcd has answered a request that was sent then, by [`clock::now`].
    pub fn answered(&self, sent: Instant) {
        let mut last = self.last_answer.lock().unwrap_or_else(PoisonError::into_inner);
        if last.is_none_or(|last| last.sent < sent) {
            let now = SystemTime::now();
            let age = clock::now().saturating_duration_since(sent);
            let time = now.checked_sub(age).unwrap_or(now);
            *last = Some(LastAnswer { sent, time });
        }
    }

    /// The last answer, if there was one.
    pub fn last_answer(&self) -> Option<LastAnswer> {
        *self.last_answer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this process has not reported the outage yet. Takes note that it does.
    pub fn is_first_report(&self, outage: &Outage) -> bool {
        self.reported.send_if_modified(|reported| {
            let is_first = reported.as_ref() != Some(outage);
            *reported = Some(outage.clone());
            is_first
        })
    }

    /// How long to wait for the next check, instead of this interval.
    pub fn check_after(&self, interval: Duration) -> Duration {
        match *self.unserved.borrow() {
            Some(_) => interval.min(CHECK_AGAIN),
            None => interval,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_reports_each_outage_once() {
        let quorum = KnownQuorum::default();
        let outage = |seconds| Outage {
            since: SystemTime::UNIX_EPOCH,
            until: SystemTime::UNIX_EPOCH + Duration::from_secs(seconds),
            seen: String::new(),
        };
        let reports = [60, 60, 90, 90].map(|until| quorum.is_first_report(&outage(until)));
        assert_eq!(reports, [true, false, true, false]);
    }

    #[test]
    fn the_last_answer_is_dated_by_its_request_and_never_goes_back() {
        let quorum = KnownQuorum::default();
        assert_eq!(quorum.last_answer(), None);
        let (now, second) = (clock::now(), Duration::from_secs(1));
        quorum.answered(now);
        quorum.answered(now - second);
        assert_eq!(quorum.last_answer().map(|last| last.sent), Some(now));
        quorum.checked(Instant::now(), false);
        assert_eq!(quorum.last_answer().map(|last| last.sent), Some(now));
        quorum.answered(now + second);
        quorum.checked(Instant::now(), true);
        assert_eq!(quorum.last_answer().map(|last| last.sent), Some(now + second));
    }

    #[test]
    fn the_quorum_is_lost_after_two_checks_and_the_time_of_an_election() {
        let quorum = KnownQuorum::default();
        let lost = || quorum.unserved.borrow().is_some_and(Unserved::is_lost);
        let Some(long_ago) = Instant::now().checked_sub(LOST_AFTER) else {
            return;
        };
        quorum.checked(long_ago, false);
        assert!(!lost(), "one check proves little");
        quorum.checked(Instant::now(), false);
        assert!(lost(), "its beginning counts");
        assert_eq!(quorum.check_after(Duration::from_secs(10)), CHECK_AGAIN);
        quorum.checked(Instant::now(), true);
        assert!(!lost());
        assert_eq!(
            quorum.check_after(Duration::from_secs(10)),
            Duration::from_secs(10)
        );
        quorum.checked(Instant::now(), false);
        quorum.checked(Instant::now(), false);
        assert!(!lost(), "no longer than an election takes");
    }
}
