//! A plugin over TCP with TLS: it is trusted by the authorities of the system, or of the file that `SSL_CERT_FILE` names.

use quorate_dev::pki::Authority;
use quorate_dev::ports::free_port;

use super::*;

fn authority(directory: &std::path::Path, name: &str) -> Authority {
    let home = directory.join(name);
    std::fs::create_dir(&home).unwrap();
    Authority::create(&home, name).unwrap()
}

/// Waits until a leader that trusts this authority says why it does not use the plugin.
async fn expect_refused(world: &World, trusted: &Authority, why: &str) {
    let launch = Launch::on(&world.etcd).variable("SSL_CERT_FILE", trusted.certificate_file());
    let mut replica = launch.start("r0");
    replica.wait_leading().await;
    let what = format!("it is blocked by {why:?}");
    eventually(SOON, &what, async || {
        let described = world.expect_plugin("PluginUnreachable").await;
        match described.contains("https://127.0.0.1") && described.contains(why) {
            true => Ok(()),
            false => Err(described),
        }
    })
    .await;
    replica.stop().await.unwrap();
    assert_eq!(world.plugin.calls().unwrap(), [], "it was asked nothing");
}

#[tokio::test]
async fn a_plugin_over_tls_is_called_if_a_trusted_authority_signed_its_certificate_as_a_servers() {
    let directory = tempfile::tempdir().unwrap();
    let (own, other) = (
        authority(directory.path(), "own"),
        authority(directory.path(), "other"),
    );
    let of_a_client = own.client("client").unwrap();
    let port = free_port().unwrap();
    let plugin = TestPlugin::start_with(|options| {
        options.listen = format!("https://127.0.0.1:{port}").parse().unwrap();
        options.tls = Some(of_a_client);
    })
    .await;
    let mut world = World::with(plugin).await;
    world.apply(&volume("data", "")).await;
    expect_refused(&world, &own, "extended key usage for server authentication").await;

    world.plugin.stop().await.unwrap();
    world.plugin.options_mut().tls = Some(own.server("plugin").unwrap());
    world.plugin.launch().await.unwrap();
    expect_refused(&world, &other, "UnknownIssuer").await;

    let launch = Launch::on(&world.etcd).variable("SSL_CERT_FILE", own.certificate_file());
    let mut replica = launch.start("r1");
    world.expect_created("data").await;
    world.publish("data", "n1").await;
    world.unpublish("data", "n1").await;
    world.delete("data").await;
    world.expect_empty_backend().await;
    world.check_calls();
    replica.stop().await.unwrap();
}

#[tokio::test]
async fn a_plugin_with_an_authority_of_its_own_gets_the_certificate_that_its_record_names() {
    let directory = tempfile::tempdir().unwrap();
    let own = authority(directory.path(), "own");
    let (of_plugin, of_client) = (own.server("plugin").unwrap(), own.client("client").unwrap());
    let (ca, port) = (own.certificate_file(), free_port().unwrap());
    let client_ca = ca.clone();
    let plugin = TestPlugin::start_with(|options| {
        options.listen = format!("https://127.0.0.1:{port}").parse().unwrap();
        options.tls = Some(of_plugin);
        options.client_ca = Some(client_ca);
    })
    .await;
    let world = World::with(plugin).await;
    let leader = world.leader().await;
    world.apply(&volume("data", "")).await;
    world.expect_plugin("PluginUnreachable").await;
    let spec = |more: &str| format!("{{\"tls\": {{\"caFile\": {ca:?}{more}}}}}");
    // Without a certificate of its own, the replica is not served.
    world.apply(&world.plugin_document(&spec(""))).await;
    eventually(SOON, "it is not served", async || {
        let described = world.done(&["describe", "plugin", DRIVER]).await;
        match described.contains("UnknownIssuer") || described.contains("Ready") {
            true => Err(described),
            false => Ok(()),
        }
    })
    .await;
    let (cert, key) = (&of_client.cert, &of_client.key);
    let shown = format!(", \"certFile\": {cert:?}, \"keyFile\": {key:?}");
    world.apply(&world.plugin_document(&spec(&shown))).await;
    world.expect_created("data").await;
    world.delete("data").await;
    let half = spec(&format!(", \"certFile\": {cert:?}"));
    let args = ["apply", "-f", "-"];
    let refused = world
        .run_with(&args, &world.plugin_document(&half))
        .await
        .expect_code(64);
    assert!(refused.contains("spec.tls.keyFile"), "{refused}");
    leader.resign().await;
}
