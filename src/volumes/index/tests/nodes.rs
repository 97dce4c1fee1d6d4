//! Nodes, and records of removed ones.

use super::*;
use crate::proto::RemovedNode;

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
fn a_volume_is_published_to_the_nodes_of_its_own_publications() {
    let mut index = full();
    let (a, n1) = (name("a"), name("n1"));
    assert!(index.is_published_to(&a, &n1));
    assert!(!index.is_published_to(&name("b"), &n1) && !index.is_published_to(&a, &name("n2")));
    deleted(&mut index, Part::Publications, keys().publication(&a, &n1), 10);
    assert!(!index.is_published_to(&a, &n1));
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
    let mut drained = node("n1", 2, "other", 22);
    let mut value = Node::decode(&*drained.value).unwrap();
    value.spec.as_mut().unwrap().set_availability(Availability::Drain);
    drained.value = value.encode_to_vec();
    assert_eq!(events(&mut index, Part::Nodes, vec![drained]), around);
    let seen = index.observe(&name("a")).unwrap();
    assert_eq!(seen.nodes[&name("n1")].availability, Availability::Drain);
    let gone = keys().node(&name("n1"));
    assert_eq!(deleted(&mut index, Part::Nodes, gone, 23), around);
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
fn an_unreadable_node_exists() {
    let mut index = full();
    let garbage = kv(keys().node(&name("n1")), vec![0xff, 0xff], 20);
    events(&mut index, Part::Nodes, vec![garbage]);
    let seen = index.observe(&name("a")).unwrap();
    assert_eq!(seen.nodes[&name("n1")].uid, "");
    assert_eq!(seen.nodes[&name("n1")].csi_node_id, None);
}

/// Where an intent was refused, the operation has read the node before the watch delivers it.
#[test]
fn a_node_that_an_operation_has_read_is_known_at_once_and_nothing_older_replaces_it() {
    let mut index = full();
    let around = [Change::Around(name("a"))];
    let read = node("n1", 1, "other", 20);
    assert_eq!(index.note(&read.key, Ok(&read)), around);
    let revision = |index: &Index| {
        let seen = index.observe(&name("a")).unwrap();
        seen.nodes.get(&name("n1")).map(|node| node.mod_revision)
    };
    assert_eq!(
        events(&mut index, Part::Nodes, vec![node("n1", 1, "csi-n1", 19)]),
        []
    );
    let gone = |at| Event::Delete {
        key: keys().node(&name("n1")),
        revision: Revision(at),
    };
    assert_eq!(index.take_in(Part::Nodes, Update::Events(vec![gone(18)])), []);
    assert_eq!(revision(&index), Some(Revision(20)));
    assert_eq!(
        events(&mut index, Part::Nodes, vec![node("n1", 1, "other", 20)]),
        []
    );
    assert_eq!(index.note(&read.key, Err(Revision(25))), around);
    assert_eq!(
        events(&mut index, Part::Nodes, vec![node("n1", 1, "other", 24)]),
        []
    );
    assert_eq!(revision(&index), None);
    let again = vec![node("n1", 1, "other", 26)];
    assert_eq!(events(&mut index, Part::Nodes, again), around);
}
