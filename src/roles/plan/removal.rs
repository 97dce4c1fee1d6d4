//! Members that are removed: demoted, without a node, never started, or replaced.

use jiff::Timestamp;

use super::rule::{Limits, Plan, first, left};
use super::step::Step;
use crate::etcd::MemberId;
use crate::proto::removal::Cause;
use crate::roles::blocked::Blocked;
use crate::roles::membership::{Member, Membership};
use crate::roles::owner::Owner;
use crate::roles::quorum::Change;
use crate::roles::reason::Reason;

/// Deletes records of members that are no longer in the list: the end of every removal, whether Quorate or an operator
/// removed the member.
pub fn forget(membership: &Membership, _: Timestamp, _: &Limits, plan: &mut Plan) -> Option<Step> {
    let gone = membership
        .members
        .iter()
        .filter(|member| member.listed.is_none() && member.record.is_some());
    let attempts = gone.map(|member| (member.node(), Ok(Step::Forget(member.id))));
    first(membership, plan, attempts)
}

/// Carries out removals that are decided.
pub fn carry_out(membership: &Membership, _: Timestamp, _: &Limits, plan: &mut Plan) -> Option<Step> {
    let decided = membership.listed().filter(|member| member.removal().is_some());
    let attempts = decided.map(|member| (member.node(), remove(membership, member)));
    first(membership, plan, attempts)
}

fn remove(membership: &Membership, member: &Member) -> Result<Step, Blocked> {
    check(membership, member)?;
    let unavailable = |message: &str| member.block(Reason::EtcdUnavailable, message);
    if member.is_voter() {
        let leader = membership
            .raft_leader
            .ok_or_else(|| unavailable("no raft leader is known"))?;
        if leader == member.id {
            let blocked = || member.block(Reason::LeadershipNotMoved, "no other voter can lead");
            let (stays, to) = successor(membership, member).ok_or_else(blocked)?;
            // A successor that leaves next would soon hand leadership over again; one that stays may still answer.
            if !stays && !membership.complete {
                return Err(blocked());
            }
            return Ok(Step::MoveLeadership { from: member.id, to });
        }
    }
    let through = membership
        .through(Some(member.id))
        .ok_or_else(|| unavailable("no other voter answers"))?;
    Ok(Step::Remove {
        member: member.id,
        through,
    })
}

/// The best other voter to lead, and whether it stays: a healthy one that stays rather than one that leaves, then the one
/// that has applied the most.
fn successor(membership: &Membership, leaving: &Member) -> Option<(bool, MemberId)> {
    let others = membership.voters().filter(|member| member.id != leaving.id);
    let healthy = others.filter(|member| member.is_healthy());
    let ranked = healthy.map(|member| (member.cause().is_none(), member.applied_index(), member.id));
    ranked.max().map(|(stays, _, id)| (stays, id))
}

/// Decides on removals.
pub fn decide(membership: &Membership, now: Timestamp, limits: &Limits, plan: &mut Plan) -> Option<Step> {
    let undecided = membership.listed().filter(|member| member.removal().is_none());
    let attempts = undecided.filter_map(|member| {
        let attempt = match member.cause().or_else(|| never_started(member, now, limits)) {
            Some(cause) => decide_on(membership, member, cause),
            None if member.owner() == Some(Owner::Missing) => Err(node_missing(member)),
            None => return None,
        };
        Some((member.node(), attempt))
    });
    first(membership, plan, attempts)
}

/// INV-12: a key that is absent may have been deleted by mistake.
fn node_missing(member: &Member) -> Blocked {
    let node = member.node();
    let message = format!(
        "its node has no record of removal: quorate adopt {} restores the node, quorate delete node {node} removes the member",
        member.id
    );
    member.block(Reason::NodeMissing, message)
}

/// The intent to remove a member, unless a rule forbids it.
pub fn decide_on(membership: &Membership, member: &Member, cause: Cause) -> Result<Step, Blocked> {
    match cause {
        Cause::Demoted => check_last_manager(membership, member)?,
        Cause::NodeGone => check_nodes_exist(membership, member)?,
        Cause::NeverStarted | Cause::Replaced | Cause::Unspecified => {}
    }
    check(membership, member)?;
    Ok(Step::DecideRemoval(member.id, cause))
}

fn never_started(member: &Member, now: Timestamp, limits: &Limits) -> Option<Cause> {
    let late = left(member.record.as_ref()?.joined_at, limits.learner_timeout, now).is_zero();
    (member.is_learner() && !member.has_started() && late).then_some(Cause::NeverStarted)
}

/// INV-5.
fn check(membership: &Membership, member: &Member) -> Result<(), Blocked> {
    let without = format_args!("without member {}", member.id);
    let checked = membership.check_quorum(Change::Remove(member.id), without);
    checked.map_err(|why| member.block(Reason::QuorumRisk, why))
}

/// The commands refuse to demote the last manager, but a desired role may have been written without them.
fn check_last_manager(membership: &Membership, member: &Member) -> Result<(), Blocked> {
    // A member whose node cannot be read is left alone, but is not known to be a manager.
    if member.is_learner() || membership.voters().any(Member::stays) {
        return Ok(());
    }
    Err(member.block(
        Reason::LastManager,
        "it is the last manager: no other desired manager is a voter",
    ))
}

/// If no recorded member has an existing node, the nodes themselves are probably missing: the prefix is empty or wrong, or
/// a backup was restored. Any existing node with a listed member proves that the nodes were read.
fn check_nodes_exist(membership: &Membership, member: &Member) -> Result<(), Blocked> {
    if membership.listed().any(|other| other.roles().is_some()) {
        return Ok(());
    }
    Err(member.block(
        Reason::NodesMissing,
        "no recorded member has an existing node; removing none (check --prefix)",
    ))
}
