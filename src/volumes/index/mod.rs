//! What was seen in etcd: volumes and their publications, and what they need. Pure.
//!
//! Records are kept as they are stored, small, and read when their volume is looked at. What the leader itself wrote is
//! taken in at once, so that nothing is decided from what it was before; when the watch brings it, it is known already.
//! That is how a change by somebody else is told from an own one.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use crate::etcd::{Event, KeyRange, KeyValue, Revision};
use crate::proto::{Plugin, Publication, Volume};
use crate::store::object::volume::driver;
use crate::store::object::{Malformed, decode};
use crate::store::{Keys, Name, Update};

use super::plan;

mod changes;
mod records;

/// The ranges that are followed, each by itself. What depends on the order of changes in two of them is proved in the
/// transaction that acts on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// `/volumes/`
    Volumes,
    /// `/publications/`
    Publications,
    /// `/nodes/`
    Nodes,
    /// `/plugins/`
    Plugins,
    /// `/secrets/`
    Secrets,
}

impl Part {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Volumes,
        Self::Publications,
        Self::Nodes,
        Self::Plugins,
        Self::Secrets,
    ];

    /// Its range.
    pub fn range(self, keys: &Keys) -> KeyRange {
        match self {
            Self::Volumes => keys.volumes(),
            Self::Publications => keys.publications(),
            Self::Nodes => keys.nodes(),
            Self::Plugins => keys.plugins(),
            Self::Secrets => keys.secrets(),
        }
    }
}

/// Something that somebody else did, or that is not known to be an own write yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A record of this volume was written at this revision.
    Record(Name, Revision),
    /// A secret or a node of this volume changed.
    Around(Name),
    /// The plugin of this name changed, came or went.
    Plugin(Name),
}

/// A stored value.
#[derive(Clone, Debug, Default)]
struct Stored {
    value: Box<[u8]>,
    mod_revision: Revision,
    seen_in: u32,
}

#[derive(Debug, Default)]
struct Entry {
    volume: Option<Stored>,
    publications: BTreeMap<Name, Stored>,
    driver: Option<Name>,
    state: Option<State>,
    /// When anything of it changed last, in changes of the index.
    touched: u64,
}

#[derive(Debug)]
struct SeenNode {
    mod_revision: Revision,
    seen_in: u32,
    /// Empty if it cannot be read.
    uid: String,
    out_of_service: bool,
    csi: Vec<(String, String)>,
}

impl SeenNode {
    fn same(&self, other: &Self) -> bool {
        (&self.uid, self.out_of_service, &self.csi) == (&other.uid, other.out_of_service, &other.csi)
    }
}

/// Where volumes are in their lives, for the metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// Not created yet.
    Creating,
    /// There.
    Created,
    /// Marked for deletion.
    Deleting,
    /// The record cannot be read.
    Malformed,
}

impl State {
    /// All of them, with the words of the metric.
    pub const ALL: [(Self, &'static str); 4] = [
        (Self::Creating, "creating"),
        (Self::Created, "created"),
        (Self::Deleting, "deleting"),
        (Self::Malformed, "malformed"),
    ];
}

/// One volume, read.
#[derive(Clone, Debug)]
pub struct VolumeSnapshot {
    /// The record.
    pub volume: Volume,
    /// Its revision.
    pub revision: Revision,
    /// Those of its publications that can be read, by node.
    pub publications: BTreeMap<Name, Publication>,
    /// Their revisions.
    pub revisions: BTreeMap<Name, Revision>,
    /// The nodes of publications that cannot be read.
    pub unreadable: BTreeSet<Name>,
    /// The nodes of its publications that exist.
    pub nodes: BTreeMap<Name, plan::Node>,
}

/// Everything that was seen.
#[derive(Debug)]
pub struct Index {
    keys: Keys,
    volumes: HashMap<Name, Entry>,
    nodes: HashMap<Name, SeenNode>,
    plugins: HashMap<Name, (Result<Plugin, Malformed>, Revision, u32)>,
    secrets: HashMap<Name, (Revision, u32)>,
    by_driver: HashMap<Name, HashSet<Name>>,
    by_node: HashMap<Name, BTreeSet<Name>>,
    by_secret: HashMap<Name, BTreeSet<Name>>,
    /// Keys that this leader deleted, until the watch says so: older news of them is no news.
    gone: HashMap<Vec<u8>, Revision>,
    lists: [u32; 5],
    complete: [bool; 5],
    counts: HashMap<State, i64>,
    changes: u64,
}

fn add<K: std::hash::Hash + Eq>(map: &mut HashMap<K, BTreeSet<Name>>, key: K, name: &Name) {
    map.entry(key).or_default().insert(name.clone());
}

fn take<K: std::hash::Hash + Eq>(map: &mut HashMap<K, BTreeSet<Name>>, key: &K, name: &Name) {
    if let Some(names) = map.get_mut(key) {
        names.remove(name);
        if names.is_empty() {
            map.remove(key);
        }
    }
}

impl Index {
    /// Nothing was seen yet.
    pub fn new(keys: Keys) -> Self {
        Self {
            keys,
            volumes: HashMap::new(),
            nodes: HashMap::new(),
            plugins: HashMap::new(),
            secrets: HashMap::new(),
            by_driver: HashMap::new(),
            by_node: HashMap::new(),
            by_secret: HashMap::new(),
            gone: HashMap::new(),
            lists: [0; 5],
            complete: [false; 5],
            counts: HashMap::new(),
            changes: 0,
        }
    }

    /// Whether every part was listed: before, nothing is known not to exist.
    pub fn is_complete(&self) -> bool {
        self.complete.iter().all(|complete| *complete)
    }

    /// The names of all volumes.
    pub fn names(&self) -> Vec<Name> {
        self.volumes.keys().cloned().collect()
    }

    /// Whether anything is stored under the name of this volume.
    pub fn has(&self, name: &Name) -> bool {
        self.volumes.contains_key(name)
    }

    /// The volumes of a plugin.
    pub fn of_plugin(&self, plugin: &Name) -> Vec<Name> {
        let names = self.by_driver.get(plugin);
        names.into_iter().flatten().cloned().collect()
    }

    /// Whether any volume names this plugin.
    pub fn is_used(&self, plugin: &Name) -> bool {
        self.by_driver.contains_key(plugin)
    }

    /// The plugin of a volume, if its record can be read.
    pub fn driver(&self, volume: &Name) -> Option<&Name> {
        self.volumes.get(volume)?.driver.as_ref()
    }

    /// The record of a plugin.
    pub fn plugin(&self, name: &Name) -> Option<&Result<Plugin, Malformed>> {
        self.plugins.get(name).map(|(plugin, ..)| plugin)
    }

    /// How many volumes are in a state.
    pub fn count(&self, state: State) -> i64 {
        self.counts.get(&state).copied().unwrap_or(0)
    }

    /// How many changes were taken in.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// Whether anything of the volume changed after that many changes.
    pub fn touched_since(&self, volume: &Name, changes: u64) -> bool {
        self.volumes
            .get(volume)
            .is_none_or(|entry| entry.touched > changes)
    }

    /// One volume, read. `None` if there is none, or its record cannot be read.
    pub fn observe(&self, name: &Name) -> Option<VolumeSnapshot> {
        let entry = self.volumes.get(name)?;
        let stored = entry.volume.as_ref()?;
        let volume = decode::<Volume>(name.as_str(), &stored.value).ok()?;
        let plugin = driver(&volume);
        let mut seen = VolumeSnapshot {
            revision: stored.mod_revision,
            publications: BTreeMap::new(),
            revisions: BTreeMap::new(),
            unreadable: BTreeSet::new(),
            nodes: BTreeMap::new(),
            volume: Volume::default(),
        };
        for (node, stored) in &entry.publications {
            match decode::<Publication>(&format!("{name}/{node}"), &stored.value) {
                Ok(publication) => {
                    seen.publications.insert(node.clone(), publication);
                    seen.revisions.insert(node.clone(), stored.mod_revision);
                }
                Err(_) => {
                    seen.unreadable.insert(node.clone());
                }
            }
            if let Some(known) = self.nodes.get(node) {
                let csi = known.csi.iter().find(|(of, _)| of == plugin);
                let node_seen = plan::Node {
                    uid: known.uid.clone(),
                    mod_revision: known.mod_revision,
                    out_of_service: known.out_of_service,
                    csi_node_id: csi.map(|(_, id)| id.clone()).filter(|id| !id.is_empty()),
                };
                seen.nodes.insert(node.clone(), node_seen);
            }
        }
        seen.volume = volume;
        Some(seen)
    }

    /// Takes in what a follower saw.
    pub fn take_in(&mut self, part: Part, update: Update) -> Vec<Change> {
        let mut changes = Vec::new();
        let at = part as usize;
        match update {
            Update::Page { first, keys } => {
                if first {
                    self.complete[at] = false;
                    self.lists[at] = self.lists[at].wrapping_add(1);
                }
                for kv in keys {
                    self.put(part, kv, &mut changes);
                }
            }
            Update::Listed(revision) => {
                self.forget_unlisted(part, revision, &mut changes);
                self.complete[at] = true;
            }
            Update::Events(events) => {
                for event in events {
                    match event {
                        Event::Put(kv) => self.put(part, kv, &mut changes),
                        Event::Delete { key, revision } => {
                            if self.gone.get(&key).is_some_and(|deleted| *deleted <= revision) {
                                self.gone.remove(&key);
                            }
                            self.delete(part, &key, revision, &mut changes);
                        }
                    }
                }
            }
        }
        changes
    }

    /// Takes in a record as this leader wrote it, or read it since. What is older than what is known changes nothing.
    /// Whether anything changed.
    pub fn note(&mut self, key: &[u8], now: Result<&KeyValue, Revision>) -> bool {
        let part = match self.keys.parse_volume(key) {
            Some(_) => Part::Volumes,
            None => Part::Publications,
        };
        let mut changes = Vec::new();
        match now {
            Ok(kv) => self.put(part, kv.clone(), &mut changes),
            Err(deleted) => {
                self.delete(part, key, deleted, &mut changes);
                // Else the watch was here before.
                if !changes.is_empty() {
                    self.gone.insert(key.to_vec(), deleted);
                }
            }
        }
        !changes.is_empty()
    }

    fn put(&mut self, part: Part, kv: KeyValue, changes: &mut Vec<Change>) {
        if self
            .gone
            .get(&kv.key)
            .is_some_and(|deleted| kv.mod_revision < *deleted)
        {
            return;
        }
        self.gone.remove(&kv.key);
        let list = self.lists[part as usize];
        let stored = Stored {
            value: kv.value.into_boxed_slice(),
            mod_revision: kv.mod_revision,
            seen_in: list,
        };
        match part {
            Part::Volumes => self.put_volume(&kv.key, stored, changes),
            Part::Publications => self.put_publication(&kv.key, stored, changes),
            Part::Nodes => self.put_node(&kv.key, &stored, changes),
            Part::Plugins => {
                let Some(name) = parsed(self.keys.parse_plugin(&kv.key)) else {
                    return;
                };
                let plugin = decode::<Plugin>(name.as_str(), &stored.value);
                let before = self
                    .plugins
                    .insert(name.clone(), (plugin, stored.mod_revision, list));
                if before.is_none_or(|(_, revision, _)| revision != stored.mod_revision) {
                    changes.push(Change::Plugin(name));
                }
            }
            // The values are read at each call, and kept nowhere.
            Part::Secrets => {
                let Some(name) = parsed(self.keys.parse_secret(&kv.key)) else {
                    return;
                };
                let before = self.secrets.insert(name.clone(), (stored.mod_revision, list));
                if before.is_none_or(|(revision, _)| revision != stored.mod_revision) {
                    self.around(&self.by_secret, &name, changes);
                }
            }
        }
    }

    fn around(&self, by: &HashMap<Name, BTreeSet<Name>>, what: &Name, changes: &mut Vec<Change>) {
        let names = by.get(what).into_iter().flatten();
        changes.extend(names.cloned().map(Change::Around));
    }
}

fn parsed(text: Option<&str>) -> Option<Name> {
    text?.parse().ok()
}

#[cfg(test)]
mod tests;
