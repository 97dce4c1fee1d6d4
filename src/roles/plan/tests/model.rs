//! INV-5 and its other half, over everything that can happen to a small cluster: members die for good between any two steps,
//! replies get lost, calls are carried out late or never; learners are in sync, stalled or never started; nodes join, also two at
//! once and up to a limit of voters; voters move; alarms are raised until a person clears them. No step costs the quorum, whatever
//! is under way; no step is repeated for ever; and where nothing is done, no safe sequence leads to the desired members.

use std::collections::{BTreeSet, HashMap};

use proptest::prelude::*;

use super::every_cluster::{LEARNERS, multisets};
use super::liveness::KINDS;
use super::*;
use checks::{Checked, check_decided, check_done, check_step};
use world::{ADDED, ADDED_TOO, World};

mod alarms;
mod checked;
mod checks;
mod crowded;
mod happens;
mod left;
mod mutants;
mod replaced;
mod world;

/// Where a voter moves: its node asks for that.
#[derive(Clone, Copy, Debug)]
enum Joins {
    None,
    /// A new node, whose etcd starts or not.
    New {
        starts: bool,
    },
    /// The same, and the add is decided, and may be under way.
    Adding {
        starts: bool,
    },
    /// Two new nodes at once, whose etcd starts or not.
    Two {
        starts: [bool; 2],
    },
    /// The same, and the add of the first is decided, and may be under way.
    AddingOfTwo {
        starts: [bool; 2],
    },
    /// The first voter moves, to where it was found or not.
    Moves {
        found: bool,
    },
    /// The same, and the move is decided, and may be under way.
    Moving {
        found: bool,
    },
    /// A new member takes the place of the first voter, and its etcd starts or not.
    Replaces {
        forced: bool,
        starts: bool,
    },
}

const JOINS: [Joins; 9] = [
    Joins::None,
    Joins::New { starts: true },
    Joins::New { starts: false },
    Joins::Adding { starts: true },
    Joins::Adding { starts: false },
    Joins::Moves { found: true },
    Joins::Moves { found: false },
    Joins::Moving { found: true },
    Joins::Moving { found: false },
];

type Planner = fn(&Membership) -> Plan;

/// What follows from the steps of a plan.
struct Explored {
    planner: Planner,
    /// The states that were explored. One that is being explored is part of the present path.
    states: HashMap<Vec<u8>, bool>,
}

impl Explored {
    fn by(planner: Planner) -> Self {
        Self {
            planner,
            states: HashMap::new(),
        }
    }

    /// Says how many states were explored, and that they are no fewer than these: a model that explores nothing finds no fault.
    fn expect_states(&self, least: usize) {
        let states = self.states.len();
        eprintln!("{states} states");
        assert!(states > least, "{states} states");
    }

    /// Explores everything that can follow.
    fn explore(&mut self, mut world: World) {
        let key = world.key();
        match self.states.insert(key.clone(), false) {
            None => {}
            Some(true) => {
                self.states.insert(key, true);
                return;
            }
            Some(false) => panic!("the steps never end: {world:#?}"),
        }
        if world.faults > 0 {
            let deaths = world.alive.iter().map(|id| world.without(*id));
            for mut other in deaths.chain(world.with_lost_back()) {
                other.faults -= 1;
                self.explore(other);
            }
        }
        if let Some(landed) = world.landed() {
            self.explore(landed);
        }
        world.observe();
        // Nothing can be written without a quorum.
        if !world.serves() {
            self.states.insert(key, true);
            return;
        }
        let plan = (self.planner)(&world.membership);
        match (plan.step, world.wait()) {
            (Some(step), _) => self.take(&world, &step),
            (None, Some(later)) => self.explore(later),
            (None, None) if world.raised.is_some() => {
                expect(check_decided(&world, &plan.blocked), &world);
                if let Some(cleared) = world.cleared() {
                    self.explore(cleared);
                }
            }
            (None, None) => expect(check_done(&world, &plan.blocked), &world),
        }
        self.states.insert(key, true);
    }

    fn take(&mut self, world: &World, step: &Step) {
        expect(check_step(world, step), world);
        if world.faults > 0 {
            let doubts = [world.without_reply(step), world.with_flight(step)];
            for mut other in doubts.into_iter().flatten() {
                other.faults -= 1;
                self.explore(other);
            }
        }
        let mut taken = world.clone();
        taken.take(step);
        self.explore(taken);
    }
}

#[track_caller]
fn expect(checked: Checked, world: &World) {
    if let Err(fault) = checked {
        panic!("{}: {world:#?}", fault.what);
    }
}

impl World {
    /// The world with these voters, each of a kind of [`KINDS`], alive or dead; `None` if there is no such world.
    fn with(voters: &[usize], learner: Option<usize>, joins: Joins, leader: usize) -> Option<Self> {
        let members = (1..).zip(voters).map(|(id, kind)| KINDS[kind / 2](id));
        let dead = (1..).zip(voters).filter(|(_, kind)| **kind % 2 == 1);
        let dead = dead.map(|(id, _)| MemberId(id)).collect();
        Self::of(members.collect(), &dead, learner, joins, leader)
    }

    /// The world with these voters, of which some are dead.
    fn of(
        mut members: Vec<Member>,
        dead: &BTreeSet<MemberId>,
        learner: Option<usize>,
        joins: Joins,
        leader: usize,
    ) -> Option<Self> {
        members.extend(learner.map(|kind| LEARNERS[kind](8)));
        let down = members
            .iter()
            .filter(|member| dead.contains(&member.id) || !member.is_healthy());
        let down: BTreeSet<MemberId> = down.map(|member| member.id).collect();
        let mut world = Self {
            alive: members
                .iter()
                .map(|member| member.id)
                .filter(|id| !down.contains(id))
                .collect(),
            found: BTreeSet::new(),
            membership: surveyed(members),
            favourite: MemberId(leader as u64),
            flight: None,
            in_doubt: BTreeSet::new(),
            excluded: BTreeSet::new(),
            waited: false,
            starters: BTreeSet::new(),
            raised: None,
            max_voters: Limits::default().max_voters,
            faults: 0,
        };
        world.join(joins)?;
        Some(world)
    }

    fn join(&mut self, joins: Joins) -> Option<()> {
        let first = self.membership.members.first()?.clone();
        let moves = |decided: bool, found: bool, world: &mut Self| {
            let Some(Owner::Node(roles)) = first.owner() else {
                return None;
            };
            let mut pending = new_join();
            pending.node = first.node().to_owned();
            pending.roles = Some(roles);
            pending
                .join
                .request
                .as_mut()?
                .node_uid
                .clone_from(&first.record.as_ref()?.uid);
            world.membership.joins.push(pending);
            if found && world.alive.contains(&first.id) {
                world.found.insert(first.id);
            }
            if decided {
                world.membership.members[0] = first.clone().moving(Listener::Absent);
                let through = first.id;
                world.flight = Some(Step::Readdress {
                    member: first.id,
                    through,
                });
                world.in_doubt.insert(first.id);
            }
            first.is_voter().then_some(())
        };
        match joins {
            Joins::None => {}
            Joins::New { starts } => {
                self.starters.extend(starts.then_some(ADDED));
                self.membership.joins.push(new_join());
            }
            Joins::Adding { starts } => {
                self.starters.extend(starts.then_some(ADDED));
                self.membership.joins.push(adding("n9"));
                let (node, through) = ("n9".to_owned(), first.id);
                self.flight = Some(Step::Add { node, through });
                self.in_doubt.insert(ADDED);
            }
            Joins::Two { starts } => {
                self.join(Joins::New { starts: starts[0] })?;
                self.join_too(starts[1]);
            }
            Joins::AddingOfTwo { starts } => {
                self.join(Joins::Adding { starts: starts[0] })?;
                self.join_too(starts[1]);
            }
            Joins::Replaces { forced, starts } => {
                self.starters.extend(starts.then_some(ADDED));
                let mut pending = new_join();
                pending.node = first.node().to_owned();
                pending.roles = first.roles();
                let request = pending.join.request.as_mut()?;
                request.node_uid.clone_from(&first.record.as_ref()?.uid);
                (request.replaces, request.forced) = (first.id.0, forced);
                self.membership.joins.push(pending);
                first.is_voter().then_some(())?;
            }
            Joins::Moves { found } => moves(false, found, self)?,
            Joins::Moving { found } => moves(true, found, self)?,
        }
        Some(())
    }

    /// A further node joins, which asked later.
    fn join_too(&mut self, starts: bool) {
        self.starters.extend(starts.then_some(ADDED_TOO));
        let mut pending = new_join();
        pending.node = "n19".to_owned();
        let request = pending.join.request.as_mut();
        let request = request.expect("it is a request");
        "u19".clone_into(&mut request.node_uid);
        request.peer_urls = vec!["http://10.0.0.19:2380".to_owned()];
        self.membership.joins.push(pending);
    }

    /// The same world in which the first decided removal or promotion is under way.
    fn with_a_call_under_way(&self) -> Option<Self> {
        let decided = self.membership.listed().find_map(|member| {
            let (member, through) = (member, MemberId(0));
            let record = member.record.as_ref()?;
            match (record.removal, record.promotion) {
                (Some(_), _) => Some(Step::Remove {
                    member: member.id,
                    through,
                }),
                (None, true) => Some(Step::Promote {
                    member: member.id,
                    through,
                }),
                (None, false) => None,
            }
        })?;
        let mut world = self.clone();
        world.in_doubt.extend(world.called(&decided));
        world.flight = Some(decided);
        Some(world)
    }
}

fn explore(
    explored: &mut Explored,
    voters: &[usize],
    learner: Option<usize>,
    joins: Joins,
    leader: usize,
    faults: u8,
) {
    let world = World::with(voters, learner, joins, leader);
    explore_world(explored, world, faults);
}

fn explore_world(explored: &mut Explored, world: Option<World>, faults: u8) {
    let Some(mut world) = world else { return };
    world.faults = faults;
    if let Some(called) = world.with_a_call_under_way().filter(|_| world.flight.is_none()) {
        explored.explore(called);
    }
    explored.explore(world);
}

/// One learner at a time: where there is one, no add was decided.
fn fits(learner: Option<usize>, joins: Joins) -> bool {
    learner.is_none() || !matches!(joins, Joins::Adding { .. } | Joins::AddingOfTwo { .. })
}

#[test]
fn whatever_dies_or_gets_lost_no_step_costs_the_quorum_and_none_is_missed() {
    let mut explored = Explored::by(next);
    multisets(2 * KINDS.len(), 3, &mut |voters| {
        if voters.is_empty() {
            return;
        }
        let faults = if voters.len() < 3 { 2 } else { 1 };
        let learners = std::iter::once(None).chain((0..LEARNERS.len()).map(Some));
        for (learner, joins) in learners.flat_map(|learner| JOINS.map(|joins| (learner, joins))) {
            if fits(learner, joins) {
                explore(&mut explored, voters, learner, joins, 1, faults);
            }
        }
    });
    explored.expect_states(100_000);
}

proptest! {
    #[test]
    fn nor_in_larger_clusters(
        voters in proptest::collection::vec(0..2 * KINDS.len(), 3..=5),
        learner in proptest::option::of(0..LEARNERS.len()),
        joins in 0..JOINS.len(),
        leader in 1_usize..=5,
    ) {
        if fits(learner, JOINS[joins]) {
            explore(&mut Explored::by(next), &voters, learner, JOINS[joins], leader, 1);
        }
    }
}
