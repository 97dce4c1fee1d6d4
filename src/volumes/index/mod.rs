//! The records of volumes and publications, and what they depend on. Pure.
//!
//! Records are kept encoded, which is small, and decoded when their volume is planned. The leader's own writes are taken in
//! at once ([`Index::note`]), so that nothing is planned from the records before them. When the watch delivers such a write,
//! its revision is already known; that is how the writes of others are recognised.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::etcd::{KeyRange, KeyValue, Revision};
use crate::proto::{CsiNode, Plugin, PluginStatus, Publication, Volume};
use crate::store::index::{Indexed, Synced};
use crate::store::object::publication::node_uid;
use crate::store::object::volume::driver;
use crate::store::object::{Malformed, decode};
use crate::store::{Keys, Name, Update};

use super::plan;
use feed::Feed;

mod feed;
mod records;
mod sharing;

pub use records::id_at_plugin;

/// The ranges that are followed, each by itself. Changes of two ranges may be seen out of order: what depends on their order
/// is proved in the transaction that acts on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The records of volumes, below `/volumes/`.
    Volumes,
    /// The records of publications, below `/publications/`.
    Publications,
    /// Nodes, for the publications to them: below `/nodes/`.
    Nodes,
    /// The records of removed nodes, below `/removed/`.
    Removed,
    /// Plugins, below `/plugins/`.
    Plugins,
    /// Secrets, of which only the revisions are kept: below `/secrets/`.
    Secrets,
}

impl Part {
    /// Every range, in the order of the array that holds their progress.
    pub const ALL: [Self; 6] = [
        Self::Volumes,
        Self::Publications,
        Self::Nodes,
        Self::Removed,
        Self::Plugins,
        Self::Secrets,
    ];

    /// The keys of the range.
    pub fn range(self, keys: &Keys) -> KeyRange {
        match self {
            Self::Volumes => keys.volumes(),
            Self::Publications => keys.publications(),
            Self::Nodes => keys.nodes(),
            Self::Removed => keys.all_removed(),
            Self::Plugins => keys.plugins(),
            Self::Secrets => keys.secrets(),
        }
    }
}

/// A change that wakes volumes: a write by someone else, or one that is not yet known to be the leader's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A record of this volume was written, or deleted, at this revision; at or before it, if a list left the record out.
    Record(Name, Revision),
    /// A secret, a node or a volume with the same id, on which this volume depends, changed.
    Around(Name),
    /// The Plugin object of this name was created, changed or deleted.
    Plugin(Name),
}

impl Change {
    /// The volume around which something changed.
    pub fn around(self) -> Option<Name> {
        match self {
            Self::Around(name) => Some(name),
            Self::Record(..) | Self::Plugin(_) => None,
        }
    }
}

/// A stored value.
#[derive(Clone, Debug, Default)]
struct Stored {
    value: Box<[u8]>,
    mod_revision: Revision,
}

impl From<KeyValue> for Stored {
    fn from(kv: KeyValue) -> Self {
        Self {
            value: kv.value.into_boxed_slice(),
            mod_revision: kv.mod_revision,
        }
    }
}

#[derive(Debug, Default)]
struct Entry {
    volume: Option<Stored>,
    publications: BTreeMap<Name, Stored>,
    driver: Option<Name>,
    /// Whether its plugin has created it, or may have.
    is_created: bool,
    uid: Option<Box<str>>,
    /// The secrets that it names.
    secrets: BTreeSet<Name>,
    /// The plugin and the plugin's id of the volume, once it has one or is to take it in.
    volume_id: Option<Box<str>>,
    state: Option<State>,
    /// The count of changes at the last change of its records.
    touched: u64,
}

#[derive(Debug)]
struct SeenNode {
    mod_revision: Revision,
    /// Empty if the record cannot be read.
    uid: String,
    out_of_service: bool,
    csi: Vec<CsiNode>,
}

impl SeenNode {
    fn same(&self, other: &Self) -> bool {
        (&self.uid, self.out_of_service, &self.csi) == (&other.uid, other.out_of_service, &other.csi)
    }
}

/// The states of volumes that the metrics count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// The volume has no id yet.
    Creating,
    /// The volume has an id.
    Created,
    /// The volume is marked for deletion.
    Deleting,
    /// The volume's record cannot be read.
    Malformed,
}

impl State {
    /// Every state with its label in the metric.
    pub const ALL: [(Self, &'static str); 4] = [
        (Self::Creating, "creating"),
        (Self::Created, "created"),
        (Self::Deleting, "deleting"),
        (Self::Malformed, "malformed"),
    ];
}

/// The records of one volume at one moment, decoded.
#[derive(Clone, Debug, Default)]
pub struct VolumeSnapshot {
    /// The volume's record.
    pub volume: Volume,
    /// The mod revision of that record.
    pub revision: Revision,
    /// Its readable publications, by node.
    pub publications: BTreeMap<Name, Publication>,
    /// The mod revisions of those publications, by node.
    pub revisions: BTreeMap<Name, Revision>,
    /// The nodes of its unreadable publications.
    pub unreadable: BTreeSet<Name>,
    /// Other volumes with the same id at the same plugin.
    pub twin: Option<plan::Twin>,
    /// Another volume that has this one's name as its id.
    pub namesake: Option<Name>,
    /// The nodes of its publications, as far as they exist.
    pub nodes: BTreeMap<Name, plan::Node>,
    /// The publications to nodes that were removed, each with the revision of the record that says so.
    pub removed: BTreeMap<Name, Revision>,
}

/// How the copy of one range follows it.
#[derive(Debug, Default)]
struct Followed {
    synced: Synced,
    /// Keys that this leader deleted, with the revisions, until the copy has come to them. Older states of these keys are
    /// ignored.
    gone: HashMap<Vec<u8>, Revision>,
}

/// The copy of every range, and the ways from plugins, nodes and secrets to volumes.
#[derive(Debug)]
pub struct Index {
    keys: Keys,
    volumes: HashMap<Name, Entry>,
    nodes: HashMap<Name, SeenNode>,
    /// The records of removed nodes, by uid.
    removed: HashMap<Box<str>, Revision>,
    plugins: HashMap<Name, (Result<Plugin, Malformed>, Revision)>,
    plugin_statuses: HashMap<Name, (PluginStatus, Revision)>,
    secrets: HashMap<Name, Revision>,
    by_driver: HashMap<Name, BTreeSet<Name>>,
    /// How many volumes each plugin has created, or may have.
    created: HashMap<Name, usize>,
    by_node: HashMap<Name, BTreeSet<Name>>,
    by_secret: HashMap<Name, BTreeSet<Name>>,
    by_uid: HashMap<Box<str>, BTreeSet<Name>>,
    /// By plugin and the plugin's id.
    by_volume_id: HashMap<Box<str>, BTreeSet<Name>>,
    /// How each range is followed, in the order of [`Part::ALL`].
    followed: [Followed; 6],
    counts: HashMap<State, i64>,
    changes: u64,
}

/// Adds a way to a volume.
pub(super) fn add<K: std::hash::Hash + Eq>(map: &mut HashMap<K, BTreeSet<Name>>, key: K, name: &Name) {
    map.entry(key).or_default().insert(name.clone());
}

/// Takes back a way to a volume.
pub(super) fn take<K: std::hash::Hash + Eq>(map: &mut HashMap<K, BTreeSet<Name>>, key: &K, name: &Name) {
    if let Some(names) = map.get_mut(key) {
        names.remove(name);
        if names.is_empty() {
            map.remove(key);
        }
    }
}

impl Index {
    /// An empty index.
    pub fn new(keys: Keys) -> Self {
        Self {
            keys,
            volumes: HashMap::new(),
            nodes: HashMap::new(),
            removed: HashMap::new(),
            plugins: HashMap::new(),
            plugin_statuses: HashMap::new(),
            secrets: HashMap::new(),
            by_driver: HashMap::new(),
            created: HashMap::new(),
            by_node: HashMap::new(),
            by_secret: HashMap::new(),
            by_uid: HashMap::new(),
            by_volume_id: HashMap::new(),
            followed: Default::default(),
            counts: HashMap::new(),
            changes: 0,
        }
    }

    /// Whether every range was listed. Before that, nothing is known to be absent.
    pub fn is_complete(&self) -> bool {
        self.followed.iter().all(|followed| followed.synced.is_complete())
    }

    /// The names of all volumes, and of publications without a volume.
    pub fn names(&self) -> Vec<Name> {
        self.volumes.keys().cloned().collect()
    }

    /// Whether the volume seems to need nothing: created, not marked, and published wherever it is wanted. A cheap guess, by
    /// which the volumes are ordered.
    pub fn seems_settled(&self, name: &Name) -> bool {
        self.volumes.get(name).is_some_and(|entry| {
            let mut publications = entry.publications.values();
            entry.state == Some(State::Created)
                && publications.all(|stored| records::is_published(&stored.value))
        })
    }

    /// Whether there is a record of this volume or of a publication of it.
    pub fn has(&self, name: &Name) -> bool {
        self.volumes.contains_key(name)
    }

    /// The volumes that name this plugin.
    pub fn of_plugin(&self, plugin: &Name) -> Vec<Name> {
        let names = self.by_driver.get(plugin);
        names.into_iter().flatten().cloned().collect()
    }

    /// The volumes with a publication to this node.
    pub fn of_node(&self, node: &Name) -> impl Iterator<Item = Name> {
        self.by_node.get(node).into_iter().flatten().cloned()
    }

    /// The node that reports this node id of the plugin.
    pub fn node_of(&self, plugin: &Name, csi_node_id: &str) -> Option<Name> {
        let is_it = |csi: &CsiNode| csi.plugin == plugin.as_str() && csi.node_id == csi_node_id;
        let mut nodes = self.nodes.iter();
        let (name, _) = nodes.find(|(_, node)| node.csi.iter().any(is_it))?;
        Some(name.clone())
    }

    /// Whether any volume names this plugin.
    pub fn is_used(&self, plugin: &Name) -> bool {
        self.by_driver.contains_key(plugin)
    }

    /// The plugin that a volume names; `None` if its record cannot be read.
    pub fn driver(&self, volume: &Name) -> Option<&Name> {
        self.volumes.get(volume)?.driver.as_ref()
    }

    /// The Plugin object of this name.
    pub fn plugin(&self, name: &Name) -> Option<&Result<Plugin, Malformed>> {
        self.plugins.get(name).map(|(plugin, _)| plugin)
    }

    /// The names of all Plugin objects.
    pub fn plugins(&self) -> impl Iterator<Item = &Name> {
        self.plugins.keys()
    }

    /// The stored status of a plugin, and its revision.
    pub fn plugin_status(&self, name: &Name) -> Option<&(PluginStatus, Revision)> {
        self.plugin_statuses.get(name)
    }

    /// The plugins that have a status, no object and no volume. That of a plugin which volumes use says where it was: it may be
    /// created again elsewhere. A volume that cannot be read may use any of them (INV-12).
    pub fn statuses_left_over(&self) -> impl Iterator<Item = (&Name, Revision)> {
        let may_be_used = move |name: &Name| self.is_used(name) || self.count(State::Malformed) > 0;
        let left = self.plugin_statuses.iter();
        let left = left.filter(move |(name, _)| !self.plugins.contains_key(*name) && !may_be_used(name));
        left.map(|(name, (_, revision))| (name, *revision))
    }

    /// How many volumes name this plugin.
    pub fn count_of_plugin(&self, plugin: &Name) -> usize {
        self.by_driver.get(plugin).map_or(0, BTreeSet::len)
    }

    /// Whether a record says that the plugin has created a volume, or may have: it offered to.
    pub fn has_created(&self, plugin: &Name) -> bool {
        self.created.contains_key(plugin)
    }

    /// How many volumes are in a state.
    pub fn count(&self, state: State) -> i64 {
        self.counts.get(&state).copied().unwrap_or(0)
    }

    /// How many writes of records were taken in.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// Whether a record of the volume changed after that many changes, or it has none.
    pub fn touched_since(&self, volume: &Name, changes: u64) -> bool {
        self.volumes
            .get(volume)
            .is_none_or(|entry| entry.touched > changes)
    }

    /// The record of a volume; `None` if there is none.
    pub fn volume(&self, name: &Name) -> Option<Result<Volume, Malformed>> {
        let stored = self.volumes.get(name)?.volume.as_ref()?;
        Some(decode(name.as_str(), &stored.value))
    }

    /// The record of a publication; `None` if there is none.
    pub fn publication(&self, volume: &Name, node: &Name) -> Option<Result<Publication, Malformed>> {
        let stored = self.volumes.get(volume)?.publications.get(node)?;
        Some(decode(&format!("{volume}/{node}"), &stored.value))
    }

    /// The records of one volume. `None` if the volume's own record is missing or cannot be read.
    pub fn observe(&self, name: &Name) -> Option<VolumeSnapshot> {
        let entry = self.volumes.get(name)?;
        let stored = entry.volume.as_ref()?;
        let volume = decode::<Volume>(name.as_str(), &stored.value).ok()?;
        let plugin = driver(&volume).to_owned();
        let mut seen = VolumeSnapshot {
            namesake: self.namesake(name, &volume),
            volume,
            revision: stored.mod_revision,
            twin: self.twin(name),
            ..VolumeSnapshot::default()
        };
        for (node, stored) in &entry.publications {
            match decode::<Publication>(&format!("{name}/{node}"), &stored.value) {
                Ok(publication) => {
                    if let Some(removed) = self.removed.get(node_uid(&publication)) {
                        seen.removed.insert(node.clone(), *removed);
                    }
                    seen.publications.insert(node.clone(), publication);
                    seen.revisions.insert(node.clone(), stored.mod_revision);
                }
                Err(_) => {
                    seen.unreadable.insert(node.clone());
                }
            }
            if let Some(known) = self.nodes.get(node) {
                let csi = known.csi.iter().find(|csi| csi.plugin == plugin);
                let node_seen = plan::Node {
                    uid: known.uid.clone(),
                    mod_revision: known.mod_revision,
                    out_of_service: known.out_of_service,
                    csi_node_id: csi.map(|csi| csi.node_id.clone()).filter(|id| !id.is_empty()),
                    topology: csi.map(|csi| csi.topology.clone()).unwrap_or_default(),
                };
                seen.nodes.insert(node.clone(), node_seen);
            }
        }
        Some(seen)
    }

    /// Takes in a step of following a range. Returns what changed.
    pub fn take_in(&mut self, part: Part, update: Update) -> Vec<Change> {
        let mut synced = std::mem::take(&mut self.followed[part as usize].synced);
        let mut feed = Feed::new(self, part);
        synced.take_in(update, &mut feed);
        let changes = feed.changes;
        let followed = &mut self.followed[part as usize];
        followed.gone.retain(|_, deleted| !synced.shows(*deleted));
        followed.synced = synced;
        changes
    }

    /// Takes in a record as this leader wrote or read it; `now` is the value, or the revision at which there was none. An
    /// older state than the known one is ignored. Returns what changed.
    pub fn note(&mut self, key: &[u8], now: Result<&KeyValue, Revision>) -> Vec<Change> {
        let part = match self.keys.parse_volume(key) {
            Some(_) => Part::Volumes,
            None => Part::Publications,
        };
        let mut feed = Feed::new(self, part);
        match now {
            Ok(kv) => feed.put(kv.clone()),
            Err(deleted) => feed.delete(key, deleted),
        }
        let changes = feed.changes;
        // Otherwise the watch has delivered the deletion already.
        if let (Err(deleted), false) = (now, changes.is_empty()) {
            self.followed[part as usize].gone.insert(key.to_vec(), deleted);
        }
        changes
    }
}

#[cfg(test)]
mod tests;
