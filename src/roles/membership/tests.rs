use prost::Message;

use super::*;
use crate::etcd::{KeyValue, Revision};
use crate::proto::join::Progress;
use crate::proto::{
    JoinRequest, Member as StoredMember, Metadata, Node, NodeSpec, NodeStatus, Promotion, RemovedNode,
};
use crate::store::{Keys, Update};

pub(crate) mod fixtures;

const LEADING: MemberId = MemberId(1);

fn keys() -> Keys {
    Keys::new("/q".parse().unwrap())
}

fn kv(key: Vec<u8>, value: impl Message, revision: i64) -> KeyValue {
    KeyValue {
        key,
        value: value.encode_to_vec(),
        create_revision: Revision(revision),
        mod_revision: Revision(revision),
        lease: None,
    }
}

fn index(keys_and_values: Vec<KeyValue>) -> Index {
    let mut index = Index::new(keys());
    index.take_in(Update::Page {
        first: true,
        keys: keys_and_values,
    });
    index.take_in(Update::Listed(Revision(50)));
    index
}

fn record(id: u64, change: impl FnOnce(&mut StoredMember)) -> KeyValue {
    let mut member = StoredMember {
        node: format!("n{id}"),
        node_uid: format!("u{id}"),
        ..StoredMember::default()
    };
    change(&mut member);
    kv(keys().member(MemberId(id)), member, 1)
}

fn removal(member: &mut StoredMember) {
    member.removal = Some(crate::proto::Removal {
        cause: Cause::Demoted.into(),
        ..crate::proto::Removal::default()
    });
}

fn listed(id: u64) -> ListedMember {
    ListedMember {
        id: MemberId(id),
        name: format!("etcd-{id}"),
        peer_urls: vec![format!("http://10.0.0.{id}:2380")],
        client_urls: vec![format!("http://10.0.0.{id}:2379")],
        learner: false,
    }
}

fn answers(of: &[(u64, MemberId)]) -> Vec<Evidence> {
    let answers = of
        .iter()
        .map(|(id, leader)| fixtures::answers(MemberId(*id), Some(*leader), 7));
    answers.collect()
}

/// The raft leader, while the others may still answer and once they had their time.
fn leader(index: &Index, list: &[ListedMember], of: &[(u64, MemberId)]) -> [Option<MemberId>; 2] {
    [false, true].map(|complete| membership(index, list, answers(of), complete).raft_leader)
}

#[test]
fn the_raft_leader_is_the_one_that_a_majority_of_the_voters_that_stay_follows() {
    let list = [listed(1), listed(2), listed(3)];
    let none = index(Vec::new());
    assert_eq!(leader(&none, &list, &[]), [None, None]);
    let one = leader(&none, &list, &[(1, LEADING)]);
    assert_eq!(one, [None, Some(LEADING)], "one of three");
    let split = leader(&none, &list, &[(1, LEADING), (2, MemberId(2))]);
    assert_eq!(split, [None, None]);
    let two = [(1, LEADING), (3, LEADING)];
    assert_eq!(leader(&none, &list, &two), [Some(LEADING); 2]);
    // A member whose removal is decided is not asked. Of the two others one is no majority, although two of three would be.
    let going = index(vec![record(3, removal)]);
    assert_eq!(leader(&going, &list, &two), [None, Some(LEADING)]);
    let both = leader(&going, &list, &[(1, LEADING), (2, LEADING)]);
    assert_eq!(both, [Some(LEADING); 2]);
    // A learner does not count, whether it has answered or not.
    let mut learner = listed(3);
    learner.learner = true;
    let list = [listed(1), listed(2), learner];
    assert_eq!(leader(&none, &list, &two), [None, Some(LEADING)]);
    assert_eq!(leader(&none, &list, &[(3, LEADING)]), [None, None]);
}

#[test]
fn a_member_is_what_the_list_the_records_and_the_answers_say() {
    let node = Node {
        metadata: Some(Metadata {
            name: "n1".to_owned(),
            uid: "u1".to_owned(),
            ..Metadata::default()
        }),
        spec: Some(NodeSpec {
            desired_role: Role::Manager.into(),
            ..NodeSpec::default()
        }),
        status: Some(NodeStatus {
            role: Role::Worker.into(),
            ..NodeStatus::default()
        }),
    };
    let index = index(vec![
        kv(keys().node(&"n1".parse().unwrap()), node, 5),
        record(1, |member| member.promotion = Some(Promotion::default())),
        record(2, removal),
        record(4, |member| member.node_uid.clear()),
    ]);
    let mut unpublished = listed(3);
    unpublished.client_urls.clear();
    let list = [listed(1), unpublished, listed(4)];
    let seen = membership(&index, &list, answers(&[(1, LEADING)]), false);
    let ids: Vec<_> = seen.members.iter().map(|member| member.id.0).collect();
    assert_eq!(ids, [1, 2, 3, 4], "listed, recorded, or both");
    assert!(!seen.complete);
    let member = |id| seen.member(MemberId(id)).unwrap();
    let first = member(1);
    assert_eq!(
        (first.is_healthy(), first.has_started(), first.applied_index()),
        (true, true, 7)
    );
    let record = member(1).record.as_ref().unwrap();
    let roles = NodeRoles {
        desired: Role::Manager,
        observed: Role::Worker,
        revision: Revision(5),
    };
    assert_eq!(
        (record.owner, record.promotion, record.removal),
        (Owner::Node(roles), true, None)
    );
    let gone = member(2).record.as_ref().unwrap();
    assert_eq!(
        (gone.owner, gone.promotion, gone.removal),
        (Owner::Missing, false, Some(Cause::Demoted))
    );
    assert!(member(2).listed.is_none() && member(3).record.is_none());
    assert!(
        !member(3).is_healthy() && !member(3).has_started(),
        "without client URLs it cannot be asked"
    );
    let missing = |id| member(id).evidence.health().unwrap_err().to_string();
    assert!(missing(3).contains("not answered yet") && missing(2).contains("not in etcd's member list"));
    assert_eq!(member(4).record.as_ref().unwrap().owner, Owner::Unknown);
}

#[test]
fn pending_joins_come_in_the_order_of_their_requests_after_those_that_are_being_added() {
    let join = |node: &str, progress: Progress, answers: &str, revision| {
        let join = Join {
            request: Some(JoinRequest {
                id: "r".to_owned(),
                node_uid: format!("uid-of-{node}"),
                requested_at: Some(prost_types::Timestamp {
                    seconds: revision,
                    nanos: 0,
                }),
                ..JoinRequest::default()
            }),
            answers: answers.to_owned(),
            progress: progress.into(),
            ..Join::default()
        };
        kv(keys().join(&node.parse().unwrap()), join, revision)
    };
    let index = index(vec![
        join("second", Progress::Waiting, "r", 2),
        join("first", Progress::Unspecified, "", 1),
        join("begun", Progress::Adding, "r", 3),
        join("ended", Progress::Voter, "r", 4),
        join("again", Progress::Voter, "of-an-earlier-request", 5),
        kv(keys().removed("uid-of-second"), RemovedNode::default(), 6),
    ]);
    let seen = membership(&index, &[], Vec::new(), true);
    let joins: Vec<_> = seen
        .joins
        .iter()
        .map(|pending| (&*pending.node, pending.removed))
        .collect();
    let expected = [
        ("begun", false),
        ("first", false),
        ("second", true),
        ("again", false),
    ];
    assert_eq!(joins, expected);
}
