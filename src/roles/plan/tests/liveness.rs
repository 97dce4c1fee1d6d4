//! INV-5, the other half: while a safe sequence of removals leads to the desired voters, the plan takes a step. Over all
//! clusters of up to five voters, alive or dead for good, wanted or not, decided or not, with every raft leader; and with
//! the death for good of any member between any two steps.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::every_cluster::{after, multisets};
use super::*;
use crate::etcd::members::{Evidence, NotAsked};
use crate::roles::membership::raft_leader;
use crate::roles::membership::tests::fixtures::answers;
use crate::roles::quorum::Quorum;

/// Every kind of voter: why its node wants it gone, if it does, and whether its removal is decided.
pub(super) const KINDS: [fn(u64) -> Member; 6] = [
    voter,
    |id| voter(id).demoted(),
    |id| voter(id).nodeless(),
    |id| voter(id).leaving(Cause::Demoted),
    |id| voter(id).demoted().leaving(Cause::Demoted),
    |id| voter(id).nodeless().leaving(Cause::NodeGone),
];

/// What is so, whatever Quorate knows of it.
#[derive(Clone, Debug)]
struct World {
    membership: Membership,
    dead: BTreeSet<MemberId>,
    /// The raft leader of choice: while it lives and votes, it leads.
    favourite: MemberId,
}

impl World {
    fn voters(&self) -> BTreeSet<MemberId> {
        self.membership.voters().map(|member| member.id).collect()
    }

    fn has_quorum(&self, voters: &BTreeSet<MemberId>) -> bool {
        let healthy = voters.iter().filter(|id| !self.dead.contains(id)).count();
        let voters = voters.len();
        Quorum { voters, healthy }.holds()
    }

    /// The raft leader, if there is one.
    fn leader(&self) -> Option<MemberId> {
        let voters = self.voters();
        let alive = || voters.iter().filter(|id| !self.dead.contains(id)).copied();
        let leader = alive()
            .find(|id| *id == self.favourite)
            .or_else(|| alive().next());
        leader.filter(|_| self.has_quorum(&voters))
    }

    /// What Quorate learns of it: a member that is being removed gives no status, and without a quorum no member serves reads.
    fn observe(&mut self) {
        let (leader, reads) = (self.leader(), self.has_quorum(&self.voters()));
        for member in &mut self.membership.members {
            let answers = answers(member.id, leader, 100);
            let leaving = Evidence::not_asked(member.id, false, NotAsked::Leaving);
            let silent = Evidence::not_asked(member.id, false, NotAsked::NotYet);
            member.quiet = true;
            member.evidence = match (reads && !self.dead.contains(&member.id), member.removal()) {
                (false, _) => silent,
                (true, None) => answers,
                (true, Some(_)) => Evidence {
                    read: answers.read,
                    ..leaving
                },
            };
        }
        self.membership.raft_leader = raft_leader(&self.membership.members, self.membership.complete);
    }

    /// Whether the voters are those of the nodes that want one, or become so by removals each of which leaves a quorum.
    fn can_reach_the_desired(&self) -> bool {
        fn reaches(world: &World, voters: &BTreeSet<MemberId>, unwanted: &[MemberId]) -> bool {
            let without = |gone: &MemberId| voters.iter().filter(|id| *id != gone).copied().collect();
            unwanted.is_empty()
                || unwanted.iter().any(|gone| {
                    let next: BTreeSet<MemberId> = without(gone);
                    let left: Vec<_> = unwanted.iter().filter(|id| *id != gone).copied().collect();
                    world.has_quorum(&next) && reaches(world, &next, &left)
                })
        }
        let unwanted = self.membership.voters().filter(|member| !member.is_wanted());
        let unwanted: Vec<_> = unwanted.map(|member| member.id).collect();
        let voters = self.voters();
        // The last manager stays.
        unwanted.len() < voters.len() && self.has_quorum(&voters) && reaches(self, &voters, &unwanted)
    }

    fn is_as_desired(&self) -> bool {
        self.membership
            .members
            .iter()
            .all(|member| member.listed.is_some() && member.stays())
    }
}

/// Takes steps until there is none; before each, any of the members may die, as often as `deaths` says.
fn run(mut world: World, deaths: usize) {
    let begun = world.clone();
    for _ in 0..60 {
        if deaths > 0 {
            for id in world.voters().difference(&world.dead.clone()) {
                let mut other = world.clone();
                other.dead.insert(*id);
                run(other, deaths - 1);
            }
        }
        world.observe();
        let Some(step) = step(&world.membership) else {
            assert!(
                world.is_as_desired() || !world.can_reach_the_desired(),
                "a safe sequence exists, but no step: {:?}\n{world:#?}\nfrom {begun:#?}",
                next(&world.membership).blocked
            );
            return;
        };
        if let Step::Remove { member, .. } = step {
            let mut left = world.voters();
            left.remove(&member);
            assert!(world.has_quorum(&left), "{step}: {world:#?}");
        }
        if let Step::MoveLeadership { to, .. } = step {
            world.favourite = to;
        }
        world.membership = after(&world.membership, &step);
    }
    panic!("the steps never end: {begun:#?}");
}

/// The world with these voters, each of a kind of [`KINDS`], alive or dead.
fn world(voters: &[usize], leader: usize) -> World {
    let members = (1..).zip(voters).map(|(id, kind)| KINDS[kind / 2](id));
    let dead = (1..).zip(voters).filter(|(_, kind)| **kind % 2 == 1);
    World {
        membership: surveyed(members.collect()),
        dead: dead.map(|(id, _)| MemberId(id)).collect(),
        favourite: MemberId(leader as u64),
    }
}

#[test]
fn while_a_safe_sequence_to_the_desired_voters_exists_a_step_is_taken() {
    let mut runs = 0_u64;
    multisets(2 * KINDS.len(), 5, &mut |voters| {
        let deaths = usize::from(voters.len() < 4);
        for leader in 1..=voters.len() {
            runs += 1;
            run(world(voters, leader), deaths);
        }
    });
    assert!(runs > 25_000, "{runs} runs");
}

proptest! {
    #[test]
    fn nor_is_one_missed_in_larger_clusters_whose_members_die_between_the_steps(
        voters in proptest::collection::vec(0..2 * KINDS.len(), 4..=7),
        leader in 1_usize..=7,
    ) {
        run(world(&voters, leader), 1);
    }
}
