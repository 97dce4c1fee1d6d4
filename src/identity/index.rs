//! What the store holds about certificates, at one revision: their records, the nodes and the removed ones. Pure.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap, HashSet};

use super::recorded_node::{NodeFacts, RecordedNode};
use crate::etcd::{KeyValue, Revision};
use crate::proto::NodeCertificate;
use crate::proto::node_certificate::State;
use crate::store::index::{Indexed, Synced};
use crate::store::keys::CertificationKey;
use crate::store::object::message;
use crate::store::{Keys, Update};

/// The record of a certificate.
#[derive(Clone, Debug)]
pub struct Record {
    /// What is stored, without the chain, and without the request unless it is pending.
    pub value: NodeCertificate,
    /// The stored bytes, with what only a later release knows. Empty unless the request is pending.
    pub stored: Box<[u8]>,
    /// When it was last written.
    pub revision: Revision,
}

/// Everything that is stored about certificates, at one revision.
#[derive(Debug)]
pub struct Index {
    keys: Keys,
    synced: Synced,
    /// By uid; `None` for what cannot be read.
    records: HashMap<Box<str>, Option<Record>>,
    /// By name; `None` for what cannot be read.
    nodes: HashMap<Box<str>, Option<NodeFacts>>,
    removed: HashSet<Box<str>>,
    pending: BTreeSet<Box<str>>,
}

impl Index {
    /// An index that has seen nothing yet.
    pub fn new(keys: Keys) -> Self {
        Self {
            keys,
            synced: Synced::default(),
            records: HashMap::new(),
            nodes: HashMap::new(),
            removed: HashSet::new(),
            pending: BTreeSet::new(),
        }
    }

    /// Takes in an update.
    pub fn take_in(&mut self, update: Update) {
        let mut synced = std::mem::take(&mut self.synced);
        synced.take_in(update, self);
        self.synced = synced;
    }

    /// What the index has seen so far. Before a whole list nothing is decided.
    pub fn synced(&self) -> &Synced {
        &self.synced
    }

    /// The uids whose request waits for an answer, with the record and the node that it belongs to.
    pub fn pending(&self) -> impl Iterator<Item = (&str, &Record, RecordedNode<'_>)> {
        self.pending.iter().filter_map(|uid| {
            let record = self.record(uid)?;
            Some((&**uid, record, self.node_of_record(uid, &record.value.node)))
        })
    }

    /// Whether a request waits for an answer.
    pub fn is_pending(&self, uid: &str) -> bool {
        self.pending.contains(uid)
    }

    /// The record of a uid, if it can be read.
    pub fn record(&self, uid: &str) -> Option<&Record> {
        self.records.get(uid)?.as_ref()
    }

    /// How many records have each state; those that cannot be read, and states that only a later release knows, come as `None`.
    pub fn states(&self) -> impl Iterator<Item = Option<State>> {
        let records = self.records.values();
        records.map(|record| State::try_from(record.as_ref()?.value.state).ok())
    }

    fn node_of_record(&self, uid: &str, name: &str) -> RecordedNode<'_> {
        if self.removed.contains(uid) {
            return RecordedNode::Removed;
        }
        match self.nodes.get(name) {
            Some(Some(node)) if node.uid == uid => RecordedNode::Node(node),
            Some(None) => RecordedNode::Unreadable,
            Some(Some(_)) | None => RecordedNode::Missing,
        }
    }

    fn put_record(&mut self, uid: &str, kv: &KeyValue) {
        let record = message::<NodeCertificate>("NodeCertificate", &kv.value).ok();
        let record = record.map(|mut value| {
            // What nothing is decided by need not be held.
            value.chain = String::new();
            let stored: Box<[u8]> = if value.state() == State::Pending {
                self.pending.insert(uid.into());
                kv.value.as_slice().into()
            } else {
                self.pending.remove(uid);
                value.request = None;
                Box::default()
            };
            Record {
                value,
                stored,
                revision: kv.mod_revision,
            }
        });
        if record.is_none() {
            self.pending.remove(uid);
        }
        self.records.insert(uid.into(), record);
    }
}

impl Indexed for Index {
    fn put(&mut self, kv: KeyValue) {
        let keys = self.keys.clone();
        match keys.parse_certification(&kv.key) {
            CertificationKey::Certificate(uid) => self.put_record(uid, &kv),
            CertificationKey::Node(name) => {
                _ = self.nodes.insert(name.into(), NodeFacts::read(name, &kv));
            }
            CertificationKey::Removed(uid) => _ = self.removed.insert(uid.into()),
            CertificationKey::Other => {}
        }
    }

    fn delete(&mut self, key: &[u8], _at: Revision) {
        let keys = self.keys.clone();
        match keys.parse_certification(key) {
            CertificationKey::Certificate(uid) => {
                self.records.remove(uid);
                self.pending.remove(uid);
            }
            CertificationKey::Node(name) => _ = self.nodes.remove(name),
            CertificationKey::Removed(uid) => _ = self.removed.remove(uid),
            CertificationKey::Other => {}
        }
    }

    fn keys(&self) -> impl Iterator<Item = Cow<'_, [u8]>> {
        let records = self.records.keys().map(|uid| CertificationKey::Certificate(uid));
        let nodes = self.nodes.keys().map(|name| CertificationKey::Node(name));
        let removed = self.removed.iter().map(|uid| CertificationKey::Removed(uid));
        let all = records.chain(nodes).chain(removed);
        all.filter_map(|key| self.keys.certification_key(key).map(Cow::Owned))
    }
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;
    use crate::etcd::Event;
    use crate::proto::{CertificateRequest, Metadata, Node, NodeSpec, NodeStatus, Role};

    fn keys() -> Keys {
        Keys::new("/quorate".parse().unwrap())
    }

    fn kv(key: Vec<u8>, value: Vec<u8>, revision: i64) -> KeyValue {
        KeyValue {
            key,
            value,
            create_revision: Revision(1),
            mod_revision: Revision(revision),
            lease: None,
        }
    }

    fn node(uid: &str, role: Role, revision: i64) -> KeyValue {
        let node = Node {
            metadata: Some(Metadata::new("n1", uid, jiff::Timestamp::UNIX_EPOCH)),
            spec: Some(NodeSpec::default()),
            status: Some(NodeStatus {
                role: role.into(),
                ..NodeStatus::default()
            }),
        };
        kv(
            keys().node(&"n1".parse().unwrap()),
            node.encode_to_vec(),
            revision,
        )
    }

    fn record(uid: &str, state: State, revision: i64) -> KeyValue {
        let record = NodeCertificate {
            node: "n1".to_owned(),
            state: state.into(),
            request: Some(CertificateRequest::default()),
            chain: "chain".to_owned(),
            ..NodeCertificate::default()
        };
        kv(keys().certificate(uid), record.encode_to_vec(), revision)
    }

    fn listed(contents: Vec<KeyValue>) -> Index {
        let mut index = Index::new(keys());
        index.take_in(Update::Page {
            first: true,
            keys: contents,
        });
        index.take_in(Update::Listed(Revision(9)));
        index
    }

    fn node_of<'i>(index: &'i Index, uid: &str) -> Option<RecordedNode<'i>> {
        let mut pending = index.pending();
        pending.find(|(of, ..)| *of == uid).map(|(_, _, holder)| holder)
    }

    #[test]
    fn a_pending_request_comes_with_its_node_as_it_is_now() {
        let mut index = listed(vec![record("u", State::Pending, 3), node("u", Role::Worker, 4)]);
        let Some(RecordedNode::Node(facts)) = node_of(&index, "u") else {
            panic!("{index:?}");
        };
        assert_eq!((facts.observed, facts.revision), (Role::Worker, Revision(4)));
        index.take_in(Update::Events(vec![Event::Put(node("u", Role::Manager, 10))]));
        let Some(RecordedNode::Node(facts)) = node_of(&index, "u") else {
            panic!("{index:?}");
        };
        assert_eq!((facts.observed, facts.revision), (Role::Manager, Revision(10)));
        index.take_in(Update::Events(vec![Event::Put(record("u", State::Issued, 11))]));
        assert_eq!(node_of(&index, "u"), None);
        let kept = index.record("u").unwrap();
        assert_eq!((&*kept.stored, kept.value.request.as_ref()), (&[][..], None));
        let pending = record("u", State::Pending, 12);
        let stored = pending.value.clone();
        index.take_in(Update::Events(vec![Event::Put(pending)]));
        assert_eq!(*index.record("u").unwrap().stored, stored);
    }

    #[test]
    fn a_node_of_another_uid_is_another_node() {
        let index = listed(vec![
            record("old", State::Pending, 3),
            node("new", Role::Worker, 4),
        ]);
        assert_eq!(node_of(&index, "old"), Some(RecordedNode::Missing));
    }

    #[test]
    fn a_removed_uid_counts_before_any_node_and_an_unreadable_node_is_no_missing_one() {
        let removed = kv(keys().removed("u"), Vec::new(), 5);
        let contents = vec![
            record("u", State::Pending, 3),
            node("u", Role::Worker, 4),
            removed,
        ];
        assert_eq!(node_of(&listed(contents), "u"), Some(RecordedNode::Removed));
        let mut garbage = node("u", Role::Worker, 4);
        garbage.value = vec![0xff];
        let index = listed(vec![record("u", State::Pending, 3), garbage]);
        assert_eq!(node_of(&index, "u"), Some(RecordedNode::Unreadable));
    }

    #[test]
    fn what_a_later_list_does_not_show_is_gone() {
        let mut index = listed(vec![record("u", State::Pending, 3), node("u", Role::Worker, 4)]);
        index.take_in(Update::Page {
            first: true,
            keys: vec![record("u", State::Pending, 3)],
        });
        assert!(!index.synced().is_complete());
        index.take_in(Update::Listed(Revision(20)));
        assert_eq!(node_of(&index, "u"), Some(RecordedNode::Missing));
        let garbage = kv(keys().certificate("u"), vec![0xff], 21);
        index.take_in(Update::Events(vec![Event::Put(garbage)]));
        assert!(!index.is_pending("u"));
        assert_eq!(index.states().collect::<Vec<_>>(), [None]);
        let gone = Event::Delete {
            key: keys().certificate("u"),
            revision: Revision(22),
        };
        index.take_in(Update::Events(vec![gone]));
        assert_eq!(index.states().count(), 0);
    }
}
