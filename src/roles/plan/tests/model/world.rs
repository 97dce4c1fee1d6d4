//! A cluster as it is, and what Quorate learns of it.

use std::collections::BTreeSet;
use std::time::Duration;

use super::super::every_cluster::added_for;
use super::super::*;
use crate::etcd::members::{Alarm, Evidence, Inquiry, NotAsked};
use crate::roles::membership::raft_leader;
use crate::roles::membership::tests::fixtures::answers;
use crate::roles::quorum::Quorum;

/// The member that the join of [`new_join`] adds.
pub const ADDED: MemberId = MemberId(9);

/// The member that the join of another node adds at the same time.
pub const ADDED_TOO: MemberId = MemberId(19);

/// An alarm of etcd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Raised {
    /// It has no space left.
    Full,
    /// The data of this member differs from that of the others.
    Corrupt(MemberId),
}

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
    /// The members of joins whose etcd starts once they are added.
    pub starters: BTreeSet<MemberId>,
    /// The alarm that is raised, until a person clears it.
    pub raised: Option<Raised>,
    /// See [`Limits::max_voters`].
    pub max_voters: usize,
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
        Self::quorum(voters, |id| self.counts(*id) && (alone || !self.is_lost(*id)))
    }

    /// Whether a member is as good as its answers: it lives, and its data is that of the others.
    pub fn counts(&self, id: MemberId) -> bool {
        self.alive.contains(&id) && self.raised != Some(Raised::Corrupt(id))
    }

    /// A person clears the alarm as soon as that is of use: a member with corrupt data is gone before. `None` if it stays.
    pub fn cleared(&self) -> Option<Self> {
        let is_over = match self.raised? {
            Raised::Full => true,
            Raised::Corrupt(id) => !self.is_listed(id),
        };
        is_over.then(|| Self {
            raised: None,
            ..self.clone()
        })
    }

    /// Whether the plan knows of the alarm: by the status of any member.
    pub fn sees_alarm(&self) -> bool {
        let mut members = self.membership.members.iter();
        self.raised.is_some() && members.any(|member| member.evidence.status.answer().is_some())
    }

    /// The member that the join of this node adds.
    pub fn added(&self, node: &str) -> MemberId {
        let mut joins = self.membership.joins.iter();
        joins
            .find(|pending| pending.node == node)
            .map_or(ADDED, added_for)
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
            let lost = pending.is_forced() || !self.counts(member.id);
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
        self.observe_alarms();
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
        // As they are read: those that are being added first.
        self.membership.joins.sort_by_key(|pending| !pending.is_adding());
    }

    /// Every status says which alarm is raised. Members that leave give none.
    fn observe_alarms(&mut self) {
        let alarm = self.raised.map(|raised| match raised {
            Raised::Full => (MemberId(99), Alarm::NOSPACE),
            Raised::Corrupt(id) => (id, Alarm::CORRUPT),
        });
        for member in &mut self.membership.members {
            if let (
                Inquiry::Asked {
                    answer: Ok(status), ..
                },
                Some((member, kind)),
            ) = (&mut member.evidence.status, alarm)
            {
                let kind = kind.to_owned();
                status.alarms = vec![Alarm { member, kind }];
            }
        }
        let is_seen = self.sees_alarm();
        for member in &mut self.membership.members {
            member.corrupt = is_seen && self.raised == Some(Raised::Corrupt(member.id));
        }
    }

    /// Everything that what follows depends on.
    pub fn key(&self) -> Vec<u8> {
        let bits = |bits: &[bool]| bits.iter().fold(0, |all, bit| all << 1 | u8::from(*bit));
        let id = |id: MemberId| id.0 as u8;
        let mut key = vec![
            id(self.favourite),
            self.faults,
            bits(&[self.waited]),
            self.max_voters as u8,
            match self.raised {
                None => 0,
                Some(Raised::Full) => 1,
                Some(Raised::Corrupt(member)) => 2 + id(member),
            },
            match &self.flight {
                None => 0,
                Some(call) => {
                    let kind = match call {
                        Step::Remove { .. } => 1,
                        Step::Promote { .. } => 2,
                        _ => 3,
                    };
                    self.called(call).map_or(0, id) * 4 + kind
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
            let starts = self.starters.contains(&added_for(pending));
            key.extend([replaces, u8::from(pending.is_forced()), u8::from(starts)]);
            key.extend(pending.node.bytes());
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
