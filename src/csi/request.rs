//! Requests to a plugin and its answers, independent of what is stored where.

use std::collections::BTreeMap;
use std::num::NonZeroU64;

use super::id::{CsiNodeId, VolumeId, VolumeName};

/// Keys and values that only the plugin understands.
pub type Context = BTreeMap<String, String>;

/// The segments of one place, as in `{zone: a}`.
pub type Segments = BTreeMap<String, String>;

/// How many nodes may read and write a volume at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessMode {
    /// One node reads and writes.
    SingleNodeWriter,
    /// One node reads.
    SingleNodeReaderOnly,
    /// Many nodes read.
    MultiNodeReaderOnly,
    /// Many nodes read, and one of them writes.
    MultiNodeSingleWriter,
    /// Many nodes read and write.
    MultiNodeMultiWriter,
}

/// The form of a volume on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AccessType {
    /// A block device.
    Block,
    /// A directory with a file system.
    Mount {
        /// The type of the file system; empty for the plugin's default.
        fs_type: String,
        /// Options of the mount, such as `noatime`.
        mount_flags: Vec<String>,
    },
}

/// How a volume is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeCapability {
    /// How many nodes may read and write it at a time.
    pub mode: AccessMode,
    /// Its form on a node.
    pub access: AccessType,
}

/// A range of capacities in bytes. A range without ends is not sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CapacityRange {
    /// The least capacity.
    pub required: Option<NonZeroU64>,
    /// The greatest capacity.
    pub limit: Option<NonZeroU64>,
}

/// The places that must be able to reach a volume. Without places, none are asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Topology {
    /// At least one of these must reach it.
    pub requisite: Vec<Segments>,
    /// These are preferred, the first most.
    pub preferred: Vec<Segments>,
}

/// CreateVolume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreateVolume {
    /// The same name means the same volume.
    pub name: VolumeName,
    /// The capacity of the volume.
    pub capacity: CapacityRange,
    /// How the volume will be used.
    pub capability: VolumeCapability,
    /// The driver's options.
    pub parameters: Context,
    /// The places that must reach the volume.
    pub topology: Topology,
}

/// A volume as the plugin describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreatedVolume {
    /// The id in every later call.
    pub id: VolumeId,
    /// Its capacity in bytes, if the plugin says it.
    pub capacity: Option<NonZeroU64>,
    /// The plugin gets it back with every publication.
    pub context: Context,
    /// The places that can reach it; none for every place.
    pub accessible_from: Vec<Segments>,
}

/// ControllerPublishVolume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublishVolume {
    /// The plugin's id of the volume.
    pub volume: VolumeId,
    /// The plugin's id of the node.
    pub node: CsiNodeId,
    /// How the volume will be used there.
    pub capability: VolumeCapability,
    /// Whether the node only reads. It is sent to a plugin that offers PUBLISH_READONLY; for others the node alone enforces
    /// it, as the specification says.
    pub read_only: bool,
    /// The context that the plugin gave with the volume.
    pub context: Context,
}

/// ControllerExpandVolume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpandVolume {
    /// The plugin's id of the volume.
    pub volume: VolumeId,
    /// The capacity to expand to.
    pub capacity: CapacityRange,
    /// How the volume is used.
    pub capability: VolumeCapability,
}

/// A volume after its expansion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpandedVolume {
    /// Its capacity in bytes, if the plugin says it.
    pub capacity: Option<NonZeroU64>,
    /// Whether the plugin's part on the node has to expand the file system as well.
    pub node_must_expand: bool,
}

/// A volume in the plugin's list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedVolume {
    /// The plugin's id of the volume.
    pub id: VolumeId,
    /// Its capacity in bytes, if the plugin says it.
    pub capacity: Option<NonZeroU64>,
    /// The nodes that it is published to, some of them perhaps by others. Meaningless unless the plugin offers
    /// [`ListPublishedNodes`](super::Capability::ListPublishedNodes).
    pub published_to: Vec<CsiNodeId>,
}
