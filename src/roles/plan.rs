//! What to do next about etcd's member list: one change, with its reason, or why there is none. Pure.
//!
//! A plan is made from a [`Picture`]: what the store says, what etcd's list says, and how each member answered so far.
//! Whoever has not answered counts as unhealthy, so that more answers only allow more. Everything that quorum depends on
//! is planned twice: once for the intent, which is committed with the proof that what it was decided on still holds, and
//! once more, from answers that were asked for no earlier than the intent, for the call itself (INV-3, INV-5).

use std::collections::BTreeMap;
use std::fmt;

use jiff::Timestamp;

use super::checks::Known;
use super::quorum::{self, Change, Quorum, Standing};
use super::reason::Reason;
use crate::etcd::MemberId;
use crate::proto::join::Progress;
use crate::proto::removal::Cause;
use crate::proto::{Join, Role};
use crate::store::object::member::{is_answered, member_of};

mod joins;
mod picture;
mod promotion;
mod removal;
mod step;

pub use joins::{Asked, Dial};
pub use picture::{Answer, picture};
pub use step::{Step, Subject, cause_words, progress_word};

/// A member that is listed, recorded, or both.
#[derive(Clone, Debug)]
pub struct Seat {
    /// Which.
    pub id: MemberId,
    /// As etcd's list has it; `None` if it is not there.
    pub listed: Option<Place>,
    /// Its record; `None` if it has none, or one that cannot be read.
    pub record: Option<Tie>,
}

/// A member in etcd's list.
#[derive(Clone, Debug)]
pub struct Place {
    /// It does not vote.
    pub learner: bool,
    /// It has started at least once.
    pub started: bool,
    /// As listed.
    pub peer_urls: Vec<String>,
    /// It proved that it is healthy.
    pub healthy: bool,
    /// How far it has come in the log, as far as it answered.
    pub applied: u64,
}

/// A member's record.
#[derive(Clone, Debug)]
pub struct Tie {
    /// The name of its node.
    pub node: String,
    /// The uid of its node.
    pub uid: String,
    /// The node that it belongs to.
    pub owner: Whose,
    /// When it joined.
    pub joined_at: Option<Timestamp>,
    /// The intent to remove it.
    pub removal: Option<Cause>,
    /// The intent to let it vote.
    pub promotion: bool,
}

/// The node that a record belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    /// A node that exists.
    Node(Known),
    /// Cannot be told: nothing is done about the member.
    Unknown,
    /// A node that does not exist.
    Gone,
}

/// Everything that decides what comes next.
#[derive(Clone, Debug, Default)]
pub struct Picture {
    /// In the order of their ids.
    pub seats: Vec<Seat>,
    /// Joins that are not ended, the one that asked first at the front.
    pub joins: Vec<Asked>,
    /// Whether every member had its time to answer.
    pub complete: bool,
    /// Whom a majority of the voters that stay takes for the raft leader.
    pub raft_leader: Option<MemberId>,
    /// What was tried and failed a short while ago, and why.
    pub resting: BTreeMap<Subject, (Reason, String)>,
}

/// Something that cannot be done now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocked {
    /// What.
    pub subject: Subject,
    /// The node concerned.
    pub node: String,
    /// Why.
    pub reason: Reason,
    /// Why, for people.
    pub message: String,
}

/// What comes next.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// The one step.
    pub step: Option<Step>,
    /// What cannot be done now. Whole only where there is no step.
    pub blocked: Vec<Blocked>,
    /// Nodes whose peer URLs are to be tried before their join can go on.
    pub dial: Vec<String>,
}

/// The limits that a plan goes by.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// For a learner to be started.
    pub learner_timeout: std::time::Duration,
    /// For an add whose answer was lost to show in the list, before it counts as not made.
    pub add_doubt: std::time::Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            learner_timeout: std::time::Duration::from_secs(600),
            // etcd gives up a proposal after 5 s and two election timeouts, 7 s as a rule.
            add_doubt: std::time::Duration::from_secs(30),
        }
    }
}

impl Seat {
    fn standing(&self) -> Option<Standing> {
        self.listed.as_ref().map(|place| Standing {
            id: self.id,
            learner: place.learner,
            healthy: place.healthy,
        })
    }

    /// Whether its node is a desired manager.
    fn is_wanted(&self) -> bool {
        let owner = self.record.as_ref().map(|tie| tie.owner);
        matches!(owner, Some(Whose::Node(known)) if known.desired == Role::Manager)
    }

    /// Why it is to be removed, if it is.
    pub fn cause(&self) -> Option<Cause> {
        let tie = self.record.as_ref()?;
        tie.removal.or(match tie.owner {
            Whose::Gone => Some(Cause::NodeGone),
            Whose::Node(known) if known.desired == Role::Worker => Some(Cause::Demoted),
            Whose::Node(_) | Whose::Unknown => None,
        })
    }

    fn is_learner(&self) -> bool {
        self.listed.as_ref().is_some_and(|place| place.learner)
    }

    fn is_voter(&self) -> bool {
        self.listed.as_ref().is_some_and(|place| !place.learner)
    }

    /// The name of its node; empty if it has no record.
    fn node(&self) -> &str {
        self.record.as_ref().map_or("", |tie| &tie.node)
    }

    fn block(&self, reason: Reason, message: impl fmt::Display) -> Blocked {
        Blocked {
            subject: Subject::Member(self.id),
            node: self.node().to_owned(),
            reason,
            message: message.to_string(),
        }
    }
}

impl Picture {
    /// The seat of a member.
    pub fn seat(&self, id: MemberId) -> Option<&Seat> {
        self.seats.iter().find(|seat| seat.id == id)
    }

    /// The listed seat that a record ties to this node.
    pub fn seat_of(&self, node: &str, uid: &str) -> Option<&Seat> {
        self.seats.iter().find(|seat| {
            let own = |tie: &Tie| tie.node == node && tie.uid == uid;
            seat.listed.is_some() && seat.record.as_ref().is_some_and(own)
        })
    }

    fn standings(&self) -> Vec<Standing> {
        self.seats.iter().filter_map(Seat::standing).collect()
    }

    /// Changes that were decided on and may be made any moment, or may have been.
    fn in_doubt(&self) -> Vec<Change> {
        let mut doubts = Vec::new();
        for seat in self.seats.iter().filter(|seat| seat.listed.is_some()) {
            let Some(tie) = &seat.record else { continue };
            // Both, if it is to go after its promotion was decided on: that one may still come first.
            if tie.promotion && seat.is_learner() {
                doubts.push(Change::Promote(seat.id));
            }
            if tie.removal.is_some() {
                doubts.push(Change::Remove(seat.id));
            }
        }
        doubts
    }

    /// INV-5: whether the cluster after this change has a healthy quorum, whatever else is under way.
    fn check_quorum(&self, change: Change) -> Result<(), Quorum> {
        quorum::check(&self.standings(), change, &self.in_doubt())
    }

    /// Whom to ask for a change: the raft leader, or else any healthy voter that stays.
    fn through(&self, except: Option<MemberId>) -> Option<MemberId> {
        let asked = |seat: &&Seat| {
            let healthy = seat.listed.as_ref().is_some_and(|place| place.healthy);
            healthy && seat.is_voter() && Some(seat.id) != except
        };
        let leader = self
            .seats
            .iter()
            .filter(asked)
            .find(|seat| Some(seat.id) == self.raft_leader);
        leader
            .or_else(|| self.seats.iter().find(asked))
            .map(|seat| seat.id)
    }

    /// The step, unless it failed a short while ago. Asked last: what is not safe now is told rather than what failed.
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

/// Finds a step of one kind, or notes what is in its way.
type Rule = fn(&Picture, Timestamp, &Limits, &mut Plan) -> Option<Step>;

/// What to do next.
pub fn plan(picture: &Picture, now: Timestamp, limits: &Limits) -> Plan {
    let mut plan = Plan::default();
    // What is under way is finished before anything is begun; promotions come before removals, as they add to the
    // quorum; joins come last, as they add what may not start.
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
        .find_map(|rule| rule(picture, now, limits, &mut plan));
    plan
}

/// The first step of these attempts, each for a node, that can be taken; why not, for those before it.
fn first<'a>(
    picture: &Picture,
    plan: &mut Plan,
    attempts: impl Iterator<Item = (&'a str, Result<Step, Blocked>)>,
) -> Option<Step> {
    for (node, attempt) in attempts {
        match attempt.and_then(|step| picture.unless_resting(step, node)) {
            Ok(step) => return Some(step),
            Err(blocked) => plan.blocked.push(blocked),
        }
    }
    None
}

/// Until an instant that lies `limit` after `since`; zero once it is over, and if it is not known since when.
fn left(since: Option<Timestamp>, limit: std::time::Duration, now: Timestamp) -> std::time::Duration {
    let Some(since) = since else {
        return std::time::Duration::ZERO;
    };
    let passed = now.duration_since(since);
    let passed = std::time::Duration::try_from(passed).unwrap_or_default();
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
