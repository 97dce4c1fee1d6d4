//! The leader is held at a point, and what it has decided on changes meanwhile.

use std::time::{Duration, SystemTime};

use prost::Message;
use quorate::etcd::{Event, KeyRange, Txn};
use quorate::proto::join::Progress;
use quorate::proto::{Member, Role};
use quorate::roles::controller::Settings;
use quorate::store::Store;
use tokio::task::JoinSet;

use super::crashes::FLAGS;
use super::demotions::{decide, looked, was_always_a_manager};
use super::leader::Leader;
use super::world::World;
use crate::support::client::{connect_with, history, ordinary_config};
use crate::support::hold::Hold;
use crate::support::proxy::{Network, Proxy};
use crate::support::quorate::{Launch, TestReplica};
use crate::support::wait::{SOON, eventually, same};
use crate::support::writer::LONG_ELECTIONS;

/// How long a change may take from the proof that roles are not paused on.
const CHANGE_LIMIT: Duration = Duration::from_secs(5);

/// A leader that is held the first time that it reaches this point.
async fn held_at(world: &World, point: &'static str) -> (TestReplica, Hold) {
    let hold = Hold::at(point);
    let mut replica = hold.on(Launch::on(&world.etcd)).start("a");
    replica.wait_leading().await;
    (replica, hold)
}

/// The raft leader of three, and the two others.
async fn three(world: &World) -> [String; 3] {
    let leading = world.raft_leader().await;
    let mut names = ["etcd-1", "etcd-2", "etcd-3"].map(str::to_owned);
    names.sort_by_key(|name| *name != leading);
    names
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_demotion_withdrawn_before_its_intent_is_written_is_not_carried_out() {
    let world = World::start_with(3, &FLAGS).await;
    let (mut replica, hold) = held_at(&world, "roles.deciding-removal").await;
    world.demote("etcd-2").await;
    hold.reached().await;
    let withdrawn = world.promote("etcd-2").await;
    hold.release();
    looked(&world).await;
    world.wait_voters(&["etcd-1", "etcd-2", "etcd-3"]).await;
    let record = world.member(world.id_of("etcd-2").await).await.unwrap();
    assert_eq!(record.removal, None);
    was_always_a_manager(&world, "etcd-2", withdrawn).await;
    replica.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_demotion_withdrawn_while_the_member_is_removed_leaves_the_node_a_manager() {
    let world = World::start_with(3, &FLAGS).await;
    let [leading, second, victim] = three(&world).await;
    let (mut replica, hold) = held_at(&world, "roles.removing").await;
    world.demote(&victim).await;
    hold.reached().await;
    let withdrawn = world.promote(&victim).await;
    hold.release();
    let mut left = [leading.as_str(), second.as_str()];
    left.sort_unstable();
    world.wait_voters(&left).await;
    world.wait_records(&left).await;
    was_always_a_manager(&world, &victim, withdrawn).await;
    replica.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_whose_removal_was_decided_before_a_pause_is_removed_only_after_it() {
    let world = World::start_with(3, &FLAGS).await;
    let [leading, second, victim] = three(&world).await;
    let (mut replica, hold) = held_at(&world, "roles.removing").await;
    world.demote(&victim).await;
    hold.reached().await;
    let pause = world.store.keys.roles_pause();
    world.commit(Txn::new().put(&pause, "")).await;
    // Until the proof in the intent that roles are not paused is too old for the call.
    tokio::time::sleep(CHANGE_LIMIT / 2).await;
    hold.release();
    // The time in which it would be removed.
    tokio::time::sleep(Settings::default().member_timeout).await;
    world.wait_voters(&["etcd-1", "etcd-2", "etcd-3"]).await;
    assert_eq!(world.role(&victim).await, Role::Manager);
    world.commit(Txn::new().delete(&pause)).await;
    let mut left = [leading.as_str(), second.as_str()];
    left.sort_unstable();
    world.wait_voters(&left).await;
    world.wait_role(&victim, Role::Worker).await;
    replica.stop().await.unwrap();
}

/// INV-5: what the decision was made from may have changed by hand meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_intent_that_was_decided_before_a_pause_is_decided_again_after_it() {
    let world = World::start_with(3, &FLAGS).await;
    let id = world.id_of("etcd-2").await;
    let (mut replica, hold) = held_at(&world, "roles.deciding-removal").await;
    world.demote("etcd-2").await;
    hold.reached().await;
    // The record has whole seconds.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let keys = &world.store.keys;
    let pause = Txn::new().put(&keys.roles_pause(), "");
    world.commit(pause.put(&keys.last_roles_pause(), "")).await;
    let resumed = world.commit(Txn::new().delete(&keys.roles_pause())).await;
    let at = prost_types::Timestamp::from(SystemTime::now());
    hold.release();
    world.wait_role("etcd-2", Role::Worker).await;
    let (_, last) = world.node("etcd-2").await.unwrap();
    let events = history(&world.store.etcd, KeyRange::key(keys.member(id)), resumed, last).await;
    let decided = events.iter().find_map(|event| match event {
        Event::Put(kv) => Member::decode(&*kv.value).unwrap().removal?.decided_at,
        Event::Delete { .. } => None,
    });
    let decided = decided.expect("it is decided after the pause");
    assert!(decided.seconds >= at.seconds, "{decided:?} is before {at:?}");
    replica.stop().await.unwrap();
}

/// An answer that is late says what was so when it was asked for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_change_is_sent_once_the_proof_that_roles_are_not_paused_is_too_old() {
    let world = World::start_with(3, &FLAGS).await;
    let [leading, second, victim] = three(&world).await;
    let keys = &world.store.keys;
    let pause = keys.roles_pause();
    world.commit(Txn::new().put(&pause, "")).await;
    world.demote(&victim).await;
    decide(&world, &victim).await;
    // The members themselves are asked without the proxy.
    let proxy = Proxy::in_front_of(&world.etcd.endpoints()[0]);
    let mut config = ordinary_config(vec![proxy.url()]);
    config.sync_endpoints = false;
    config.request_timeout = 4 * CHANGE_LIMIT;
    let store = Store {
        etcd: connect_with(config).await,
        keys: keys.clone(),
    };
    let leader = Leader::elect_on(store, Settings::default(), JoinSet::new()).await;
    leader.wait_metric("quorate_roles_paused", 1.0).await;
    leader
        .wait_metric("quorate_members{kind=\"voter\",health=\"healthy\"}", 3.0)
        .await;
    // The leader reads after 3 s that roles are resumed, and after 6 s more that they are not paused.
    proxy.set(Network::Delays(Duration::from_secs(3)));
    world.commit(Txn::new().delete(&pause)).await;
    // Between the two reads.
    tokio::time::sleep(Duration::from_secs(8)).await;
    world.commit(Txn::new().put(&pause, "")).await;
    // The time in which a call with the late proof would be made.
    tokio::time::sleep(2 * CHANGE_LIMIT).await;
    world.wait_voters(&["etcd-1", "etcd-2", "etcd-3"]).await;
    proxy.set(Network::Passes);
    world.commit(Txn::new().delete(&pause)).await;
    let mut left = [leading.as_str(), second.as_str()];
    left.sort_unstable();
    world.wait_voters(&left).await;
    leader.resign().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_removed_when_a_second_member_dies_between_the_check_and_the_intent() {
    // INV-5 without etcd's own check. Neither is the raft leader: nothing but the dead one is in the way.
    let mut world = World::start_with(3, &FLAGS).await;
    let [leading, second, victim] = three(&world).await;
    let (mut replica, hold) = held_at(&world, "roles.deciding-removal").await;
    world.demote(&victim).await;
    hold.reached().await;
    // As long as an answer counts: what the second one says of itself meanwhile is too old then.
    tokio::time::sleep(Settings::default().member_timeout).await;
    world.machine(&second).kill().await.unwrap();
    hold.release();
    world.wait_blocked(&victim, Some("QuorumRisk")).await;
    let (voters, _) = world.members().await;
    assert_eq!(voters, ["etcd-1", "etcd-2", "etcd-3"]);
    world.machine(&second).start().await.unwrap();
    world.wait_role(&victim, Role::Worker).await;
    let mut left = [leading.as_str(), second.as_str()];
    left.sort_unstable();
    world.wait_voters(&left).await;
    replica.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_demotion_ends_only_once_a_quorum_of_the_rest_has_seen_the_member_go() {
    // The removal would go through etcd-3 if it led, and its answer would confirm the removal.
    let flags = [FLAGS.as_slice(), LONG_ELECTIONS.as_slice()].concat();
    let mut world = World::start_with(3, &flags).await;
    let proxy = world.last_behind_proxy().await;
    let leading = world.raft_leader().await;
    assert_ne!(leading, "etcd-3", "it has just started again");
    let victim = if leading == "etcd-1" { "etcd-2" } else { "etcd-1" };
    let other = if victim == "etcd-1" { "etcd-2" } else { "etcd-1" };
    let (mut replica, hold) = held_at(&world, "roles.removal-answered").await;
    world.demote(victim).await;
    hold.reached().await;
    proxy.set(Network::BlackHole);
    hold.release();
    world.wait_blocked(victim, Some("MemberListUnreadable")).await;
    assert_eq!(world.role(victim).await, Role::Manager);
    proxy.set(Network::Passes);
    world.wait_role(victim, Role::Worker).await;
    world.wait_voters(&[other, "etcd-3"]).await;
    world.wait_records(&[other, "etcd-3"]).await;
    replica.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_join_whose_node_is_demoted_before_the_intent_is_written_adds_and_promotes_no_member() {
    let mut world = World::start_with(1, &FLAGS).await;
    let of = world.add_machine();
    for (point, transition) in [
        (
            "roles.deciding-add",
            "quorate_role_transitions_total{from=\"none\",to=\"learner\",result=\"done\"}",
        ),
        (
            "roles.deciding-promotion",
            "quorate_role_transitions_total{from=\"learner\",to=\"voter\",result=\"done\"}",
        ),
    ] {
        let (mut replica, hold) = held_at(&world, point).await;
        world.promote(&of).await;
        world.wait_role(&of, Role::Manager).await;
        let request = world.ask_to_join(&of, &world.peer_urls(&of)).await;
        if point == "roles.deciding-promotion" {
            world.wait_join(&of, &request, Progress::Learner).await;
            world.start_added(&of).await;
        }
        hold.reached().await;
        world.demote(&of).await;
        hold.release();
        world.wait_role(&of, Role::Worker).await;
        looked(&world).await;
        world.wait_voters(&["etcd-1"]).await;
        world.wait_records(&["etcd-1"]).await;
        assert_eq!(replica.metric(transition).await, 0.0, "{point}");
        replica.stop().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_comes_while_its_member_is_added_is_answered_too() {
    let mut world = World::start_with(1, &FLAGS).await;
    let of = world.add_machine();
    let (mut replica, hold) = held_at(&world, "roles.adding").await;
    world.promote(&of).await;
    world.wait_role(&of, Role::Manager).await;
    let urls = world.peer_urls(&of);
    world.ask_to_join(&of, &urls).await;
    hold.reached().await;
    let again = world.ask_to_join(&of, &urls).await;
    hold.release();
    world.wait_join(&of, &again, Progress::Learner).await;
    assert_eq!(world.list().await.members.len(), 2);
    world.wait_records(&["etcd-1", &of]).await;
    replica.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_member_is_evicted_if_the_last_node_goes_before_the_intent_is_written() {
    let world = World::start_with(3, &FLAGS).await;
    let before = world.list().await.members;
    let (mut replica, hold) = held_at(&world, "roles.deciding-removal").await;
    world.remove_node("etcd-3").await;
    hold.reached().await;
    // As where the prefix is emptied key by key.
    world
        .commit(Txn::new().delete_range(&world.store.keys.nodes()))
        .await;
    hold.release();
    for member in &before {
        eventually(SOON, "the record says why", async || {
            let key = world.store.keys.member(member.id);
            let stored = world.read(&key).await.expect("the record stays");
            let record = Member::decode(&*stored.value).unwrap();
            assert_eq!(record.removal, None);
            let reasons = record.conditions.iter().map(|condition| condition.reason.clone());
            let reason = match member.name.as_str() {
                "etcd-3" => "NodesMissing",
                _ => "NodeMissing",
            };
            same(reasons.collect(), vec![reason.to_owned()])
        })
        .await;
    }
    assert_eq!(world.list().await.members, before);
    replica.stop().await.unwrap();
}
