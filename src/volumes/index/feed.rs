//! Feeds the index with one range, key by key.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap};

use prost::Message;

use super::sharing::with_sharing;
use super::{Change, Index, Part, SeenNode};
use crate::etcd::{KeyValue, Revision};
use crate::proto::{Node, Plugin, PluginStatus, RemovedNode, Tombstone};
use crate::store::Name;
use crate::store::index::Indexed;
use crate::store::keys::{NodeKey, RoleKey};
use crate::store::object::decode;
use crate::wipe::wipe;

/// One range of the index, and what changes in it.
pub(super) struct Feed<'i> {
    index: &'i mut Index,
    part: Part,
    /// What is known at this revision or later stays; `None`: what is known later than what comes.
    stays_from: Option<Revision>,
    pub(super) changes: Vec<Change>,
    /// What came, and is older than what is known.
    pub(super) older: Vec<KeyValue>,
}

/// What a key names.
enum Key {
    Volume(Name),
    /// The publication of a volume to a node.
    Publication(Name, Name),
    Node(Name),
    /// The uid of a removed node.
    Removed(Box<str>),
    Plugin(Name),
    PluginStatus(Name),
    Secret(Name),
    Tombstone(Name),
}

impl<'i> Feed<'i> {
    pub(super) fn new(index: &'i mut Index, part: Part) -> Self {
        Self {
            index,
            part,
            stays_from: None,
            changes: Vec::new(),
            older: Vec::new(),
        }
    }

    /// One for what a list of this revision shows: nothing that is known at that revision or earlier is later than that.
    pub(super) fn of_list(index: &'i mut Index, part: Part, listed: Revision) -> Self {
        Self {
            stays_from: Some(Revision(listed.0 + 1)),
            ..Self::new(index, part)
        }
    }

    /// The revision at which a record is known, or to be gone.
    fn known(&self, key: &Key, text: &[u8]) -> Option<Revision> {
        let index = &*self.index;
        let record = match key {
            Key::Volume(name) => index.volumes.get(name).and_then(|entry| entry.volume.as_ref()),
            Key::Publication(volume, node) => {
                let entry = index.volumes.get(volume);
                entry.and_then(|entry| entry.publications.get(node))
            }
            _ => None,
        };
        let node = match key {
            Key::Node(name) => index.nodes.get(name).map(|node| node.mod_revision),
            _ => None,
        };
        let record = record.map(|stored| stored.mod_revision);
        let gone = index.followed[self.part as usize].gone.get(text).copied();
        record.max(node).max(gone)
    }

    /// What comes next replaces the record, whatever its revision.
    fn forget_revision(&mut self, key: &Key) {
        let index = &mut *self.index;
        match key {
            Key::Volume(name) => {
                if let Some(stored) = index
                    .volumes
                    .get_mut(name)
                    .and_then(|entry| entry.volume.as_mut())
                {
                    stored.mod_revision = Revision::ABSENT;
                }
            }
            Key::Publication(volume, node) => {
                if let Some(entry) = index.volumes.get_mut(volume)
                    && entry.publications.get(node).is_some()
                {
                    entry.publications.get_or_default(node).mod_revision = Revision::ABSENT;
                }
            }
            Key::Node(name) => {
                if let Some(node) = index.nodes.get_mut(name) {
                    node.mod_revision = Revision::ABSENT;
                }
            }
            _ => {}
        }
    }

    /// `None` for a key that no object can have.
    fn parse(&self, key: &[u8]) -> Option<Key> {
        let (keys, name) = (&self.index.keys, |text: &str| text.parse::<Name>().ok());
        Some(match self.part {
            Part::Volumes => Key::Volume(name(keys.parse_volume(key)?)?),
            Part::Publications => {
                let (volume, node) = keys.parse_publication(key)?.split_once('/')?;
                Key::Publication(name(volume)?, name(node)?)
            }
            Part::Nodes => match keys.parse_node(key) {
                NodeKey::Node(node) => Key::Node(name(node)?),
                NodeKey::Registration(_) | NodeKey::Other => return None,
            },
            Part::Removed => match keys.parse_role(key) {
                RoleKey::Removed(uid) => Key::Removed(uid.into()),
                _ => return None,
            },
            Part::Plugins => match keys.parse_plugin_status(key) {
                Some(plugin) => Key::PluginStatus(name(plugin)?),
                None => Key::Plugin(name(keys.parse_plugin(key)?)?),
            },
            Part::Secrets => Key::Secret(name(keys.parse_secret(key)?)?),
            Part::Tombstones => Key::Tombstone(name(keys.parse_tombstone(key)?)?),
        })
    }

    fn put_node(&mut self, name: Name, kv: &KeyValue) {
        // An unreadable node exists: nothing is unpublished from it for being unreadable.
        let node = decode::<Node>(name.as_str(), &kv.value).unwrap_or_default();
        let spec = node.spec.unwrap_or_default();
        let now = SeenNode {
            mod_revision: kv.mod_revision,
            uid: node.metadata.unwrap_or_default().uid,
            out_of_service: spec.out_of_service,
            availability: spec.availability(),
            csi: node.status.unwrap_or_default().csi,
        };
        let before = self.index.nodes.get(&name);
        // A node's reporter writes often. Only what volumes depend on counts as a change.
        if !before.is_some_and(|before| before.same(&now)) {
            self.changes.extend(around(&self.index.by_node, &name));
        }
        self.index.nodes.insert(name, now);
    }
}

/// The changes of the volumes that depend on a node.
fn around<'a>(by: &'a HashMap<Name, BTreeSet<Name>>, what: &Name) -> impl Iterator<Item = Change> + use<'a> {
    let names = by.get(what).into_iter().flatten();
    names.cloned().map(Change::Around)
}

impl Indexed for Feed<'_> {
    fn put(&mut self, kv: KeyValue) {
        let Some(key) = self.parse(&kv.key) else {
            return;
        };
        let revision = kv.mod_revision;
        let known = self.known(&key, &kv.key);
        if let Some(known) = known.filter(|known| *known > revision) {
            if self.stays_from.is_none_or(|from| known >= from) {
                self.older.push(kv);
                return;
            }
            self.forget_revision(&key);
        }
        let index = &mut *self.index;
        match key {
            Key::Volume(name) => {
                let put = |index: &mut Index| index.put_volume(name.clone(), kv.into());
                self.changes.extend(with_sharing(index, &name, put));
            }
            Key::Publication(volume, node) => {
                let put = |index: &mut Index| index.put_publication(volume.clone(), node, kv.into());
                self.changes.extend(with_sharing(index, &volume, put));
            }
            Key::Node(name) => self.put_node(name, &kv),
            Key::Removed(uid) => {
                if index.removed.insert(uid, revision) != Some(revision) {
                    let name = RemovedNode::decode(&*kv.value).ok().map(|removed| removed.name);
                    let name = name.and_then(|name| name.parse::<Name>().ok());
                    let woken = name.iter().flat_map(|name| around(&index.by_node, name));
                    self.changes.extend(woken);
                }
            }
            Key::Plugin(name) => {
                let plugin = decode::<Plugin>(name.as_str(), &kv.value);
                let before = index.plugins.insert(name.clone(), (plugin, revision));
                if before.is_none_or(|(_, before)| before != revision) {
                    self.changes.push(Change::Plugin(name));
                }
            }
            // Only the leader writes it.
            Key::PluginStatus(name) => {
                let status = PluginStatus::decode(&*kv.value).unwrap_or_default();
                index.plugin_statuses.insert(name, (status, revision));
            }
            // The values are read for each call, and kept nowhere.
            Key::Secret(name) => {
                let mut value = kv.value;
                wipe(&mut value);
                if index.secrets.insert(name.clone(), revision) != Some(revision) {
                    self.changes.push(Change::Secret(name));
                }
            }
            // What waits for it reads it again.
            Key::Tombstone(name) => {
                match Tombstone::decode(&*kv.value)
                    .ok()
                    .filter(|left| !left.undoing.is_empty())
                {
                    Some(left) => _ = index.undoing.insert(name.clone(), left),
                    None => _ = index.undoing.remove(&name),
                }
                if index.tombstones.insert(name.clone(), revision) != Some(revision) {
                    self.changes.push(Change::Tombstone(name));
                }
            }
        }
    }

    fn delete(&mut self, key: &[u8], at: Revision) {
        let Some(key) = self.parse(key) else { return };
        let index = &mut *self.index;
        match key {
            Key::Volume(name) => {
                let remove = |index: &mut Index| index.remove_volume(name.clone(), at);
                self.changes.extend(with_sharing(index, &name, remove));
            }
            Key::Publication(volume, node) => {
                let remove = |index: &mut Index| index.remove_publication(volume.clone(), &node, at);
                self.changes.extend(with_sharing(index, &volume, remove));
            }
            Key::Node(name) => {
                let known = index.nodes.get(&name);
                if known.is_some_and(|node| node.mod_revision < at) {
                    index.nodes.remove(&name);
                    self.changes.extend(around(&index.by_node, &name));
                }
            }
            // It has expired. What it has proved is done, or was never asked for.
            Key::Removed(uid) => _ = index.removed.remove(&uid),
            Key::Plugin(name) => {
                if index.plugins.remove(&name).is_some() {
                    self.changes.push(Change::Plugin(name));
                }
            }
            Key::PluginStatus(name) => _ = index.plugin_statuses.remove(&name),
            Key::Secret(name) => {
                if index.secrets.remove(&name).is_some() {
                    self.changes.push(Change::Secret(name));
                }
            }
            Key::Tombstone(name) => {
                index.undoing.remove(&name);
                if index.tombstones.remove(&name).is_some() {
                    self.changes.push(Change::Tombstone(name));
                }
            }
        }
    }

    fn keys(&self) -> impl Iterator<Item = Cow<'_, [u8]>> {
        let Index {
            keys,
            volumes,
            nodes,
            removed,
            plugins,
            plugin_statuses,
            secrets,
            tombstones,
            ..
        } = &*self.index;
        let all: Box<dyn Iterator<Item = Vec<u8>>> = match self.part {
            Part::Volumes => {
                let known = volumes.iter().filter(|(_, entry)| entry.volume.is_some());
                Box::new(known.map(|(name, _)| keys.volume(name)))
            }
            Part::Publications => Box::new(volumes.iter().flat_map(move |(volume, entry)| {
                let nodes = entry.publications.nodes();
                nodes.map(move |node| keys.publication(volume, node))
            })),
            Part::Nodes => Box::new(nodes.keys().map(|name| keys.node(name))),
            Part::Removed => Box::new(removed.keys().map(|uid| keys.removed(uid))),
            Part::Plugins => {
                let statuses = plugin_statuses.keys().map(|name| keys.plugin_status(name));
                Box::new(plugins.keys().map(|name| keys.plugin(name)).chain(statuses))
            }
            Part::Secrets => Box::new(secrets.keys().map(|name| keys.secret(name))),
            Part::Tombstones => Box::new(tombstones.keys().map(|name| keys.tombstone(name))),
        };
        all.map(Cow::Owned)
    }
}
