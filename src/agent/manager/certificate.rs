//! When the certificate of etcd is replaced. Pure. Etcd reads its file at every handshake, so that a later one needs no restart.

use std::time::Duration;

use super::plan::Renewal;
use crate::agent::plan::{Now, Since};

/// The earliest and the latest part of its life at which a certificate is replaced. In between at random, so that members that
/// joined together do not all ask at once. Early, since more than half of its life is left for a cluster without a quorum to be mended
/// in.
const RENEWED: (f64, f64) = (0.25, 0.4);

/// For so long after it was received, a certificate is not replaced for what the session shows: a replica shows what its follower has,
/// which may be as old.
const SETTLES: Duration = Duration::from_secs(5);

/// For so long after it was received, a certificate is not replaced because it lacks a host: an authority that left the host out once
/// will leave it out again. Twice as long after each further one that lacks it, up to most of a day (INV-9).
const HOSTS_SETTLE: Duration = Duration::from_secs(600);
const MOST_DOUBLINGS: u32 = 7;

/// The certificate of etcd.
#[derive(Clone, Copy, Debug)]
pub struct Held {
    /// From its issue to its end.
    pub life: Duration,
    /// When it was issued.
    pub since: Since,
    /// The age at which it is replaced.
    pub renewed_at: Duration,
    /// The certificates that were received one after the other and lack a host of the URLs of etcd, this one included; at least one where
    /// it does, and zero where it names every host.
    pub lacking: u32,
    /// A person has put it in place. It is on no record, so that nothing would revoke it.
    pub is_by_hand: bool,
}

impl Held {
    /// A certificate, replaced at an age that `random` chooses, a number from 0 to 1.
    pub fn new(life: Duration, since: Since, lacking: u32, random: f64) -> Self {
        let (earliest, latest) = RENEWED;
        Self {
            life,
            since,
            renewed_at: life.mul_f64(earliest + (latest - earliest) * random.clamp(0.0, 1.0)),
            lacking,
            is_by_hand: false,
        }
    }

    /// How long it stays after its receipt although it lacks a host.
    fn hosts_settle(&self) -> Duration {
        let doublings = self.lacking.saturating_sub(1).min(MOST_DOUBLINGS);
        HOSTS_SETTLE.saturating_mul(1 << doublings)
    }

    /// How long it is valid from now on.
    pub fn left(&self, now: Now) -> Duration {
        self.life.saturating_sub(self.since.age(now))
    }

    /// Why to replace it now; `None` if there is no reason. `rotates` is what the session shows.
    pub fn renewal(&self, awaits_another: bool, rotates: bool, now: Now) -> Option<Renewal> {
        let settled = |after: Duration| {
            self.since
                .received_for(now)
                .is_none_or(|received| received >= after)
        };
        if self.since.age(now) >= self.renewed_at {
            Some(Renewal::Age { left: self.left(now) })
        } else if awaits_another {
            Some(Renewal::Unanswered)
        } else if rotates && settled(SETTLES) {
            Some(Renewal::Rotate)
        } else if self.is_by_hand && settled(HOSTS_SETTLE) {
            Some(Renewal::ByHand)
        } else if self.lacking > 0 && settled(self.hosts_settle()) {
            Some(Renewal::Hosts)
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::plan::tests::{fresh, later, now};

    const LIFE: Duration = Duration::from_secs(1000);

    #[test]
    fn it_is_replaced_between_a_quarter_and_two_fifths_of_its_life() {
        let at = |random| Held::new(LIFE, Since::Issued(now().wall), 0, random).renewed_at;
        assert_eq!(at(0.0), Duration::from_secs(250));
        assert_eq!(at(1.0), Duration::from_secs(400));
        assert_eq!(at(7.0), Duration::from_secs(400));
        let begun = now();
        let held = Held::new(LIFE, fresh(begun), 0, 0.0);
        assert_eq!(held.renewal(false, false, later(begun, 249)), None);
        let left = Duration::from_secs(750);
        let due = held.renewal(false, false, later(begun, 250));
        assert_eq!(due, Some(Renewal::Age { left }));
        let ended = held.renewal(false, false, later(begun, 5000));
        assert_eq!(ended, Some(Renewal::Age { left: Duration::ZERO }));
    }

    #[test]
    fn an_operators_wish_a_lost_answer_a_hand_and_a_missing_host_count_before_that() {
        let begun = now();
        let stored = Held::new(LIFE, Since::Issued(begun.wall), 0, 0.5);
        assert_eq!(stored.renewal(false, false, begun), None);
        assert_eq!(stored.renewal(false, true, begun), Some(Renewal::Rotate));
        assert_eq!(stored.renewal(true, false, begun), Some(Renewal::Unanswered));
        let by_hand = Held {
            is_by_hand: true,
            ..stored
        };
        assert_eq!(by_hand.renewal(false, false, begun), Some(Renewal::ByHand));
        let lacking = Held { lacking: 1, ..stored };
        assert_eq!(lacking.renewal(false, false, begun), Some(Renewal::Hosts));
    }

    #[test]
    fn what_was_just_received_is_not_replaced_for_what_a_replica_shows_late_or_an_authority_leaves_out() {
        let begun = now();
        let held = Held::new(Duration::from_secs(1_000_000), fresh(begun), 1, 0.5);
        assert_eq!(held.renewal(false, true, later(begun, 4)), None);
        assert_eq!(held.renewal(false, true, later(begun, 5)), Some(Renewal::Rotate));
        assert_eq!(held.renewal(false, false, later(begun, 599)), None);
        assert_eq!(
            held.renewal(false, false, later(begun, 600)),
            Some(Renewal::Hosts)
        );
        // Each further one that lacks it stays longer.
        for (lacking, seconds) in [(2, 1200), (3, 2400), (8, 76_800), (u32::MAX, 76_800)] {
            let held = Held { lacking, ..held };
            assert_eq!(held.renewal(false, false, later(begun, seconds - 1)), None);
            assert_eq!(
                held.renewal(false, false, later(begun, seconds)),
                Some(Renewal::Hosts),
                "{lacking}"
            );
        }
    }
}
