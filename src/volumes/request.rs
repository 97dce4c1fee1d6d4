//! From a volume's record to requests to its plugin. Pure.

use std::num::NonZeroU64;

use crate::csi::{
    AccessMode, AccessType, CapacityRange, Context, CreateVolume, CreatedVolume, CsiNodeId, Empty,
    ExpandVolume, PublishVolume, Topology, VolumeCapability, VolumeId, VolumeName,
};
use crate::proto;
use crate::proto::access_mode::{Kind, Scope, Sharing};
use crate::proto::{Capacity, Publication, Volume, VolumeSpec};
use crate::store::object::Object;

use super::plan::Offers;
use super::record::Created;
use crate::csi::{Capabilities, Capability};

/// The capabilities that the plan depends on.
pub fn offers(capabilities: &Capabilities) -> Offers {
    let controller = capabilities.offers(Capability::ControllerService);
    let has = |capability| controller && capabilities.offers(capability);
    Offers {
        create: has(Capability::CreateDeleteVolume),
        publish: has(Capability::PublishUnpublishVolume),
        expand: has(Capability::ExpandVolume),
        expand_offline_only: capabilities.offers(Capability::ExpandOffline),
    }
}

fn spec_of(volume: &Volume) -> VolumeSpec {
    volume.spec.clone().unwrap_or_default()
}

fn capability(volume: &Volume) -> VolumeCapability {
    let mode = spec_of(volume).access_mode.unwrap_or_default();
    let access = match mode.kind.clone() {
        Some(Kind::Block(_)) => AccessType::Block,
        Some(Kind::Mount(mount)) => AccessType::Mount {
            fs_type: mount.fs_type,
            mount_flags: mount.mount_flags,
        },
        None => AccessType::Mount {
            fs_type: String::new(),
            mount_flags: Vec::new(),
        },
    };
    VolumeCapability {
        mode: access_mode(mode.scope(), mode.sharing()),
        access,
    }
}

/// Scope and sharing as an access mode of CSI.
fn access_mode(scope: Scope, sharing: Sharing) -> AccessMode {
    match (scope, sharing) {
        (Scope::MultiNode, Sharing::ReadOnly) => AccessMode::MultiNodeReaderOnly,
        (Scope::MultiNode, Sharing::OneWriter) => AccessMode::MultiNodeSingleWriter,
        // `apply` refuses several nodes without sharing.
        (Scope::MultiNode, Sharing::All | Sharing::None | Sharing::Unspecified) => {
            AccessMode::MultiNodeMultiWriter
        }
        (Scope::SingleNode | Scope::Unspecified, Sharing::ReadOnly) => AccessMode::SingleNodeReaderOnly,
        (
            Scope::SingleNode | Scope::Unspecified,
            Sharing::None | Sharing::OneWriter | Sharing::All | Sharing::Unspecified,
        ) => AccessMode::SingleNodeWriter,
    }
}

fn range(capacity: Option<Capacity>) -> CapacityRange {
    let capacity = capacity.unwrap_or_default();
    let bytes = |bytes: i64| u64::try_from(bytes).ok().and_then(NonZeroU64::new);
    CapacityRange {
        required: bytes(capacity.required),
        limit: bytes(capacity.limit),
    }
}

fn places(list: &[proto::Topology]) -> Vec<Context> {
    list.iter().map(|place| place.segments.clone()).collect()
}

/// CreateVolume, with the capacity of its intent, so that a repeated call is the same.
///
/// # Errors
/// [`Empty`] for a record without a uid, which `decode` rejects.
pub fn create(volume: &Volume) -> Result<CreateVolume, Empty> {
    let spec = spec_of(volume);
    let intent = volume.status.as_ref().and_then(|status| status.create);
    let driver = spec.driver.clone().unwrap_or_default();
    let topology = spec.topology.clone().unwrap_or_default();
    Ok(CreateVolume {
        name: VolumeName::new(volume.uid())?,
        capacity: range(intent.map_or(spec.capacity, |intent| intent.capacity)),
        capability: capability(volume),
        parameters: driver.options,
        topology: Topology {
            requisite: places(&topology.requisite),
            preferred: places(&topology.preferred),
        },
    })
}

/// What the record takes over from the answer to CreateVolume.
pub fn created(answer: CreatedVolume) -> Created {
    let places = answer.accessible_from.into_iter();
    Created {
        volume_id: answer.id.into(),
        capacity_bytes: answer.capacity.map_or(0, to_bytes),
        context: answer.context,
        topology: places.map(|segments| proto::Topology { segments }).collect(),
    }
}

/// A capacity as it is stored; beyond 8 EiB it saturates.
pub fn to_bytes(bytes: NonZeroU64) -> i64 {
    i64::try_from(bytes.get()).unwrap_or(i64::MAX)
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
        capability: capability(volume),
        read_only: asked || mode.sharing() == Sharing::ReadOnly,
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
        capability: capability(volume),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::{CreateIntent, Metadata, VolumeStatus};

    #[test]
    fn access_modes_are_those_of_the_contract() {
        use AccessMode as A;
        for (scope, sharing, expected) in [
            (Scope::SingleNode, Sharing::None, A::SingleNodeWriter),
            (Scope::SingleNode, Sharing::OneWriter, A::SingleNodeWriter),
            (Scope::SingleNode, Sharing::All, A::SingleNodeWriter),
            (Scope::SingleNode, Sharing::ReadOnly, A::SingleNodeReaderOnly),
            (Scope::MultiNode, Sharing::ReadOnly, A::MultiNodeReaderOnly),
            (Scope::MultiNode, Sharing::OneWriter, A::MultiNodeSingleWriter),
            (Scope::MultiNode, Sharing::All, A::MultiNodeMultiWriter),
        ] {
            assert_eq!(access_mode(scope, sharing), expected, "{scope:?} {sharing:?}");
        }
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
        assert_eq!(create.capacity.required, NonZeroU64::new(5));
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
            assert_eq!(request.capability.access, AccessType::Block);
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
        let larger = expand(&volume).unwrap().capacity;
        assert_eq!(
            (larger.required, larger.limit),
            (NonZeroU64::new(7), NonZeroU64::new(9))
        );
        let made = create(&volume).unwrap();
        assert_eq!(
            (made.capacity.required, made.capacity.limit),
            (NonZeroU64::new(5), None)
        );
        assert_eq!(
            (made.topology.requisite.len(), made.topology.preferred.len()),
            (2, 1)
        );
        let mount = AccessType::Mount {
            fs_type: "xfs".to_owned(),
            mount_flags: vec!["noatime".to_owned()],
        };
        assert_eq!(made.capability.access, mount);
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
            capacity: NonZeroU64::new(7),
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
