//! What the sessions of a replica are judged by and shown: a copy of three ranges, which all sessions share. Pure.
//!
//! Records of publications and volumes are kept encoded, which is small, and decoded when a session is shown them.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use super::members::Members;
use super::seen_node::SeenNode;
use super::view::{self, Shown};
use crate::etcd::{KeyRange, Revision};
use crate::proto::Role;
use crate::proto::node_certificate::State;
use crate::store::index::Synced;
use crate::store::{Keys, Name, Update};
use feed::Feed;

mod feed;

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

#[cfg(test)]
pub(super) mod tests;
