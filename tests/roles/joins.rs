//! Requests to join: refused, queued, half done, given up, repeated.

use std::time::Duration;

use prost::Message;
use quorate::etcd::Txn;
use quorate::etcd::members::ChangeFault;
use quorate::proto::join::Progress;
use quorate::proto::{RemovedNode, Role};
use quorate::roles::controller::Settings;
use quorate::roles::plan::Limits;

use super::crashes::FLAGS;
use super::world::{LONG, World};
use crate::support::proxy::Proxy;
use crate::support::wait::eventually;

fn url(port: u16) -> Vec<String> {
    vec![format!("http://127.0.0.1:{port}")]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn impossible_joins_are_refused_by_their_rule_and_change_nothing() {
    let world = World::start(2).await;
    let leader = world.leader().await;
    let before = world.list().await.members;
    let keys = &world.store.keys;
    world.desire("worker", Role::Worker).await;
    world.promote("fresh").await;
    world.promote("removed").await;
    for of in ["fresh", "removed"] {
        world.wait_role(of, Role::Manager).await;
    }
    let record = RemovedNode::default().encode_to_vec();
    world
        .commit(Txn::new().put(&keys.removed("uid-of-removed"), record))
        .await;
    let taken = world.peer_urls("etcd-2");
    for (of, urls, rule) in [
        ("worker", url(1), "NotAManager"),
        ("removed", url(1), "NodeRemoved"),
        ("missing", url(1), "NodeNotFound"),
        ("fresh", taken, "PeerUrlTaken"),
        ("fresh", vec!["127.0.0.1:1".to_owned()], "BadPeerUrl"),
        // A name that no resolver knows.
        (
            "fresh",
            vec!["http://no-such-host.invalid:2380".to_owned()],
            "PeerUnreachable",
        ),
    ] {
        let request = world.ask_to_join(of, &urls).await;
        let join = world.wait_join(of, &request, Progress::Refused).await;
        assert_eq!(join.reason, rule, "{join:?}");
    }
    assert_eq!(world.list().await.members, before);
    leader.resign().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_was_promoted_and_removed_before_it_joined_cannot_join() {
    let mut world = World::start(1).await;
    let leader = world.leader().await;
    let of = world.add_machine();
    world.promote(&of).await;
    world.wait_role(&of, Role::Manager).await;
    world.remove_node(&of).await;
    let request = world.ask_to_join(&of, &world.peer_urls(&of)).await;
    let join = world.wait_join(&of, &request, Progress::Refused).await;
    assert_eq!(join.reason, "NodeRemoved");
    world.wait_voters(&["etcd-1"]).await;
    // A node of the same name that is created later is another one.
    world.promote(&of).await;
    world.bring_up(&of).await;
    world.wait_voters(&["etcd-1", &of]).await;
    leader.resign().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_learner_that_never_starts_is_removed_and_its_node_can_try_again() {
    let mut world = World::start(1).await;
    let settings = Settings {
        limits: Limits {
            learner_timeout: Duration::from_secs(2),
            ..Limits::default()
        },
        patience: Duration::from_millis(200),
        ..Settings::default()
    };
    let leader = world.leader_with(settings).await;
    let of = world.add_machine();
    world.promote(&of).await;
    world.wait_role(&of, Role::Manager).await;
    let request = world.ask_to_join(&of, &world.peer_urls(&of)).await;
    let join = world.wait_join(&of, &request, Progress::Removed).await;
    assert_eq!(join.reason, "NeverStarted");
    world.wait_voters(&["etcd-1"]).await;
    leader.resign().await;

    // Under a leader with more time.
    let leader = world.leader().await;
    world.bring_up(&of).await;
    world.wait_voters(&["etcd-1", &of]).await;
    world.wait_blocked(&of, None).await;
    leader.resign().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_learner_is_a_reason_that_shows_and_goes() {
    let mut world = World::start(1).await;
    let settings = Settings {
        patience: Duration::from_millis(200),
        ..Settings::default()
    };
    let leader = world.leader_with(settings).await;
    let of = world.add_machine();
    world.promote(&of).await;
    world.wait_role(&of, Role::Manager).await;
    let request = world.ask_to_join(&of, &world.peer_urls(&of)).await;
    world.wait_join(&of, &request, Progress::Learner).await;
    world.wait_blocked(&of, Some("LearnerNotStarted")).await;
    world.start_added(&of).await;
    world.wait_join(&of, &request, Progress::Voter).await;
    world.wait_blocked(&of, None).await;
    leader.resign().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_add_that_half_happened_is_completed_and_not_made_twice() {
    let mut world = World::start(1).await;
    let of = world.add_machine();
    let added = world.half_add(&of, &world.peer_urls(&of), false).await;
    let leader = world.leader().await;
    let join = world.wait_join(&of, "r", Progress::Learner).await;
    assert_eq!(join.member_id, added.0);
    world.start_added(&of).await;
    world.wait_join(&of, "r", Progress::Voter).await;
    world.wait_voters(&["etcd-1", &of]).await;
    assert_eq!(world.id_of(&of).await, added);
    leader.resign().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_add_that_half_happened_for_a_node_that_was_removed_is_undone() {
    let world = World::start(1).await;
    let urls = url(quorate_dev::ports::free_port().unwrap());
    world.half_add("gone", &urls, true).await;
    world.remove_node("gone").await;
    let leader = world.leader().await;
    world.wait_voters(&["etcd-1"]).await;
    world.wait_join("gone", "r", Progress::Removed).await;
    leader.resign().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_joins_again_gets_its_new_address_and_nothing_else_changes() {
    let world = World::start(3).await;
    let leader = world.leader().await;
    let before = world.id_of("etcd-2").await;
    // The same etcd under another address, as after a move.
    let proxy = Proxy::in_front_of(&world.peer_urls("etcd-2")[0]);
    let request = world.ask_to_join("etcd-2", &[proxy.url()]).await;
    let join = world.wait_join("etcd-2", &request, Progress::Voter).await;
    assert_eq!(join.member_id, before.0);
    let list = world.list().await;
    assert_eq!(list.member(before).unwrap().peer_urls, [proxy.url()]);
    assert_eq!(list.voters().count(), 3);
    let record = world.member(before).await.unwrap();
    assert_eq!((record.peer_urls, record.removal), (vec![proxy.url()], None));
    leader.resign().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answered_request_gets_the_same_answer_when_it_is_made_again() {
    let mut world = World::start(1).await;
    let leader = world.leader().await;
    let of = world.add_machine();
    world.promote(&of).await;
    world.bring_up(&of).await;
    let first = world.id_of(&of).await;
    let again = world.ask_to_join(&of, &world.peer_urls(&of)).await;
    let join = world.wait_join(&of, &again, Progress::Voter).await;
    assert_eq!(join.member_id, first.0);
    assert_eq!(world.list().await.members.len(), 2, "one member for the node");
    leader.resign().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_demoted_node_is_shown_which_member_of_it_is_out_for_good_and_a_later_one_is_another() {
    let mut world = World::start(1).await;
    let leader = world.leader().await;
    let of = world.add_machine();
    world.promote(&of).await;
    world.bring_up(&of).await;
    world.wait_voters(&["etcd-1", &of]).await;
    let first = world.id_of(&of).await;
    let removed = async || world.join(&of).await.unwrap().0.removed_members;
    assert_eq!(removed().await, [0_u64; 0]);
    let before = world.demote(&of).await;
    world.wait_role(&of, Role::Worker).await;
    assert_eq!(removed().await, [first.0]);
    // One transaction says both, so that an agent never has the one without the other.
    let (node, written) = world.node(&of).await.unwrap();
    assert!(written > before, "{node:?}");
    assert_eq!(world.join(&of).await.unwrap().1, written);
    leader.resign().await;
}

/// Without that word, the agent of the node would keep the etcd of the member that is gone, and never start that of the next one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_removed_by_hand_while_another_add_of_its_node_is_under_way_is_named_as_gone() {
    let world = World::start_with(2, &FLAGS).await;
    let before = world.list().await;
    let named = |name: &str| before.members.iter().find(|member| member.name == name).unwrap();
    let (through, old) = (named("etcd-1"), named("etcd-2"));
    let urls = url(quorate_dev::ports::free_port().unwrap());
    let next = world.half_add("etcd-2", &urls, false).await;
    eventually(LONG, "an operator removes it", async || {
        match world.store.etcd.remove_member(through, old).await {
            Err(error) if error.fault != ChangeFault::MemberNotFound => Err(error.to_string()),
            _ => Ok(()),
        }
    })
    .await;
    let leader = world.leader().await;
    let join = world.wait_join("etcd-2", "r", Progress::Learner).await;
    assert_eq!(join.member_id, next.0, "the add goes on");
    assert_eq!(join.removed_members, [old.id.0]);
    assert_eq!(world.member(old.id).await, None);
    assert_eq!(world.role("etcd-2").await, Role::Manager);
    leader.resign().await;
}
