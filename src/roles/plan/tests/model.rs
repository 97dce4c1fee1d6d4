//! INV-5 and its other half, over everything that can happen to a small cluster: members die for good between any two steps,
//! replies get lost, calls are carried out late or never; learners are in sync, stalled or never started; nodes join, and
//! voters move. No step costs the quorum, whatever is under way; no step is repeated for ever; and where nothing is done, no
//! safe sequence leads to the desired members.

use std::collections::{BTreeSet, HashMap};

use proptest::prelude::*;

use super::every_cluster::{LEARNERS, multisets};
use super::liveness::KINDS;
use super::*;
use world::{ADDED, World};

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
    /// The first voter moves, to where it was found or not.
    Moves {
        found: bool,
    },
    /// The same, and the move is decided, and may be under way.
    Moving {
        found: bool,
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

/// The states that were explored. One that is being explored is part of the present path.
#[derive(Default)]
struct Explored(HashMap<Vec<u8>, bool>);

impl Explored {
    /// Explores everything that can follow.
    fn explore(&mut self, mut world: World) {
        let key = world.key();
        match self.0.insert(key.clone(), false) {
            None => {}
            Some(true) => {
                self.0.insert(key, true);
                return;
            }
            Some(false) => panic!("the steps never end: {world:#?}"),
        }
        if world.faults > 0 {
            for id in &world.alive {
                let mut other = world.clone();
                other.faults -= 1;
                other.alive.remove(id);
                other.found.remove(id);
                self.explore(other);
            }
        }
        if let Some(call) = world.flight.clone().filter(|call| world.is_due(call)) {
            let mut other = world.clone();
            other.flight = None;
            other.take(&call);
            self.explore(other);
        }
        world.observe();
        // Nothing can be written without a quorum.
        if !world.serves() {
            self.0.insert(key, true);
            return;
        }
        match (step(&world.membership), world.wait()) {
            (Some(step), _) => self.take(&world, &step),
            (None, Some(later)) => self.explore(later),
            (None, None) => check_done(&world),
        }
        self.0.insert(key, true);
    }

    fn take(&mut self, world: &World, step: &Step) {
        check_safe(world, step);
        let mut taken = world.clone();
        taken.take(step);
        if let Some(called) = World::called(step).filter(|_| world.faults > 0) {
            // Its reply is lost, or the call itself is still under way.
            for (mut other, flight) in [(taken.clone(), None), (world.clone(), Some(step.clone()))] {
                other.faults -= 1;
                other.flight = flight;
                other.in_doubt.insert(called);
                self.explore(other);
            }
        }
        self.explore(taken);
    }
}

/// INV-5: whether or not the call that is under way is carried out first.
fn check_safe(world: &World, step: &Step) {
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

/// What is still to be done, as far as the desired members go.
#[derive(Clone)]
struct Left {
    voters: BTreeSet<MemberId>,
    unwanted: BTreeSet<MemberId>,
    /// A managed learner, and whether it can vote.
    learner: Option<(MemberId, bool)>,
    /// Whether a node joins whose etcd starts.
    joins: bool,
}

impl Left {
    fn of(world: &World) -> Self {
        let Membership { members, joins, .. } = &world.membership;
        let unwanted = world.membership.voters().filter(|member| {
            let unwanted = member.record.is_some() && !member.is_wanted();
            unwanted || member.removal().is_some()
        });
        let learner = members
            .iter()
            .find(|member| member.is_learner() && member.record.is_some());
        let is_new = |pending: &&PendingJoin| pending.node == "n9";
        let blocked = members
            .iter()
            .any(|member| member.is_learner() && member.record.is_none());
        Self {
            voters: world.voters(),
            unwanted: unwanted.map(|member| member.id).collect(),
            learner: learner
                .map(|member| (member.id, member.is_wanted() && world.alive.contains(&member.id))),
            joins: world.joiner_starts && joins.iter().filter(is_new).count() > 0 && !blocked,
        }
    }

    fn is_done(&self) -> bool {
        self.unwanted.is_empty() && self.learner.is_none() && !self.joins
    }

    /// What one safe change leads to.
    fn next(&self, world: &World) -> Vec<Self> {
        let mut next = Vec::new();
        let wanted = self.voters.difference(&self.unwanted);
        let manager = wanted.filter(|id| world.membership.member(**id).is_some_and(Member::is_wanted));
        // The last manager stays, and so does the last proof that the nodes exist.
        if manager.count() > 0 {
            for gone in &self.unwanted {
                let mut left = self.clone();
                left.voters.remove(gone);
                left.unwanted.remove(gone);
                next.push(left);
            }
        }
        if let Some((id, votes)) = self.learner {
            let mut left = self.clone();
            left.learner = None;
            if votes {
                left.voters.insert(id);
            }
            next.push(left);
        }
        if self.joins && self.learner.is_none() {
            let mut left = self.clone();
            (left.joins, left.learner) = (false, Some((ADDED, true)));
            next.push(left);
        }
        next.retain(|left| world.has_safe_quorum(&left.voters));
        next
    }

    fn can_be_done(&self, world: &World) -> bool {
        self.is_done() || self.next(world).iter().any(|left| left.can_be_done(world))
    }
}

/// Nothing is done although all time has passed.
fn check_done(world: &World) {
    let blocked = || next(&world.membership).blocked;
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
        blocked()
    );
    for member in world.membership.listed() {
        let idle = member.record.as_ref().is_none_or(|record| {
            let moved = !member.stays() || record.readdress.is_none() || world.has_not_found(member);
            moved && !(record.promotion && member.is_learner() && has_quorum && member.stays())
        });
        assert!(
            idle || !has_quorum,
            "an intent never ends: {:#?}\n{world:#?}",
            blocked()
        );
        let moves = world
            .membership
            .joins
            .iter()
            .any(|pending| pending.node == member.node());
        assert!(
            !(moves && has_quorum && member.stays() && world.found.contains(&member.id)),
            "a voter could move: {:#?}\n{world:#?}",
            blocked()
        );
    }
}

impl World {
    fn has_not_found(&self, member: &Member) -> bool {
        member.is_at(new_join().peer_urls()) && !self.found.contains(&member.id)
    }

    /// The world with these voters, each of a kind of [`KINDS`], alive or dead; `None` if there is no such world.
    fn with(voters: &[usize], learner: Option<usize>, joins: Joins, leader: usize) -> Option<Self> {
        let members = (1..).zip(voters).map(|(id, kind)| KINDS[kind / 2](id));
        let mut members: Vec<Member> = members.collect();
        let dead = (1..).zip(voters).filter(|(_, kind)| **kind % 2 == 1);
        let dead: BTreeSet<MemberId> = dead.map(|(id, _)| MemberId(id)).collect();
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
            waited: false,
            joiner_starts: false,
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
                self.joiner_starts = starts;
                self.membership.joins.push(new_join());
            }
            Joins::Adding { starts } => {
                self.joiner_starts = starts;
                self.membership.joins.push(adding("n9"));
                let (node, through) = ("n9".to_owned(), first.id);
                self.flight = Some(Step::Add { node, through });
                self.in_doubt.insert(ADDED);
            }
            Joins::Moves { found } => moves(false, found, self)?,
            Joins::Moving { found } => moves(true, found, self)?,
        }
        Some(())
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
        world.in_doubt.extend(World::called(&decided));
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
    let Some(mut world) = World::with(voters, learner, joins, leader) else {
        return;
    };
    world.faults = faults;
    if let Some(called) = world.with_a_call_under_way().filter(|_| world.flight.is_none()) {
        explored.explore(called);
    }
    explored.explore(world);
}

/// One learner at a time: where there is one, no add was decided.
fn fits(learner: Option<usize>, joins: Joins) -> bool {
    learner.is_none() || !matches!(joins, Joins::Adding { .. })
}

#[test]
fn whatever_dies_or_gets_lost_no_step_costs_the_quorum_and_none_is_missed() {
    let mut explored = Explored::default();
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
    eprintln!("{} states", explored.0.len());
    assert!(explored.0.len() > 100_000, "{} states", explored.0.len());
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
            explore(&mut Explored::default(), &voters, learner, JOINS[joins], leader, 1);
        }
    }
}
