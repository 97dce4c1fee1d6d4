//! What the sessions of a replica are judged by and shown: a copy of three ranges, which all sessions share. Pure.
//!
//! Records of publications and volumes are kept encoded, which is small, and decoded when a session is shown them.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use prost::Message as _;

use super::seen_node::SeenNode;
use super::view::{self, Shown};
use crate::etcd::{KeyRange, KeyValue, Revision};
use crate::proto::node_certificate::State;
use crate::proto::{NodeCertificate, NodeSession, RemovedNode};
use crate::store::index::{Indexed, Synced};
use crate::store::keys::CertificationKey;
use crate::store::{Keys, Name, Update};

/// The ranges that are followed, each by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The sessions of nodes, below `/alive/`.
    Alive,
    /// Certificates, nodes, publications and removed nodes, so that one watch brings their changes in the order in which they
    /// happened: a node that was removed is never seen as one that is merely gone (INV-12).
    Records,
    /// The volumes of the publications, below `/volumes/`. They are shown, and no session is judged by them.
    Volumes,
}

impl Part {
    /// Every range, in the order of the array that holds their progress.
    pub const ALL: [Self; 3] = [Self::Alive, Self::Records, Self::Volumes];

    /// The keys of the range.
    pub fn range(self, keys: &Keys) -> KeyRange {
        match self {
            Self::Alive => keys.all_alive(),
            Self::Records => keys.certification(),
            Self::Volumes => keys.volumes(),
        }
    }
}

/// Which nodes a step of following concerns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Affected {
    /// Each of these.
    Nodes(BTreeSet<Name>),
    /// A list has ended: whatever it left out is gone.
    All,
}

/// The copy.
#[derive(Debug)]
pub struct Index {
    keys: Keys,
    synced: [Synced; Part::ALL.len()],
    /// The ids of the sessions that `/alive/<name>` names; empty for one that cannot be read.
    alive: HashMap<Name, String>,
    /// `None` for one that cannot be read.
    nodes: HashMap<Name, Option<SeenNode>>,
    /// By the uid of the node, with its name.
    certificates: HashMap<Box<str>, (Option<Name>, State)>,
    /// By uid.
    removed: HashSet<Box<str>>,
    /// By node and volume.
    publications: HashMap<Name, BTreeMap<Name, Box<[u8]>>>,
    volumes: HashMap<Name, Box<[u8]>>,
    /// The nodes that have a publication of a volume.
    nodes_of: HashMap<Name, BTreeSet<Name>>,
}

impl Index {
    /// An empty copy.
    pub fn new(keys: Keys) -> Self {
        Self {
            keys,
            synced: Default::default(),
            alive: HashMap::new(),
            nodes: HashMap::new(),
            certificates: HashMap::new(),
            removed: HashSet::new(),
            publications: HashMap::new(),
            volumes: HashMap::new(),
            nodes_of: HashMap::new(),
        }
    }

    /// Takes in a step of following one range.
    pub fn take_in(&mut self, part: Part, update: Update) -> Affected {
        let is_list_end = matches!(update, Update::Listed(_));
        let mut synced = std::mem::take(&mut self.synced[part as usize]);
        let mut feed = Feed {
            index: self,
            part,
            affected: BTreeSet::new(),
        };
        synced.take_in(update, &mut feed);
        let affected = feed.affected;
        self.synced[part as usize] = synced;
        match is_list_end {
            true => Affected::All,
            false => Affected::Nodes(affected),
        }
    }

    /// Whether the copy of a range shows what was written to it at this revision.
    pub fn shows(&self, part: Part, written: Revision) -> bool {
        self.synced[part as usize].shows(written)
    }

    /// Whether the copies of all ranges are whole.
    pub fn is_complete(&self) -> bool {
        self.synced.iter().all(Synced::is_complete)
    }

    /// The id of the session of a node; empty if that cannot be read.
    pub fn session_id(&self, name: &Name) -> Option<&str> {
        self.alive.get(name).map(String::as_str)
    }

    /// A node: `None` if there is none of this name, `Some(None)` if it cannot be read.
    pub fn node(&self, name: &Name) -> Option<Option<&SeenNode>> {
        self.nodes.get(name).map(Option::as_ref)
    }

    /// Whether this uid is recorded as removed.
    pub fn is_removed(&self, uid: &str) -> bool {
        self.removed.contains(uid)
    }

    /// What the node of this name and uid is shown; `None` if it cannot be read.
    pub fn view(&self, name: &Name, uid: &str) -> Option<Shown> {
        let node = self.nodes.get(name)?.as_ref().filter(|node| node.uid == uid)?;
        let certificate = self.certificates.get(uid);
        let certificate = certificate.map_or(State::Unspecified, |(_, state)| *state);
        let publications = self.publications.get(name).into_iter().flatten();
        let publications = publications.map(|(volume, publication)| {
            let record = self.volumes.get(volume).map(|value| &**value);
            (volume, &**publication, record)
        });
        Some(view::view(name, node, certificate, publications))
    }

    fn publish(&mut self, volume: Name, node: Name, value: Vec<u8>) {
        self.nodes_of
            .entry(volume.clone())
            .or_default()
            .insert(node.clone());
        let of_node = self.publications.entry(node).or_default();
        of_node.insert(volume, value.into_boxed_slice());
    }

    fn unpublish(&mut self, volume: &Name, node: &Name) {
        take(&mut self.nodes_of, volume, |nodes| nodes.remove(node));
        if let Some(volumes) = self.publications.get_mut(node) {
            volumes.remove(volume);
            if volumes.is_empty() {
                self.publications.remove(node);
            }
        }
    }
}

/// Removes an element of the set at `key`, and the set with its last element.
fn take(
    sets: &mut HashMap<Name, BTreeSet<Name>>,
    key: &Name,
    remove: impl FnOnce(&mut BTreeSet<Name>) -> bool,
) {
    if let Some(set) = sets.get_mut(key) {
        remove(set);
        if set.is_empty() {
            sets.remove(key);
        }
    }
}

/// One range of the index, and the nodes that its changes concern.
struct Feed<'i> {
    index: &'i mut Index,
    part: Part,
    affected: BTreeSet<Name>,
}

/// What a key names.
enum Key {
    Alive(Name),
    Node(Name),
    /// The uid of a node.
    Certificate(Box<str>),
    /// The uid of a removed node.
    Removed(Box<str>),
    /// The publication of a volume to a node.
    Publication(Name, Name),
    Volume(Name),
}

impl Feed<'_> {
    /// `None` for a key of another kind, or one that no object can have.
    fn parse(&self, key: &[u8]) -> Option<Key> {
        let (keys, name) = (&self.index.keys, |text: &str| text.parse::<Name>().ok());
        match self.part {
            Part::Alive => Some(Key::Alive(name(keys.parse_alive(key)?)?)),
            Part::Volumes => Some(Key::Volume(name(keys.parse_volume(key)?)?)),
            Part::Records => match keys.parse_certification(key) {
                CertificationKey::Certificate(uid) => Some(Key::Certificate(uid.into())),
                CertificationKey::Node(node) => Some(Key::Node(name(node)?)),
                CertificationKey::Removed(uid) => Some(Key::Removed(uid.into())),
                CertificationKey::Other => {
                    let (volume, node) = keys.parse_publication(key)?.split_once('/')?;
                    Some(Key::Publication(name(volume)?, name(node)?))
                }
            },
        }
    }

    fn affect(&mut self, node: Option<Name>) {
        self.affected.extend(node);
    }

    fn affect_nodes_of(&mut self, volume: &Name) {
        let nodes = self.index.nodes_of.get(volume).into_iter().flatten();
        self.affected.extend(nodes.cloned());
    }
}

impl Indexed for Feed<'_> {
    fn put(&mut self, kv: KeyValue) {
        let Some(key) = self.parse(&kv.key) else { return };
        let parsed = |name: String| name.parse::<Name>().ok();
        match key {
            Key::Alive(name) => {
                let session = NodeSession::decode(&*kv.value).unwrap_or_default();
                self.index.alive.insert(name.clone(), session.session_id);
                self.affect(Some(name));
            }
            Key::Node(name) => {
                let node = SeenNode::read(&name, &kv.value);
                // Reports are written often. Only what sessions depend on counts as a change.
                let before = self.index.nodes.insert(name.clone(), node.clone());
                if before != Some(node) {
                    self.affect(Some(name));
                }
            }
            Key::Certificate(uid) => {
                let record = NodeCertificate::decode(&*kv.value).unwrap_or_default();
                let (state, node) = (record.state(), parsed(record.node));
                self.index.certificates.insert(uid, (node.clone(), state));
                self.affect(node);
            }
            Key::Removed(uid) => {
                let record = RemovedNode::decode(&*kv.value).unwrap_or_default();
                self.index.removed.insert(uid);
                self.affect(parsed(record.name));
            }
            Key::Publication(volume, node) => {
                self.index.publish(volume, node.clone(), kv.value);
                self.affect(Some(node));
            }
            Key::Volume(volume) => {
                let value = kv.value.into_boxed_slice();
                self.index.volumes.insert(volume.clone(), value);
                self.affect_nodes_of(&volume);
            }
        }
    }

    fn delete(&mut self, key: &[u8], _at: Revision) {
        let Some(key) = self.parse(key) else { return };
        match key {
            Key::Alive(name) => {
                self.index.alive.remove(&name);
                self.affect(Some(name));
            }
            Key::Node(name) => {
                self.index.nodes.remove(&name);
                self.affect(Some(name));
            }
            Key::Certificate(uid) => {
                let before = self.index.certificates.remove(&uid);
                self.affect(before.and_then(|(node, _)| node));
            }
            // It has expired.
            Key::Removed(uid) => _ = self.index.removed.remove(&uid),
            Key::Publication(volume, node) => {
                self.index.unpublish(&volume, &node);
                self.affect(Some(node));
            }
            Key::Volume(volume) => {
                self.index.volumes.remove(&volume);
                self.affect_nodes_of(&volume);
            }
        }
    }

    fn keys(&self) -> impl Iterator<Item = Cow<'_, [u8]>> {
        let index = &*self.index;
        let keys = &index.keys;
        let all: Box<dyn Iterator<Item = Vec<u8>>> = match self.part {
            Part::Alive => Box::new(index.alive.keys().map(|name| keys.alive(name))),
            Part::Volumes => Box::new(index.volumes.keys().map(|name| keys.volume(name))),
            Part::Records => {
                let publications = index.publications.iter().flat_map(move |(node, volumes)| {
                    let volumes = volumes.keys();
                    volumes.map(move |volume| keys.publication(volume, node))
                });
                let nodes = index.nodes.keys().map(|name| keys.node(name));
                let certificates = index.certificates.keys().map(|uid| keys.certificate(uid));
                let removed = index.removed.iter().map(|uid| keys.removed(uid));
                Box::new(publications.chain(nodes).chain(certificates).chain(removed))
            }
        };
        all.map(Cow::Owned)
    }
}

#[cfg(test)]
pub(super) mod tests;
