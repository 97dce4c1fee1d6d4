//! Feeds the index with lists and with the events after them.

use std::collections::BTreeSet;

use prost::Message;

use super::{Entry, Index, NodeFacts, StoredRecord};
use crate::etcd::{Event, KeyValue};
use crate::proto::RemovedNode;
use crate::store::Update;
use crate::store::keys::RoleKey;
use crate::store::object::{member, time};

impl Index {
    /// Takes in an update. Returns whether it changed anything that membership depends on.
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
        let list = self.list;
        match keys.parse_role(&kv.key) {
            RoleKey::Node(name) => {
                let value = NodeFacts::read(name, kv);
                let mark = |set: &mut BTreeSet<Box<str>>, is: bool| match is {
                    true => _ = set.insert(name.into()),
                    false => _ = set.remove(name),
                };
                mark(
                    &mut self.role_mismatches,
                    value.as_ref().is_some_and(NodeFacts::differs),
                );
                let blocked = value.as_ref().is_some_and(|facts| facts.blocked.is_some());
                mark(&mut self.blocked, blocked);
                let roles =
                    |facts: &NodeFacts| (facts.uid.clone(), facts.roles.desired, facts.roles.observed);
                let after = value.as_ref().map(roles);
                let before = self.nodes.insert(name.into(), Entry::of(kv, list, value));
                let changed = before.is_none_or(|before| before.value.as_ref().map(roles) != after);
                changed && self.concerns_membership(name)
            }
            RoleKey::Member(id) => {
                let entry = Entry::of(kv, list, StoredRecord::read(kv));
                self.members.insert(id, entry);
                true
            }
            RoleKey::Join(node) => {
                let entry = Entry::of(kv, list, member::decode_join(&kv.value).ok());
                self.joins.insert(node.into(), entry);
                true
            }
            RoleKey::Removed(uid) => {
                let removed = RemovedNode::decode(&*kv.value).ok();
                // A record that cannot be read stays for ever: nothing says when it expires.
                let expiry = removed.and_then(|removed| time::from_proto(removed.expires_at.as_ref()));
                self.forget_expiry(uid);
                if let Some(expiry) = expiry {
                    self.expiring.insert((expiry, uid.into()));
                }
                self.removed.insert(uid.into(), Entry::of(kv, list, Some(expiry)));
                true
            }
            RoleKey::Other => false,
        }
    }

    /// Whether a member record or a join names this node.
    fn concerns_membership(&self, name: &str) -> bool {
        let of_record = |entry: &Entry<StoredRecord>| {
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
                self.role_mismatches.remove(name);
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

    /// Forgets what the list did not show: it was deleted while no watch was open.
    fn forget_unlisted(&mut self) {
        let list = self.list;
        let Self {
            nodes,
            role_mismatches,
            blocked,
            removed,
            expiring,
            ..
        } = self;
        nodes.retain(|name, entry| {
            let listed = entry.seen_in == list;
            if !listed {
                role_mismatches.remove(name);
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
