//! Nodes that join although they have a member: it is replaced, or gets its new address.

use super::super::readdress;
use super::super::removal::{decide_on, is_lost};
use super::super::step::Step;
use super::{Attempt, Instead};
use crate::etcd::members::Listener;
use crate::proto::join::Progress;
use crate::proto::removal::Cause;
use crate::roles::blocked::Blocked;
use crate::roles::checks::Refusal;
use crate::roles::membership::Member;
use crate::roles::reason::Reason;

impl Attempt<'_> {
    /// A member that joins again gets its new address; nothing else changes.
    pub(super) fn rejoin(&self) -> Result<(), Instead> {
        let (membership, pending) = (self.membership, self.pending);
        let Some(member) = membership.member_of_node(&pending.node, pending.uid()) else {
            return Ok(());
        };
        if member.cause().is_some() {
            let message = format!("its earlier member {} is being removed", member.id);
            return self.block(Reason::RemovalPending, message);
        }
        if pending.replaces() == Some(member.id) {
            if !is_lost(membership, member, pending.is_forced())? {
                return Err(self.refused(&Refusal::member_healthy(member.id)));
            }
            // Before the member is given up, so that the new one can be added.
            self.test()?;
            self.queue_behind_learner()?;
            return Err(Instead::Step(decide_on(membership, member, Cause::DataLost)?));
        }
        self.await_earlier_move(member)?;
        if member.is_at(pending.peer_urls()) {
            let progress = match member.is_learner() {
                true => Progress::Learner,
                false => Progress::Voter,
            };
            return Err(Instead::Step(pending.note(progress, Some(member.id), None)));
        }
        let listener = self.test()?;
        let step = match (member.is_learner(), &listener) {
            // etcd before 3.5.31 makes a voter of a learner whose peer URLs change.
            (true, _) => decide_on(membership, member, Cause::Replaced)?,
            (false, Listener::Another(what)) => {
                let urls = pending.peer_urls().join(", ");
                let refusal = Refusal::new(Reason::PeerMismatch, format_args!("peer URL {urls} {what}"));
                return Err(self.refused(&refusal));
            }
            (false, _) => self.decide_readdress(member, &listener)?,
        };
        Err(Instead::Step(step))
    }

    /// One move of a member at a time.
    fn await_earlier_move(&self, member: &Member) -> Result<(), Instead> {
        let Some(readdress) = member
            .readdress()
            .filter(|earlier| !member.is_at(&earlier.peer_urls))
        else {
            return Ok(());
        };
        match readdress::next(self.membership, member, readdress) {
            Err(blocked) => self.block(blocked.reason, blocked.message),
            Ok(_) => self.block(Reason::Pending, "its member is being moved"),
        }
    }

    fn decide_readdress(&self, member: &Member, listener: &Listener) -> Result<Step, Blocked> {
        let pending = self.pending;
        let checked = readdress::check(self.membership, member, listener);
        checked.map_err(|why| pending.block(why.reason, why.message))?;
        Ok(Step::DecideReaddress {
            node: pending.node.clone(),
            member: member.id,
        })
    }
}
