//! How the values of a range come into the index.

use std::borrow::Cow;
use std::collections::BTreeSet;

use prost::Message as _;

use super::{Alive, Index, Part};
use crate::control::session::seen_node::SeenNode;
use crate::etcd::{KeyValue, MemberId, Revision};
use crate::proto::{NodeCertificate, NodeSession, RemovedNode, Role};
use crate::store::Name;
use crate::store::index::Indexed;
use crate::store::keys::CertificationKey;

/// One range of the index, and the nodes that its changes concern.
pub(super) struct Feed<'i> {
    pub index: &'i mut Index,
    pub part: Part,
    pub affected: BTreeSet<Name>,
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
            Key::Member(id) => {
                let concerned = members.put_member(id, value);
                return self.affected.extend(concerned);
            }
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
