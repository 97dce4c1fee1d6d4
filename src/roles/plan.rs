//! Decides what to do next about etcd's member list: one step with its reason, or what is in the way. Pure.
//!
//! A plan is made from a [`Membership`]: what the store says, what etcd's list says, and what each member has answered so
//! far. A member that has not answered counts as unhealthy, so further answers only allow more. A change that quorum
//! depends on is planned twice: first for the intent, which is committed together with the proof that its grounds still
//! hold; then for the call, from answers that were requested no earlier than the intent (INV-3, INV-5).

use std::fmt;
use std::time::Duration;

use jiff::Timestamp;

use super::membership::{Member, Membership};
use super::quorum::{self, Change, Quorum, Vote};
use super::reason::Reason;
use crate::etcd::MemberId;
use crate::proto::Join;
use crate::proto::join::Progress;
use crate::store::object::member::{is_answered, member_of};

mod joins;
mod promotion;
mod removal;
mod step;

pub use step::{Step, Subject, cause_words, progress_word};

/// A change that cannot be made now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocked {
    /// The member or join that the change is about.
    pub subject: Subject,
    /// The name of its node; empty if it has none.
    pub node: String,
    /// The rule that blocks it.
    pub reason: Reason,
    /// The details, for people.
    pub message: String,
}

/// The next step, or what is in the way.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// The one step to take.
    pub step: Option<Step>,
    /// Changes that cannot be made now. The list is complete only if there is no step.
    pub blocked: Vec<Blocked>,
    /// Nodes whose peer URLs must be tested before their join can go on.
    pub probe: Vec<String>,
}

/// Limits that a plan observes.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// How long a learner may take to start before it is removed.
    pub learner_timeout: Duration,
    /// How long an add without an answer may still show in the list before it counts as not made.
    pub add_doubt: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            learner_timeout: Duration::from_secs(600),
            // etcd gives up a proposal after 5 s and two election timeouts: usually 7 s.
            add_doubt: Duration::from_secs(30),
        }
    }
}

impl Member {
    fn block(&self, reason: Reason, message: impl fmt::Display) -> Blocked {
        Blocked {
            subject: Subject::Member(self.id),
            node: self.node().to_owned(),
            reason,
            message: message.to_string(),
        }
    }
}

impl Membership {
    fn votes(&self) -> Vec<Vote> {
        self.members.iter().filter_map(Member::vote).collect()
    }

    /// Changes that are decided: etcd may make them at any moment, or may have made them.
    fn in_doubt(&self) -> Vec<Change> {
        let mut doubts = Vec::new();
        for member in self.members.iter().filter(|member| member.listed.is_some()) {
            let Some(record) = &member.record else { continue };
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

    /// INV-5: whether the cluster has a healthy quorum after this change, whatever else is under way.
    fn check_quorum(&self, change: Change) -> Result<(), Quorum> {
        quorum::check(&self.votes(), change, &self.in_doubt())
    }

    /// The voter to send a change to: the raft leader, or else any healthy voter but `except`.
    fn through(&self, except: Option<MemberId>) -> Option<MemberId> {
        let eligible = |member: &&Member| {
            let healthy = member.listed.as_ref().is_some_and(|listing| listing.healthy);
            healthy && member.is_voter() && Some(member.id) != except
        };
        let leader = self
            .members
            .iter()
            .filter(eligible)
            .find(|member| Some(member.id) == self.raft_leader);
        leader
            .or_else(|| self.members.iter().find(eligible))
            .map(|member| member.id)
    }

    /// The step, unless it failed a short while ago. Checked last, so that a safety refusal is reported rather than an
    /// earlier failure.
    fn unless_resting(&self, step: Step, node: &str) -> Result<Step, Blocked> {
        let subject = step.subject();
        match self.resting.get(&subject) {
            None => Ok(step),
            Some((reason, message)) => Err(Blocked {
                node: node.to_owned(),
                reason: *reason,
                message: message.clone(),
                subject,
            }),
        }
    }
}

/// Finds a step of one kind, or adds to the plan what is in its way.
type Rule = fn(&Membership, Timestamp, &Limits, &mut Plan) -> Option<Step>;

/// Decides what to do next.
pub fn plan(membership: &Membership, now: Timestamp, limits: &Limits) -> Plan {
    let mut plan = Plan::default();
    // Changes under way are completed before others begin. Promotions come before removals because they strengthen the
    // quorum; joins come last because they add a member that may never start.
    let rules: [Rule; 7] = [
        removal::forget,
        joins::record,
        removal::carry_out,
        promotion::promote,
        joins::conclude,
        removal::decide,
        joins::begin,
    ];
    plan.step = rules
        .iter()
        .find_map(|rule| rule(membership, now, limits, &mut plan));
    plan
}

/// The first of these attempts, each for a node, that yields a step; those before it are added to the plan as blocked.
fn first<'a>(
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

/// The time left until `limit` has passed since `since`; zero if `since` is unknown.
fn left(since: Option<Timestamp>, limit: Duration, now: Timestamp) -> Duration {
    let Some(since) = since else {
        return Duration::ZERO;
    };
    let passed = Duration::try_from(now.duration_since(since)).unwrap_or_default();
    limit.saturating_sub(passed)
}

/// Whether the leader's part of a join already says this.
fn says(join: &Join, progress: Progress, member: Option<MemberId>, why: Option<&(Reason, String)>) -> bool {
    let (reason, message) = why.map_or(("", ""), |(reason, message)| (reason.as_str(), message));
    is_answered(join)
        && join.progress() == progress
        && member_of(join) == member
        && join.reason == reason
        && join.message == message
}

#[cfg(test)]
mod tests;
