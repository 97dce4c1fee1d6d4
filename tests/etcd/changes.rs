//! Changes of the member lists of real clusters, each requested from one given member.

use std::time::Duration;

use quorate::etcd::members::{
    ChangeError, ChangeFault, Evidence, Inquiry, ListedMember, MemberList, NotAsked, latest_raft_leader,
};
use quorate::etcd::{Etcd, MemberId};
use quorate::grpc_code::Code;
use quorate_dev::etcd::Member;

use super::following;
use super::members::{LIMIT, list, named};
use super::outages::wait_for_endpoints;
use crate::support::client::{config, connect, connect_to, connect_with, put, requests};
use crate::support::etcd::TestEtcd;
use crate::support::proxy::{Network, Proxy};
use crate::support::traced::Traced;
use crate::support::wait::{SOON, eventually, same};

/// The raft leader and another voter.
async fn leader_and_other(client: &Etcd, list: &MemberList) -> (ListedMember, ListedMember) {
    let leader = eventually(SOON, "a raft leader", async || {
        latest_raft_leader(&client.survey(&list.members, LIMIT).await).ok_or("none")
    })
    .await;
    let other = list.voters().find(|member| member.id != leader).unwrap();
    (list.member(leader).unwrap().clone(), other.clone())
}

/// The list of two members, once it has the proxy's address for this one.
async fn list_behind(client: &Etcd, name: &str, proxy: &Proxy) -> MemberList {
    eventually(SOON, "the proxy's address", async || {
        let listed = list(client, 2).await;
        let urls = named(&listed, name).client_urls.clone();
        same(urls, vec![proxy.url()]).map(|_| listed)
    })
    .await
}

async fn expect_healthy(client: &Etcd, members: &[ListedMember]) {
    let surveys = client.survey(members, LIMIT).await;
    assert!(surveys.iter().all(Evidence::is_healthy), "{surveys:?}");
}

/// `--initial-cluster` for a joining member that is listed by its peer URL.
fn initial_cluster(list: &MemberList, joining: &Member) -> String {
    let entry = |member: &ListedMember| {
        let name = if member.is_started() {
            &member.name
        } else {
            &joining.name
        };
        format!("{name}={}", member.peer_urls[0])
    };
    list.members.iter().map(entry).collect::<Vec<_>>().join(",")
}

/// Adds a learner to the only member, starts it, and returns it as listed.
pub(super) async fn start_learner(client: &Etcd, etcd: &mut TestEtcd) -> ListedMember {
    let first = list(client, 1).await.members.remove(0);
    let urls = [etcd.add().unwrap().peer_url.clone()];
    let added = client.add_learner(&first, &urls).await.unwrap();
    let listed = client.list_members().await.unwrap();
    let joining = etcd.members.last_mut().unwrap();
    joining.join(&initial_cluster(&listed, joining)).unwrap();
    list(client, 2).await.member(added.id).unwrap().clone()
}

/// Repeats a change until etcd accepts it: it counts a member for the quorum only after 5 s of connection.
async fn once_settled<T>(what: &str, mut change: impl AsyncFnMut() -> Result<T, ChangeError>) -> T {
    eventually(SOON, what, async || change().await).await
}

#[tokio::test]
async fn a_learner_is_added_refused_until_it_is_in_sync_promoted_and_removed() {
    let mut etcd = TestEtcd::start().await;
    let client = connect_with(config(etcd.endpoints())).await;
    let first = list(&client, 1).await.members.remove(0);
    let (client_url, peer_url) = {
        let second = etcd.add().unwrap();
        (second.client_url.clone(), second.peer_url.clone())
    };
    let urls = vec![peer_url];
    let added = client.add_learner(&first, &urls).await.unwrap();
    assert!(added.learner && !added.is_started() && added.has_peer_urls(&urls));
    // A second add of the same URL is refused.
    let again = client.add_learner(&first, &urls).await.unwrap_err();
    assert_eq!(again.fault, ChangeFault::PeerUrlExists, "{again}");
    let third = vec!["http://127.0.0.1:1".to_owned()];
    let third = client.add_learner(&first, &third).await.unwrap_err();
    assert_eq!(third.fault, ChangeFault::TooManyLearners, "{third}");
    let bad = client
        .add_learner(&first, &["nonsense".to_owned()])
        .await
        .unwrap_err();
    assert_eq!(bad.fault, ChangeFault::BadUrls, "{bad}");
    // A learner that has never started cannot be asked or promoted.
    let surveys = client.survey(std::slice::from_ref(&added), LIMIT).await;
    assert!(!surveys[0].is_healthy());
    let early = client.promote_learner(&first, added.id).await.unwrap_err();
    assert_eq!(early.fault, ChangeFault::LearnerNotReady, "{early}");

    let listed = client.list_members().await.unwrap();
    let joining = etcd.members.last_mut().unwrap();
    joining.join(&initial_cluster(&listed, joining)).unwrap();
    let listed = list(&client, 2).await;
    let second = listed.member(added.id).unwrap().clone();
    assert!(second.learner && second.client_urls == [client_url]);
    eventually(SOON, "a healthy learner", async || {
        let surveys = client.survey(&listed.members, LIMIT).await;
        same(surveys.iter().all(Evidence::is_healthy), true)
    })
    .await;
    once_settled("promoted", async || {
        client.promote_learner(&first, second.id).await
    })
    .await;
    let twice = client.promote_learner(&first, second.id).await.unwrap_err();
    assert_eq!(twice.fault, ChangeFault::NotALearner, "{twice}");
    let listed = client.list_members().await.unwrap();
    assert_eq!(listed.voters().count(), 2);
    // Each member reports the same list.
    for member in &listed.members {
        let list = client.list_through(member, LIMIT).await.unwrap();
        assert_eq!((list.answered_by, list.voters().count()), (member.id, 2));
        // Its own list is at least as new as the one that it read before.
        assert_eq!(client.own_list_of(member, LIMIT).await.unwrap(), list);
    }
    let (leader, other) = leader_and_other(&client, &listed).await;
    let refused = client.move_leadership(&other, leader.id).await.unwrap_err();
    assert_eq!(refused.fault, ChangeFault::NotLeader, "{refused}");
    let refused = client.move_leadership(&leader, MemberId(1)).await.unwrap_err();
    assert_eq!(refused.fault, ChangeFault::BadTransferee, "{refused}");
    let moved_urls = vec!["http://127.0.0.1:1".to_owned()];
    let unknown = client.update_peer_urls(&leader, MemberId(1), &moved_urls).await;
    assert_eq!(unknown.unwrap_err().fault, ChangeFault::MemberNotFound);
    let itself = client.remove_member(&other, &other).await.unwrap_err();
    assert_eq!(itself.fault, ChangeFault::Refused, "{itself}");
    once_settled("removed", async || client.remove_member(&leader, &other).await).await;
    let gone = client.remove_member(&leader, &other).await.unwrap_err();
    assert_eq!(gone.fault, ChangeFault::MemberNotFound, "{gone}");
    assert_eq!(client.list_members().await.unwrap().members.len(), 1);
}

#[tokio::test]
async fn a_voters_peer_urls_are_changed() {
    let etcd = TestEtcd::start().await;
    let client = connect(&etcd).await;
    let only = list(&client, 1).await.members[0].clone();
    let urls = vec!["http://127.0.0.1:1".to_owned()];
    client.update_peer_urls(&only, only.id, &urls).await.unwrap();
    let listed = client.list_members().await.unwrap();
    assert!(listed.members[0].has_peer_urls(&urls), "{listed:?}");
    assert_eq!(listed.members[0].id, only.id);
}

#[tokio::test]
async fn a_removed_member_gets_no_requests_and_its_endpoint_leaves_the_channel() {
    let mut etcd = TestEtcd::with(3, &[]).await;
    let client = connect(&etcd).await;
    let listed = list(&client, 3).await;
    let (leader, victim) = leader_and_other(&client, &listed).await;
    expect_healthy(&client, &listed.members).await;
    once_settled("removed", async || client.remove_member(&leader, &victim).await).await;
    assert!(!client.live_endpoints().contains(&victim.client_urls[0]));
    // A caller with an old list still asks for it, even after this connection has read the new list.
    assert_eq!(client.list_members().await.unwrap().members.len(), 2);
    let asked = requests(&client, "status", Code::Ok);
    let surveys = client.survey(std::slice::from_ref(&victim), LIMIT).await;
    let said = surveys[0].health().unwrap_err().to_string();
    assert!(said.contains("removal was begun"), "{said}");
    assert_eq!(requests(&client, "status", Code::Ok), asked);
    let gone = etcd
        .members
        .iter_mut()
        .find(|member| member.name == victim.name)
        .unwrap();
    eventually(SOON, "the removed member ends", async || {
        same(gone.has_ended(), true)
    })
    .await;
    let said = std::fs::read_to_string(gone.log_file()).unwrap();
    assert!(!said.contains("panic"), "{said}");
    // An endpoint that refuses connections would fail one of these writes.
    for value in 0..20 {
        put(&client, "/m", value.to_string()).await;
    }
}

/// Each attempt takes the endpoint of its victim out of the channel, and it comes back with the refusal.
#[tokio::test]
async fn a_removal_that_etcd_refuses_again_and_again_is_no_news_of_the_endpoints() {
    let mut etcd = TestEtcd::with(3, &[]).await;
    let client = connect(&etcd).await;
    let _following = following(&client);
    let listed = list(&client, 3).await;
    let (leader, victim) = leader_and_other(&client, &listed).await;
    let others = [&leader.name, &victim.name];
    let third = etcd
        .members
        .iter_mut()
        .find(|member| !others.contains(&&member.name));
    let third = third.unwrap();
    // Without it the other two are the quorum, so that etcd removes neither.
    third.kill().await.unwrap();
    let rest = [leader.client_urls.clone(), victim.client_urls.clone()].concat();
    wait_for_endpoints(&client, &rest).await;

    let traced = Traced::begin();
    for _ in 0..3 {
        let refused = client.remove_member(&leader, &victim).await.unwrap_err();
        assert_eq!(refused.fault, ChangeFault::QuorumAtRisk, "{refused}");
        assert!(!client.live_endpoints().contains(&victim.client_urls[0]));
        wait_for_endpoints(&client, &rest).await;
    }
    let logged = || traced.text().matches("etcd endpoints changed").count();
    assert_eq!(logged(), 0, "{}", traced.text());
    third.start().await.unwrap();
    eventually(SOON, "the return of the third one is logged", async || {
        same(logged(), 1)
    })
    .await;
}

#[tokio::test]
async fn a_victim_gets_no_requests_from_before_its_removal_is_requested() {
    let mut etcd = TestEtcd::with(2, &[]).await;
    let proxy = etcd.behind_proxy(0).await;
    let mut config = config(vec![proxy.url(), etcd.members[1].client_url.clone()]);
    // Longer than this test may take, so that the call stays under way.
    config.request_timeout = 2 * SOON;
    let client = connect_with(config).await;
    let listed = list_behind(&client, "etcd-1", &proxy).await;
    let (through, victim) = (named(&listed, "etcd-1"), named(&listed, "etcd-2"));
    expect_healthy(&client, &listed.members).await;
    proxy.set(Network::BlackHole);
    let excluded = eventually(SOON, "the victim gets no requests", async || {
        let surveys = client.survey(std::slice::from_ref(victim), LIMIT).await;
        let said = surveys[0].health().map_err(|why| why.to_string());
        let refused = said.err().is_some_and(|said| said.contains("removal was begun"));
        let endpoints = client.live_endpoints();
        let still_used = endpoints.contains(&victim.client_urls[0]);
        same((refused, still_used), (true, false))
    });
    tokio::select! {
        removed = client.remove_member(through, victim) => panic!("the request cannot arrive: {removed:?}"),
        _ = excluded => {}
    }
    proxy.set(Network::Passes);
}

#[tokio::test]
async fn a_removal_waits_for_pending_status_requests_to_its_victim() {
    // etcd would else refuse changes in the first 5 s of the members' connection.
    let mut etcd = TestEtcd::with(2, &["--strict-reconfig-check=false"]).await;
    let proxy = etcd.behind_proxy(1).await;
    let client = connect_to(vec![etcd.endpoints()[0].clone()]).await;
    let listed = list_behind(&client, "etcd-2", &proxy).await;
    let (through, victim) = (named(&listed, "etcd-1"), named(&listed, "etcd-2"));
    expect_healthy(&client, &listed.members).await;
    // The answer does not arrive, so that the request stays pending until its limit.
    proxy.set(Network::BlackHole);
    let pending = std::cell::Cell::new(true);
    let asking = async {
        client
            .survey(std::slice::from_ref(victim), Duration::from_secs(1))
            .await;
        pending.set(false);
    };
    let removing = async {
        let removed = client.remove_member(through, victim).await;
        assert!(!pending.get(), "{removed:?}");
    };
    tokio::join!(asking, removing);
}

#[tokio::test]
async fn a_member_whose_removal_etcd_refuses_gets_requests_again() {
    let mut etcd = TestEtcd::with(3, &[]).await;
    let client = connect_with(config(etcd.endpoints())).await;
    let listed = list(&client, 3).await;
    let (leader, victim) = leader_and_other(&client, &listed).await;
    let third = listed
        .members
        .iter()
        .find(|member| member.id != leader.id && member.id != victim.id)
        .unwrap();
    let down = etcd
        .members
        .iter_mut()
        .find(|member| member.name == third.name)
        .unwrap();
    down.kill().await.unwrap();
    // One of the two voters that would remain is down.
    let refused = eventually(SOON, "etcd notices", async || {
        match client.remove_member(&leader, &victim).await {
            Err(refused) if refused.fault == ChangeFault::QuorumAtRisk => Ok(refused),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    assert_ne!(refused.fault, ChangeFault::Unknown);
    expect_healthy(&client, &[leader, victim]).await;
}

#[tokio::test]
async fn raft_leadership_moves_to_the_named_member() {
    let etcd = TestEtcd::with(3, &[]).await;
    let client = connect(&etcd).await;
    let listed = list(&client, 3).await;
    let (leader, other) = leader_and_other(&client, &listed).await;
    client.move_leadership(&leader, other.id).await.unwrap();
    eventually(SOON, "the new leader", async || {
        let surveys = client.survey(&listed.members, LIMIT).await;
        same(latest_raft_leader(&surveys), Some(other.id))
    })
    .await;
}

#[tokio::test]
async fn a_change_whose_reply_is_lost_has_an_unknown_outcome() {
    let mut etcd = TestEtcd::start().await;
    let proxy = etcd.behind_proxy(0).await;
    let client = connect_to(etcd.endpoints()).await;
    let only = eventually(SOON, "the proxy's address", async || {
        let only = list(&client, 1).await.members[0].clone();
        same(only.client_urls.clone(), vec![proxy.url()]).map(|_| only)
    })
    .await;
    assert!(client.survey(std::slice::from_ref(&only), LIMIT).await[0].is_healthy());
    proxy.set(Network::LosesReplies);
    let urls = vec!["http://127.0.0.1:1".to_owned()];
    let lost = client.add_learner(&only, &urls).await.unwrap_err();
    assert_eq!(lost.fault, ChangeFault::Unknown, "{lost}");
    // The list shows that it was made.
    let listed = client.list_members().await.unwrap();
    let learner = listed.members.iter().find(|member| member.learner).unwrap();
    assert!(learner.has_peer_urls(&urls));
    let lost = client.remove_member(&only, learner).await.unwrap_err();
    assert_eq!(lost.fault, ChangeFault::Unknown, "{lost}");
    // Its removal may be under way, so it still gets no requests.
    let surveys = client.survey(std::slice::from_ref(learner), LIMIT).await;
    let said = surveys[0].health().unwrap_err().to_string();
    assert!(said.contains("removal was begun"), "{said}");
    let leaving = client.survey_leaving(learner, LIMIT).await;
    let not_asked = |read: &Inquiry<()>| matches!(read, Inquiry::NotAsked(NotAsked::RemovalBegun));
    assert!(
        not_asked(&surveys[0].read) && not_asked(&leaving.read),
        "{leaving:?}"
    );
    assert_eq!(client.list_members().await.unwrap().members.len(), 1);
}
