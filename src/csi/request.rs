//! What is asked of a plugin and what it answers, without any notion of what is stored where.

use std::collections::BTreeMap;
use std::num::NonZeroU64;

use super::id::{CsiNodeId, VolumeId, VolumeName};

/// Keys and values that only the plugin understands.
pub type Context = BTreeMap<String, String>;

/// One place, as in `{zone: a}`.
pub type Segments = BTreeMap<String, String>;

/// Who may do what with a volume at one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessMode {
    /// One node, reading and writing.
    SingleNodeWriter,
    /// One node, reading.
    SingleNodeReaderOnly,
    /// Many nodes, reading.
    MultiNodeReaderOnly,
    /// Many nodes, one of which writes.
    MultiNodeSingleWriter,
    /// Many nodes, reading and writing.
    MultiNodeMultiWriter,
}

/// What a volume looks like on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AccessType {
    /// A block device.
    Block,
    /// A directory with a file system.
    Mount {
        /// Empty: as the plugin likes.
        fs_type: String,
        /// Options of the mount.
        mount_flags: Vec<String>,
    },
}

/// How a volume is to be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeCapability {
    /// Who may do what.
    pub mode: AccessMode,
    /// What it looks like.
    pub access: AccessType,
}

/// Bytes. A range without both ends says nothing, and none is sent then.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CapacityRange {
    /// At least.
    pub required: Option<NonZeroU64>,
    /// At most.
    pub limit: Option<NonZeroU64>,
}

/// Where a volume must be within reach. Without places, nothing is asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Topology {
    /// From at least one of these.
    pub requisite: Vec<Segments>,
    /// Rather from these, the first first.
    pub preferred: Vec<Segments>,
}

/// CreateVolume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreateVolume {
    /// The same name is the same volume.
    pub name: VolumeName,
    /// How large.
    pub capacity: CapacityRange,
    /// How it is to be used.
    pub capability: VolumeCapability,
    /// The driver's options.
    pub parameters: Context,
    /// Within reach of whom.
    pub topology: Topology,
}

/// A volume as the plugin describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreatedVolume {
    /// What every later call names it by.
    pub id: VolumeId,
    /// How large it is, in bytes, where the plugin says so.
    pub capacity: Option<NonZeroU64>,
    /// To be handed back with every publication.
    pub context: Context,
    /// From where it is within reach; none: from everywhere.
    pub accessible_from: Vec<Segments>,
}

/// ControllerPublishVolume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublishVolume {
    /// Which volume.
    pub volume: VolumeId,
    /// To which node.
    pub node: CsiNodeId,
    /// How it is to be used there.
    pub capability: VolumeCapability,
    /// Reading only. Passed on where the plugin offers PUBLISH_READONLY; elsewhere the node alone sees to it, as the
    /// specification has it.
    pub read_only: bool,
    /// The context that came with the volume.
    pub context: Context,
}

/// ControllerExpandVolume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpandVolume {
    /// Which volume.
    pub volume: VolumeId,
    /// How large it is to be.
    pub capacity: CapacityRange,
    /// How it is used.
    pub capability: VolumeCapability,
}

/// A volume that has grown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpandedVolume {
    /// How large it is now, in bytes, where the plugin says so.
    pub capacity: Option<NonZeroU64>,
    /// Whether the node's part of the plugin has to grow the file system, too.
    pub node_must_expand: bool,
}

/// A volume in the plugin's list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedVolume {
    /// Which volume.
    pub id: VolumeId,
    /// How large it is, in bytes, where the plugin says so.
    pub capacity: Option<NonZeroU64>,
    /// The nodes that it is published to. Means nothing unless the plugin offers
    /// [`ListPublishedNodes`](super::Capability::ListPublishedNodes), and may name nodes that nobody asked for.
    pub published_to: Vec<CsiNodeId>,
}
