//! What a volume waits for.

use super::Target;

/// Why a requested change cannot be made now: a stable word of conditions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitReason {
    /// The plugin may have created the volume, or created others before, and no longer creates volumes.
    CreateUnsupported,
    /// The plugin created the volume and no longer deletes volumes.
    DeleteUnsupported,
    /// The volume can be expanded only while it is published nowhere.
    ExpandOffline,
    /// The plugin does not expand volumes, or did not create this one.
    ExpandUnsupported,
    /// The node reports no node id for the plugin.
    NodeIDMissing,
    /// The node does not exist, or another one has its name, and nothing records that it was removed; or its record cannot be read.
    NodeMissing,
    /// The node is paused or drained: nothing new is published to it.
    NodePaused,
    /// The node has not confirmed that it no longer uses the volume.
    NodeUnpublish,
    /// The plugin answers for another backend than the one that the volume was made at.
    OtherBackend,
    /// Another node has a volume that only one node may have, or writes one that only one node may write.
    OtherNode,
    /// The publication was made for an earlier volume of the same name.
    OtherVolume,
    /// The Plugin object does not exist.
    PluginMissing,
    /// A publication cannot be read, so that the volume may still be published.
    PublicationMalformed,
    /// Another volume has the same id at the plugin.
    SharedVolumeID,
    /// The node is in a place that cannot reach the volume.
    TopologyMismatch,
    /// The plugin published volumes when this one was made, and no longer does.
    PublishUnsupported,
    /// The volume is still published.
    Published,
    /// The volume is being unpublished from the node id that it would be published to.
    Unpublishing,
    /// The plugin published the volume and no longer unpublishes volumes.
    UnpublishUnsupported,
    /// The volume is paused or drained: nothing new is published.
    VolumePaused,
}

impl WaitReason {
    /// The reason of a condition.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::CreateUnsupported => "CreateUnsupported",
            Self::DeleteUnsupported => "DeleteUnsupported",
            Self::ExpandOffline => "ExpandOffline",
            Self::ExpandUnsupported => "ExpandUnsupported",
            Self::NodeIDMissing => "NodeIDMissing",
            Self::NodeMissing => "NodeMissing",
            Self::NodePaused => "NodePaused",
            Self::NodeUnpublish => "NodeUnpublish",
            Self::OtherBackend => "OtherBackend",
            Self::OtherNode => "OtherNode",
            Self::OtherVolume => "OtherVolume",
            Self::PluginMissing => "PluginMissing",
            Self::PublicationMalformed => "PublicationMalformed",
            Self::PublishUnsupported => "PublishUnsupported",
            Self::Published => "Published",
            Self::SharedVolumeID => "SharedVolumeID",
            Self::TopologyMismatch => "TopologyMismatch",
            Self::Unpublishing => "Unpublishing",
            Self::UnpublishUnsupported => "UnpublishUnsupported",
            Self::VolumePaused => "VolumePaused",
        }
    }

    /// Whether a person has to act, so that it becomes a condition. The others end with requests that were made already.
    pub fn is_fault(self) -> bool {
        match self {
            Self::CreateUnsupported
            | Self::DeleteUnsupported
            | Self::ExpandUnsupported
            | Self::NodeIDMissing
            | Self::NodeMissing
            | Self::NodePaused
            | Self::OtherBackend
            | Self::OtherVolume
            | Self::PluginMissing
            | Self::PublicationMalformed
            | Self::PublishUnsupported
            | Self::SharedVolumeID
            | Self::TopologyMismatch
            | Self::UnpublishUnsupported
            | Self::VolumePaused => true,
            Self::ExpandOffline
            | Self::NodeUnpublish
            | Self::OtherNode
            | Self::Published
            | Self::Unpublishing => false,
        }
    }
}

/// A requested change that cannot be made now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wait {
    /// The part of the volume that waits.
    pub target: Target,
    /// Why.
    pub reason: WaitReason,
    /// Why, as a sentence with the names in it.
    pub message: String,
}
