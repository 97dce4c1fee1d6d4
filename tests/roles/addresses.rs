//! Voters that move to other peer URLs: who listens there is proven, before and after (INV-5).

use quorate::proto::Role;
use quorate::proto::join::Progress;

use super::world::World;
use crate::support::proxy::Proxy;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_voter_does_not_move_to_where_another_server_listens() {
    let mut world = World::start(3).await;
    let leader = world.leader().await;
    let before = world.list().await.members;
    let another_member = Proxy::in_front_of(&world.peer_urls("etcd-3")[0]);
    let own_client_port = Proxy::in_front_of(&world.machine("etcd-2").client_url);
    for (url, listener) in [
        (another_member.url(), "another member of etcd"),
        (own_client_port.url(), "no member of etcd"),
    ] {
        let request = world.ask_to_join("etcd-2", &[url]).await;
        let join = world.wait_join("etcd-2", &request, Progress::Refused).await;
        assert_eq!(join.reason, "PeerMismatch", "{join:?}");
        assert!(join.message.contains(listener), "{join:?}");
    }
    assert_eq!(world.list().await.members, before);
    leader.resign().await;
}

/// INV-5. As where an operator changes the address first and moves the machine then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_voter_counts_as_not_reached_at_its_new_address_until_it_was_found_there() {
    let mut world = World::start(3).await;
    let leader = world.leader().await;
    let id = world.id_of("etcd-2").await;
    let moved = format!("http://127.0.0.1:{}", quorate_dev::ports::free_port().unwrap());
    let request = world.ask_to_join("etcd-2", std::slice::from_ref(&moved)).await;
    world.wait_join("etcd-2", &request, Progress::Voter).await;
    let listed = world.list().await.member(id).unwrap().peer_urls.clone();
    assert_eq!(listed, std::slice::from_ref(&moved));
    world.wait_blocked("etcd-2", Some("AddressUnproven")).await;
    // It answers still, but etcd-1 might not reach it.
    world.demote("etcd-3").await;
    world.wait_blocked("etcd-3", Some("QuorumRisk")).await;
    let machine = world.machine("etcd-2");
    machine.stop().await.unwrap();
    machine.listen_to_peers(&moved);
    machine.start().await.unwrap();
    world.wait_role("etcd-3", Role::Worker).await;
    world.wait_voters(&["etcd-1", "etcd-2"]).await;
    let record = world.wait_settled(id).await;
    assert_eq!(record.peer_urls, [moved]);
    world.wait_blocked("etcd-2", None).await;
    leader.resign().await;
}

/// INV-5.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_two_voters_moves_only_to_where_it_was_found() {
    let world = World::start(2).await;
    let leader = world.leader().await;
    let id = world.id_of("etcd-2").await;
    let nowhere = format!("http://127.0.0.1:{}", quorate_dev::ports::free_port().unwrap());
    let request = world.ask_to_join("etcd-2", &[nowhere]).await;
    let join = world.wait_join("etcd-2", &request, Progress::Waiting).await;
    assert_eq!(join.reason, "QuorumRisk", "{join:?}");
    let proxy = Proxy::in_front_of(&world.peer_urls("etcd-2")[0]);
    let request = world.ask_to_join("etcd-2", &[proxy.url()]).await;
    world.wait_join("etcd-2", &request, Progress::Voter).await;
    let record = world.wait_settled(id).await;
    assert_eq!(record.peer_urls, [proxy.url()]);
    leader.resign().await;
}
