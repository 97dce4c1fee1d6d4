//! The leader is killed at every step by which a member goes, demoted or evicted, or goes itself: what was begun ends,
//! once, and nothing else is removed.

use quorate::proto::Role;

use super::crashes::{FLAGS, doomed, forgetful, launch, lost};
use super::demotions::decide;
use super::world::World;
use crate::support::quorate::Launch;
use crate::support::writer::LONG_ELECTIONS;

/// On a member's way out.
pub const OF_A_MEMBER: [&str; 6] = [
    "roles.deciding-removal",
    "roles.decided-removal",
    "roles.removing",
    "roles.removal-answered",
    "roles.removal-confirmed",
    "roles.removed",
];

/// Before that, where the member is the raft leader.
pub const OF_LEADERSHIP: [&str; 2] = ["roles.moving-leadership", "roles.moved-leadership"];

/// Where the member is out of the list already.
pub const BY_ANOTHER: [&str; 2] = ["roles.forgetting", "roles.forgotten"];

pub const LOST_LEADERSHIP: &str = "roles.lose-move";

/// How a member goes.
#[derive(Clone, Copy)]
enum Way {
    /// Its node is demoted.
    Demoted,
    /// Its node is removed.
    Evicted,
    /// An operator takes it out of etcd's list, then its node is demoted.
    TakenOut,
}

/// Sends a member on its way out, and waits until nothing is left of it.
async fn goes(world: &World, of: &str, way: Way) {
    let before = world.id_of(of).await;
    let (mut others, _) = world.members().await;
    others.retain(|name| name != of);
    let others: Vec<&str> = others.iter().map(String::as_str).collect();
    match way {
        Way::Demoted => _ = world.demote(of).await,
        Way::Evicted => world.remove_node(of).await,
        Way::TakenOut => {
            world.take_out(of).await;
            world.demote(of).await;
        }
    }
    if !matches!(way, Way::Evicted) {
        world.wait_role(of, Role::Worker).await;
    }
    world.wait_voters(&others).await;
    world.wait_records(&others).await;
    assert!(world.list().await.member(before).is_none());
}

/// It joins again, as another member.
async fn comes_back(world: &mut World, of: &str) {
    let mut replica = launch(world).start("c");
    world.promote(of).await;
    world.bring_up(of).await;
    replica.stop().await.unwrap();
}

/// A member goes under leaders of which the first ends at this point, and joins again.
async fn removal_survives(world: &mut World, of: &str, way: Way, point: &'static str) {
    let (mut first, mut second) = doomed(world, point).await;
    first.aborted_during(goes(world, of, way)).await;
    second.stop().await.unwrap();
    match way {
        // It was asked for its status while an operator removed it, so it may have panicked.
        Way::TakenOut => _ = world.machine(of).kill().await.unwrap(),
        Way::Demoted | Way::Evicted => world.tear_down(of).await,
    }
    comes_back(world, of).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_killed_at_any_step_of_a_demotion_is_succeeded_by_one_that_ends_it() {
    let mut world = World::start_with(3, &FLAGS).await;
    for point in OF_A_MEMBER {
        removal_survives(&mut world, "etcd-3", Way::Demoted, point).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_killed_at_any_step_of_an_eviction_is_succeeded_by_one_that_ends_it() {
    let mut world = World::start_with(2, &FLAGS).await;
    for point in OF_A_MEMBER {
        removal_survives(&mut world, "etcd-2", Way::Evicted, point).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_killed_while_it_forgets_a_member_that_is_gone_is_succeeded_by_one_that_does() {
    let mut world = World::start_with(2, &FLAGS).await;
    for point in BY_ANOTHER {
        removal_survives(&mut world, "etcd-2", Way::TakenOut, point).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_move_of_raft_leadership_is_completed_although_the_leader_is_killed_or_loses_the_reply() {
    // An election, as on a busy machine, would take raft's lead away: nothing would be left to move.
    let flags = [FLAGS.as_slice(), LONG_ELECTIONS.as_slice()].concat();
    let mut world = World::start_with(3, &flags).await;
    for point in OF_LEADERSHIP {
        let of = world.raft_leader().await;
        removal_survives(&mut world, &of, Way::Demoted, point).await;
    }
    let of = world.raft_leader().await;
    let replica = forgetful(&world, LOST_LEADERSHIP).await;
    goes(&world, &of, Way::Demoted).await;
    lost(replica, LOST_LEADERSHIP).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_whose_own_node_is_demoted_carries_that_out_itself() {
    let mut world = World::start(3).await;
    let of = world.raft_leader().await;
    // Its name is that of the node, and the only etcd endpoint that it was given is the one that is removed.
    let endpoint = world.machine(&of).client_url.clone();
    let mut replica = Launch::on(&world.etcd).endpoints(vec![endpoint]).start(&of);
    replica.wait_leading().await;
    let term = world.term().await;
    goes(&world, &of, Way::Demoted).await;
    assert!(replica.leads().await);
    assert_eq!(world.term().await, term, "it did not even lose its lead");
    world.tear_down(&of).await;
    world.promote(&of).await;
    world.bring_up(&of).await;
    world.wait_voters(&["etcd-1", "etcd-2", "etcd-3"]).await;
    replica.stop().await.unwrap();
}

/// INV-3: what etcd cannot fence starts only inside the window.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_whose_window_has_closed_removes_no_member() {
    let world = World::start_with(3, &FLAGS).await;
    let mut leader = world.leader().await;
    // Not the raft leader, which would have to hand over first.
    let (of, other) = match world.raft_leader().await.as_str() {
        "etcd-3" => ("etcd-2", "etcd-3"),
        _ => ("etcd-3", "etcd-2"),
    };
    let before = world.list().await.members;
    leader.fence().window().close();
    // The intent is there, so that nothing needs to be written before the call.
    decide(&world, of).await;
    leader.ended().await;
    assert_eq!(world.list().await.members, before);
    leader.resign().await;
    // The next leader carries it out.
    let leader = world.leader().await;
    world.wait_records(&["etcd-1", other]).await;
    leader.resign().await;
}
