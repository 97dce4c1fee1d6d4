//! Removals while everybody is asked all the time (REQ-M-7).

use std::time::Duration;

use quorate::proto::Role;
use quorate::roles::controller::Settings;
use tokio::task::JoinSet;

use super::crashes::FLAGS;
use super::world::World;
use crate::support::wait::SOON;

/// How many members are removed, one after the other. Each of them dies of a panic if it is asked for its status in the
/// second that it lives on, so that a few prove as much as many; `QUORATE_TEST_REMOVALS` sets another number.
fn removals() -> usize {
    let number = std::env::var("QUORATE_TEST_REMOVALS").ok();
    number.and_then(|number| number.parse().ok()).unwrap_or(6)
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
    for number in 0..removals() {
        world.promote(&of).await;
        world.bring_up(&of).await;
        // By whoever shares the leader's connection, and still goes by the list from before the removal.
        let (etcd, list) = (leader.etcd.clone(), world.list().await);
        let polling = JoinSet::from_iter([async move {
            loop {
                etcd.survey(&list.members, SOON).await;
            }
        }]);
        world.demote(&of).await;
        let ended = world.machine(&of).process().unwrap().exited();
        let ended = tokio::time::timeout(SOON, ended).await.unwrap().unwrap();
        drop::<JoinSet<()>>(polling);
        world.wait_role(&of, Role::Worker).await;
        let log = std::fs::read_to_string(world.machine(&of).log_file()).unwrap();
        assert!(
            ended.success() && !log.contains("panic"),
            "{number}: {ended}: {log}"
        );
        assert!(world.machine(&of).has_left(), "{log}");
        world.tear_down(&of).await;
    }
    leader.resign().await;
}
