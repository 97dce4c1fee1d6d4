//! Plans that are wrong on purpose: the model finds each of them out.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use super::*;
use crate::etcd::members::Inquiry;

/// Explores small worlds.
fn explore_small(explored: &mut Explored) {
    replaced::explore_all(explored, 2);
    multisets(2 * KINDS.len(), 2, &mut |voters| {
        if voters.is_empty() {
            return;
        }
        for learner in std::iter::once(None).chain((0..LEARNERS.len()).map(Some)) {
            explore(explored, voters, learner, Joins::None, 1, 1);
        }
    });
}

/// What the model says first about a plan, in the worlds that are explored.
fn fault_of(planner: Planner, explore: impl FnOnce(&mut Explored)) -> String {
    let explored = catch_unwind(AssertUnwindSafe(|| explore(&mut Explored::by(planner))));
    let fault = explored.expect_err("the model finds no fault");
    let text = fault.downcast_ref::<String>();
    text.expect("an assertion says what is wrong").clone()
}

/// The right plan of a membership that is seen otherwise.
fn seen(membership: &Membership, change: impl Fn(&mut Member)) -> Plan {
    let mut membership = membership.clone();
    membership.members.iter_mut().for_each(change);
    next(&membership)
}

/// The right plan without the steps of a kind.
fn without(membership: &Membership, kind: impl Fn(&Step) -> bool) -> Plan {
    let mut plan = next(membership);
    plan.step.take_if(|step| kind(step));
    plan
}

fn owned_by(member: &mut Member, before: Owner, now: Owner) {
    let record = member.record.as_mut();
    if let Some(record) = record.filter(|record| record.owner == before) {
        record.owner = now;
    }
}

/// Checks that the model finds fault with a plan in the worlds that are explored, and why.
#[track_caller]
pub fn is_found_out(planner: Planner, what: &str, explore: impl FnOnce(&mut Explored)) {
    let fault = fault_of(planner, explore);
    let first = fault.lines().next().unwrap_or_default();
    assert!(first.contains(what), "{what:?} is not in {first:?}");
}

pub fn takes_every_member_for_healthy(membership: &Membership) -> Plan {
    let joins = membership.joins.iter();
    let replaced: Vec<_> = joins.filter_map(PendingJoin::replaces).collect();
    seen(membership, |member| {
        let is_lost = member.removal() == Some(Cause::DataLost) || replaced.contains(&member.id);
        if !is_lost {
            let (at, answer) = (Instant::now(), Ok(()));
            member.evidence.read = Inquiry::Asked { at, answer };
        }
    })
}

#[test]
fn one_that_takes_every_member_for_healthy() {
    is_found_out(takes_every_member_for_healthy, "remove member", explore_small);
}

#[test]
fn one_that_carries_a_replacement_out_without_grounds() {
    let wrong = |membership: &Membership| {
        let mut plan = next(membership);
        let decided = |member: &&Member| member.removal() == Some(Cause::DataLost);
        if let Some(member) = membership.voters().find(decided)
            && let Some(through) = membership.through(Some(member.id))
            && matches!(plan.step, None | Some(Step::Withdraw(_)))
        {
            let member = member.id;
            plan.step = Some(Step::Remove { member, through });
        }
        plan
    };
    is_found_out(wrong, "without grounds", explore_small);
}

#[test]
fn one_that_carries_out_a_demotion_that_was_withdrawn() {
    let wrong = |membership: &Membership| {
        let mut plan = next(membership);
        let withdrawn = |member: &&Member| member.removal() == Some(Cause::Demoted) && member.is_wanted();
        if let Some(member) = membership.voters().find(withdrawn)
            && let Some(through) = membership.through(Some(member.id))
            && plan.step.is_none()
        {
            let member = member.id;
            plan.step = Some(Step::Remove { member, through });
        }
        plan
    };
    is_found_out(wrong, "without grounds", explore_small);
}

#[test]
fn one_that_takes_a_missing_node_for_a_removed_one() {
    let wrong = |membership: &Membership| {
        seen(membership, |member| {
            owned_by(member, Owner::Missing, Owner::Removed);
        })
    };
    is_found_out(wrong, "without grounds", explore_small);
}

#[test]
fn one_that_takes_a_node_that_cannot_be_read_for_a_removed_one() {
    let wrong = |membership: &Membership| {
        seen(membership, |member| {
            owned_by(member, Owner::Unknown, Owner::Removed);
        })
    };
    is_found_out(wrong, "without grounds", explore_small);
}

pub fn removes_without_an_intent(membership: &Membership) -> Plan {
    let mut plan = next(membership);
    if let Some(Step::DecideRemoval(member, _)) = plan.step
        && let Some(through) = membership.through(Some(member))
    {
        plan.step = Some(Step::Remove { member, through });
    }
    plan
}

#[test]
fn one_that_removes_without_an_intent() {
    is_found_out(removes_without_an_intent, "without an intent", explore_small);
}

pub fn withdraws_no_intent(membership: &Membership) -> Plan {
    without(membership, |step| matches!(step, Step::Withdraw(_)))
}

#[test]
fn one_that_withdraws_no_intent() {
    is_found_out(withdraws_no_intent, "an intent never ends", explore_small);
}

#[test]
fn one_that_evicts_no_late_learner() {
    let wrong = |membership: &Membership| {
        let late = |step: &Step| matches!(step, Step::DecideRemoval(_, Cause::NeverStarted | Cause::Stalled));
        without(membership, late)
    };
    is_found_out(wrong, "a safe sequence exists, but no step", explore_small);
}

pub fn decides_again_and_again(membership: &Membership) -> Plan {
    let mut plan = next(membership);
    if let Some(Step::Remove { member, .. }) = plan.step {
        plan.step = Some(Step::DecideRemoval(member, Cause::Demoted));
    }
    plan
}

#[test]
fn one_that_decides_again_and_again() {
    is_found_out(decides_again_and_again, "the steps never end", explore_small);
}
