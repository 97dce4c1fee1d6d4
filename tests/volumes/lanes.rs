//! Lanes: what is urgent does not wait for what is slow.

use quorate::volumes::lanes::BESIDE_CALLS;
use quorate_dev::observe::sample;

use super::delays::micros_now;
use super::*;

/// Volumes whose creation hangs, more than have operations at a time.
const HANGING: usize = 16 + BESIDE_CALLS + 50;

fn hanging() -> String {
    (0..HANGING)
        .map(|number| volume(&format!("v{number}"), ""))
        .collect()
}

#[tokio::test]
async fn a_volume_is_detached_and_attached_and_deleted_while_creations_hang() {
    let world = World::start().await;
    world.apply(&world.plugin_document("{\"timeout\": \"1h\"}")).await;
    let leader = world.leader().await;
    world.apply(&volume("data", "")).await;
    world.publish("data", "n1").await;
    world.plugin.fault("CreateVolume", None, Happening::Hangs).await;
    world.apply(&hanging()).await;
    world.expect_calls("CreateVolume", 17).await;
    world.unpublish("data", "n1").await;
    world.publish("data", "n2").await;
    world.unpublish("data", "n2").await;
    world.delete("data").await;
    assert_eq!(world.plugin.calls_of("CreateVolume").len(), 17, "they hang");
    leader.resign().await;
}

#[tokio::test]
async fn a_detachment_does_not_wait_for_attachments_that_hang() {
    let world = World::start().await;
    let more = "{\"timeout\": \"1h\", \"concurrency\": 1}";
    world.apply(&world.plugin_document(more)).await;
    let leader = world.leader().await;
    for name in ["a", "b"] {
        world.apply(&volume(name, "")).await;
    }
    world.publish("a", "n1").await;
    world
        .plugin
        .fault("ControllerPublishVolume", None, Happening::Hangs)
        .await;
    world.done(&["publish", "b", "n2"]).await;
    world.expect_calls("ControllerPublishVolume", 2).await;
    world.unpublish("a", "n1").await;
    leader.resign().await;
}

#[tokio::test]
async fn what_a_volume_waits_for_does_not_hold_up_what_is_wanted_of_it_since() {
    let world = World::start().await;
    let limits = "{\"timeout\": \"1h\", \"perNode\": 1}";
    world.apply(&world.plugin_document(limits)).await;
    let leader = world.leader().await;
    for name in ["a", "b"] {
        world.apply(&volume(name, "")).await;
        world.expect_created(name).await;
    }
    let publish = "ControllerPublishVolume";
    world.plugin.fault(publish, 1, Happening::Waits).await;
    world.done(&["publish", "a", "n1"]).await;
    world.expect_calls(publish, 1).await;
    let waiting = format!("quorate_csi_plugin_waiting_volumes{{driver_name=\"{DRIVER}\"}}");
    let expect_waiting = async |volumes: f64| {
        eventually(SOON, &format!("{volumes} volumes wait"), async || {
            same(sample(&leader.metrics(), &waiting), Some(volumes))
        })
        .await;
    };
    world.done(&["publish", "b", "n1"]).await;
    expect_waiting(1.0).await;
    // It takes no call.
    world.unpublish("b", "n1").await;
    expect_waiting(0.0).await;
    // Nor does it wait for that node where it is wanted elsewhere.
    world.publish("b", "n2").await;
    world.unpublish("b", "n2").await;
    world.done(&["publish", "b", "n1"]).await;
    expect_waiting(1.0).await;
    world.plugin.release().await;
    for name in ["a", "b"] {
        world.expect_state(name, "n1", "published").await;
    }
    world.check_calls();
    leader.resign().await;
}

/// However long its calls may take.
#[tokio::test]
async fn a_plugin_that_is_wedged_in_its_handshake_is_noticed_at_once() {
    let world = World::start().await;
    world.apply(&world.plugin_document("{\"timeout\": \"1h\"}")).await;
    world.plugin.fault("Probe", None, Happening::Hangs).await;
    let leader = world.leader().await;
    world.apply(&volume("data", "")).await;
    let described = world.expect_plugin("PluginHandshakeFailed").await;
    assert!(described.contains("within 5s"), "{described}");
    world.plugin.clear_faults().await;
    world.expect_created("data").await;
    leader.resign().await;
}

#[tokio::test]
async fn a_plugin_that_answers_nothing_any_more_is_probed_and_its_session_ends() {
    let world = World::start().await;
    let limits = "{\"timeout\": \"1h\", \"timeouts\": {\"create\": \"300ms\"}}";
    world.apply(&world.plugin_document(limits)).await;
    let leader = world.leader().await;
    world.apply(&volume("first", "")).await;
    world.expect_created("first").await;
    // A plugin that is slow at one thing, and answers, keeps its session.
    world.plugin.fault("CreateVolume", None, Happening::Hangs).await;
    let probes = || world.plugin.calls_of("Probe").len();
    let before = probes();
    world.apply(&volume("data", "")).await;
    eventually(SOON, "it is probed", async || match probes() > before {
        true => Ok(()),
        false => Err("not yet"),
    })
    .await;
    world.expect_plugin("Ready").await;
    world.plugin.fault("Probe", None, Happening::Hangs).await;
    // What has failed for long rests for long.
    world.done(&["retry", "volume", "data"]).await;
    world.expect_plugin("PluginHandshakeFailed").await;
    world.plugin.clear_faults().await;
    world.expect_created("data").await;
    leader.resign().await;
}

/// The limit of the call is an hour, and the next session would wait for its permit.
#[tokio::test]
async fn a_call_ends_with_the_session_that_a_probe_has_ended() {
    let world = World::start().await;
    let limits = "{\"timeout\": \"1h\", \"concurrency\": 1, \"timeouts\": {\"create\": \"300ms\"}}";
    world.apply(&world.plugin_document(limits)).await;
    let leader = world.leader().await;
    world.apply(&volume("data", "")).await;
    world.expect_created("data").await;
    world
        .plugin
        .fault("ControllerPublishVolume", 1, Happening::Hangs)
        .await;
    world.done(&["publish", "data", "n1"]).await;
    world.expect_calls("ControllerPublishVolume", 1).await;
    for method in ["CreateVolume", "Probe"] {
        world.plugin.fault(method, None, Happening::Hangs).await;
    }
    world.apply(&volume("other", "")).await;
    world.expect_plugin("PluginHandshakeFailed").await;
    world.plugin.clear_faults().await;
    world.expect_state("data", "n1", "published").await;
    leader.resign().await;
}

/// Volumes whose creation is queued.
const QUEUED: usize = 10_000;

/// How long each creation takes.
const CREATE_MS: u64 = 5_000;

/// A detachment is begun within this.
const BEGUN_MICROS: u64 = 100_000;

/// Or within as many writes of one key, where those are slow.
const ROUND_TRIPS: u64 = 50;

#[tokio::test]
async fn a_detachment_waits_for_none_of_ten_thousand_creations_that_are_queued() {
    let world = World::start().await;
    let leader = world.leader().await;
    world.apply(&shared_volume("data", "")).await;
    world.expect_created("data").await;
    let nodes = ["n1", "n2", "n3"];
    for node in nodes {
        world.publish("data", node).await;
    }
    world
        .plugin
        .fault("CreateVolume", None, Happening::DelaysMs(CREATE_MS))
        .await;
    world.apply(&volume("v", "")).await;
    let template = world.volume("v").await.unwrap();
    for hundred in 0..QUEUED / 100 {
        let mut txn = Txn::new();
        for number in 0..100 {
            let mut volume = template.clone();
            let name = parsed(&format!("v{hundred}-{number}"));
            let metadata = volume.metadata.as_mut().unwrap();
            (metadata.name, metadata.uid) = (name.to_string(), format!("u{hundred}-{number}"));
            volume.status = Some(Default::default());
            txn = txn.put(&world.store.keys.volume(&name), volume.encode_to_vec());
        }
        world.commit(txn).await;
    }
    let waiting = format!("quorate_csi_plugin_waiting_volumes{{driver_name=\"{DRIVER}\"}}");
    eventually(SOON, "they are queued", async || {
        // The leader sets it for the first time some seconds after it began.
        let queued = sample(&leader.metrics(), &waiting).unwrap_or(0.0);
        match queued > 0.95 * QUEUED as f64 {
            true => Ok(()),
            false => Err(queued),
        }
    })
    .await;
    let (mut soonest, mut round_trip) = (u64::MAX, 0);
    for node in nodes {
        let asked = micros_now();
        world.put(b"/round-trip", "").await;
        round_trip = round_trip.max(micros_now().saturating_sub(asked));
        let before = world.plugin.calls_of("ControllerUnpublishVolume").len();
        let confirmed = micros_now();
        world.confirm_unpublished("data", node).await;
        world.expect_state("data", node, "").await;
        let calls = world.plugin.calls_of("ControllerUnpublishVolume");
        soonest = soonest.min(calls[before].start.saturating_sub(confirmed));
    }
    // On a machine that is slow, so is the way through etcd, the leader and the plugin.
    let limit = BEGUN_MICROS.max(ROUND_TRIPS * round_trip);
    let figures = format!("begun after {soonest} µs, a round trip to etcd took {round_trip} µs");
    eprintln!("{figures}");
    assert!(soonest < limit, "{figures}");
    leader.resign().await;
}
