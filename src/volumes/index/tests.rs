//! What the index shows and reports of volumes, publications, nodes and secrets.

mod plugins;
mod sharing;

use prost::Message;

use super::*;
use crate::etcd::Event;
use crate::proto::access_mode::{Kind, Mount};
use crate::proto::publication_status::State as Published;
use crate::proto::volume_spec::Driver;
use crate::proto::{
    AccessMode, CsiNode, Metadata, Node, NodeSpec, NodeStatus, PublicationSpec, PublicationStatus,
    RemovedNode, VolumeSecret, VolumeSpec,
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
    KeyValue {
        key,
        value,
        create_revision: Revision(1),
        mod_revision: Revision(revision),
        lease: None,
    }
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

fn full() -> Index {
    let mut index = Index::new(keys());
    listed(&mut index, Part::Volumes, vec![volume("a", 3), volume("b", 4)], 9);
    listed(&mut index, Part::Publications, vec![publication("a", "n1", 5)], 9);
    listed(&mut index, Part::Nodes, vec![node("n1", 1, "csi-n1", 6)], 9);
    listed(&mut index, Part::Plugins, vec![], 9);
    listed(&mut index, Part::Removed, vec![], 9);
    assert!(!index.is_complete());
    listed(&mut index, Part::Secrets, vec![], 9);
    assert!(index.is_complete());
    index
}

#[test]
fn a_volume_is_seen_with_its_publications_and_their_nodes() {
    let index = full();
    let seen = index.observe(&name("a")).unwrap();
    assert_eq!(seen.revision, Revision(3));
    assert_eq!(seen.revisions[&name("n1")], Revision(5));
    assert_eq!(seen.nodes[&name("n1")].csi_node_id.as_deref(), Some("csi-n1"));
    assert!(index.observe(&name("c")).is_none());
    assert_eq!(index.count(State::Creating), 2);
    assert_eq!(index.of_plugin(&name("p")).len(), 2);
}

#[test]
fn an_own_write_is_known_when_the_watch_delivers_it_and_a_write_of_someone_else_is_not() {
    let mut index = full();
    let written = volume("a", 10);
    assert!(!index.note(&written.key.clone(), Ok(&written)).is_empty());
    assert!(
        index.note(&written.key.clone(), Ok(&written)).is_empty(),
        "known already"
    );
    assert_eq!(index.observe(&name("a")).unwrap().revision, Revision(10));
    assert_eq!(events(&mut index, Part::Volumes, vec![volume("a", 10)]), []);
    let change = Change::Record(name("a"), Revision(11));
    assert_eq!(events(&mut index, Part::Volumes, vec![volume("a", 11)]), [change]);
}

#[test]
fn what_this_leader_deleted_is_not_restored_by_an_older_event() {
    let mut index = full();
    let key = keys().publication(&name("a"), &name("n1"));
    assert!(!index.note(&key, Err(Revision(12))).is_empty());
    assert!(index.note(&key, Err(Revision(12))).is_empty(), "known already");
    assert!(index.observe(&name("a")).unwrap().publications.is_empty());
    assert_eq!(
        events(&mut index, Part::Publications, vec![publication("a", "n1", 11)]),
        []
    );
    assert!(index.observe(&name("a")).unwrap().publications.is_empty());
    // It was created again since.
    let changes = events(&mut index, Part::Publications, vec![publication("a", "n1", 13)]);
    assert_eq!(changes, [Change::Record(name("a"), Revision(13))]);
}

#[test]
fn a_list_deletes_what_it_does_not_show_but_not_what_was_written_after_it() {
    let mut index = full();
    let written = volume("b", 30);
    index.note(&written.key.clone(), Ok(&written));
    let changes = listed(&mut index, Part::Volumes, vec![], 20);
    assert_eq!(changes, [Change::Record(name("a"), Revision(20))]);
    assert!(index.observe(&name("a")).is_none() && index.observe(&name("b")).is_some());
    assert_eq!(index.count(State::Creating), 1);
}

#[test]
fn what_a_list_shows_again_unchanged_stays() {
    let mut index = full();
    assert_eq!(
        listed(
            &mut index,
            Part::Volumes,
            vec![volume("a", 3), volume("b", 4)],
            20
        ),
        []
    );
    let shown = vec![publication("a", "n1", 5)];
    assert_eq!(listed(&mut index, Part::Publications, shown, 20), []);
    assert_eq!(index.observe(&name("a")).unwrap().publications.len(), 1);
    assert!(index.observe(&name("b")).is_some());
}

#[test]
fn what_this_leader_deleted_is_not_restored_by_an_older_list_nor_by_older_events_after_it() {
    let mut index = full();
    assert!(
        !index
            .note(&keys().volume(&name("b")), Err(Revision(30)))
            .is_empty()
    );
    let before = vec![volume("a", 3), volume("b", 4)];
    assert_eq!(listed(&mut index, Part::Volumes, before, 20), []);
    assert_eq!(events(&mut index, Part::Volumes, vec![volume("b", 25)]), []);
    assert!(index.observe(&name("b")).is_none());
    let gone = Event::Delete {
        key: keys().volume(&name("b")),
        revision: Revision(30),
    };
    assert_eq!(index.take_in(Part::Volumes, Update::Events(vec![gone])), []);
    let change = [Change::Record(name("b"), Revision(31))];
    assert_eq!(events(&mut index, Part::Volumes, vec![volume("b", 31)]), change);
}

#[test]
fn what_this_leader_deleted_is_not_restored_after_a_list_of_another_range() {
    let mut index = full();
    let key = keys().publication(&name("a"), &name("n1"));
    assert!(!index.note(&key, Err(Revision(12))).is_empty());
    listed(
        &mut index,
        Part::Volumes,
        vec![volume("a", 3), volume("b", 4)],
        20,
    );
    let older = vec![publication("a", "n1", 11)];
    assert_eq!(events(&mut index, Part::Publications, older), []);
    assert!(index.observe(&name("a")).unwrap().publications.is_empty());
}

#[test]
fn the_node_id_is_that_for_the_volumes_plugin_and_none_if_it_is_empty() {
    let mut index = full();
    let mut stored = Node::decode(&*node("n1", 1, "csi-n1", 20).value).unwrap();
    let csi = &mut stored.status.as_mut().unwrap().csi;
    let other = CsiNode {
        plugin: "other".to_owned(),
        node_id: "other-n1".to_owned(),
        ..CsiNode::default()
    };
    csi.insert(0, other);
    let key = keys().node(&name("n1"));
    events(&mut index, Part::Nodes, vec![kv(key, stored.encode_to_vec(), 20)]);
    let id = |index: &Index| {
        index.observe(&name("a")).unwrap().nodes[&name("n1")]
            .csi_node_id
            .clone()
    };
    assert_eq!(id(&index).as_deref(), Some("csi-n1"));
    events(&mut index, Part::Nodes, vec![node("n1", 1, "", 21)]);
    assert_eq!(id(&index), None, "INV-6");
}

#[test]
fn only_what_decides_about_volumes_is_a_change_of_a_node() {
    let mut index = full();
    assert_eq!(
        events(&mut index, Part::Nodes, vec![node("n1", 2, "csi-n1", 20)]),
        []
    );
    let seen = index.observe(&name("a")).unwrap();
    assert_eq!(
        seen.nodes[&name("n1")].mod_revision,
        Revision(20),
        "the transaction compares it"
    );
    let around = [Change::Around(name("a"))];
    assert_eq!(
        events(&mut index, Part::Nodes, vec![node("n1", 2, "other", 21)]),
        around
    );
    let delete = Event::Delete {
        key: keys().node(&name("n1")),
        revision: Revision(22),
    };
    let changes = index.take_in(Part::Nodes, Update::Events(vec![delete]));
    assert_eq!(changes, around);
    assert!(index.observe(&name("a")).unwrap().nodes.is_empty());
}

/// INV-12
#[test]
fn a_publication_is_to_a_removed_node_while_the_uid_that_it_names_is_recorded_so() {
    let mut index = full();
    let removed = |uid: &str, name: &str, at| {
        let value = RemovedNode {
            name: name.to_owned(),
            ..RemovedNode::default()
        };
        kv(keys().removed(uid), value.encode_to_vec(), at)
    };
    let around = [Change::Around(name("a"))];
    let other = vec![removed("of-an-earlier-n1", "n1", 20)];
    assert_eq!(events(&mut index, Part::Removed, other), around);
    assert!(index.observe(&name("a")).unwrap().removed.is_empty());
    let own = vec![removed("uid-of-n1", "n1", 21)];
    assert_eq!(events(&mut index, Part::Removed, own), around);
    let seen = index.observe(&name("a")).unwrap().removed;
    assert_eq!(seen, [(name("n1"), Revision(21))].into());
    listed(&mut index, Part::Removed, vec![], 30);
    assert!(index.observe(&name("a")).unwrap().removed.is_empty());
}

#[test]
fn the_ways_to_a_volume_follow_its_record_and_end_with_it() {
    let mut index = full();
    let mut moved = Volume::decode(&*volume("a", 20).value).unwrap();
    let spec = moved.spec.as_mut().unwrap();
    spec.driver.as_mut().unwrap().name = "other".to_owned();
    spec.secrets[0].secret = "s2".to_owned();
    let key = keys().volume(&name("a"));
    events(
        &mut index,
        Part::Volumes,
        vec![kv(key.clone(), moved.encode_to_vec(), 20)],
    );
    assert_eq!(index.of_plugin(&name("p")), [name("b")]);
    assert_eq!(index.of_plugin(&name("other")), [name("a")]);
    let secret = |text: &str, at| kv(keys().secret(&name(text)), Vec::new(), at);
    let around = |index: &mut Index, text, at| events(index, Part::Secrets, vec![secret(text, at)]);
    assert_eq!(around(&mut index, "s", 21), [Change::Around(name("b"))]);
    assert_eq!(around(&mut index, "s2", 22), [Change::Around(name("a"))]);
    assert_eq!(around(&mut index, "s2", 22), [], "known already");

    index.note(&key, Err(Revision(23)));
    assert!(!index.is_used(&name("other")) && index.driver(&name("a")).is_none());
    assert_eq!(index.count(State::Creating), 1);
    assert_eq!(around(&mut index, "s2", 24), []);
    // Its publication is still known, and is deleted by itself.
    let publication = keys().publication(&name("a"), &name("n1"));
    assert!(!index.note(&publication, Err(Revision(25))).is_empty());
    assert_eq!(
        events(&mut index, Part::Nodes, vec![node("n1", 1, "moved", 26)]),
        []
    );
    assert!(!index.has(&name("a")) && index.has(&name("b")));
}

#[test]
fn the_counts_follow_a_volume_through_its_life() {
    let mut index = full();
    let mut life = Volume::decode(&*volume("a", 20).value).unwrap();
    let key = keys().volume(&name("a"));
    let counts = |index: &mut Index, value: Vec<u8>, at| {
        events(index, Part::Volumes, vec![kv(key.clone(), value, at)]);
        State::ALL.map(|(state, _)| index.count(state))
    };
    life.status.get_or_insert_default().volume_id = "v".to_owned();
    assert_eq!(counts(&mut index, life.encode_to_vec(), 20), [1, 1, 0, 0]);
    life.status.get_or_insert_default().delete_requested = Some(prost_types::Timestamp::default());
    assert_eq!(counts(&mut index, life.encode_to_vec(), 21), [1, 0, 1, 0]);
    assert_eq!(counts(&mut index, vec![0xff], 22), [1, 0, 0, 1]);
    assert_eq!(index.driver(&name("a")), None);
}

#[test]
fn a_plugin_that_is_listed_again_unchanged_is_no_change() {
    let mut index = full();
    let plugin = |at| kv(keys().plugin(&name("p")), Vec::new(), at);
    let change = [Change::Plugin(name("p"))];
    assert_eq!(events(&mut index, Part::Plugins, vec![plugin(20)]), change);
    assert_eq!(listed(&mut index, Part::Plugins, vec![plugin(20)], 30), []);
    assert_eq!(events(&mut index, Part::Plugins, vec![plugin(31)]), change);
    assert_eq!(listed(&mut index, Part::Plugins, vec![], 40), change);
    assert!(index.plugin(&name("p")).is_none());
}

#[test]
fn what_is_older_than_what_is_known_changes_nothing() {
    let mut index = full();
    for part in [Part::Volumes, Part::Publications] {
        let key = match part {
            Part::Volumes => keys().volume(&name("a")),
            _ => keys().publication(&name("a"), &name("n1")),
        };
        let known = if part == Part::Volumes { 3 } else { 5 };
        for at in [known - 1, known] {
            let old = vec![kv(key.clone(), vec![0xff], at)];
            assert_eq!(events(&mut index, part, old), [], "{part:?} {at}");
            let gone = Event::Delete {
                key: key.clone(),
                revision: Revision(at),
            };
            assert_eq!(
                index.take_in(part, Update::Events(vec![gone])),
                [],
                "{part:?} {at}"
            );
        }
    }
    assert!(index.observe(&name("a")).unwrap().unreadable.is_empty());
}

#[test]
fn a_volume_is_touched_by_a_change_of_its_records() {
    let mut index = full();
    let since = index.changes();
    assert!(!index.touched_since(&name("a"), since));
    events(&mut index, Part::Publications, vec![publication("a", "n1", 20)]);
    assert!(index.touched_since(&name("a"), since) && !index.touched_since(&name("b"), since));
    assert!(index.touched_since(&name("c"), since), "it does not exist");
}

#[test]
fn an_unreadable_node_exists() {
    let mut index = full();
    let garbage = kv(keys().node(&name("n1")), vec![0xff, 0xff], 20);
    events(&mut index, Part::Nodes, vec![garbage]);
    let seen = index.observe(&name("a")).unwrap();
    assert_eq!(seen.nodes[&name("n1")].uid, "");
    assert_eq!(seen.nodes[&name("n1")].csi_node_id, None);
}

#[test]
fn a_secret_concerns_the_volumes_that_use_it_and_its_value_is_kept_nowhere() {
    let mut index = full();
    let secret = kv(keys().secret(&name("s")), b"xyzzy".to_vec(), 20);
    let mut changes = events(&mut index, Part::Secrets, vec![secret]);
    changes.sort_by_key(|change| format!("{change:?}"));
    assert_eq!(changes, [Change::Around(name("a")), Change::Around(name("b"))]);
    let bytes = format!("{:?}", b"xyzzy").trim_matches(['[', ']']).to_owned();
    assert!(!format!("{index:?}").contains(&bytes));
}

#[test]
fn an_unreadable_publication_exists() {
    let mut index = full();
    let key = keys().publication(&name("a"), &name("n2"));
    events(&mut index, Part::Publications, vec![kv(key, vec![0xff], 20)]);
    let seen = index.observe(&name("a")).unwrap();
    assert_eq!(seen.unreadable, [name("n2")].into());
}
