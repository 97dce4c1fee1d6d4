//! What the store says about roles, at one revision: nodes, member records, joins and removed nodes. Pure; fed by one
//! watch over all of them, so that a record is never seen without the node that it was written with.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use jiff::Timestamp;

use super::reason::{EVICTION_BLOCKED, ROLE_CHANGE_BLOCKED};
use crate::etcd::{Event, KeyValue, MemberId, Revision};
use crate::proto::join::Progress;
use crate::proto::{Condition, Join, Member, Node, RemovedNode, Role};
use crate::store::keys::RoleKey;
use crate::store::object::{decode, member, time};
use crate::store::{Keys, Update};

/// A node, as far as its role goes.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeFacts {
    /// Given at its creation.
    pub uid: String,
    /// What the operator wants.
    pub desired: Role,
    /// What the leader found.
    pub observed: Role,
    /// Its condition [`ROLE_CHANGE_BLOCKED`].
    pub blocked: Option<Condition>,
    /// Counts the changes of its spec.
    pub generation: i64,
    /// The stored bytes: what is written anew keeps everything else. Empty for workers that are to stay workers.
    pub value: Vec<u8>,
}

impl NodeFacts {
    fn read(name: &str, kv: &KeyValue) -> Option<Self> {
        let node: Node = decode(name, &kv.value).ok()?;
        let metadata = node.metadata.unwrap_or_default();
        let status = node.status.unwrap_or_default();
        let mut facts = Self {
            uid: metadata.uid,
            desired: node.spec.unwrap_or_default().desired_role(),
            observed: status.role(),
            blocked: condition(&status.conditions, ROLE_CHANGE_BLOCKED),
            generation: metadata.generation,
            value: Vec::new(),
        };
        if facts.desired != Role::Worker || facts.observed != Role::Worker || facts.blocked.is_some() {
            facts.value = kv.value.clone();
        }
        Some(facts)
    }

    /// Whether it wants another role than it has, and both are known to this release.
    pub fn differs(&self) -> bool {
        matches!(
            (self.desired, self.observed),
            (Role::Manager, Role::Worker | Role::Unspecified)
                | (Role::Worker, Role::Manager | Role::Unspecified)
        )
    }
}

/// A member record, read.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// As stored.
    pub member: Member,
    /// When it joined.
    pub joined_at: Option<Timestamp>,
    /// Its condition [`EVICTION_BLOCKED`].
    pub blocked: Option<Condition>,
}

/// Whose member it is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Owner<'a> {
    /// This node, last written then.
    Node(&'a NodeFacts, Revision),
    /// A node whose value cannot be read, or one that the record does not identify. Nothing is done about its member.
    Unknown,
    /// No node has its uid.
    Gone,
}

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
        let entry = self.nodes.get(name)?;
        let facts = entry.value.as_ref().filter(|facts| facts.uid == uid)?;
        Some((facts, entry.mod_revision))
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

    /// Whether a key is there for this member, readable or not.
    pub fn has_record(&self, id: MemberId) -> bool {
        self.members.contains_key(&id)
    }

    /// Whose member it is.
    pub fn owner(&self, record: &Member) -> Owner<'_> {
        if record.node_uid.is_empty() {
            return Owner::Unknown;
        }
        match self.nodes.get(record.node.as_str()) {
            None => Owner::Gone,
            Some(entry) => match &entry.value {
                None => Owner::Unknown,
                Some(facts) if facts.uid == record.node_uid => Owner::Node(facts, entry.mod_revision),
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

    /// Takes in what the store told. Returns whether anything changed that membership depends on.
    pub fn take_in(&mut self, update: Update) -> bool {
        match update {
            Update::Page { first, keys } => {
                if first {
                    self.complete = false;
                    self.list = self.list.wrapping_add(1);
                }
                for kv in keys {
                    self.put(&kv);
                }
                false
            }
            Update::Listed(revision) => {
                self.forget_unlisted();
                self.revision = revision;
                self.complete = true;
                true
            }
            Update::Events(events) => {
                let mut relevant = false;
                for event in events {
                    self.revision = self.revision.max(event.revision());
                    relevant |= match event {
                        Event::Put(kv) => self.put(&kv),
                        Event::Delete { key, .. } => self.delete(&key),
                    };
                }
                relevant
            }
        }
    }

    fn put(&mut self, kv: &KeyValue) -> bool {
        let keys = self.keys.clone();
        let (mod_revision, seen_in) = (kv.mod_revision, self.list);
        match keys.parse_role(&kv.key) {
            RoleKey::Node(name) => {
                let value = NodeFacts::read(name, kv);
                let mark = |set: &mut BTreeSet<Box<str>>, is: bool| match is {
                    true => _ = set.insert(name.into()),
                    false => _ = set.remove(name),
                };
                mark(
                    &mut self.differing,
                    value.as_ref().is_some_and(NodeFacts::differs),
                );
                let blocked = value.as_ref().is_some_and(|facts| facts.blocked.is_some());
                mark(&mut self.blocked, blocked);
                let roles = |facts: &NodeFacts| (facts.uid.clone(), facts.desired, facts.observed);
                let after = value.as_ref().map(roles);
                let entry = Entry {
                    value,
                    mod_revision,
                    seen_in,
                };
                let before = self.nodes.insert(name.into(), entry);
                let changed = before.is_none_or(|before| before.value.as_ref().map(roles) != after);
                changed && self.concerns_membership(name)
            }
            RoleKey::Member(id) => {
                let value = member::decode_member(&kv.value).ok().map(|member| Record {
                    joined_at: time::from_proto(member.joined_at.as_ref()),
                    blocked: condition(&member.conditions, EVICTION_BLOCKED),
                    member,
                });
                let entry = Entry {
                    value,
                    mod_revision,
                    seen_in,
                };
                self.members.insert(id, entry);
                true
            }
            RoleKey::Join(node) => {
                let value = member::decode_join(&kv.value).ok();
                let entry = Entry {
                    value,
                    mod_revision,
                    seen_in,
                };
                self.joins.insert(node.into(), entry);
                true
            }
            RoleKey::Removed(uid) => {
                let removed: Option<RemovedNode> = prost::Message::decode(&*kv.value).ok();
                // One that cannot be read stays for ever: nothing says that it expired.
                let expiry = removed.and_then(|removed| time::from_proto(removed.expires_at.as_ref()));
                self.forget_expiry(uid);
                if let Some(expiry) = expiry {
                    self.expiring.insert((expiry, uid.into()));
                }
                let entry = Entry {
                    value: Some(expiry),
                    mod_revision,
                    seen_in,
                };
                self.removed.insert(uid.into(), entry);
                true
            }
            RoleKey::Other => false,
        }
    }

    /// Whether a member or a join is of a node of this name.
    fn concerns_membership(&self, name: &str) -> bool {
        let of_record = |entry: &Entry<Record>| {
            let record = entry.value.as_ref();
            record.is_some_and(|record| record.member.node == name)
        };
        self.joins.contains_key(name) || self.members.values().any(of_record)
    }

    fn forget_expiry(&mut self, uid: &str) {
        if let Some(expiry) = self.removed.get(uid).and_then(|entry| entry.value.flatten()) {
            self.expiring.remove(&(expiry, uid.into()));
        }
    }

    fn delete(&mut self, key: &[u8]) -> bool {
        let keys = self.keys.clone();
        match keys.parse_role(key) {
            RoleKey::Node(name) => {
                self.differing.remove(name);
                self.blocked.remove(name);
                self.nodes.remove(name).is_some() && self.concerns_membership(name)
            }
            RoleKey::Member(id) => self.members.remove(&id).is_some(),
            RoleKey::Join(node) => self.joins.remove(node).is_some(),
            RoleKey::Removed(uid) => {
                self.forget_expiry(uid);
                self.removed.remove(uid).is_some()
            }
            RoleKey::Other => false,
        }
    }

    /// What the list did not show was deleted while no watch saw it.
    fn forget_unlisted(&mut self) {
        let list = self.list;
        let Self {
            nodes,
            differing,
            blocked,
            removed,
            expiring,
            ..
        } = self;
        nodes.retain(|name, entry| {
            let listed = entry.seen_in == list;
            if !listed {
                differing.remove(name);
                blocked.remove(name);
            }
            listed
        });
        removed.retain(|uid, entry| {
            let listed = entry.seen_in == list;
            if let Some(expiry) = entry.value.flatten().filter(|_| !listed) {
                expiring.remove(&(expiry, uid.clone()));
            }
            listed
        });
        self.members.retain(|_, entry| entry.seen_in == list);
        self.joins.retain(|_, entry| entry.seen_in == list);
    }
}

fn condition(conditions: &[Condition], kind: &str) -> Option<Condition> {
    let of_kind = |condition: &&Condition| condition.r#type == kind;
    conditions.iter().find(of_kind).cloned()
}

#[cfg(test)]
mod tests;
