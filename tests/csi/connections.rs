//! Sessions whose connection ends, moves or falls silent.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures::future::{join, join_all};
use quorate::csi::{Capability, Class, Code, Endpoint, Plugins, Secrets};
use quorate::metrics::Metrics;
use quorate_dev::csi_plugin::faults::Happening;
use quorate_dev::ports::free_port;
use tokio::time::timeout;

use crate::support::csi::{DRIVER, LONG, TestPlugin, create, ended, until_ready};
use crate::support::proxy::{Network, Proxy};
use crate::support::wait::{SOON, eventually, same};

#[tokio::test]
async fn a_restarted_plugin_is_asked_for_its_capabilities_again() {
    let mut plugin = TestPlugin::start().await;
    let client = plugin.client(LONG);
    let before = client.session().await.unwrap();
    assert!(before.offers(Capability::PublishUnpublishVolume) && !before.offers(Capability::ExpandVolume));

    plugin.stop().await.unwrap();
    timeout(LONG, ended(&before))
        .await
        .expect("the end of the connection is seen");
    plugin.options_mut().offers.publish = false;
    plugin.options_mut().offers.expand = true;
    plugin.options_mut().version = "2".to_owned();
    plugin.launch().await.unwrap();

    // The old session does not connect again, although the plugin listens.
    let error = before
        .create_volume(&create("a"), &Secrets::none())
        .await
        .unwrap_err();
    assert_eq!(
        (error.code, error.class()),
        (Code::Unavailable, Class::Retry),
        "{error}"
    );
    assert_eq!(plugin.calls_of("CreateVolume"), []);

    let after = client.session().await.unwrap();
    assert!(!Arc::ptr_eq(&after, &before));
    assert_eq!(after.version(), "2");
    assert!(!after.offers(Capability::PublishUnpublishVolume) && after.offers(Capability::ExpandVolume));
}

/// A channel that reconnects by itself could not guarantee this.
#[tokio::test(flavor = "multi_thread")]
async fn no_process_of_a_plugin_is_called_before_its_handshake() {
    let mut plugin = TestPlugin::start().await;
    let client = plugin.client(LONG);
    let mut succeeded = 0;
    for round in 0..5 {
        let volumes = join_all((0..8).map(|volume| {
            let client = client.clone();
            async move {
                // In whichever session exists, up to the end of the plugin and beyond.
                let mut done = 0;
                for attempt in 0..100 {
                    let request = create(&format!("r{round}-v{volume}-{attempt}"));
                    let session = match client.session().await {
                        Ok(session) => session,
                        Err(_) => break,
                    };
                    if session.create_volume(&request, &Secrets::none()).await.is_ok() {
                        done += 1;
                    }
                }
                done
            }
        }));
        let restart = async {
            eventually(SOON, "calls are in flight", async || {
                let calls = plugin.calls().unwrap();
                let run = calls.iter().map(|call| call.run).max();
                let creates = calls
                    .iter()
                    .filter(|call| Some(call.run) == run && call.begun.method == "CreateVolume");
                if creates.count() > 20 {
                    Ok(())
                } else {
                    Err("not yet")
                }
            })
            .await;
            plugin.kill().await.unwrap();
            plugin.launch().await.unwrap();
        };
        let (done, ()) = join(volumes, restart).await;
        succeeded += done.into_iter().sum::<usize>();
        timeout(LONG, until_ready(&client)).await.unwrap();
    }
    assert!(succeeded > 50, "{succeeded} calls succeeded");

    let calls = plugin.calls().unwrap();
    let runs: BTreeSet<_> = calls.iter().map(|call| call.run).collect();
    assert_eq!(runs.len(), 6);
    for run in runs {
        let of_run: Vec<_> = calls.iter().filter(|call| call.run == run).collect();
        let known = of_run
            .iter()
            .find(|call| call.begun.method == "ControllerGetCapabilities");
        let known = known.expect("the capabilities were asked for").end.unwrap();
        for call in of_run.iter().filter(|call| call.begun.method == "CreateVolume") {
            assert!(call.start >= known, "{call:?} began before {known}");
        }
    }
}

#[tokio::test]
async fn a_plugin_that_moved_is_called_at_its_new_socket_and_calls_in_flight_finish() {
    let old = TestPlugin::start().await;
    let new = TestPlugin::start_with(|options| options.version = "2".to_owned()).await;
    let plugins = Plugins::new(Metrics::new("test"));
    let before = plugins
        .plugin(DRIVER, old.endpoint(), LONG)
        .session()
        .await
        .unwrap();
    let unmoved = plugins.plugin(DRIVER, old.endpoint(), LONG).session().await;
    assert!(
        Arc::ptr_eq(&unmoved.unwrap(), &before),
        "the same endpoint is the same session"
    );

    old.fault("CreateVolume", None, Happening::Waits).await;
    let (request, no_secrets) = (create("a"), Secrets::none());
    let in_flight = before.create_volume(&request, &no_secrets);
    let moved = async {
        eventually(SOON, "the call is in flight", async || {
            same(old.calls_of("CreateVolume").len(), 1)
        })
        .await;
        let after = plugins.plugin(DRIVER, new.endpoint(), LONG).session().await;
        old.release().await;
        after.unwrap()
    };
    let (created, after) = join(in_flight, moved).await;
    created.unwrap();
    assert_eq!((before.version(), after.version()), ("1", "2"));
    drop(before);

    // A forgotten plugin begins with a new session.
    plugins.retain(|_| false);
    timeout(LONG, async {
        let forgotten = plugins
            .plugin(DRIVER, new.endpoint(), LONG)
            .session()
            .await
            .unwrap();
        assert!(!Arc::ptr_eq(&forgotten, &after));
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn a_session_outlives_its_plugin_handle() {
    let plugin = TestPlugin::start().await;
    let client = plugin.client(LONG);
    let session = client.session().await.unwrap();
    drop(client);
    session
        .create_volume(&create("a"), &Secrets::none())
        .await
        .unwrap();
    assert!(!session.has_ended());
}

#[tokio::test]
async fn over_tcp_a_silent_network_costs_the_limit_and_a_broken_one_another_handshake() {
    let port = free_port().unwrap();
    let plugin = TestPlugin::start_with(|options| {
        options.listen = format!("http://127.0.0.1:{port}").parse().unwrap();
    })
    .await;
    let proxy = Proxy::start(port);
    let limit = Duration::from_secs(5);
    let client = plugin.client_at(proxy.url().parse::<Endpoint>().unwrap(), limit);
    let session = client.session().await.unwrap();
    session
        .create_volume(&create("a"), &Secrets::none())
        .await
        .unwrap();

    proxy.set(Network::LosesReplies);
    let error = session
        .create_volume(&create("b"), &Secrets::none())
        .await
        .unwrap_err();
    assert_eq!(
        (error.code, error.class()),
        (Code::DeadlineExceeded, Class::Retry),
        "{error}"
    );
    assert!(error.message.contains("5s"), "{error}");

    proxy.set(Network::Resets);
    timeout(LONG, ended(&session))
        .await
        .expect("a reset connection has ended");
    proxy.set(Network::Passes);
    let again = timeout(LONG, until_ready(&client)).await.unwrap();
    assert!(!Arc::ptr_eq(&again, &session));
    // The volume whose answer was lost is found under its name.
    again.create_volume(&create("b"), &Secrets::none()).await.unwrap();
    assert_eq!(plugin.backend().ids().unwrap().len(), 2);
}

#[tokio::test]
async fn https_to_a_plugin_without_tls_says_that_tls_failed() {
    let port = free_port().unwrap();
    let plugin = TestPlugin::start_with(|options| {
        options.listen = format!("http://127.0.0.1:{port}").parse().unwrap();
    })
    .await;
    let endpoint = format!("https://127.0.0.1:{port}").parse().unwrap();
    let error = plugin.client_at(endpoint, LONG).session().await.unwrap_err();
    assert_eq!(error.reason(), "PluginUnreachable", "{error}");
    assert!(
        error.to_string().contains(&format!("https://127.0.0.1:{port}")),
        "{error}"
    );
}
