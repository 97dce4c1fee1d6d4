//! What waits for something goes on once that has happened.

use super::deletion::being_created;
use super::forced::tombstone;
use super::unreadable::{UNREADABLE, after_the_calls};
use super::world::leader_with;
use super::*;
use crate::support::leader::store_on;
use crate::support::proxy::{Network, Proxy};
use quorate::volumes::controller::Times;
use quorate_dev::ports::free_port;

/// The first of the slow delays is 25.6 s.
pub const BEFORE_A_SLOW_DELAY: Duration = Duration::from_secs(20);

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

/// The backend says so as it refuses to create the one, and to expand the other.
#[tokio::test]
async fn what_the_backend_has_no_room_for_goes_on_when_another_volume_is_deleted() {
    let plugin = TestPlugin::start_with(|options| options.offers.expand = true).await;
    let world = World::with(plugin).await;
    let leader = world.leader().await;
    for name in ["a", "b", "larger"] {
        world.apply(&volume(name, "capacity: {required: 1Mi},")).await;
        world.expect_created(name).await;
    }
    let full = || Happening::Fails(answer("ResourceExhausted", "the pool is full"));
    world.plugin.fault("CreateVolume", 1, full()).await;
    world.apply(&volume("new", "")).await;
    world.expect_blocked("new", None, "ResourceExhausted").await;
    world.delete("a").await;
    world.expect_created_within(BEFORE_A_SLOW_DELAY, "new").await;

    world.plugin.fault("ControllerExpandVolume", 1, full()).await;
    world.apply(&volume("larger", "capacity: {required: 2Mi},")).await;
    world.expect_blocked("larger", None, "ResourceExhausted").await;
    world.delete("b").await;
    let what = "it is expanded as soon as there is room";
    eventually(BEFORE_A_SLOW_DELAY, what, async || {
        same(world.plugin.calls_of("ControllerExpandVolume").len(), 2)
    })
    .await;
    world.expect_capacity("larger", 2 << 20).await;
    leader.resign().await;
}

/// A volume, called data, that is forgotten by force during its creation. The call waits. Returns the key of its tombstone.
async fn forgotten_during_creation(world: &World) -> Vec<u8> {
    world
        .apply(&world.plugin_document("{\"timeout\": \"60s\"}"))
        .await;
    being_created(world).await;
    forget(world).await
}

/// Forgets the volume data by force. Returns the key of its tombstone.
async fn forget(world: &World) -> Vec<u8> {
    world
        .done(&["delete", "volume", "data", "--yes", "--force"])
        .await;
    world.store.keys.tombstone(&parsed(&tombstone(world).await))
}

/// Has the call to create the volume end, and checks that what it has made is not undone.
async fn expect_not_undone(world: &World) {
    world.plugin.release().await;
    after_the_calls(world, "CreateVolume").await;
    assert_eq!(world.plugin.calls_of("DeleteVolume"), []);
}

/// Waits until what the call has made is undone, earlier than it is tried again by itself.
async fn expect_undone(world: &World) {
    eventually(BEFORE_A_SLOW_DELAY, "it is undone", async || {
        same(world.plugin.calls_of("DeleteVolume").len(), 1)
    })
    .await;
    world.delete("later").await;
    world.expect_empty_backend().await;
}

#[tokio::test]
async fn what_is_undone_once_its_tombstone_can_be_read_goes_on_when_the_tombstone_is_deleted() {
    let world = World::start().await;
    let leader = world.leader().await;
    let tombstone = forgotten_during_creation(&world).await;
    world.put(&tombstone, UNREADABLE).await;
    expect_not_undone(&world).await;
    world.commit(Txn::new().delete(&tombstone)).await;
    expect_undone(&world).await;
    leader.resign().await;
}

/// INV-12: without a tombstone, any volume that cannot be read may be the one.
#[tokio::test]
async fn what_is_undone_once_every_volume_can_be_read_goes_on_when_they_can() {
    let world = World::start().await;
    let leader = world.leader().await;
    let tombstone = forgotten_during_creation(&world).await;
    let other = world.store.keys.volume(&parsed("other"));
    world.put(&other, UNREADABLE).await;
    world.commit(Txn::new().delete(&tombstone)).await;
    expect_not_undone(&world).await;
    world.commit(Txn::new().delete(&other)).await;
    expect_undone(&world).await;
    leader.resign().await;
}

/// No record names the secret any more.
#[tokio::test]
async fn what_is_undone_with_a_secret_goes_on_when_the_secret_exists_again() {
    let world = World::start().await;
    world
        .apply(&world.plugin_document("{\"timeout\": \"60s\"}"))
        .await;
    let leader = world.leader().await;
    let backend = secret("backend", "token", "s3cr3t");
    world.apply(&backend).await;
    world.plugin.fault("CreateVolume", 1, Happening::Waits).await;
    world
        .apply(&volume("data", "secrets: [{key: token, secret: backend}],"))
        .await;
    world.expect_calls("CreateVolume", 1).await;
    forget(&world).await;
    let key = world.store.keys.secret(&parsed("backend"));
    world.commit(Txn::new().delete(&key)).await;
    expect_not_undone(&world).await;
    world.apply(&backend).await;
    expect_undone(&world).await;
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

/// INV-9: a compaction is no change.
#[tokio::test]
async fn a_list_that_is_read_again_wakes_what_has_changed_and_no_other_volume() {
    let world = World::start().await;
    // It is not repeated before something changes.
    let (refused, why) = ("InvalidArgument", "no such tier");
    let fails = Happening::Fails(answer(refused, why));
    world.plugin.fault("CreateVolume", u32::MAX, fails).await;
    let proxy = Proxy::in_front_of(&world.etcd.endpoints()[0]);
    let leader = leader_with(&store_on(&[proxy.url()]).await, Times::default()).await;
    // The answer to the last write before the outage may be lost, so that the leader has to take it for the write of another: that
    // of one more volume.
    for name in ["rests", "changes", "before"] {
        world.apply(&volume(name, "")).await;
        world.expect_blocked(name, None, refused).await;
    }
    // The leader sees none of this as it happens, and its history is gone then.
    proxy.set(Network::Resets);
    world.apply(&volume("changes", "availability: pause,")).await;
    world.apply(&volume("comes", "")).await;
    world.etcd.compact();
    proxy.set(Network::Passes);
    world.expect_blocked("comes", None, refused).await;
    let lists = "quorate_watch_restarts_total{reason=\"compacted\"}";
    eventually(SOON, "a range is listed again", async || {
        match leader.metric(lists) {
            0.0 => Err("none is"),
            _ => Ok(()),
        }
    })
    .await;
    world.apply(&volume("last", "")).await;
    world.expect_blocked("last", None, refused).await;
    let calls = world.plugin.calls_of("CreateVolume");
    // One call each, and one more for the change.
    for (name, expected) in [("rests", 1), ("changes", 2), ("comes", 1), ("last", 1)] {
        let id = world.backend_id(name).await;
        let of_it = calls.iter().filter(|call| call.begun.volume == id);
        assert_eq!(of_it.count(), expected, "{name}: {calls:?}");
    }
    leader.resign().await;
}
