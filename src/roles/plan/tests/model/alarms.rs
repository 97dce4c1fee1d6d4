//! Alarms: while etcd takes no writes, nothing is decided, and what was decided before is carried out. A member whose data is corrupt
//! counts for nothing, and goes on answering.

use super::world::Raised;
use super::*;

const JOINS: [Joins; 3] = [
    Joins::None,
    Joins::New { starts: true },
    Joins::Adding { starts: true },
];

/// Without a learner, and with one that is well, that rises, that died as it rose, and that leaves.
const LEARNERS_TRIED: [Option<usize>; 5] = [None, Some(0), Some(3), Some(4), Some(7)];

/// Explores the worlds of up to this many voters of which one is corrupt, or in which there is no space left.
fn explore_all(explored: &mut Explored, most: usize) {
    multisets(2 * KINDS.len(), most, &mut |voters| {
        if voters.is_empty() {
            return;
        }
        let last = MemberId(voters.len() as u64);
        let mut alarms = vec![Raised::Full, Raised::Corrupt(MemberId(1)), Raised::Corrupt(last)];
        alarms.dedup();
        for (learner, joins) in LEARNERS_TRIED
            .into_iter()
            .flat_map(|learner| JOINS.map(|joins| (learner, joins)))
        {
            for raised in alarms.iter().filter(|_| fits(learner, joins)) {
                let mut world = World::with(voters, learner, joins, 1);
                if let Some(world) = &mut world {
                    world.raised = Some(*raised);
                }
                explore_world(explored, world, if voters.len() < 3 { 1 } else { 0 });
            }
        }
    });
}

#[test]
fn under_an_alarm_nothing_is_written_and_what_is_decided_is_carried_out() {
    let mut explored = Explored::by(next);
    explore_all(&mut explored, 3);
    explored.expect_states(10_000);
}

pub fn writes_under_an_alarm(membership: &Membership) -> Plan {
    let mut membership = membership.clone();
    for member in &mut membership.members {
        if let crate::etcd::members::Inquiry::Asked {
            answer: Ok(status), ..
        } = &mut member.evidence.status
        {
            status.alarms.clear();
        }
    }
    next(&membership)
}

#[test]
fn one_that_writes_under_an_alarm_is_found_out() {
    let what = "although etcd takes no writes";
    mutants::is_found_out(writes_under_an_alarm, what, |explored| {
        explore_all(explored, 2);
    });
}

#[test]
fn one_that_counts_a_corrupt_member_is_found_out() {
    let wrong = |membership: &Membership| {
        let mut membership = membership.clone();
        membership
            .members
            .iter_mut()
            .for_each(|member| member.corrupt = false);
        next(&membership)
    };
    mutants::is_found_out(wrong, "promote learner", |explored| explore_all(explored, 3));
}

#[test]
fn one_that_carries_nothing_out_under_an_alarm_is_found_out() {
    let wrong = |membership: &Membership| {
        let mut plan = next(membership);
        plan.step.take_if(|_| membership.refuses_writes().is_some());
        plan
    };
    mutants::is_found_out(wrong, "is not carried out under an alarm", |explored| {
        explore_all(explored, 2);
    });
}
