//! The steps of a volume's life, and their reasons.

use std::fmt;

use super::Target;
use crate::etcd::Revision;
use crate::store::Name;

/// Why a publication is taken from its node without its consent. Compared in the transaction that says so, since the
/// node may have come to be, or to be another, since it was seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lost {
    /// The node does not exist.
    Absent,
    /// As it is at this revision, it is out of service or another one of the same name.
    Unchanged(Revision),
}

/// The next thing to do. One call at most.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// The plugin must answer first.
    Connect,
    /// CreateVolume, under the volume's uid. The intent is committed before, unless it stands.
    Create,
    /// The plugin creates no volumes: the id is the name.
    TakeName,
    /// ControllerExpandVolume.
    Expand,
    /// ControllerPublishVolume. The intent, with the node's id, is committed before, unless it stands.
    Publish {
        /// The node.
        node: Name,
        /// What the plugin calls it.
        csi_node_id: String,
    },
    /// The plugin publishes nothing: the record alone says so.
    PublishNothing {
        /// The node.
        node: Name,
    },
    /// The publication is to end, whatever its node says.
    Detach {
        /// The node.
        node: Name,
        /// Why it is not asked; `None` if it never got the volume.
        lost: Option<Lost>,
        /// Whether it is published again after that.
        again: bool,
    },
    /// ControllerUnpublishVolume, from the node id that the record holds.
    Unpublish {
        /// The node.
        node: Name,
        /// As stored. Not empty (INV-6).
        csi_node_id: String,
    },
    /// ControllerUnpublishVolume, from a node that no record names.
    UnpublishStray {
        /// What the plugin calls it. Not empty (INV-6).
        csi_node_id: String,
    },
    /// The record of a publication goes: nothing of it is left at the backend. Or it begins anew, if that was asked.
    Forget {
        /// The node.
        node: Name,
    },
    /// DeleteVolume. The intent, which proves that no publication exists, is committed before, unless it stands.
    Delete,
    /// The record goes: nothing of it is left at the backend.
    Drop,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connect => write!(f, "the plugin is to be asked what it offers"),
            Self::Create => write!(f, "it is to be created"),
            Self::TakeName => write!(f, "the plugin creates no volumes: its id is its name"),
            Self::Expand => write!(f, "it is to grow"),
            Self::Publish { node, csi_node_id } => {
                write!(f, "it is to be published to node {node} (node id {csi_node_id})")
            }
            Self::PublishNothing { node } => {
                write!(f, "the plugin publishes nothing: node {node} may use it")
            }
            Self::Detach { node, lost, .. } => match lost {
                Some(Lost::Absent) => write!(f, "node {node} does not exist: it is to be taken from it"),
                Some(Lost::Unchanged(_)) => write!(
                    f,
                    "node {node} is out of service, or another one of that name: it is to be taken from it"
                ),
                None => write!(f, "node {node} never got it: it is to be unpublished"),
            },
            Self::Unpublish { node, csi_node_id } => {
                write!(
                    f,
                    "it is to be unpublished from node {node} (node id {csi_node_id})"
                )
            }
            Self::UnpublishStray { csi_node_id } => write!(
                f,
                "it is published to node id {csi_node_id}, which no record names: it is to be unpublished"
            ),
            Self::Forget { node } => {
                write!(f, "nothing is published to node {node}: the record is to go")
            }
            Self::Delete => write!(f, "it is to be deleted"),
            Self::Drop => write!(f, "nothing of it is at the backend: the record is to go"),
        }
    }
}

impl Step {
    /// What of the volume it is about.
    pub fn target(&self) -> Target {
        match self {
            Self::Connect | Self::Create | Self::TakeName | Self::Expand | Self::Delete | Self::Drop => {
                Target::Volume
            }
            Self::Publish { node, .. }
            | Self::PublishNothing { node }
            | Self::Detach { node, .. }
            | Self::Unpublish { node, .. }
            | Self::Forget { node } => Target::Node(node.clone()),
            Self::UnpublishStray { csi_node_id } => Target::Stray(csi_node_id.clone()),
        }
    }
}
