//! Members that end, stall and come back, and the endpoints that follow them.

use std::time::Duration;

use quorate::etcd::members::Evidence;
use quorate::etcd::{Etcd, Session, Txn};
use quorate::grpc_code::Code;
use tokio::task::JoinSet;

use super::members::LIMIT;
use super::{changes, following};
use crate::support::client::{
    RENEWED_TTL, commit, config, connect, connect_to, connect_with, lead_for, pulse, put, renewed,
    requests_so_far, store,
};
use crate::support::etcd::{READS_BEGUN, TestEtcd};
use crate::support::proxy::{Network, Proxy};
use crate::support::quorate::Launch;
use crate::support::wait::{QUIET, SOON, eventually, same, stays};

pub(super) async fn wait_for_endpoints(etcd: &Etcd, wanted: &[String]) {
    let mut wanted = wanted.to_vec();
    wanted.sort();
    eventually(SOON, "the endpoints in use", async || {
        let mut live = etcd.live_endpoints();
        live.sort();
        same(live, wanted.clone())
    })
    .await;
}

/// As where members are replaced one after the other: the last one in use goes before another one has answered.
#[tokio::test]
async fn members_that_were_listed_are_found_again_once_every_endpoint_in_use_is_gone() {
    let mut etcd = TestEtcd::with(3, &[]).await;
    let configured = Proxy::in_front_of(&etcd.members[0].client_url);
    let mut listed = Vec::new();
    for index in 0..3 {
        listed.push(etcd.behind_proxy(index).await);
    }
    let client = connect_with(config(vec![configured.url()])).await;
    let _following = following(&client);
    let urls: Vec<String> = [&configured].into_iter().chain(&listed).map(Proxy::url).collect();
    wait_for_endpoints(&client, &urls).await;
    for proxy in [&configured, &listed[0], &listed[1]] {
        proxy.set(Network::Resets);
    }
    wait_for_endpoints(&client, &[listed[2].url()]).await;
    listed[2].set(Network::Resets);
    listed[0].set(Network::Passes);
    listed[1].set(Network::Passes);
    wait_for_endpoints(&client, &[listed[0].url(), listed[1].url()]).await;
}

#[tokio::test]
async fn endpoints_follow_the_member_list_and_dead_ones_leave_the_channel() {
    let mut etcd = TestEtcd::with(3, &[]).await;
    let all = etcd.endpoints();
    // Only one is configured, without a scheme.
    let configured = all[0].strip_prefix("http://").unwrap().to_owned();
    let client = connect_with(config(vec![configured])).await;
    assert_eq!(client.live_endpoints(), all[..1]);
    let _following = following(&client);
    wait_for_endpoints(&client, &all).await;
    etcd.members[0].kill().await.unwrap();
    wait_for_endpoints(&client, &all[1..]).await;
    // A dead endpoint in the channel would fail one of these writes at random.
    for value in 0..30 {
        put(&client, "/e", value.to_string()).await;
    }
    etcd.members[0].start().await.unwrap();
    wait_for_endpoints(&client, &all).await;
}

#[tokio::test]
async fn while_no_endpoint_answers_the_channel_keeps_them_all() {
    let mut etcd = TestEtcd::start().await;
    let mut config = config(etcd.endpoints());
    config.endpoint_interval = Duration::from_millis(100);
    let client = connect_with(config).await;
    let _following = following(&client);
    etcd.members[0].kill().await.unwrap();
    // The endpoints are checked about once a second.
    stays(QUIET, "all are in the channel", async || {
        same(client.live_endpoints(), etcd.endpoints())
    })
    .await;
    etcd.members[0].start().await.unwrap();
    eventually(SOON, "a write over the same channel", async || {
        commit(&client, Txn::new().put(b"/e", "1")).await
    })
    .await;
}

/// Until the endpoints are checked, one that has just gone is in the channel, which chooses at random.
#[tokio::test]
async fn a_request_that_reaches_no_member_goes_to_another_one() {
    let mut etcd = TestEtcd::with(3, &[]).await;
    // Nothing checks its endpoints.
    let client = eventually(SOON, "all endpoints are in use", async || {
        let client = connect(&etcd).await;
        same(client.live_endpoints().len(), 3).map(|_| client)
    })
    .await;
    let follower = (etcd.raft_leader().await + 1) % 3;
    etcd.members[follower].kill().await.unwrap();
    let mut failed = 0;
    for _ in 0..60 {
        failed += usize::from(client.get(b"/e").await.is_err());
    }
    // Those that were lost with their connection.
    assert!(failed <= 6, "{failed} of 60 requests failed");
}

#[tokio::test]
async fn a_learner_is_no_endpoint() {
    let mut etcd = TestEtcd::start().await;
    let voters = etcd.endpoints();
    let client = connect_with(config(voters.clone())).await;
    let _following = following(&client);
    let learner = changes::start_learner(&client, &mut etcd).await;
    // It answers by now, but only serializable reads.
    eventually(SOON, "a healthy learner", async || {
        let surveys = client.survey(std::slice::from_ref(&learner), LIMIT).await;
        same(surveys.iter().all(Evidence::is_healthy), true)
    })
    .await;
    let looks = || requests_so_far(&client, "member_list", Code::Ok);
    let before = looks();
    eventually(SOON, "the member list is read again", async || {
        // The second of these began after the learner was added, the third after the second had taken effect.
        same(looks() >= before + 3.0, true)
    })
    .await;
    assert_eq!(client.live_endpoints(), voters);
}

#[tokio::test]
async fn pinned_endpoints_stay_those_that_were_given() {
    let etcd = TestEtcd::with(3, &[]).await;
    let mut pinned = config(etcd.endpoints()[..1].to_vec());
    pinned.sync_endpoints = false;
    let client = connect_with(pinned).await;
    let _following = following(&client);
    eventually(SOON, "the endpoint is checked a few times", async || {
        same(etcd.members[0].metric(READS_BEGUN).await >= Some(4.0), true)
    })
    .await;
    assert_eq!(client.live_endpoints(), etcd.endpoints()[..1]);
}

#[tokio::test]
async fn a_leader_stays_when_the_leading_member_of_three_is_killed() {
    let mut etcd = TestEtcd::with(3, &[]).await;
    let launch = Launch::on(&etcd)
        .flag("--lease-ttl=20")
        .flag("--etcd-endpoint-interval-ms=500");
    let replicas = launch.start_all(&["a", "b"]);
    let (leader, _) = replicas.leader().await;
    let member = etcd.raft_leader().await;
    etcd.members[member].kill().await.unwrap();
    let other = (member + 1) % 3;
    etcd.members[other].wait_healthy().await.unwrap();
    // etcd extends every lease when the raft leader changes. The replica still has to renew its own before its deadline.
    replicas.0[leader].lease_renewed().await;
    assert_eq!(replicas.leader().await.0, leader);
    assert_eq!(
        replicas.0[leader]
            .metric("quorate_leader_transitions_total")
            .await,
        1.0
    );
}

#[tokio::test]
async fn no_replica_leads_without_a_quorum_and_one_does_again_with_it() {
    let mut etcd = TestEtcd::with(3, &[]).await;
    let launch = Launch::on(&etcd)
        // The test waits until both leases expire. Before that a busy machine has 6 s to renew them.
        .flag("--lease-ttl=8")
        .flag("--etcd-endpoint-interval-ms=500")
        .flag("--etcd-request-timeout-ms=1000");
    let mut replicas = launch.start_all(&["a", "b"]);
    replicas.leader().await;
    for replica in &mut replicas.0 {
        replica.wait_ready().await;
    }
    for member in 0..2 {
        etcd.members[member].kill().await.unwrap();
    }
    for replica in &replicas.0 {
        eventually(SOON, "the replica neither leads nor is ready", async || {
            same(
                (replica.leads().await, replica.status_of("/readyz").await),
                (false, Some(503)),
            )
        })
        .await;
        assert_eq!(replica.status_of("/livez").await, Some(200));
    }
    for member in 0..2 {
        etcd.members[member].launch().unwrap();
    }
    replicas.leader().await;
    for replica in &mut replicas.0 {
        replica.wait_ready().await;
    }
}

#[tokio::test]
async fn a_paused_member_costs_one_of_three_no_more_than_a_few_requests() {
    let mut etcd = TestEtcd::with(3, &[]).await;
    let client = connect(&etcd).await;
    let _following = following(&client);
    let mut beating = JoinSet::new();
    let leader = lead_for(&client, "leader", RENEWED_TTL, &pulse(&mut beating))
        .await
        .unwrap();
    let follower = (etcd.raft_leader().await + 1) % 3;
    etcd.members[follower].pause();
    let rest: Vec<String> = (0..3)
        .filter(|index| *index != follower)
        .map(|index| etcd.endpoints()[index].clone())
        .collect();
    wait_for_endpoints(&client, &rest).await;
    for value in 0..30 {
        put(&client, "/e", value.to_string()).await;
    }
    // If its keep-alive goes to the paused member, it goes to another one in time.
    renewed(leader.fence().window()).await;
    etcd.members[follower].resume();
    wait_for_endpoints(&client, &etcd.endpoints()).await;
}

#[tokio::test]
async fn a_session_lasts_as_long_as_etcd_grants_and_ends_when_it_is_closed() {
    let etcd = TestEtcd::start().await;
    let client = connect(&etcd).await;
    let mut beating = JoinSet::new();
    let pulse = pulse(&mut beating);
    // etcd grants at least one and a half election timeouts, rounded up to seconds: 2 s here. A busy machine may let such
    // a lease expire.
    let session = eventually(SOON, "a session of 2 s, as granted", async || {
        let session = Session::open(&client, Duration::from_secs(1), &pulse)
            .await
            .unwrap();
        let remaining = session.window().remaining();
        let listed = etcd.etcdctl(&["lease", "timetolive", &session.lease().to_string()]);
        match listed.contains("granted with TTL(2s)") && remaining > Duration::from_secs(1) {
            true => Ok(session),
            false => Err(format!("{remaining:?}, {listed}")),
        }
    })
    .await;
    let lease = session.lease().to_string();
    session.close().await;
    let listed = etcd.etcdctl(&["lease", "list"]);
    assert!(!listed.contains(&lease), "{listed}");
}

#[tokio::test]
async fn a_stalled_network_that_heals_loses_no_write_and_makes_none_twice() {
    let etcd = TestEtcd::start().await;
    let proxy = Proxy::in_front_of(&etcd.endpoints()[0]);
    let through = connect_to(vec![proxy.url()]).await;
    let direct = connect(&etcd).await;
    let key = store(&direct).keys.status_json();
    put(&through, "/e", "1").await;
    proxy.set(Network::BlackHole);
    let unknown = commit(&through, Txn::new().when_absent(&key).put(&key, "once")).await;
    assert!(
        matches!(unknown, Err(quorate::etcd::TxnError::Unknown(_))),
        "{unknown:?}"
    );
    assert_eq!(direct.get(&key).await.unwrap().0, None);
    proxy.set(Network::Passes);
    // The write that was under way arrives now or is lost. It never arrives twice.
    eventually(SOON, "the connection works again", async || {
        through.get(&key).await.map(drop)
    })
    .await;
    if let (Some(found), _) = direct.get(&key).await.unwrap() {
        assert_eq!(found.create_revision, found.mod_revision);
    }
}
