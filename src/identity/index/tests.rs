use prost::Message;

use super::*;
use crate::etcd::Event;
use crate::proto::node_certificate::State;
use crate::proto::{
    CertificateRequest, IssuedCertificate, Join, JoinRequest, Member, Metadata, Node, NodeCertificate,
    NodeSpec, NodeStatus, Promotion, Readdress, Removal, RevocationList,
};

const NODE: AuthorityKind = AuthorityKind::Node;

fn keys() -> Keys {
    Keys::new("/quorate".parse().unwrap())
}

fn kv(key: Vec<u8>, value: Vec<u8>, revision: i64) -> KeyValue {
    KeyValue::written_at(key, value, revision)
}

fn node(uid: &str, role: Role, revision: i64) -> KeyValue {
    let node = Node {
        metadata: Some(Metadata::new("n1", uid, jiff::Timestamp::UNIX_EPOCH)),
        spec: Some(NodeSpec::default()),
        status: Some(NodeStatus {
            role: role.into(),
            ..NodeStatus::default()
        }),
    };
    kv(
        keys().node(&"n1".parse().unwrap()),
        node.encode_to_vec(),
        revision,
    )
}

fn record(uid: &str, state: State, revision: i64) -> KeyValue {
    let record = NodeCertificate {
        node: "n1".to_owned(),
        state: state.into(),
        request: Some(CertificateRequest::default()),
        chain: "chain".to_owned(),
        ..NodeCertificate::default()
    };
    kv(keys().certificate(uid), record.encode_to_vec(), revision)
}

fn listed(contents: Vec<KeyValue>) -> Index {
    let mut index = Index::new(keys());
    index.take_in(Update::Page {
        first: true,
        keys: contents,
    });
    index.take_in(Update::Listed(Revision(9)));
    index
}

fn node_of<'i>(index: &'i Index, uid: &str) -> Option<RecordedNode<'i>> {
    let mut pending = index.pending(NODE);
    pending.find(|(of, ..)| *of == uid).map(|(_, _, holder)| holder)
}

#[test]
fn a_pending_request_comes_with_its_node_as_it_is_now() {
    let mut index = listed(vec![record("u", State::Pending, 3), node("u", Role::Worker, 4)]);
    let Some(RecordedNode::Node(facts)) = node_of(&index, "u") else {
        panic!("{index:?}");
    };
    assert_eq!((facts.observed, facts.revision), (Role::Worker, Revision(4)));
    index.take_in(Update::Events(vec![Event::Put(node("u", Role::Manager, 10))]));
    let Some(RecordedNode::Node(facts)) = node_of(&index, "u") else {
        panic!("{index:?}");
    };
    assert_eq!((facts.observed, facts.revision), (Role::Manager, Revision(10)));
    index.take_in(Update::Events(vec![Event::Put(record("u", State::Issued, 11))]));
    assert_eq!(node_of(&index, "u"), None);
    let kept = index.records(NODE).get("u").unwrap();
    assert_eq!((&*kept.stored, kept.value.request.as_ref()), (&[][..], None));
    let pending = record("u", State::Pending, 12);
    let stored = pending.value.clone();
    index.take_in(Update::Events(vec![Event::Put(pending)]));
    assert_eq!(*index.records(NODE).get("u").unwrap().stored, stored);
}

#[test]
fn a_node_of_another_uid_is_another_node() {
    let index = listed(vec![
        record("old", State::Pending, 3),
        node("new", Role::Worker, 4),
    ]);
    assert_eq!(node_of(&index, "old"), Some(RecordedNode::Missing));
}

#[test]
fn a_removed_uid_counts_before_any_node_and_an_unreadable_node_is_no_missing_one() {
    let removed = kv(keys().removed("u"), Vec::new(), 5);
    let contents = vec![
        record("u", State::Pending, 3),
        node("u", Role::Worker, 4),
        removed,
    ];
    assert_eq!(node_of(&listed(contents), "u"), Some(RecordedNode::Removed));
    let mut garbage = node("u", Role::Worker, 4);
    garbage.value = vec![0xff];
    let index = listed(vec![record("u", State::Pending, 3), garbage]);
    assert_eq!(node_of(&index, "u"), Some(RecordedNode::Unreadable));
}

#[test]
fn what_a_later_list_does_not_show_is_gone() {
    let mut index = listed(vec![record("u", State::Pending, 3), node("u", Role::Worker, 4)]);
    index.take_in(Update::Page {
        first: true,
        keys: vec![record("u", State::Pending, 3)],
    });
    assert!(!index.synced().is_complete());
    index.take_in(Update::Listed(Revision(20)));
    assert_eq!(node_of(&index, "u"), Some(RecordedNode::Missing));
    let garbage = kv(keys().certificate("u"), vec![0xff], 21);
    index.take_in(Update::Events(vec![Event::Put(garbage)]));
    assert!(!index.records(NODE).is_pending("u"));
    assert_eq!(index.records(NODE).states().collect::<Vec<_>>(), [None]);
    let gone = Event::Delete {
        key: keys().certificate("u"),
        revision: Revision(22),
    };
    index.take_in(Update::Events(vec![gone]));
    assert_eq!(index.records(NODE).states().count(), 0);
}

#[test]
fn a_certificate_that_was_issued_has_an_end_and_a_request_has_none() {
    let issued = NodeCertificate {
        state: State::Rotate.into(),
        not_after: Some(prost_types::Timestamp {
            seconds: 77,
            nanos: 0,
        }),
        ..NodeCertificate::default()
    };
    let contents = vec![
        record("u", State::Pending, 3),
        kv(keys().certificate("v"), issued.encode_to_vec(), 4),
        kv(keys().certificate("w"), vec![0xff], 5),
    ];
    assert_eq!(listed(contents).records(NODE).ends().collect::<Vec<_>>(), [77]);
}

/// The record of the etcd of node n1, with one certificate.
fn etcd(uid: &str, revision: i64) -> KeyValue {
    let record = NodeCertificate {
        node: "n1".to_owned(),
        issued: vec![IssuedCertificate {
            serial: uid.as_bytes().to_vec(),
            not_after: None,
        }],
        ..NodeCertificate::default()
    };
    kv(keys().etcd_certificate(uid), record.encode_to_vec(), revision)
}

fn owed(index: &Index) -> Vec<&str> {
    index.owed().map(|owed| owed.uid).collect()
}

/// INV-12.
#[test]
fn certificates_are_owed_by_workers_and_removed_nodes_and_by_none_that_is_merely_out_of_sight() {
    let none: [&str; 0] = [];
    let mut index = listed(vec![etcd("u", 3), node("u", Role::Manager, 4)]);
    assert_eq!(owed(&index), none);
    index.take_in(Update::Events(vec![Event::Put(node("u", Role::Worker, 10))]));
    assert_eq!(owed(&index), ["u"]);
    assert_eq!(index.left_behind().count(), 0);
    let gone = Event::Delete {
        key: keys().node(&"n1".parse().unwrap()),
        revision: Revision(11),
    };
    index.take_in(Update::Events(vec![gone]));
    assert_eq!(owed(&index), none, "missing");
    let mut garbage = node("u", Role::Worker, 12);
    garbage.value = vec![0xff];
    index.take_in(Update::Events(vec![Event::Put(garbage)]));
    assert_eq!(owed(&index), none, "unreadable");
    let removed = kv(keys().removed("u"), Vec::new(), 13);
    index.take_in(Update::Events(vec![Event::Put(removed)]));
    assert_eq!(owed(&index), ["u"]);
    let left: Vec<_> = index.left_behind().map(|(uid, _, at)| (uid, at)).collect();
    assert_eq!(left, [("u", Revision(13))]);
}

#[test]
fn a_join_is_in_force_with_its_member_and_the_joins_of_workers_claim_nothing() {
    let name: crate::store::Name = "n2".parse().unwrap();
    let urls = vec!["https://10.0.0.1:2380".to_owned()];
    let member = Member {
        node: "n1".to_owned(),
        node_uid: "u".to_owned(),
        ..Member::default()
    };
    let join = |uid: &str| Join {
        request: Some(JoinRequest {
            node_uid: uid.to_owned(),
            peer_urls: urls.clone(),
            ..JoinRequest::default()
        }),
        ..Join::default()
    };
    let own = kv(keys().join(&"n1".parse().unwrap()), join("u").encode_to_vec(), 5);
    let other = kv(keys().join(&name), join("u2").encode_to_vec(), 6);
    let member = kv(keys().member(MemberId(7)), member.encode_to_vec(), 7);
    let of_other = Member {
        node: "n2".to_owned(),
        node_uid: "u2".to_owned(),
        ..Member::default()
    };
    let of_other = kv(keys().member(MemberId(8)), of_other.encode_to_vec(), 8);
    let mut index = listed(vec![node("u", Role::Manager, 4), own, other, member, of_other]);
    let joined = index.joined("n1", "u").unwrap();
    assert_eq!(
        (joined.member, joined.join),
        ((MemberId(7), Revision(7)), Revision(5))
    );
    let manager = Node {
        metadata: Some(Metadata::new("n2", "u2", jiff::Timestamp::UNIX_EPOCH)),
        status: Some(NodeStatus {
            role: Role::Manager.into(),
            ..NodeStatus::default()
        }),
        ..Node::default()
    };
    let manager = kv(keys().node(&name), manager.encode_to_vec(), 20);
    index.take_in(Update::Events(vec![Event::Put(manager)]));
    let refused = index.joined("n1", "u").unwrap_err();
    assert_eq!(refused.word(), "HostTaken");
    let forgotten = Event::Delete {
        key: keys().member(MemberId(7)),
        revision: Revision(21),
    };
    index.take_in(Update::Events(vec![forgotten]));
    assert_eq!(index.joined("n1", "u"), Err(Refusal::NotJoined));
}

#[test]
fn a_record_that_cannot_be_read_counts_once_its_node_is_a_worker_or_removed() {
    let record = kv(keys().etcd_certificate("u"), vec![0xff], 3);
    let index = |others: Vec<KeyValue>| listed([vec![record.clone()], others].concat());
    let removed = kv(keys().removed("u"), Vec::new(), 5);
    for (others, unknown) in [
        (vec![], None),
        (vec![node("u", Role::Manager, 4)], None),
        (vec![node("another", Role::Worker, 4)], None),
        (vec![node("u", Role::Worker, 4)], Some(("u", "n1"))),
        (vec![removed], Some(("u", "u"))),
    ] {
        let index = index(others);
        assert_eq!(index.unknown().next(), unknown, "{index:?}");
    }
}

#[test]
fn a_list_of_revoked_certificates_that_a_later_listing_does_not_show_is_gone() {
    let list = RevocationList::default().encode_to_vec();
    let mut index = listed(vec![kv(keys().revocation_list(), list, 5)]);
    assert_eq!(index.revocation().revision(), Revision(5));
    index.take_in(Update::Page {
        first: true,
        keys: Vec::new(),
    });
    index.take_in(Update::Listed(Revision(20)));
    assert_eq!(*index.revocation(), List::Absent);
}

/// INV-5, INV-12.
#[test]
fn a_record_of_a_member_holds_the_changes_that_are_decided_and_may_hold_any_where_it_cannot_be_read() {
    let intents = |value: Vec<u8>| {
        let index = listed(vec![kv(keys().member(MemberId(7)), value, 5)]);
        let intents = index.intents();
        assert_eq!(intents.len(), 1);
        let of = intents[&MemberId(7)];
        (of.leaves_or_moves, of.is_promoted)
    };
    let stored = |change: fn(&mut Member)| {
        let mut member = Member {
            node: "n1".to_owned(),
            node_uid: "u".to_owned(),
            ..Member::default()
        };
        change(&mut member);
        member.encode_to_vec()
    };
    assert_eq!(intents(stored(|_| {})), (false, false));
    let leaves = stored(|member| member.removal = Some(Removal::default()));
    assert_eq!(intents(leaves), (true, false));
    let moves = stored(|member| member.readdress = Some(Readdress::default()));
    assert_eq!(intents(moves), (true, false));
    let promoted = stored(|member| member.promotion = Some(Promotion::default()));
    assert_eq!(intents(promoted), (false, true));
    assert_eq!(intents(vec![0xff]), (true, true));
}
