//! Members that go: demoted, of nodes that are gone, never started, replaced.

use jiff::Timestamp;

use super::{Blocked, Limits, Picture, Plan, Seat, Step, Whose, first, left};
use crate::etcd::MemberId;
use crate::proto::removal::Cause;
use crate::roles::quorum::Change;
use crate::roles::reason::Reason;

/// What is not in the list need not be removed: the end of every removal, whoever made it.
pub fn forget(picture: &Picture, _: Timestamp, _: &Limits, plan: &mut Plan) -> Option<Step> {
    let gone = picture
        .seats
        .iter()
        .filter(|seat| seat.listed.is_none() && seat.record.is_some());
    let attempts = gone.map(|seat| (seat.node(), Ok(Step::Forget(seat.id))));
    first(picture, plan, attempts)
}

/// Removals that were decided on.
pub fn carry_out(picture: &Picture, _: Timestamp, _: &Limits, plan: &mut Plan) -> Option<Step> {
    let decided = picture.seats.iter().filter(|seat| {
        let removal = seat.record.as_ref().is_some_and(|tie| tie.removal.is_some());
        removal && seat.listed.is_some()
    });
    let attempts = decided.map(|seat| (seat.node(), remove(picture, seat)));
    first(picture, plan, attempts)
}

fn remove(picture: &Picture, seat: &Seat) -> Result<Step, Blocked> {
    check(picture, seat)?;
    let unavailable = |message: &str| seat.block(Reason::EtcdUnavailable, message);
    if seat.is_voter() {
        let leader = picture
            .raft_leader
            .ok_or_else(|| unavailable("no raft leader is known"))?;
        if leader == seat.id {
            let blocked = || seat.block(Reason::LeadershipNotMoved, "no other voter can lead");
            let (stays, to) = successor(picture, seat).ok_or_else(blocked)?;
            // One that is to go next would pass it on at once: a better one may still answer.
            if !stays && !picture.complete {
                return Err(blocked());
            }
            return Ok(Step::MoveLeadership { from: seat.id, to });
        }
    }
    let through = picture
        .through(Some(seat.id))
        .ok_or_else(|| unavailable("no other voter answers"))?;
    Ok(Step::Remove {
        member: seat.id,
        through,
    })
}

/// The healthiest other voter: one that stays rather than one that goes, then the one that has come farthest.
fn successor(picture: &Picture, leaving: &Seat) -> Option<(bool, MemberId)> {
    let others = picture
        .seats
        .iter()
        .filter(|seat| seat.id != leaving.id && seat.is_voter());
    let healthy = others.filter_map(|seat| {
        let place = seat.listed.as_ref().filter(|place| place.healthy)?;
        Some((seat.cause().is_none(), place.applied, seat.id))
    });
    healthy.max().map(|(stays, _, id)| (stays, id))
}

/// Removals that are to be decided on.
pub fn decide(picture: &Picture, now: Timestamp, limits: &Limits, plan: &mut Plan) -> Option<Step> {
    let undecided = picture.seats.iter().filter(|seat| {
        let open = seat.record.as_ref().is_some_and(|tie| tie.removal.is_none());
        open && seat.listed.is_some()
    });
    let attempts = undecided.filter_map(|seat| {
        let cause = seat.cause().or_else(|| never_started(seat, now, limits))?;
        Some((seat.node(), decide_on(picture, seat, cause)))
    });
    first(picture, plan, attempts)
}

/// The intent to remove a member, if nothing speaks against that.
pub fn decide_on(picture: &Picture, seat: &Seat, cause: Cause) -> Result<Step, Blocked> {
    match cause {
        Cause::Demoted => check_last_manager(picture, seat)?,
        Cause::NodeGone => check_nodes_are_there(picture, seat)?,
        Cause::NeverStarted | Cause::Replaced | Cause::Unspecified => {}
    }
    check(picture, seat)?;
    Ok(Step::DecideRemoval(seat.id, cause))
}

fn never_started(seat: &Seat, now: Timestamp, limits: &Limits) -> Option<Cause> {
    let (place, tie) = (seat.listed.as_ref()?, seat.record.as_ref()?);
    let late = left(tie.joined_at, limits.learner_timeout, now).is_zero();
    (place.learner && !place.started && late).then_some(Cause::NeverStarted)
}

/// INV-5.
fn check(picture: &Picture, seat: &Seat) -> Result<(), Blocked> {
    picture.check_quorum(Change::Remove(seat.id)).map_err(|quorum| {
        let message = format!(
            "without member {} etcd would have no healthy quorum: {quorum}",
            seat.id
        );
        seat.block(Reason::QuorumRisk, message)
    })
}

/// The commands refuse to demote the last manager; a desired role may have been written without them.
fn check_last_manager(picture: &Picture, seat: &Seat) -> Result<(), Blocked> {
    // One whose node cannot be read is not known to be a manager, though it is left alone.
    let stays = |other: &Seat| other.is_wanted() && other.cause().is_none() && other.is_voter();
    if seat.is_learner() || picture.seats.iter().any(stays) {
        return Ok(());
    }
    Err(seat.block(
        Reason::LastManager,
        "it is the last manager: no other desired manager is a voter",
    ))
}

/// Where not one recorded member has its node, the records of nodes are missing rather than all nodes gone: an empty or
/// wrong prefix, a restored backup. A node that exists, whoever it is, with its member in the list is the proof that the
/// nodes were read.
fn check_nodes_are_there(picture: &Picture, seat: &Seat) -> Result<(), Blocked> {
    let has_node = |other: &Seat| {
        let tie = other.record.as_ref();
        other.listed.is_some() && tie.is_some_and(|tie| matches!(tie.owner, Whose::Node(_)))
    };
    if picture.seats.iter().any(has_node) {
        return Ok(());
    }
    Err(seat.block(
        Reason::NodesMissing,
        "not one recorded member has its node: nothing is removed while the nodes themselves may be what is missing",
    ))
}
