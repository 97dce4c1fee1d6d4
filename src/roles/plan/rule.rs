//! What the rules of the plan share: what they find, their limits, and what each asks of the membership.

use std::fmt;
use std::time::Duration;

use super::step::Step;
use crate::etcd::MemberId;
use crate::roles::blocked::{Blocked, Subject};
use crate::roles::membership::{Member, Membership};
use crate::roles::quorum::{self, Change};
use crate::roles::reason::Reason;

/// The next step, or what is in the way.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// The one step to take.
    pub step: Option<Step>,
    /// Changes that cannot be made now. The list is complete only if there is no step.
    pub blocked: Vec<Blocked>,
    /// Joins and members whose peer URLs must be tested before they can go on.
    pub probe: Vec<Subject>,
}

/// Limits that a plan observes.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// How long a learner may make no progress before it is removed; one that was started, as long as a snapshot may take
    /// beside that.
    pub learner_timeout: Duration,
    /// How long a change without an answer may still show in the list before it counts as not made.
    pub add_doubt: Duration,
    /// How many voters etcd may have; further nodes do not join.
    pub max_voters: usize,
}

/// The bytes a second at which a snapshot arrives at the least, for the limit of a learner.
const SNAPSHOT_RATE: u64 = 5_000_000;

/// The most data in bytes that etcd's documents advise.
const MOST_DATA: u64 = 8 << 30;

impl Limits {
    /// How long a snapshot of so much data may take. Where no voter says how much it has, as one that leaves is not asked, it
    /// may be as much as etcd is made for.
    pub(super) fn snapshot_time(bytes: Option<u64>) -> Duration {
        Duration::from_secs(bytes.unwrap_or(MOST_DATA) / SNAPSHOT_RATE)
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            learner_timeout: Duration::from_secs(600),
            // etcd gives up a proposal after 5 s and two election timeouts: usually 7 s.
            add_doubt: Duration::from_secs(30),
            // With more, writes become slower and little is gained.
            max_voters: 7,
        }
    }
}

impl Member {
    /// A change of this member that cannot be made now.
    pub(super) fn block(&self, reason: Reason, message: impl fmt::Display) -> Blocked {
        Blocked::new(Subject::Member(self.id), self.node(), reason, message)
    }
}

impl Membership {
    /// Changes that are decided: etcd may make them at any moment, or may have made them. Where no call can be under way, the
    /// list shows what became of them.
    fn in_doubt(&self) -> Vec<Change> {
        let mut doubts = Vec::new();
        for member in self.listed() {
            let Some(record) = &member.record else { continue };
            // Where the list shows the new URLs, as long as the member has not been found there.
            if let Some(readdress) = &record.readdress
                && (!member.quiet || member.is_at(&readdress.peer_urls))
            {
                doubts.push(Change::Readdress {
                    member: member.id,
                    found: member.is_found(),
                });
            }
            if member.quiet {
                continue;
            }
            // Both, if the removal was decided after the promotion: the promotion may still come first.
            if record.promotion && member.is_learner() {
                doubts.push(Change::Promote(member.id));
            }
            if record.removal.is_some() {
                doubts.push(Change::Remove(member.id));
            }
        }
        doubts
    }

    /// INV-5: whether the cluster has a healthy quorum after this change, which `words` describe, whatever else is under
    /// way.
    pub(super) fn check_quorum(&self, change: Change, words: impl fmt::Display) -> Result<(), String> {
        let doubts = self.in_doubt();
        let doubts: Vec<Change> = doubts
            .into_iter()
            .filter(|doubt| !self.is_undone(*doubt, change))
            .collect();
        quorum::check(&self.votes(), change, &doubts).map_err(|quorum| quorum.lost(words))
    }

    /// Whether a change undoes a doubt: the next move of a voter that was not found where the list has it.
    fn is_undone(&self, doubt: Change, change: Change) -> bool {
        let (Change::Readdress { member, .. }, Change::Readdress { member: next, .. }) = (doubt, change)
        else {
            return false;
        };
        let moved = |member: &Member| {
            let made = member.readdress().is_some_and(|to| member.is_at(&to.peer_urls));
            made && member.quiet
        };
        member == next && self.member(member).is_some_and(moved)
    }

    /// The healthy voter but `except` to send a change to: one that is not being removed rather than one that is, then the
    /// raft leader.
    pub(super) fn through(&self, except: Option<MemberId>) -> Option<MemberId> {
        let eligible = |member: &&Member| member.is_healthy() && Some(member.id) != except;
        let leads = |member: &Member| Some(member.id) == self.raft_leader;
        let voters = self.voters().filter(eligible);
        let best = voters.min_by_key(|member| (member.removal().is_some(), !leads(member), member.id));
        best.map(|member| member.id)
    }

    /// The step, unless roles are paused, etcd would refuse what it writes, or it failed a short while ago. Checked last, so
    /// that a safety refusal is reported rather than an earlier failure.
    pub(super) fn unless_resting(&self, step: Step, node: &str) -> Result<Step, Blocked> {
        let subject = step.subject();
        if self.paused {
            return Err(Blocked::new(subject, node, Reason::Pending, "roles are paused"));
        }
        if step.is_written()
            && let Some(why) = self.refuses_writes()
        {
            return Err(Blocked::new(subject, node, Reason::EtcdAlarm, why));
        }
        match self.resting.get(&subject) {
            None => Ok(step),
            Some((reason, message)) => {
                let explained = self.explain(*reason).map(|why| format!("{message}; {why}"));
                let message = explained.as_ref().unwrap_or(message);
                Err(Blocked::new(subject, node, *reason, message))
            }
        }
    }

    /// Whether etcd goes on to refuse this until someone acts.
    pub(super) fn lasts(&self, reason: Reason) -> bool {
        reason == Reason::EtcdDenied || self.explain(reason).is_some()
    }

    /// What makes a refusal by etcd last, and what can be done, if that can be seen.
    pub(super) fn explain(&self, reason: Reason) -> Option<String> {
        if reason != Reason::EtcdRefused || !self.complete {
            return None;
        }
        let down = self.voters().filter(|member| !member.is_healthy());
        let down: Vec<String> = down.map(ToString::to_string).collect();
        (!down.is_empty()).then(|| {
            format!(
                "etcd may refuse this as long as it misses {}: repair, demote or replace it first",
                down.join(" and ")
            )
        })
    }
}

/// Finds a step of one kind, or adds to the plan what is in its way.
pub type Rule = fn(&Membership, &Limits, &mut Plan) -> Option<Step>;

/// The first of these attempts, each for a node, that yields a step; those before it are added to the plan as blocked.
pub fn first<'a>(
    membership: &Membership,
    plan: &mut Plan,
    attempts: impl Iterator<Item = (&'a str, Result<Step, Blocked>)>,
) -> Option<Step> {
    for (node, attempt) in attempts {
        match attempt.and_then(|step| membership.unless_resting(step, node)) {
            Ok(step) => return Some(step),
            Err(blocked) => plan.blocked.push(blocked),
        }
    }
    None
}
