//! The agent, the plugin and the node restart: what is mounted is compared, and idempotent calls are repeated.

use std::fs;

use quorate::proto::NodePublication;
use quorate::proto::node_publication::Instruction;
use quorate_dev::csi_plugin::faults::Happening;

use super::mounted::{can_mount, is_mounted, unmount};
use super::world::{World, unpublish, unpublished};
use crate::support::wait::{QUIET, SOON, eventually, same};

#[tokio::test]
async fn a_volume_outlives_the_agent_and_its_restart() {
    let mut world = World::start().await;
    let volume = world.volume("data").await;
    world.show(vec![volume.clone()]);
    world.until("published", 1).await;
    let file = world.path(&volume).join("file");
    fs::write(&file, "before").unwrap();
    world.stop_agent();
    assert_eq!(
        fs::read_to_string(&file).unwrap(),
        "before",
        "nothing is unmounted at the end"
    );
    world.start_agent();
    world.until("published", 1).await;
    assert_eq!(fs::read_to_string(&file).unwrap(), "before");
    let calls = ["NodeStageVolume", "NodePublishVolume"].repeat(2);
    assert_eq!(world.calls(), calls, "repeated, and idempotent");

    // Wanted back while no agent runs.
    world.stop_agent();
    world.show(vec![unpublish(&volume)]);
    world.start_agent();
    world.until_confirmed(&[unpublished(&volume)]).await;
    world.until_gone(&volume).await;
}

#[tokio::test]
async fn an_unpublication_that_the_agent_died_of_is_completed_by_the_next_one() {
    let mut world = World::start().await;
    let volume = world.volume("data").await;
    world.show(vec![volume.clone()]);
    world.until("published", 1).await;
    world.refuse_confirmations(u32::MAX);
    world.show(vec![unpublish(&volume)]);
    eventually(SOON, "the plugin has done its part", async || {
        same(world.plugin.calls_of("NodeUnstageVolume").len(), 1)
    })
    .await;
    world.stop_agent();
    world.refuse_confirmations(0);
    world.start_agent();
    world.until_confirmed(&[unpublished(&volume)]).await;
    world.until_gone(&volume).await;
}

#[tokio::test]
async fn after_a_restart_of_the_plugin_its_volumes_are_published_again() {
    let mut world = World::start().await;
    let volume = world.volume("data").await;
    world.show(vec![volume.clone()]);
    world.until("published", 1).await;
    fs::write(world.path(&volume).join("file"), "before").unwrap();
    world.plugin.kill().await.unwrap();
    assert_eq!(
        fs::read_to_string(world.path(&volume).join("file")).unwrap(),
        "before"
    );
    world.plugin.launch().await.unwrap();
    world
        .until_calls(&["NodeStageVolume", "NodePublishVolume"].repeat(2))
        .await;
    world.until("published", 1).await;
    assert_eq!(
        fs::read_to_string(world.path(&volume).join("file")).unwrap(),
        "before"
    );
    world.show(vec![unpublish(&volume)]);
    world.until_confirmed(&[unpublished(&volume)]).await;
    world.until_gone(&volume).await;
}

/// As a reboot leaves the node: the records are there and the mounts are gone. Without mounts, the link of the plugin goes.
#[tokio::test]
async fn mounts_that_are_gone_are_made_again_by_a_new_agent() {
    let mut world = World::start().await;
    let volume = world.volume("data").await;
    world.show(vec![volume.clone()]);
    world.until("published", 1).await;
    fs::write(world.path(&volume).join("file"), "before").unwrap();
    world.stop_agent();
    let paths = world.paths(&volume);
    if can_mount() {
        unmount(&paths.target);
        unmount(&paths.staging);
    } else {
        fs::remove_file(&paths.target).unwrap();
    }
    assert!(!paths.link.join("file").exists());
    world.start_agent();
    world.until("published", 1).await;
    assert_eq!(fs::read_to_string(paths.link.join("file")).unwrap(), "before");
    assert_eq!(is_mounted(&paths.target), can_mount());
}

#[tokio::test]
async fn a_mount_that_goes_under_a_running_agent_is_made_again() {
    let world = World::start().await;
    let volume = world.volume("data").await;
    world.show(vec![volume.clone()]);
    world.until("published", 1).await;
    fs::write(world.path(&volume).join("file"), "before").unwrap();
    if !can_mount() {
        eprintln!(
            "without mounts, a target that goes is covered by mounts_that_are_gone_are_made_again_by_a_new_agent"
        );
        assert_eq!(world.calls().len(), 2);
        return;
    }
    let paths = world.paths(&volume);
    unmount(&paths.target);
    unmount(&paths.staging);
    eventually(SOON, "it is mounted again", async || {
        same(is_mounted(&paths.target), true)
    })
    .await;
    world.until("published", 1).await;
    assert_eq!(fs::read_to_string(paths.link.join("file")).unwrap(), "before");
}

/// A view that is older than the confirmation: another replica may show it.
#[tokio::test]
async fn what_was_confirmed_is_not_published_again_by_a_late_view() {
    let world = World::start().await;
    let volume = world.volume("data").await;
    world.show(vec![volume.clone()]);
    world.until("published", 1).await;
    world.show(vec![unpublish(&volume)]);
    world.until_confirmed(&[unpublished(&volume)]).await;
    let calls = world.calls();
    world.show(vec![volume.clone()]);
    world.until("blocked", 1).await;
    tokio::time::sleep(QUIET).await;
    assert_eq!(world.calls(), calls);
    // The publication has ended, and starts over.
    world.show(vec![]);
    world.until("blocked", 0).await;
    world.show(vec![volume]);
    world.until("published", 1).await;
}

/// The view cannot show a publication whole for a while, as where a secret cannot be read.
#[tokio::test]
async fn a_volume_in_use_is_left_as_it_is_while_the_view_does_not_show_it_whole() {
    let world = World::start().await;
    let volume = world.volume("data").await;
    world.show(vec![volume.clone()]);
    world.until("published", 1).await;
    let mut unknown = volume.clone();
    unknown.set_instruction(Instruction::Unspecified);
    unknown.publish_context.clear();
    unknown.volume_context.clear();
    world.show(vec![unknown]);
    tokio::time::sleep(QUIET).await;
    world.show(vec![volume]);
    tokio::time::sleep(QUIET).await;
    world.until("published", 1).await;
    assert_eq!(world.calls(), ["NodeStageVolume", "NodePublishVolume"]);
}

/// INV-6: cut off, the node does not know what an operator has confirmed in its place.
#[tokio::test]
async fn without_a_session_nothing_is_taken_into_use_and_everything_may_be_given_back() {
    let mut world = World::start().await;
    let volume = world.volume("data").await;
    world.show(vec![volume.clone()]);
    world.until("published", 1).await;
    world.session.send_replace(Some("cut off".to_owned()));
    world.start_agent();
    world.until("blocked", 1).await;
    let paths = world.paths(&volume);
    if can_mount() {
        unmount(&paths.target);
        unmount(&paths.staging);
    }
    tokio::time::sleep(QUIET).await;
    assert_eq!(world.calls(), ["NodeStageVolume", "NodePublishVolume"]);
    world.session.send_replace(None);
    world.until("published", 1).await;
    world.session.send_replace(Some("cut off".to_owned()));
    world.show(vec![unpublish(&volume)]);
    world.until_confirmed(&[unpublished(&volume)]).await;
    world.until_gone(&volume).await;
}

/// INV-6: while there was no session, the volume may have become another node's. The view of the next session is there before the
/// session, and both reach the agent at once.
#[tokio::test]
async fn by_a_view_that_a_later_one_has_replaced_nothing_is_taken_into_use_as_a_session_begins() {
    let world = World::start().await;
    let volume = world.volume("data").await;
    for _ in 0..50 {
        world.session.send_replace(Some("cut off".to_owned()));
        world.show(vec![volume.clone()]);
        world.until("blocked", 1).await;
        world.show(vec![]);
        world.session.send_replace(None);
        world.until("blocked", 0).await;
    }
    tokio::time::sleep(QUIET).await;
    let none: [&str; 0] = [];
    assert_eq!(world.calls(), none);
}

/// Another replica may show less for a moment, while the plugin is about to mount the volume.
#[tokio::test]
async fn a_volume_that_leaves_the_view_while_it_is_staged_is_the_agents_own_when_it_is_back() {
    let world = World::start().await;
    let volume = world.volume("data").await;
    world.plugin.fault("NodeStageVolume", 1, Happening::Waits).await;
    world.show(vec![volume.clone()]);
    world.until_calls(&["NodeStageVolume"]).await;
    world.show(vec![]);
    world.until("publishing", 0).await;
    let paths = world.paths(&volume);
    assert!(
        paths.record.exists() && paths.staging.is_dir(),
        "without them, the mount would be a foreign one"
    );
    world.plugin.release().await;
    if can_mount() {
        eventually(SOON, "it is staged", async || {
            same(is_mounted(&paths.staging), true)
        })
        .await;
    }
    world.show(vec![volume.clone()]);
    world.until("published", 1).await;
    world.show(vec![unpublish(&volume)]);
    world.until_confirmed(&[unpublished(&volume)]).await;
    world.until_gone(&volume).await;
}

/// Shows a volume more than the plugin has places for calls, and holds the calls.
async fn one_waits_for_its_place(world: &World) -> Vec<NodePublication> {
    let mut volumes = Vec::new();
    for number in 0..=16 {
        volumes.push(world.volume(&format!("v{number}")).await);
    }
    world
        .plugin
        .fault("NodeStageVolume", None, Happening::Waits)
        .await;
    world.show(volumes.clone());
    world.until_calls(&["NodeStageVolume"; 16]).await;
    volumes
}

/// INV-6: while a volume waits for its place, it may become another node's.
#[tokio::test]
async fn a_call_that_waited_for_its_place_is_not_made_after_the_session_is_lost() {
    let world = World::start().await;
    one_waits_for_its_place(&world).await;
    // An operator confirms in the node's place, and another node gets the volumes.
    world.session.send_replace(Some("cut off".to_owned()));
    world.plugin.release().await;
    world.until("blocked", 17).await;
    tokio::time::sleep(QUIET).await;
    assert_eq!(world.calls(), ["NodeStageVolume"; 16]);
    world.session.send_replace(None);
    world.until("published", 17).await;
}

/// The same where the view says meanwhile that the publication is over.
#[tokio::test]
async fn a_call_that_waited_for_its_place_is_not_made_for_a_publication_that_is_over() {
    let world = World::start().await;
    let mut volumes = one_waits_for_its_place(&world).await;
    let calls = world.plugin.calls_of("NodeStageVolume");
    let is_called = |volume: &NodePublication| {
        let mut calls = calls.iter();
        calls.any(|call| call.begun.volume == volume.volume_id)
    };
    let at = volumes.iter().position(|volume| !is_called(volume)).unwrap();
    let over = volumes.remove(at);
    world.show(volumes.clone());
    world.until("publishing", 16).await;
    world.plugin.release().await;
    world.until("published", 16).await;
    let calls = world.plugin.calls().unwrap().into_iter();
    let mut about = calls.filter(|call| call.begun.volume == over.volume_id);
    assert!(about.all(|call| !call.begun.method.starts_with("Node")));
}
