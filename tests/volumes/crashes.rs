//! Leaders that die at every step. At the end the backend is empty.

use super::*;
use crate::support::doomed::Doomed;

/// A leader dies at this point of a volume's life, and the next one continues.
async fn die_at(point: &'static str) {
    let plugin = TestPlugin::start_with(|options| options.offers.expand = true).await;
    let world = World::with(plugin).await;
    let launch = Launch::on(&world.etcd);
    let mut dying = Doomed::start(&launch, "r0", point, &world.store);
    // It leads before the other replica starts, so that it reaches the point.
    match point {
        "volumes.listed" => dying.aborted().await,
        _ => dying.wait_leading().await,
    }
    let replica = dying
        .aborted_during(async {
            world.apply(&volume("data", "capacity: {required: 1Mi},")).await;
            world.done(&["publish", "data", "n1"]).await;
            let replica = launch.start("r1");
            world.expect_state("data", "n1", "published").await;
            assert_eq!(
                world.attached(&world.backend_id("data").await),
                ["csi-n1"],
                "{point}"
            );
            world.apply(&volume("data", "capacity: {required: 2Mi},")).await;
            world.expect_capacity("data", 2 << 20).await;
            world.unpublish("data", "n1").await;
            world.delete("data").await;
            world.expect_empty_backend().await;
            replica
        })
        .await;
    history::check(&world.plugin.calls().unwrap(), point);
    drop(replica);
}

#[tokio::test]
async fn a_leader_that_dies_while_it_creates_leaves_nothing_behind() {
    for point in ["volumes.listed", "volumes.creating", "volumes.create-intended"] {
        die_at(point).await;
    }
}

#[tokio::test]
async fn a_leader_that_dies_before_it_records_a_creation_leaves_nothing_behind() {
    for point in [
        "volumes.create-called",
        "volumes.create-recorded",
        "volumes.publishing",
    ] {
        die_at(point).await;
    }
}

#[tokio::test]
async fn a_leader_that_dies_while_it_publishes_leaves_nothing_behind() {
    for point in [
        "volumes.publish-intended",
        "volumes.publish-called",
        "volumes.publish-recorded",
    ] {
        die_at(point).await;
    }
}

#[tokio::test]
async fn a_leader_that_dies_while_it_unpublishes_leaves_nothing_behind() {
    for point in [
        "volumes.unpublishing",
        "volumes.unpublished",
        "volumes.unpublish-recorded",
    ] {
        die_at(point).await;
    }
}

#[tokio::test]
async fn a_leader_that_dies_while_it_deletes_leaves_nothing_behind() {
    for point in [
        "volumes.deleting",
        "volumes.delete-intended",
        "volumes.delete-called",
        "volumes.delete-recorded",
    ] {
        die_at(point).await;
    }
}

#[tokio::test]
async fn a_leader_that_dies_while_a_volume_grows_leaves_the_growth_to_the_next_one() {
    for point in ["volumes.expanding", "volumes.expanded"] {
        die_at(point).await;
    }
}
