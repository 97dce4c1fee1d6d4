use std::collections::BTreeMap;

use super::*;
use crate::proto::volume_secret::Call;
use crate::proto::volume_spec::Driver;
use crate::proto::{
    AccessMode, Backend, Metadata, NodeSpec, PublicationSpec, Role, VolumeSpec, access_mode, node_spec,
};

fn metadata(name: &str, uid: &str) -> Option<Metadata> {
    Some(Metadata::new(name, uid, jiff::Timestamp::UNIX_EPOCH))
}

fn context(value: &str) -> BTreeMap<String, String> {
    BTreeMap::from([("key".to_owned(), value.to_owned())])
}

fn publication(state: State) -> Publication {
    Publication {
        metadata: metadata("n1", "p"),
        spec: Some(PublicationSpec {
            volume: "data".to_owned(),
            volume_uid: "v".to_owned(),
            node_uid: "u1".to_owned(),
            read_only: true,
            ..PublicationSpec::default()
        }),
        status: Some(PublicationStatus {
            state: state.into(),
            csi_node_id: "csi-n1".to_owned(),
            publish_context: context("published"),
            expanded_bytes: 3,
            ..PublicationStatus::default()
        }),
    }
}

fn volume() -> Volume {
    Volume {
        metadata: metadata("data", "v"),
        spec: Some(VolumeSpec {
            driver: Some(Driver {
                name: "test.csi".to_owned(),
                ..Driver::default()
            }),
            access_mode: Some(AccessMode {
                scope: access_mode::Scope::SingleNode.into(),
                kind: Some(access_mode::Kind::Block(access_mode::Block {})),
                ..AccessMode::default()
            }),
            secrets: vec![VolumeSecret {
                key: "token".to_owned(),
                secret: "backend".to_owned(),
                calls: Vec::new(),
            }],
            ..VolumeSpec::default()
        }),
        status: Some(VolumeStatus {
            volume_id: "id-1".to_owned(),
            context: context("created"),
            capacity_bytes: 7,
            backend: Some(Backend {
                exact_access_mode: true,
                ..Backend::default()
            }),
            ..VolumeStatus::default()
        }),
    }
}

fn seen(publication: &Publication, volume: Option<&Volume>) -> Shown {
    seen_bytes(&publication.encode_to_vec(), volume)
}

fn seen_bytes(publication: &[u8], volume: Option<&Volume>) -> Shown {
    let node = SeenNode {
        uid: "u1".to_owned(),
        role: Role::Worker,
        is_accepted: true,
        spec: NodeSpec {
            desired_role: Role::Manager.into(),
            availability: node_spec::Availability::Drain.into(),
            ..NodeSpec::default()
        },
        is_duplicate: false,
    };
    let name = "data".parse().unwrap();
    let record = volume.map(|volume| volume.encode_to_vec());
    let one = (&name, publication, record.as_deref());
    let node_name = "n1".parse().unwrap();
    view(&node_name, &node, CertificateState::Rotate, std::iter::once(one))
}

/// The instruction of the only publication, if it is shown.
fn instruction(shown: &Shown) -> Option<Instruction> {
    let publication = shown.view.publications.first()?;
    Some(publication.instruction())
}

#[test]
fn a_node_sees_its_roles_and_what_its_calls_for_a_volume_need() {
    let shown = seen(&publication(State::Published), Some(&volume()));
    let view = &shown.view;
    let roles = (view.role(), view.desired_role());
    assert_eq!(roles, (Role::Worker, Role::Manager));
    assert_eq!(view.certificate(), CertificateState::Rotate);
    assert_eq!(view.availability(), node_spec::Availability::Drain);
    let expected = NodePublication {
        volume: "data".to_owned(),
        volume_uid: "v".to_owned(),
        publication_uid: "p".to_owned(),
        instruction: Instruction::Publish.into(),
        plugin: "test.csi".to_owned(),
        volume_id: "id-1".to_owned(),
        volume_context: context("created"),
        publish_context: context("published"),
        access_mode: volume().spec.unwrap().access_mode,
        exact_access_mode: true,
        read_only: true,
        capacity_bytes: 7,
        expanded_bytes: 7,
        ..NodePublication::default()
    };
    assert!(view.publications == [expected]);
    assert_eq!(shown.secrets, [(0, volume().spec.unwrap().secrets)]);
}

#[test]
fn a_state_says_what_the_node_does_and_secrets_come_with_a_published_volume_alone() {
    for (state, expected, secrets) in [
        (State::PendingPublish, None, 0),
        (State::Published, Some(Instruction::Publish), 1),
        (State::PendingNodeUnpublish, Some(Instruction::Unpublish), 0),
        (State::PendingUnpublish, Some(Instruction::None), 0),
    ] {
        let shown = seen(&publication(state), Some(&volume()));
        assert_eq!(instruction(&shown), expected, "{state:?}");
        assert_eq!(shown.secrets.len(), secrets, "{state:?}");
    }
}

#[test]
fn a_secret_for_calls_of_the_leader_alone_never_leaves_for_a_node() {
    let entry = |key: &str, calls: &[Call]| VolumeSecret {
        key: key.to_owned(),
        secret: "backend".to_owned(),
        calls: calls.iter().map(|call| i32::from(*call)).collect(),
    };
    let mut volume = volume();
    volume.spec.as_mut().unwrap().secrets = vec![
        entry("all", &[]),
        entry(
            "admin",
            &[
                Call::Create,
                Call::Delete,
                Call::Publish,
                Call::Unpublish,
                Call::Expand,
            ],
        ),
        entry("stage", &[Call::Create, Call::NodeStage]),
    ];
    let shown = seen(&publication(State::Published), Some(&volume));
    let keys: Vec<&str> = shown.secrets[0]
        .1
        .iter()
        .map(|entry| entry.key.as_str())
        .collect();
    assert_eq!(keys, ["all", "stage"]);
}

/// INV-12.
#[test]
fn what_is_not_known_changes_nothing_on_the_node() {
    let stands = Some(Instruction::Unspecified);
    for state in [State::Published, State::PendingNodeUnpublish] {
        assert_eq!(instruction(&seen(&publication(state), None)), stands);
        let mut later = volume();
        later.metadata = metadata("data", "v2");
        let shown = seen(&publication(state), Some(&later));
        assert_eq!(instruction(&shown), stands, "a later volume of the same name");
        assert_eq!(shown.view.publications[0].volume_id, "");
    }
    assert_eq!(instruction(&seen_bytes(&[0xff], Some(&volume()))), stands);
    let mut unrecorded = publication(State::Published);
    unrecorded.status.as_mut().unwrap().unrecorded = true;
    let shown = seen(&unrecorded, Some(&volume()));
    assert_eq!(instruction(&shown), stands);
    assert!(shown.secrets.is_empty());
    // It confirmed before; nothing of the volume is needed.
    let confirmed = seen(&publication(State::PendingUnpublish), None);
    assert_eq!(instruction(&confirmed), Some(Instruction::None));
}

#[test]
fn a_publication_to_another_node_is_not_shown() {
    let mut other = publication(State::Published);
    other.spec.as_mut().unwrap().node_uid = "u0".to_owned();
    let shown = seen(&other, Some(&volume()));
    assert_eq!(instruction(&shown), None);
    assert!(shown.secrets.is_empty());
}

#[test]
fn a_node_expands_only_what_waits_for_it() {
    let bytes = |due, expanded| {
        let (mut volume, mut publication) = (volume(), publication(State::Published));
        volume.status.as_mut().unwrap().node_expansion_bytes = due;
        publication.status.as_mut().unwrap().expanded_bytes = expanded;
        let shown = seen(&publication, Some(&volume)).view.publications.remove(0);
        (shown.capacity_bytes, shown.expanded_bytes)
    };
    assert_eq!(bytes(0, 0), (7, 7), "a new volume");
    assert_eq!(bytes(9, 0), (9, 0));
    assert_eq!(bytes(9, 7), (9, 7));
    assert_eq!(bytes(9, 9), (9, 9), "it waits for another node");
}

#[test]
fn equal_views_have_equal_digests() {
    let digest = |state| seen(&publication(state), Some(&volume())).digest();
    assert_eq!(digest(State::Published), digest(State::Published));
    assert_ne!(digest(State::Published), digest(State::PendingNodeUnpublish));
}
