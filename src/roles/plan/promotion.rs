//! Learners that are to vote.

use jiff::Timestamp;

use super::{Blocked, Limits, Picture, Plan, Seat, Step, first};
use crate::roles::quorum::Change;
use crate::roles::reason::Reason;

/// Learners of desired managers.
pub fn promote(picture: &Picture, _: Timestamp, _: &Limits, plan: &mut Plan) -> Option<Step> {
    let due = picture
        .seats
        .iter()
        .filter(|seat| seat.is_learner() && seat.cause().is_none() && seat.is_wanted());
    let attempts = due.map(|seat| (seat.node(), step(picture, seat)));
    first(picture, plan, attempts)
}

fn step(picture: &Picture, seat: &Seat) -> Result<Step, Blocked> {
    let (Some(place), Some(tie)) = (&seat.listed, &seat.record) else {
        return Err(seat.block(Reason::NotAMember, "it is not in the list"));
    };
    if !place.started {
        return Err(seat.block(
            Reason::LearnerNotStarted,
            format_args!("the etcd of learner {} has not been started", seat.id),
        ));
    }
    if !place.healthy {
        return Err(seat.block(
            Reason::LearnerNotInSync,
            format_args!("learner {} does not answer", seat.id),
        ));
    }
    picture.check_quorum(Change::Promote(seat.id)).map_err(|quorum| {
        let message = format!(
            "with learner {} as a voter etcd would have no healthy quorum: {quorum}",
            seat.id
        );
        seat.block(Reason::QuorumRisk, message)
    })?;
    if !tie.promotion {
        return Ok(Step::DecidePromotion(seat.id));
    }
    let through = picture
        .through(None)
        .ok_or_else(|| seat.block(Reason::EtcdUnavailable, "no voter answers"))?;
    Ok(Step::Promote {
        member: seat.id,
        through,
    })
}
