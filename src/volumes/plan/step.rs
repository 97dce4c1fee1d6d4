//! The steps of a volume's life: what each does, in the imperative before it and in the past tense after it.

use std::fmt;

use super::Target;
use crate::etcd::Revision;
use crate::store::Name;

/// Why a volume is unpublished from a node without the node's confirmation. The transaction that begins it compares the
/// record that says so (INV-12).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lost {
    /// The node was removed.
    Removed {
        /// The uid of the node.
        uid: String,
        /// When its removal was recorded.
        revision: Revision,
    },
    /// At this revision, the node is out of service.
    OutOfService(Revision),
}

/// The next step of a volume. A step makes at most one call to the plugin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Open a session with the plugin, to learn what it offers.
    Connect,
    /// CreateVolume, under the volume's uid. Its intent is committed first, unless it stands.
    Create,
    /// ValidateVolumeCapabilities of a volume that exists at the backend; then its record has its id.
    TakeIn,
    /// The record of a volume that an earlier release made names no backend: it takes the one of the session.
    TakeBackend,
    /// The plugin creates no volumes: the volume's name becomes its id.
    TakeName,
    /// ControllerExpandVolume.
    Expand,
    /// Every node that has the volume has expanded what is on it up to this capacity: forget that they have to.
    EndNodeExpansion {
        /// The capacity in bytes.
        bytes: i64,
    },
    /// ControllerPublishVolume. Its intent, with the node's id, is committed first, unless it stands.
    Publish {
        /// The node to publish to.
        node: Name,
        /// The plugin's id of that node. Not empty (INV-6).
        csi_node_id: String,
    },
    /// The plugin publishes nothing: the record becomes `published` without a call.
    PublishNothing {
        /// The node to publish to.
        node: Name,
    },
    /// Move a publication to `pendingUnpublish` without the node's confirmation.
    Detach {
        /// The node to unpublish from.
        node: Name,
        /// Why the node need not confirm; `None` if it never got the volume.
        lost: Option<Lost>,
        /// Whether the volume is published to the node again afterwards.
        again: bool,
    },
    /// ControllerUnpublishVolume, with the node id that the record holds; then the publication ends.
    Unpublish {
        /// The node to unpublish from.
        node: Name,
        /// The stored id of that node. Not empty (INV-6).
        csi_node_id: String,
        /// See [`Step::EndPublication`].
        restart: Option<String>,
    },
    /// ControllerUnpublishVolume, from a node id that no publication stores: an operator wants it, or the publication was forgotten by
    /// force during its call.
    UnpublishStray {
        /// The plugin's id of that node. Not empty (INV-6).
        csi_node_id: String,
    },
    /// Take back that an operator wants the volume unpublished from this node id: a publication stores it.
    DropStray {
        /// The plugin's id of that node.
        csi_node_id: String,
    },
    /// Delete the record of a publication of which nothing is left at the backend; or start it over, if that was asked
    /// for.
    EndPublication {
        /// The node of the publication.
        node: Name,
        /// The uid of the node, where a publication may start over: the node exists and is in service, and the volume
        /// is not marked for deletion.
        restart: Option<String>,
    },
    /// DeleteVolume. Its intent, whose transaction proves that no publication exists, is committed first, unless it
    /// stands.
    Delete,
    /// Delete the record of a volume of which nothing is left at the backend.
    DeleteRecord,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connect => write!(f, "connect to the plugin"),
            Self::Create => write!(f, "create the volume"),
            Self::TakeIn => write!(f, "take in the volume that exists at the backend"),
            Self::TakeBackend => write!(f, "record the backend that the volume was made at"),
            Self::TakeName => write!(
                f,
                "take the volume's name as its id (the plugin creates no volumes)"
            ),
            Self::Expand => write!(f, "expand the volume"),
            Self::EndNodeExpansion { .. } => {
                write!(f, "record that the nodes have expanded what is on the volume")
            }
            Self::Publish { node, csi_node_id } => {
                write!(f, "publish the volume to node {node} (node id {csi_node_id})")
            }
            Self::PublishNothing { node } => {
                write!(f, "let node {node} use the volume (the plugin publishes nothing)")
            }
            Self::Detach { node, lost, .. } => match lost {
                Some(Lost::Removed { .. }) => {
                    write!(f, "detach the volume from node {node}, which was removed")
                }
                Some(Lost::OutOfService(_)) => {
                    write!(f, "detach the volume from node {node}, which is out of service")
                }
                None => write!(f, "detach the volume from node {node}, which never got it"),
            },
            Self::Unpublish {
                node, csi_node_id, ..
            } => {
                write!(f, "unpublish the volume from node {node} (node id {csi_node_id})")
            }
            Self::UnpublishStray { csi_node_id } => write!(
                f,
                "unpublish the volume from node id {csi_node_id}, which no publication has"
            ),
            Self::DropStray { csi_node_id } => write!(
                f,
                "forget the request to unpublish from node id {csi_node_id}, which a publication has"
            ),
            Self::EndPublication { node, .. } => write!(f, "end the publication to node {node}"),
            Self::Delete => write!(f, "delete the volume"),
            Self::DeleteRecord => {
                write!(f, "delete the volume's record (nothing is left at the backend)")
            }
        }
    }
}

impl Step {
    /// What this step has done once it has succeeded, for the log.
    pub fn done_text(&self) -> String {
        match self {
            Self::Connect => "connected to the plugin".to_owned(),
            Self::Create => "volume created".to_owned(),
            Self::TakeIn => "volume taken in from the backend".to_owned(),
            Self::TakeBackend => "backend of the volume recorded".to_owned(),
            Self::TakeName => "volume took its name as its id (the plugin creates no volumes)".to_owned(),
            Self::Expand => "volume expanded".to_owned(),
            Self::EndNodeExpansion { .. } => "the nodes have expanded what is on the volume".to_owned(),
            Self::Publish { node, csi_node_id } => {
                format!("volume published to node {node} (node id {csi_node_id})")
            }
            Self::PublishNothing { node } => {
                format!("node {node} may use the volume (the plugin publishes nothing)")
            }
            Self::Detach { node, .. } => format!("publication to node {node} is pendingUnpublish"),
            Self::Unpublish {
                node, csi_node_id, ..
            } => {
                format!("volume unpublished from node {node} (node id {csi_node_id})")
            }
            Self::UnpublishStray { csi_node_id } => {
                format!("volume unpublished from node id {csi_node_id}, which no publication has")
            }
            Self::DropStray { csi_node_id } => {
                format!("request to unpublish from node id {csi_node_id} forgotten, which a publication has")
            }
            Self::EndPublication { node, .. } => format!("publication to node {node} ended"),
            Self::Delete => "volume deleted".to_owned(),
            Self::DeleteRecord => "record of the volume deleted (nothing was left at the backend)".to_owned(),
        }
    }

    /// The part of the volume that this step is about.
    pub fn target(&self) -> Target {
        match self {
            Self::Connect
            | Self::Create
            | Self::TakeIn
            | Self::TakeBackend
            | Self::TakeName
            | Self::Expand
            | Self::EndNodeExpansion { .. }
            | Self::Delete
            | Self::DeleteRecord => Target::Volume,
            Self::Publish { node, .. }
            | Self::PublishNothing { node }
            | Self::Detach { node, .. }
            | Self::Unpublish { node, .. }
            | Self::EndPublication { node, .. } => Target::Node(node.clone()),
            Self::UnpublishStray { csi_node_id } | Self::DropStray { csi_node_id } => {
                Target::Stray(csi_node_id.clone())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each step's texts before and after it.
    #[test]
    fn the_log_says_what_a_step_has_done_in_the_past_tense() {
        let (node, csi_node_id): (Name, _) = ("n1".parse().unwrap(), "csi-n1".to_owned());
        let texts = [
            Step::Create,
            Step::Expand,
            Step::Publish {
                node: node.clone(),
                csi_node_id: csi_node_id.clone(),
            },
            Step::Unpublish {
                node: node.clone(),
                csi_node_id,
                restart: None,
            },
            Step::EndPublication { node, restart: None },
            Step::Delete,
        ]
        .map(|step| (step.to_string(), step.done_text()));
        let expected = [
            ("create the volume", "volume created"),
            ("expand the volume", "volume expanded"),
            (
                "publish the volume to node n1 (node id csi-n1)",
                "volume published to node n1 (node id csi-n1)",
            ),
            (
                "unpublish the volume from node n1 (node id csi-n1)",
                "volume unpublished from node n1 (node id csi-n1)",
            ),
            ("end the publication to node n1", "publication to node n1 ended"),
            ("delete the volume", "volume deleted"),
        ];
        assert_eq!(
            texts,
            expected.map(|(before, after)| (before.to_owned(), after.to_owned()))
        );
    }
}
