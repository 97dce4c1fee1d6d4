//! The records of volumes, and the ways to them.

use super::*;

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
    let users = |index: &Index, secret| Vec::from_iter(index.of_secret(&name(secret)));
    assert_eq!(users(&index, "s"), [name("b")]);
    assert_eq!(users(&index, "s2"), [name("a")]);

    index.note(&key, Err(Revision(23)));
    assert!(!index.is_used(&name("other")) && index.driver(&name("a")).is_none());
    assert_eq!(index.count(State::Creating), 1);
    assert!(users(&index, "s2").is_empty());
    // Its publication is still known, and is deleted by itself.
    let publication = keys().publication(&name("a"), &name("n1"));
    assert!(!index.note(&publication, Err(Revision(25))).is_empty());
    assert_eq!(
        events(&mut index, Part::Nodes, vec![node("n1", 1, "moved", 26)]),
        []
    );
    assert_eq!(index.names(), [name("b")]);
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
fn a_volume_is_touched_by_a_change_of_its_records() {
    let mut index = full();
    let since = index.changes();
    assert!(!index.touched_since(&name("a"), since));
    events(&mut index, Part::Publications, vec![publication("a", "n1", 20)]);
    assert!(index.touched_since(&name("a"), since) && !index.touched_since(&name("b"), since));
    assert!(index.touched_since(&name("c"), since), "it does not exist");
}

#[test]
fn an_unreadable_publication_exists() {
    let mut index = full();
    let key = keys().publication(&name("a"), &name("n2"));
    events(&mut index, Part::Publications, vec![kv(key, vec![0xff], 20)]);
    let seen = index.observe(&name("a")).unwrap();
    assert_eq!(seen.unreadable, [name("n2")].into());
}
