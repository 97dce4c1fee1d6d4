//! The node that a record or a join belongs to, and its roles. Pure.

use crate::etcd::Revision;
use crate::proto::{Node, Role};

/// The node that a record or a join belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// A node that exists.
    Node(NodeRoles),
    /// The node cannot be read, or the record names no uid. Nothing is done about the member.
    Unknown,
    /// No node has this name and uid, and that uid is recorded as removed.
    Removed,
    /// No node has this name and uid, and nothing says that it was removed (INV-12).
    Missing,
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

impl Owner {
    /// The roles of the node, if it exists.
    pub fn roles(self) -> Option<NodeRoles> {
        match self {
            Self::Node(roles) => Some(roles),
            Self::Unknown | Self::Removed | Self::Missing => None,
        }
    }
}

impl NodeRoles {
    /// The roles of a node that was written at this revision.
    pub fn of(node: &Node, revision: Revision) -> Self {
        Self {
            desired: node.spec.unwrap_or_default().desired_role(),
            observed: node
                .status
                .as_ref()
                .map_or(Role::Unspecified, |status| status.role()),
            revision,
        }
    }
}
