//! What holds for each step, and where no step is left.

use super::super::*;
use super::left::Left;
use super::world::World;
use crate::roles::blocked::Blocked;

/// INV-5: whatever is under way.
pub const QUORUM: &str = "no step costs the quorum";
/// INV-12, INV-3.
pub const GROUNDS: &str = "no member goes without grounds and an intent";
pub const ALARM: &str = "under an alarm nothing is decided, and what was decided is carried out";
pub const LIMIT: &str = "no node is added beside a learner, or beyond the limit of voters";
/// INV-5, the other half.
pub const DONE: &str = "no step is missed, and no intent stays for ever";

/// A rule that is broken.
#[derive(Debug)]
pub struct Fault {
    /// One of the rules above.
    pub rule: &'static str,
    /// What breaks it.
    pub what: String,
}

pub type Checked = Result<(), Fault>;

fn expect(holds: bool, rule: &'static str, what: impl FnOnce() -> String) -> Checked {
    match holds {
        true => Ok(()),
        false => Err(Fault { rule, what: what() }),
    }
}

/// What holds for a step.
pub fn check_step(world: &World, step: &Step) -> Checked {
    check_grounds(world, step)?;
    check_safe(world, step)?;
    check_alarm(world, step)?;
    check_limit(world, step)
}

/// INV-12: no member goes that its node wants and that answers, nor one whose node cannot be read. INV-3: none goes without an
/// intent.
fn check_grounds(world: &World, step: &Step) -> Checked {
    let (id, decides) = match step {
        Step::Remove { member, .. } => (*member, false),
        Step::DecideRemoval(member, _) => (*member, true),
        _ => return Ok(()),
    };
    let member = world.membership.member(id).expect("a step is about a member");
    let is_intended = decides || member.removal().is_some();
    expect(is_intended, GROUNDS, || format!("{step} without an intent"))?;
    // Learners may be late.
    if member.is_learner() || world.is_unwanted(member) && (decides || !member.is_wanted()) {
        return Ok(());
    }
    let replaces = world.replaced() == Some(id);
    // A call of it may have been made on the grounds of before. A demoted member that its node wants again is kept all the same.
    let finishes = !decides && world.in_doubt.contains(&id) && member.is_wanted();
    let given_up = member.removal() == Some(Cause::DataLost) && !world.alive.contains(&id);
    expect(replaces || finishes && given_up, GROUNDS, || {
        format!("{step} without grounds")
    })
}

/// INV-5: whether or not the call that is under way is carried out first. That the data of a member is corrupt counts as far as it
/// can be known.
fn check_safe(world: &World, step: &Step) -> Checked {
    let mut known = world.clone();
    known.raised = known.raised.filter(|_| world.sees_alarm());
    let world = &known;
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
        let holds = world.has_safe_quorum(&voters);
        expect(holds, QUORUM, || {
            format!("{step}, which leaves voters {voters:?}")
        })?;
    }
    Ok(())
}

/// Nothing is decided and nothing is added whose record etcd would refuse, as far as the alarm can be known.
fn check_alarm(world: &World, step: &Step) -> Checked {
    expect(!(world.sees_alarm() && step.is_written()), ALARM, || {
        format!("{step}, although etcd takes no writes")
    })
}

/// One learner at a time, and none that would be a voter too many.
fn check_limit(world: &World, step: &Step) -> Checked {
    let Step::DecideAdd(node) = step else {
        return Ok(());
    };
    let mut joins = world.membership.joins.iter();
    // A decision that stands is only renewed.
    let is_renewed = joins.any(|pending| pending.node == *node && pending.is_adding());
    let voters = world.voters().len();
    expect(is_renewed || voters < world.max_voters, LIMIT, || {
        format!("{step} beside {voters} voters, of at most {}", world.max_voters)
    })?;
    let learners = world.membership.listed().filter(|member| member.is_learner());
    expect(is_renewed || learners.count() == 0, LIMIT, || {
        format!("{step} beside a learner")
    })
}

/// Nothing is done under an alarm. What is decided is carried out all the same, since it may be what ends the alarm.
pub fn check_decided(world: &World, blocked: &[Blocked]) -> Checked {
    let voters = world.voters();
    let mut others = world.membership.voters();
    // Without one that stays, nothing says which member leads.
    let is_led = others.any(|member| member.stays() && world.counts(member.id));
    for member in world.membership.listed().filter(|_| is_led) {
        let is_decided = member.removal().is_some() && !member.is_wanted() && world.is_unwanted(member);
        let mut left = voters.clone();
        left.remove(&member.id);
        expect(!is_decided || !world.has_safe_quorum(&left), ALARM, || {
            format!("what is decided is not carried out under an alarm: {blocked:#?}")
        })?;
    }
    Ok(())
}

/// Nothing is done although all time has passed.
pub fn check_done(world: &World, blocked: &[Blocked]) -> Checked {
    let left = Left::of(world);
    let has_quorum = world.has_safe_quorum(&left.voters);
    // A node that has yet to join would be alive.
    let mut with_joiners = world.clone();
    let yet_to_join = world.starters.iter().copied();
    let yet_to_join = yet_to_join.filter(|id| world.membership.member(*id).is_none());
    with_joiners.alive.extend(yet_to_join);
    let missed = has_quorum && !left.is_done() && left.can_be_done(&with_joiners);
    expect(!missed, DONE, || {
        format!("a safe sequence exists, but no step: {blocked:#?}")
    })?;
    for member in world.membership.listed() {
        let idle = member.record.as_ref().is_none_or(|record| {
            let moved = !member.stays() || record.readdress.is_none() || world.has_not_found(member);
            let removal = record.removal.filter(|_| member.is_wanted());
            let withdrawn = removal.is_none() || world.replaced() == Some(member.id);
            moved && withdrawn && !(record.promotion && member.is_learner() && has_quorum && member.stays())
        });
        expect(idle || !has_quorum, DONE, || {
            format!("an intent never ends: {blocked:#?}")
        })?;
        let moves = world
            .membership
            .joins
            .iter()
            .any(|pending| pending.node == member.node());
        let can_move = moves && has_quorum && member.stays() && world.found.contains(&member.id);
        expect(!can_move, DONE, || format!("a voter could move: {blocked:#?}"))?;
    }
    Ok(())
}

impl World {
    fn has_not_found(&self, member: &Member) -> bool {
        member.is_at(new_join().peer_urls()) && !self.found.contains(&member.id)
    }
}
