//! The node that a record or a join belongs to, and its roles. Pure.

use crate::etcd::Revision;
use crate::proto::Role;

/// The node that a record or a join belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// A node that exists.
    Node(NodeRoles),
    /// The node cannot be read, or the record names no uid. Nothing is done about the member.
    Unknown,
    /// No node has this name and uid.
    Gone,
}

/// The roles of a node that exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeRoles {
    /// The role that the operator wants.
    pub desired: Role,
    /// The role that the leader recorded last.
    pub observed: Role,
    /// When the node was last written.
    pub revision: Revision,
}
