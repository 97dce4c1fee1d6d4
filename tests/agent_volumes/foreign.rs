//! What the agent did not make: it is shown and left alone (INV-12).

use std::fs;

use quorate::proto::node_publication::Instruction;

use super::mounted::{can_mount, is_mounted, mount, unmount};
use super::world::{World, unpublish, unpublished};
use crate::support::wait::QUIET;

/// At the target, before the volume was ever published there.
#[tokio::test]
async fn a_foreign_mount_in_place_is_an_error_and_never_unmounted() {
    let mut world = World::start().await;
    let volume = world.volume("data").await;
    let paths = world.paths(&volume);
    let foreign = tempfile::tempdir().unwrap();
    fs::write(foreign.path().join("precious"), "text").unwrap();
    if !can_mount() {
        eprintln!("without mounts: a foreign directory at the path stands for the foreign mount");
        fs::create_dir_all(paths.link.join("precious")).unwrap();
        world.show(vec![volume.clone()]);
        world.until("blocked", 1).await;
        assert_eq!(world.calls(), [""; 0]);
        assert!(paths.link.join("precious").exists());
        return;
    }
    fs::create_dir_all(&paths.target).unwrap();
    mount(foreign.path(), &paths.target);
    world.show(vec![volume.clone()]);
    world.until("foreign", 1).await;
    world.show(vec![unpublish(&volume)]);
    // Another agent does not take it for its own either.
    world.start_agent();
    world.until("foreign", 1).await;
    tokio::time::sleep(QUIET).await;
    assert_eq!(world.calls(), [""; 0], "the plugin is not called about it");
    assert_eq!(world.confirmed(), [], "nothing is confirmed beside it (INV-6)");
    assert!(is_mounted(&paths.target) && paths.target.join("precious").exists());

    unmount(&paths.target);
    world.until_confirmed(&[unpublished(&volume)]).await;
    world.show(vec![]);
    world.until("unpublishing", 0).await;
    world.show(vec![volume.clone()]);
    world.until("published", 1).await;
    assert!(!paths.link.join("precious").exists() && foreign.path().join("precious").exists());
}

#[tokio::test]
async fn a_foreign_mount_over_a_volume_keeps_it_from_being_unpublished() {
    let world = World::start().await;
    let volume = world.volume("data").await;
    world.show(vec![volume.clone()]);
    world.until("published", 1).await;
    if !can_mount() {
        eprintln!("without mounts nothing can hide another mount: the plan's unit tests cover it");
        return;
    }
    let target = world.paths(&volume).target;
    let foreign = tempfile::tempdir().unwrap();
    mount(foreign.path(), &target);
    world.until("foreign", 1).await;
    world.show(vec![unpublish(&volume)]);
    tokio::time::sleep(QUIET).await;
    assert_eq!(world.plugin.calls_of("NodeUnpublishVolume"), []);
    unmount(&target);
    world.until_confirmed(&[unpublished(&volume)]).await;
    world.until_gone(&volume).await;
}

/// What is at the path that programs use is theirs.
#[tokio::test]
async fn a_path_that_is_taken_is_an_error_and_left_as_it_is() {
    let world = World::start().await;
    let volume = world.volume("data").await;
    let path = world.path(&volume);
    fs::create_dir_all(&path).unwrap();
    fs::write(path.join("precious"), "text").unwrap();
    world.show(vec![volume.clone()]);
    world.until("blocked", 1).await;
    assert_eq!(world.calls(), [""; 0]);
    fs::remove_file(path.join("precious")).unwrap();
    fs::remove_dir(&path).unwrap();
    world.until("published", 1).await;
    fs::write(path.join("file"), "text").unwrap();
    assert!(world.data(&volume).join("file").exists());
}

/// A publication that was forgotten by force, and one that an operator confirmed in the node's place.
#[tokio::test]
async fn a_mount_without_a_publication_is_shown_and_never_unmounted() {
    let mut world = World::start().await;
    let volume = world.volume("data").await;
    world.show(vec![volume.clone()]);
    world.until("published", 1).await;
    fs::write(world.path(&volume).join("file"), "text").unwrap();
    let strays = if can_mount() { 2 } else { 0 };
    let mut over = volume.clone();
    over.set_instruction(Instruction::None);
    for left in [vec![over], vec![]] {
        world.show(left);
        world.until("stray", strays).await;
        world.until("published", 0).await;
        world.start_agent();
        world.until("stray", strays).await;
    }
    tokio::time::sleep(QUIET).await;
    assert_eq!(world.calls(), ["NodeStageVolume", "NodePublishVolume"]);
    assert_eq!(world.confirmed(), []);
    assert_eq!(
        fs::read_to_string(world.path(&volume).join("file")).unwrap(),
        "text"
    );
    // The publication is back, as after a restore of etcd.
    world.show(vec![unpublish(&volume)]);
    world.until_confirmed(&[unpublished(&volume)]).await;
    world.until_gone(&volume).await;
    world.until("stray", 0).await;
}

/// Of a publication that was forgotten by force before it.
#[tokio::test]
async fn nothing_is_confirmed_while_an_earlier_publication_is_still_mounted() {
    let world = World::start().await;
    let volume = world.volume("data").await;
    world.show(vec![volume.clone()]);
    world.until("published", 1).await;
    let mut later = volume.clone();
    later.publication_uid = "a-later-one".to_owned();
    world.show(vec![later.clone()]);
    world
        .until_calls(&["NodeStageVolume", "NodePublishVolume"].repeat(2))
        .await;
    world.until("published", 1).await;
    assert!(world.path(&later).is_dir());
    world.until("stray", usize::from(can_mount())).await;
    world.show(vec![unpublish(&later)]);
    if !can_mount() {
        eprintln!("without mounts nothing is left of the earlier one");
        world.until_confirmed(&[unpublished(&later)]).await;
        return;
    }
    world.until("blocked", 1).await;
    tokio::time::sleep(QUIET).await;
    assert_eq!(world.confirmed(), []);
    unmount(&world.paths(&volume).target);
    world.until_confirmed(&[unpublished(&later)]).await;
}

/// The agent starts over with another state directory, as where it takes over a node that has lost its own.
#[tokio::test]
async fn nothing_is_confirmed_while_a_volume_is_mounted_below_another_directory() {
    let mut world = World::start().await;
    let volume = world.volume("data").await;
    world.show(vec![volume.clone()]);
    world.until("published", 1).await;
    if !can_mount() {
        eprintln!("without mounts nothing is left at the old path");
        return;
    }
    world.stop_agent();
    let paths = world.paths(&volume);
    let moved = world.directory().with_file_name("moved");
    let inside = [&paths.target, &paths.staging].map(|path| {
        let inside = path.strip_prefix(world.directory()).unwrap();
        moved.join(inside)
    });
    fs::rename(world.directory(), &moved).unwrap();
    world.show(vec![unpublish(&volume)]);
    world.start_agent();
    world.until("blocked", 1).await;
    tokio::time::sleep(QUIET).await;
    assert!(is_mounted(&inside[0]) && is_mounted(&inside[1]));
    assert_eq!(world.confirmed(), []);
    for path in &inside {
        unmount(path);
    }
    world.until_confirmed(&[unpublished(&volume)]).await;
}
