//! Learners that become voters.

use super::rule::{Limits, Plan, first};
use super::step::Step;
use crate::etcd::members::Alarm;
use crate::roles::blocked::Blocked;
use crate::roles::membership::{Member, Membership};
use crate::roles::quorum::Change;
use crate::roles::reason::Reason;

/// Promotes learners whose node is a desired manager.
pub fn promote(membership: &Membership, _: &Limits, plan: &mut Plan) -> Option<Step> {
    let due = membership
        .members
        .iter()
        .filter(|member| member.is_learner() && member.stays());
    let attempts = due.map(|member| {
        let attempt = step(membership, member).or_else(|blocked| match is_void(membership, member) {
            true => Ok(Step::Withdraw(member.id)),
            false => Err(blocked),
        });
        (member.node(), attempt)
    });
    first(membership, plan, attempts)
}

/// Whether the learner has an intent that cannot be carried out now, and of which no call can be under way. Every check would
/// count the learner as a voter that is down.
fn is_void(membership: &Membership, member: &Member) -> bool {
    let decided = member.record.as_ref().is_some_and(|record| record.promotion);
    decided && member.quiet && membership.complete
}

fn step(membership: &Membership, member: &Member) -> Result<Step, Blocked> {
    if !member.has_started() {
        return Err(member.block(
            Reason::LearnerNotStarted,
            format_args!("the etcd of learner {} has not been started", member.id),
        ));
    }
    if member.corrupt {
        let (id, remedy, node) = (member.id, Alarm::BEFORE_REPLACEMENT, member.node());
        let message =
            format_args!("the data of learner {id} is corrupt: {remedy}, then quorate replace {node}");
        return Err(member.block(Reason::EtcdAlarm, message));
    }
    if let Err(why) = member.evidence.health() {
        let urls = member.listed.as_ref().map(|listed| listed.client_urls.join(", "));
        return Err(member.block(
            Reason::LearnerNotInSync,
            format_args!(
                "learner {} does not answer at {}: {why}",
                member.id,
                urls.unwrap_or_default()
            ),
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
