//! Members that are replaced, and members whose node was deleted by hand or cannot be read.

use super::*;

/// Every kind of first voter: what its node says, and whether its removal is decided.
const FIRST: [fn() -> Member; 9] = [
    || voter(1),
    || voter(1).leaving(Cause::DataLost),
    || voter(1).demoted().leaving(Cause::DataLost),
    || voter(1).nodeless().leaving(Cause::DataLost),
    || voter(1).node_missing(),
    || voter(1).node_missing().leaving(Cause::DataLost),
    || voter(1).node_missing().leaving(Cause::Demoted),
    || voter(1).owned_by(Owner::Unknown).leaving(Cause::DataLost),
    || voter(1).owned_by(Owner::Unknown).leaving(Cause::Demoted),
];

const JOINS: [Joins; 5] = [
    Joins::None,
    replaces(false, true),
    replaces(false, false),
    replaces(true, true),
    replaces(true, false),
];

const fn replaces(forced: bool, starts: bool) -> Joins {
    Joins::Replaces { forced, starts }
}

/// Explores the worlds with each kind of first voter and up to this many others.
pub fn explore_all(explored: &mut Explored, others: usize) {
    multisets(2 * KINDS.len(), others, &mut |others| {
        // One that is well, one that has not started, and one without a record.
        for learner in [None, Some(0), Some(2), Some(LEARNERS.len() - 1)] {
            for (first, dead) in FIRST.iter().flat_map(|first| [(first, false), (first, true)]) {
                for joins in JOINS {
                    let (members, dead) = cluster(first(), dead, others);
                    let world = World::of(members, &dead, learner, joins, 1);
                    explore_world(explored, world, if others.len() < 2 { 2 } else { 1 });
                }
            }
        }
    });
}

/// The first voter and these others, and those of them that are dead.
fn cluster(first: Member, dead: bool, others: &[usize]) -> (Vec<Member>, BTreeSet<MemberId>) {
    let kinds = || (2..).zip(others);
    let others = kinds().map(|(id, kind)| KINDS[kind / 2](id));
    let members = std::iter::once(first).chain(others).collect();
    let dead = dead.then_some(MemberId(1));
    let other = kinds().filter(|(_, kind)| **kind % 2 == 1);
    let dead = dead
        .into_iter()
        .chain(other.map(|(id, _)| MemberId(id)))
        .collect();
    (members, dead)
}

#[test]
fn a_member_that_is_replaced_goes_on_good_grounds_alone_and_one_without_a_node_stays() {
    let mut explored = Explored::by(next);
    explore_all(&mut explored, 2);
    explored.expect_states(30_000);
}

proptest! {
    #[test]
    fn so_it_does_in_larger_clusters(
        first in 0..FIRST.len(),
        dead in proptest::bool::ANY,
        others in proptest::collection::vec(0..2 * KINDS.len(), 2..=4),
        learner in proptest::option::of(0..LEARNERS.len()),
        joins in 0..JOINS.len(),
        leader in 1_usize..=5,
    ) {
        let (members, dead) = cluster(FIRST[first](), dead, &others);
        let world = World::of(members, &dead, learner, JOINS[joins], leader);
        explore_world(&mut Explored::by(next), world, 1);
    }
}
