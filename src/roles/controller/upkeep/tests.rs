use futures::FutureExt;
use prost::Message;

use super::*;
use crate::etcd::{KeyValue, MemberId};
use crate::proto::join::Progress;
use crate::proto::{
    Join, JoinRequest, LastPause, Member, Metadata, Node, NodeSpec, NodeStatus, RemovedNode, Role,
};
use crate::retry::Policy;
use crate::store::Update;

const KEEP: Duration = Duration::from_secs(100);

fn keys() -> Keys {
    Keys::new("/q".parse().unwrap())
}

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn kv(key: Vec<u8>, value: impl Message) -> KeyValue {
    KeyValue::written_at(key, value.encode_to_vec(), 1)
}

fn index(keys_and_values: Vec<KeyValue>) -> Index {
    let mut index = Index::new(keys());
    index.take_in(Update::Page {
        first: true,
        keys: keys_and_values,
    });
    index.take_in(Update::Listed(Revision(10)));
    index
}

/// A join that reached this progress at second 0.
fn join(of: &str, progress: Progress) -> KeyValue {
    let join = Join {
        request: Some(JoinRequest {
            id: "r".to_owned(),
            node_uid: format!("uid-of-{of}"),
            ..JoinRequest::default()
        }),
        answers: "r".to_owned(),
        progress: progress.into(),
        changed_at: Some(time::to_proto(at(0))),
        ..Join::default()
    };
    kv(keys().join(&name(of)), join)
}

fn node(of: &str, uid: &str) -> KeyValue {
    let metadata = Metadata {
        name: of.to_owned(),
        uid: uid.to_owned(),
        ..Metadata::default()
    };
    let node = Node {
        metadata: Some(metadata),
        ..Node::default()
    };
    kv(keys().node(&name(of)), node)
}

fn removed(uid: &str) -> KeyValue {
    kv(keys().removed(uid), RemovedNode::default())
}

/// The names of the nodes whose joins are deleted at this second.
fn deleted(keys_and_values: Vec<KeyValue>, second: i64) -> Vec<String> {
    let index = index(keys_and_values);
    let units: Vec<_> = ended_joins(&index, &keys(), at(second), KEEP).collect();
    let key = |unit: &Unit| String::from_utf8(key_of(unit).to_vec()).unwrap();
    let name = |unit| key(unit).rsplit('/').next().unwrap().to_owned();
    units.iter().map(name).collect()
}

#[test]
fn an_ended_join_is_deleted_some_time_after_its_node_was_removed() {
    let ended = [Progress::Voter, Progress::Refused, Progress::Removed];
    for progress in ended {
        let removed = || vec![join("a", progress), removed("uid-of-a")];
        assert_eq!(deleted(removed(), 100), ["a"], "{progress:?}");
        assert!(deleted(removed(), 99).is_empty(), "{progress:?}");
        // INV-12: the key of the node may have been deleted by mistake.
        assert!(deleted(vec![join("a", progress)], 100).is_empty(), "{progress:?}");
    }
    // The join does not belong to a later node of that name.
    let mut later = vec![join("a", Progress::Voter), node("a", "uid-of-another")];
    assert!(deleted(later.clone(), 100).is_empty());
    later.push(removed("uid-of-a"));
    assert_eq!(deleted(later, 100), ["a"]);
    let own = vec![join("a", Progress::Voter), node("a", "uid-of-a")];
    assert!(deleted(own, 100).is_empty());
}

#[test]
fn a_join_that_may_still_lead_to_a_member_stays_although_its_node_is_gone() {
    for progress in [
        Progress::Unspecified,
        Progress::Waiting,
        Progress::Adding,
        Progress::Learner,
    ] {
        assert!(
            deleted(vec![join("a", progress), removed("uid-of-a")], 100).is_empty(),
            "{progress:?}"
        );
    }
    let mut requested_again = join("a", Progress::Voter);
    let mut changed = Join::decode(&*requested_again.value).unwrap();
    changed.answers = "of-an-earlier-request".to_owned();
    requested_again.value = changed.encode_to_vec();
    assert!(deleted(vec![requested_again, removed("uid-of-a")], 100).is_empty());
    let record = Member {
        node: "a".to_owned(),
        node_uid: "uid-of-a".to_owned(),
        ..Member::default()
    };
    let to_be_evicted = vec![
        join("a", Progress::Voter),
        kv(keys().member(MemberId(1)), record),
        removed("uid-of-a"),
    ];
    assert!(deleted(to_be_evicted, 100).is_empty());
    let mut unreadable = node("a", "uid-of-another");
    unreadable.value = vec![0xff];
    assert!(
        deleted(
            vec![join("a", Progress::Voter), unreadable, removed("uid-of-a")],
            100
        )
        .is_empty()
    );
}

#[test]
fn the_join_is_deleted_only_while_its_node_is_still_gone() {
    let of = |mut others: Vec<KeyValue>| {
        others.extend([join("a", Progress::Refused), removed("uid-of-a")]);
        index(others)
    };
    let (gone, another) = (of(Vec::new()), of(vec![node("a", "uid-of-another")]));
    for (index, revision) in [(gone, Revision::ABSENT), (another, Revision(1))] {
        let units: Vec<_> = ended_joins(&index, &keys(), at(100), KEEP).collect();
        let proof = Proof::Unchanged(keys().node(&name("a")), revision);
        let expected = Unit::new().delete(keys().join(&name("a")), Revision(1));
        assert_eq!(units, [expected.proving(proof)]);
    }
}

#[test]
fn an_expired_record_is_due_at_once_unless_its_deletion_is_under_way_unseen_or_has_failed() {
    let removed = RemovedNode {
        expires_at: Some(time::to_proto(at(10))),
        ..RemovedNode::default()
    };
    let key = keys().removed("u");
    let index = index(vec![kv(key.clone(), removed)]);
    let mut upkeep = Upkeep::new(Writer::ended(), NodeWrites::default(), &keys());
    let due = |upkeep: &Upkeep, second| upkeep.next_expiry(&index, &keys(), at(second));
    assert_eq!(due(&upkeep, 4), Some(Duration::from_secs(6)));
    assert_eq!(due(&upkeep, 11), Some(Duration::ZERO));
    assert_eq!(expired_nodes(&index, &keys(), at(9)).count(), 0);

    let keys = keys();
    let expired = || expired_nodes(&index, &keys, at(10));
    assert!(upkeep.begin_all(expired()));
    assert_eq!(due(&upkeep, 11), None, "it is under way");
    assert!(!upkeep.begin_all(expired()), "and is not begun twice");
    assert_eq!(upkeep.acts.under_way(), 1);

    upkeep.acts.failed(key.clone(), Policy::ETCD);
    assert_eq!(due(&upkeep, 11), None, "it has failed");
    upkeep.acts.done(key, Revision(11));
    upkeep.seen(Revision(10));
    assert_eq!(due(&upkeep, 11), None, "the index does not show it yet");
    upkeep.seen(Revision(11));
    assert_eq!(due(&upkeep, 11), Some(Duration::ZERO));
}

#[test]
fn a_node_becomes_a_worker_only_where_roles_were_not_paused_since_that_was_decided() {
    let roles = |desired: Role, observed: Role| Node {
        metadata: Some(Metadata {
            name: "a".to_owned(),
            uid: "uid-of-a".to_owned(),
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
    let proofs = |desired, observed| {
        let node = kv(keys().node(&name("a")), roles(desired, observed));
        let last = kv(keys().last_roles_pause(), LastPause::default());
        let index = index(vec![node, last]);
        let keys = keys();
        let made: Vec<_> = transitions(&index, &keys, |_| true).collect();
        made.iter()
            .map(|(_, unit)| unit.compares() - unit.writes().len())
            .sum::<usize>()
    };
    assert_eq!(proofs(Role::Manager, Role::Worker), 1, "the pause");
    assert_eq!(
        proofs(Role::Worker, Role::Manager),
        3,
        "and the last one, and the join"
    );
}

#[test]
fn only_writes_of_nodes_are_held_back_while_a_restriction_is_attempted() {
    let keys = keys();
    let writes = NodeWrites::default();
    let _held = writes.hold();
    let mut upkeep = Upkeep::new(Writer::ended(), writes, &keys);
    let expired = RemovedNode {
        expires_at: Some(time::to_proto(at(10))),
        ..RemovedNode::default()
    };
    let index = index(vec![kv(keys.removed("u"), expired)]);
    let node = Unit::new().put(keys.node(&name("a")), Revision(1), Vec::new());
    assert!(upkeep.begin_all(std::iter::once(node).chain(expired_nodes(&index, &keys, at(10)))));
    let ended = upkeep
        .next()
        .now_or_never()
        .expect("the deletion waits for nothing");
    assert_eq!((ended.len(), upkeep.acts.under_way()), (1, 1));
}
