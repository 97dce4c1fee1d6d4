//! A plugin that fails, hangs, loses answers or lies, and a volume that is in use.

use std::fs;

use quorate_dev::csi_plugin::faults::Happening;

use super::mounted::{can_mount, is_mounted};
use super::world::{World, unpublish, unpublished};
use crate::support::csi::answer;
use crate::support::wait::{QUIET, SOON, eventually};

/// INV-6: the answer of the plugin, and what is mounted after it.
#[tokio::test]
async fn a_volume_is_confirmed_only_after_it_is_unmounted() {
    // The plugin says that it has unmounted the volume, and has not. Without mounts, it says that it cannot.
    let lies = match can_mount() {
        true => Happening::Pretends,
        false => Happening::Fails(answer("Internal", "target is busy")),
    };
    for method in ["NodeUnpublishVolume", "NodeUnstageVolume"] {
        let world = World::start().await;
        let volume = world.volume("data").await;
        world.show(vec![volume.clone()]);
        world.until("published", 1).await;
        world.plugin.fault(method, None, lies.clone()).await;
        world.show(vec![unpublish(&volume)]);
        eventually(SOON, "the call is repeated", async || {
            match world.plugin.calls_of(method).len() {
                0..3 => Err("not yet"),
                _ => Ok(()),
            }
        })
        .await;
        world.until("blocked", 1).await;
        assert_eq!(world.confirmed(), [], "{method}");
        world.plugin.clear_faults().await;
        world.until_confirmed(&[unpublished(&volume)]).await;
        world.until_gone(&volume).await;
    }
}

#[tokio::test]
async fn a_volume_in_use_is_confirmed_once_its_programs_have_ended() {
    let world = World::start().await;
    let volume = world.volume("data").await;
    world.show(vec![volume.clone()]);
    world.until("published", 1).await;
    let file = world.paths(&volume).target.join("file");
    fs::write(&file, "text").unwrap();
    let in_use = fs::File::open(&file).unwrap();
    world.show(vec![unpublish(&volume)]);
    if can_mount() {
        world.until("blocked", 1).await;
        tokio::time::sleep(QUIET).await;
        assert!(is_mounted(&world.paths(&volume).target));
        assert_eq!(world.confirmed(), []);
        assert!(
            fs::symlink_metadata(world.path(&volume)).is_err(),
            "no other program finds it"
        );
    } else {
        eprintln!("without mounts, the kernel does not hold a volume that is in use");
    }
    drop(in_use);
    world.until_confirmed(&[unpublished(&volume)]).await;
    world.until_gone(&volume).await;
}

#[tokio::test]
async fn a_failed_publication_is_staged_and_published_again_until_it_succeeds() {
    let world = World::start().await;
    let volume = world.volume("data").await;
    let fails = Happening::Fails(answer("Unavailable", "try again"));
    world.plugin.fault("NodePublishVolume", 2, fails).await;
    world.show(vec![volume.clone()]);
    world.until("published", 1).await;
    assert_eq!(world.calls(), ["NodeStageVolume", "NodePublishVolume"].repeat(3));
    assert!(world.path(&volume).exists());
}

#[tokio::test]
async fn a_plugin_that_dies_of_a_call_is_called_again() {
    for method in ["NodeStageVolume", "NodePublishVolume"] {
        for happens in [Happening::Crashes, Happening::CrashesAfter] {
            let mut world = World::start().await;
            let volume = world.volume("data").await;
            world.plugin.fault(method, 1, happens).await;
            world.show(vec![volume.clone()]);
            let exited = world.plugin.process().unwrap().exited();
            tokio::time::timeout(SOON, exited).await.unwrap().unwrap();
            world.plugin.launch().await.unwrap();
            world.until("published", 1).await;
            fs::write(world.path(&volume).join("file"), "text").unwrap();
            assert!(world.data(&volume).join("file").exists());
        }
    }
}

/// INV-8, and INV-6: one call at a time about the volume that hangs.
#[tokio::test]
async fn a_call_that_hangs_delays_no_other_volume() {
    let world = World::start().await;
    let (stuck, free) = (world.volume("stuck").await, world.volume("free").await);
    let id = stuck.volume_id.as_str();
    let waits = Happening::Waits;
    world
        .plugin
        .fault_for("NodeStageVolume", Some(id), None, None, waits)
        .await;
    world.show(vec![stuck.clone(), free.clone()]);
    world.until("published", 1).await;
    assert!(world.path(&free).exists() && !world.path(&stuck).exists());
    // Wanted back while it hangs.
    world.show(vec![unpublish(&stuck), free]);
    tokio::time::sleep(QUIET).await;
    let calls = world.plugin.calls().unwrap();
    let of_stuck = calls
        .iter()
        .filter(|call| call.begun.volume == id && call.begun.method.starts_with("Node"));
    assert_eq!(of_stuck.count(), 1);
    world.plugin.release().await;
    world.until_confirmed(&[unpublished(&stuck)]).await;
    world.until_gone(&stuck).await;
}

/// INV-9.
#[tokio::test]
async fn what_the_plugin_refuses_for_good_is_not_asked_for_again_at_once() {
    let world = World::start().await;
    let volume = world.volume("data").await;
    let refuses = Happening::Fails(answer("InvalidArgument", "no such file system"));
    world.plugin.fault("NodeStageVolume", None, refuses).await;
    world.show(vec![volume.clone()]);
    world.until("blocked", 1).await;
    tokio::time::sleep(QUIET).await;
    assert_eq!(world.calls(), ["NodeStageVolume"]);
    // A change by someone else ends the rest.
    world.plugin.clear_faults().await;
    let mut changed = volume;
    changed
        .publish_context
        .insert("portal".to_owned(), "another".to_owned());
    world.show(vec![changed]);
    world.until("published", 1).await;
}

#[tokio::test]
async fn a_publication_with_another_context_is_published_again() {
    let world = World::start().await;
    let mut volume = world.volume("data").await;
    world.show(vec![volume.clone()]);
    world.until("published", 1).await;
    volume
        .publish_context
        .insert("portal".to_owned(), "another".to_owned());
    world.show(vec![volume]);
    world
        .until_calls(&["NodeStageVolume", "NodePublishVolume"].repeat(2))
        .await;
}
