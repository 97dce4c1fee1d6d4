//! The intent to remove a member, and the transaction that ends its removal.

use prost::Message;

use super::joins::set_progress;
use super::{Context, Witness};
use crate::etcd::{MemberId, Txn};
use crate::mutation::{self, Guard};
use crate::proto::join::Progress;
use crate::proto::removal::Cause;
use crate::proto::{Join, Member, Readdress, Removal, Role};
use crate::roles::node_update;
use crate::roles::owner::Owner;
use crate::roles::plan::cause_words;
use crate::roles::reason::Reason;
use crate::store::Name;
use crate::store::object::member::{is_ended, member_of};
use crate::store::object::time;

/// The members that a join names which were removed: an agent asks at its start, and no node loses so many while its agent is away.
const MOST_REMOVED: usize = 16;

impl Context<'_> {
    /// The voters that can confirm a removal: all others.
    ///
    /// A linearizable read through a voter leaves it with everything that was committed before. Once the removal is decided,
    /// the reads behind the membership were requested no earlier than that, so they came after the member was added.
    pub(super) fn witnesses(&self, id: MemberId) -> Vec<Witness> {
        let record = self.index.record(id);
        let decided = record.is_some_and(|(record, _)| record.removal.is_some());
        let voters = self.membership.voters().filter(|member| member.id != id);
        let witnesses = voters.filter_map(|member| {
            Some(Witness {
                voter: member.listed.clone()?,
                knew_member: decided && member.is_healthy(),
            })
        });
        witnesses.collect()
    }

    /// The intent, in one transaction with the proof that the node is as the decision saw it.
    pub(super) fn decide_removal(&self, id: MemberId, cause: Cause) -> Option<Txn> {
        let txn = self.changed_record(id, |member| {
            member.removal = Some(Removal {
                cause: cause.into(),
                decided_at: Some(time::to_proto(self.now)),
                term: self.term.0,
            });
        })?;
        let (record, _) = self.index.record(id)?;
        let txn = match record.node.parse::<Name>() {
            Ok(name) => {
                let revision = self.index.node_revision(name.as_str());
                txn.when_unchanged(&self.keys.node(&name), revision)
            }
            // No node can have this name.
            Err(_) => txn,
        };
        if cause == Cause::DataLost {
            // The request to replace it is the ground.
            let name: Name = record.node.parse().ok()?;
            return Some(txn.when_unchanged(&self.keys.join(&name), self.index.join(name.as_str()).1));
        }
        if cause != Cause::NodeGone {
            return Some(txn);
        }
        // INV-12: the record of the removal, not the absence of the node, is the proof.
        let txn = match mutation::without(Guard::Removed) {
            true => txn,
            false => txn.when_present(&self.keys.removed(&record.node_uid)),
        };
        if self
            .membership
            .member(id)
            .is_some_and(|member| member.is_learner())
        {
            return Some(txn);
        }
        // The node of another member proves that the nodes exist.
        let other = self.index.records().find_map(|(other, record, _)| {
            let owner = self.index.owner(record);
            let exists = other != id && matches!(owner, Owner::Node(_));
            exists.then(|| record.node.parse::<Name>().ok())?
        })?;
        Some(txn.when_present(&self.keys.node(&other)))
    }

    /// The end of an intent that is not carried out, with the proof that its grounds are gone still.
    pub(super) fn withdraw(&self, id: MemberId) -> Option<Txn> {
        let listed = self.listed(id);
        let txn = self.changed_record(id, |member| {
            member.removal = None;
            member.promotion = None;
            // A move that the list shows ends where the member is found.
            let made = |readdress: &Readdress| {
                let listed = listed.as_ref();
                listed.is_some_and(|listed| listed.has_peer_urls(&readdress.peer_urls))
            };
            member.readdress.take_if(|readdress| !made(readdress));
        })?;
        let (record, _) = self.index.record(id)?;
        let name: Name = record.node.parse().ok()?;
        Some(
            txn.when_unchanged(&self.keys.node(&name), self.index.node_revision(name.as_str()))
                .when_unchanged(&self.keys.join(&name), self.index.join(name.as_str()).1),
        )
    }

    /// The end of a removed member: its record is deleted, its join ends, and its node becomes a worker if that is its
    /// desired role. If the desired role has changed meanwhile, the observed role stays and the node may join again.
    ///
    /// While another add for the node may be under way, its role stays, and the intent of that add as well. The join names the removed
    /// member all the same: without that word the agent of the node would keep the etcd of that member, and never start the next one.
    pub(super) fn forget(&self, id: MemberId) -> Option<Txn> {
        let (member, revision) = self.index.record(id)?;
        let key = self.keys.member(id);
        let txn = Txn::new().when_unchanged(&key, revision).delete(&key);
        let Ok(name) = member.node.parse::<Name>() else {
            return Some(txn);
        };
        let join_key = self.keys.join(&name);
        let (join, join_revision) = self.index.join(name.as_str());
        let txn = txn.when_unchanged(&join_key, join_revision);
        let txn = match join.map(Join::progress) {
            Some(Progress::Adding) => txn,
            _ => self.make_worker(txn, id, member, &name),
        };
        Some(match join {
            Some(join) => txn.put(&join_key, self.left_join(join, id, member).encode_to_vec()),
            None => txn,
        })
    }

    /// The join, which says that this member is out of the cluster for good: the agent of the node stops etcd by that word alone. It
    /// ends, if it led to this member and has not ended.
    fn left_join(&self, join: &Join, id: MemberId, member: &Member) -> Join {
        let ended = self.ended_join(join, id, member);
        let mut left = ended.unwrap_or_else(|| join.clone());
        let removed = &mut left.removed_members;
        removed.retain(|other| *other != id.0);
        removed.push(id.0);
        let many = removed.len().saturating_sub(MOST_REMOVED);
        removed.drain(..many);
        left
    }

    /// Adds the observed role of the node, where the node is a desired worker and this is its last member.
    fn make_worker(&self, txn: Txn, id: MemberId, member: &Member, name: &Name) -> Txn {
        let Owner::Node(roles) = self.index.owner(member) else {
            return txn;
        };
        let mut records = self.index.records();
        let is_same_node =
            |record: &Member| (&record.node, &record.node_uid) == (&member.node, &member.node_uid);
        let has_other = records.any(|(other, record, _)| other != id && is_same_node(record));
        if roles.desired != Role::Worker || roles.observed == Role::Worker || has_other {
            return txn;
        }
        let Some(facts) = self
            .index
            .node(name.as_str())
            .and_then(|entry| entry.value.as_ref())
        else {
            return txn;
        };
        let key = self.keys.node(name);
        txn.when_unchanged(&key, roles.revision)
            .put(&key, node_update::with_role(&facts.value, Role::Worker))
    }

    /// The join with its end, if it led to this member and has not ended.
    fn ended_join(&self, join: &Join, id: MemberId, member: &Member) -> Option<Join> {
        if member_of(join) != Some(id) || is_ended(join) {
            return None;
        }
        let removal = member.removal.as_ref();
        let cause = removal.map_or(Cause::Unspecified, Removal::cause);
        let reason = match cause {
            Cause::NeverStarted => Reason::NeverStarted,
            Cause::Stalled => Reason::Stalled,
            _ => Reason::Overtaken,
        };
        let why = (reason, format!("member {id} was removed: {}", cause_words(cause)));
        let mut ended = join.clone();
        set_progress(&mut ended, Some(id), Progress::Removed, Some(&why), self.now);
        // A later request is still to be answered.
        ended.answers.clone_from(&join.answers);
        Some(ended)
    }
}
