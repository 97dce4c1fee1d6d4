//! What waits for something goes on once that has happened.

use super::world::leader_with;
use super::*;
use crate::support::proxy::{Network, Proxy};
use quorate::volumes::controller::Times;
use quorate_dev::ports::free_port;

/// The first of the slow delays is 25.6 s.
const BEFORE_A_SLOW_DELAY: Duration = Duration::from_secs(20);

#[tokio::test]
async fn a_publication_that_waits_for_room_on_its_node_goes_on_when_another_volume_leaves_it() {
    let world = World::start().await;
    let leader = world.leader().await;
    for name in ["a", "b"] {
        world.apply(&volume(name, "")).await;
    }
    world.publish("a", "n1").await;
    let full = Happening::Fails(answer("ResourceExhausted", "the node is full"));
    world.plugin.fault("ControllerPublishVolume", 1, full).await;
    world.done(&["publish", "b", "n1"]).await;
    world.expect_blocked("b", Some("n1"), "ResourceExhausted").await;
    world.unpublish("a", "n1").await;
    let what = "b is published as soon as there is room";
    eventually(BEFORE_A_SLOW_DELAY, what, async || {
        same(world.plugin.calls_of("ControllerPublishVolume").len(), 3)
    })
    .await;
    world.expect_state("b", "n1", "published").await;
    leader.resign().await;
}

/// What leaves the node is a publication without a record: one that is undone, and one that an operator names.
#[tokio::test]
async fn a_publication_that_waits_for_room_goes_on_when_what_has_no_record_leaves_its_node() {
    let world = World::start().await;
    let leader = world.leader().await;
    for name in ["a", "b", "c"] {
        world.apply(&volume(name, "")).await;
        world.expect_created(name).await;
    }
    let id = world.backend_id("a").await;
    let (publish, waits) = ("ControllerPublishVolume", Happening::Waits);
    world
        .plugin
        .fault_for(publish, Some(&id), None, Some(1), waits)
        .await;
    world.done(&["publish", "a", "n1"]).await;
    world.expect_calls(publish, 1).await;
    let full = || Happening::Fails(answer("ResourceExhausted", "the node is full"));
    world.plugin.fault(publish, 1, full()).await;
    world.done(&["publish", "b", "n1"]).await;
    world.expect_blocked("b", Some("n1"), "ResourceExhausted").await;
    world.done(&["unpublish", "a", "n1", "--force", "--yes"]).await;
    world.plugin.release().await;
    let published = async |name: &str, calls: usize| {
        let what = format!("{name} is published as soon as there is room");
        eventually(BEFORE_A_SLOW_DELAY, &what, async || {
            same(world.plugin.calls_of(publish).len(), calls)
        })
        .await;
        world.expect_state(name, "n1", "published").await;
    };
    published("b", 3).await;

    world.plugin.fault(publish, 1, full()).await;
    world.done(&["publish", "c", "n1"]).await;
    world.expect_blocked("c", Some("n1"), "ResourceExhausted").await;
    // b is still there, and its record is not.
    world.done(&["unpublish", "b", "n1", "--force", "--yes"]).await;
    world.done_with(&["unpublish", "b", "--node-id", "csi-n1"]).await;
    published("c", 5).await;
    leader.resign().await;
}

#[tokio::test]
async fn a_publication_that_waits_for_another_of_its_volume_goes_on_when_that_has_ended() {
    let plugin = TestPlugin::start_with(|options| options.single_node = true).await;
    let world = World::with(plugin).await;
    let leader = world.leader().await;
    world.apply(&shared_volume("data", "")).await;
    world.publish("data", "n1").await;
    world.done(&["publish", "data", "n2"]).await;
    world
        .expect_blocked("data", Some("n2"), "FailedPrecondition")
        .await;
    world.unpublish("data", "n1").await;
    let what = "n2 gets the volume as soon as n1 has left it";
    eventually(BEFORE_A_SLOW_DELAY, what, async || {
        let state = world
            .publication("data", "n2")
            .await
            .unwrap()
            .status
            .unwrap()
            .state();
        same(state, quorate::proto::publication_status::State::Published)
    })
    .await;
    leader.resign().await;
}

#[tokio::test]
async fn a_plugin_whose_idle_connections_end_is_compared_all_the_same() {
    let port = free_port().unwrap();
    let plugin = TestPlugin::start_with(|options| {
        options.offers.list = true;
        options.offers.list_nodes = true;
        options.listen = format!("http://127.0.0.1:{port}").parse().unwrap();
    })
    .await;
    let proxy = Proxy::start(port);
    let world = World::without_objects(plugin).await;
    let spec = format!("{{endpoint: \"{}\"}}", proxy.url());
    world.apply(&document("Plugin", DRIVER, &spec)).await;
    world.apply(&volume("data", "")).await;
    let compare_every = Duration::from_secs(3);
    let leader = leader_with(&world.store, Times { compare_every }).await;
    world.expect_created("data").await;
    // Every connection has ended before the next comparison is due.
    let hangs_up = async {
        loop {
            tokio::time::sleep(Duration::from_millis(1500)).await;
            proxy.set(Network::Resets);
            // Long enough for the proxy to end every connection.
            tokio::time::sleep(Duration::from_millis(50)).await;
            proxy.set(Network::Passes);
        }
    };
    let compared = eventually(SOON, "it is compared", async || {
        match world.plugin.calls_of("ListVolumes").len() {
            0 | 1 => Err("no list was asked for twice"),
            _ => Ok(()),
        }
    });
    tokio::select! {
        () = compared => {}
        () = hangs_up => {}
    }
    leader.resign().await;
}
