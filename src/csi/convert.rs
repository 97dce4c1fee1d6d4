//! Conversion between plain requests and the messages of the wire. Answers that the specification forbids end here.

use std::num::NonZeroU64;

use super::id::{CsiNodeId, VolumeId};
use super::request::{
    AccessMode, AccessType, CapacityRange, CreatedVolume, ListedVolume, Segments, Topology, VolumeCapability,
};
use super::wire;
use super::wire::volume_capability::access_mode::Mode;

impl From<AccessMode> for Mode {
    fn from(mode: AccessMode) -> Self {
        match mode {
            AccessMode::SingleNodeWriter => Self::SingleNodeWriter,
            AccessMode::SingleNodeReaderOnly => Self::SingleNodeReaderOnly,
            AccessMode::MultiNodeReaderOnly => Self::MultiNodeReaderOnly,
            AccessMode::MultiNodeSingleWriter => Self::MultiNodeSingleWriter,
            AccessMode::MultiNodeMultiWriter => Self::MultiNodeMultiWriter,
        }
    }
}

impl From<&VolumeCapability> for wire::VolumeCapability {
    fn from(capability: &VolumeCapability) -> Self {
        use wire::volume_capability::{
            AccessMode as WireMode, AccessType as WireType, BlockVolume, MountVolume,
        };
        let access = match &capability.access {
            AccessType::Block => WireType::Block(BlockVolume {}),
            AccessType::Mount { fs_type, mount_flags } => WireType::Mount(MountVolume {
                fs_type: fs_type.clone(),
                mount_flags: mount_flags.clone(),
            }),
        };
        Self {
            access_mode: Some(WireMode {
                mode: Mode::from(capability.mode).into(),
            }),
            access_type: Some(access),
        }
    }
}

/// `None` for a range without ends, which is not allowed on the wire.
pub(super) fn range(range: CapacityRange) -> Option<wire::CapacityRange> {
    // Capacities saturate at what the wire can hold: 8 EiB.
    let bytes =
        |bytes: Option<NonZeroU64>| bytes.map_or(0, |bytes| i64::try_from(bytes.get()).unwrap_or(i64::MAX));
    (range != CapacityRange::default()).then(|| wire::CapacityRange {
        required_bytes: bytes(range.required),
        limit_bytes: bytes(range.limit),
    })
}

/// `None` if no place is asked for.
pub(super) fn topology(topology: &Topology) -> Option<wire::TopologyRequirement> {
    let places = |places: &[Segments]| {
        let places = places.iter().cloned();
        places.map(|segments| wire::Topology { segments }).collect()
    };
    (*topology != Topology::default()).then(|| wire::TopologyRequirement {
        requisite: places(&topology.requisite),
        preferred: places(&topology.preferred),
    })
}

/// `None`, for unknown, if the plugin answers zero or a negative number.
pub(super) fn capacity(bytes: i64) -> Option<NonZeroU64> {
    u64::try_from(bytes).ok().and_then(NonZeroU64::new)
}

/// The volume in an answer. `None` if it is missing or its id is empty; the specification allows neither.
pub(super) fn created(volume: Option<wire::Volume>) -> Option<CreatedVolume> {
    let volume = volume?;
    let places = volume.accessible_topology.into_iter();
    Some(CreatedVolume {
        id: VolumeId::new(volume.volume_id).ok()?,
        capacity: capacity(volume.capacity_bytes),
        context: volume.volume_context,
        accessible_from: places.map(|place| place.segments).collect(),
    })
}

/// A volume in a list. `None` if it has no id: no call can name it.
pub(super) fn listed(entry: wire::list_volumes_response::Entry) -> Option<ListedVolume> {
    let volume = created(entry.volume)?;
    let nodes = entry.status.unwrap_or_default().published_node_ids.into_iter();
    Some(ListedVolume {
        id: volume.id,
        capacity: volume.capacity,
        published_to: nodes.filter_map(|node| CsiNodeId::new(node).ok()).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_without_ends_is_not_sent_and_a_huge_one_saturates() {
        assert_eq!(range(CapacityRange::default()), None);
        let huge = CapacityRange {
            required: NonZeroU64::new(1),
            limit: NonZeroU64::new(u64::MAX),
        };
        let sent = range(huge).unwrap();
        assert_eq!((sent.required_bytes, sent.limit_bytes), (1, i64::MAX));
        assert_eq!(
            (capacity(0), capacity(-5), capacity(7)),
            (None, None, NonZeroU64::new(7))
        );
    }

    #[test]
    fn an_answer_without_an_id_is_no_volume() {
        assert_eq!(created(None), None);
        assert_eq!(created(Some(wire::Volume::default())), None);
        let entry = wire::list_volumes_response::Entry {
            volume: Some(wire::Volume {
                volume_id: "v".to_owned(),
                ..wire::Volume::default()
            }),
            status: Some(wire::list_volumes_response::VolumeStatus {
                published_node_ids: vec!["n1".to_owned(), String::new()],
            }),
        };
        let listed = listed(entry).unwrap();
        assert_eq!(listed.published_to, [CsiNodeId::new("n1").unwrap()]);
    }

    #[test]
    fn every_access_mode_has_its_number() {
        let numbers = [
            (AccessMode::SingleNodeWriter, 1),
            (AccessMode::SingleNodeReaderOnly, 2),
            (AccessMode::MultiNodeReaderOnly, 3),
            (AccessMode::MultiNodeSingleWriter, 4),
            (AccessMode::MultiNodeMultiWriter, 5),
        ];
        for (mode, number) in numbers {
            let capability = VolumeCapability {
                mode,
                access: AccessType::Block,
            };
            let sent = wire::VolumeCapability::from(&capability);
            assert_eq!(sent.access_mode.unwrap().mode, number, "{mode:?}");
        }
    }
}
