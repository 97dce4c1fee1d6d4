//! The whole way of a volume, each part of it a process: from `quorate apply` to a file on the node, and back.

use std::collections::BTreeMap;
use std::fs;
use std::io::{ErrorKind, Read, Seek};
use std::os::unix::fs::FileExt;
use std::path::Path;

use quorate_dev::csi_plugin::backend::Published;
use quorate_dev::csi_plugin::faults::Happening;
use quorate_dev::csi_plugin::order::Order;

use super::cluster::{CSI_NODE, Cluster, NODE};
use super::mounted::{can_mount, is_mounted, is_read_only, mount_lines};
use super::secrets::texts;
use crate::support::base::document;
use crate::support::csi::{DRIVER, answer};
use crate::support::wait::{QUIET, SOON, eventually, same};
use crate::volumes::world::{secret, volume};

/// The calls for a volume that is created, used on a node and grown there.
const USED: [&str; 6] = [
    "CreateVolume",
    "ControllerPublishVolume",
    "NodeStageVolume",
    "NodePublishVolume",
    "ControllerExpandVolume",
    "NodeExpandVolume",
];

/// INV-6: the unmount, the node's confirmation and the end of the attachment follow each other.
#[tokio::test]
async fn a_volume_is_used_grown_and_kept_over_the_death_of_the_agent_and_detached_after_its_unmount() {
    let mut cluster = Cluster::start().await;
    cluster
        .site
        .apply(&volume("data", "capacity: {required: 1Mi},"))
        .await;
    let paths = cluster.publish("data", &[]).await;
    assert_eq!(
        paths.link,
        fs::canonicalize(&cluster.agent.state)
            .unwrap()
            .join("volumes/data")
    );
    let id = cluster.backend_id("data").await;
    let file = paths.link.join("file");
    fs::write(&file, "written on the node").unwrap();
    let at_backend = cluster.data(&id).join("file");
    assert_eq!(fs::read_to_string(&at_backend).unwrap(), "written on the node");
    fs::write(&at_backend, "written elsewhere").unwrap();
    assert_eq!(fs::read_to_string(&file).unwrap(), "written elsewhere");
    assert_eq!(is_mounted(&paths.target), can_mount());

    cluster
        .grow("data", &volume("data", "capacity: {required: 3Mi},"), 3 << 20)
        .await;
    let published = cluster.site.publication("data", NODE).await.unwrap();
    assert_eq!(
        published.status.unwrap().expanded_bytes,
        3 << 20,
        "the node has confirmed it"
    );

    // A program goes on with its open file while no agent runs.
    let mut open = fs::File::open(&file).unwrap();
    let before = mount_lines(&paths.home);
    cluster.agent.kill().await.unwrap();
    fs::write(&file, "written without an agent").unwrap();
    cluster.agent.launch().unwrap();
    cluster.agent.ready().await;
    // Two are repeated by the next agent, and idempotent.
    let mut calls = [&USED[..], &["NodeStageVolume", "NodePublishVolume"]].concat();
    cluster.until_calls(&calls).await;
    assert_eq!(mount_lines(&paths.home), before, "nothing was mounted again");
    let mut text = String::new();
    open.rewind().unwrap();
    open.read_to_string(&mut text).unwrap();
    assert_eq!(text, "written without an agent");
    drop(open);

    // The unmount takes long.
    cluster
        .plugin
        .fault("NodeUnpublishVolume", 1, Happening::Waits)
        .await;
    cluster.site.done(&["unpublish", "data", NODE]).await;
    calls.push("NodeUnpublishVolume");
    cluster.until_calls(&calls).await;
    tokio::time::sleep(QUIET).await;
    cluster
        .site
        .expect_state("data", NODE, "pendingNodeUnpublish")
        .await;
    assert_eq!(cluster.attached(&id), [CSI_NODE], "it is still mounted");
    assert_eq!(is_mounted(&paths.target), can_mount());
    cluster.plugin.clear_faults().await;
    cluster.site.expect_state("data", NODE, "").await;
    calls.extend(["NodeUnstageVolume", "ControllerUnpublishVolume"]);
    assert_eq!(cluster.calls(), calls);
    assert_each_ended_before_the_next(&cluster, &calls[calls.len() - 3..]);
    assert_eq!(
        cluster.states("data").await,
        [
            "pendingPublish",
            "published",
            "pendingNodeUnpublish",
            "pendingUnpublish",
            ""
        ]
    );
    assert_eq!(mount_lines(&paths.home), [""; 0]);
    assert!(fs::symlink_metadata(&paths.link).is_err(), "the path is gone");
    assert_eq!(
        fs::read_to_string(&at_backend).unwrap(),
        "written without an agent"
    );
    cluster
        .site
        .done_with(&["delete", "volume", "data", "--yes"])
        .await;
    assert_eq!(cluster.plugin.backend().ids().unwrap().len(), 0);
}

/// Checks that the last call of each method had succeeded before the last one of the next method began.
fn assert_each_ended_before_the_next(cluster: &Cluster, methods: &[&str]) {
    let last = |method: &str| {
        let calls = cluster.plugin.calls_of(method).into_iter();
        calls.last().unwrap()
    };
    for pair in methods.windows(2) {
        let (first, next) = (last(pair[0]), last(pair[1]));
        assert_eq!(first.code.as_deref(), Some("OK"), "{first:?}");
        assert!(first.end.unwrap() <= next.start, "{first:?} {next:?}");
    }
}

#[tokio::test]
async fn a_device_is_written_and_grows_at_its_path_and_a_volume_to_read_is_only_read() {
    let cluster = Cluster::start().await;
    let disk = |capacity: &str| {
        let mode = "{scope: singleNode, sharing: none, block: {}}";
        let spec =
            format!("{{capacity: {{required: {capacity}}}, driver: {{name: {DRIVER}}}, accessMode: {mode}}}");
        document("Volume", "disk", &spec)
    };
    let mode = "{scope: multiNode, sharing: all, mount: {}}";
    let spec = format!("{{driver: {{name: {DRIVER}}}, accessMode: {mode}}}");
    let shared = document("Volume", "shared", &spec);
    cluster.site.apply(&(disk("1Mi") + &shared)).await;

    let paths = cluster.publish("disk", &[]).await;
    let id = cluster.backend_id("disk").await;
    let device = fs::File::options().write(true).open(&paths.link).unwrap();
    device.write_all_at(b"block", 4096).unwrap();
    assert_eq!(fs::read(cluster.data(&id)).unwrap()[4096..4101], *b"block");
    assert_eq!(fs::metadata(&paths.link).unwrap().len(), 1 << 20);
    cluster.grow("disk", &disk("2Mi"), 2 << 20).await;
    assert_eq!(fs::metadata(&paths.link).unwrap().len(), 2 << 20);
    drop(device);

    let shared = cluster.publish("shared", &["--read-only"]).await;
    let id = cluster.backend_id("shared").await;
    let read_only = Published { read_only: true };
    assert_eq!(cluster.plugin.backend().nodes(&id).unwrap()[CSI_NODE], read_only);
    fs::write(cluster.data(&id).join("file"), "text").unwrap();
    assert_eq!(fs::read_to_string(shared.link.join("file")).unwrap(), "text");
    assert_eq!(is_read_only(&shared.target), can_mount());
    if can_mount() {
        let refused = fs::write(shared.link.join("other"), "text").unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ReadOnlyFilesystem);
    }

    for (volume, paths) in [("disk", paths), ("shared", shared)] {
        cluster.site.done_with(&["unpublish", volume, NODE]).await;
        assert_eq!(mount_lines(&paths.home), [""; 0]);
        assert!(fs::symlink_metadata(&paths.link).is_err(), "{volume}");
    }
}

/// The value of the secret.
const VALUE: &str = "s3cr3t-of-the-whole-way";

/// The calls that get the secret in a life that ends with the unpublication.
fn with_secrets() -> impl Iterator<Item = &'static str> {
    USED.into_iter().chain(["ControllerUnpublishVolume"])
}

#[tokio::test]
async fn the_secret_of_a_volume_reaches_both_sides_of_the_plugin_and_no_log_argument_file_or_other_record() {
    let mut cluster = Cluster::start_in(&[("RUST_LOG", "debug")]).await;
    let secrets = BTreeMap::from([("token".to_owned(), VALUE.to_owned())]);
    cluster.plugin.order(Order::ExpectSecrets(secrets)).await;
    // Each of them fails once with the value in its message.
    for method in with_secrets() {
        let prints = Happening::Fails(answer("Unavailable", "cannot log in with {secrets}"));
        cluster.plugin.fault(method, 1, prints).await;
    }
    let described = |capacity: &str| {
        let more = format!("capacity: {{required: {capacity}}}, secrets: [{{key: token, secret: backend}}],");
        volume("data", &more)
    };
    cluster
        .site
        .apply(&(secret("backend", "token", VALUE) + &described("1Mi")))
        .await;
    let paths = cluster.publish("data", &[]).await;
    fs::write(paths.link.join("file"), "text").unwrap();
    cluster.grow("data", &described("2Mi"), 2 << 20).await;
    expect_nowhere(&mut cluster, "while the volume is used").await;
    cluster.site.done_with(&["unpublish", "data", NODE]).await;
    // The agent tidies after its confirmation.
    eventually(SOON, "nothing is left on the node", async || {
        same(paths.home.exists(), false)
    })
    .await;
    expect_nowhere(&mut cluster, "after the volume was unpublished").await;

    for method in with_secrets() {
        let calls = cluster.plugin.calls_of(method);
        let with_it = calls.iter().filter(|call| call.begun.secrets == ["token"]);
        assert_eq!(with_it.count(), calls.len(), "{method}");
        assert!(calls.len() > 1, "{method} has failed once, and was repeated");
    }
    let scrubbed = "cannot log in with <secret>";
    let replica = cluster.site.replicas[0].log();
    assert!(replica.contains(scrubbed), "{replica}");
    let agent = cluster.agent.log();
    assert!(agent.contains(scrubbed), "{agent}");
}

/// Checks that the value of the secret is only where it was put.
async fn expect_nowhere(cluster: &mut Cluster, when: &str) {
    let arguments = arguments();
    assert!(
        arguments.contains("--csi-node="),
        "those of the agent are among them"
    );
    let options = cluster.plugin.options();
    let read = |file: &Path| fs::read_to_string(file).unwrap();
    let mut places = vec![
        ("an argument".to_owned(), arguments),
        ("a file of the agent".to_owned(), texts(&cluster.agent.state)),
        ("the plugin's log of calls".to_owned(), read(&options.log)),
        (
            "the plugin's output".to_owned(),
            read(cluster.plugin.output_file()),
        ),
        (
            "the agent's metrics".to_owned(),
            cluster.agent.get("/metrics").await.unwrap().body,
        ),
        ("the agent's log".to_owned(), cluster.agent.log()),
    ];
    let replica = &mut cluster.site.replicas[0];
    places.push((
        "the replica's metrics".to_owned(),
        replica.get("/metrics").await.unwrap().body,
    ));
    places.push(("the replica's log".to_owned(), replica.log()));
    let described = cluster.site.done(&["describe", "volume", "data"]).await;
    places.push(("what is described".to_owned(), described));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let stored = cluster.site.contents().await.into_iter();
    let stored = stored.filter(|kv| !kv.key.starts_with(b"/quorate/secrets/"));
    places.extend(stored.map(|kv| (text(&kv.key), text(&kv.value))));
    for (place, text) in places {
        assert!(!text.contains(VALUE), "{when}, the value is in {place}");
    }
}

/// The arguments of every process of this machine.
fn arguments() -> String {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    // What is no process, or one that has just ended, has none.
    let arguments = processes.filter_map(|entry| fs::read(entry.path().join("cmdline")).ok());
    let arguments = arguments.map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    arguments.collect::<Vec<_>>().join("\n")
}
