//! Mounts whose server is gone: what touches one waits in the kernel. The agent touches none (INV-8).
//!
//! Each test has threads to spare: with an agent that does touch one, it fails, and does not wait itself.

use std::fs;
use std::path::PathBuf;

use quorate::agent::volumes::paths::Paths;
use quorate::proto::NodePublication;
use quorate_dev::csi_plugin::faults::Happening;

use super::mounted::{Hung, can_hang, is_mounted, unmount};
use super::world::{World, unpublish, unpublished};
use crate::support::wait::{SOON, eventually};

/// A place of a volume.
type Place = fn(&Paths) -> &PathBuf;

/// Holds up the calls of the plugin about a volume, as the volume holds up those of a real one.
async fn hold_calls(world: &World, volume: &NodePublication) {
    let id = Some(volume.volume_id.as_str());
    for method in [
        "NodeStageVolume",
        "NodePublishVolume",
        "NodeUnpublishVolume",
        "NodeUnstageVolume",
    ] {
        let waits = Happening::Waits;
        world.plugin.fault_for(method, id, None, None, waits).await;
    }
}

/// Publishes another volume and gives it back, while this one is in the view as it is.
async fn another_comes_and_goes(world: &World, name: &str, stuck: &NodePublication) {
    let free = world.volume(name).await;
    world.show(vec![stuck.clone(), free.clone()]);
    let path = world.path(&free).join("file");
    eventually(SOON, "the other volume is there", async || {
        fs::write(&path, "text").map_err(|error| error.to_string())
    })
    .await;
    let before = world.confirmed();
    world.show(vec![stuck.clone(), unpublish(&free)]);
    world
        .until_confirmed(&[before, vec![unpublished(&free)]].concat())
        .await;
    world.show(vec![stuck.clone()]);
}

/// The volume was mounted by the agent's plugin, and its server is gone since then.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_volume_that_hangs_holds_up_neither_other_volumes_nor_the_agent() {
    if !can_hang() {
        return;
    }
    let places: [(&str, Place); 2] = [
        ("target", |paths| &paths.target),
        ("staging", |paths| &paths.staging),
    ];
    for (name, place) in places {
        let mut world = World::start().await;
        let stuck = world.volume("stuck").await;
        world.show(vec![stuck.clone()]);
        world.until("published", 1).await;
        let paths = world.paths(&stuck);
        let place = place(&paths).clone();
        world.stop_agent();
        unmount(&place);
        let hung = Hung::at(&place).await;
        hold_calls(&world, &stuck).await;
        // The agent starts with it, gets other volumes, has to give it back, and ends.
        world.start_agent();
        another_comes_and_goes(&world, "first", &stuck).await;
        let ending = unpublish(&stuck);
        world.show(vec![ending.clone()]);
        another_comes_and_goes(&world, "second", &ending).await;
        let confirmed = world.confirmed();
        assert!(!confirmed.contains(&unpublished(&stuck)), "{name}: it is mounted");
        assert!(is_mounted(&place), "{name}: it is not unmounted");
        world.stop_agent();
        // Its server is back, and the plugin with it.
        drop(hung);
        world.plugin.release().await;
        world.start_agent();
        let all = [confirmed, vec![unpublished(&stuck)]].concat();
        world.until_confirmed(&all).await;
        world.until_gone(&stuck).await;
    }
}

/// INV-12: a mount that is not the agent's, wherever it is.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_foreign_mount_that_hangs_blocks_its_volume_alone() {
    if !can_hang() {
        return;
    }
    let places: [(&str, Place, &str); 5] = [
        ("target", |paths| &paths.target, "foreign"),
        ("staging", |paths| &paths.staging, "foreign"),
        ("the directory of the volume", |paths| &paths.home, "foreign"),
        ("the path for programs", |paths| &paths.link, "blocked"),
        // A record that cannot be read claims no mount, and cannot be written.
        ("the record", |paths| &paths.record, "blocked"),
    ];
    for (name, place, state) in places {
        let mut world = World::start().await;
        let stuck = world.volume("stuck").await;
        let paths = world.paths(&stuck);
        let place = place(&paths).clone();
        fs::create_dir_all(&place).unwrap();
        let hung = Hung::at(&place).await;
        world.show(vec![stuck.clone()]);
        world.until(state, 1).await;
        another_comes_and_goes(&world, "free", &stuck).await;
        world.start_agent();
        world.until(state, 1).await;
        assert!(is_mounted(&place), "{name}");
        let calls = world.plugin.calls().unwrap().into_iter();
        let of_stuck = calls.filter(|call| call.begun.volume == stuck.volume_id);
        assert_eq!(
            of_stuck
                .filter(|call| call.begun.method.starts_with("Node"))
                .count(),
            0,
            "{name}"
        );
        drop(hung);
        if state == "blocked" {
            // What it was mounted on is in the way, too.
            fs::remove_dir(&place).unwrap();
        }
        world.until("published", 1).await;
    }
}

/// It is looked at neither as a stray nor to remove what is left of its volume.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_mount_that_hangs_and_has_no_publication_is_left_alone() {
    if !can_hang() {
        return;
    }
    let mut world = World::start().await;
    let volume = world.volume("data").await;
    let home = world.paths(&volume).home.with_file_name("forgotten");
    fs::create_dir_all(&home).unwrap();
    let hung = Hung::at(&home).await;
    for _ in 0..2 {
        world.show(vec![volume.clone()]);
        world.until("stray", 1).await;
        world.until("published", 1).await;
        world.start_agent();
    }
    assert!(is_mounted(&home));
    drop(hung);
}
