//! Every gRPC code of every call, answered by a real plugin, against the table of what follows.

use quorate::csi::class::classify;
use quorate::csi::{
    CallError, Class, Code, CsiNodeId, ExpandVolume, Method, NotReady, Secrets, Session, VolumeId,
};
use quorate::grpc_code;
use quorate_dev::csi_plugin::faults::Happening;

use crate::support::csi::{LONG, TestPlugin, answer, bytes, create, mount, publish};

const MOVING: [Method; 6] = [
    Method::CreateVolume,
    Method::DeleteVolume,
    Method::ControllerPublishVolume,
    Method::ControllerUnpublishVolume,
    Method::ControllerExpandVolume,
    Method::ListVolumes,
];

fn failing_codes() -> impl Iterator<Item = Code> {
    (1..=16).map(Code::from_i32)
}

async fn call(session: &Session, method: Method) -> Result<(), CallError> {
    let (volume, node) = (VolumeId::new("vol-a").unwrap(), CsiNodeId::new("n1").unwrap());
    let none = Secrets::none();
    match method {
        Method::CreateVolume => session.create_volume(&create("a"), &none).await.map(drop),
        Method::DeleteVolume => session.delete_volume(&volume, &none).await,
        Method::ControllerPublishVolume => session
            .publish_volume(&publish(&volume, "n1"), &none)
            .await
            .map(drop),
        Method::ControllerUnpublishVolume => session.unpublish_volume(&volume, &node, &none).await,
        Method::ControllerExpandVolume => {
            let expand = ExpandVolume {
                volume,
                capacity: bytes(1 << 30, 0),
                capability: mount(),
            };
            session.expand_volume(&expand, &none).await.map(drop)
        }
        Method::ListVolumes => session.list_volumes().await.map(drop),
        other => panic!("{other} is not about a volume"),
    }
}

#[tokio::test]
async fn every_code_of_every_call_arrives_with_its_class() {
    let plugin = TestPlugin::start_with(|options| {
        options.offers.expand = true;
        options.offers.list = true;
    })
    .await;
    let session = plugin.client(LONG).session().await.unwrap();
    let mut seen = 0;
    for method in MOVING {
        for code in failing_codes() {
            let what = format!("{method} {}", grpc_code::name(code));
            let happens = Happening::Fails(answer(grpc_code::name(code), "for a reason"));
            plugin.fault(method.name(), 1, happens).await;
            let outcome = call(&session, method).await;
            if classify(method, code) == Class::Done {
                assert_eq!(outcome, Ok(()), "{what}");
            } else {
                let error = outcome.unwrap_err();
                assert_eq!((error.method, error.code), (method, code), "{what}");
                assert_eq!(error.class(), classify(method, code), "{what}");
                assert_eq!(error.message, "for a reason", "{what}");
            }
            assert!(!session.has_ended(), "{what} ended the connection");
            seen += 1;
        }
    }
    assert_eq!(seen, 96);
    // Each call reached the plugin.
    let asked = plugin.calls().unwrap();
    let asked = asked
        .iter()
        .filter(|call| MOVING.iter().any(|method| method.name() == call.begun.method));
    assert_eq!(asked.count(), 96);
}

#[tokio::test]
async fn no_code_in_a_handshake_makes_a_plugin_ready_or_lost_for_good() {
    let plugin = TestPlugin::start().await;
    for method in [
        Method::Probe,
        Method::GetPluginInfo,
        Method::GetPluginCapabilities,
        Method::ControllerGetCapabilities,
    ] {
        for code in failing_codes() {
            let what = format!("{method} {}", grpc_code::name(code));
            let happens = Happening::Fails(answer(grpc_code::name(code), ""));
            plugin.fault(method.name(), 1, happens).await;
            match plugin.client(LONG).session().await.unwrap_err() {
                NotReady::Handshake { error, .. } => {
                    assert_eq!((error.method, error.code), (method, code), "{what}");
                    assert!(
                        matches!(error.class(), Class::Retry | Class::RetrySlowly),
                        "{what}: {:?}",
                        error.class()
                    );
                }
                other => panic!("{what}: {other}"),
            }
        }
    }
    plugin.client(LONG).session().await.unwrap();
}
