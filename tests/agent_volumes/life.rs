//! A volume from its publication to its unpublication.

use std::fs;
use std::os::unix::fs::FileExt;

use quorate::proto::access_mode::{Block, Kind, Scope, Sharing};
use quorate::proto::{AccessMode, CsiNode};
use quorate_dev::csi_plugin::faults::Happening;

use super::mounted::{can_mount, is_mounted, is_read_only};
use super::world::{Confirmed, NODE, World, unpublish, unpublished};
use crate::support::csi::DRIVER;
use crate::support::wait::{QUIET, SOON, eventually, same};

#[tokio::test]
async fn a_volume_is_readable_and_writable_at_its_path_until_it_is_unpublished() {
    let world = World::start().await;
    let volume = world.volume("data").await;
    world.show(vec![volume.clone()]);
    world.until("published", 1).await;
    assert_eq!(world.calls(), ["NodeStageVolume", "NodePublishVolume"]);
    let path = world.path(&volume);
    fs::write(path.join("file"), "written on the node").unwrap();
    let at_backend = fs::read_to_string(world.data(&volume).join("file")).unwrap();
    assert_eq!(at_backend, "written on the node");
    assert_eq!(fs::read_to_string(path.join("file")).unwrap(), at_backend);
    let paths = world.paths(&volume);
    assert_eq!(
        (is_mounted(&paths.staging), is_mounted(&paths.target)),
        (can_mount(), can_mount())
    );

    world.show(vec![unpublish(&volume)]);
    world.until_confirmed(&[unpublished(&volume)]).await;
    assert_eq!(world.calls()[2..], ["NodeUnpublishVolume", "NodeUnstageVolume"]);
    world.until_gone(&volume).await;
    assert!(
        world.data(&volume).join("file").exists(),
        "at the backend it stays"
    );
    world.show(vec![]);
    world.until("unpublishing", 0).await;

    // Published again, as another publication.
    let mut again = volume;
    again.publication_uid = "another-uid".to_owned();
    world.show(vec![again.clone()]);
    world.until("published", 1).await;
    assert_eq!(fs::read_to_string(path.join("file")).unwrap(), at_backend);
}

#[tokio::test]
async fn the_path_of_a_block_volume_is_its_device_which_its_plugin_mounts_below_its_staging_path() {
    let world = World::start().await;
    let volume = world
        .volume_like("disk", |volume| {
            volume.access_mode = Some(AccessMode {
                kind: Some(Kind::Block(Block {})),
                ..AccessMode::default()
            });
        })
        .await;
    world.show(vec![volume.clone()]);
    world.until("published", 1).await;
    let path = world.path(&volume);
    assert_eq!(fs::metadata(&path).unwrap().len(), 1 << 20, "its capacity");
    let device = fs::File::options().write(true).open(&path).unwrap();
    device.write_all_at(b"block", 4096).unwrap();
    drop(device);
    assert_eq!(fs::read(world.data(&volume)).unwrap()[4096..4101], *b"block");
    let staged = world.paths(&volume).staging.join("device");
    assert_eq!(is_mounted(&staged), can_mount());
    world.show(vec![unpublish(&volume)]);
    world.until_confirmed(&[unpublished(&volume)]).await;
    world.until_gone(&volume).await;
}

/// Both where the publication says so and where the volume does.
#[tokio::test]
async fn a_volume_that_is_only_read_cannot_be_written() {
    let world = World::start().await;
    let mut asked = world.volume("asked").await;
    asked.read_only = true;
    let shared = world
        .volume_like("shared", |volume| {
            volume.access_mode = Some(AccessMode {
                scope: Scope::MultiNode.into(),
                sharing: Sharing::ReadOnly.into(),
                kind: None,
            });
        })
        .await;
    let written = world.volume("written").await;
    for volume in [&asked, &shared] {
        fs::write(world.data(volume).join("file"), "text").unwrap();
    }
    world.show(vec![asked.clone(), shared.clone(), written.clone()]);
    world.until("published", 3).await;
    for volume in [&asked, &shared] {
        assert_eq!(
            fs::read_to_string(world.path(volume).join("file")).unwrap(),
            "text"
        );
        assert_eq!(is_read_only(&world.paths(volume).target), can_mount());
        if can_mount() {
            let refused = fs::write(world.path(volume).join("other"), "text").unwrap_err();
            assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
        }
    }
    fs::write(world.path(&written).join("file"), "text").unwrap();
}

#[tokio::test]
async fn a_plugin_that_does_not_stage_publishes_alone() {
    let world = World::start_with(|_, node| node.stages = false).await;
    let volume = world.volume("data").await;
    world.show(vec![volume.clone()]);
    world.until("published", 1).await;
    fs::write(world.path(&volume).join("file"), "text").unwrap();
    world.show(vec![unpublish(&volume)]);
    world.until_confirmed(&[unpublished(&volume)]).await;
    assert_eq!(world.calls(), ["NodePublishVolume", "NodeUnpublishVolume"]);
    world.until_gone(&volume).await;
}

#[tokio::test]
async fn what_is_on_a_volume_that_has_grown_is_expanded_and_confirmed() {
    let world = World::start_with(|_, node| node.expands = true).await;
    let mut volume = world.volume("data").await;
    (volume.capacity_bytes, volume.expanded_bytes) = (5, 5);
    world.show(vec![volume.clone()]);
    world.until("published", 1).await;
    volume.capacity_bytes = 1 << 20;
    world.refuse_confirmations(2);
    world.show(vec![volume.clone()]);
    let expanded = Confirmed::Expanded {
        volume: "data".to_owned(),
        bytes: 1 << 20,
    };
    world.until_confirmed(&[expanded]).await;
    assert_eq!(
        world.plugin.calls_of("NodeExpandVolume").len(),
        1,
        "and only the confirmation is repeated"
    );
    assert_eq!(
        world.plugin.calls_of("NodeStageVolume").len(),
        1,
        "a larger capacity is no other use"
    );
}

#[tokio::test]
async fn the_plugins_say_what_they_name_the_node_by_and_one_that_is_away_has_said_it_before() {
    let zone = || [("zone".to_owned(), "a".to_owned())].into();
    let mut world = World::start_with(|_, node| node.topology = zone()).await;
    let known = Some(vec![CsiNode {
        plugin: DRIVER.to_owned(),
        node_id: NODE.to_owned(),
        topology: zone(),
    }]);
    eventually(SOON, "the node is known", async || {
        same(world.csi(), known.clone())
    })
    .await;
    world.stop_agent();
    world.plugin.stop().await.unwrap();
    world.start_agent();
    eventually(SOON, "the plugin was asked", async || {
        world.csi().map(drop).ok_or("it was not")
    })
    .await;
    assert_eq!(world.csi(), known, "the plugin is away");
    // It comes back as another node.
    world.plugin.options_mut().node.as_mut().unwrap().id = "csi-n2".to_owned();
    world.plugin.launch().await.unwrap();
    eventually(SOON, "the new id", async || {
        same(
            world.csi().map(|nodes| nodes[0].node_id.clone()),
            Some("csi-n2".to_owned()),
        )
    })
    .await;
}

/// INV-12: an empty list would withdraw what the node reported before.
#[tokio::test]
async fn nothing_is_said_of_the_plugins_before_they_were_asked() {
    let mut world = World::start().await;
    world.stop_agent();
    let _ = fs::remove_dir_all(world.directory().join(".plugins"));
    world.plugin.fault("Probe", None, Happening::Waits).await;
    world.start_agent();
    tokio::time::sleep(QUIET).await;
    assert_eq!(world.csi(), None);
    world.plugin.release().await;
    let ids = async || {
        let nodes = world.csi().unwrap_or_default().into_iter();
        same(nodes.map(|node| node.node_id).collect(), vec![NODE.to_owned()])
    };
    eventually(SOON, "the plugin has answered", ids).await;
    // A file that cannot be read may have said anything.
    world.stop_agent();
    world.plugin.stop().await.unwrap();
    let known = world.directory().join(".plugins").join(format!("{DRIVER}.json"));
    fs::write(known, "").unwrap();
    world.start_agent();
    tokio::time::sleep(QUIET).await;
    assert_eq!(world.csi(), None);
}

#[tokio::test]
async fn a_volume_of_a_plugin_that_is_not_on_the_node_waits_for_it_and_delays_no_other() {
    let world = World::start().await;
    let volume = world.volume("data").await;
    let mut other = world.volume("other").await;
    other.plugin = "absent.csi.quorate.dev".to_owned();
    world.show(vec![volume.clone(), other.clone()]);
    world.until("published", 1).await;
    world.until("blocked", 1).await;
    world.show(vec![volume, unpublish(&other)]);
    tokio::time::sleep(QUIET).await;
    assert_eq!(world.confirmed(), [], "its plugin has confirmed nothing (INV-6)");
}
