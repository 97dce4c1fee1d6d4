//! Records of others for which volumes wait.

use super::*;

/// What an operation has read may be older than what the index knows, or later.
#[test]
fn a_record_that_was_read_has_changed_once_a_later_state_of_it_is_known_or_its_end() {
    let mut index = full();
    let (tombstone, volume) = (Awaited::Tombstone(name("t")), Awaited::Volume(name("a")));
    assert!(
        !index.has_changed(&tombstone, Revision(20)),
        "it is still to come"
    );
    let put = |at| kv(keys().tombstone(&name("t")), Vec::new(), at);
    events(&mut index, Part::Tombstones, vec![put(20)]);
    assert!(!index.has_changed(&tombstone, Revision(20)));
    assert!(
        !index.has_changed(&tombstone, Revision(21)),
        "the index is behind"
    );
    events(&mut index, Part::Tombstones, vec![put(22)]);
    assert!(index.has_changed(&tombstone, Revision(20)));
    deleted(&mut index, Part::Tombstones, keys().tombstone(&name("t")), 23);
    assert!(index.has_changed(&tombstone, Revision(22)));
    assert!(!index.has_changed(&tombstone, Revision(24)), "it was made again");
    let again = Update::Page {
        first: true,
        keys: Vec::new(),
    };
    index.take_in(Part::Tombstones, again);
    assert!(index.has_changed(&tombstone, Revision(22)), "it is listed again");

    assert!(!index.has_changed(&volume, Revision(3)) && index.has_changed(&volume, Revision(2)));
    listed(&mut index, Part::Volumes, vec![], 30);
    assert!(index.has_changed(&volume, Revision(3)));
}

#[test]
fn the_keys_of_volumes_and_tombstones_are_those_for_which_others_wait() {
    let of = |key: Vec<u8>| Awaited::of_key(&keys(), &key);
    assert_eq!(
        of(keys().tombstone(&name("t"))),
        Some(Awaited::Tombstone(name("t")))
    );
    assert_eq!(of(keys().volume(&name("a"))), Some(Awaited::Volume(name("a"))));
    assert_eq!(of(keys().secret(&name("s"))), None);
    let no_name = [keys().volume(&name("a")), b"_".to_vec()].concat();
    assert_eq!(of(no_name), None, "no object can have it");
}
