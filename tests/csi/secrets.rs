//! A secret value reaches the plugin, and is shown nowhere.

use std::collections::BTreeMap;

use quorate::csi::{CallError, Code, CsiNodeId, ExpandVolume, Plugin, VolumeId};
use quorate::metrics::Metrics;
use quorate_dev::csi_plugin::faults::Happening;
use quorate_dev::csi_plugin::order::Order;

use crate::support::csi::{DRIVER, LONG, TestPlugin, answer, bytes, create, mount, publish, secrets};
use crate::support::traced::Traced;

const VALUE: &str = "s3cr3t-sentinel";

// One thread, so that the subscriber of this test also gets the traces of the connection's tasks.
#[tokio::test(flavor = "current_thread")]
async fn no_secret_value_is_in_any_error_log_trace_or_metric_however_the_plugin_repeats_it() {
    let traced = Traced::begin();
    let plugin = TestPlugin::start_with(|options| options.offers.expand = true).await;
    let metrics = Metrics::new("test");
    let client = Plugin::new(DRIVER, plugin.endpoint().clone(), LONG, metrics.clone());
    let session = client.session().await.unwrap();
    let given = secrets(&[("token", VALUE)]);
    let order = Order::ExpectSecrets(BTreeMap::from([("token".to_owned(), VALUE.to_owned())]));
    plugin.order(order).await;

    let volume = session.create_volume(&create("a"), &given).await.unwrap().id;
    let node = CsiNodeId::new("n1").unwrap();
    session
        .publish_volume(&publish(&volume, "n1"), &given)
        .await
        .unwrap();

    // The plugin prints the value: in full, quoted, and in the middle of a long text.
    let mut failures: Vec<CallError> = Vec::new();
    for message in [
        "cannot log in with {secrets}".to_owned(),
        "{{\"token\": \"{secrets}\"}}".to_owned(),
        format!("{} {{secrets}} {}", "x".repeat(503), "y".repeat(300)),
    ] {
        for method in [
            "CreateVolume",
            "DeleteVolume",
            "ControllerPublishVolume",
            "ControllerUnpublishVolume",
            "ControllerExpandVolume",
        ] {
            let happens = Happening::Fails(answer("Internal", &message));
            plugin.fault(method, 1, happens).await;
        }
        let expand = ExpandVolume {
            volume: volume.clone(),
            capacity: bytes(1 << 30, 0),
            capability: mount(),
        };
        failures.push(session.create_volume(&create("a"), &given).await.unwrap_err());
        failures.push(
            session
                .publish_volume(&publish(&volume, "n1"), &given)
                .await
                .unwrap_err(),
        );
        failures.push(
            session
                .unpublish_volume(&volume, &node, &given)
                .await
                .unwrap_err(),
        );
        failures.push(session.expand_volume(&expand, &given).await.unwrap_err());
        failures.push(session.delete_volume(&volume, &given).await.unwrap_err());
    }
    // The backend itself repeats a wrong value.
    let wrong = secrets(&[("token", "wr0ng-sentinel")]);
    failures.push(session.delete_volume(&volume, &wrong).await.unwrap_err());
    assert_eq!(failures.last().unwrap().code, Code::Unauthenticated);
    assert!(
        failures[0].message.contains("cannot log in with <secret>"),
        "{}",
        failures[0]
    );

    let traced = traced.text();
    assert!(traced.contains("a CSI call failed"), "the trace is not empty");
    assert!(
        traced.contains("h2::") || traced.contains("hyper"),
        "the libraries are traced, too"
    );
    let log = std::fs::read_to_string(&plugin.options().log).unwrap();
    assert!(log.contains("\"token\""), "the keys are there");
    let output = std::fs::read_to_string(plugin.output_file()).unwrap();
    for (place, text) in [
        ("an error", format!("{failures:?}")),
        (
            "an error's text",
            failures.iter().map(ToString::to_string).collect(),
        ),
        ("the trace", traced),
        ("a metric", metrics.encode()),
        ("the plugin's log of calls", log),
        ("the plugin's output", output),
    ] {
        for part in [VALUE, "s3cr3t", "wr0ng"] {
            assert!(!text.contains(part), "{part} is in {place}");
        }
    }
}

#[tokio::test]
async fn a_rotated_secret_is_sent_with_the_next_call() {
    let plugin = TestPlugin::start().await;
    let session = plugin.client(LONG).session().await.unwrap();
    let expect = |value: &str| Order::ExpectSecrets(BTreeMap::from([("token".to_owned(), value.to_owned())]));
    plugin.order(expect("old")).await;
    session
        .create_volume(&create("a"), &secrets(&[("token", "old")]))
        .await
        .unwrap();
    plugin.order(expect("new")).await;
    let volume = VolumeId::new("vol-a").unwrap();
    let refused = session
        .delete_volume(&volume, &secrets(&[("token", "old")]))
        .await;
    assert_eq!(refused.unwrap_err().code, Code::Unauthenticated);
    let missing = session.delete_volume(&volume, &secrets(&[])).await.unwrap_err();
    assert_eq!(missing.message, "the secret token is missing");
    session
        .delete_volume(&volume, &secrets(&[("token", "new")]))
        .await
        .unwrap();
}

#[tokio::test]
async fn calls_are_timed_by_driver_method_and_code() {
    let plugin = TestPlugin::start().await;
    let metrics = Metrics::new("test");
    let client = Plugin::new(DRIVER, plugin.endpoint().clone(), LONG, metrics.clone());
    let session = client.session().await.unwrap();
    session.create_volume(&create("a"), &secrets(&[])).await.unwrap();
    let failing = Happening::Fails(answer("Unavailable", ""));
    plugin.fault("CreateVolume", 2, failing).await;
    for _ in 0..2 {
        session
            .create_volume(&create("b"), &secrets(&[]))
            .await
            .unwrap_err();
    }
    let text = metrics.encode();
    for (method, code, count) in [
        ("Identity/Probe", "OK", 1),
        ("Controller/CreateVolume", "OK", 1),
        ("Controller/CreateVolume", "Unavailable", 2),
    ] {
        let line = format!(
            "quorate_csi_operations_seconds_count{{driver_name=\"{DRIVER}\",method_name=\"/csi.v1.{method}\",\
             grpc_status_code=\"{code}\"}} {count}"
        );
        assert!(text.contains(&line), "{line} is not in\n{text}");
    }
}
