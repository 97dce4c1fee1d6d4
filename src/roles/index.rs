//! What the store says about roles, at one revision: nodes, member records, joins and removed nodes. Pure; fed by one
//! watch over all of them, so that a record is never seen without the node that it was written with.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use jiff::Timestamp;

use crate::etcd::{KeyValue, MemberId, Revision};
use crate::proto::join::Progress;
use crate::proto::{Join, Member};
use crate::store::Keys;

mod facts;
mod feed;

pub use facts::{NodeFacts, Owner, Record};

/// Something stored, and when it was last written.
#[derive(Clone, Debug)]
pub struct Entry<T> {
    /// `None` if it cannot be read.
    pub value: Option<T>,
    /// When it was last written.
    pub mod_revision: Revision,
    /// The list, or watch after it, that last showed it.
    seen_in: u32,
}

impl<T> Entry<T> {
    fn of(kv: &KeyValue, seen_in: u32, value: Option<T>) -> Self {
        Self {
            value,
            mod_revision: kv.mod_revision,
            seen_in,
        }
    }
}

/// Everything about roles that is stored, at one revision.
#[derive(Debug)]
pub struct Index {
    keys: Keys,
    complete: bool,
    revision: Revision,
    list: u32,
    nodes: HashMap<Box<str>, Entry<NodeFacts>>,
    members: BTreeMap<MemberId, Entry<Record>>,
    joins: BTreeMap<Box<str>, Entry<Join>>,
    /// By uid; when they expire.
    removed: HashMap<Box<str>, Entry<Option<Timestamp>>>,
    expiring: BTreeSet<(Timestamp, Box<str>)>,
    differing: BTreeSet<Box<str>>,
    blocked: BTreeSet<Box<str>>,
}

impl Index {
    /// Of nothing yet.
    pub fn new(keys: Keys) -> Self {
        Self {
            keys,
            complete: false,
            revision: Revision::ABSENT,
            list: 0,
            nodes: HashMap::new(),
            members: BTreeMap::new(),
            joins: BTreeMap::new(),
            removed: HashMap::new(),
            expiring: BTreeSet::new(),
            differing: BTreeSet::new(),
            blocked: BTreeSet::new(),
        }
    }

    /// Whether it holds a whole list. Without one nothing is known to be absent, so nothing is decided.
    pub fn is_complete(&self) -> bool {
        self.complete
    }

    /// What it is at: nothing in it changed between the last change in it and this.
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// The node of this name.
    pub fn node(&self, name: &str) -> Option<&Entry<NodeFacts>> {
        self.nodes.get(name)
    }

    /// The node of this name and uid.
    pub fn known_node(&self, name: &str, uid: &str) -> Option<(&NodeFacts, Revision)> {
        match self.owner_of(name, uid) {
            Owner::Node(facts, revision) => Some((facts, revision)),
            Owner::Unknown | Owner::Gone => None,
        }
    }

    /// Nodes that want another role than they have, in the order of their names.
    pub fn differing(&self) -> impl Iterator<Item = (&str, &NodeFacts, Revision)> {
        self.named(&self.differing)
    }

    /// Nodes with the condition [`ROLE_CHANGE_BLOCKED`].
    pub fn blocked(&self) -> impl Iterator<Item = (&str, &NodeFacts, Revision)> {
        self.named(&self.blocked)
    }

    fn named<'a>(
        &'a self,
        names: &'a BTreeSet<Box<str>>,
    ) -> impl Iterator<Item = (&'a str, &'a NodeFacts, Revision)> {
        names.iter().filter_map(|name| {
            let entry = self.nodes.get(name)?;
            Some((&**name, entry.value.as_ref()?, entry.mod_revision))
        })
    }

    /// Every member record that can be read.
    pub fn records(&self) -> impl Iterator<Item = (MemberId, &Record, Revision)> {
        self.members
            .iter()
            .filter_map(|(id, entry)| Some((*id, entry.value.as_ref()?, entry.mod_revision)))
    }

    /// The record of a member.
    pub fn record(&self, id: MemberId) -> Option<(&Record, Revision)> {
        let entry = self.members.get(&id)?;
        Some((entry.value.as_ref()?, entry.mod_revision))
    }

    /// Whose member it is.
    pub fn owner(&self, record: &Member) -> Owner<'_> {
        self.owner_of(&record.node, &record.node_uid)
    }

    /// Whose it is, whatever is of a node of this name and uid.
    pub fn owner_of(&self, name: &str, uid: &str) -> Owner<'_> {
        if uid.is_empty() {
            return Owner::Unknown;
        }
        match self.nodes.get(name) {
            None => Owner::Gone,
            Some(entry) => match &entry.value {
                None => Owner::Unknown,
                Some(facts) if facts.uid == uid => Owner::Node(facts, entry.mod_revision),
                Some(_) => Owner::Gone,
            },
        }
    }

    /// Every join that can be read, by the name of its node.
    pub fn joins(&self) -> impl Iterator<Item = (&str, &Join, Revision)> {
        self.joins
            .iter()
            .filter_map(|(name, entry)| Some((&**name, entry.value.as_ref()?, entry.mod_revision)))
    }

    /// The join of a node; [`Revision::ABSENT`] if there is none.
    pub fn join(&self, node: &str) -> (Option<&Join>, Revision) {
        let entry = self.joins.get(node);
        let revision = entry.map_or(Revision::ABSENT, |entry| entry.mod_revision);
        (entry.and_then(|entry| entry.value.as_ref()), revision)
    }

    /// Whether a node may have a member, as far as the store knows: a record says so, or an add may be under way.
    pub fn may_be_member(&self, name: &str) -> bool {
        let recorded = self.members.values().any(|entry| {
            entry
                .value
                .as_ref()
                .is_none_or(|record| record.member.node == name)
        });
        let joining = self.joins.get(name).is_some_and(|entry| {
            entry
                .value
                .as_ref()
                .is_none_or(|join| matches!(join.progress(), Progress::Adding | Progress::Learner))
        });
        recorded || joining
    }

    /// Whether this uid is on record as removed.
    pub fn is_removed(&self, uid: &str) -> bool {
        self.removed.contains_key(uid)
    }

    /// How many removed nodes are on record.
    pub fn removed_len(&self) -> usize {
        self.removed.len()
    }

    /// The record of a removed node that expires next.
    pub fn next_expiry(&self) -> Option<Timestamp> {
        self.expiring.first().map(|(expiry, _)| *expiry)
    }

    /// Removed nodes whose records have expired.
    pub fn expired(&self, now: Timestamp) -> impl Iterator<Item = (&str, Revision)> {
        self.expiring
            .iter()
            .take_while(move |(expiry, _)| *expiry <= now)
            .filter_map(|(_, uid)| Some((&**uid, self.removed.get(uid)?.mod_revision)))
    }
}

#[cfg(test)]
mod tests;
