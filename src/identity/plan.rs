//! What becomes of a request for a certificate. Pure.

use jiff::Timestamp;

use super::authority::{AuthorityKind, LEAST_LEFT};
use super::node::NodeRole;
use super::recorded_node::RecordedNode;
use super::request::{BadRequest, RequestedKey};
use super::revocation::has_ended;
use crate::mutation::{self, Guard};
use crate::proto::NodeCertificate;
use crate::proto::node_certificate::State;
use crate::proto::node_spec::Membership;

/// The most certificates of one member that have not ended: all of them stand in one record, and in the list of revoked ones once the
/// node is no manager. An agent that replaces its certificate in time has four.
const MOST_UNENDED: usize = 256;

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

/// What becomes of a record. `T` is what the certificate says beside the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision<T> {
    /// No request waits for an answer.
    Leave,
    /// Sign the key of the request, if it has one to sign.
    Sign(T),
    /// Refuse the request, once and for all.
    Refuse(Refusal),
    /// The request waits.
    Wait(Wait),
}

impl<T> Decision<T> {
    /// The same decision, about a certificate that says something made of this.
    pub fn map<U>(self, of: impl FnOnce(T) -> U) -> Decision<U> {
        match self {
            Self::Leave => Decision::Leave,
            Self::Sign(says) => Decision::Sign(of(says)),
            Self::Refuse(refusal) => Decision::Refuse(refusal),
            Self::Wait(wait) => Decision::Wait(wait),
        }
    }
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
    /// A certificate for etcd is requested for a node that is observed as a worker.
    #[error("the node is a worker; only managers run members of etcd")]
    NotAManager,
    /// A certificate for etcd is requested for a node without a member that stays.
    #[error("no member of the node that stays is on record; it joins etcd first")]
    NotJoined,
    /// A host of the node is on record for another one.
    #[error("host {host} is on record for node {node}; each member has hosts of its own")]
    HostTaken {
        /// The host.
        host: String,
        /// The other node.
        node: String,
    },
    /// The node has as many certificates that have not ended as one may have.
    #[error(
        "{MOST_UNENDED} certificates of this node have not ended; another is signed once one of them has"
    )]
    TooMany,
}

impl Refusal {
    /// The reason, as it is stored.
    pub fn word(&self) -> &'static str {
        match self {
            Self::NodeRemoved => "NodeRemoved",
            Self::BadRequest(_) => "BadRequest",
            Self::NotAManager => "NotAManager",
            Self::NotJoined => "NotJoined",
            Self::HostTaken { .. } => "HostTaken",
            Self::TooMany => "TooMany",
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

impl Wait {
    /// What a request waits for that this authority has to sign, in words.
    pub fn words(self, kind: AuthorityKind) -> &'static str {
        match self {
            Self::NotAccepted => "an operator has yet to accept the node",
            Self::NodeMissing => "there is no such node",
            Self::NodeUnreadable => "the node cannot be read",
            Self::NoRole => "the node has no observed role that this release knows",
            Self::Authority => match kind {
                AuthorityKind::Node => "the node authority cannot sign",
                AuthorityKind::Etcd => "the etcd authority cannot sign",
            },
            Self::Cluster => "etcd has not said the id of its cluster",
        }
    }
}

/// Decides about a record. The certificate says the role that the node is observed in (INV-13).
pub fn plan(
    record: &NodeCertificate,
    node: RecordedNode<'_>,
    authority: AtHand,
    now: Timestamp,
) -> Decision<NodeRole> {
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
    match mutation::without(Guard::Role) {
        true => Decision::Sign(NodeRole::Manager),
        false => Decision::Sign(role),
    }
}

/// Decides about a record of etcd's certificates. `joined` is what the certificate of the node says whose join is in force, or why the
/// node gets none.
pub fn plan_of_etcd<T>(
    record: &NodeCertificate,
    node: RecordedNode<'_>,
    joined: Result<T, Refusal>,
    authority: AtHand,
    now: Timestamp,
) -> Decision<T> {
    match (plan(record, node, authority, now), joined) {
        (Decision::Leave, _) => Decision::Leave,
        (Decision::Wait(wait), _) => Decision::Wait(wait),
        // Refused, and not left to wait: a node that is promoted later asks again, with the hosts that it has then.
        (Decision::Sign(NodeRole::Worker), _) => Decision::Refuse(Refusal::NotAManager),
        (Decision::Refuse(refusal), _) | (Decision::Sign(NodeRole::Manager), Err(refusal)) => {
            Decision::Refuse(refusal)
        }
        (Decision::Sign(NodeRole::Manager), Ok(_)) if unended(record, now) >= MOST_UNENDED => {
            Decision::Refuse(Refusal::TooMany)
        }
        (Decision::Sign(NodeRole::Manager), Ok(says)) => Decision::Sign(says),
    }
}

fn unended(record: &NodeCertificate, now: Timestamp) -> usize {
    let issued = record.issued.iter();
    issued
        .filter(|issued| !has_ended(issued.not_after.as_ref(), now))
        .count()
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
mod tests;
