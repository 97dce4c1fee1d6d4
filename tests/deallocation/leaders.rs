//! Leaders that end: killed at each step, fenced off, one after the other.

use quorate::proto::task_status::State;

use super::{World, attempt, deallocate, deallocating, decide, document, history, network, service};
use crate::support::doomed::Doomed;
use crate::support::leader::{Leader, store_on};
use crate::support::quorate::Launch;

#[tokio::test]
async fn a_stale_leaders_decision_is_refused_at_the_current_revision() {
    let world = World::start().await;
    world
        .apply(&(network("front") + &service("web", "{networks: [front]}")))
        .await;
    world.mark("service/web").await;
    world.mark("network/front").await;
    let mut old = Leader::elect(&world.store, "old").await;
    let fence = old.fence().clone();
    // The election key is gone and the leader does not know, as after a pause.
    for key in world.etcd.keys("/quorate/kubernetes/reconciler/leader/") {
        world.etcd.etcdctl(&["del", &key]);
    }
    let mut new = Leader::elect(&store_on(&world.etcd.endpoints()).await, "new").await;

    // The old leader reads the current state and decides correctly.
    let actions = decide(&world.store).await;
    assert_eq!(attempt(&world.store, &fence, &actions).await, ["LostLeadership"]);
    world.expect_objects(&["/networks/front", "/services/web"]).await;
    assert!(
        world
            .store
            .etcd
            .metrics()
            .encode()
            .contains("quorate_fenced_writes_refused_total 1")
    );
    // The deallocator of the old leader ends by itself.
    deallocate(&mut old);
    old.work_ended().await;

    deallocate(&mut new);
    world.expect_objects(&[]).await;
    history::check(&world).await;
    new.resign().await;
    old.resign().await;
}

#[tokio::test]
async fn the_next_leader_goes_on_where_the_last_one_stopped() {
    let world = World::start().await;
    let documents: String = (0..30)
        .map(|number| {
            network(&format!("n{number}"))
                + &service(&format!("s{number}"), &format!("{{networks: [n{number}]}}"))
        })
        .collect();
    world.apply(&documents).await;
    for turn in 0..3 {
        let leader = deallocating(
            &store_on(&world.etcd.endpoints()).await,
            &format!("leader-{turn}"),
        )
        .await;
        for number in (turn * 10)..(turn * 10 + 10) {
            world.mark(&format!("network/n{number}")).await;
            world.mark(&format!("service/s{number}")).await;
        }
        // The leader resigns in the middle of its work.
        leader.resign().await;
    }
    let leader = world.leader().await;
    world.expect_objects(&[]).await;
    assert_eq!(history::check(&world).await, (30, 30));
    leader.resign().await;
}

#[tokio::test]
async fn a_leader_killed_at_any_step_leaves_nothing_that_the_next_does_not_finish() {
    let world = World::start().await;
    let launch = Launch::on(&world.etcd);
    for point in [
        "deallocator.listed",
        "deallocator.deleting",
        "deallocator.deleted",
        "deallocator.orphaning",
        "deallocator.orphaned",
    ] {
        let documents = network("front")
            + &network("back")
            + &document("Node", "gone", "{}")
            + &service("web", "{networks: [front]}")
            + &service("db", "{networks: [front, back]}");
        world.apply(&documents).await;
        world.task("db/1", "gone", State::Running).await;
        for id in ["service/web", "service/db", "network/front", "network/back"] {
            world.mark(id).await;
        }
        world
            .run(&["delete", "node", "gone", "--yes"])
            .await
            .expect_done();

        let mut victim = Doomed::start(&launch, "victim", point, &world.store);
        victim.aborted().await;
        history::check(&world).await;

        let mut next = launch.start("next");
        world
            .expect_objects(&["/networks/back", "/networks/front", "/services/db", "/tasks/db/1"])
            .await;
        let state = world.run(&["get", "task", "db/1"]).await.expect_done();
        if !state.contains("orphaned") {
            next.wait_for_log("orphaned task db/1").await;
        }
        world.remove("/tasks/db/1").await;
        world.expect_objects(&[]).await;
        history::check(&world).await;
        next.stop().await.unwrap();
    }
}
