//! The node that a certificate is for. Pure.

use crate::etcd::{KeyValue, Revision};
use crate::proto::node_spec::Membership;
use crate::proto::{Node, Role};
use crate::store::object::node::DUPLICATE_AGENT;
use crate::store::object::{condition, decode};

/// The node that a record of a certificate belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordedNode<'a> {
    /// A node that exists and has the uid of the record.
    Node(&'a NodeFacts),
    /// The node cannot be read.
    Unreadable,
    /// No node has the name and the uid, and nothing says that it was removed (INV-12).
    Missing,
    /// The uid is recorded as removed.
    Removed,
}

/// A node, as far as its certificate is concerned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeFacts {
    /// The uid that it got when it was created.
    pub uid: String,
    /// Its observed role.
    pub observed: Role,
    /// Whether it is accepted; `None` for what only a later release knows.
    pub membership: Option<Membership>,
    /// Whether several agents run as this node.
    pub is_duplicate: bool,
    /// When it was last written.
    pub revision: Revision,
}

impl NodeFacts {
    /// Reads a stored node; `None` if it cannot be read.
    pub fn read(name: &str, kv: &KeyValue) -> Option<Self> {
        let node: Node = decode(name, &kv.value).ok()?;
        let status = node.status.unwrap_or_default();
        Some(Self {
            observed: status.role(),
            is_duplicate: condition::find(&status.conditions, DUPLICATE_AGENT).is_some(),
            membership: Membership::try_from(node.spec.unwrap_or_default().membership).ok(),
            uid: node.metadata.unwrap_or_default().uid,
            revision: kv.mod_revision,
        })
    }
}
