//! How long a newer candidate must have stood for election before older ones yield to it. Pure.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::etcd::Revision;

/// A trial is never longer: a release that has been mended leads at the latest so long after it stands.
const LONGEST: Duration = Duration::from_secs(300);

/// A candidacy that ended this long ago no longer counts.
const MEMORY: Duration = Duration::from_secs(1800);

/// At most this many ended candidacies are kept: the trial is at its longest before.
const MOST: usize = 32;

/// The first trial of newer candidates, for replicas whose leases have this TTL. The key of a process that crashed stands until its
/// lease has run out: for a TTL after the last renewal, and a little longer, since etcd looks for leases that have expired twice
/// a second. So one that crashes within a TTL after it stood is gone by then, unless its own lease has a longer TTL: then it has
/// that much less time.
pub fn first_trial(ttl: Duration) -> Duration {
    2 * ttl + Duration::from_secs(1)
}

/// The trials of newer candidates, as one older replica sees them.
#[derive(Debug)]
pub(super) struct Trials {
    first: Duration,
    /// The candidacy that stands, and since when it is known.
    standing: Option<(Revision, Instant)>,
    /// Which candidacies were seen to end, and when, the oldest first.
    ended: VecDeque<(Revision, Instant)>,
}

/// Whether older replicas yield to a newer candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Not before this instant.
    OnTrial { until: Instant },
    /// It has stood for long enough, or leads already.
    Lasting,
}

impl Trials {
    /// The first candidacy has a trial of `first`, and each later one twice that of the one before.
    pub fn new(first: Duration) -> Self {
        Self {
            first,
            standing: None,
            ended: VecDeque::new(),
        }
    }

    /// No newer candidate stands.
    pub fn none_stands(&mut self, now: Instant) {
        if let Some((entered, _)) = self.standing.take() {
            self.ended.push_back((entered, now));
        }
    }

    /// The newer candidate that entered at this revision stands. One that leads has no trial: no older one leads that could
    /// lead on.
    pub fn stands(&mut self, entered: Revision, leads: bool, now: Instant) -> Verdict {
        if self.standing.is_none_or(|(known, _)| known != entered) {
            self.none_stands(now);
            // Its registration was lost for a moment.
            if self.ended.back().is_some_and(|(known, _)| *known == entered) {
                self.ended.pop_back();
            }
            self.standing = Some((entered, now));
        }
        let since = self.standing.map_or(now, |(_, since)| since);
        self.forget(now);
        let until = since + self.trial();
        match leads || until <= now {
            true => Verdict::Lasting,
            false => Verdict::OnTrial { until },
        }
    }

    fn forget(&mut self, now: Instant) {
        let old = |(_, ended): &(Revision, Instant)| now.saturating_duration_since(*ended) > MEMORY;
        while self.ended.len() > MOST || self.ended.front().is_some_and(old) {
            self.ended.pop_front();
        }
    }

    fn trial(&self) -> Duration {
        let longest = LONGEST.max(self.first);
        let doubled = |trial: Duration, _| trial.saturating_mul(2).min(longest);
        self.ended.iter().fold(self.first, doubled)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Duration = Duration::from_secs(10);

    /// The trial of a candidate that enters now.
    fn trial(trials: &mut Trials, entered: i64, now: Instant) -> Duration {
        match trials.stands(Revision(entered), false, now) {
            Verdict::OnTrial { until } => until - now,
            Verdict::Lasting => Duration::ZERO,
        }
    }

    #[test]
    fn a_candidate_is_on_trial_until_it_has_stood_for_long_enough() {
        let (mut trials, begun) = (Trials::new(FIRST), Instant::now());
        let mut after = |passed| trials.stands(Revision(7), false, begun + passed);
        let until = begun + FIRST;
        assert_eq!(after(Duration::ZERO), Verdict::OnTrial { until });
        assert_eq!(after(FIRST / 2), Verdict::OnTrial { until });
        assert_eq!(after(FIRST), Verdict::Lasting);
    }

    #[test]
    fn a_candidate_that_leads_is_not_on_trial() {
        let mut trials = Trials::new(FIRST);
        assert_eq!(trials.stands(Revision(7), true, Instant::now()), Verdict::Lasting);
    }

    #[test]
    fn each_candidacy_that_ended_doubles_the_next_trial_up_to_the_longest() {
        let (mut trials, now) = (Trials::new(FIRST), Instant::now());
        let mut seen = Vec::new();
        for entered in 1..100 {
            seen.push(trial(&mut trials, entered, now).as_secs());
            trials.none_stands(now);
        }
        assert_eq!(seen[..7], [10, 20, 40, 80, 160, 300, 300]);
        assert_eq!(seen[98], 300);
    }

    #[test]
    fn a_candidate_that_another_one_follows_unseen_has_ended_too() {
        let (mut trials, now) = (Trials::new(FIRST), Instant::now());
        trial(&mut trials, 1, now);
        assert_eq!(trial(&mut trials, 2, now), 2 * FIRST);
        trials.none_stands(now);
        trials.none_stands(now);
        assert_eq!(trial(&mut trials, 3, now), 4 * FIRST, "each ended once");
    }

    #[test]
    fn a_candidate_that_is_found_again_has_not_ended() {
        let (mut trials, now) = (Trials::new(FIRST), Instant::now());
        trial(&mut trials, 1, now);
        trials.none_stands(now);
        assert_eq!(trial(&mut trials, 1, now), FIRST);
    }

    #[test]
    fn candidacies_that_ended_long_ago_do_not_count() {
        let (mut trials, now) = (Trials::new(FIRST), Instant::now());
        trial(&mut trials, 1, now);
        trials.none_stands(now);
        assert_eq!(trial(&mut trials, 2, now + MEMORY), 2 * FIRST);
        trials.none_stands(now + MEMORY);
        let later = now + 2 * MEMORY + Duration::from_secs(1);
        assert_eq!(trial(&mut trials, 3, later), FIRST);
    }
}
