//! Nodes that join and leave clusters of one to three members.

use std::collections::BTreeMap;

use quorate::proto::Role;
use quorate::proto::join::Progress;

use super::world::{LONG, World};
use crate::support::wait::eventually;
use crate::support::writer::{ELECTION, LONG_ELECTIONS, Writer};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_becomes_a_voter_and_a_worker_again_and_again() {
    let mut world = World::start(1).await;
    let mut leader = world.leader().await;
    let node = world.add_machine();
    for _ in 0..3 {
        world.promote(&node).await;
        world.bring_up(&node).await;
        world.wait_voters(&["etcd-1", &node]).await;
        world.demote(&node).await;
        world.wait_role(&node, Role::Worker).await;
        world.wait_voters(&["etcd-1"]).await;
        assert_eq!(world.blocked(&node).await, None);
        world.tear_down(&node).await;
    }
    for (sample, count) in [
        (
            "quorate_role_transitions_total{from=\"worker\",to=\"manager\",result=\"done\"}",
            3.0,
        ),
        (
            "quorate_role_transitions_total{from=\"manager\",to=\"worker\",result=\"done\"}",
            3.0,
        ),
        (
            "quorate_role_transitions_total{from=\"none\",to=\"learner\",result=\"done\"}",
            3.0,
        ),
        (
            "quorate_role_transitions_total{from=\"learner\",to=\"voter\",result=\"done\"}",
            3.0,
        ),
        (
            "quorate_role_transitions_total{from=\"voter\",to=\"none\",result=\"done\"}",
            3.0,
        ),
        ("quorate_quorum_blocked", 0.0),
    ] {
        leader.wait_metric(sample, count).await;
    }
    let mut reasons = Vec::new();
    while let Ok(notice) = leader.notices.try_recv() {
        reasons.push(notice.reason);
    }
    // On a busy machine, a slow learner is reported too.
    reasons.retain(|reason| *reason != "RoleChangeBlocked");
    let round = [
        "RoleChanged",
        "MemberAdded",
        "MemberPromoted",
        "RoleChanged",
        "MemberRemoved",
    ];
    assert_eq!(reasons, round.repeat(3));
    leader.resign().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_promotions_in_the_same_second_both_end_as_voters_while_a_client_writes_all_the_while() {
    let mut world = World::start_with(1, &LONG_ELECTIONS).await;
    let leader = world.leader().await;
    let writer = Writer::start(&world.etcd).await;
    let mut waiting = vec![world.add_machine(), world.add_machine()];
    for node in &waiting {
        world.promote(node).await;
    }
    let mut requests = BTreeMap::new();
    for node in &waiting {
        world.wait_role(node, Role::Manager).await;
        let request = world.ask_to_join(node, &world.peer_urls(node)).await;
        requests.insert(node.clone(), request);
    }
    // The node that is added first starts first. The other join waits, with its reason.
    while !waiting.is_empty() {
        let first = eventually(LONG, "one of them is a learner", async || {
            for (index, node) in waiting.iter().enumerate() {
                let join = world.join(node).await.map(|(join, _)| join).unwrap_or_default();
                if join.progress() == Progress::Learner {
                    return Ok(index);
                }
            }
            Err("none is")
        })
        .await;
        let first = waiting.remove(first);
        for other in &waiting {
            let join = world.wait_join(other, &requests[other], Progress::Waiting).await;
            assert_eq!(join.reason, "LearnerPending");
        }
        let (_, learners) = world.members().await;
        assert_eq!(learners.len(), 1, "one learner at a time");
        world.start_added(&first).await;
    }
    for (node, request) in &requests {
        world.wait_join(node, request, Progress::Voter).await;
    }
    world.wait_voters(&["etcd-1", "etcd-2", "etcd-3"]).await;
    let gap = writer.longest_gap().await;
    assert!(gap < ELECTION, "quorum was lost for {gap:?}");
    leader.resign().await;
}

/// From one member to three and back to one, in each order of leaving. The second always joins before the third: their
/// names make no difference.
async fn there_and_back(leaving: [usize; 2]) {
    let mut world = World::start(1).await;
    let leader = world.leader().await;
    let name = |number: usize| format!("etcd-{number}");
    for number in [2, 3] {
        assert_eq!(world.add_machine(), name(number));
        world.promote(&name(number)).await;
        world.bring_up(&name(number)).await;
    }
    world.wait_voters(&["etcd-1", "etcd-2", "etcd-3"]).await;
    for number in leaving {
        world.demote(&name(number)).await;
        world.wait_role(&name(number), Role::Worker).await;
        world.tear_down(&name(number)).await;
    }
    let left = (1..=3).find(|number| !leaving.contains(number)).unwrap();
    world.wait_voters(&[&name(left)]).await;
    // It serves alone.
    world.promote("after").await;
    world.wait_role("after", Role::Manager).await;
    leader.resign().await;
}

macro_rules! there_and_back {
    ($($name:ident: $leaving:expr;)*) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $name() {
            there_and_back($leaving).await;
        }
    )*};
}

there_and_back! {
    one_to_three_and_back_where_the_third_leaves_before_the_second: [3, 2];
    one_to_three_and_back_where_the_second_leaves_before_the_third: [2, 3];
    one_to_three_and_back_where_the_first_leaves_before_the_second: [1, 2];
    one_to_three_and_back_where_the_first_leaves_before_the_third: [1, 3];
    one_to_three_and_back_where_the_second_leaves_before_the_first: [2, 1];
    one_to_three_and_back_where_the_third_leaves_before_the_first: [3, 1];
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_nodes_without_members_change_their_roles_and_back() {
    let world = World::start(1).await;
    let leader = world.leader().await;
    let names: Vec<String> = (0..300).map(|number| format!("n{number:03}")).collect();
    for role in [Role::Manager, Role::Worker] {
        for name in &names {
            world.desire(name, role).await;
        }
        for name in &names {
            world.wait_role(name, role).await;
        }
    }
    world.wait_voters(&["etcd-1"]).await;
    leader.resign().await;
}
