//! What blocks a demotion, how it is withdrawn, and what a client notices of it.

use prost::Message;
use quorate::etcd::{Revision, Txn};
use quorate::proto::join::Progress;
use quorate::proto::removal::Cause;
use quorate::proto::{Removal, Role};

use super::world::{World, name};
use crate::support::writer::{ELECTION, LONG_ELECTIONS, Writer};

/// Writes the intent to demote, like a leader that ended right after writing it. The node is demoted with that, unless it is already.
pub async fn decide(world: &World, of: &str) {
    let id = world.id_of(of).await;
    let mut record = world.member(id).await.unwrap();
    record.removal = Some(Removal {
        cause: Cause::Demoted.into(),
        ..Removal::default()
    });
    let keys = &world.store.keys;
    let mut txn = Txn::new().put(&keys.member(id), record.encode_to_vec());
    let (mut node, _) = world.node(of).await.unwrap();
    let spec = node.spec.get_or_insert_default();
    if spec.desired_role() != Role::Worker {
        spec.set_desired_role(Role::Worker);
        txn = txn.put(&keys.node(&name(of)), node.encode_to_vec());
    }
    world.commit(txn).await;
}

/// Asserts that the node was observed as a manager all the time since then.
pub async fn was_always_a_manager(world: &World, of: &str, since: Revision) {
    let observed = world.observed_since(of, since).await;
    assert!(observed.iter().all(|role| *role == Role::Manager), "{observed:?}");
}

/// Waits until the leader has completed its step and made another plan: it has refused a join that was requested after
/// everything else.
pub async fn looked(world: &World) {
    world.desire("sentinel-of-the-test", Role::Worker).await;
    let request = world
        .ask_to_join("sentinel-of-the-test", &["http://127.0.0.1:1".to_owned()])
        .await;
    world
        .wait_join("sentinel-of-the-test", &request, Progress::Refused)
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_manager_is_not_demoted_and_the_reason_shows_until_the_demotion_is_withdrawn() {
    // Two voters without a node would keep the quorum.
    let world = World::unmanaged(3, &[]).await;
    let id = world.id_of("etcd-1").await;
    world.adopt("etcd-1", id).await;
    let mut leader = world.leader().await;
    let before = world.list().await.members;
    world.demote("etcd-1").await;
    world.wait_blocked("etcd-1", Some("LastManager")).await;
    // The leader plans again and again, and reports it once.
    for _ in 0..3 {
        looked(&world).await;
    }
    let notices = std::iter::from_fn(|| leader.notices.try_recv().ok());
    let blocked = notices.filter(|notice| notice.reason == "RoleChangeBlocked");
    assert_eq!(blocked.count(), 1);
    assert_eq!(world.list().await.members, before);
    assert_eq!(world.member(id).await.unwrap().removal, None);
    assert_eq!(world.role("etcd-1").await, Role::Manager);
    world.promote("etcd-1").await;
    world.wait_blocked("etcd-1", None).await;
    assert_eq!(world.list().await.members, before);
    leader.resign().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_demotion_withdrawn_while_it_waits_is_not_carried_out() {
    let mut world = World::start(3).await;
    let leader = world.leader().await;
    // The first survey is over. The demotion begins another one, which etcd-3 does not answer.
    leader
        .wait_metric("quorate_members{kind=\"voter\",health=\"healthy\"}", 3.0)
        .await;
    world.machine("etcd-3").kill().await.unwrap();
    world.demote("etcd-2").await;
    world.wait_blocked("etcd-2", Some("QuorumRisk")).await;
    leader.wait_metric("quorate_quorum_blocked", 1.0).await;
    let withdrawn = world.promote("etcd-2").await;
    world.wait_blocked("etcd-2", None).await;
    world.machine("etcd-3").start().await.unwrap();
    looked(&world).await;
    // The leader has planned from the answers of all three, and found nothing to do.
    leader
        .wait_metric("quorate_members{kind=\"voter\",health=\"healthy\"}", 3.0)
        .await;
    world.wait_voters(&["etcd-1", "etcd-2", "etcd-3"]).await;
    let record = world.member(world.id_of("etcd-2").await).await.unwrap();
    assert_eq!(record.removal, None);
    was_always_a_manager(&world, "etcd-2", withdrawn).await;
    leader.resign().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_removed_when_a_second_member_dies_after_the_intent_and_it_goes_on_when_that_is_back() {
    let mut world = World::start(3).await;
    world.demote("etcd-2").await;
    decide(&world, "etcd-2").await;
    world.machine("etcd-3").kill().await.unwrap();
    let leader = world.leader().await;
    world.wait_blocked("etcd-2", Some("QuorumRisk")).await;
    looked(&world).await;
    let (voters, _) = world.members().await;
    assert_eq!(voters, ["etcd-1", "etcd-2", "etcd-3"]);
    world.machine("etcd-3").start().await.unwrap();
    world.wait_role("etcd-2", Role::Worker).await;
    world.wait_voters(&["etcd-1", "etcd-3"]).await;
    assert_eq!(
        world.blocked("etcd-2").await,
        None,
        "the reason goes with the block"
    );
    leader.resign().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_member_is_demoted_while_the_others_have_a_quorum() {
    let mut world = World::start(3).await;
    let leader = world.leader().await;
    world.machine("etcd-2").kill().await.unwrap();
    world.demote("etcd-2").await;
    world.wait_role("etcd-2", Role::Worker).await;
    let list = world.list().await;
    assert_eq!(list.members.len(), 2);
    leader.resign().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_demotion_of_the_raft_leader_leaves_no_gap_beyond_an_election_timeout() {
    let mut world = World::start_with(3, &LONG_ELECTIONS).await;
    let victim = world.raft_leader().await;
    let before = world.id_of(&victim).await;
    let leader = world.leader().await;
    let writer = Writer::start(&world.etcd).await;
    world.demote(&victim).await;
    world.wait_role(&victim, Role::Worker).await;
    let gap = writer.longest_gap().await;
    assert!(gap < ELECTION, "{gap:?}");
    assert_eq!(world.list().await.members.len(), 2);
    assert!(world.list().await.member(before).is_none());
    world.tear_down(&victim).await;
    leader.resign().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_five_as_many_go_as_leave_a_healthy_quorum_and_no_more() {
    let mut world = World::start(5).await;
    let leader = world.leader().await;
    world.machine("etcd-5").kill().await.unwrap();
    // Two in the same second: four voters with three healthy, then three with two.
    world.demote("etcd-1").await;
    world.demote("etcd-2").await;
    for of in ["etcd-1", "etcd-2"] {
        world.wait_role(of, Role::Worker).await;
        world.tear_down(of).await;
    }
    // One healthy voter of two would be left.
    world.demote("etcd-3").await;
    world.wait_blocked("etcd-3", Some("QuorumRisk")).await;
    assert_eq!(world.list().await.voters().count(), 3);
    // The one that is down may go, and then the other.
    world.demote("etcd-5").await;
    world.wait_role("etcd-5", Role::Worker).await;
    world.wait_role("etcd-3", Role::Worker).await;
    world.wait_voters(&["etcd-4"]).await;
    leader.resign().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_hangs_holds_up_nothing_but_what_needs_it() {
    let mut world = World::start(3).await;
    let leader = world.leader().await;
    world.machine("etcd-3").pause();
    world.promote("beside").await;
    world.wait_role("beside", Role::Manager).await;
    // It counts as down: the other two have to stay, and it may be removed.
    world.demote("etcd-2").await;
    world.wait_blocked("etcd-2", Some("QuorumRisk")).await;
    world.promote("etcd-2").await;
    world.wait_blocked("etcd-2", None).await;
    world.demote("etcd-3").await;
    world.wait_role("etcd-3", Role::Worker).await;
    world.wait_voters(&["etcd-1", "etcd-2"]).await;
    world.machine("etcd-3").resume();
    leader.resign().await;
}

/// INV-9.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_etcd_refuses_for_a_while_is_tried_now_and_then_until_etcd_takes_it() {
    let mut world = World::start(3).await;
    let leader = world.leader().await;
    // For 5 s etcd does not count a member that was away, even if it is healthy.
    world.machine("etcd-3").kill().await.unwrap();
    world.machine("etcd-3").start().await.unwrap();
    world.demote("etcd-2").await;
    world.wait_role("etcd-2", Role::Worker).await;
    let refused =
        leader.metric("quorate_role_transitions_total{from=\"voter\",to=\"none\",result=\"failed\"}");
    assert!(refused < 25.0, "tried {refused} times");
    leader.resign().await;
}
