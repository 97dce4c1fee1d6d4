//! The Node service of a plugin, as an agent calls it.

use std::collections::BTreeSet;
use std::fs;

use quorate::csi::{
    CallError, Class, Code, NodeSession, NotReady, Plugin, Secrets, Segments, VolumeId, VolumeOnNode,
};
use quorate::metrics::Metrics;
use quorate_dev::csi_plugin::faults::Happening;
use quorate_dev::csi_plugin::options::NodeOptions;

use crate::support::csi::{DRIVER, LONG, TestPlugin, answer, create, mount, publish, secrets};
use crate::support::wait::{SOON, eventually};

const NODE: &str = "csi-n1";

/// A plugin on a node, whose targets are links.
async fn plugin(change: impl FnOnce(&mut NodeOptions)) -> TestPlugin {
    TestPlugin::start_with(|options| {
        let mut node = NodeOptions::new(NODE);
        change(&mut node);
        options.node = Some(node);
    })
    .await
}

fn client(plugin: &TestPlugin) -> Plugin<NodeSession> {
    Plugin::on_node(DRIVER, plugin.endpoint().clone(), LONG, Metrics::new("test"))
}

/// A volume that is published to the node at the backend.
async fn volume(plugin: &TestPlugin) -> VolumeOnNode {
    let session = plugin.client(LONG).session().await.unwrap();
    let created = session
        .create_volume(&create("a"), &Secrets::none())
        .await
        .unwrap();
    let published = session
        .publish_volume(&publish(&created.id, NODE), &Secrets::none())
        .await;
    let staging = plugin.directory().join("staging");
    fs::create_dir(&staging).unwrap();
    VolumeOnNode {
        volume: created.id,
        capability: mount(),
        read_only: false,
        volume_context: created.context,
        publish_context: published.unwrap(),
        staging,
        target: plugin.directory().join("target"),
    }
}

#[tokio::test]
async fn a_volume_is_staged_published_expanded_unpublished_and_unstaged() {
    let plugin = plugin(|node| node.expands = true).await;
    let session = client(&plugin).session().await.unwrap();
    let (volume, none) = (volume(&plugin).await, Secrets::none());
    let early = session.publish(&volume, &none).await.unwrap_err();
    assert_eq!(
        (early.code, early.class()),
        (Code::FailedPrecondition, Class::WaitForOther)
    );
    for _ in 0..2 {
        session.stage(&volume, &none).await.unwrap();
        session.publish(&volume, &none).await.unwrap();
        session.expand(&volume, 1 << 20, &none).await.unwrap();
    }
    fs::write(volume.target.join("file"), "text").unwrap();
    let larger = session.expand(&volume, 2 << 20, &none).await.unwrap_err();
    assert_eq!((larger.code, larger.class()), (Code::OutOfRange, Class::Final));
    for _ in 0..2 {
        session.unpublish(&volume.volume, &volume.target).await.unwrap();
        session.unstage(&volume.volume, &volume.staging).await.unwrap();
    }
    assert!(!volume.target.exists());
    let log = plugin.calls().unwrap();
    let on_node = log
        .iter()
        .filter(|call| call.begun.method.starts_with("Node") && !call.begun.volume.is_empty());
    let nodes: BTreeSet<_> = on_node.map(|call| call.begun.node.as_deref()).collect();
    assert_eq!(nodes, BTreeSet::from([Some(NODE)]));
}

/// The process on a node may say that its driver has a Controller service, and serve none.
#[tokio::test]
async fn a_session_of_the_node_asks_for_nothing_of_the_controller() {
    let zone = Segments::from([("zone".to_owned(), "a".to_owned())]);
    let plugin = plugin(|node| node.topology = zone.clone()).await;
    let session = client(&plugin).session().await.unwrap();
    let info = session.info();
    assert_eq!((info.id.as_str(), &info.topology), (NODE, &zone));
    let offers = session.capabilities();
    assert!(offers.stage && !offers.expand && !offers.exact_access_mode);
    let asked: Vec<_> = plugin
        .calls()
        .unwrap()
        .into_iter()
        .map(|call| call.begun.method)
        .collect();
    assert_eq!(
        asked,
        ["Probe", "GetPluginInfo", "NodeGetCapabilities", "NodeGetInfo"]
    );
}

#[tokio::test]
async fn a_plugin_without_a_node_service_or_an_id_of_the_node_is_not_called() {
    let without = TestPlugin::start().await;
    let nameless = plugin(|node| node.id = String::new()).await;
    for plugin in [without, nameless] {
        let error = client(&plugin).session().await.unwrap_err();
        let NotReady::Handshake { error, .. } = &error else {
            panic!("{error}");
        };
        assert!(
            [Code::Unimplemented, Code::Internal].contains(&error.code),
            "{error}"
        );
    }
}

#[tokio::test]
async fn what_the_plugin_does_not_offer_is_not_called() {
    let plugin = plugin(|node| node.stages = false).await;
    let session = client(&plugin).session().await.unwrap();
    let (volume, none) = (volume(&plugin).await, Secrets::none());
    for refused in [
        session.stage(&volume, &none).await,
        session.unstage(&volume.volume, &volume.staging).await,
        session.expand(&volume, 1, &none).await,
    ] {
        let error = refused.unwrap_err();
        assert_eq!(
            (error.code, error.class()),
            (Code::Unimplemented, Class::Final),
            "{error}"
        );
    }
    session.publish(&volume, &none).await.unwrap();
    for method in ["NodeStageVolume", "NodeUnstageVolume", "NodeExpandVolume"] {
        assert_eq!(plugin.calls_of(method), [], "{method}");
    }
}

#[tokio::test]
async fn no_secret_value_is_in_an_error_of_the_node() {
    let plugin = plugin(|node| node.expands = true).await;
    let session = client(&plugin).session().await.unwrap();
    let (volume, given) = (volume(&plugin).await, secrets(&[("token", "s3cr3t-sentinel")]));
    for method in ["NodeStageVolume", "NodePublishVolume", "NodeExpandVolume"] {
        let prints = Happening::Fails(answer("Internal", "cannot log in with {secrets}"));
        plugin.fault(method, 1, prints).await;
    }
    let failures: Vec<CallError> = vec![
        session.stage(&volume, &given).await.unwrap_err(),
        session.publish(&volume, &given).await.unwrap_err(),
        session.expand(&volume, 1, &given).await.unwrap_err(),
    ];
    for error in failures {
        assert_eq!(error.message, "cannot log in with <secret>", "{error}");
    }
    // The plugin got them.
    let staged = plugin.calls_of("NodeStageVolume");
    assert_eq!(staged[0].begun.secrets, ["token"]);
}

#[tokio::test]
async fn the_end_of_the_plugin_ends_the_session_and_the_next_one_knows_what_it_offers_then() {
    let mut plugin = plugin(|_| {}).await;
    let client = client(&plugin);
    let before = client.session().await.unwrap();
    plugin.stop().await.unwrap();
    tokio::time::timeout(LONG, before.ended()).await.unwrap();
    let id = VolumeId::new("vol-a").unwrap();
    let error = before.unpublish(&id, plugin.directory()).await.unwrap_err();
    assert_eq!((error.code, error.class()), (Code::Unavailable, Class::Retry));
    plugin.options_mut().node.as_mut().unwrap().expands = true;
    plugin.launch().await.unwrap();
    let after = eventually(SOON, "the plugin has a session", async || client.session().await).await;
    assert!(after.capabilities().expand && !before.capabilities().expand);
}
