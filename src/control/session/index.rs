//! What the sessions of a replica are judged by and shown: a copy of three ranges, which all sessions share. Pure.
//!
//! Records of publications and volumes are kept encoded, which is small, and decoded when a session is shown them.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use prost::Message as _;

use super::members::Members;
use super::seen_node::SeenNode;
use super::view::{self, Shown};
use crate::etcd::{KeyRange, KeyValue, MemberId, Revision};
use crate::proto::node_certificate::State;
use crate::proto::{NodeCertificate, NodeSession, RemovedNode, Role};
use crate::store::index::{Indexed, Synced};
use crate::store::keys::CertificationKey;
use crate::store::{Keys, Name, Update};

/// The ranges that are followed, each by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The sessions of nodes, below `/alive/`.
    Alive,
    /// Certificates, joins, members, nodes, publications and removed nodes, so that one watch brings their changes in the order in which they
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

/// The session that makes a node ready.
#[derive(Debug)]
struct Alive {
    session_id: String,
    /// The uid of the node that the session is of.
    node_uid: String,
}

/// The copy.
#[derive(Debug)]
pub struct Index {
    keys: Keys,
    synced: [Synced; Part::ALL.len()],
    /// What `/alive/<name>` names; empty for one that cannot be read.
    alive: HashMap<Name, Alive>,
    /// `None` for one that cannot be read.
    nodes: HashMap<Name, Option<SeenNode>>,
    /// By the uid of the node, with its name.
    certificates: HashMap<Box<str>, (Option<Name>, State)>,
    members: Members,
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
            members: Members::default(),
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
        self.alive.get(name).map(|alive| alive.session_id.as_str())
    }

    /// The names of all nodes.
    pub fn names(&self) -> impl Iterator<Item = &Name> {
        self.nodes.keys()
    }

    /// Whether a node is ready. The session of an earlier node of the same name makes none ready; one that cannot be read may be
    /// any node's.
    pub fn is_ready(&self, name: &Name) -> bool {
        let uid = self.node(name).flatten().map(|node| node.uid.as_str());
        let is_of =
            |alive: &Alive| alive.session_id.is_empty() || uid.is_none_or(|uid| uid == alive.node_uid);
        self.alive.get(name).is_some_and(is_of)
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
        let mut shown = view::view(name, node, certificate, publications);
        shown.view.member = self.members.view(name, uid);
        shown.view.revocation = (node.role == Role::Manager).then(|| self.members.revocation());
        Some(shown)
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
    /// The uid of a node.
    EtcdCertificate(Box<str>),
    RevocationList,
    Rotation,
    /// The name of a node.
    Join(Name),
    Member(MemberId),
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
                CertificationKey::EtcdCertificate(uid) => Some(Key::EtcdCertificate(uid.into())),
                CertificationKey::RevocationList => Some(Key::RevocationList),
                CertificationKey::Rotation => Some(Key::Rotation),
                CertificationKey::RotationRequest
                | CertificationKey::ReplicaTrust(_)
                | CertificationKey::Registration(_) => None,
                CertificationKey::Join(node) => Some(Key::Join(name(node)?)),
                CertificationKey::Member(id) => Some(Key::Member(id)),
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

    /// A value of etcd's part, `None` if it is gone. The rest is not taken in.
    fn take_in_member(&mut self, key: Key, value: Option<&[u8]>) {
        let members = &mut self.index.members;
        let node = match key {
            Key::EtcdCertificate(uid) => members.put_certificate(uid, value),
            Key::Join(name) => members.put_join(name, value),
            Key::Member(id) => members.put_member(id, value),
            Key::RevocationList => {
                members.put_revocation(value);
                return self.affect_managers();
            }
            Key::Rotation => {
                let concerned = members.put_rotation(value);
                return self.affected.extend(concerned);
            }
            Key::Alive(_)
            | Key::Node(_)
            | Key::Certificate(_)
            | Key::Removed(_)
            | Key::Publication(..)
            | Key::Volume(_) => None,
        };
        self.affect(node);
    }

    fn affect_managers(&mut self) {
        let nodes = self.index.nodes.iter();
        let is_manager =
            |node: &Option<SeenNode>| node.as_ref().is_some_and(|node| node.role == Role::Manager);
        let managers = nodes.filter(|(_, node)| is_manager(node));
        self.affected.extend(managers.map(|(name, _)| name.clone()));
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
                let alive = Alive {
                    session_id: session.session_id,
                    node_uid: session.node_uid,
                };
                self.index.alive.insert(name.clone(), alive);
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
            Key::EtcdCertificate(_) | Key::RevocationList | Key::Rotation | Key::Join(_) | Key::Member(_) => {
                self.take_in_member(key, Some(&kv.value));
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
            Key::EtcdCertificate(_) | Key::RevocationList | Key::Rotation | Key::Join(_) | Key::Member(_) => {
                self.take_in_member(key, None);
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
                let members = &index.members;
                let joins = members.joins().map(|name| keys.join(name));
                let recorded = members.ids().map(|id| keys.member(id));
                let of_etcd = members.certificates().map(|uid| keys.etcd_certificate(uid));
                let list = members.has_revocation().then(|| keys.revocation_list());
                let rotation = members.has_rotation().then(|| keys.rotation());
                let of_etcd = joins.chain(recorded).chain(of_etcd).chain(list).chain(rotation);
                let of_nodes = publications.chain(nodes).chain(certificates).chain(removed);
                Box::new(of_nodes.chain(of_etcd))
            }
        };
        all.map(Cow::Owned)
    }
}

#[cfg(test)]
pub(super) mod tests;
