//! Volumes whose records have one id.

use prost::Message;

use super::*;
use crate::proto::{Backend, Condition, PluginSpec};

/// The record of a volume with the id `vol-1` at the plugin, with `message` in a condition.
fn with_id(text: &str, message: &str, revision: i64) -> KeyValue {
    let mut stored = volume(text, revision);
    let mut volume = Volume::decode(&*stored.value).unwrap();
    let status = volume.status.get_or_insert_default();
    status.volume_id = "vol-1".to_owned();
    status.conditions.push(Condition {
        message: message.to_owned(),
        ..Default::default()
    });
    stored.value = volume.encode_to_vec();
    stored
}

/// INV-9: two volumes that fail do not wake each other.
#[test]
fn the_records_of_volumes_with_one_id_are_news_for_each_other_only_in_what_they_share() {
    let mut index = full();
    let note = |index: &mut Index, kv: &KeyValue| index.note(&kv.key, Ok(kv));
    let record = |text: &str, revision| Change::Record(name(text), Revision(revision));
    let around = |text: &str| Change::Around(name(text));
    assert_eq!(note(&mut index, &with_id("a", "x", 10)), [record("a", 10)]);
    let shared = note(&mut index, &with_id("b", "x", 11));
    assert_eq!(shared, [record("b", 11), around("a")]);
    let failed = note(&mut index, &with_id("b", "y", 12));
    assert_eq!(failed, [record("b", 12)]);
    let twin = index.observe(&name("b")).unwrap().twin.unwrap();
    assert!(twin.has_id && twin.name == name("a") && twin.node_ids.is_empty());
    // The leader's own deletion is news as well.
    let gone = index.note(&keys().volume(&name("b")), Err(Revision(13)));
    assert_eq!(gone, [record("b", 13), around("a")]);
    assert_eq!(index.observe(&name("a")).unwrap().twin, None);
}

/// Every volume is planned after them, and there may be many.
#[test]
fn the_first_lists_say_nothing_of_the_volumes_around_and_show_what_they_share() {
    let mut index = Index::new(keys());
    let records = vec![with_id("a", "x", 3), with_id("b", "x", 4)];
    let changes = listed(&mut index, Part::Volumes, records, 9);
    let record = |text: &str, revision| Change::Record(name(text), Revision(revision));
    assert_eq!(changes, [record("a", 3), record("b", 4)]);
    for part in Part::ALL.into_iter().filter(|part| *part != Part::Volumes) {
        listed(&mut index, part, vec![], 9);
    }
    assert!(index.is_complete());
    assert_eq!(index.observe(&name("a")).unwrap().twin.unwrap().name, name("b"));
    let after = events(&mut index, Part::Volumes, vec![with_id("c", "x", 10)]);
    let around = |text: &str| Change::Around(name(text));
    assert_eq!(after, [record("c", 10), around("a"), around("b")]);
}

/// With the plugin at `unix:///now`.
fn with_plugin() -> Index {
    let mut index = full();
    let plugin = Plugin {
        metadata: metadata("p"),
        spec: Some(PluginSpec {
            endpoint: "unix:///now".to_owned(),
            ..Default::default()
        }),
    };
    let plugin = kv(keys().plugin(&name("p")), plugin.encode_to_vec(), 9);
    events(&mut index, Part::Plugins, vec![plugin]);
    index
}

fn made_at(mut stored: KeyValue, endpoint: &str) -> KeyValue {
    let mut volume = Volume::decode(&*stored.value).unwrap();
    volume.status.as_mut().unwrap().backend = Some(Backend {
        endpoint: endpoint.to_owned(),
        ..Default::default()
    });
    stored.value = volume.encode_to_vec();
    stored
}

#[test]
fn a_volume_that_takes_its_name_as_its_id_is_planned_again_once_the_one_with_that_id_is_elsewhere() {
    let mut index = with_plugin();
    let mut named = with_id("b", "x", 10);
    let mut volume = Volume::decode(&*named.value).unwrap();
    volume.status.as_mut().unwrap().volume_id = "a".to_owned();
    named.value = volume.encode_to_vec();
    let around = Change::Around(name("a"));
    let news = |changes: &[Change]| changes.contains(&around);
    let at = |index: &mut Index, revision, endpoint| {
        let mut kv = made_at(named.clone(), endpoint);
        kv.mod_revision = Revision(revision);
        index.note(&kv.key, Ok(&kv))
    };
    assert!(news(&at(&mut index, 10, "unix:///now")));
    assert!(!news(&at(&mut index, 11, "unix:///now")));
    assert!(news(&at(&mut index, 12, "unix:///former")));
}

/// INV-6: one id at two backends is two volumes.
#[test]
fn volumes_with_one_id_at_two_backends_are_not_taken_for_one() {
    let mut index = with_plugin();
    let elsewhere = made_at(with_id("b", "x", 11), "unix:///former");
    for kv in [with_id("a", "x", 10), elsewhere] {
        index.note(&kv.key, Ok(&kv));
    }
    assert_eq!(index.observe(&name("a")).unwrap().twin, None);
    assert_eq!(index.observe(&name("b")).unwrap().twin, None);
}

/// INV-12: the volume may still be there.
#[test]
fn a_record_that_can_no_longer_be_read_keeps_the_id_that_it_had() {
    let mut index = full();
    let (a, b) = (with_id("a", "x", 10), with_id("b", "x", 11));
    for kv in [&a, &b, &kv(b.key.clone(), vec![0xff, 0xff], 12)] {
        index.note(&kv.key, Ok(kv));
    }
    let twin = index.observe(&name("a")).unwrap().twin.unwrap();
    assert!(twin.has_id && twin.unreadable && twin.name == name("b"));
    let lost = Volume::decode(&*b.value).unwrap();
    assert!(index.claiming(&lost).contains(&name("b")) && index.is_unreadable(&name("b")));
    assert!(!index.is_unreadable(&name("a")));
    // What waited for it is planned again once it can be read, though nothing else has changed.
    let again = index.note(&b.key, Ok(&with_id("b", "x", 13)));
    assert_eq!(
        again,
        [Change::Record(name("b"), Revision(13)), Change::Around(name("a"))]
    );
}
