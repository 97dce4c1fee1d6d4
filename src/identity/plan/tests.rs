use jiff::SignedDuration;
use rcgen::PKCS_ED25519;

use super::super::recorded_node::NodeFacts;
use super::super::request::tests::greedy;
use super::*;
use crate::etcd::Revision;
use crate::proto::{CertificateRequest, IssuedCertificate, Role};
use crate::store::object::time;

fn now() -> Timestamp {
    "2026-03-01T12:00:00Z".parse().unwrap()
}

fn ready() -> AtHand {
    AtHand::Usable {
        not_before: now(),
        not_after: now() + LEAST_LEFT,
    }
}

fn node(observed: Role) -> NodeFacts {
    NodeFacts {
        uid: "u".to_owned(),
        observed,
        membership: Some(Membership::Unspecified),
        is_duplicate: false,
        revision: Revision(7),
    }
}

/// A request that asks for a manager's certificate in every way there is.
fn pending() -> NodeCertificate {
    NodeCertificate {
        node: "n1".to_owned(),
        request: Some(CertificateRequest {
            csr: greedy(&PKCS_ED25519).0,
            role: Role::Manager.into(),
            at: None,
        }),
        state: State::Pending.into(),
        ..NodeCertificate::default()
    }
}

fn with_request(csr: &[u8]) -> NodeCertificate {
    let mut record = pending();
    record.request.as_mut().unwrap().csr = csr.to_vec();
    record
}

fn wait(record: &NodeCertificate, node: RecordedNode<'_>, authority: AtHand) -> Option<Wait> {
    match plan(record, node, authority, now()) {
        Decision::Wait(wait) => Some(wait),
        _ => None,
    }
}

fn signed_role(record: &NodeCertificate, node: &NodeFacts) -> Option<NodeRole> {
    match plan(record, RecordedNode::Node(node), ready(), now()) {
        Decision::Sign(role) => Some(role),
        _ => None,
    }
}

/// INV-13.
#[test]
fn the_role_is_the_observed_one_whatever_is_asked_for() {
    let record = pending();
    assert_eq!(signed_role(&record, &node(Role::Worker)), Some(NodeRole::Worker));
    assert_eq!(
        signed_role(&record, &node(Role::Manager)),
        Some(NodeRole::Manager)
    );
    let nothing = NodeCertificate {
        request: Some(CertificateRequest {
            role: Role::Unspecified.into(),
            ..record.request.clone().unwrap()
        }),
        ..record.clone()
    };
    assert_eq!(signed_role(&nothing, &node(Role::Worker)), Some(NodeRole::Worker));
    let roleless = node(Role::Unspecified);
    assert_eq!(
        wait(&record, RecordedNode::Node(&roleless), ready()),
        Some(Wait::NoRole)
    );
}

#[test]
fn the_key_that_is_signed_is_that_of_the_request() {
    let record = pending();
    let expected = RequestedKey::read(&record.request.as_ref().unwrap().csr).unwrap();
    let key = requested_key(&record).unwrap();
    assert_eq!(key, expected);
}

/// INV-13.
#[test]
fn a_removed_node_is_refused_whatever_else_is_so() {
    let refused = Decision::Refuse(Refusal::NodeRemoved);
    for record in [pending(), with_request(&[])] {
        for authority in [ready(), AtHand::Unusable] {
            assert_eq!(plan(&record, RecordedNode::Removed, authority, now()), refused);
        }
    }
}

#[test]
fn a_broken_request_has_no_key_to_sign() {
    let long = vec![0x30; 9000];
    for (csr, bad) in [
        (&[][..], BadRequest::Form),
        (b"nonsense", BadRequest::Form),
        (&long, BadRequest::Length(9000)),
    ] {
        let refusal = requested_key(&with_request(csr)).unwrap_err();
        assert_eq!(refusal, Refusal::BadRequest(bad));
        assert_eq!(refusal.word(), "BadRequest");
    }
    let mut record = pending();
    record.request = None;
    let refusal = Refusal::BadRequest(BadRequest::Form);
    assert_eq!(requested_key(&record), Err(refusal));
}

#[test]
fn a_request_waits_for_an_authority_that_can_sign_and_is_then_signed() {
    let (record, worker) = (pending(), node(Role::Worker));
    let node = RecordedNode::Node(&worker);
    let second = SignedDuration::from_secs(1);
    let early = AtHand::Usable {
        not_before: now() + second,
        not_after: now() + LEAST_LEFT * 2,
    };
    let ending = AtHand::Usable {
        not_before: now() - second,
        not_after: now() + LEAST_LEFT - second,
    };
    for authority in [AtHand::Unusable, early, ending] {
        assert_eq!(wait(&record, node, authority), Some(Wait::Authority));
    }
    assert_eq!(wait(&record, node, AtHand::NoCluster), Some(Wait::Cluster));
    assert_eq!(signed_role(&record, &worker), Some(NodeRole::Worker));
}

#[test]
fn nothing_is_signed_for_a_node_that_is_not_accepted() {
    let record = pending();
    for (membership, accepted) in [
        (Some(Membership::Unspecified), true),
        (Some(Membership::Accepted), true),
        (Some(Membership::Pending), false),
        (None, false),
    ] {
        let node = NodeFacts {
            membership,
            ..node(Role::Worker)
        };
        let waits = wait(&record, RecordedNode::Node(&node), ready()) == Some(Wait::NotAccepted);
        assert_eq!(signed_role(&record, &node).is_some(), accepted, "{membership:?}");
        assert_eq!(waits, !accepted, "{membership:?}");
    }
}

/// INV-12.
#[test]
fn a_node_that_is_absent_or_unreadable_is_waited_for() {
    let record = pending();
    assert_eq!(
        wait(&record, RecordedNode::Missing, ready()),
        Some(Wait::NodeMissing)
    );
    assert_eq!(
        wait(&record, RecordedNode::Unreadable, ready()),
        Some(Wait::NodeUnreadable)
    );
}

#[test]
fn what_is_not_pending_is_left_alone() {
    let worker = node(Role::Worker);
    for state in [State::Unspecified, State::Issued, State::Failed, State::Rotate] {
        let record = NodeCertificate {
            state: state.into(),
            ..pending()
        };
        for node in [
            RecordedNode::Node(&worker),
            RecordedNode::Removed,
            RecordedNode::Missing,
        ] {
            assert_eq!(plan(&record, node, ready(), now()), Decision::Leave, "{state:?}");
        }
    }
    // One that only a later release knows.
    let mut record = pending();
    record.state = 99;
    assert_eq!(
        plan(&record, RecordedNode::Node(&worker), ready(), now()),
        Decision::Leave
    );
}

fn etcd(record: &NodeCertificate, node: &NodeFacts, joined: Result<(), Refusal>) -> Decision<()> {
    plan_of_etcd(record, RecordedNode::Node(node), joined, ready(), now())
}

/// INV-13.
#[test]
fn a_certificate_of_etcd_is_for_an_observed_manager_with_a_join_in_force() {
    let (record, manager) = (pending(), node(Role::Manager));
    assert_eq!(etcd(&record, &manager, Ok(())), Decision::Sign(()));
    assert_eq!(
        etcd(&record, &node(Role::Worker), Ok(())),
        Decision::Refuse(Refusal::NotAManager)
    );
    let taken = Refusal::HostTaken {
        host: "10.0.0.1".to_owned(),
        node: "n2".to_owned(),
    };
    for refusal in [Refusal::NotJoined, taken] {
        let refused = Decision::Refuse(refusal.clone());
        assert_eq!(etcd(&record, &manager, Err(refusal)), refused);
    }
    // The rest as with a certificate of a node.
    let joined = || Ok(());
    for (node, authority, expected) in [
        (RecordedNode::Missing, ready(), Wait::NodeMissing),
        (RecordedNode::Node(&manager), AtHand::Unusable, Wait::Authority),
    ] {
        let decided = plan_of_etcd(&record, node, joined(), authority, now());
        assert_eq!(decided, Decision::Wait(expected));
    }
    let removed = plan_of_etcd(&record, RecordedNode::Removed, joined(), ready(), now());
    assert_eq!(removed, Decision::Refuse(Refusal::NodeRemoved));
}

#[test]
fn a_member_has_no_more_certificates_than_its_record_holds() {
    let mut record = pending();
    let manager = node(Role::Manager);
    let ends = |hours: i64| IssuedCertificate {
        serial: vec![1],
        not_after: Some(time::to_proto(now() + SignedDuration::from_hours(hours))),
    };
    record.issued = vec![ends(1); MOST_UNENDED - 1];
    record.issued.push(ends(-24));
    assert_eq!(etcd(&record, &manager, Ok(())), Decision::Sign(()));
    record.issued.push(ends(1));
    assert_eq!(
        etcd(&record, &manager, Ok(())),
        Decision::Refuse(Refusal::TooMany)
    );
}
