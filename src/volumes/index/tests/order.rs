//! The leader's own writes, lists and events, in whatever order they come.

use super::*;

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
fn a_list_deletes_what_it_does_not_show_but_not_what_was_written_after_it() {
    let mut index = full();
    let written = volume("b", 30);
    index.note(&written.key.clone(), Ok(&written));
    let changes = listed(&mut index, Part::Volumes, vec![], 20);
    assert_eq!(changes, [Change::Record(name("a"), Revision(20))]);
    assert!(index.observe(&name("a")).is_none() && index.observe(&name("b")).is_some());
    assert_eq!(index.count(State::Creating), 1);
}

/// INV-11: as after a restore that no one has noticed, where the store has come past what was known.
#[test]
fn what_a_list_shows_replaces_what_was_known_before_it_although_that_was_written_later() {
    let mut index = full();
    let known = vec![publication("a", "n1", 15), publication("a", "n2", 25)];
    events(&mut index, Part::Publications, known);
    let own = publication("a", "n3", 35);
    index.note(&own.key.clone(), Ok(&own));
    events(&mut index, Part::Nodes, vec![node("n1", 1, "later", 16)]);
    events(&mut index, Part::Volumes, vec![volume("a", 17)]);
    index.note(&keys().volume(&name("b")), Err(Revision(18)));

    assert!(!index.went_back());
    let shown = ["n1", "n2", "n3"].map(|node| publication("a", node, 12));
    let changes = listed(&mut index, Part::Publications, shown.to_vec(), 20);
    assert!(index.went_back());
    let seen = index.observe(&name("a")).unwrap();
    let revisions = ["n1", "n2", "n3"].map(|node| seen.revisions[&name(node)].0);
    assert_eq!(revisions, [12, 25, 35], "an own write may be later than the list");
    assert_eq!(changes, [Change::Record(name("a"), Revision(12))]);
    listed(&mut index, Part::Nodes, vec![node("n1", 1, "csi-n1", 6)], 20);
    listed(
        &mut index,
        Part::Volumes,
        vec![volume("a", 3), volume("b", 4)],
        20,
    );
    let seen = index.observe(&name("a")).unwrap();
    assert_eq!(seen.revision, Revision(3));
    assert_eq!(seen.nodes[&name("n1")].mod_revision, Revision(6));
    assert!(index.observe(&name("b")).is_some(), "it exists in this history");
    // A list that was not read to its end says nothing.
    events(&mut index, Part::Publications, vec![publication("a", "n1", 45)]);
    let page = |keys| Update::Page { first: true, keys };
    index.take_in(Part::Publications, page(vec![publication("a", "n1", 12)]));
    index.take_in(Part::Publications, page(vec![publication("a", "n1", 45)]));
    index.take_in(Part::Publications, Update::Listed(Revision(50)));
    assert_eq!(
        index.observe(&name("a")).unwrap().revisions[&name("n1")],
        Revision(45)
    );
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
    let gone = keys().volume(&name("b"));
    assert_eq!(deleted(&mut index, Part::Volumes, gone, 30), []);
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
            let gone = deleted(&mut index, part, key.clone(), at);
            assert_eq!(gone, [], "{part:?} {at}");
        }
    }
    assert!(index.observe(&name("a")).unwrap().unreadable.is_empty());
}
