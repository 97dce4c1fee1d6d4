//! Nodes that become members and cease to be, on clusters of one to three.

use quorate::proto::Role;

use super::world::World;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_becomes_a_voter_and_a_worker_again_and_again() {
    let mut world = World::start(1).await;
    let leader = world.leader().await;
    let node = world.add_machine();
    for round in 0..3 {
        let began = std::time::Instant::now();
        world.promote(&node).await;
        world.bring_up(&node).await;
        world.wait_voters(&["etcd-1", &node]).await;
        eprintln!("round {round}: voter after {:?}", began.elapsed());
        let began = std::time::Instant::now();
        world.demote(&node).await;
        world.wait_role(&node, Role::Worker).await;
        eprintln!("round {round}: worker after {:?}", began.elapsed());
        world.wait_voters(&["etcd-1"]).await;
        assert_eq!(world.blocked(&node).await, None);
        world.tear_down(&node).await;
    }
    leader.resign().await;
}
