//! Several nodes that join at once, and an upper limit of voters.

use super::*;

const BOTH: [bool; 2] = [true, true];

pub const JOINS: [Joins; 5] = [
    Joins::Two { starts: BOTH },
    Joins::Two {
        starts: [false, true],
    },
    Joins::Two {
        starts: [true, false],
    },
    Joins::AddingOfTwo { starts: BOTH },
    Joins::AddingOfTwo {
        starts: [false, true],
    },
];

/// Without a learner, and with one that is well, that has not started, and that has no record.
const LEARNERS_TRIED: [Option<usize>; 4] = [None, Some(0), Some(2), Some(LEARNERS.len() - 1)];

/// Explores the worlds of up to this many voters in which these nodes join, with this limit of voters.
fn explore_all(explored: &mut Explored, most: usize, all_joins: &[Joins], max_voters: usize) {
    multisets(2 * KINDS.len(), most, &mut |voters| {
        if voters.is_empty() {
            return;
        }
        for (learner, joins) in LEARNERS_TRIED
            .into_iter()
            .flat_map(|learner| all_joins.iter().map(move |joins| (learner, *joins)))
        {
            if fits(learner, joins) {
                let mut world = World::with(voters, learner, joins, 1);
                if let Some(world) = &mut world {
                    world.max_voters = max_voters;
                }
                explore_world(explored, world, if voters.len() < 2 { 2 } else { 1 });
            }
        }
    });
}

/// The plan with a limit of two voters.
pub fn at_most_two(membership: &Membership) -> Plan {
    let limits = Limits {
        max_voters: 2,
        ..Limits::default()
    };
    plan(membership, &limits)
}

/// INV-5: the second one has its turn whatever becomes of the first.
#[test]
fn nodes_that_join_at_once_do_so_one_after_the_other_and_none_is_left_out() {
    let mut explored = Explored::by(next);
    explore_all(&mut explored, 2, &JOINS, Limits::default().max_voters);
    explored.expect_states(3_000);
}

#[test]
fn a_limit_of_voters_is_kept_and_what_leaves_makes_room() {
    let mut explored = Explored::by(at_most_two);
    let joins = [
        Joins::New { starts: true },
        Joins::New { starts: false },
        Joins::Two { starts: BOTH },
    ];
    explore_all(&mut explored, 2, &joins, 2);
    // One of three has to go before one more comes.
    multisets(2 * KINDS.len(), 3, &mut |voters| {
        if voters.len() == 3 {
            let mut world = World::with(voters, None, joins[0], 1);
            if let Some(world) = &mut world {
                world.max_voters = 2;
            }
            explore_world(&mut explored, world, 0);
        }
    });
    explored.expect_states(2_000);
}

#[test]
fn one_that_knows_no_limit_of_voters_is_found_out() {
    mutants::is_found_out(next, "of at most 2", |explored| {
        explore_all(explored, 2, &[Joins::New { starts: true }], 2);
    });
}

#[test]
fn one_that_adds_beside_a_learner_is_found_out() {
    let wrong = |membership: &Membership| {
        let has_learner = membership.listed().any(Member::is_learner);
        let pending = membership.joins.iter().find(|pending| !pending.is_adding());
        match pending.filter(|pending| has_learner && pending.node == "n19") {
            Some(pending) => Plan {
                step: Some(Step::DecideAdd(pending.node.clone())),
                ..Plan::default()
            },
            None => next(membership),
        }
    };
    mutants::is_found_out(wrong, "beside a learner", |explored| {
        explore_all(explored, 1, &JOINS, Limits::default().max_voters);
    });
}
