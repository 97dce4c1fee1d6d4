//! A member that is asked for its status in the second after its removal ends in a panic.

use std::time::{Duration, Instant};

use quorate::proto::Role;
use quorate::roles::controller::Settings;
use tokio::task::JoinSet;

use super::crashes::FLAGS;
use super::leader::Leader;
use super::world::World;
use crate::support::client::connect_to;
use crate::support::proxy::Network;
use crate::support::wait::SOON;

/// How many members are removed, one after the other. If they were asked for their status all the time, each of them
/// would panic, so a few prove it; `QUORATE_TEST_REMOVALS` sets another number.
fn removals() -> usize {
    let number = std::env::var("QUORATE_TEST_REMOVALS").ok();
    number.and_then(|number| number.parse().ok()).unwrap_or(6)
}

/// Waits until the etcd of a node ends by itself, in order, because it was removed.
async fn ends_in_order(world: &mut World, of: &str) {
    let machine = world.machine(of);
    let ended = tokio::time::timeout(SOON, machine.process().unwrap().exited()).await;
    let ended = ended.expect("it ends").unwrap();
    let log = std::fs::read_to_string(machine.log_file()).unwrap();
    assert!(ended.success() && !log.contains("panic"), "{ended}: {log}");
    assert!(machine.has_left(), "{log}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_removed_member_ends_in_order_although_all_are_asked_for_their_status_all_the_while() {
    let mut world = World::start_with(1, &FLAGS).await;
    let settings = Settings {
        resync: Duration::from_millis(20),
        ..Settings::default()
    };
    let leader = world.leader_with(settings).await;
    let of = world.add_machine();
    for _ in 0..removals() {
        world.promote(&of).await;
        world.bring_up(&of).await;
        // By a task that shares the leader's connection and still uses the list from before the removal.
        let (etcd, list) = (leader.etcd().clone(), world.list().await);
        let polling = JoinSet::from_iter([async move {
            loop {
                etcd.survey(&list.members, SOON).await;
            }
        }]);
        world.demote(&of).await;
        ends_in_order(&mut world, &of).await;
        drop::<JoinSet<()>>(polling);
        world.wait_role(&of, Role::Worker).await;
        world.tear_down(&of).await;
    }
    leader.resign().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_answers_late_is_not_removed_before_it_has() {
    let delay = Duration::from_millis(500);
    let mut world = World::start_with(2, &FLAGS).await;
    let proxy = world.last_behind_proxy().await;
    // Nothing but questions to that very member goes through the proxy.
    world.store.etcd = connect_to(vec![world.machine("etcd-1").client_url.clone()]).await;
    let leader = Leader::elect_on(world.store.clone(), Settings::default(), JoinSet::new()).await;
    leader
        .wait_metric("quorate_members{kind=\"voter\",health=\"healthy\"}", 2.0)
        .await;
    proxy.set(Network::Delays(delay));
    let begun = Instant::now();
    world.demote("etcd-2").await;
    // It is asked with the other one, whose answer is enough to decide on its removal.
    world.wait_voters(&["etcd-1"]).await;
    let waited = begun.elapsed();
    assert!(waited >= 2 * delay, "{waited:?}");
    ends_in_order(&mut world, "etcd-2").await;
    world.wait_role("etcd-2", Role::Worker).await;
    leader.resign().await;
}
