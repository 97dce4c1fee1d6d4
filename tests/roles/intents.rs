//! Every intent ends: carried out, or withdrawn once no call of it can be under way (INV-5). What is stuck is named, and
//! stops nothing else.

use std::time::Duration;

use quorate::proto::Role;
use quorate::proto::join::Progress;
use quorate::roles::controller::Settings;
use quorate::roles::plan::Limits;

use super::demotions::{decide, was_always_a_manager};
use super::world::{LONG, World};
use crate::support::client::raft_leader;
use crate::support::proxy::Network;
use crate::support::wait::{eventually, same};

/// Limits that are over soon.
fn hasty() -> Settings {
    Settings {
        limits: Limits {
            learner_timeout: Duration::from_secs(3),
            add_doubt: Duration::from_secs(1),
            ..Limits::default()
        },
        patience: Duration::from_millis(200),
        ..Settings::default()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_decided_removal_holds_up_no_removal_of_a_member_that_died_since() {
    let mut world = World::start(3).await;
    world.demote("etcd-3").await;
    decide(&world, "etcd-3").await;
    world.machine("etcd-2").kill().await.unwrap();
    let leader = world.leader().await;
    // One of {etcd-1, etcd-2} would be left.
    world.wait_blocked("etcd-3", Some("QuorumRisk")).await;
    // etcd-3 answers, so etcd has a quorum without etcd-2.
    world.demote("etcd-2").await;
    world.wait_role("etcd-2", Role::Worker).await;
    world.wait_role("etcd-3", Role::Worker).await;
    world.wait_voters(&["etcd-1"]).await;
    world.tear_down("etcd-3").await;
    leader.resign().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_intent_is_withdrawn_where_its_node_is_a_manager_again_and_no_call_can_be_under_way() {
    let mut world = World::start(3).await;
    world.demote("etcd-3").await;
    decide(&world, "etcd-3").await;
    world.machine("etcd-2").kill().await.unwrap();
    let leader = world.leader_with(hasty()).await;
    world.wait_blocked("etcd-3", Some("QuorumRisk")).await;
    world.promote("etcd-3").await;
    let id = world.id_of("etcd-3").await;
    eventually(LONG, "the intent is withdrawn", async || {
        same(world.member(id).await.unwrap().removal, None)
    })
    .await;
    world.wait_blocked("etcd-3", None).await;
    world.machine("etcd-2").start().await.unwrap();
    leader
        .wait_metric("quorate_members{kind=\"voter\",health=\"healthy\"}", 3.0)
        .await;
    world.wait_voters(&["etcd-1", "etcd-2", "etcd-3"]).await;
    leader.resign().await;
}

/// The leader that decided it ended before its call.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_demotion_that_was_withdrawn_while_nothing_led_is_not_carried_out_by_the_next_leader() {
    let world = World::start(3).await;
    let id = world.id_of("etcd-2").await;
    world.demote("etcd-2").await;
    decide(&world, "etcd-2").await;
    let withdrawn = world.promote("etcd-2").await;
    let leader = world.leader_with(hasty()).await;
    eventually(LONG, "the intent is withdrawn", async || {
        let record = world.member(id).await.expect("its record stays");
        same(record.removal, None)
    })
    .await;
    world.wait_voters(&["etcd-1", "etcd-2", "etcd-3"]).await;
    assert_eq!(world.id_of("etcd-2").await, id);
    was_always_a_manager(&world, "etcd-2", withdrawn).await;
    let removals = "quorate_role_transitions_total{from=\"voter\",to=\"none\",result=\"done\"}";
    assert_eq!(leader.metric(removals), 0.0);
    leader.resign().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_raft_leader_whose_client_url_hangs_is_removed_without_a_move_of_leadership() {
    let mut world = World::start(3).await;
    let proxy = world.last_behind_proxy().await;
    let to = world.id_of("etcd-3").await;
    eventually(LONG, "etcd-3 leads", async || {
        let from = raft_leader(&world.store.etcd).await;
        if from.id == to {
            return Ok(());
        }
        let moved = world.store.etcd.move_leadership(&from, to).await;
        Err(format!("it was {}: {moved:?}", from.name))
    })
    .await;
    proxy.set(Network::BlackHole);
    let leader = world.leader().await;
    world.demote("etcd-3").await;
    world.wait_role("etcd-3", Role::Worker).await;
    world.wait_voters(&["etcd-1", "etcd-2"]).await;
    leader.resign().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_learner_that_died_after_its_first_start_is_named_and_removed_and_others_join() {
    let mut world = World::start(1).await;
    let (first, second) = (world.add_machine(), world.add_machine());
    let urls = world.peer_urls(&first);
    let learner = world.half_add(&first, &urls, false).await;
    world.start_added(&first).await;
    eventually(LONG, "the learner has its name", async || {
        same(world.members().await.1, vec![first.clone()])
    })
    .await;
    world.machine(&first).kill().await.unwrap();
    world.promote(&second).await;
    let leader = world.leader_with(hasty()).await;
    world.wait_role(&second, Role::Manager).await;
    let urls = world.peer_urls(&second);
    let queued = world.ask_to_join(&second, &urls).await;
    let join = world.wait_join(&second, &queued, Progress::Waiting).await;
    assert_eq!(join.reason, "LearnerPending");
    let named = join.message.contains(&first) && join.message.contains(&learner.to_string());
    assert!(named, "{join:?}");
    let join = world.wait_join(&first, "r", Progress::Removed).await;
    assert_eq!(join.reason, "Stalled", "{join:?}");
    world.wait_join(&second, &queued, Progress::Learner).await;
    world.start_added(&second).await;
    world.wait_join(&second, &queued, Progress::Voter).await;
    leader.resign().await;
}

/// INV-9.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_join_that_etcd_refuses_beside_a_dead_voter_says_whom_it_waits_for_and_asks_ever_less() {
    let mut world = World::start(3).await;
    let of = world.add_machine();
    world.promote(&of).await;
    world.machine("etcd-3").kill().await.unwrap();
    let leader = world.leader().await;
    world.wait_role(&of, Role::Manager).await;
    let urls = world.peer_urls(&of);
    let request = world.ask_to_join(&of, &urls).await;
    let refuses = eventually(LONG, "the join says what etcd refuses", async || {
        let (join, _) = world.join(&of).await.ok_or("there is none")?;
        match join.reason == "EtcdRefused" && join.message.contains("etcd-3") {
            true => Ok(true),
            false if join.progress() == Progress::Learner => Ok(false),
            false => Err("something else"),
        }
    })
    .await;
    if !refuses {
        // etcd from 3.5.30 and 3.6.11 on adds a learner beside a dead voter.
        return leader.resign().await;
    }
    let refusals = "quorate_role_transitions_total{from=\"none\",to=\"learner\",result=\"failed\"}";
    eventually(LONG, "it is refused again and again", async || {
        match leader.metric(refusals) {
            asked if asked >= 6.0 => Ok(()),
            asked => Err(asked),
        }
    })
    .await;
    // The measured time. Sixteen seconds lie between the sixth and the seventh, give or take a quarter.
    let before = leader.metric(refusals);
    tokio::time::sleep(Duration::from_secs(10)).await;
    let asked = leader.metric(refusals) - before;
    assert!(asked <= 1.0, "{asked} times in 10 s");
    // Once that voter is gone, etcd adds the learner.
    world.demote("etcd-3").await;
    world.wait_join(&of, &request, Progress::Learner).await;
    leader.resign().await;
}
