//! What the store holds about certificates, at one revision: their records, the nodes and the removed ones, and where the etcd of
//! nodes is reached. Pure.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::authority::AuthorityKind;
use super::plan::Refusal;
use super::reached::{Joined, Place, RecordedJoin, RecordedMember};
use super::recorded_node::{NodeFacts, RecordedNode};
use super::records::{Record, Records};
use super::revocation::{List, Owed};
use super::rotation::facts::{Certified, Replica, Report};
use super::rotation::record::{Asked, OnRecord, digest};
use super::rotation::view::{Intents, report};
use crate::etcd::{KeyValue, MemberId, Revision};
use crate::proto::Role;
use crate::proto::node_certificate::State;
use crate::store::index::{Indexed, Synced};
use crate::store::keys::CertificationKey;
use crate::store::{Keys, Update};

/// Everything that is stored about certificates, at one revision.
#[derive(Debug)]
pub struct Index {
    keys: Keys,
    synced: Synced,
    of_nodes: Records,
    of_etcd: Records,
    revocation: List,
    rotation: OnRecord,
    /// `None` inside for what cannot be read.
    asked: Option<Option<Asked>>,
    /// What replicas report of a rotation, and when; `None` for what cannot be read.
    reports: BTreeMap<Box<str>, (Option<Report>, Revision)>,
    /// The names of the replicas that are registered.
    registered: BTreeSet<Box<str>>,
    /// By name; `None` for what cannot be read.
    nodes: HashMap<Box<str>, Option<NodeFacts>>,
    /// By uid; when the removal was recorded.
    removed: HashMap<Box<str>, Revision>,
    /// By the name of the node; `None` for what cannot be read, or asks for nothing.
    joins: BTreeMap<Box<str>, Option<RecordedJoin>>,
    /// `None` for what cannot be read.
    members: BTreeMap<MemberId, Option<RecordedMember>>,
}

impl Index {
    /// An index that has seen nothing yet.
    pub fn new(keys: Keys) -> Self {
        Self {
            keys,
            synced: Synced::default(),
            of_nodes: Records::default(),
            of_etcd: Records::default(),
            revocation: List::default(),
            rotation: OnRecord::default(),
            asked: None,
            reports: BTreeMap::new(),
            registered: BTreeSet::new(),
            nodes: HashMap::new(),
            removed: HashMap::new(),
            joins: BTreeMap::new(),
            members: BTreeMap::new(),
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

    /// The records of the certificates that this authority signs.
    pub fn records(&self, kind: AuthorityKind) -> &Records {
        match kind {
            AuthorityKind::Node => &self.of_nodes,
            AuthorityKind::Etcd => &self.of_etcd,
        }
    }

    /// The list of revoked certificates.
    pub fn revocation(&self) -> &List {
        &self.revocation
    }

    /// What is on record of the rotation of the authorities.
    pub fn rotation(&self) -> &OnRecord {
        &self.rotation
    }

    /// What an operator asks for, if that can be read.
    pub fn asked(&self) -> Option<&Asked> {
        self.asked.as_ref()?.as_ref()
    }

    /// The replicas that are registered, with what they report.
    pub fn replicas(&self) -> impl Iterator<Item = Replica> {
        self.registered.iter().map(|name| Replica {
            name: name.clone(),
            report: self.reports.get(name).and_then(|(report, _)| report.clone()),
        })
    }

    /// The replicas that have reported something, and when they did.
    pub fn reports(&self) -> impl Iterator<Item = (&str, Revision)> {
        self.reports.iter().map(|(name, (_, at))| (&**name, *at))
    }

    /// The certificates that nodes have, and the members of managers. A node that cannot be read may have one.
    pub fn certified(&self) -> impl Iterator<Item = Certified> {
        AuthorityKind::ALL.into_iter().flat_map(move |kind| {
            let records = self.records(kind).readable();
            records.filter_map(move |(uid, record)| {
                let node = self.node_of_record(uid, &record.value.node);
                let counts = match (node, kind) {
                    (RecordedNode::Removed | RecordedNode::Missing, _) => false,
                    (RecordedNode::Unreadable, _) | (RecordedNode::Node(_), AuthorityKind::Node) => true,
                    (RecordedNode::Node(node), AuthorityKind::Etcd) => {
                        node.observed == Role::Manager && self.member_of(uid).is_some()
                    }
                };
                // Of a first request, nothing was signed yet.
                (counts && record.value.not_after.is_some()).then(|| Certified {
                    kind,
                    node: record.value.node.as_str().into(),
                    uid: uid.into(),
                    signer: digest(&record.value.authority_sha256),
                    is_asked: matches!(record.value.state(), State::Pending | State::Rotate),
                })
            })
        })
    }

    /// The member that stays of the node of this uid.
    fn member_of(&self, uid: &str) -> Option<MemberId> {
        let mut members = self.members.iter();
        members.find_map(|(id, member)| {
            let is_own = member
                .as_ref()
                .is_some_and(|member| &*member.uid == uid && !member.leaves);
            is_own.then_some(*id)
        })
    }

    /// The uids that were not removed and whose certificates of the node authority are not known, since the record of them cannot be read.
    pub fn uncertain(&self) -> impl Iterator<Item = &str> {
        let unreadable = self.of_nodes.unreadable();
        unreadable.filter(|uid| !self.removed.contains_key(*uid))
    }

    /// What is decided of members, as their records say. A record that cannot be read may hold any intent.
    pub fn intents(&self) -> HashMap<MemberId, Intents> {
        let intents = |member: &Option<RecordedMember>| match member {
            Some(member) => Intents {
                leaves_or_moves: member.leaves || member.moves,
                is_promoted: member.is_promoted,
            },
            None => Intents {
                leaves_or_moves: true,
                is_promoted: true,
            },
        };
        let members = self.members.iter();
        members.map(|(id, member)| (*id, intents(member))).collect()
    }

    /// Name and uid of the node of each member that has a record.
    pub fn nodes_of_members(&self) -> impl Iterator<Item = (MemberId, &str, &str)> {
        self.members.iter().filter_map(|(id, member)| {
            let member = member.as_ref()?;
            Some((*id, &*member.node, &*member.uid))
        })
    }

    /// The uids whose request to this authority waits for an answer, with the record and the node that it belongs to.
    pub fn pending(&self, kind: AuthorityKind) -> impl Iterator<Item = (&str, &Record, RecordedNode<'_>)> {
        let pending = self.records(kind).pending();
        pending.map(|(uid, record)| (uid, record, self.node_of_record(uid, &record.value.node)))
    }

    /// What the certificate of the member of this node says.
    ///
    /// # Errors
    /// Why the node gets none.
    pub fn joined(&self, name: &str, uid: &str) -> Result<Joined, Refusal> {
        let members = self.members.iter();
        let members: Vec<_> = members
            .filter_map(|(id, member)| Some((*id, member.as_ref()?)))
            .collect();
        let joins = self.joins.iter();
        let joins: Vec<_> = joins
            .filter_map(|(node, join)| Some((&**node, join.as_ref()?)))
            .filter(|(node, join)| self.is_manager(node, &join.uid))
            .collect();
        let place = Place {
            members: &members,
            joins: &joins,
        };
        place.joined(name, uid)
    }

    /// The certificates of etcd of nodes that are recorded as removed, or observed as workers.
    pub fn owed(&self) -> impl Iterator<Item = Owed<'_>> {
        let records = self.of_etcd.readable();
        records.filter_map(|(uid, Record { value, .. })| {
            let is_out = match self.node_of_record(uid, &value.node) {
                RecordedNode::Removed => true,
                RecordedNode::Node(node) => node.observed == Role::Worker,
                // Neither is a word that the node is no manager (INV-12).
                RecordedNode::Unreadable | RecordedNode::Missing => false,
            };
            is_out.then_some(Owed {
                node: &value.node,
                uid,
                issued: &value.issued,
            })
        })
    }

    /// The records of etcd's certificates of nodes that are recorded as removed, with their uids and when the removals were recorded.
    pub fn left_behind(&self) -> impl Iterator<Item = (&str, &Record, Revision)> {
        let records = self.of_etcd.readable();
        records.filter_map(|(uid, record)| Some((uid, record, *self.removed.get(uid)?)))
    }

    /// The nodes that are recorded as removed, or observed as workers, and whose certificates of etcd are not known, since the record of
    /// them cannot be read: the uid, and the name where the node exists.
    pub fn unknown(&self) -> impl Iterator<Item = (&str, &str)> {
        self.of_etcd.unreadable().filter_map(|uid| {
            if self.removed.contains_key(uid) {
                return Some((uid, uid));
            }
            let mut nodes = self.nodes.iter();
            let name = nodes.find_map(|(name, node)| {
                let node = node.as_ref()?;
                (node.uid == uid && node.observed == Role::Worker).then_some(&**name)
            });
            Some((uid, name?))
        })
    }

    fn is_manager(&self, name: &str, uid: &str) -> bool {
        let node = self.node_of_record(uid, name);
        matches!(node, RecordedNode::Node(node) if node.observed == Role::Manager)
    }

    /// The names of the nodes that several agents run as.
    pub fn duplicates(&self) -> impl Iterator<Item = &str> {
        let nodes = self.nodes.iter();
        nodes.filter_map(|(name, node)| node.as_ref()?.is_duplicate.then_some(&**name))
    }

    fn node_of_record(&self, uid: &str, name: &str) -> RecordedNode<'_> {
        if self.removed.contains_key(uid) {
            return RecordedNode::Removed;
        }
        match self.nodes.get(name) {
            Some(Some(node)) if node.uid == uid => RecordedNode::Node(node),
            Some(None) => RecordedNode::Unreadable,
            Some(Some(_)) | None => RecordedNode::Missing,
        }
    }
}

impl Indexed for Index {
    fn put(&mut self, kv: KeyValue) {
        let keys = self.keys.clone();
        match keys.parse_certification(&kv.key) {
            CertificationKey::Certificate(uid) => self.of_nodes.put(uid, &kv),
            CertificationKey::EtcdCertificate(uid) => self.of_etcd.put(uid, &kv),
            CertificationKey::RevocationList => self.revocation = List::read(&kv),
            CertificationKey::Rotation => self.rotation = OnRecord::of(&kv),
            CertificationKey::RotationRequest => self.asked = Some(Asked::read(&kv.value)),
            CertificationKey::ReplicaTrust(replica) => {
                let reported = (report(&kv.value), kv.mod_revision);
                self.reports.insert(replica.into(), reported);
            }
            CertificationKey::Registration(name) => _ = self.registered.insert(name.into()),
            CertificationKey::Join(node) => _ = self.joins.insert(node.into(), RecordedJoin::read(&kv)),
            CertificationKey::Member(id) => _ = self.members.insert(id, RecordedMember::read(&kv)),
            CertificationKey::Node(name) => {
                _ = self.nodes.insert(name.into(), NodeFacts::read(name, &kv));
            }
            CertificationKey::Removed(uid) => _ = self.removed.insert(uid.into(), kv.mod_revision),
            CertificationKey::Other => {}
        }
    }

    fn delete(&mut self, key: &[u8], _at: Revision) {
        let keys = self.keys.clone();
        match keys.parse_certification(key) {
            CertificationKey::Certificate(uid) => self.of_nodes.remove(uid),
            CertificationKey::EtcdCertificate(uid) => self.of_etcd.remove(uid),
            CertificationKey::RevocationList => self.revocation = List::Absent,
            CertificationKey::Rotation => self.rotation = OnRecord::Absent,
            CertificationKey::RotationRequest => self.asked = None,
            CertificationKey::ReplicaTrust(replica) => _ = self.reports.remove(replica),
            CertificationKey::Registration(name) => _ = self.registered.remove(name),
            CertificationKey::Join(node) => _ = self.joins.remove(node),
            CertificationKey::Member(id) => _ = self.members.remove(&id),
            CertificationKey::Node(name) => _ = self.nodes.remove(name),
            CertificationKey::Removed(uid) => _ = self.removed.remove(uid),
            CertificationKey::Other => {}
        }
    }

    fn keys(&self) -> impl Iterator<Item = Cow<'_, [u8]>> {
        let of_nodes = self.of_nodes.uids().map(CertificationKey::Certificate);
        let of_etcd = self.of_etcd.uids().map(CertificationKey::EtcdCertificate);
        let list = (self.revocation != List::Absent).then_some(CertificationKey::RevocationList);
        let rotation = (self.rotation != OnRecord::Absent).then_some(CertificationKey::Rotation);
        let asked = self.asked.as_ref().map(|_| CertificationKey::RotationRequest);
        let reports = self.reports.keys();
        let reports = reports.map(|replica| CertificationKey::ReplicaTrust(replica));
        let registered = self.registered.iter();
        let registered = registered.map(|name| CertificationKey::Registration(name));
        let joins = self.joins.keys().map(|node| CertificationKey::Join(node));
        let members = self.members.keys().map(|id| CertificationKey::Member(*id));
        let nodes = self.nodes.keys().map(|name| CertificationKey::Node(name));
        let removed = self.removed.keys().map(|uid| CertificationKey::Removed(uid));
        let records = of_nodes.chain(of_etcd).chain(list).chain(rotation).chain(asked);
        let records = records.chain(reports).chain(registered);
        let all = records.chain(joins).chain(members).chain(nodes).chain(removed);
        all.filter_map(|key| self.keys.certification_key(key).map(Cow::Owned))
    }
}

#[cfg(test)]
mod tests;
