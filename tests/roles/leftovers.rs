//! Records that are no longer needed.

use std::time::Duration;

use quorate::proto::Role;
use quorate::proto::join::Progress;
use quorate::roles::controller::Settings;

use super::world::{LONG, World};
use crate::support::wait::{eventually, same};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_join_that_ended_is_deleted_once_its_node_is_removed_and_kept_as_long_as_the_node_exists() {
    let world = World::start(1).await;
    let settings = Settings {
        keep_joins: Duration::from_secs(1),
        resync: Duration::from_millis(100),
        ..Settings::default()
    };
    let leader = world.leader_with(settings).await;
    let own = world.ask_to_join("etcd-1", &world.peer_urls("etcd-1")).await;
    world.wait_join("etcd-1", &own, Progress::Voter).await;
    world.desire("beside", Role::Worker).await;
    let urls = ["http://127.0.0.1:1".to_owned()];
    let beside = world.ask_to_join("beside", &urls).await;
    world.wait_join("beside", &beside, Progress::Refused).await;
    // Requested last, so the others are older.
    let request = world.ask_to_join("missing", &urls).await;
    world.wait_join("missing", &request, Progress::Refused).await;
    world.remove_node("removed").await;
    let request = world.ask_to_join("removed", &urls).await;
    world.wait_join("removed", &request, Progress::Refused).await;
    eventually(LONG, "the join of the removed node is gone", async || {
        same(world.join("removed").await.is_none(), true)
    })
    .await;
    assert!(
        world.join("missing").await.is_some(),
        "nothing says that its node was removed"
    );
    assert!(world.join("etcd-1").await.is_some() && world.join("beside").await.is_some());
    leader.resign().await;
}
