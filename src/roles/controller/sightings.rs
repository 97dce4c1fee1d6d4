//! What a term has seen, and for how long, by its own monotonic clock: the clocks of replicas may differ. Pure.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use prost_types::Timestamp;

use super::execute::NotDone;
use crate::etcd::MemberId;
use crate::roles::membership::{Member, Membership};
use crate::roles::plan::Step;
use crate::roles::reason::Reason;

/// What one term has seen.
pub struct Sightings {
    begun: Instant,
    /// The progress of each learner, and when it was seen first.
    learners: BTreeMap<MemberId, (Progress, Instant)>,
    /// The time that each intent to add names, by its node, and when it was seen first.
    adds: BTreeMap<String, (Option<Timestamp>, Instant)>,
    /// When the last call about a member ended without an answer.
    unanswered: BTreeMap<MemberId, Instant>,
}

/// How far a learner is: it grows until the learner is in sync.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Progress {
    started: bool,
    applied: u64,
}

impl Sightings {
    /// A term that begins now.
    pub fn new(now: Instant) -> Self {
        Self {
            begun: now,
            learners: BTreeMap::new(),
            adds: BTreeMap::new(),
            unanswered: BTreeMap::new(),
        }
    }

    /// Takes note of a step that was not done: a call without an answer may be carried out later.
    pub fn failed(&mut self, step: &Step, why: &NotDone, now: Instant) {
        let unanswered = matches!(
            why,
            NotDone::Failed(Reason::EtcdUnavailable | Reason::MemberListUnreadable, _)
        );
        match step {
            Step::Remove { member, .. } | Step::Promote { member, .. } | Step::Readdress { member, .. }
                if unanswered =>
            {
                self.unanswered.insert(*member, now);
            }
            // The intent is in doubt for as long after the call.
            Step::Add { node, .. } if unanswered => {
                if let Some((_, at)) = self.adds.get_mut(node) {
                    *at = now;
                }
            }
            _ => {}
        }
    }

    /// Takes note that changes are made again after a pause: the time that learners stood still meanwhile does not count.
    pub fn resumed(&mut self, now: Instant) {
        for (_, at) in self.learners.values_mut() {
            *at = now;
        }
    }

    /// Takes note of the membership, and says in it for how long what was seen. `doubt` is how long a call without an
    /// answer may still be carried out; calls of earlier terms ended before this one began.
    pub fn date(&mut self, membership: &mut Membership, doubt: Duration, now: Instant) {
        let since = |from: Instant| now.saturating_duration_since(from);
        let committed = membership.most_committed();
        let mut learners = BTreeMap::new();
        for member in &mut membership.members {
            let called = self.unanswered.get(&member.id).copied();
            member.quiet = since(called.unwrap_or(self.begun).max(self.begun)) >= doubt;
            if !member.is_learner() {
                continue;
            }
            let reached = Progress {
                started: member.has_started(),
                applied: member.applied_index(),
            };
            let known = self.learners.get(&member.id).copied();
            let seen = match known {
                Some((before, at)) if reached <= before && !is_in_sync(member, committed) => (before, at),
                _ => (reached, now),
            };
            member.idle = since(seen.1);
            learners.insert(member.id, seen);
        }
        self.learners = learners;
        let mut adds = BTreeMap::new();
        for pending in membership.joins.iter_mut().filter(|pending| pending.is_adding()) {
            let stamp = pending.join.changed_at;
            let known = self.adds.get(&pending.node);
            let seen = known.filter(|(before, _)| *before == stamp);
            let at = seen.map_or(now, |(_, at)| *at);
            pending.age = since(at);
            adds.insert(pending.node.clone(), (stamp, at));
        }
        self.adds = adds;
    }
}

/// etcd promotes a learner that has nine tenths of the leader's log.
fn is_in_sync(member: &Member, committed: u64) -> bool {
    member.is_healthy() && member.applied_index() >= committed / 10 * 9
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::Join;
    use crate::proto::join::Progress as JoinProgress;
    use crate::roles::membership::tests::fixtures::{manager, surveyed, voter};
    use crate::roles::membership::{PendingJoin, Reachability};

    /// A join of which the add is decided.
    fn adding(node: &str) -> PendingJoin {
        PendingJoin {
            node: node.to_owned(),
            join: Join {
                progress: JoinProgress::Adding.into(),
                ..Join::default()
            },
            roles: Some(manager()),
            removed: false,
            reachability: Reachability::Pending,
            age: Duration::ZERO,
        }
    }

    const DOUBT: Duration = Duration::from_secs(30);

    #[test]
    fn a_learner_is_idle_from_its_last_progress_on_and_never_while_it_is_in_sync() {
        let begun = Instant::now();
        let mut sightings = Sightings::new(begun);
        let mut idle = |member: Member, second: u64| {
            let mut membership = surveyed(vec![voter(1).applied(1000), member]);
            sightings.date(&mut membership, DOUBT, begun + Duration::from_secs(second));
            membership.members[1].idle.as_secs()
        };
        let learner = || voter(2).learner();
        assert_eq!(idle(learner().unstarted(), 0), 0);
        assert_eq!(idle(learner().unstarted(), 10), 10);
        assert_eq!(idle(learner().down(), 20), 0, "it has started");
        assert_eq!(idle(learner().applied(100), 30), 0, "it has applied something");
        assert_eq!(idle(learner().applied(100), 40), 10);
        assert_eq!(idle(learner().down(), 50), 20, "no answer is no progress");
        assert_eq!(idle(learner().applied(101), 60), 0);
        assert_eq!(idle(learner().applied(950), 70), 0);
        assert_eq!(idle(learner().applied(950), 700), 0, "nothing is written");
    }

    #[test]
    fn a_learner_is_not_idle_for_the_time_of_a_pause() {
        let begun = Instant::now();
        let mut sightings = Sightings::new(begun);
        let at = |second| begun + Duration::from_secs(second);
        let idle = |sightings: &mut Sightings, second| {
            let mut membership = surveyed(vec![voter(1), voter(2).learner().down()]);
            sightings.date(&mut membership, DOUBT, at(second));
            membership.members[1].idle.as_secs()
        };
        assert_eq!(idle(&mut sightings, 0), 0);
        assert_eq!(idle(&mut sightings, 900), 900);
        sightings.resumed(at(1000));
        assert_eq!(idle(&mut sightings, 1010), 10);
    }

    #[test]
    fn an_intent_to_add_is_in_doubt_for_its_time_after_the_last_call_without_an_answer() {
        let begun = Instant::now();
        let mut sightings = Sightings::new(begun);
        let at = |second| begun + Duration::from_secs(second);
        let age = |sightings: &mut Sightings, second| {
            let mut membership = surveyed(vec![voter(1)]);
            membership.joins.push(adding("n9"));
            sightings.date(&mut membership, DOUBT, at(second));
            membership.joins[0].age.as_secs()
        };
        assert_eq!(age(&mut sightings, 0), 0);
        assert_eq!(age(&mut sightings, 10), 10);
        let add = Step::Add {
            node: "n9".to_owned(),
            through: MemberId(1),
        };
        let lost = NotDone::Failed(Reason::EtcdUnavailable, String::new());
        sightings.failed(&add, &lost, at(14));
        assert_eq!(age(&mut sightings, 20), 6);
    }

    #[test]
    fn a_call_without_an_answer_is_in_doubt_for_its_time_and_one_of_an_earlier_term_from_the_begin_of_this_one()
     {
        let begun = Instant::now();
        let mut sightings = Sightings::new(begun);
        let at = |second| begun + Duration::from_secs(second);
        let quiet = |sightings: &mut Sightings, second| {
            let mut membership = surveyed(vec![voter(1)]);
            sightings.date(&mut membership, DOUBT, at(second));
            membership.members[0].quiet
        };
        assert!(!quiet(&mut sightings, 29));
        assert!(quiet(&mut sightings, 30));
        let remove = Step::Remove {
            member: MemberId(1),
            through: MemberId(2),
        };
        let because = |reason| NotDone::Failed(reason, String::new());
        sightings.failed(&remove, &because(Reason::EtcdRefused), at(40));
        assert!(quiet(&mut sightings, 41), "a refusal is an answer");
        let not_called = NotDone::NotCalled(Reason::EtcdUnavailable, String::new());
        sightings.failed(&remove, &not_called, at(45));
        assert!(quiet(&mut sightings, 46), "no call was made");
        sightings.failed(&remove, &because(Reason::EtcdUnavailable), at(50));
        assert!(!quiet(&mut sightings, 79));
        assert!(quiet(&mut sightings, 80));
    }
}
