//! Secrets of volumes: read at each call, waited for while they are missing, and shown nowhere.

use std::collections::BTreeMap;

use quorate::etcd::KeyRange;
use quorate_dev::csi_plugin::order::Order;

use super::*;

#[tokio::test]
async fn secrets_are_read_at_each_call_and_their_values_appear_nowhere() {
    let world = World::start().await;
    // It and its libraries log everything.
    let launch = Launch::on(&world.etcd).variable("RUST_LOG", "trace");
    let mut replica = launch.start("r0");
    replica.wait_leading().await;
    let (sentinel, rotated) = ("xyzzy-s3cr3t-value", "rotated-s3cr3t-value");
    let expect = |value: &str| Order::ExpectSecrets(BTreeMap::from([("token".to_owned(), value.to_owned())]));
    world.plugin.order(expect(sentinel)).await;
    let uses = volume("data", "secrets: [{key: token, secret: backend}],");
    world.apply(&(secret("backend", "token", sentinel) + &uses)).await;
    world.expect_created("data").await;
    // The same leader keeps no value, so it sends the new one.
    world.plugin.order(expect(rotated)).await;
    world.apply(&secret("backend", "token", rotated)).await;
    // The plugin repeats the value in its message.
    let says = answer("Internal", "cannot log in with {secrets}");
    world
        .plugin
        .fault("ControllerPublishVolume", None, Happening::Fails(says))
        .await;
    world.done(&["publish", "data", "n1"]).await;
    let blocked = world.expect_blocked("data", Some("n1"), "Internal").await;
    assert!(
        blocked.message.contains("cannot log in with <secret>"),
        "{blocked:?}"
    );
    let mut shown = vec![format!("{:?}", world.plugin.calls().unwrap())];
    for args in [
        &["get", "secrets", "-o", "yaml"][..],
        &["describe", "secret", "backend"],
        &["describe", "volume", "data"],
        &["get", "publications", "-o", "json"],
    ] {
        let finished = world.run(args).await;
        shown.extend([finished.stdout, finished.stderr]);
    }
    // Everything that is stored, but for the Secret itself.
    let mut stored = world.list(&KeyRange::prefix("/quorate/")).await;
    stored.retain(|kv| !kv.key.starts_with(b"/quorate/secrets/"));
    assert!(stored.len() > world.records().await.len(), "{stored:?}");
    shown.extend(
        stored
            .iter()
            .map(|kv| String::from_utf8_lossy(&kv.value).into_owned()),
    );
    world.plugin.clear_faults().await;
    world.done(&["retry", "volume", "data"]).await;
    world.expect_state("data", "n1", "published").await;

    shown.push(replica.get("/metrics").await.unwrap().body);
    replica.stop().await.unwrap();
    let log = replica.log();
    assert!(log.contains("TRACE"), "it said everything");
    shown.push(log);
    for text in shown {
        for value in [sentinel, rotated] {
            let found = text.lines().find(|line| line.contains(value));
            assert_eq!(found, None);
        }
    }
}

#[tokio::test]
async fn a_volume_waits_for_its_secret_without_a_call_and_goes_on_when_it_is_there() {
    let world = World::start().await;
    let leader = world.leader().await;
    let refused = world
        .run_with(
            &["apply", "-f", "-"],
            &volume("data", "secrets: [{key: a, secret: s}, {key: b, secret: t}],"),
        )
        .await
        .expect_code(4);
    assert!(
        refused.contains("secret s does not exist; secret t does not exist"),
        "{refused}"
    );
    let uses = volume("data", "secrets: [{key: a, secret: s}, {key: b, secret: s}],");
    world.apply(&(secret("s", "a", "x") + &uses)).await;
    let blocked = world.expect_blocked("data", None, "SecretMissing").await;
    assert_eq!(blocked.message, "secret s has no b");
    assert_eq!(world.plugin.calls_of("CreateVolume"), []);
    let whole = "apiVersion: quorate.dev/v1\nkind: Secret\nmetadata: {name: s}\nstringData: {a: x, b: y}\n";
    world.apply(whole).await;
    world.expect_created("data").await;
    world.expect_blocked("data", None, "").await;

    let refused = world
        .run(&["delete", "secret", "s", "--yes"])
        .await
        .expect_code(4);
    assert!(
        refused.contains("InUse") && refused.contains("volume data"),
        "{refused}"
    );
    world.done(&["delete", "secret", "s", "--yes", "--force"]).await;
    world.done(&["delete", "volume", "data", "--yes"]).await;
    world.expect_blocked("data", None, "SecretMissing").await;
    assert_eq!(world.plugin.calls_of("DeleteVolume"), []);
    world.apply(whole).await;
    world.expect_gone("data").await;
    world.expect_empty_backend().await;
    leader.resign().await;
}

/// One that only nodes need holds up no call of the leader.
#[tokio::test]
async fn each_call_gets_the_secrets_that_are_for_it_and_waits_for_no_others() {
    let world = World::start().await;
    let leader = world.leader().await;
    let values = "apiVersion: quorate.dev/v1\nkind: Secret\nmetadata: {name: s}\n\
                  stringData: {all: x, admin: y, attach: z}\n---\n";
    let uses = "secrets: [{key: all, secret: s}, {key: admin, secret: s, calls: [create, delete]}, \
                {key: attach, secret: s, calls: [publish]}, {key: absent, secret: s, calls: [nodeStage]}],";
    world.apply(&(values.to_owned() + &volume("data", uses))).await;
    world.publish("data", "n1").await;
    world.unpublish("data", "n1").await;
    world.delete("data").await;
    for (method, keys) in [
        ("CreateVolume", &["admin", "all"][..]),
        ("ControllerPublishVolume", &["all", "attach"]),
        ("ControllerUnpublishVolume", &["all"]),
        ("DeleteVolume", &["admin", "all"]),
    ] {
        let calls = world.plugin.calls_of(method);
        assert_eq!(calls.len(), 1, "{method}");
        assert_eq!(calls[0].begun.secrets, keys, "{method}");
    }
    leader.resign().await;
}
