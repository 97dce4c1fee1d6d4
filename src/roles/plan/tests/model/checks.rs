//! What holds for each step, and where no step is left.

use super::super::*;
use super::left::Left;
use super::world::{ADDED, World};
use crate::roles::blocked::Blocked;

/// INV-12: no member goes that its node wants and that answers, nor one whose node cannot be read. INV-3: none goes without an
/// intent.
pub fn check_grounds(world: &World, step: &Step) {
    let (id, decides) = match step {
        Step::Remove { member, .. } => (*member, false),
        Step::DecideRemoval(member, _) => (*member, true),
        _ => return,
    };
    let member = world.membership.member(id).expect("a step is about a member");
    assert!(
        decides || member.removal().is_some(),
        "{step} without an intent: {world:#?}"
    );
    // Learners may be late.
    if member.is_learner() || world.is_unwanted(member) && (decides || !member.is_wanted()) {
        return;
    }
    let replaces = world.replaced() == Some(id);
    // A call of it may have been made on the grounds of before.
    let finishes = !decides && world.in_doubt.contains(&id) && member.is_wanted();
    let given_up = member.removal() == Some(Cause::Demoted) || !world.alive.contains(&id);
    assert!(
        replaces || finishes && given_up,
        "{step} without grounds: {world:#?}"
    );
}

/// INV-5: whether or not the call that is under way is carried out first.
pub fn check_safe(world: &World, step: &Step) {
    let changes = matches!(
        step,
        Step::Remove { .. } | Step::Promote { .. } | Step::Readdress { .. }
    );
    let flight = world
        .flight
        .iter()
        .filter(|call| *call != step && world.is_due(call));
    let mut landed = vec![world.clone()];
    landed.extend(flight.map(|call| {
        let mut landed = world.clone();
        landed.take(call);
        landed
    }));
    for mut world in landed.into_iter().filter(|world| changes && world.is_due(step)) {
        world.take(step);
        let voters = world.voters();
        assert!(world.has_safe_quorum(&voters), "{step}: {world:#?}");
    }
}

/// Nothing is done although all time has passed.
pub fn check_done(world: &World, blocked: &[Blocked]) {
    let left = Left::of(world);
    let has_quorum = world.has_safe_quorum(&left.voters);
    // A node that has yet to join would be alive.
    let mut with_joiner = world.clone();
    if world.membership.member(ADDED).is_none() {
        with_joiner.alive.insert(ADDED);
    }
    assert!(
        !has_quorum || left.is_done() || !left.can_be_done(&with_joiner),
        "a safe sequence exists, but no step: {:#?}\n{world:#?}",
        blocked
    );
    for member in world.membership.listed() {
        let idle = member.record.as_ref().is_none_or(|record| {
            let moved = !member.stays() || record.readdress.is_none() || world.has_not_found(member);
            let removal = record.removal.filter(|_| member.is_wanted());
            let withdrawn = removal.is_none() || world.replaced() == Some(member.id);
            moved && withdrawn && !(record.promotion && member.is_learner() && has_quorum && member.stays())
        });
        assert!(
            idle || !has_quorum,
            "an intent never ends: {:#?}\n{world:#?}",
            blocked
        );
        let moves = world
            .membership
            .joins
            .iter()
            .any(|pending| pending.node == member.node());
        assert!(
            !(moves && has_quorum && member.stays() && world.found.contains(&member.id)),
            "a voter could move: {:#?}\n{world:#?}",
            blocked
        );
    }
}

impl World {
    fn has_not_found(&self, member: &Member) -> bool {
        member.is_at(new_join().peer_urls()) && !self.found.contains(&member.id)
    }
}
