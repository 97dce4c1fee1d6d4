//! Members that are removed: demoted, without a node, never started, or replaced.

use std::time::Duration;

use super::rule::{Limits, Plan, first};
use super::step::Step;
use crate::etcd::MemberId;
use crate::etcd::members::{NotAsked, Unproven};
use crate::proto::Role;
use crate::proto::removal::Cause;
use crate::roles::blocked::Blocked;
use crate::roles::membership::{Member, Membership};
use crate::roles::owner::Owner;
use crate::roles::quorum::{Change, Quorum};
use crate::roles::reason::Reason;

/// Deletes records of members that are no longer in the list: the end of every removal, whether Quorate or an operator
/// removed the member.
pub fn forget(membership: &Membership, _: &Limits, plan: &mut Plan) -> Option<Step> {
    let gone = membership
        .members
        .iter()
        .filter(|member| member.listed.is_none() && member.record.is_some());
    let attempts = gone.map(|member| (member.node(), Ok(Step::Forget(member.id))));
    first(membership, plan, attempts)
}

/// Carries out removals that are decided, and withdraws those whose grounds are gone.
pub fn carry_out(membership: &Membership, limits: &Limits, plan: &mut Plan) -> Option<Step> {
    let decided = membership.listed().filter(|member| member.removal().is_some());
    let attempts = corrupt_first(decided).into_iter().map(|member| {
        let attempt = match has_grounds(membership, member, limits) {
            Ok(true) => remove(membership, member),
            Ok(false) if member.quiet => Ok(Step::Withdraw(member.id)),
            Ok(false) => finish(membership, member),
            Err(blocked) => Err(blocked),
        };
        (member.node(), attempt)
    });
    first(membership, plan, attempts)
}

/// A member whose data is corrupt counts for nothing, so it goes before those that do. Nothing is decided meanwhile: etcd
/// refuses to write.
fn corrupt_first<'m>(members: impl Iterator<Item = &'m Member>) -> Vec<&'m Member> {
    let mut members: Vec<&Member> = members.collect();
    members.sort_by_key(|member| !member.corrupt);
    members
}

/// Takes the raft leadership from a member whose data is corrupt: the others would follow it.
pub fn depose(membership: &Membership, _: &Limits, plan: &mut Plan) -> Option<Step> {
    let leads =
        |member: &&Member| member.corrupt && Some(member.id) == membership.raft_leader && member.stays();
    let leader = membership.voters().find(leads);
    let attempts = leader.filter(|_| membership.complete).map(|leader| {
        let blocked = || {
            leader.block(
                Reason::LeadershipNotMoved,
                "its data is corrupt, and no other voter can lead",
            )
        };
        let attempt = successor(membership, leader).ok_or_else(blocked);
        let from = leader.id;
        (
            leader.node(),
            attempt.map(|(_, to)| Step::MoveLeadership { from, to }),
        )
    });
    first(membership, plan, attempts.into_iter())
}

/// Whether what a removal was decided for still holds.
fn has_grounds(membership: &Membership, member: &Member, limits: &Limits) -> Result<bool, Blocked> {
    let cause = member.removal();
    if !matches!(cause, Some(Cause::Demoted | Cause::DataLost)) {
        return Ok(true);
    }
    // INV-12: a node that cannot be read may be a manager that keeps its member.
    let unread = match member.owner() {
        Some(Owner::Node(roles)) => match roles.desired {
            Role::Worker => return Ok(true),
            Role::Manager if cause == Some(Cause::Demoted) => return Ok(false),
            Role::Manager => return is_replaced(membership, member),
            Role::Unspecified => {
                member.block(Reason::NodeMissing, "the desired role of its node cannot be read")
            }
        },
        Some(Owner::Unknown) => member.block(Reason::NodeMissing, "its node cannot be read"),
        Some(Owner::Missing) => node_missing(member),
        Some(Owner::Removed) | None => return Ok(true),
    };
    // A learner that is late makes way for others, whatever its node is.
    late(membership, member, limits).map_or(Err(unread), |_| Ok(true))
}

/// Whether a join replaces the member, and the member is lost.
fn is_replaced(membership: &Membership, member: &Member) -> Result<bool, Blocked> {
    let mut joins = membership.joins.iter();
    match joins.find(|pending| pending.replaces() == Some(member.id)) {
        Some(pending) => is_lost(membership, member, pending.is_forced()),
        None => Ok(false),
    }
}

/// What becomes of a removal without grounds while a call of it may be under way, as one of an earlier term may: it waits until
/// it can be withdrawn. Only a member without its data is not kept for that: it is removed, and the node may join again.
fn finish(membership: &Membership, member: &Member) -> Result<Step, Blocked> {
    let (reason, what) = match member.removal() {
        Some(Cause::DataLost) if is_lost(membership, member, false)? => return remove(membership, member),
        Some(Cause::DataLost) => (Reason::MemberHealthy, "it answers again"),
        _ => (Reason::Pending, "its node is a manager again"),
    };
    let message = format_args!("{what}; its removal is withdrawn once no call of it can be under way");
    Err(member.block(reason, message))
}

/// Whether a member that is replaced is without its data, as far as can be seen: the data is corrupt, or it does not answer,
/// although it had its time. The command has seen that as well, but the leader may come to the request much later.
pub fn is_lost(membership: &Membership, member: &Member, forced: bool) -> Result<bool, Blocked> {
    if forced || member.corrupt {
        return Ok(true);
    }
    match member.evidence.read.result() {
        Ok(()) => Ok(false),
        // Its silence proves nothing.
        Err(Unproven::NotAsked(NotAsked::RemovalBegun)) => {
            let message = "it is replaced, and is asked again once no call of its removal can be under way";
            Err(member.block(Reason::Pending, message))
        }
        Err(_) if !membership.complete => {
            Err(member.block(Reason::Pending, "it is replaced, but may still answer"))
        }
        Err(_) => Ok(true),
    }
}

fn remove(membership: &Membership, member: &Member) -> Result<Step, Blocked> {
    check(membership, member)?;
    let unavailable = |message: &str| member.block(Reason::EtcdUnavailable, message);
    if member.is_voter() {
        let leader = membership
            .raft_leader
            .ok_or_else(|| unavailable("no raft leader is known"))?;
        if leader == member.id && !may_go_as_leader(membership, member) {
            let blocked = || member.block(Reason::LeadershipNotMoved, "no other voter can lead");
            let (stays, to) = successor(membership, member).ok_or_else(blocked)?;
            // A successor that leaves next would soon hand leadership over again; one that stays may still answer. So may the
            // leader, without which nothing can be transferred.
            let may_succeed = stays && member.is_healthy();
            if !(membership.complete || may_succeed) {
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

/// Whether the raft leader may be removed without a transfer of its leadership, which it alone could make: it does not
/// answer, and the others are a majority of the voters as they are, so that they can elect the next leader whether or not they
/// have learnt of the removal.
fn may_go_as_leader(membership: &Membership, leader: &Member) -> bool {
    let stay = |member: &&Member| member.is_healthy() && member.removal().is_none();
    let voters = membership.voters().count();
    let healthy = membership.voters().filter(stay).count();
    membership.complete && !leader.is_healthy() && Quorum { voters, healthy }.holds()
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
pub fn decide(membership: &Membership, limits: &Limits, plan: &mut Plan) -> Option<Step> {
    let undecided = membership.listed().filter(|member| member.removal().is_none());
    let attempts = undecided.filter_map(|member| {
        let attempt = match member.cause().or_else(|| late(membership, member, limits)) {
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
        Cause::NeverStarted | Cause::Stalled | Cause::Replaced | Cause::DataLost | Cause::Unspecified => {}
    }
    check(membership, member)?;
    Ok(Step::DecideRemoval(member.id, cause))
}

/// A learner that makes no progress for too long. It takes the one place that etcd has for learners. One that was started
/// may be receiving a snapshot, and has applied nothing of it until it has all of it.
fn late(membership: &Membership, member: &Member, limits: &Limits) -> Option<Cause> {
    if !member.is_learner() || member.record.is_none() {
        return None;
    }
    let (cause, receiving) = match member.has_started() {
        true => (Cause::Stalled, Limits::snapshot_time(membership.db_size())),
        false => (Cause::NeverStarted, Duration::ZERO),
    };
    (member.idle >= limits.learner_timeout + receiving).then_some(cause)
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
    // A learner counts for nothing.
    if member.is_learner() || membership.listed().any(|other| other.roles().is_some()) {
        return Ok(());
    }
    Err(member.block(
        Reason::NodesMissing,
        "no recorded member has an existing node; removing none (check --prefix)",
    ))
}
