//! Handshakes: what a session learns of a plugin before the first call.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::join_all;
use quorate::csi::{Capability, Code, Endpoint, Method, NotReady, Plugins, Secrets};
use quorate::metrics::Metrics;
use quorate_dev::csi_plugin::faults::Happening;
use quorate_dev::csi_plugin::order::Order;
use tokio::time::timeout;

use crate::support::csi::{DRIVER, LONG, TestPlugin, answer, create, until_ready};
use crate::support::wait::{SOON, eventually, same};

/// The methods of the log, in order.
fn methods(plugin: &TestPlugin) -> Vec<String> {
    let calls = plugin.calls().unwrap().into_iter();
    calls.map(|call| call.begun.method).collect()
}

#[tokio::test]
async fn a_plugin_that_is_not_ready_is_only_probed_until_it_is() {
    let plugin = TestPlugin::start_with(|options| options.not_ready = true).await;
    let client = plugin.client(LONG);
    let refused = client.session().await.unwrap_err();
    assert!(matches!(refused, NotReady::Starting { .. }), "{refused}");

    let waiting = async { until_ready(&client).await };
    let becoming_ready = async {
        eventually(SOON, "it is probed again and again", async || {
            let probes = methods(&plugin).len();
            if probes > 3 {
                Ok(())
            } else {
                Err(format!("{probes} probes"))
            }
        })
        .await;
        assert!(methods(&plugin).iter().all(|method| method == "Probe"));
        plugin.order(Order::Ready(true)).await;
    };
    let (session, ()) = timeout(LONG, futures::future::join(waiting, becoming_ready))
        .await
        .unwrap();
    assert!(session.offers(Capability::CreateDeleteVolume));
    let after = methods(&plugin);
    assert_eq!(
        after[after.len() - 4..],
        [
            "Probe",
            "GetPluginInfo",
            "GetPluginCapabilities",
            "ControllerGetCapabilities"
        ]
    );
}

#[tokio::test]
async fn an_unfinished_handshake_counts_for_nothing() {
    for method in [
        Method::Probe,
        Method::GetPluginInfo,
        Method::GetPluginCapabilities,
        Method::ControllerGetCapabilities,
    ] {
        let plugin = TestPlugin::start().await;
        let client = plugin.client(LONG);
        let failing = Happening::Fails(answer("Unavailable", "not now"));
        plugin.fault(method.name(), 1, failing).await;
        match client.session().await.unwrap_err() {
            NotReady::Handshake { error, .. } => {
                assert_eq!((error.method, error.code), (method, Code::Unavailable));
            }
            other => panic!("{method}: {other}"),
        }
        // The next handshake begins at its first question.
        let session = timeout(LONG, until_ready(&client)).await.unwrap();
        assert!(session.offers(Capability::PublishUnpublishVolume), "{method}");
        assert_eq!(plugin.calls_of("Probe").len(), 2, "{method}");
    }
}

#[tokio::test]
async fn a_dropped_handshake_counts_for_nothing() {
    let plugin = TestPlugin::start().await;
    let client = plugin.client(LONG);
    plugin
        .fault("GetPluginCapabilities", None, Happening::Hangs)
        .await;
    let asking = async {
        eventually(SOON, "the handshake hangs", async || {
            same(plugin.calls_of("GetPluginCapabilities").len(), 1)
        })
        .await;
    };
    tokio::select! {
        session = client.session() => panic!("{session:?}"),
        () = asking => {}
    }
    plugin.clear_faults().await;
    let session = timeout(LONG, client.session()).await.unwrap().unwrap();
    assert!(session.offers(Capability::CreateDeleteVolume));
}

#[tokio::test]
async fn callers_at_the_same_time_share_one_handshake() {
    let plugin = TestPlugin::start().await;
    plugin.fault("Probe", None, Happening::DelaysMs(100)).await;
    let client = plugin.client(LONG);
    let sessions = join_all((0..50).map(|_| client.session())).await;
    let sessions: Vec<_> = sessions.into_iter().map(Result::unwrap).collect();
    assert!(sessions.iter().all(|session| Arc::ptr_eq(session, &sessions[0])));
    assert_eq!(plugin.calls_of("Probe").len(), 1);
}

#[tokio::test]
async fn a_thousand_callers_of_a_plugin_that_is_not_ready_share_few_handshakes() {
    let plugin = TestPlugin::start_with(|options| options.not_ready = true).await;
    let client = plugin.client(LONG);
    let begun = Instant::now();
    for _ in 0..1_000 {
        client.session().await.unwrap_err();
    }
    // The shortest delay is 150 ms (INV-9).
    let most = begun.elapsed().as_millis() / 150 + 1;
    let asked = plugin.calls_of("Probe").len();
    assert!(
        asked >= 1 && asked as u128 <= most,
        "{asked} probes, {most} allowed"
    );
}

#[tokio::test]
async fn a_plugin_that_is_absent_is_found_when_it_arrives() {
    let mut plugin = TestPlugin::start().await;
    plugin.stop().await.unwrap();
    let client = plugin.client(LONG);
    let error = client.session().await.unwrap_err();
    assert!(matches!(error, NotReady::Unreachable { .. }), "{error}");
    assert!(error.to_string().contains("csi.sock"), "{error}");
    let (session, launched) = futures::future::join(until_ready(&client), plugin.launch()).await;
    launched.unwrap();
    session
        .create_volume(&create("a"), &Secrets::none())
        .await
        .unwrap();
}

#[tokio::test]
async fn another_driver_at_the_endpoint_gets_no_calls() {
    let plugin = TestPlugin::start_with(|options| options.driver = "other.csi.io".to_owned()).await;
    let plugins = Plugins::new(Metrics::new("test"));
    let error = plugins
        .plugin(DRIVER, plugin.endpoint(), LONG)
        .session()
        .await
        .unwrap_err();
    assert_eq!(error.reason(), "PluginIsAnother");
    for name in ["\"other.csi.io\"", DRIVER] {
        assert!(error.to_string().contains(name), "{error}");
    }
    // Case does not count: names of objects are in lower case, names of drivers need not be.
    plugins
        .plugin("OTHER.csi.io", plugin.endpoint(), LONG)
        .session()
        .await
        .unwrap();
}

#[tokio::test]
async fn no_call_is_made_that_a_plugin_does_not_offer() {
    let plugin = TestPlugin::start_with(|options| options.offers.controller = false).await;
    let session = plugin.client(LONG).session().await.unwrap();
    assert!(session.capabilities().iter().next().is_none());
    assert_eq!(plugin.calls_of("ControllerGetCapabilities"), []);
    let error = session
        .create_volume(&create("a"), &Secrets::none())
        .await
        .unwrap_err();
    assert_eq!(error.code, Code::Unimplemented);
    assert!(error.message.contains("CREATE_DELETE_VOLUME"), "{error}");

    let plugin = TestPlugin::start_with(|options| {
        options.offers.publish = false;
        options.offers.expand = true;
        options.offers.list_nodes = true;
    })
    .await;
    let session = plugin.client(LONG).session().await.unwrap();
    let offered: Vec<_> = session.capabilities().iter().collect();
    assert_eq!(
        offered,
        [
            Capability::ControllerService,
            Capability::CreateDeleteVolume,
            Capability::ListVolumes,
            Capability::ListPublishedNodes,
            Capability::ExpandVolume,
        ]
    );
}

#[tokio::test]
async fn a_server_that_is_no_plugin_is_unreachable_or_fails_the_handshake() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("mute.sock");
    let listener = tokio::net::UnixListener::bind(&socket).unwrap();
    let plugins = Plugins::new(Metrics::new("test"));
    let limit = Duration::from_millis(300);
    let asked = plugins.plugin(DRIVER, &Endpoint::Unix(socket), limit);
    let hang_up = async {
        drop(listener.accept().await.unwrap());
        // The second connection is held open and never answered.
        let held = listener.accept().await.unwrap();
        std::future::pending::<()>().await;
        drop(held);
    };
    let ask = async {
        let first = asked.session().await.unwrap_err();
        assert!(first.to_string().contains("mute.sock"), "{first}");
        eventually(SOON, "the second handshake is not answered", async || match asked
            .session()
            .await
            .unwrap_err()
        {
            NotReady::Handshake { error, .. } if error.code == Code::DeadlineExceeded => Ok(()),
            other => Err(other.to_string()),
        })
        .await;
    };
    tokio::select! {
        () = hang_up => {}
        () = ask => {}
    }
}
