//! Nodes that ask to join: one learner at a time, the others queue.

use jiff::Timestamp;

use super::removal::decide_on;
use super::rule::{Limits, Plan, first, left};
use super::step::Step;
use crate::etcd::members::same_urls;
use crate::etcd::{MemberId, Revision};
use crate::proto::join::Progress;
use crate::proto::removal::Cause;
use crate::proto::{Join, Role};
use crate::roles::blocked::{Blocked, Subject};
use crate::roles::checks::{Managed, Managers, Refusal};
use crate::roles::membership::{Member, Membership, PendingJoin, Reachability};
use crate::roles::owner::{NodeRoles, Owner};
use crate::roles::quorum::{Change, Quorum};
use crate::roles::reason::Reason;
use crate::store::object::member::{is_answered, member_of};
use crate::store::object::time;

impl PendingJoin {
    fn peer_urls(&self) -> &[String] {
        self.join
            .request
            .as_ref()
            .map_or(&[], |request| &request.peer_urls)
    }

    fn uid(&self) -> &str {
        self.join.request.as_ref().map_or("", |request| &request.node_uid)
    }

    /// Whether the peer URLs are used untested.
    fn is_untested(&self) -> bool {
        self.join.request.as_ref().is_some_and(|request| request.no_dial)
    }

    fn is_adding(&self) -> bool {
        self.join.progress() == Progress::Adding
    }

    /// Whether an add on the very peer URLs of the request is decided.
    fn is_decided(&self) -> bool {
        self.is_adding() && same_urls(&self.join.peer_urls, self.peer_urls())
    }

    /// Whether its node may still become a member.
    fn is_eligible(&self) -> bool {
        let manager = |roles: NodeRoles| roles.observed == Role::Manager && roles.desired != Role::Worker;
        self.roles.is_some_and(manager) && !self.removed
    }

    fn block(&self, reason: Reason, message: impl Into<String>) -> Blocked {
        Blocked {
            subject: Subject::Join(self.node.clone()),
            node: self.node.clone(),
            reason,
            message: message.into(),
        }
    }

    fn note(&self, progress: Progress, member: Option<MemberId>, why: Option<(Reason, String)>) -> Step {
        Step::Note {
            node: self.node.clone(),
            member,
            progress,
            why,
        }
    }
}

/// Records members that were added for an intent: a learner without a record that has the peer URLs of the intent. It
/// can belong to no other node, because no member had one of these URLs when the add was decided, and no other intent
/// has one.
pub fn record(membership: &Membership, _: Timestamp, _: &Limits, plan: &mut Plan) -> Option<Step> {
    let adding = membership.joins.iter().filter(|pending| pending.is_adding());
    let made = adding.filter_map(|pending| {
        let member = membership.members.iter().find(|member| {
            let listing = member.listed.as_ref().filter(|listing| listing.learner);
            member.record.is_none()
                && listing.is_some_and(|listing| same_urls(&listing.peer_urls, &pending.join.peer_urls))
        })?;
        let step = Step::Record {
            node: pending.node.clone(),
            member: member.id,
        };
        Some((&*pending.node, Ok(step)))
    });
    first(membership, plan, made)
}

/// Ends joins whose member votes, or is gone.
pub fn conclude(membership: &Membership, _: Timestamp, _: &Limits, plan: &mut Plan) -> Option<Step> {
    let added = membership
        .joins
        .iter()
        .filter(|pending| pending.join.progress() == Progress::Learner && is_answered(&pending.join));
    let ended = added.filter_map(|pending| {
        let id = member_of(&pending.join);
        let note = match id.and_then(|id| membership.member(id)) {
            Some(member) if member.is_voter() && member.cause().is_none() => {
                pending.note(Progress::Voter, id, None)
            }
            // It is still a learner, or it is being removed, which ends the join as well.
            Some(_) => return None,
            None => {
                let message = "its member is no longer in etcd's list".to_owned();
                pending.note(Progress::Removed, id, Some((Reason::Overtaken, message)))
            }
        };
        Some((&*pending.node, Ok(note)))
    });
    first(membership, plan, ended)
}

/// Carries on the joins that have not ended.
pub fn begin(membership: &Membership, now: Timestamp, limits: &Limits, plan: &mut Plan) -> Option<Step> {
    for pending in &membership.joins {
        let blocked = match next(membership, pending, now, limits) {
            JoinStep::AwaitMember => continue,
            JoinStep::Take(step) => match membership.unless_resting(step, &pending.node) {
                Ok(step) => return Some(step),
                Err(resting) => resting,
            },
            JoinStep::Probe => {
                plan.probe.push(pending.node.clone());
                pending.block(Reason::Pending, "its peer URLs are being tested")
            }
            JoinStep::Blocked(blocked) => blocked,
        };
        let note = waiting_note(membership, pending, &blocked);
        plan.blocked.push(blocked);
        if note.is_some() {
            return note;
        }
    }
    None
}

/// Writes to the join why it waits, unless it says so already. Not before every member had its time to answer, not for a
/// wait that is over in an instant, and not over an intent, which must stay.
fn waiting_note(membership: &Membership, pending: &PendingJoin, blocked: &Blocked) -> Option<Step> {
    let lasts = membership.complete && blocked.reason != Reason::Pending && !pending.is_adding();
    let why = Some((blocked.reason, blocked.message.clone()));
    let known = says(&pending.join, Progress::Waiting, None, why.as_ref());
    (lasts && !known).then(|| pending.note(Progress::Waiting, None, why))
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

/// What a join does next.
enum JoinStep {
    /// Take this step.
    Take(Step),
    /// Nothing: the node's etcd starts next, or catches up.
    AwaitMember,
    /// Test the peer URLs before anything else.
    Probe,
    /// Nothing can be done now.
    Blocked(Blocked),
}

impl JoinStep {
    fn refuse(pending: &PendingJoin, refusal: &Refusal) -> Self {
        let why = (refusal.rule, refusal.to_string());
        Self::Take(pending.note(Progress::Refused, None, Some(why)))
    }

    fn blocked(pending: &PendingJoin, reason: Reason, message: impl Into<String>) -> Self {
        Self::Blocked(pending.block(reason, message))
    }
}

/// A reason not to add a learner now, and what the join does instead.
type Guard = fn(&Membership, &PendingJoin, Timestamp, &Limits) -> Option<JoinStep>;

fn next(membership: &Membership, pending: &PendingJoin, now: Timestamp, limits: &Limits) -> JoinStep {
    // Refusals come before waits: what can never be done must not wait. Only then the peer URLs are tested, since that
    // takes its time, and last what depends on the other members.
    let guards: [Guard; 7] = [
        await_earlier_add,
        await_member,
        refuse,
        rejoin,
        probe,
        queue_behind_learner,
        require_quorum,
    ];
    guards
        .iter()
        .find_map(|guard| guard(membership, pending, now, limits))
        .unwrap_or_else(|| add(membership, pending, now, limits))
}

/// An add that is decided may still be made although its node no longer wants it: until that is ruled out, the list is
/// watched for it.
fn await_earlier_add(
    _: &Membership,
    pending: &PendingJoin,
    now: Timestamp,
    limits: &Limits,
) -> Option<JoinStep> {
    let wanted = pending.is_decided() && pending.is_eligible();
    let changed = time::from_proto(pending.join.changed_at.as_ref());
    let in_doubt = pending.is_adding() && !wanted && !left(changed, limits.add_doubt, now).is_zero();
    in_doubt.then(|| {
        let message = "an add that was begun earlier may still be made";
        JoinStep::blocked(pending, Reason::Pending, message)
    })
}

fn await_member(_: &Membership, pending: &PendingJoin, _: Timestamp, _: &Limits) -> Option<JoinStep> {
    let added = pending.join.progress() == Progress::Learner && is_answered(&pending.join);
    added.then_some(JoinStep::AwaitMember)
}

fn refuse(membership: &Membership, pending: &PendingJoin, _: Timestamp, _: &Limits) -> Option<JoinStep> {
    let checked = managers(membership)
        .check_join(&pending.node, pending.roles, pending.removed, pending.peer_urls())
        .and_then(|()| match pending.is_decided() {
            true => Ok(()),
            false => check_other_adds(membership, pending),
        });
    let refusal = checked.err()?;
    Some(JoinStep::refuse(pending, &refusal))
}

/// A member that turns up in the list with these peer URLs must belong to a single node.
fn check_other_adds(membership: &Membership, pending: &PendingJoin) -> Result<(), Refusal> {
    let taken = membership
        .joins
        .iter()
        .filter(|other| other.node != pending.node && other.is_adding())
        .find_map(|other| {
            let mut urls = pending.peer_urls().iter();
            Some((urls.find(|url| other.join.peer_urls.contains(url))?, &other.node))
        });
    taken.map_or(Ok(()), |(url, node)| {
        let message = format_args!("peer URL {url} belongs to node {node}, which is being added");
        Err(Refusal::new(Reason::PeerUrlTaken, message))
    })
}

/// A member that joins again gets its new address; nothing else changes.
fn rejoin(membership: &Membership, pending: &PendingJoin, _: Timestamp, _: &Limits) -> Option<JoinStep> {
    let member = membership.member_of_node(&pending.node, pending.uid())?;
    let listing = member.listed.as_ref()?;
    if member.cause().is_some() {
        let message = format!("its earlier member {} is being removed", member.id);
        return Some(JoinStep::blocked(pending, Reason::RemovalPending, message));
    }
    if same_urls(&listing.peer_urls, pending.peer_urls()) {
        let progress = match listing.learner {
            true => Progress::Learner,
            false => Progress::Voter,
        };
        return Some(JoinStep::Take(pending.note(progress, Some(member.id), None)));
    }
    let listening = match test(pending) {
        Ok(listening) => listening,
        Err(instead) => return Some(instead),
    };
    let step = match listing.learner {
        // etcd before 3.5.31 makes a voter of a learner whose peer URLs change.
        true => decide_on(membership, member, Cause::Replaced),
        false => readdress(membership, pending, member, listening),
    };
    Some(step.map_or_else(JoinStep::Blocked, JoinStep::Take))
}

fn readdress(
    membership: &Membership,
    pending: &PendingJoin,
    member: &Member,
    listening: bool,
) -> Result<Step, Blocked> {
    let change = Change::Readdress {
        member: member.id,
        listening,
    };
    membership.check_quorum(change).map_err(|quorum| {
        let untested = match listening {
            true => "",
            false => ", where no listener was found,",
        };
        let message = format!(
            "with member {} at its new address{untested} etcd would have no healthy quorum: {quorum}",
            member.id
        );
        pending.block(Reason::QuorumRisk, message)
    })?;
    Ok(Step::Readdress {
        node: pending.node.clone(),
        member: member.id,
        through: through(membership, pending)?,
    })
}

fn probe(_: &Membership, pending: &PendingJoin, _: Timestamp, _: &Limits) -> Option<JoinStep> {
    test(pending).err()
}

/// Whether a listener is known to be at the peer URLs, or what the join does instead of going on. An add that is decided
/// goes on although its address has become unreachable; with the next request, it is tested again.
fn test(pending: &PendingJoin) -> Result<bool, JoinStep> {
    match &pending.reachability {
        _ if pending.is_untested() => Ok(false),
        Reachability::Reached { listening } => Ok(*listening),
        Reachability::Pending => Err(JoinStep::Probe),
        Reachability::Unreachable(_) if pending.is_adding() => Ok(false),
        Reachability::Unreachable(why) => {
            let refusal = Refusal::new(Reason::PeerUnreachable, why);
            Err(JoinStep::refuse(pending, &refusal))
        }
    }
}

fn queue_behind_learner(
    membership: &Membership,
    pending: &PendingJoin,
    _: Timestamp,
    _: &Limits,
) -> Option<JoinStep> {
    let learner = membership.members.iter().any(Member::is_learner);
    learner.then(|| {
        let message = "another learner is in the list; etcd takes one at a time";
        JoinStep::blocked(pending, Reason::LearnerPending, message)
    })
}

fn require_quorum(
    membership: &Membership,
    pending: &PendingJoin,
    _: Timestamp,
    _: &Limits,
) -> Option<JoinStep> {
    let quorum = Quorum::of(&membership.votes());
    (!quorum.holds()).then(|| {
        let message = format!("etcd has no healthy quorum: {quorum}");
        JoinStep::blocked(pending, Reason::QuorumRisk, message)
    })
}

/// Commits the intent to add a learner, then adds it. An intent is renewed before it is so old that the member would no
/// longer be looked for.
fn add(membership: &Membership, pending: &PendingJoin, now: Timestamp, limits: &Limits) -> JoinStep {
    let changed = time::from_proto(pending.join.changed_at.as_ref());
    if !pending.is_decided() || left(changed, limits.add_doubt / 2, now).is_zero() {
        return JoinStep::Take(Step::DecideAdd(pending.node.clone()));
    }
    match through(membership, pending) {
        Ok(through) => JoinStep::Take(Step::Add {
            node: pending.node.clone(),
            through,
        }),
        Err(blocked) => JoinStep::Blocked(blocked),
    }
}

fn through(membership: &Membership, pending: &PendingJoin) -> Result<MemberId, Blocked> {
    let through = membership.through(None);
    through.ok_or_else(|| pending.block(Reason::EtcdUnavailable, "no voter answers"))
}

fn managers(membership: &Membership) -> Managers {
    let mut managers = Managers::default();
    for member in &membership.members {
        let (Some(listing), Some(vote)) = (&member.listed, member.vote()) else {
            continue;
        };
        match &member.record {
            None => managers.unmanaged.push((vote, listing.peer_urls.clone())),
            Some(record) => managers.managed.push(Managed {
                vote,
                peer_urls: listing.peer_urls.clone(),
                // What is compared in transactions is taken from the index.
                record: Revision::ABSENT,
                removal: record.removal.is_some(),
                node: record.node.clone(),
                roles: match record.owner {
                    Owner::Node(roles) => Some(roles),
                    Owner::Unknown | Owner::Gone => None,
                },
            }),
        }
    }
    managers
}
