//! A leader that dies at each step of a volume's life, and the one after it that carries on (INV-3, INV-6).

use std::os::unix::process::ExitStatusExt;

use futures::{StreamExt, stream};

use super::history;
use super::world::World;
use crate::support::csi::LONG;
use crate::support::etcd::TestEtcd;
use crate::support::wait::{SOON, eventually, same};

/// Every point at which a leader can be told to die while it sees to volumes.
const POINTS: [&str; 18] = [
    "volumes.listed",
    "volumes.creating",
    "volumes.create-intended",
    "volumes.create-called",
    "volumes.create-recorded",
    "volumes.expanding",
    "volumes.expanded",
    "volumes.publishing",
    "volumes.publish-intended",
    "volumes.publish-called",
    "volumes.publish-recorded",
    "volumes.unpublishing",
    "volumes.unpublished",
    "volumes.unpublish-recorded",
    "volumes.deleting",
    "volumes.delete-intended",
    "volumes.delete-called",
    "volumes.delete-recorded",
];

#[test]
fn the_list_of_points_is_that_of_the_code() {
    let mut found = Vec::new();
    for file in ["act.rs", "controller.rs"] {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("src/volumes")
            .join(file);
        let text = std::fs::read_to_string(path).unwrap();
        let hits = text.split("failpoint::hit(\"").skip(1);
        found.extend(hits.map(|hit| hit.split('"').next().unwrap().to_owned()));
    }
    found.sort();
    found.dedup();
    let mut points = POINTS.to_vec();
    points.sort_unstable();
    assert_eq!(found, points);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_dies_at_any_step_leaves_nothing_behind_that_the_next_one_does_not_finish() {
    let etcd = TestEtcd::start().await;
    // A few at a time: each is three processes.
    stream::iter(POINTS)
        .for_each_concurrent(3, |point| live_through(&etcd, point))
        .await;
}

async fn live_through(etcd: &TestEtcd, point: &str) {
    let prefix = format!("/{}", point.replace('.', "-"));
    let world = World::start(etcd, &prefix, LONG, |options| options.offers.expand = true).await;
    let mut dying = world.launch().flag(format!("--crash-at={point}")).start("dying");
    if point != "volumes.listed" {
        dying.wait_leading().await;
    }
    let _next = world.launch().start("next");

    world.create_volume("one", false, 1).await.expect_done();
    world.create_volume("many", true, 1).await.expect_done();
    for (volume, node) in [("one", "a"), ("many", "a"), ("many", "b")] {
        world.quorate(&["publish", volume, node]).await.expect_done();
    }
    eventually(SOON, &format!("{point}: everything is published"), async || {
        let publications = world.publications().await;
        let published = publications.iter().filter(|(_, _, state)| state == "published");
        same(published.count(), 3)
    })
    .await;
    world.create_volume("one", false, 3).await.expect_done();
    eventually(SOON, &format!("{point}: it has grown"), async || {
        let capacities: Vec<u64> = world
            .list("volumes")
            .await
            .iter()
            .map(|volume| volume["status"]["capacityBytes"].as_u64().unwrap_or(0))
            .collect();
        same(capacities, vec![1 << 20, 3 << 20])
    })
    .await;
    world
        .quorate(&["unpublish", "many", "b", "--confirm"])
        .await
        .expect_done();
    eventually(
        SOON,
        &format!("{point}: it is unpublished from one node"),
        async || same(world.publications().await.len(), 2),
    )
    .await;
    for volume in ["one", "many"] {
        world
            .quorate(&["unpublish", volume, "a", "--confirm"])
            .await
            .expect_done();
    }
    eventually(SOON, &format!("{point}: nothing is published"), async || {
        same(world.publications().await.len(), 0)
    })
    .await;
    for volume in ["one", "many"] {
        world
            .quorate(&["delete", "volume", volume, "--yes"])
            .await
            .expect_done();
    }
    eventually(SOON, &format!("{point}: nothing is left"), async || {
        world.remains().await
    })
    .await;

    let ended = dying.ended().await;
    assert_eq!(ended.signal(), Some(6), "{point}: {ended}");
    history::check(&world.plugin.calls().unwrap(), point);
}
