//! What happens to a cluster: steps and what becomes of their calls, deaths, and time that passes.

use std::collections::BTreeSet;

use super::super::every_cluster::after;
use super::super::*;
use super::world::World;

impl World {
    /// The member of which a step is a call.
    pub fn called(&self, step: &Step) -> Option<MemberId> {
        match step {
            Step::Remove { member, .. } | Step::Promote { member, .. } | Step::Readdress { member, .. } => {
                Some(*member)
            }
            Step::Add { node, .. } => Some(self.added(node)),
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
                Step::Add { node, .. } => {
                    let mut joins = self.membership.joins.iter();
                    // etcd takes one learner at a time.
                    joins.any(|pending| pending.node == *node)
                        && self.membership.member(self.added(node)).is_none()
                        && !self.membership.listed().any(Member::is_learner)
                }
                Step::Readdress { member, .. } => {
                    listed(member).is_some_and(|member| member.readdress().is_some())
                }
                Step::Remove { member, .. } => listed(member).is_some(),
                _ => false,
            }
    }

    /// This member dies.
    pub fn without(&self, id: MemberId) -> Self {
        let mut other = self.clone();
        other.alive.remove(&id);
        other.found.remove(&id);
        other
    }

    /// The member that is replaced comes back with its data; `None` if there is no such member.
    pub fn with_lost_back(&self) -> Option<Self> {
        let back = self.lost().filter(|id| !self.alive.contains(id))?;
        let mut other = self.clone();
        other.alive.insert(back);
        Some(other)
    }

    /// etcd carries out the call that is under way; `None` if there is none, or it is void.
    pub fn landed(&self) -> Option<Self> {
        let call = self.flight.clone().filter(|call| self.is_due(call))?;
        let mut other = self.clone();
        other.flight = None;
        other.take(&call);
        Some(other)
    }

    /// The step is taken, and its reply is lost; `None` if it is no call.
    pub fn without_reply(&self, step: &Step) -> Option<Self> {
        let called = self.called(step)?;
        let mut other = self.clone();
        other.take(step);
        Some(other.doubting(step, None, called))
    }

    /// The call that this step makes is under way; `None` if it makes none.
    pub fn with_flight(&self, step: &Step) -> Option<Self> {
        let called = self.called(step)?;
        Some(self.clone().doubting(step, Some(step.clone()), called))
    }

    fn doubting(mut self, step: &Step, flight: Option<Step>, called: MemberId) -> Self {
        self.flight = flight;
        self.in_doubt.insert(called);
        // It gets no requests any more.
        if matches!(step, Step::Remove { .. }) {
            self.excluded.insert(called);
        }
        self
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
            Step::Add { node, .. } => {
                self.waited = false;
                let added = self.added(node);
                if self.starters.contains(&added) {
                    self.alive.insert(added);
                }
            }
            _ => {}
        }
        self.membership = after(&self.membership, step);
        if let Step::Add { node, .. } = step
            && !self.starters.contains(&self.added(node))
        {
            let id = self.added(node);
            let added = self.membership.members.iter_mut().find(|member| member.id == id);
            let listed = added
                .and_then(|member| member.listed.as_mut())
                .expect("it was added");
            listed.name.clear();
            listed.client_urls.clear();
        }
        if let Step::Record { node, member } = step
            && let Some(pending) = self.membership.joins.iter().find(|pending| pending.node == *node)
            && let Some(added) = self
                .membership
                .members
                .iter_mut()
                .find(|added| added.id == *member)
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
}
