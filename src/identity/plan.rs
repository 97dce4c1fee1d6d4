//! What becomes of a request for a certificate. Pure.

use std::fmt;

use jiff::Timestamp;

use super::authority::LEAST_LEFT;
use super::node::NodeRole;
use super::recorded_node::RecordedNode;
use super::request::{BadRequest, RequestedKey};
use crate::proto::NodeCertificate;
use crate::proto::node_certificate::State;
use crate::proto::node_spec::Membership;

/// The authority at hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtHand {
    /// It can sign as long as it is valid.
    Usable {
        /// From when it is valid.
        not_before: Timestamp,
        /// Until when it is valid.
        not_after: Timestamp,
    },
    /// There is none, or it cannot sign.
    Unusable,
    /// It may sign, and the id of the cluster, which each certificate says, is not known.
    NoCluster,
}

/// What becomes of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// No request waits for an answer.
    Leave,
    /// Sign the key of the request, if it has one to sign, for the role that the node is observed in (INV-13).
    Sign(NodeRole),
    /// Refuse the request, once and for all.
    Refuse(Refusal),
    /// The request waits.
    Wait(Wait),
}

/// Why a request is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The node was removed.
    #[error("the node was removed; one that comes back is a new node, with another uid")]
    NodeRemoved,
    /// The request is broken.
    #[error(transparent)]
    BadRequest(BadRequest),
}

impl Refusal {
    /// The reason, as it is stored.
    pub fn word(&self) -> &'static str {
        match self {
            Self::NodeRemoved => "NodeRemoved",
            Self::BadRequest(_) => "BadRequest",
        }
    }
}

/// What a request waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Wait {
    /// An operator has yet to accept the node.
    NotAccepted,
    /// There is no such node, and nothing says that it was removed.
    NodeMissing,
    /// The node cannot be read.
    NodeUnreadable,
    /// The node is observed in no role that this release knows.
    NoRole,
    /// There is no authority that can sign.
    Authority,
    /// The id of the cluster is not known.
    Cluster,
}

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotAccepted => "an operator has yet to accept the node",
            Self::NodeMissing => "there is no such node",
            Self::NodeUnreadable => "the node cannot be read",
            Self::NoRole => "the node has no observed role that this release knows",
            Self::Authority => "the node authority cannot sign",
            Self::Cluster => "etcd has not said the id of its cluster",
        })
    }
}

/// Decides about a record.
pub fn plan(record: &NodeCertificate, node: RecordedNode<'_>, authority: AtHand, now: Timestamp) -> Decision {
    match record.state() {
        State::Pending => {}
        // A rotation that an operator asked for begins with a request of the node.
        State::Unspecified | State::Issued | State::Failed | State::Rotate => return Decision::Leave,
    }
    let node = match node {
        RecordedNode::Node(node) => node,
        RecordedNode::Unreadable => return Decision::Wait(Wait::NodeUnreadable),
        RecordedNode::Missing => return Decision::Wait(Wait::NodeMissing),
        RecordedNode::Removed => return Decision::Refuse(Refusal::NodeRemoved),
    };
    match node.membership {
        Some(Membership::Unspecified | Membership::Accepted) => {}
        // What only a later release knows is no acceptance.
        Some(Membership::Pending) | None => return Decision::Wait(Wait::NotAccepted),
    }
    let Some(role) = NodeRole::of(node.observed) else {
        return Decision::Wait(Wait::NoRole);
    };
    match authority {
        AtHand::Usable {
            not_before,
            not_after,
        } if not_before <= now && not_after.duration_since(now) >= LEAST_LEFT => {}
        AtHand::Usable { .. } | AtHand::Unusable => return Decision::Wait(Wait::Authority),
        AtHand::NoCluster => return Decision::Wait(Wait::Cluster),
    }
    Decision::Sign(role)
}

/// The key to sign. Apart from [`plan`], since it verifies a signature: requests that wait are decided about again and again.
///
/// # Errors
/// The refusal of a request that has none.
pub fn requested_key(record: &NodeCertificate) -> Result<RequestedKey, Refusal> {
    let csr = record.request.as_ref().map_or(&[][..], |request| &request.csr);
    RequestedKey::read(csr).map_err(Refusal::BadRequest)
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;
    use rcgen::PKCS_ED25519;

    use super::super::recorded_node::NodeFacts;
    use super::super::request::tests::greedy;
    use super::*;
    use crate::etcd::Revision;
    use crate::proto::{CertificateRequest, Role};

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
}
