//! The status of a plugin: in a record of its own, to which its volumes refer.

use std::time::Instant;

use quorate::etcd::{Event, KeyRange};
use quorate::store::{Follower, Update};
use tokio::net::UnixListener;
use tokio::task::JoinSet;

use super::*;
use crate::support::client::put_all;

/// Volumes that wait for the plugin: many more than it has room for.
const WAITING: usize = 20_000;

/// Records below `/quorate/` that were written during this time.
async fn writes_during(world: &World, time: Duration) -> usize {
    let range = KeyRange::prefix(*b"/quorate/");
    let mut follower = Follower::new(&world.store.etcd, range);
    let end = Instant::now() + time;
    let mut written = 0;
    while let Ok(update) = tokio::time::timeout_at(end.into(), follower.next()).await {
        if let Update::Events(events) = update {
            written += events
                .iter()
                .filter(|event| matches!(event, Event::Put(_)))
                .count();
        }
    }
    written
}

/// Answers at this socket like a plugin that crashes as soon as it is asked, and that is started again and again.
async fn crash_looping(socket: &std::path::Path) {
    loop {
        let listener = UnixListener::bind(socket).unwrap();
        drop(listener.accept().await);
        drop(listener);
        std::fs::remove_file(socket).unwrap();
        // The time that a supervisor takes to start it again.
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test]
async fn a_volume_that_needs_its_plugin_no_longer_does_not_wait_for_it() {
    let mut world = World::start().await;
    world.plugin.stop().await.unwrap();
    let leader = world.leader().await;
    world.apply(&volume("data", "")).await;
    world.expect_plugin("PluginUnreachable").await;
    world.delete("data").await;
    world.expect_plugin("Idle").await;
    let waiting = format!("quorate_csi_plugin_waiting_volumes{{driver_name=\"{DRIVER}\"}}");
    assert_eq!(leader.metric(&waiting), 0.0);
    leader.resign().await;
}

/// INV-9: less than ten writes a second, however many volumes wait.
#[tokio::test]
async fn a_plugin_that_crashes_again_and_again_costs_few_writes_though_many_volumes_wait() {
    let world = World::start().await;
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("csi.sock");
    let spec = format!("{{endpoint: \"unix://{}\"}}", socket.display());
    world.apply(&document("Plugin", DRIVER, &spec)).await;
    world.apply(&volume("v0", "")).await;
    let first = world.volume("v0").await.unwrap();
    let others = (1..WAITING).map(|number| {
        let (mut volume, name) = (first.clone(), format!("v{number}"));
        let metadata = volume.metadata.as_mut().unwrap();
        (metadata.uid, metadata.name) = (format!("{}-{number}", metadata.uid), name.clone());
        (format!("/quorate/volumes/{name}"), volume.encode_to_vec())
    });
    put_all(&world.store.etcd, others).await;
    let mut crashes = JoinSet::new();
    crashes.spawn(async move { crash_looping(&socket).await });
    let leader = world.leader().await;
    let time = Duration::from_secs(10);
    let written = writes_during(&world, time).await;
    assert!(written < 10 * 10, "{written} writes in {time:?}");
    // Every volume says so all the same.
    let all_say = |listed: &str| listed.lines().filter(|line| line.contains("Plugin")).count() == WAITING;
    world.shows(&["get", "volumes", "--no-headers"], all_say).await;
    crashes.shutdown().await;
    leader.resign().await;
}

#[tokio::test]
async fn a_plugin_shows_what_it_offers_and_what_waits_for_it() {
    let mut world = World::start().await;
    let leader = world.leader().await;
    world.apply(&volume("data", "")).await;
    world.expect_created("data").await;
    let listed = world.done(&["get", "plugins"]).await;
    assert!(listed.contains("STATE"), "{listed}");
    world.expect_plugin("Ready").await;
    let described = world.done(&["describe", "plugin", DRIVER]).await;
    assert!(described.contains("CREATE_DELETE_VOLUME"), "{described}");
    // Without it, the volumes that need it wait.
    world.plugin.stop().await.unwrap();
    world.done(&["publish", "data", "n1"]).await;
    world.expect_plugin("PluginUnreachable").await;
    let described = world.done(&["describe", "volume", "data"]).await;
    assert!(described.contains("csi.sock"), "{described}");
    let listed = world.done(&["get", "volumes"]).await;
    assert!(listed.contains("PluginUnreachable"), "{listed}");
    let series = |name: &str| format!("quorate_csi_plugin_{name}{{driver_name=\"{DRIVER}\"}}");
    assert_eq!(leader.metric(&series("ready")), 0.0);
    assert_eq!(leader.metric(&series("waiting_volumes")), 1.0);
    world.plugin.launch().await.unwrap();
    world.expect_state("data", "n1", "published").await;
    world.expect_plugin("Ready").await;
    assert_eq!(leader.metric(&series("ready")), 1.0);
    // A plugin that is deleted leaves no status once no volume uses it.
    world
        .done(&["delete", "plugin", DRIVER, "--yes", "--force"])
        .await;
    world
        .done(&["delete", "volume", "data", "--yes", "--force"])
        .await;
    let key = world.store.keys.plugin_status(&parsed(DRIVER));
    eventually(SOON, "the status is gone", async || {
        same(world.read(&key).await, None)
    })
    .await;
    leader.resign().await;
}
