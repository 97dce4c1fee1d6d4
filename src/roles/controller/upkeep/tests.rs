use prost::Message;

use super::*;
use crate::etcd::{KeyValue, MemberId};
use crate::proto::join::Progress;
use crate::proto::{Join, JoinRequest, Member, Metadata, Node, RemovedNode};
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
    KeyValue {
        key,
        value: value.encode_to_vec(),
        create_revision: Revision(1),
        mod_revision: Revision(1),
        lease: None,
    }
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

/// Ended at second 0.
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

fn forgotten(keys_and_values: Vec<KeyValue>, second: i64) -> Vec<String> {
    let index = index(keys_and_values);
    let found = of_no_use(&index, at(second), KEEP);
    found.map(|(name, _)| name.to_string()).collect()
}

#[test]
fn a_join_that_ended_goes_with_its_node_once_nobody_looks_for_its_end_any_more() {
    let ended = [Progress::Voter, Progress::Refused, Progress::Removed];
    for progress in ended {
        assert_eq!(forgotten(vec![join("a", progress)], 100), ["a"], "{progress:?}");
        assert!(
            forgotten(vec![join("a", progress)], 99).is_empty(),
            "{progress:?}"
        );
    }
    // A later node of that name has nothing of it.
    let later = vec![join("a", Progress::Voter), node("a", "uid-of-another")];
    assert_eq!(forgotten(later, 100), ["a"]);
    let own = vec![join("a", Progress::Voter), node("a", "uid-of-a")];
    assert!(forgotten(own, 100).is_empty());
}

#[test]
fn a_join_that_something_may_become_of_stays_although_its_node_is_gone() {
    for progress in [
        Progress::Unspecified,
        Progress::Waiting,
        Progress::Adding,
        Progress::Learner,
    ] {
        assert!(
            forgotten(vec![join("a", progress)], 100).is_empty(),
            "{progress:?}"
        );
    }
    let mut asked_anew = join("a", Progress::Voter);
    let mut changed = Join::decode(&*asked_anew.value).unwrap();
    changed.answers = "of-an-earlier-request".to_owned();
    asked_anew.value = changed.encode_to_vec();
    assert!(forgotten(vec![asked_anew], 100).is_empty());
    let record = Member {
        node: "a".to_owned(),
        node_uid: "uid-of-a".to_owned(),
        ..Member::default()
    };
    let to_be_evicted = vec![join("a", Progress::Voter), kv(keys().member(MemberId(1)), record)];
    assert!(forgotten(to_be_evicted, 100).is_empty());
    let mut unreadable = node("a", "uid-of-another");
    unreadable.value = vec![0xff];
    assert!(forgotten(vec![join("a", Progress::Voter), unreadable], 100).is_empty());
}

#[test]
fn no_transaction_is_larger_than_etcd_takes() {
    let joins = (0..200).map(|number| join(&format!("n{number}"), Progress::Refused));
    let index = index(joins.collect());
    let txn = ended_joins(&index, &keys(), at(100), KEEP).unwrap();
    assert_eq!(txn.len(), BATCH);
    assert!(ended_joins(&index, &keys(), at(99), KEEP).is_none());
}

#[test]
fn what_has_expired_is_due_at_once_but_for_a_write_that_is_under_way_or_not_seen_yet_or_failed() {
    let removed = RemovedNode {
        expires_at: Some(time::to_proto(at(10))),
        ..RemovedNode::default()
    };
    let index = index(vec![kv(keys().removed("u"), removed)]);
    let mut upkeep = Upkeep::new();
    let due = |upkeep: &Upkeep| upkeep.due(&index, at(11));
    assert!(due(&upkeep).is_some_and(|due| due <= Instant::now()));
    assert!(upkeep.is_free(&index));

    upkeep.under_way.push(Box::pin(std::future::pending()));
    assert_eq!(due(&upkeep), None, "its end is heard of");
    assert!(!upkeep.is_free(&index));
    upkeep.under_way.clear();

    upkeep.ended(&Err(FencedError::Conflict));
    let rest = due(&upkeep).unwrap();
    assert!(rest > Instant::now() && !upkeep.is_free(&index), "not at once");
    upkeep.ended(&Ok(Revision(11)));
    assert_eq!(due(&upkeep), None, "the index is at 10 yet");
    assert!(!upkeep.is_free(&index));
    upkeep.ended(&Ok(Revision(10)));
    assert!(!upkeep.is_free(&index), "the later one counts");

    let mut listed_anew = Index::new(keys());
    listed_anew.take_in(Update::Page {
        first: true,
        keys: Vec::new(),
    });
    assert!(!Upkeep::new().is_free(&listed_anew));
}
