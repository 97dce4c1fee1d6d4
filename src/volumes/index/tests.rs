//! What the index shows and reports, a file a subject. Here is what their records have in common.

mod awaited;
mod nodes;
mod order;
mod plugins;
mod secrets;
mod sharing;
mod volumes;

use prost::Message;

use super::*;
use crate::etcd::Event;
use crate::proto::access_mode::{Kind, Mount};
use crate::proto::publication_status::State as Published;
use crate::proto::volume_spec::Driver;
use crate::proto::{
    AccessMode, CsiNode, Metadata, Node, NodeSpec, NodeStatus, PublicationSpec, PublicationStatus,
    VolumeSecret, VolumeSpec,
};

fn keys() -> Keys {
    Keys::new("/q".parse().unwrap())
}

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

fn metadata(text: &str) -> Option<Metadata> {
    Some(Metadata {
        name: text.to_owned(),
        uid: "uid".to_owned(),
        ..Metadata::default()
    })
}

fn kv(key: Vec<u8>, value: Vec<u8>, revision: i64) -> KeyValue {
    KeyValue::written_at(key, value, revision)
}

fn volume(text: &str, revision: i64) -> KeyValue {
    let volume = Volume {
        metadata: metadata(text),
        spec: Some(VolumeSpec {
            driver: Some(Driver {
                name: "p".to_owned(),
                ..Driver::default()
            }),
            access_mode: Some(AccessMode {
                kind: Some(Kind::Mount(Mount::default())),
                ..AccessMode::default()
            }),
            secrets: vec![VolumeSecret {
                key: "k".to_owned(),
                secret: "s".to_owned(),
                calls: Vec::new(),
            }],
            ..VolumeSpec::default()
        }),
        status: None,
    };
    kv(keys().volume(&name(text)), volume.encode_to_vec(), revision)
}

fn publication(volume: &str, node: &str, revision: i64) -> KeyValue {
    let publication = Publication {
        metadata: metadata(node),
        spec: Some(PublicationSpec {
            volume: volume.to_owned(),
            node_uid: format!("uid-of-{node}"),
            ..PublicationSpec::default()
        }),
        status: Some(PublicationStatus {
            state: Published::PendingPublish.into(),
            ..PublicationStatus::default()
        }),
    };
    let key = keys().publication(&name(volume), &name(node));
    kv(key, publication.encode_to_vec(), revision)
}

fn node(text: &str, release: i64, csi: &str, revision: i64) -> KeyValue {
    let node = Node {
        metadata: metadata(text),
        spec: Some(NodeSpec::default()),
        status: Some(NodeStatus {
            release: Some(crate::proto::version::Release {
                major: release,
                minor: 0,
                patch: 0,
            }),
            csi: vec![CsiNode {
                plugin: "p".to_owned(),
                node_id: csi.to_owned(),
                ..CsiNode::default()
            }],
            ..NodeStatus::default()
        }),
    };
    kv(keys().node(&name(text)), node.encode_to_vec(), revision)
}

fn listed(index: &mut Index, part: Part, kvs: Vec<KeyValue>, revision: i64) -> Vec<Change> {
    let mut changes = index.take_in(
        part,
        Update::Page {
            first: true,
            keys: kvs,
        },
    );
    changes.extend(index.take_in(part, Update::Listed(Revision(revision))));
    changes
}

fn events(index: &mut Index, part: Part, kvs: Vec<KeyValue>) -> Vec<Change> {
    index.take_in(part, Update::Events(kvs.into_iter().map(Event::Put).collect()))
}

fn deleted(index: &mut Index, part: Part, key: Vec<u8>, revision: i64) -> Vec<Change> {
    let revision = Revision(revision);
    index.take_in(part, Update::Events(vec![Event::Delete { key, revision }]))
}

/// Volumes `a` and `b` of the plugin `p`, and a publication of `a` to the node `n1`.
fn full() -> Index {
    let mut index = Index::new(keys());
    listed(&mut index, Part::Volumes, vec![volume("a", 3), volume("b", 4)], 9);
    listed(&mut index, Part::Publications, vec![publication("a", "n1", 5)], 9);
    listed(&mut index, Part::Nodes, vec![node("n1", 1, "csi-n1", 6)], 9);
    listed(&mut index, Part::Plugins, vec![], 9);
    listed(&mut index, Part::Removed, vec![], 9);
    listed(&mut index, Part::Tombstones, vec![], 9);
    assert!(!index.is_complete());
    listed(&mut index, Part::Secrets, vec![], 9);
    assert!(index.is_complete());
    index
}
