//! Secrets and tombstones, of which only the revisions are kept.

use super::*;

#[test]
fn a_secret_concerns_the_volumes_that_use_it_and_its_value_is_kept_nowhere() {
    let mut index = full();
    let secret = |at| kv(keys().secret(&name("s")), b"xyzzy".to_vec(), at);
    let change = [Change::Secret(name("s"))];
    assert_eq!(events(&mut index, Part::Secrets, vec![secret(20)]), change);
    assert_eq!(
        events(&mut index, Part::Secrets, vec![secret(20)]),
        [],
        "known already"
    );
    assert_eq!(
        BTreeSet::from_iter(index.of_secret(&name("s"))),
        [name("a"), name("b")].into()
    );
    let bytes = format!("{:?}", b"xyzzy").trim_matches(['[', ']']).to_owned();
    assert!(!format!("{index:?}").contains(&bytes));
}

#[test]
fn a_tombstone_is_a_change_when_it_is_written_or_goes_and_its_value_is_kept_nowhere() {
    let mut index = full();
    let tombstone = |at| kv(keys().tombstone(&name("t")), b"xyzzy".to_vec(), at);
    let change = [Change::Tombstone(name("t"))];
    assert_eq!(events(&mut index, Part::Tombstones, vec![tombstone(20)]), change);
    assert_eq!(listed(&mut index, Part::Tombstones, vec![tombstone(20)], 30), []);
    assert_eq!(events(&mut index, Part::Tombstones, vec![tombstone(31)]), change);
    let bytes = format!("{:?}", b"xyzzy").trim_matches(['[', ']']).to_owned();
    assert!(!format!("{index:?}").contains(&bytes));
    assert_eq!(listed(&mut index, Part::Tombstones, vec![], 40), change);
}
