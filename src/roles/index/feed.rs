//! Feeds the index, key by key.

use std::borrow::Cow;
use std::collections::BTreeSet;

use prost::Message;

use super::{Entry, Index, NodeFacts};
use crate::etcd::{KeyValue, Revision};
use crate::proto::{Member, RemovedNode};
use crate::store::Update;
use crate::store::index::Indexed;
use crate::store::keys::RoleKey;
use crate::store::object::{member, time};

impl Index {
    /// Takes in an update. Returns whether it changed anything that membership depends on.
    pub fn take_in(&mut self, update: Update) -> bool {
        // While a list is read, nothing is decided; its end may change anything.
        let (listing, listed) = match update {
            Update::Page { .. } => (true, false),
            Update::Listed(_) => (false, true),
            Update::Events(_) => (false, false),
        };
        self.relevant = listed;
        let mut synced = std::mem::take(&mut self.synced);
        synced.take_in(update, self);
        self.synced = synced;
        self.relevant && !listing
    }

    fn put_node(&mut self, name: &str, kv: &KeyValue) {
        let is_named = self.concerns_membership(name);
        let value = NodeFacts::read(name, kv, is_named);
        let mark = |set: &mut BTreeSet<Box<str>>, is: bool| match is {
            true => _ = set.insert(name.into()),
            false => _ = set.remove(name),
        };
        let differs = value.as_ref().is_some_and(NodeFacts::differs);
        mark(&mut self.role_mismatches, differs);
        let blocked = value.as_ref().is_some_and(|facts| facts.blocked);
        mark(&mut self.blocked, blocked);
        let roles = |facts: &NodeFacts| (facts.uid.clone(), facts.roles.desired, facts.roles.observed);
        let after = value.as_ref().map(roles);
        let before = self.nodes.insert(name.into(), Entry::of(kv, value));
        let changed = before.is_none_or(|before| before.value.as_ref().map(roles) != after);
        self.relevant |= changed && is_named;
    }

    fn put_removed(&mut self, uid: &str, kv: &KeyValue) {
        let removed = RemovedNode::decode(&*kv.value).ok();
        // A record that cannot be read stays for ever: nothing says when it expires.
        let expiry = removed.and_then(|removed| time::from_proto(removed.expires_at.as_ref()));
        self.forget_expiry(uid);
        if let Some(expiry) = expiry {
            self.expiring.insert((expiry, uid.into()));
        }
        self.removed.insert(uid.into(), Entry::of(kv, Some(expiry)));
        self.relevant = true;
    }

    /// Whether a member record or a join names this node.
    fn concerns_membership(&self, name: &str) -> bool {
        let of_record = |entry: &Entry<Member>| {
            let record = entry.value.as_ref();
            record.is_some_and(|record| record.node == name)
        };
        self.joins.contains_key(name) || self.members.values().any(of_record)
    }

    fn forget_expiry(&mut self, uid: &str) {
        if let Some(expiry) = self.removed.get(uid).and_then(|entry| entry.value.flatten()) {
            self.expiring.remove(&(expiry, uid.into()));
        }
    }
}

impl Indexed for Index {
    fn put(&mut self, kv: KeyValue) {
        match self.keys.clone().parse_role(&kv.key) {
            RoleKey::Node(name) => self.put_node(name, &kv),
            RoleKey::Member(id) => {
                self.members
                    .insert(id, Entry::of(&kv, member::decode_member(&kv.value).ok()));
                self.relevant = true;
            }
            RoleKey::Join(node) => {
                let join = member::decode_join(&kv.value).ok();
                self.joins.insert(node.into(), Entry::of(&kv, join));
                self.relevant = true;
            }
            RoleKey::Pause => (self.paused, self.relevant) = (true, true),
            RoleKey::LastPause => {
                let before = std::mem::replace(&mut self.last_pause, kv.mod_revision);
                if before != kv.mod_revision {
                    self.resumptions += 1;
                    self.relevant = true;
                }
            }
            RoleKey::Removed(uid) => self.put_removed(uid, &kv),
            RoleKey::Other => {}
        }
    }

    fn delete(&mut self, key: &[u8], _: Revision) {
        self.relevant |= match self.keys.clone().parse_role(key) {
            RoleKey::Node(name) => {
                self.role_mismatches.remove(name);
                self.blocked.remove(name);
                self.nodes.remove(name).is_some() && self.concerns_membership(name)
            }
            RoleKey::Member(id) => self.members.remove(&id).is_some(),
            RoleKey::Join(node) => self.joins.remove(node).is_some(),
            RoleKey::Pause => {
                self.resumptions += 1;
                std::mem::take(&mut self.paused)
            }
            RoleKey::LastPause => {
                self.last_pause = Revision::ABSENT;
                false
            }
            RoleKey::Removed(uid) => {
                self.forget_expiry(uid);
                self.removed.remove(uid).is_some()
            }
            RoleKey::Other => false,
        };
    }

    fn keys(&self) -> impl Iterator<Item = Cow<'_, [u8]>> {
        let nodes = self.nodes.keys().map(|name| RoleKey::Node(name));
        let members = self.members.keys().map(|id| RoleKey::Member(*id));
        let joins = self.joins.keys().map(|node| RoleKey::Join(node));
        let removed = self.removed.keys().map(|uid| RoleKey::Removed(uid));
        let paused = self.paused.then_some(RoleKey::Pause);
        let last = (self.last_pause != Revision::ABSENT).then_some(RoleKey::LastPause);
        let all = paused
            .into_iter()
            .chain(last)
            .chain(nodes)
            .chain(members)
            .chain(joins)
            .chain(removed);
        all.filter_map(|key| Some(Cow::Owned(self.keys.role(key)?)))
    }
}
