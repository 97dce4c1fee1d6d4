//! A cluster as it is, whatever Quorate knows of it, and what can happen to it.

use std::collections::BTreeSet;
use std::time::Duration;

use super::super::every_cluster::after;
use super::super::*;
use crate::etcd::members::{Evidence, NotAsked};
use crate::roles::membership::raft_leader;
use crate::roles::membership::tests::fixtures::answers;
use crate::roles::quorum::Quorum;

/// The member that a join adds.
pub const ADDED: MemberId = MemberId(9);

/// A limit that is over.
const LONG: Duration = Duration::from_secs(3600);

/// A cluster as it is. Members that die stay dead, but for one that is replaced.
#[derive(Clone, Debug)]
pub struct World {
    pub membership: Membership,
    pub alive: BTreeSet<MemberId>,
    /// Members that listen at the peer URL of [`new_join`].
    pub found: BTreeSet<MemberId>,
    /// While it lives and votes, it is the raft leader.
    pub favourite: MemberId,
    /// A call that etcd may still carry out.
    pub flight: Option<Step>,
    /// Members of which a call may be under way.
    pub in_doubt: BTreeSet<MemberId>,
    /// Those of them that get no requests, because their removal was begun.
    pub excluded: BTreeSet<MemberId>,
    /// Whether the learners have had their time, and an intent to add is as old as it gets.
    pub waited: bool,
    /// Whether the etcd of the node that joins starts once it is added.
    pub joiner_starts: bool,
    /// How many members may die, or replies get lost, from now on.
    pub faults: u8,
}

impl World {
    pub fn voters(&self) -> BTreeSet<MemberId> {
        self.membership.voters().map(|member| member.id).collect()
    }

    fn quorum(voters: &BTreeSet<MemberId>, healthy: impl Fn(&MemberId) -> bool) -> bool {
        let healthy = voters.iter().filter(|id| healthy(id)).count();
        let voters = voters.len();
        Quorum { voters, healthy }.holds()
    }

    /// Whether these voters have a quorum even if none is reached where it moved without having been found.
    pub fn has_safe_quorum(&self, voters: &BTreeSet<MemberId>) -> bool {
        let alone = voters.len() == 1;
        Self::quorum(voters, |id| {
            self.alive.contains(id) && (alone || !self.is_lost(*id))
        })
    }

    /// Whether the member moved to where it does not listen.
    fn is_lost(&self, id: MemberId) -> bool {
        let moved = |member: &Member| member.is_at(new_join().peer_urls()) && member.id != ADDED;
        self.membership.member(id).is_some_and(moved) && !self.found.contains(&id)
    }

    /// Whether etcd serves.
    pub fn serves(&self) -> bool {
        Self::quorum(&self.voters(), |id| self.alive.contains(id))
    }

    /// The member whose replacement is requested or under way: it may come back with its data.
    pub fn lost(&self) -> Option<MemberId> {
        let listed = self
            .membership
            .listed()
            .find(|member| member.removal() == Some(Cause::DataLost));
        let mut joins = self.membership.joins.iter();
        let lost = listed.map(|member| member.id);
        lost.or_else(|| {
            joins
                .find_map(PendingJoin::replaces)
                .filter(|id| self.is_listed(*id))
        })
    }

    fn is_listed(&self, id: MemberId) -> bool {
        self.membership
            .member(id)
            .is_some_and(|member| member.listed.is_some())
    }

    /// The listed member that a join replaces, on good grounds: it is given up, or it is dead.
    pub fn replaced(&self) -> Option<MemberId> {
        self.membership.joins.iter().find_map(|pending| {
            let member = self.membership.member(pending.replaces()?)?;
            let lost = pending.is_forced() || !self.alive.contains(&member.id);
            (lost && member.is_wanted() && member.listed.is_some()).then_some(member.id)
        })
    }

    /// Whether nothing is in the way of the end of this member but the quorum and the last manager. What becomes of a member
    /// whose node cannot be read is for an operator to say.
    pub fn is_unwanted(&self, member: &Member) -> bool {
        match member.owner() {
            Some(Owner::Removed) => true,
            Some(Owner::Node(roles)) => roles.desired == Role::Worker || member.removal().is_some(),
            Some(Owner::Unknown | Owner::Missing) | None => false,
        }
    }

    fn raft_leader(&self) -> Option<MemberId> {
        let voters = self.voters();
        let mut alive = voters.iter().filter(|id| self.alive.contains(id)).copied();
        let leader = match voters.contains(&self.favourite) && self.alive.contains(&self.favourite) {
            true => Some(self.favourite),
            false => alive.next(),
        };
        leader.filter(|_| self.serves())
    }

    /// What Quorate learns of it.
    pub fn observe(&mut self) {
        let (leader, serves) = (self.raft_leader(), self.serves());
        for member in &mut self.membership.members {
            let id = member.id;
            let full = Evidence {
                learner: member.is_learner(),
                ..answers(id, leader, 100)
            };
            let silent = Evidence::not_asked(id, member.is_learner(), NotAsked::NotYet);
            // A learner reads from its own data.
            let reads = self.alive.contains(&id) && member.has_started() && (serves || member.is_learner());
            member.evidence = match (reads, member.removal()) {
                _ if self.excluded.contains(&id) => {
                    Evidence::not_asked(id, member.is_learner(), NotAsked::RemovalBegun)
                }
                (false, _) => silent,
                (true, None) => full,
                // It is asked for a read alone.
                (true, Some(_)) => Evidence {
                    status: Evidence::not_asked(id, false, NotAsked::Leaving).status,
                    ..full
                },
            };
            member.quiet = !self.in_doubt.contains(&id);
            member.idle = match self.waited && !self.alive.contains(&id) {
                true => LONG,
                false => Duration::ZERO,
            };
            member.moved = listener(self.found.contains(&id));
        }
        let complete = self.membership.complete;
        self.membership.raft_leader = raft_leader(&self.membership.members, complete);
        let found = &self.found;
        let members = &self.membership.members;
        for pending in &mut self.membership.joins {
            let own = members.iter().find(|member| member.node() == pending.node);
            pending.reachability = listener(own.is_some_and(|own| found.contains(&own.id)));
            pending.age = match self.waited {
                true => LONG,
                false => Duration::ZERO,
            };
        }
    }

    /// The member of which a step is a call.
    pub fn called(step: &Step) -> Option<MemberId> {
        match step {
            Step::Remove { member, .. } | Step::Promote { member, .. } | Step::Readdress { member, .. } => {
                Some(*member)
            }
            Step::Add { .. } => Some(ADDED),
            _ => None,
        }
    }

    /// Whether etcd would carry out this call now, of which it may have carried out another since.
    pub fn is_due(&self, call: &Step) -> bool {
        let listed = |id: &MemberId| {
            self.membership
                .member(*id)
                .filter(|member| member.listed.is_some())
        };
        self.serves()
            && match call {
                Step::Promote { member, .. } => listed(member).is_some_and(Member::is_learner),
                // A record of it, without the list, is that of a member that was removed.
                Step::Add { .. } => {
                    self.membership.member(ADDED).is_none() && !self.membership.joins.is_empty()
                }
                Step::Readdress { member, .. } => {
                    listed(member).is_some_and(|member| member.readdress().is_some())
                }
                Step::Remove { member, .. } => listed(member).is_some(),
                _ => false,
            }
    }

    /// The step is taken.
    pub fn take(&mut self, step: &Step) {
        match step {
            Step::MoveLeadership { to, .. } => self.favourite = *to,
            Step::Forget(id) | Step::Withdraw(id) | Step::EndReaddress(id) => {
                self.in_doubt.remove(id);
                self.excluded.remove(id);
            }
            // A new intent, and a new learner, have their time before them.
            Step::DecideAdd(_) => self.waited = false,
            Step::Add { .. } => {
                self.waited = false;
                if self.joiner_starts {
                    self.alive.insert(ADDED);
                }
            }
            _ => {}
        }
        self.membership = after(&self.membership, step);
        if matches!(step, Step::Add { .. }) && !self.joiner_starts {
            let added = self
                .membership
                .members
                .iter_mut()
                .find(|member| member.id == ADDED);
            let listed = added
                .and_then(|member| member.listed.as_mut())
                .expect("it was added");
            listed.name.clear();
            listed.client_urls.clear();
        }
        if let Step::Record { .. } = step
            && let Some(pending) = self.membership.joins.first()
            && let Some(added) = self
                .membership
                .members
                .iter_mut()
                .find(|member| member.id == ADDED)
        {
            let record = added.record.as_mut().expect("it was recorded");
            record.node.clone_from(&pending.node);
            pending.uid().clone_into(&mut record.uid);
        }
    }

    /// Time passes, until no call can be under way. `None` if nothing changes by that.
    pub fn wait(&self) -> Option<Self> {
        let over = self.waited && self.flight.is_none() && self.in_doubt.is_empty();
        (!over).then(|| Self {
            waited: true,
            flight: None,
            in_doubt: BTreeSet::new(),
            excluded: BTreeSet::new(),
            ..self.clone()
        })
    }

    /// Everything that what follows depends on.
    pub fn key(&self) -> Vec<u8> {
        let bits = |bits: &[bool]| bits.iter().fold(0, |all, bit| all << 1 | u8::from(*bit));
        let id = |id: MemberId| id.0 as u8;
        let mut key = vec![
            id(self.favourite),
            self.faults,
            bits(&[self.waited, self.joiner_starts]),
            match &self.flight {
                None => 0,
                Some(call) => {
                    let kind = match call {
                        Step::Remove { .. } => 1,
                        Step::Promote { .. } => 2,
                        _ => 3,
                    };
                    Self::called(call).map_or(0, id) * 4 + kind
                }
            },
        ];
        for member in &self.membership.members {
            let record = member.record.as_ref();
            key.extend([
                id(member.id),
                bits(&[
                    member.listed.is_some(),
                    member.is_learner(),
                    member.has_started(),
                    member.is_at(new_join().peer_urls()),
                    self.alive.contains(&member.id),
                    self.found.contains(&member.id),
                    self.in_doubt.contains(&member.id),
                    record.is_some(),
                ]),
                bits(&[
                    self.excluded.contains(&member.id),
                    member.is_wanted(),
                    member.owner() == Some(Owner::Removed),
                    member.owner() == Some(Owner::Missing),
                    member.owner() == Some(Owner::Unknown),
                    record.is_some_and(|record| record.promotion),
                    record.is_some_and(|record| record.readdress.is_some()),
                ]),
                member.removal().map_or(0, |cause| cause as u8 + 1),
            ]);
        }
        for pending in &self.membership.joins {
            let replaces = pending.replaces().map_or(0, id);
            key.extend([0xff, pending.join.progress() as u8, pending.join.member_id as u8]);
            key.extend([replaces, u8::from(pending.is_forced())]);
            key.extend(pending.join.reason.bytes());
            key.extend(pending.join.message.bytes());
        }
        key
    }
}

fn listener(found: bool) -> Reachability {
    Reachability::Reached(match found {
        true => Listener::Expected,
        false => Listener::Absent,
    })
}
