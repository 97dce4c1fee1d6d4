//! The records of volumes and publications, and what they depend on. Pure.
//!
//! Records are kept encoded, which is small, and decoded when their volume is planned. The leader's own writes are taken in
//! at once ([`Index::note`]), so that nothing is planned from the records before them. When the watch delivers such a write,
//! its revision is already known; that is how the writes of others are recognised.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use crate::etcd::{KeyRange, KeyValue, Revision};
use crate::proto::node_spec::Availability;
use crate::proto::{CsiNode, Plugin, PluginStatus, Publication, Tombstone, Volume};
use crate::store::index::{Indexed, Synced};
use crate::store::keys::NodeKey;
use crate::store::object::{Malformed, decode};
use crate::store::{Keys, Name, Update};

use by_node::ByNode;
use feed::Feed;
use troubles::Said;

mod awaited;
mod by_node;
mod feed;
mod records;
mod sharing;
mod shown;
mod snapshot;
mod troubles;

pub use awaited::Awaited;
pub use records::id_at_plugin;
pub use snapshot::VolumeSnapshot;
pub use troubles::{Trouble, Troubles};

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
    /// Tombstones, of which the revisions are kept, and what is being undone: below `/tombstones/`.
    Tombstones,
}

impl Part {
    /// Every range, in the order of the array that holds their progress.
    pub const ALL: [Self; 7] = [
        Self::Volumes,
        Self::Publications,
        Self::Nodes,
        Self::Removed,
        Self::Plugins,
        Self::Secrets,
        Self::Tombstones,
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
            Self::Tombstones => keys.tombstones(),
        }
    }
}

/// A change that wakes volumes: a write by someone else, or one that is not yet known to be the leader's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A record of this volume was written, or deleted, at this revision; at or before it, if a list left the record out.
    Record(Name, Revision),
    /// A node or a volume with the same id, on which this volume depends, changed.
    Around(Name),
    /// The Plugin object of this name was created, changed or deleted.
    Plugin(Name),
    /// The Secret of this name was created, changed or deleted.
    Secret(Name),
    /// The tombstone of this name was created, changed or deleted.
    Tombstone(Name),
}

/// A stored value.
#[derive(Clone, Debug, Default)]
struct Stored {
    value: Box<[u8]>,
    mod_revision: Revision,
    /// What its conditions say is wrong.
    said: Box<[Said]>,
    /// Whether it is a publication that is published, and no call for that has yet to succeed.
    is_published: bool,
}

impl From<KeyValue> for Stored {
    fn from(kv: KeyValue) -> Self {
        Self {
            value: kv.value.into_boxed_slice(),
            mod_revision: kv.mod_revision,
            said: Box::default(),
            is_published: false,
        }
    }
}

#[derive(Debug, Default)]
struct Entry {
    volume: Option<Stored>,
    publications: ByNode,
    driver: Option<Name>,
    /// Whether its plugin has created it, or may have.
    is_created: bool,
    uid: Option<Arc<str>>,
    /// The secrets that it names.
    secrets: BTreeSet<Name>,
    /// The plugin and the plugin's id of the volume, once it has one or is to take it in.
    volume_id: Option<Arc<str>>,
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
    availability: Availability,
    csi: Vec<CsiNode>,
}

impl SeenNode {
    fn same(&self, other: &Self) -> bool {
        let facts = |node: &Self| (node.out_of_service, node.availability);
        (&self.uid, facts(self), &self.csi) == (&other.uid, facts(other), &other.csi)
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

/// How the copy of one range follows it.
#[derive(Debug, Default)]
struct Followed {
    synced: Synced,
    /// Keys that this leader deleted, with the revisions, until the copy has come to them. Older states of these keys are
    /// ignored.
    gone: HashMap<Vec<u8>, Revision>,
    /// What the list that is being read shows, and is older than what was known. Once the revision of the list is known, it says which is
    /// right: an own write may be later than the list, or etcd may have been restored, and have another history (INV-11).
    older: Vec<KeyValue>,
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
    tombstones: HashMap<Name, Revision>,
    /// Those of which an earlier leader has begun to undo something.
    undoing: HashMap<Name, Tombstone>,
    by_driver: HashMap<Name, BTreeSet<Name>>,
    /// How many volumes each plugin has created, or may have.
    created: HashMap<Name, usize>,
    by_node: HashMap<Name, BTreeSet<Name>>,
    by_secret: HashMap<Name, BTreeSet<Name>>,
    /// In order. Almost always one, as below its id.
    by_uid: HashMap<Arc<str>, Vec<Name>>,
    /// By plugin and the plugin's id.
    by_volume_id: HashMap<Arc<str>, Vec<Name>>,
    /// How each range is followed, in the order of [`Part::ALL`].
    followed: [Followed; Part::ALL.len()],
    /// Whether every range was listed once. Until then nothing is planned, and then every volume is.
    was_complete: bool,
    /// Whether a list showed an earlier state than the one that was known before it.
    went_back: bool,
    counts: HashMap<State, i64>,
    troubles: Troubles,
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
            tombstones: HashMap::new(),
            undoing: HashMap::new(),
            by_driver: HashMap::new(),
            created: HashMap::new(),
            by_node: HashMap::new(),
            by_secret: HashMap::new(),
            by_uid: HashMap::new(),
            by_volume_id: HashMap::new(),
            followed: Default::default(),
            was_complete: false,
            went_back: false,
            counts: HashMap::new(),
            troubles: Troubles::default(),
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
            entry.state == Some(State::Created) && publications.all(|stored| stored.is_published)
        })
    }

    /// The volumes that name this plugin.
    pub fn of_plugin(&self, plugin: &Name) -> Vec<Name> {
        let names = self.by_driver.get(plugin);
        names.into_iter().flatten().cloned().collect()
    }

    /// The volumes that name this secret.
    pub fn of_secret(&self, secret: &Name) -> impl Iterator<Item = Name> {
        self.by_secret.get(secret).into_iter().flatten().cloned()
    }

    /// Whether the volume has a publication to this node.
    pub fn is_published_to(&self, volume: &Name, node: &Name) -> bool {
        let entry = self.volumes.get(volume);
        entry.is_some_and(|entry| entry.publications.has(node))
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

    /// The plugins that volumes name.
    pub fn drivers(&self) -> impl Iterator<Item = &Name> {
        self.by_driver.keys()
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

    /// The tombstones of which a leader has begun to undo something.
    pub fn undoing(&self) -> impl Iterator<Item = &Tombstone> {
        self.undoing.values()
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

    /// What the conditions of the records say is wrong.
    pub fn troubles(&self) -> &Troubles {
        &self.troubles
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

    /// Takes in a step of following a range. Returns what changed: before every range was listed once, of the volumes themselves alone.
    pub fn take_in(&mut self, part: Part, update: Update) -> Vec<Change> {
        let listed = match update {
            Update::Listed(revision) => Some(revision),
            Update::Page { .. } | Update::Events(_) => None,
        };
        let is_page = matches!(update, Update::Page { .. });
        if matches!(update, Update::Page { first: true, .. }) {
            self.followed[part as usize].older.clear();
        }
        let mut synced = std::mem::take(&mut self.followed[part as usize].synced);
        let mut feed = Feed::new(self, part);
        synced.take_in(update, &mut feed);
        let (mut changes, older) = (feed.changes, feed.older);
        if is_page {
            self.followed[part as usize].older.extend(older);
        }
        if let Some(listed) = listed {
            let older = std::mem::take(&mut self.followed[part as usize].older);
            let mut feed = Feed::of_list(self, part, listed);
            older.into_iter().for_each(|kv| feed.put(kv));
            let mut replaced = feed.changes;
            self.went_back |= !replaced.is_empty();
            changes.append(&mut replaced);
        }
        let followed = &mut self.followed[part as usize];
        followed.gone.retain(|_, deleted| !synced.shows(*deleted));
        followed.synced = synced;
        self.was_complete |= self.is_complete();
        changes
    }

    /// Whether etcd showed that it was restored from a snapshot: what the leader knew did not happen in this history (INV-11).
    pub fn went_back(&self) -> bool {
        self.went_back
    }

    /// Takes in the record of a volume, of a publication or of a node as this leader wrote or read it; `now` is the value, or the
    /// revision at which there was none. An older state than the known one is ignored. Returns what changed.
    pub fn note(&mut self, key: &[u8], now: Result<&KeyValue, Revision>) -> Vec<Change> {
        let part = match (self.keys.parse_volume(key), self.keys.parse_node(key)) {
            (Some(_), _) => Part::Volumes,
            (None, NodeKey::Node(_)) => Part::Nodes,
            (None, NodeKey::Registration(_) | NodeKey::Other) => Part::Publications,
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
