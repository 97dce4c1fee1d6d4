//! Requests to a plugin and its answers, independent of what is stored where. Their parts are those of the wire; ids that
//! cannot be empty, and secrets, are not.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::id::{CsiNodeId, VolumeId, VolumeName};
use super::wire::{CapacityRange, TopologyRequirement, VolumeCapability};

/// Keys and values that only the plugin understands.
pub type Context = BTreeMap<String, String>;

/// The segments of one place, as in `{zone: a}`.
pub type Segments = BTreeMap<String, String>;

/// CreateVolume.
#[derive(Clone, Debug, PartialEq)]
pub struct CreateVolume {
    /// The same name means the same volume.
    pub name: VolumeName,
    /// The capacity of the volume. A range without ends is not allowed on the wire.
    pub capacity: Option<CapacityRange>,
    /// How the volume will be used.
    pub capability: VolumeCapability,
    /// The driver's options.
    pub parameters: Context,
    /// The places that must reach the volume; `None` if no place is asked for.
    pub topology: Option<TopologyRequirement>,
}

/// A volume as the plugin describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreatedVolume {
    /// The id in every later call.
    pub id: VolumeId,
    /// Its capacity in bytes; 0 if the plugin does not say it.
    pub capacity: i64,
    /// The plugin gets it back with every publication.
    pub context: Context,
    /// The places that can reach it; none for every place.
    pub accessible_from: Vec<Segments>,
}

/// ValidateVolumeCapabilities.
#[derive(Clone, Debug, PartialEq)]
pub struct ValidateVolume {
    /// The plugin's id of the volume.
    pub volume: VolumeId,
    /// How the volume will be used.
    pub capability: VolumeCapability,
    /// The context of the volume.
    pub context: Context,
}

/// ControllerPublishVolume.
#[derive(Clone, Debug, PartialEq)]
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
#[derive(Clone, Debug, PartialEq)]
pub struct ExpandVolume {
    /// The plugin's id of the volume.
    pub volume: VolumeId,
    /// The capacity to expand to.
    pub capacity: Option<CapacityRange>,
    /// How the volume is used.
    pub capability: VolumeCapability,
}

/// A volume after its expansion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExpandedVolume {
    /// Its capacity in bytes; 0 if the plugin does not say it.
    pub capacity: i64,
    /// Whether the plugin's part on the node has to expand the file system as well.
    pub node_must_expand: bool,
}

/// A volume in the plugin's list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedVolume {
    /// The plugin's id of the volume.
    pub id: VolumeId,
    /// Its capacity in bytes; 0 if the plugin does not say it.
    pub capacity: i64,
    /// The nodes that it is published to, some of them perhaps by others. Meaningless unless the plugin offers
    /// [`ListPublishedNodes`](super::Capability::ListPublishedNodes).
    pub published_to: Vec<CsiNodeId>,
}

/// The node that a plugin runs on, as the plugin names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeInfo {
    /// The plugin's id of the node.
    pub id: CsiNodeId,
    /// The place where the node is; empty if the plugin has none.
    pub topology: Segments,
}

/// A volume on a node: what its calls there have in common.
#[derive(Clone, Debug, PartialEq)]
pub struct VolumeOnNode {
    /// The plugin's id of the volume.
    pub volume: VolumeId,
    /// How the volume is used.
    pub capability: VolumeCapability,
    /// Whether the node only reads.
    pub read_only: bool,
    /// The context that the plugin gave with the volume.
    pub volume_context: Context,
    /// The context that the plugin gave with the publication.
    pub publish_context: Context,
    /// Where it is staged, if the plugin stages volumes. An absolute path; the caller makes the directory.
    pub staging: PathBuf,
    /// Where it is published. An absolute path; the caller makes its parent, and the plugin the rest.
    pub target: PathBuf,
}
