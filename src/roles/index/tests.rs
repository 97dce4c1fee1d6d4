use prost::Message;

use super::*;
use crate::etcd::Event;
use crate::proto::{JoinRequest, Metadata, Node, NodeSpec, NodeStatus, RemovedNode, Role};
use crate::store::object::time::to_proto;
use crate::store::{Name, Update};

fn keys() -> Keys {
    Keys::new("/q".parse().unwrap())
}

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

fn kv(key: Vec<u8>, value: Vec<u8>, revision: i64) -> KeyValue {
    KeyValue {
        key,
        value,
        create_revision: Revision(revision),
        mod_revision: Revision(revision),
        lease: None,
    }
}

fn node(text: &str, desired: Role, observed: Role, revision: i64) -> KeyValue {
    let node = Node {
        metadata: Some(Metadata {
            name: text.to_owned(),
            uid: format!("uid-{text}"),
            ..Metadata::default()
        }),
        spec: Some(NodeSpec {
            desired_role: desired.into(),
            ..NodeSpec::default()
        }),
        status: Some(NodeStatus {
            role: observed.into(),
            ..NodeStatus::default()
        }),
    };
    kv(keys().node(&name(text)), node.encode_to_vec(), revision)
}

fn record(id: u64, node: &str, uid: &str, revision: i64) -> KeyValue {
    let member = Member {
        node: node.to_owned(),
        node_uid: uid.to_owned(),
        ..Member::default()
    };
    kv(keys().member(MemberId(id)), member.encode_to_vec(), revision)
}

fn index(keys_and_values: Vec<KeyValue>) -> Index {
    let mut index = Index::new(keys());
    index.take_in(Update::Page {
        first: true,
        keys: keys_and_values,
    });
    assert!(!index.is_complete());
    index.take_in(Update::Listed(Revision(50)));
    index
}

fn mismatches(index: &Index) -> Vec<&str> {
    index.role_mismatches().map(|(name, ..)| name).collect()
}

#[test]
fn nodes_whose_roles_differ_are_found_until_the_observed_one_follows() {
    let mut index = index(vec![
        node("a", Role::Manager, Role::Worker, 1),
        node("b", Role::Worker, Role::Worker, 2),
        node("c", Role::Worker, Role::Manager, 3),
    ]);
    assert_eq!(mismatches(&index), ["a", "c"]);
    index.take_in(Update::Events(vec![
        Event::Put(node("a", Role::Manager, Role::Manager, 51)),
        Event::Delete {
            key: keys().node(&name("c")),
            revision: Revision(52),
        },
    ]));
    assert_eq!((mismatches(&index), index.revision()), (vec![], Revision(52)));
    // What a new list does not show was deleted.
    index.take_in(Update::Page {
        first: true,
        keys: vec![node("b", Role::Manager, Role::Worker, 60)],
    });
    index.take_in(Update::Listed(Revision(60)));
    assert_eq!(mismatches(&index), ["b"]);
    assert!(index.node("a").is_none());
}

#[test]
fn a_record_belongs_to_the_node_with_its_uid_and_to_no_other_of_that_name() {
    let garbage = kv(keys().node(&name("bad")), vec![0xff], 1);
    let index = index(vec![
        node("a", Role::Manager, Role::Manager, 1),
        garbage,
        record(1, "a", "uid-a", 2),
        record(2, "a", "uid-of-an-earlier-a", 3),
        record(3, "gone", "uid-gone", 4),
        record(4, "bad", "uid-bad", 5),
        record(5, "a", "", 6),
        kv(keys().member(MemberId(6)), vec![0xff], 7),
        record(7, "gone", "uid-removed", 8),
        kv(keys().removed("uid-removed"), Vec::new(), 9),
    ]);
    let owner = |id| index.owner(index.record(MemberId(id)).unwrap().0);
    assert!(matches!(owner(1), Owner::Node(..)));
    assert_eq!([owner(2), owner(3)], [Owner::Missing, Owner::Missing]);
    assert_eq!(owner(7), Owner::Removed);
    assert_eq!([owner(4), owner(5)], [Owner::Unknown, Owner::Unknown]);
    assert!(index.record(MemberId(6)).is_none());
    assert!(
        index.may_be_member("any"),
        "the unreadable record may belong to it"
    );
}

#[test]
fn a_node_may_be_a_member_while_an_add_for_it_is_under_way() {
    let joining = |progress: Progress| {
        let join = Join {
            request: Some(JoinRequest::default()),
            progress: progress.into(),
            ..Join::default()
        };
        index(vec![kv(keys().join(&name("a")), join.encode_to_vec(), 1)])
    };
    assert!(joining(Progress::Adding).may_be_member("a"));
    assert!(joining(Progress::Learner).may_be_member("a"));
    assert!(!joining(Progress::Waiting).may_be_member("a"));
    assert!(!joining(Progress::Adding).may_be_member("b"));
}

#[test]
fn removed_nodes_are_known_until_they_expire_and_for_ever_without_an_expiry() {
    let removed = |uid: &str, expiry: Option<i64>, revision| {
        let value = RemovedNode {
            expires_at: expiry.map(|second| to_proto(Timestamp::from_second(second).unwrap())),
            ..RemovedNode::default()
        };
        kv(keys().removed(uid), value.encode_to_vec(), revision)
    };
    let mut index = index(vec![
        removed("early", Some(10), 1),
        removed("late", Some(20), 2),
        removed("never", None, 3),
    ]);
    let at = |second| Timestamp::from_second(second).unwrap();
    assert_eq!(
        index.expiring().collect::<Vec<_>>(),
        [(at(10), "early", Revision(1)), (at(20), "late", Revision(2))]
    );
    // A record with a new expiry is not kept under the old one as well.
    index.take_in(Update::Events(vec![Event::Put(removed("early", Some(30), 51))]));
    assert_eq!(
        index.expiring().collect::<Vec<_>>(),
        [(at(20), "late", Revision(2)), (at(30), "early", Revision(51))]
    );
    assert!(index.is_removed("never") && index.removed_len() == 3);
}

#[test]
fn a_pause_that_begins_and_ends_in_one_update_is_a_resumption() {
    let mut index = index(Vec::new());
    let pause = keys().roles_pause();
    let put = |revision| Event::Put(kv(pause.clone(), Vec::new(), revision));
    index.take_in(Update::Events(vec![put(51)]));
    assert_eq!((index.is_paused(), index.resumptions()), (true, 0));
    let deleted = |revision| Event::Delete {
        key: pause.clone(),
        revision: Revision(revision),
    };
    let relevant = index.take_in(Update::Events(vec![deleted(52), put(53), deleted(54)]));
    assert!(relevant);
    assert_eq!((index.is_paused(), index.resumptions()), (false, 2));
}

#[test]
fn a_pause_that_begins_and_ends_between_two_lists_is_a_resumption() {
    let mut index = index(Vec::new());
    let last = |revision| vec![kv(keys().last_roles_pause(), Vec::new(), revision)];
    let mut list = |revision, keys| {
        index.take_in(Update::Page { first: true, keys });
        index.take_in(Update::Listed(Revision(revision)));
        (index.resumptions(), index.last_pause())
    };
    assert_eq!(list(51, Vec::new()), (0, Revision::ABSENT));
    assert_eq!(list(60, last(55)), (1, Revision(55)));
    assert_eq!(list(70, last(55)), (1, Revision(55)), "it is known");
    assert_eq!(list(80, Vec::new()), (1, Revision::ABSENT));
}
