//! What the store holds about roles, at one revision: nodes, member records, joins and removed nodes. Pure. A single watch
//! over all of them feeds it, so that a record is never seen without the node it was written with.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use jiff::Timestamp;

use super::owner::{NodeRoles, Owner};
use crate::etcd::{KeyValue, MemberId, Revision};
use crate::proto::join::Progress;
use crate::proto::{Join, Member};
use crate::store::Keys;
use crate::store::index::Synced;

mod facts;
mod feed;

pub use facts::NodeFacts;

/// A stored value, and when it was last written.
#[derive(Clone, Debug)]
pub struct Entry<T> {
    /// `None` if the value cannot be read.
    pub value: Option<T>,
    /// When the key was last written.
    pub mod_revision: Revision,
}

impl<T> Entry<T> {
    fn of(kv: &KeyValue, value: Option<T>) -> Self {
        Self {
            value,
            mod_revision: kv.mod_revision,
        }
    }
}

/// Everything that is stored about roles, at one revision.
#[derive(Debug)]
pub struct Index {
    keys: Keys,
    synced: Synced,
    /// Whether the update that is taken in has changed anything that membership depends on.
    relevant: bool,
    nodes: HashMap<Box<str>, Entry<NodeFacts>>,
    members: BTreeMap<MemberId, Entry<Member>>,
    joins: BTreeMap<Box<str>, Entry<Join>>,
    /// Whether roles are paused.
    paused: bool,
    /// How often roles were resumed.
    resumptions: u64,
    /// When the last pause was recorded.
    last_pause: Revision,
    /// By uid; when they expire.
    removed: HashMap<Box<str>, Entry<Option<Timestamp>>>,
    expiring: BTreeSet<(Timestamp, Box<str>)>,
    role_mismatches: BTreeSet<Box<str>>,
    blocked: BTreeSet<Box<str>>,
}

impl Index {
    /// An index that has seen nothing yet.
    pub fn new(keys: Keys) -> Self {
        Self {
            keys,
            synced: Synced::default(),
            relevant: false,
            nodes: HashMap::new(),
            members: BTreeMap::new(),
            joins: BTreeMap::new(),
            paused: false,
            resumptions: 0,
            last_pause: Revision::ABSENT,
            removed: HashMap::new(),
            expiring: BTreeSet::new(),
            role_mismatches: BTreeSet::new(),
            blocked: BTreeSet::new(),
        }
    }

    /// Whether a whole list has been read. Without one, nothing is known to be absent and nothing is decided.
    pub fn is_complete(&self) -> bool {
        self.synced.is_complete()
    }

    /// How often roles were resumed or paused. It grows also where a pause and its end arrive at once, or both lie between two
    /// lists.
    pub fn resumptions(&self) -> u64 {
        self.resumptions
    }

    /// When the last pause was recorded; [`Revision::ABSENT`] if none is.
    pub fn last_pause(&self) -> Revision {
        self.last_pause
    }

    /// Whether an operator has paused roles: then nothing about them changes.
    pub fn is_paused(&self) -> bool {
        self.paused
    }

    /// The revision at which the index holds.
    pub fn revision(&self) -> Revision {
        self.synced.revision()
    }

    /// The node with this name.
    pub fn node(&self, name: &str) -> Option<&Entry<NodeFacts>> {
        self.nodes.get(name)
    }

    /// Every node by its name; without facts where its record cannot be read.
    pub fn nodes(&self) -> impl Iterator<Item = (&str, Option<&NodeFacts>)> {
        let nodes = self.nodes.iter();
        nodes.map(|(name, entry)| (&**name, entry.value.as_ref()))
    }

    /// When the node with this name was last written; [`Revision::ABSENT`] if there is none.
    pub fn node_revision(&self, name: &str) -> Revision {
        self.nodes
            .get(name)
            .map_or(Revision::ABSENT, |entry| entry.mod_revision)
    }

    /// The roles of the node with this name and uid.
    pub fn roles_of(&self, name: &str, uid: &str) -> Option<NodeRoles> {
        self.owner_of(name, uid).roles()
    }

    /// Nodes whose observed role differs from their desired role, in the order of their names.
    pub fn role_mismatches(&self) -> impl Iterator<Item = (&str, &NodeFacts)> {
        self.named(&self.role_mismatches)
    }

    /// Nodes with the condition `RoleChangeBlocked`.
    pub fn blocked(&self) -> impl Iterator<Item = (&str, &NodeFacts)> {
        self.named(&self.blocked)
    }

    fn named<'a>(&'a self, names: &'a BTreeSet<Box<str>>) -> impl Iterator<Item = (&'a str, &'a NodeFacts)> {
        names
            .iter()
            .filter_map(|name| Some((&**name, self.nodes.get(name)?.value.as_ref()?)))
    }

    /// Every member record that can be read.
    pub fn records(&self) -> impl Iterator<Item = (MemberId, &Member, Revision)> {
        self.members
            .iter()
            .filter_map(|(id, entry)| Some((*id, entry.value.as_ref()?, entry.mod_revision)))
    }

    /// The members whose record cannot be read.
    pub fn unreadable_records(&self) -> impl Iterator<Item = MemberId> {
        let unreadable = self.members.iter().filter(|(_, entry)| entry.value.is_none());
        unreadable.map(|(id, _)| *id)
    }

    /// When each member record was last written, also of those that cannot be read.
    pub fn record_revisions(&self) -> impl Iterator<Item = (MemberId, Revision)> {
        self.members.iter().map(|(id, entry)| (*id, entry.mod_revision))
    }

    /// The record of a member.
    pub fn record(&self, id: MemberId) -> Option<(&Member, Revision)> {
        let entry = self.members.get(&id)?;
        Some((entry.value.as_ref()?, entry.mod_revision))
    }

    /// The node that a member record belongs to.
    pub fn owner(&self, record: &Member) -> Owner {
        self.owner_of(&record.node, &record.node_uid)
    }

    /// The node that something with this node name and uid belongs to.
    pub fn owner_of(&self, name: &str, uid: &str) -> Owner {
        if uid.is_empty() {
            return Owner::Unknown;
        }
        match self.nodes.get(name).map(|entry| &entry.value) {
            Some(Some(facts)) if facts.uid == uid => Owner::Node(facts.roles),
            Some(None) => Owner::Unknown,
            Some(Some(_)) | None if self.is_removed(uid) => Owner::Removed,
            Some(Some(_)) | None => Owner::Missing,
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

    /// Whether a node may have a member, as far as the store knows: a record names it, or an add may be under way. A
    /// record or join that cannot be read may do so as well.
    pub fn may_be_member(&self, name: &str) -> bool {
        let recorded = self
            .members
            .values()
            .any(|entry| entry.value.as_ref().is_none_or(|record| record.node == name));
        let joining = self.joins.get(name).is_some_and(|entry| {
            entry
                .value
                .as_ref()
                .is_none_or(|join| matches!(join.progress(), Progress::Adding | Progress::Learner))
        });
        recorded || joining
    }

    /// Whether this uid is recorded as removed.
    pub fn is_removed(&self, uid: &str) -> bool {
        self.removed.contains_key(uid)
    }

    /// How many removed nodes are recorded.
    pub fn removed_len(&self) -> usize {
        self.removed.len()
    }

    /// The records of removed nodes that expire, by when they do, each with its uid and when it was last written.
    pub fn expiring(&self) -> impl Iterator<Item = (Timestamp, &str, Revision)> {
        self.expiring
            .iter()
            .filter_map(|(expiry, uid)| Some((*expiry, &**uid, self.removed.get(uid)?.mod_revision)))
    }
}

#[cfg(test)]
mod tests;
