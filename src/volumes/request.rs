//! From a volume's record to requests to its plugin. Pure.

use super::plan::Offers;
use super::record::Created;
use crate::csi::wire::volume_capability::access_mode::Mode;
use crate::csi::wire::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};
use crate::csi::wire::{self, CapacityRange, TopologyRequirement, VolumeCapability};
use crate::csi::{
    Capabilities, Capability, CreateVolume, CreatedVolume, CsiNodeId, Empty, ExpandVolume, PublishVolume,
    Session, ValidateVolume, VolumeId, VolumeName,
};
use crate::proto;
use crate::proto::access_mode::{Kind, Scope, Sharing};
use crate::proto::{Backend, Capacity, Publication, Volume, VolumeSpec};
use crate::store::object::Object;
use crate::store::object::volume::made_at;

/// The capabilities that the plan depends on.
pub fn offers(capabilities: &Capabilities) -> Offers {
    let controller = capabilities.offers(Capability::ControllerService);
    let has = |capability| controller && capabilities.offers(capability);
    Offers {
        create: has(Capability::CreateDeleteVolume),
        publish: has(Capability::PublishUnpublishVolume),
        expand: has(Capability::ExpandVolume),
        expand_offline_only: capabilities.offers(Capability::ExpandOffline),
        created_before: false,
    }
}

/// The backend of a session, as volumes record it.
pub fn backend(session: &Session) -> Backend {
    Backend {
        endpoint: session.endpoint().to_string(),
        id: session.backend().to_owned(),
        publishes: offers(session.capabilities()).publish,
        exact_access_mode: session.offers(Capability::SingleNodeMultiWriter),
    }
}

fn spec_of(volume: &Volume) -> VolumeSpec {
    volume.spec.clone().unwrap_or_default()
}

fn capability_of(volume: &Volume) -> VolumeCapability {
    let is_exact = made_at(volume).is_some_and(|backend| backend.exact_access_mode);
    capability(spec_of(volume).access_mode.unwrap_or_default(), is_exact)
}

/// The use of a volume with this access mode; `is_exact` where the plugin tells one writer on a node from several.
pub fn capability(mode: proto::AccessMode, is_exact: bool) -> VolumeCapability {
    let access_mode = AccessMode {
        mode: access_mode(mode.scope(), mode.sharing(), is_exact).into(),
    };
    let access_type = match mode.kind {
        Some(Kind::Block(_)) => AccessType::Block(BlockVolume {}),
        Some(Kind::Mount(mount)) => AccessType::Mount(MountVolume {
            fs_type: mount.fs_type,
            mount_flags: mount.mount_flags,
        }),
        None => AccessType::Mount(MountVolume::default()),
    };
    VolumeCapability {
        access_mode: Some(access_mode),
        access_type: Some(access_type),
    }
}

/// Whether a node only reads a volume with this access mode; `asked` if its publication says so.
pub fn reads_only(mode: &proto::AccessMode, asked: bool) -> bool {
    asked || mode.sharing() == Sharing::ReadOnly
}

/// Scope and sharing as an access mode of CSI.
fn access_mode(scope: Scope, sharing: Sharing, is_exact: bool) -> Mode {
    match (scope, sharing) {
        (Scope::SingleNode | Scope::Unspecified, Sharing::All) if is_exact => Mode::SingleNodeMultiWriter,
        (Scope::SingleNode | Scope::Unspecified, Sharing::None | Sharing::OneWriter) if is_exact => {
            Mode::SingleNodeSingleWriter
        }
        (Scope::MultiNode, Sharing::ReadOnly) => Mode::MultiNodeReaderOnly,
        (Scope::MultiNode, Sharing::OneWriter) => Mode::MultiNodeSingleWriter,
        // `apply` refuses several nodes without sharing.
        (Scope::MultiNode, Sharing::All | Sharing::None | Sharing::Unspecified) => Mode::MultiNodeMultiWriter,
        (Scope::SingleNode | Scope::Unspecified, Sharing::ReadOnly) => Mode::SingleNodeReaderOnly,
        (
            Scope::SingleNode | Scope::Unspecified,
            Sharing::None | Sharing::OneWriter | Sharing::All | Sharing::Unspecified,
        ) => Mode::SingleNodeWriter,
    }
}

/// `None` for a range without ends, which is not allowed on the wire.
fn range(capacity: Option<Capacity>) -> Option<CapacityRange> {
    let Capacity { required, limit } = capacity.unwrap_or_default();
    let range = CapacityRange {
        required_bytes: required.max(0),
        limit_bytes: limit.max(0),
    };
    (range != CapacityRange::default()).then_some(range)
}

/// `None` if no place is asked for.
fn topology(asked: &proto::TopologyRequirement) -> Option<TopologyRequirement> {
    let places = |list: &[proto::Topology]| {
        let segments = list.iter().map(|place| place.segments.clone());
        segments.map(|segments| wire::Topology { segments }).collect()
    };
    let topology = TopologyRequirement {
        requisite: places(&asked.requisite),
        preferred: places(&asked.preferred),
    };
    (topology != TopologyRequirement::default()).then_some(topology)
}

/// CreateVolume, with the capacity of its intent, so that a repeated call is the same.
///
/// # Errors
/// [`Empty`] for a record without a uid, which `decode` rejects.
pub fn create(volume: &Volume) -> Result<CreateVolume, Empty> {
    let spec = spec_of(volume);
    let intent = volume.status.as_ref().and_then(|status| status.create);
    let driver = spec.driver.clone().unwrap_or_default();
    Ok(CreateVolume {
        name: VolumeName::new(volume.uid())?,
        capacity: range(intent.map_or(spec.capacity, |intent| intent.capacity)),
        capability: capability_of(volume),
        parameters: driver.options,
        topology: spec.topology.as_ref().and_then(topology),
    })
}

/// What the record takes over from the answer to CreateVolume.
pub fn created(answer: CreatedVolume) -> Created {
    let places = answer.accessible_from.into_iter();
    Created {
        volume_id: answer.id.into(),
        capacity_bytes: answer.capacity,
        context: answer.context,
        topology: places.map(|segments| proto::Topology { segments }).collect(),
    }
}

/// ValidateVolumeCapabilities, for a volume that is taken in.
///
/// # Errors
/// [`Empty`] for a record that names no volume, for which no step is planned.
pub fn validate(volume: &Volume) -> Result<ValidateVolume, Empty> {
    let source = spec_of(volume).source.unwrap_or_default();
    Ok(ValidateVolume {
        volume: VolumeId::new(source.volume_id)?,
        capability: capability_of(volume),
        context: source.context,
    })
}

/// The plugin's id of the volume.
///
/// # Errors
/// [`Empty`] before it is created.
pub fn volume_id(volume: &Volume) -> Result<VolumeId, Empty> {
    VolumeId::new(
        volume
            .status
            .as_ref()
            .map_or("", |status| status.volume_id.as_str()),
    )
}

/// ControllerPublishVolume.
///
/// # Errors
/// [`Empty`] for an empty id, which no step carries.
pub fn publish(
    volume: &Volume,
    publication: &Publication,
    csi_node_id: &str,
) -> Result<PublishVolume, Empty> {
    let asked = publication.spec.as_ref().is_some_and(|spec| spec.read_only);
    let mode = spec_of(volume).access_mode.unwrap_or_default();
    let status = volume.status.clone().unwrap_or_default();
    Ok(PublishVolume {
        volume: volume_id(volume)?,
        node: CsiNodeId::new(csi_node_id)?,
        capability: capability_of(volume),
        read_only: reads_only(&mode, asked),
        context: status.context,
    })
}

/// ControllerExpandVolume, to the capacity that the spec requires now.
///
/// # Errors
/// [`Empty`] before the volume has an id.
pub fn expand(volume: &Volume) -> Result<ExpandVolume, Empty> {
    Ok(ExpandVolume {
        volume: volume_id(volume)?,
        capacity: range(spec_of(volume).capacity),
        capability: capability_of(volume),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::csi::Context;
    use crate::proto::{CreateIntent, Metadata, VolumeStatus};

    #[test]
    fn access_modes_are_those_of_the_contract() {
        for (scope, sharing, expected, number) in [
            (Scope::SingleNode, Sharing::None, Mode::SingleNodeWriter, 1),
            (Scope::SingleNode, Sharing::OneWriter, Mode::SingleNodeWriter, 1),
            (Scope::SingleNode, Sharing::All, Mode::SingleNodeWriter, 1),
            (
                Scope::SingleNode,
                Sharing::ReadOnly,
                Mode::SingleNodeReaderOnly,
                2,
            ),
            (Scope::MultiNode, Sharing::ReadOnly, Mode::MultiNodeReaderOnly, 3),
            (
                Scope::MultiNode,
                Sharing::OneWriter,
                Mode::MultiNodeSingleWriter,
                4,
            ),
            (Scope::MultiNode, Sharing::All, Mode::MultiNodeMultiWriter, 5),
        ] {
            let mode = access_mode(scope, sharing, false);
            assert_eq!(
                (mode, i32::from(mode)),
                (expected, number),
                "{scope:?} {sharing:?}"
            );
        }
    }

    #[test]
    fn a_plugin_that_tells_one_writer_on_a_node_from_several_gets_the_exact_mode() {
        for (scope, sharing, expected) in [
            (Scope::SingleNode, Sharing::None, 6),
            (Scope::SingleNode, Sharing::OneWriter, 6),
            (Scope::SingleNode, Sharing::All, 7),
            (Scope::SingleNode, Sharing::ReadOnly, 2),
            (Scope::MultiNode, Sharing::OneWriter, 4),
        ] {
            let mode = i32::from(access_mode(scope, sharing, true));
            assert_eq!(mode, expected, "{scope:?} {sharing:?}");
        }
    }

    #[test]
    fn a_range_without_ends_and_a_topology_without_places_are_not_sent() {
        assert_eq!((range(None), range(Some(Capacity::default()))), (None, None));
        let negative = Capacity {
            required: -1,
            limit: -1,
        };
        assert_eq!(range(Some(negative)), None);
        assert_eq!(topology(&proto::TopologyRequirement::default()), None);
    }

    #[test]
    fn a_volume_is_created_under_its_uid_with_the_capacity_of_its_intent() {
        let capacity = |required: i64| Some(Capacity { required, limit: 9 });
        let volume = Volume {
            metadata: Some(Metadata {
                uid: "u-1".to_owned(),
                ..Metadata::default()
            }),
            spec: Some(VolumeSpec {
                capacity: capacity(7),
                ..VolumeSpec::default()
            }),
            status: Some(VolumeStatus {
                create: Some(CreateIntent {
                    capacity: capacity(5),
                    ..CreateIntent::default()
                }),
                ..VolumeStatus::default()
            }),
        };
        let create = create(&volume).unwrap();
        assert_eq!(create.name.as_str(), "u-1");
        assert_eq!(create.capacity.unwrap().required_bytes, 5);
        assert!(
            publish(&volume, &Publication::default(), "n").is_err(),
            "no id yet"
        );
    }

    #[test]
    fn a_volume_is_published_as_it_was_made_and_read_only_where_the_request_or_the_volume_says_so() {
        let asked = |read_only| Publication {
            spec: Some(crate::proto::PublicationSpec {
                read_only,
                ..Default::default()
            }),
            ..Publication::default()
        };
        let mode = |sharing: Sharing| proto::AccessMode {
            scope: Scope::MultiNode.into(),
            sharing: sharing.into(),
            kind: Some(Kind::Block(proto::access_mode::Block {})),
        };
        let context = Context::from([("path".to_owned(), "/v".to_owned())]);
        let volume = |sharing| Volume {
            spec: Some(VolumeSpec {
                access_mode: Some(mode(sharing)),
                ..VolumeSpec::default()
            }),
            status: Some(VolumeStatus {
                volume_id: "v".to_owned(),
                context: context.clone(),
                ..VolumeStatus::default()
            }),
            ..Volume::default()
        };
        for (sharing, read_only, expected) in [
            (Sharing::All, false, false),
            (Sharing::All, true, true),
            (Sharing::ReadOnly, false, true),
        ] {
            let request = publish(&volume(sharing), &asked(read_only), "csi-n1").unwrap();
            assert_eq!(request.read_only, expected, "{sharing:?} {read_only}");
            assert_eq!(
                request.capability.access_type,
                Some(AccessType::Block(BlockVolume {}))
            );
            assert_eq!((request.volume.as_str(), request.node.as_str()), ("v", "csi-n1"));
            assert_eq!(request.context, context);
        }
        assert!(publish(&volume(Sharing::All), &asked(false), "").is_err());
    }

    #[test]
    fn a_volume_grows_to_what_is_asked_for_now_and_is_made_where_its_spec_says() {
        let place = |zone: &str| proto::Topology {
            segments: [("zone".to_owned(), zone.to_owned())].into(),
        };
        let volume = Volume {
            metadata: Some(Metadata {
                uid: "u".to_owned(),
                ..Metadata::default()
            }),
            spec: Some(VolumeSpec {
                capacity: Some(Capacity {
                    required: 7,
                    limit: 9,
                }),
                topology: Some(proto::TopologyRequirement {
                    requisite: vec![place("a"), place("b")],
                    preferred: vec![place("b")],
                }),
                access_mode: Some(proto::AccessMode {
                    kind: Some(Kind::Mount(proto::access_mode::Mount {
                        fs_type: "xfs".to_owned(),
                        mount_flags: vec!["noatime".to_owned()],
                    })),
                    ..Default::default()
                }),
                ..VolumeSpec::default()
            }),
            status: Some(VolumeStatus {
                volume_id: "v".to_owned(),
                create: Some(CreateIntent {
                    capacity: Some(Capacity {
                        required: 5,
                        limit: 0,
                    }),
                    ..CreateIntent::default()
                }),
                ..VolumeStatus::default()
            }),
        };
        let ends =
            |range: Option<CapacityRange>| range.map(|range| (range.required_bytes, range.limit_bytes));
        assert_eq!(ends(expand(&volume).unwrap().capacity), Some((7, 9)));
        let made = create(&volume).unwrap();
        assert_eq!(ends(made.capacity), Some((5, 0)));
        let places = made.topology.unwrap();
        assert_eq!((places.requisite.len(), places.preferred.len()), (2, 1));
        let mount = MountVolume {
            fs_type: "xfs".to_owned(),
            mount_flags: vec!["noatime".to_owned()],
        };
        assert_eq!(made.capability.access_type, Some(AccessType::Mount(mount)));
    }

    #[test]
    fn what_a_plugin_offers_is_what_it_says() {
        let of = |list: &[Capability]| offers(&list.iter().copied().collect());
        let all = of(&[
            Capability::ControllerService,
            Capability::CreateDeleteVolume,
            Capability::PublishUnpublishVolume,
            Capability::ExpandVolume,
            Capability::ExpandOffline,
        ]);
        let yes = Offers {
            create: true,
            publish: true,
            expand: true,
            expand_offline_only: true,
            created_before: false,
        };
        assert_eq!(all, yes);
        assert_eq!(of(&[Capability::ControllerService]), Offers::default());
        let publishes = of(&[Capability::ControllerService, Capability::PublishUnpublishVolume]);
        let publish_alone = Offers {
            publish: true,
            ..Offers::default()
        };
        assert_eq!(publishes, publish_alone);
    }

    #[test]
    fn the_record_takes_over_what_the_plugin_says_of_a_volume() {
        let segments = Context::from([("zone".to_owned(), "a".to_owned())]);
        let said = created(CreatedVolume {
            id: VolumeId::new("v").unwrap(),
            capacity: 7,
            context: segments.clone(),
            accessible_from: vec![segments.clone()],
        });
        assert_eq!((said.volume_id.as_str(), said.capacity_bytes), ("v", 7));
        assert_eq!(
            (said.context, &said.topology[0].segments),
            (segments.clone(), &segments)
        );
    }

    #[test]
    fn a_plugin_without_a_controller_service_offers_nothing() {
        let without: Capabilities = [Capability::CreateDeleteVolume, Capability::ExpandVolume]
            .into_iter()
            .collect();
        assert_eq!(offers(&without), Offers::default());
    }
}
