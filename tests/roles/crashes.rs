//! The leader is killed at every step, or never learns what became of a call: the next one, or itself, ends what was
//! begun. No second member for one node, no member lost, done twice is done once.

use quorate::proto::Role;
use quorate::proto::join::Progress;

use super::world::{LONG, World};
use crate::support::quorate::{Launch, TestReplica};
use crate::support::wait::{eventually, same};

/// Without etcd's own check, which counts a member only 5 s after it connected: INV-5 is upheld here without it, and
/// twenty rounds need not wait for it.
const FLAGS: [&str; 1] = ["--strict-reconfig-check=false"];

fn launch(world: &World) -> Launch {
    Launch::on(&world.etcd)
        .flag("--lease-ttl=2")
        .flag("--add-doubt-ms=2000")
}

/// A leader that ends at this point, and another replica beside it.
async fn doomed(world: &World, point: &str) -> [TestReplica; 2] {
    let launch = launch(world);
    let mut first = launch.clone().flag(format!("--crash-at={point}")).start("a");
    first.wait_leading().await;
    let second = launch.start("b");
    [first, second]
}

async fn crashed(mut replicas: [TestReplica; 2], point: &str) {
    let [first, second] = &mut replicas;
    first.ended().await;
    let log = first.log();
    assert!(log.contains(&format!("failpoint {point}: aborting")), "{log}");
    second.stop().await.unwrap();
}

/// A node joins and is demoted again, under leaders of which the first ends at this point of the join.
async fn join_survives(world: &mut World, of: &str, point: &str) {
    let replicas = doomed(world, point).await;
    world.promote(of).await;
    world.bring_up(of).await;
    world.wait_voters(&["etcd-1", of]).await;
    let [mut first, mut second] = replicas;
    // Points after the last write are reached after the outcome shows.
    first.ended().await;
    let log = first.log();
    assert!(log.contains(&format!("failpoint {point}: aborting")), "{log}");
    world.demote(of).await;
    world.wait_role(of, Role::Worker).await;
    world.wait_voters(&["etcd-1"]).await;
    assert_no_records_but(world, &["etcd-1"]).await;
    second.stop().await.unwrap();
    world.tear_down(of).await;
}

async fn assert_no_records_but(world: &World, nodes: &[&str]) {
    let expected: Vec<String> = nodes.iter().map(ToString::to_string).collect();
    eventually(LONG, &format!("the records are those of {nodes:?}"), async || {
        let (records, _) = world
            .store
            .etcd
            .list(&world.store.keys.members())
            .await
            .map_err(|error| error.to_string())?;
        let mut of: Vec<String> = records
            .iter()
            .map(|kv| {
                <quorate::proto::Member as prost::Message>::decode(&*kv.value)
                    .unwrap()
                    .node
            })
            .collect();
        of.sort();
        same(of, expected.clone())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_killed_at_any_step_of_a_join_up_to_the_learner_is_succeeded_by_one_that_ends_it() {
    let mut world = World::start_with(1, &FLAGS).await;
    let of = world.add_machine();
    for point in [
        "roles.changing-roles",
        "roles.changed-roles",
        "roles.deciding-add",
        "roles.decided-add",
        "roles.adding",
        "roles.add-answered",
        "roles.added",
    ] {
        eprintln!("{point}");
        join_survives(&mut world, &of, point).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_killed_at_any_step_from_learner_to_voter_is_succeeded_by_one_that_ends_it() {
    let mut world = World::start_with(1, &FLAGS).await;
    let of = world.add_machine();
    for point in [
        "roles.deciding-promotion",
        "roles.decided-promotion",
        "roles.promoting",
        "roles.promoted",
        "roles.noting",
        "roles.noted",
    ] {
        eprintln!("{point}");
        join_survives(&mut world, &of, point).await;
    }
}

/// One of three is demoted, under leaders of which the first ends at this point, and joins again.
async fn demotion_survives(world: &mut World, of: &str, point: &str) {
    let before = world.id_of(of).await;
    let replicas = doomed(world, point).await;
    world.demote(of).await;
    world.wait_role(of, Role::Worker).await;
    let others: Vec<&str> = ["etcd-1", "etcd-2", "etcd-3"]
        .into_iter()
        .filter(|name| *name != of)
        .collect();
    world.wait_voters(&others).await;
    assert!(world.list().await.member(before).is_none());
    assert_no_records_but(world, &others).await;
    crashed(replicas, point).await;
    world.tear_down(of).await;
    let mut replica = launch(world).start("c");
    world.promote(of).await;
    world.bring_up(of).await;
    world.wait_voters(&["etcd-1", "etcd-2", "etcd-3"]).await;
    replica.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_killed_at_any_step_of_a_demotion_is_succeeded_by_one_that_ends_it() {
    let mut world = World::start_with(3, &FLAGS).await;
    for point in [
        "roles.deciding-removal",
        "roles.decided-removal",
        "roles.removing",
        "roles.removal-answered",
        "roles.removal-confirmed",
        "roles.removed",
    ] {
        eprintln!("{point}");
        demotion_survives(&mut world, "etcd-3", point).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_killed_while_raft_leadership_moves_is_succeeded_by_one_that_ends_it() {
    let mut world = World::start_with(3, &FLAGS).await;
    for point in ["roles.moving-leadership", "roles.moved-leadership"] {
        eprintln!("{point}");
        let of = raft_leader(&world).await;
        demotion_survives(&mut world, &of, point).await;
    }
}

async fn raft_leader(world: &World) -> String {
    let list = world.list().await;
    let id = eventually(LONG, "a raft leader", async || {
        let surveys = world
            .store
            .etcd
            .survey(&list.members, std::time::Duration::from_secs(5))
            .await;
        quorate::etcd::members::raft_leader(&surveys).ok_or("none")
    })
    .await;
    list.member(id).unwrap().name.clone()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_never_hears_that_a_member_was_added_and_promoted_makes_no_second_one() {
    let mut world = World::start_with(1, &FLAGS).await;
    let of = world.add_machine();
    for point in ["roles.lose-add", "roles.lose-promotion", "roles.lose-removal"] {
        let mut replica = launch(&world).flag(format!("--crash-at={point}")).start("a");
        replica.wait_leading().await;
        world.promote(&of).await;
        world.bring_up(&of).await;
        world.wait_voters(&["etcd-1", &of]).await;
        world.demote(&of).await;
        world.wait_role(&of, Role::Worker).await;
        world.wait_voters(&["etcd-1"]).await;
        assert_no_records_but(&world, &["etcd-1"]).await;
        replica
            .wait_for_log(&format!("failpoint {point}: losing the reply"))
            .await;
        replica.stop().await.unwrap();
        world.tear_down(&of).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_whose_own_node_is_demoted_carries_that_out_itself() {
    let mut world = World::start(3).await;
    let of = raft_leader(&world).await;
    // Its name is that of the node, and the only etcd that it was told of is the one that goes.
    let endpoint = world.machine(&of).client_url.clone();
    let mut replica = Launch::on(&world.etcd).endpoints(vec![endpoint]).start(&of);
    replica.wait_leading().await;
    world.demote(&of).await;
    world.wait_role(&of, Role::Worker).await;
    assert_eq!(world.list().await.members.len(), 2);
    assert!(replica.leads().await, "it did not even lose its lead");
    world.tear_down(&of).await;
    world.promote(&of).await;
    world.bring_up(&of).await;
    world.wait_voters(&["etcd-1", "etcd-2", "etcd-3"]).await;
    replica.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_join_that_was_asked_for_without_a_leader_is_carried_out_by_the_next() {
    let mut world = World::start(1).await;
    let of = world.add_machine();
    world.promote(&of).await;
    let leader = world.leader().await;
    world.wait_role(&of, Role::Manager).await;
    leader.resign().await;
    let request = world.ask_to_join(&of, &world.peer_urls(&of)).await;
    let leader = world.leader().await;
    world.wait_join(&of, &request, Progress::Learner).await;
    leader.resign().await;
}
