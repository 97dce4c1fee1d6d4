//! Learners that become voters.

use jiff::Timestamp;

use super::rule::{Limits, Plan, first};
use super::step::Step;
use crate::roles::blocked::Blocked;
use crate::roles::membership::{Member, Membership};
use crate::roles::quorum::Change;
use crate::roles::reason::Reason;

/// Promotes learners whose node is a desired manager.
pub fn promote(membership: &Membership, _: Timestamp, _: &Limits, plan: &mut Plan) -> Option<Step> {
    let due = membership
        .members
        .iter()
        .filter(|member| member.is_learner() && member.stays());
    let attempts = due.map(|member| (member.node(), step(membership, member)));
    first(membership, plan, attempts)
}

fn step(membership: &Membership, member: &Member) -> Result<Step, Blocked> {
    if !member.has_started() {
        return Err(member.block(
            Reason::LearnerNotStarted,
            format_args!("the etcd of learner {} has not been started", member.id),
        ));
    }
    if !member.is_healthy() {
        return Err(member.block(
            Reason::LearnerNotInSync,
            format_args!("learner {} does not answer", member.id),
        ));
    }
    let with = format_args!("with learner {} as a voter", member.id);
    let checked = membership.check_quorum(Change::Promote(member.id), with);
    checked.map_err(|why| member.block(Reason::QuorumRisk, why))?;
    if !member.record.as_ref().is_some_and(|record| record.promotion) {
        return Ok(Step::DecidePromotion(member.id));
    }
    let through = membership
        .through(None)
        .ok_or_else(|| member.block(Reason::EtcdUnavailable, "no voter answers"))?;
    Ok(Step::Promote {
        member: member.id,
        through,
    })
}
