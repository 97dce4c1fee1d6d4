//! Members that die, stall and come back; endpoints, certificates and passwords that change.

use std::time::Duration;

use quorate::dev::pki::Authority;
use quorate::etcd::{Class, Config, ConnectError, Etcd, KeyRange, Session, TlsFiles, Txn};
use quorate::metrics::Metrics;
use quorate::store::Cache;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::support::client::{
    TTL, commit, config, connect, connect_to, connect_with, lead, pulse, put, store,
};
use crate::support::etcd::{ClientTls, PASSWORD, TestEtcd, USER};
use crate::support::proxy::{Network, Proxy};
use crate::support::quorate::Launch;
use crate::support::wait::{SOON, eventually, same};

/// Follows the endpoints beside the test.
fn following(etcd: &Etcd) -> JoinSet<()> {
    let etcd = etcd.clone();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move { etcd.follow_endpoints(CancellationToken::new()).await });
    tasks
}

async fn wait_for_endpoints(etcd: &Etcd, wanted: &[String]) {
    let mut wanted = wanted.to_vec();
    wanted.sort();
    eventually(SOON, "the endpoints in use", async || {
        let mut live = etcd.live_endpoints();
        live.sort();
        same(live, wanted.clone())
    })
    .await;
}

/// The member that leads its peers, by its index.
async fn raft_leader(etcd: &TestEtcd) -> usize {
    for (index, member) in etcd.members.iter().enumerate() {
        if member.metric("etcd_server_is_leader").await == Some(1.0) {
            return index;
        }
    }
    panic!("no member leads")
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
    // A dead endpoint in the channel would fail one of these at random.
    for value in 0..30 {
        put(&client, "/e", value.to_string()).await;
    }
    etcd.members[0].start().await.unwrap();
    wait_for_endpoints(&client, &all).await;
}

#[tokio::test]
async fn a_learner_is_no_endpoint() {
    let etcd = TestEtcd::start().await;
    let client = connect_with(config(etcd.endpoints())).await;
    let _following = following(&client);
    // It never starts, and would answer nothing but serializable reads if it did.
    etcd.etcdctl(&[
        "member",
        "add",
        "learner",
        "--learner",
        "--peer-urls=http://127.0.0.1:1",
    ]);
    tokio::time::sleep(2 * client.config().endpoint_interval).await;
    assert_eq!(client.live_endpoints(), etcd.endpoints());
}

#[tokio::test]
async fn pinned_endpoints_stay_those_that_were_given() {
    let etcd = TestEtcd::with(3, &[]).await;
    let mut pinned = config(etcd.endpoints()[..1].to_vec());
    pinned.sync_endpoints = false;
    let client = connect_with(pinned).await;
    let _following = following(&client);
    tokio::time::sleep(4 * client.config().endpoint_interval).await;
    assert_eq!(client.live_endpoints(), etcd.endpoints()[..1]);
}

#[tokio::test]
async fn a_leader_stays_when_the_leading_member_of_three_is_killed() {
    let mut etcd = TestEtcd::with(3, &[]).await;
    let launch = Launch::on(&etcd)
        .flag("--lease-ttl=5")
        .flag("--etcd-endpoint-interval-ms=500");
    let replicas = launch.start_all(&["a", "b"]);
    let (leader, _) = replicas.leader().await;
    let member = raft_leader(&etcd).await;
    etcd.members[member].kill().await.unwrap();
    let other = (member + 1) % 3;
    etcd.members[other].wait_healthy().await.unwrap();
    // etcd prolongs every lease when another member leads; the replica has to renew its own before its deadline.
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(replicas.leader().await.0, leader);
    assert_eq!(
        replicas.0[leader]
            .metric("quorate_leader_transitions_total")
            .await,
        Some(1.0)
    );
}

#[tokio::test]
async fn without_a_quorum_nobody_leads_and_with_it_one_does_again() {
    let mut etcd = TestEtcd::with(3, &[]).await;
    let launch = Launch::on(&etcd)
        .flag("--lease-ttl=3")
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
        eventually(SOON, "nobody leads, nobody is ready", async || {
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
    let leader = lead(&client, "leader", &pulse(&mut beating)).await.unwrap();
    let follower = (raft_leader(&etcd).await + 1) % 3;
    etcd.members[follower].pause();
    let rest: Vec<String> = (0..3)
        .filter(|index| *index != follower)
        .map(|index| etcd.endpoints()[index].clone())
        .collect();
    wait_for_endpoints(&client, &rest).await;
    for value in 0..30 {
        put(&client, "/e", value.to_string()).await;
    }
    assert!(
        leader.fence().window().is_open(),
        "its keep-alive went to another member in time"
    );
    etcd.members[follower].resume();
    wait_for_endpoints(&client, &etcd.endpoints()).await;
}

fn with_tls(etcd: &TestEtcd, files: TlsFiles) -> Config {
    let mut config = config(etcd.endpoints());
    config.tls = files;
    config
}

fn client_files(tls: &ClientTls) -> TlsFiles {
    TlsFiles {
        ca: Some(tls.ca.clone()),
        identity: Some((tls.client.cert.clone(), tls.client.key.clone())),
    }
}

#[tokio::test]
async fn tls_with_client_certificates_serves_the_whole_layer() {
    let etcd = TestEtcd::with_tls().await;
    let files = client_files(etcd.tls.as_ref().unwrap());
    let client = connect_with(with_tls(&etcd, files)).await;
    let _following = following(&client);
    let mut beating = JoinSet::new();
    let pulse = pulse(&mut beating);
    let leader = lead(&client, "leader", &pulse).await.unwrap();
    tokio::time::sleep(TTL).await;
    client
        .fenced(leader.fence(), Txn::new().put(b"/e", "1"))
        .await
        .expect("the lease was renewed over TLS");
    leader.resign().await;
}

#[tokio::test]
async fn another_authority_and_a_missing_client_certificate_are_told_and_not_retried() {
    let etcd = TestEtcd::with_tls().await;
    let tls = etcd.tls.as_ref().unwrap();
    let elsewhere = etcd.directory().join("other");
    std::fs::create_dir(&elsewhere).unwrap();
    let stranger = Authority::create(&elsewhere, "other").unwrap();
    let wrong_authority = TlsFiles {
        ca: Some(stranger.certificate_file()),
        ..client_files(tls)
    };
    let unproven = TlsFiles {
        identity: None,
        ..client_files(tls)
    };
    let foreign = stranger.client("quorate").unwrap();
    let wrong_identity = TlsFiles {
        identity: Some((foreign.cert, foreign.key)),
        ..client_files(tls)
    };
    for files in [wrong_authority, unproven, wrong_identity] {
        let error = Etcd::connect(with_tls(&etcd, files), Metrics::new("test"))
            .await
            .unwrap_err();
        assert!(matches!(error, ConnectError::NoneAnswers(_)), "{error}");
        let text = error.to_string().to_lowercase();
        assert!(
            text.contains("certificate") && !text.contains("source"),
            "{error}"
        );
        assert!(!error.is_retryable(), "{error}");
    }
}

#[tokio::test]
async fn certificates_that_change_on_disk_are_taken_up_without_losing_leadership() {
    let etcd = TestEtcd::with_tls().await;
    let tls = etcd.tls.as_ref().unwrap();
    let mut replica = Launch::on(&etcd)
        .flag("--lease-ttl=3")
        .flag("--etcd-endpoint-interval-ms=300")
        .start("a");
    replica.wait_leading().await;
    // Half written, as a reader may find it: what is in use stays in use.
    let whole = std::fs::read(&tls.client.cert).unwrap();
    std::fs::write(&tls.client.cert, "").unwrap();
    replica.wait_for_log("keeping the etcd credentials in use").await;
    std::fs::write(&tls.client.cert, whole).unwrap();
    std::fs::copy(&tls.renewed.key, &tls.client.key).unwrap();
    std::fs::copy(&tls.renewed.cert, &tls.client.cert).unwrap();
    replica.wait_for_log("connected anew").await;
    let margin = async || replica.metric("quorate_lease_margin_seconds").await.unwrap();
    let before = margin().await;
    eventually(SOON, "the lease is renewed", async || {
        same(margin().await > before, true)
    })
    .await;
    assert_eq!(
        replica.metric("quorate_leader_transitions_total").await,
        Some(1.0)
    );
    assert!(replica.leads().await);
}

fn with_password(etcd: &TestEtcd, password: &str) -> Config {
    let file = etcd.directory().join("password");
    std::fs::write(&file, format!("{password}\n")).unwrap();
    let mut config = config(etcd.endpoints());
    config.user = Some((USER.to_owned(), file));
    config
}

#[tokio::test]
async fn tokens_that_expire_under_load_cost_nothing() {
    // Simple tokens live for as long as they are used and this much longer.
    let etcd = TestEtcd::with_password("/q", 1).await;
    let client = connect_with(with_password(&etcd, PASSWORD)).await;
    let _following = following(&client);
    let mut beating = JoinSet::new();
    let leader = lead(&client, "leader", &pulse(&mut beating)).await.unwrap();
    for value in 0..4 {
        tokio::time::sleep(Duration::from_millis(1500)).await;
        let txn = Txn::new().put(b"/q/e", value.to_string());
        client.fenced(leader.fence(), txn).await.unwrap();
    }
    leader.resign().await;
    let leases = etcd.etcdctl_as_root(&["lease", "list"]);
    assert!(leases.starts_with("found 0 leases"), "{leases}");
}

#[tokio::test]
async fn a_watch_whose_token_expired_while_it_was_disconnected_goes_on() {
    let etcd = TestEtcd::with_password("/q", 1).await;
    let proxy = Proxy::in_front_of(&etcd.endpoints()[0]);
    let mut config = with_password(&etcd, PASSWORD);
    config.endpoints = vec![proxy.url()];
    config.sync_endpoints = false;
    let client = connect_with(config).await;
    let mut cache = Cache::new(&client, KeyRange::prefix("/q/"), |_| ());
    while !cache.is_complete() {
        timeout(SOON, cache.next(|_| {})).await.unwrap();
    }
    proxy.set(Network::Resets);
    // etcd looks for expired tokens once a second.
    let disconnected = timeout(Duration::from_secs(4), cache.next(|_| {})).await;
    assert!(disconnected.is_err());
    proxy.set(Network::Passes);
    etcd.etcdctl_as_root(&["put", "/q/a", "1"]);
    // Nothing but the watch is there to notice.
    timeout(SOON, async {
        while cache.is_empty() {
            cache.next(|_| {}).await;
        }
    })
    .await
    .expect("the watch goes on");
}

#[tokio::test]
async fn a_password_that_changes_in_etcd_and_on_disk_is_taken_up_without_losing_the_lease() {
    let etcd = TestEtcd::with_password("/q", 60).await;
    let config = with_password(&etcd, PASSWORD);
    let client = connect_with(config).await;
    let _following = following(&client);
    let mut beating = JoinSet::new();
    let leader = lead(&client, "leader", &pulse(&mut beating)).await.unwrap();
    let changed = "a staple for the battery";
    etcd.change_password(changed);
    with_password(&etcd, changed);
    eventually(SOON, "the new password is in use", async || {
        client.fenced(leader.fence(), Txn::new().put(b"/q/e", "1")).await
    })
    .await;
    assert!(leader.fence().window().is_open());
}

#[tokio::test]
async fn a_wrong_password_and_a_missing_permission_are_told_apart_and_not_retried() {
    let etcd = TestEtcd::with_password("/q", 60).await;
    let error = Etcd::connect(with_password(&etcd, "wrong"), Metrics::new("test"))
        .await
        .unwrap_err();
    assert!(
        error.to_string().contains("invalid user ID or password"),
        "{error}"
    );
    assert!(!error.is_retryable(), "{error}");

    let client = connect_with(with_password(&etcd, PASSWORD)).await;
    let denied = client.get(b"/elsewhere").await.unwrap_err();
    assert_eq!(
        (denied.class, denied.is_retryable()),
        (Class::Denied, false),
        "{denied}"
    );
    let denied = commit(&client, Txn::new().put(b"/elsewhere", "")).await;
    assert!(
        matches!(&denied, Err(quorate::etcd::TxnError::Failed(error)) if error.class == Class::Denied),
        "{denied:?}"
    );
    put(&client, "/q/mine", "1").await;
}

#[tokio::test]
async fn a_session_is_given_no_less_than_etcd_grants_and_ends_when_it_is_closed() {
    let etcd = TestEtcd::start().await;
    let client = connect(&etcd).await;
    let mut beating = JoinSet::new();
    // etcd grants at least one and a half election timeouts, rounded up to seconds: 2 s here.
    let session = Session::open(&client, Duration::from_secs(1), &pulse(&mut beating))
        .await
        .unwrap();
    let listed = etcd.etcdctl(&["lease", "timetolive", &session.lease().to_string()]);
    assert!(listed.contains("granted with TTL(2s)"), "{listed}");
    assert!(
        session.window().remaining() > Duration::from_millis(1000),
        "the granted TTL counts"
    );
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
    // What was on its way may arrive now or never have; never twice.
    eventually(SOON, "the connection works again", async || {
        through.get(&key).await.map(drop)
    })
    .await;
    if let (Some(found), _) = direct.get(&key).await.unwrap() {
        assert_eq!(found.create_revision, found.mod_revision);
    }
}
