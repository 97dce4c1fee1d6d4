//! The leader is killed at every step of a join, or loses the reply of a call: its successor, or the leader itself,
//! completes the join. A node never gets a second member, and no member is lost. [`super::removals`] has the steps of a
//! removal.

use std::collections::BTreeSet;

use quorate::etcd::Revision;
use quorate::proto::Role;
use quorate::proto::join::Progress;

use super::demotions::{decide, looked, was_always_a_manager};
use super::removals;
use super::world::{LONG, World};
use crate::layers::source::Files;
use crate::support::doomed::Doomed;
use crate::support::proxy::Proxy;
use crate::support::quorate::{Launch, TestReplica};
use crate::support::wait::{eventually, same};

/// Without etcd's own check, which counts a member only 5 s after it connected: INV-5 is upheld here without it, and
/// twenty rounds need not wait for it.
pub const FLAGS: [&str; 1] = ["--strict-reconfig-check=false"];

pub const TO_LEARNER: [&str; 7] = [
    "roles.changing-roles",
    "roles.changed-roles",
    "roles.deciding-add",
    "roles.decided-add",
    "roles.adding",
    "roles.add-answered",
    "roles.added",
];

pub const TO_VOTER: [&str; 6] = [
    "roles.deciding-promotion",
    "roles.decided-promotion",
    "roles.promoting",
    "roles.promoted",
    "roles.noting",
    "roles.noted",
];

const HALF_ADDED: [&str; 2] = ["roles.recording", "roles.recorded"];

const TO_ANOTHER_ADDRESS: [&str; 6] = [
    "roles.deciding-readdress",
    "roles.decided-readdress",
    "roles.readdressing",
    "roles.readdressed",
    "roles.ending-readdress",
    "roles.ended-readdress",
];

const WITHDRAWN: [&str; 2] = ["roles.withdrawing", "roles.withdrawn"];

const LOST: [&str; 3] = ["roles.lose-add", "roles.lose-promotion", "roles.lose-removal"];

const LOST_ADDRESS: &str = "roles.lose-update";

pub fn launch(world: &World) -> Launch {
    Launch::on(&world.etcd).flag("--add-doubt-ms=2000")
}

/// A leader that aborts at a point, and the replica that succeeds it.
pub async fn doomed(world: &World, point: &'static str) -> (Doomed, TestReplica) {
    let launch = launch(world);
    let mut first = Doomed::start(&launch, "a", point, &world.store);
    first.wait_leading().await;
    (first, launch.start("b"))
}

/// A leader that loses the reply at a point, once.
pub async fn forgetful(world: &World, point: &str) -> TestReplica {
    eprintln!("{point}");
    let mut replica = launch(world).flag(format!("--crash-at={point}")).start("a");
    replica.wait_leading().await;
    replica
}

pub async fn lost(mut replica: TestReplica, point: &str) {
    replica
        .wait_for_log(&format!("failpoint {point}: losing the reply"))
        .await;
    replica.stop().await.unwrap();
}

#[test]
fn at_every_point_of_roles_a_leader_dies_or_loses_a_reply_in_these_tests() {
    let mut points = BTreeSet::new();
    for (_, file) in Files::below(&["src/roles"]).iter() {
        let quoted = file.text.split('"').filter(|quoted| quoted.starts_with("roles."));
        points.extend(quoted.map(str::to_owned));
    }
    let tested = [
        &TO_LEARNER[..],
        &TO_VOTER,
        &HALF_ADDED,
        &TO_ANOTHER_ADDRESS,
        &WITHDRAWN,
        &LOST,
        &[LOST_ADDRESS, removals::LOST_LEADERSHIP],
        &removals::OF_A_MEMBER,
        &removals::OF_LEADERSHIP,
        &removals::BY_ANOTHER,
    ];
    let tested: BTreeSet<String> = tested.concat().into_iter().map(str::to_owned).collect();
    assert_eq!(points, tested);
}

/// A node joins and is demoted again, under leaders of which the first ends at this point of the join.
async fn join_survives(world: &mut World, of: &str, point: &'static str) {
    let (mut first, mut second) = doomed(world, point).await;
    first
        .aborted_during(async {
            world.promote(of).await;
            world.bring_up(of).await;
            world.wait_voters(&["etcd-1", of]).await;
        })
        .await;
    world.demote(of).await;
    world.wait_role(of, Role::Worker).await;
    world.wait_voters(&["etcd-1"]).await;
    world.wait_records(&["etcd-1"]).await;
    second.stop().await.unwrap();
    world.tear_down(of).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_killed_at_any_step_of_a_join_up_to_the_learner_is_succeeded_by_one_that_completes_it() {
    let mut world = World::start_with(1, &FLAGS).await;
    let of = world.add_machine();
    for point in TO_LEARNER {
        join_survives(&mut world, &of, point).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_killed_at_any_step_from_learner_to_voter_is_succeeded_by_one_that_completes_it() {
    let mut world = World::start_with(1, &FLAGS).await;
    let of = world.add_machine();
    for point in TO_VOTER {
        join_survives(&mut world, &of, point).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_killed_while_it_records_a_half_made_add_is_succeeded_by_one_that_does() {
    let mut world = World::start_with(1, &FLAGS).await;
    let of = world.add_machine();
    for point in HALF_ADDED {
        let (mut first, mut second) = doomed(&world, point).await;
        first
            .aborted_during(async {
                let added = world.half_add(&of, &world.peer_urls(&of), false).await;
                let join = world.wait_join(&of, "r", Progress::Learner).await;
                assert_eq!(join.member_id, added.0);
            })
            .await;
        world.start_added(&of).await;
        world.wait_voters(&["etcd-1", &of]).await;
        world.wait_records(&["etcd-1", &of]).await;
        world.demote(&of).await;
        world.wait_role(&of, Role::Worker).await;
        second.stop().await.unwrap();
        world.tear_down(&of).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_killed_while_it_withdraws_an_intent_is_succeeded_by_one_that_does() {
    for point in WITHDRAWN {
        let mut world = World::start_with(3, &FLAGS).await;
        let id = world.id_of("etcd-3").await;
        world.demote("etcd-3").await;
        decide(&world, "etcd-3").await;
        // Without it the removal waits, for the sake of the quorum.
        world.machine("etcd-2").kill().await.unwrap();
        let (mut first, mut second) = doomed(&world, point).await;
        let mut wanted = Revision::ABSENT;
        first
            .aborted_during(async {
                wanted = world.promote("etcd-3").await;
                eventually(LONG, "the intent is withdrawn", async || {
                    same(world.member(id).await.unwrap().removal, None)
                })
                .await;
            })
            .await;
        // From now on a removal would cost no quorum.
        world.machine("etcd-2").start().await.unwrap();
        second.wait_leading().await;
        eventually(LONG, "all members are healthy", async || {
            let healthy = "quorate_members{kind=\"voter\",health=\"healthy\"}";
            same(second.metric(healthy).await, 3.0)
        })
        .await;
        looked(&world).await;
        world.wait_voters(&["etcd-1", "etcd-2", "etcd-3"]).await;
        was_always_a_manager(&world, "etcd-3", wanted).await;
        second.stop().await.unwrap();
    }
}

/// Gives the member of `of` the address of a proxy in front of it, which is returned.
async fn move_behind(world: &World, of: &str, target: &str) -> Proxy {
    let (before, members) = (world.id_of(of).await, world.members().await);
    let proxy = Proxy::in_front_of(target);
    let request = world.ask_to_join(of, &[proxy.url()]).await;
    let join = world.wait_join(of, &request, Progress::Voter).await;
    assert_eq!(join.member_id, before.0);
    let list = world.list().await;
    assert_eq!(list.member(before).unwrap().peer_urls, [proxy.url()]);
    let record = world.wait_settled(before).await;
    assert_eq!((record.peer_urls, record.removal), (vec![proxy.url()], None));
    assert_eq!(world.members().await, members);
    proxy
}

/// The next leader withdraws the intent, since no join asks for that address any more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_decided_move_whose_node_joins_at_its_present_address_is_withdrawn() {
    let world = World::start_with(3, &FLAGS).await;
    let (before, id) = (world.peer_urls("etcd-2"), world.id_of("etcd-2").await);
    let proxy = Proxy::in_front_of(&before[0]);
    let launch = launch(&world);
    let mut first = Doomed::start(&launch, "a", "roles.decided-readdress", &world.store);
    first.wait_leading().await;
    first
        .aborted_during(async {
            world.ask_to_join("etcd-2", &[proxy.url()]).await;
            eventually(LONG, "the move is decided", async || {
                let decided = world.member(id).await.unwrap().readdress;
                same(decided.map(|to| to.peer_urls), Some(vec![proxy.url()]))
            })
            .await;
        })
        .await;
    let request = world.ask_to_join("etcd-2", &before).await;
    let mut second = launch.start("b");
    world.wait_join("etcd-2", &request, Progress::Voter).await;
    let record = world.wait_settled(id).await;
    assert_eq!(record.peer_urls, before);
    assert_eq!(world.list().await.member(id).unwrap().peer_urls, before);
    second.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_of_address_is_completed_although_the_leader_is_killed_or_loses_the_reply() {
    let world = World::start_with(3, &FLAGS).await;
    let target = world.peer_urls("etcd-2").remove(0);
    // Earlier proxies stay: other members may be connected through them.
    let mut proxies = Vec::new();
    for point in TO_ANOTHER_ADDRESS {
        let (mut first, mut second) = doomed(&world, point).await;
        let moved = first.aborted_during(move_behind(&world, "etcd-2", &target));
        proxies.push(moved.await);
        second.stop().await.unwrap();
    }
    let replica = forgetful(&world, LOST_ADDRESS).await;
    proxies.push(move_behind(&world, "etcd-2", &target).await);
    lost(replica, LOST_ADDRESS).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_loses_the_replies_of_an_add_and_a_promotion_makes_no_second_member() {
    let mut world = World::start_with(1, &FLAGS).await;
    let of = world.add_machine();
    for point in LOST {
        let replica = forgetful(&world, point).await;
        world.promote(&of).await;
        world.bring_up(&of).await;
        world.wait_voters(&["etcd-1", &of]).await;
        world.wait_records(&["etcd-1", &of]).await;
        world.demote(&of).await;
        world.wait_role(&of, Role::Worker).await;
        world.wait_voters(&["etcd-1"]).await;
        world.wait_records(&["etcd-1"]).await;
        lost(replica, point).await;
        world.tear_down(&of).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_join_requested_without_a_leader_is_carried_out_by_the_next_leader() {
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
