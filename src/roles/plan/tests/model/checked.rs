//! The same worlds and rules in the checker `stateright`. It goes breadth first, so that what it finds wrong is the shortest path to
//! that, and counts. The exploration of [`Explored`] goes depth first, over more worlds in the same time.

use std::hash::{Hash, Hasher};

use stateright::{Model, Property};

use super::alarms::writes_under_an_alarm;
use super::checks::{ALARM, DONE, GROUNDS, LIMIT, QUORUM};
use super::crowded::at_most_two;
use super::left::Left;
use super::mutants::{
    decides_again_and_again, removes_without_an_intent, takes_every_member_for_healthy, withdraws_no_intent,
};
use super::world::Raised;
use super::*;
use crate::model_checking::{expect_ends, expect_fault, expect_holds, is_large};

/// What follows from these beginnings, by the plan of this planner.
#[derive(Clone)]
struct Clusters {
    begins: Vec<Decided>,
    planner: Planner,
}

/// A world as Quorate sees it, and what it decides.
#[derive(Clone, Debug)]
struct Decided {
    /// Everything that what follows depends on.
    key: Vec<u8>,
    world: World,
    step: Option<Step>,
    /// The rule that is broken: by the step, or where there is none.
    broken: Option<&'static str>,
}

impl PartialEq for Decided {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key
    }
}

impl Hash for Decided {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.key.hash(state);
    }
}

/// What happens next.
#[derive(Clone, Debug, PartialEq)]
enum Event {
    /// For good.
    Dies(MemberId),
    /// The member that is replaced comes back with its data.
    Returns,
    Takes(Step),
    /// The step is taken, and its reply is lost.
    LosesReply(Step),
    /// The call of the step is under way.
    IsDelayed(Step),
    /// etcd carries out what is under way.
    Lands,
    Waits,
    AlarmIsCleared,
}

impl Decided {
    fn by(planner: Planner, mut world: World) -> Self {
        let key = world.key();
        world.observe();
        let mut decided = Self {
            key,
            world,
            step: None,
            broken: None,
        };
        let world = &decided.world;
        // Nothing can be written without a quorum.
        if !world.serves() {
            return decided;
        }
        let Plan { step, blocked, .. } = planner(&world.membership);
        let checked = match &step {
            Some(step) => check_step(world, step),
            None if world.wait().is_some() => Ok(()),
            None if world.raised.is_some() => check_decided(world, &blocked),
            None => check_done(world, &blocked),
        };
        decided.broken = checked.err().map(|fault| fault.rule);
        decided.step = step;
        decided
    }
}

impl Model for Clusters {
    type State = Decided;
    type Action = Event;

    fn init_states(&self) -> Vec<Decided> {
        self.begins.clone()
    }

    fn actions(&self, state: &Decided, events: &mut Vec<Event>) {
        let Decided {
            world, step, broken, ..
        } = state;
        if broken.is_some() {
            return;
        }
        let may_fail = world.faults > 0;
        if may_fail {
            events.extend(world.alive.iter().map(|id| Event::Dies(*id)));
            events.extend(world.with_lost_back().map(|_| Event::Returns));
        }
        if world.flight.as_ref().is_some_and(|call| world.is_due(call)) {
            events.push(Event::Lands);
        }
        match step {
            Some(step) => {
                events.push(Event::Takes(step.clone()));
                if may_fail && world.called(step).is_some() {
                    events.extend([Event::LosesReply(step.clone()), Event::IsDelayed(step.clone())]);
                }
            }
            None if !world.serves() => {}
            None if world.wait().is_some() => events.push(Event::Waits),
            None => events.extend(world.cleared().map(|_| Event::AlarmIsCleared)),
        }
    }

    fn next_state(&self, state: &Decided, event: Event) -> Option<Decided> {
        let world = &state.world;
        let (next, costs) = match event {
            Event::Dies(id) => (Some(world.without(id)), true),
            Event::Returns => (world.with_lost_back(), true),
            Event::Takes(step) => {
                let mut taken = world.clone();
                taken.take(&step);
                (Some(taken), false)
            }
            Event::LosesReply(step) => (world.without_reply(&step), true),
            Event::IsDelayed(step) => (world.with_flight(&step), true),
            Event::Lands => (world.landed(), false),
            Event::Waits => (world.wait(), false),
            Event::AlarmIsCleared => (world.cleared(), false),
        };
        let mut next = next?;
        next.faults -= u8::from(costs);
        Some(Decided::by(self.planner, next))
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::<Self>::always(QUORUM, |_, state| state.broken != Some(QUORUM)),
            Property::<Self>::always(GROUNDS, |_, state| state.broken != Some(GROUNDS)),
            Property::<Self>::always(ALARM, |_, state| state.broken != Some(ALARM)),
            Property::<Self>::always(LIMIT, |_, state| state.broken != Some(LIMIT)),
            Property::<Self>::always(DONE, |_, state| state.broken != Some(DONE)),
            Property::<Self>::sometimes("the members are as desired", |_, state| {
                let is_idle = state.step.is_none() && state.world.serves();
                is_idle && Left::of(&state.world).is_done()
            }),
        ]
    }
}

/// Voters of [`World::with`], all but one alive: of a node that wants its member, also dead; of one that is demoted, also decided; and
/// of one whose demotion was decided and is withdrawn.
const WANTED: usize = 0;
const DEAD: usize = 1;
const DEMOTED: usize = 2;
const WITHDRAWN: usize = 6;
const LEAVING: usize = 8;

/// The worlds with up to this many voters of these kinds, with each of these learners and joins.
fn worlds(kinds: &[usize], most: usize, learners: &[Option<usize>], joins: &[Joins]) -> Vec<World> {
    let mut all = Vec::new();
    multisets(kinds.len(), most, &mut |chosen| {
        let voters: Vec<usize> = chosen.iter().map(|kind| kinds[*kind]).collect();
        for learner in learners.iter().filter(|_| !voters.is_empty()) {
            let joins = joins.iter().filter(|joins| fits(*learner, **joins));
            all.extend(joins.filter_map(|joins| World::with(&voters, *learner, *joins, 1)));
        }
    });
    let idle = all.iter().filter(|world| world.flight.is_none());
    let called: Vec<World> = idle.filter_map(World::with_a_call_under_way).collect();
    all.extend(called);
    all
}

/// What follows from these worlds, with so many faults.
fn clusters(planner: Planner, worlds: Vec<World>, faults: u8) -> Clusters {
    let begins = worlds.into_iter().map(|mut world| {
        world.faults = faults;
        Decided::by(planner, world)
    });
    Clusters {
        begins: begins.collect(),
        planner,
    }
}

/// In the small sizes, [`Explored`] shows that the steps end: it goes through the same worlds.
#[track_caller]
fn holds(name: &str, clusters: &Clusters, least: usize) {
    expect_holds(name, clusters, least);
    if is_large() {
        expect_ends(name, clusters);
    }
}

#[test]
fn every_cluster_of_two_voters_keeps_its_quorum_and_becomes_as_desired() {
    let few = [WANTED, DEAD, DEMOTED, LEAVING];
    let every: Vec<usize> = (0..2 * KINDS.len()).collect();
    let every_learner = (0..LEARNERS.len()).map(Some);
    let every_learner: Vec<Option<usize>> = std::iter::once(None).chain(every_learner).collect();
    let (kinds, learners, faults) = match is_large() {
        true => (&every[..], &every_learner[..], 2),
        false => (&few[..], &every_learner[..1], 1),
    };
    for joins in JOINS {
        let worlds = worlds(kinds, 2, learners, &[joins]);
        let clusters = clusters(next, worlds, faults);
        holds(&format!("two voters, {joins:?}"), &clusters, 40);
    }
}

#[test]
fn three_voters_keep_their_quorum_whichever_dies_and_whatever_gets_lost() {
    let few = [WANTED, DEMOTED];
    let more = [WANTED, DEAD, DEMOTED, WITHDRAWN, LEAVING];
    let (kinds, faults) = match is_large() {
        true => (&more[..], 2),
        false => (&few[..], 1),
    };
    for joins in [
        Joins::None,
        Joins::New { starts: true },
        Joins::Moves { found: true },
    ] {
        let worlds = worlds(kinds, 3, &[None], &[joins]);
        let clusters = clusters(next, worlds, faults);
        holds(&format!("three voters, {joins:?}"), &clusters, 50);
    }
}

#[test]
fn of_two_nodes_that_join_at_once_none_is_left_out() {
    let most = if is_large() { 3 } else { 2 };
    let worlds = worlds(&[WANTED, DEMOTED], most, &[None], &crowded::JOINS);
    holds("two joins at once", &clusters(next, worlds, 1), 200);
}

/// The worlds in which a node joins, and there are as many voters as there may be, or one fewer.
fn full() -> Vec<World> {
    let joins = [Joins::New { starts: true }];
    let mut worlds = worlds(&[WANTED, DEMOTED, LEAVING], 2, &[None], &joins);
    for world in &mut worlds {
        world.max_voters = 2;
    }
    worlds
}

#[test]
fn no_voter_is_added_beyond_the_limit_and_what_leaves_makes_room() {
    holds("at most two voters", &clusters(at_most_two, full(), 1), 50);
}

#[test]
fn a_plan_that_knows_no_limit_of_voters_is_found_out() {
    expect_fault("no limit of voters", &clusters(next, full(), 0), LIMIT);
}

/// The worlds in which etcd has no space left.
fn out_of_space() -> Vec<World> {
    let mut worlds = worlds(&[WANTED, DEMOTED, LEAVING], 2, &[None], &[Joins::None]);
    for world in &mut worlds {
        world.raised = Some(Raised::Full);
    }
    worlds
}

#[test]
fn under_an_alarm_nothing_is_decided_and_what_was_decided_is_carried_out() {
    holds("out of space", &clusters(next, out_of_space(), 1), 30);
}

#[test]
fn a_plan_that_writes_under_an_alarm_is_found_out() {
    let wrong = clusters(writes_under_an_alarm, out_of_space(), 0);
    expect_fault("writes under an alarm", &wrong, ALARM);
}

#[test]
fn a_plan_that_takes_every_member_for_healthy_is_found_out() {
    let worlds = worlds(&[WANTED, DEAD, DEMOTED], 3, &[None], &[Joins::None]);
    let wrong = clusters(takes_every_member_for_healthy, worlds, 0);
    expect_fault("takes every member for healthy", &wrong, QUORUM);
}

#[test]
fn a_plan_that_removes_without_an_intent_is_found_out() {
    let worlds = worlds(&[WANTED, DEMOTED], 2, &[None], &[Joins::None]);
    let wrong = clusters(removes_without_an_intent, worlds, 0);
    expect_fault("removes without an intent", &wrong, GROUNDS);
}

#[test]
fn a_plan_that_withdraws_no_intent_is_found_out() {
    let worlds = worlds(&[WANTED, WITHDRAWN], 2, &[None], &[Joins::None]);
    let wrong = clusters(withdraws_no_intent, worlds, 0);
    expect_fault("withdraws no intent", &wrong, DONE);
}

#[test]
#[should_panic(expected = "a path goes in a circle")]
fn a_plan_that_decides_again_and_again_is_found_out() {
    let worlds = worlds(&[WANTED, DEMOTED], 2, &[None], &[Joins::None]);
    expect_ends("decides again", &clusters(decides_again_and_again, worlds, 0));
}
