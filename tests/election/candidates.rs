//! Candidates: which one leads, which ones wait, and that none leads without its key.

use std::process::Stdio;
use std::time::{Duration, Instant};

use quorate::etcd::election::{CampaignError, Candidate, Leadership, campaign, candidates};
use quorate::etcd::{Etcd, Pulse};
use quorate::grpc_code::Code;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::support::client::{
    LONG_TTL, TTL, config, connect, connect_to, connect_with, lead, lead_for, metric, pulse, put,
    requests_so_far, store,
};
use crate::support::etcd::TestEtcd;
use crate::support::proxy::{Network, Proxy};
use crate::support::wait::{SOON, eventually, same};

async fn standing(etcd: &Etcd) -> Vec<Candidate> {
    candidates(etcd, &store(etcd).keys.election()).await.unwrap()
}

async fn names(etcd: &Etcd) -> Vec<String> {
    standing(etcd)
        .await
        .into_iter()
        .map(|candidate| candidate.name)
        .collect()
}

/// Waits until exactly these candidates stand for election, the leader first.
async fn wait_for_candidates(etcd: &Etcd, wanted: &[&str]) {
    eventually(SOON, "the candidates", async || {
        same(
            names(etcd).await,
            wanted.iter().map(ToString::to_string).collect(),
        )
    })
    .await;
}

/// Campaigns beside the test.
fn campaigning(etcd: &Etcd, name: &'static str, pulse: &Pulse) -> JoinSet<Result<Leadership, CampaignError>> {
    let (etcd, pulse) = (etcd.clone(), pulse.clone());
    let mut campaign = JoinSet::new();
    campaign.spawn(async move { lead(&etcd, name, &pulse).await });
    campaign
}

async fn outcome(
    campaign: &mut JoinSet<Result<Leadership, CampaignError>>,
) -> Result<Leadership, CampaignError> {
    timeout(SOON, campaign.join_next())
        .await
        .unwrap()
        .unwrap()
        .unwrap()
}

#[tokio::test]
async fn a_waiting_candidate_whose_lease_is_revoked_does_not_lead() {
    let etcd = TestEtcd::start().await;
    let client = connect(&etcd).await;
    let mut beating = JoinSet::new();
    let pulse = pulse(&mut beating);
    let first = lead(&client, "first", &pulse).await.unwrap();
    let mut second = campaigning(&client, "second", &pulse);
    wait_for_candidates(&client, &["first", "second"]).await;
    let lease = standing(&client).await[1].lease.unwrap();
    etcd.etcdctl(&["lease", "revoke", &lease.to_string()]);
    // The leader resigns at once, before a keep-alive can tell the candidate that its lease is gone.
    first.resign().await;
    let ended = outcome(&mut second).await;
    assert!(
        matches!(ended, Err(CampaignError::CandidacyLost)),
        "{:?}",
        ended.err()
    );
    assert_eq!(
        names(&client).await,
        [""; 0],
        "no key is left that could win later"
    );
}

#[tokio::test]
async fn a_candidate_whose_key_is_deleted_gives_its_lease_back() {
    let etcd = TestEtcd::start().await;
    let client = connect(&etcd).await;
    let mut beating = JoinSet::new();
    let pulse = pulse(&mut beating);
    let _first = lead(&client, "first", &pulse).await.unwrap();
    let mut second = campaigning(&client, "second", &pulse);
    wait_for_candidates(&client, &["first", "second"]).await;
    let lease = standing(&client).await[1].lease.unwrap();
    etcd.etcdctl(&["del", &format!("{}/{lease}", store(&client).keys.election())]);
    let ended = outcome(&mut second).await;
    assert!(
        matches!(ended, Err(CampaignError::CandidacyLost)),
        "{:?}",
        ended.err()
    );
    let leases = etcd.etcdctl(&["lease", "list"]);
    assert!(!leases.contains(&lease.to_string()), "{leases}");
}

#[tokio::test]
async fn a_candidate_that_withdraws_leaves_nothing_behind() {
    let etcd = TestEtcd::start().await;
    let client = connect(&etcd).await;
    let mut beating = JoinSet::new();
    let pulse = pulse(&mut beating);
    let first = lead(&client, "first", &pulse).await.unwrap();
    let withdraw = CancellationToken::new();
    let election = store(&client).keys.election();
    let (ended, ()) = tokio::join!(
        campaign(&client, &election, "second", LONG_TTL, &pulse, &withdraw),
        async {
            wait_for_candidates(&client, &["first", "second"]).await;
            withdraw.cancel();
        }
    );
    assert!(matches!(ended, Err(CampaignError::Withdrawn)));
    assert_eq!(names(&client).await, ["first"]);
    first.resign().await;
    assert_eq!(
        etcd.etcdctl(&["lease", "list"]).lines().next(),
        Some("found 0 leases")
    );
}

#[tokio::test]
async fn a_candidate_survives_a_compaction_while_it_is_disconnected_without_a_hot_loop() {
    let etcd = TestEtcd::start().await;
    let client = connect(&etcd).await;
    let proxy = Proxy::in_front_of(&etcd.endpoints()[0]);
    let through = connect_to(vec![proxy.url()]).await;
    let mut beating = JoinSet::new();
    let pulse = pulse(&mut beating);
    let first = lead(&client, "first", &pulse).await.unwrap();
    let mut second = campaigning(&through, "second", &pulse);
    wait_for_candidates(&client, &["first", "second"]).await;
    let opened = || requests_so_far(&through, "watch", Code::Ok);
    // Its own key first.
    eventually(SOON, "it watches the candidate ahead", async || {
        same(opened() >= 2.0, true)
    })
    .await;
    // A watch may start at the compacted revision, but not before it.
    put(&client, "/elsewhere", "1").await;
    put(&client, "/elsewhere", "2").await;
    etcd.compact();
    proxy.set(Network::Resets);
    let restarts = |reason: &str| {
        metric(
            &through,
            &format!(r#"quorate_watch_restarts_total{{reason="{reason}"}}"#),
        )
    };
    eventually(SOON, "the watch breaks", async || {
        same(restarts("error") > 0.0, true)
    })
    .await;
    proxy.set(Network::Passes);
    eventually(SOON, "the watch meets the compaction", async || {
        same(restarts("compacted") > 0.0, true)
    })
    .await;
    let before = opened();
    // The measured time: a second in which the network works and no key changes, so that no watch need be opened.
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(
        opened() - before < 5.0,
        "{} watches opened in a second",
        opened() - before
    );
    first.resign().await;
    let second = outcome(&mut second).await.unwrap();
    assert_eq!(names(&client).await, ["second"]);
    second.resign().await;
}

/// The reads that follow the end of the candidate ahead go unanswered: the next in line must not resign instead of leading.
#[tokio::test]
async fn a_candidate_whose_reads_fail_keeps_its_place() {
    let etcd = TestEtcd::start().await;
    let client = connect(&etcd).await;
    let proxy = Proxy::in_front_of(&etcd.endpoints()[0]);
    let mut config = config(vec![proxy.url()]);
    config.sync_endpoints = false;
    config.request_timeout = Duration::from_secs(1);
    config.watch_silence = LONG_TTL;
    let through = connect_with(config.clone()).await;
    let mut beating = JoinSet::new();
    let pulse = pulse(&mut beating);
    let first = lead(&client, "first", &pulse).await.unwrap();
    let mut second = campaigning(&through, "second", &pulse);
    wait_for_candidates(&client, &["first", "second"]).await;
    let lease = standing(&client).await[1].lease;
    let failed = || requests_so_far(&through, "range", Code::DeadlineExceeded);
    eventually(SOON, "it watches both keys", async || {
        same(requests_so_far(&through, "watch", Code::Ok) >= 2.0, true)
    })
    .await;
    let before = failed();
    // An event arrives. The answer to a request takes twice as long, which is longer than the limit.
    proxy.set(Network::Delays(config.request_timeout.mul_f64(0.7)));
    first.resign().await;
    eventually(SOON, "its read fails", async || same(failed() > before, true)).await;
    proxy.set(Network::Passes);
    let second = outcome(&mut second).await.unwrap();
    assert_eq!(standing(&client).await[0].lease, lease);
    second.resign().await;
}

#[tokio::test]
async fn a_session_whose_owner_hangs_is_not_renewed() {
    let etcd = TestEtcd::start().await;
    let client = connect(&etcd).await;
    let mut beating = JoinSet::new();
    let alive = pulse(&mut beating);
    let begun = Instant::now();
    // This pulse beats once, when it is made, and never again.
    let hanging = lead_for(&client, "hanging", TTL, &Pulse::default())
        .await
        .unwrap();
    let mut second = campaigning(&client, "second", &alive);
    timeout(SOON, hanging.fence().window().closed()).await.unwrap();
    let second = outcome(&mut second).await.unwrap();
    let waited = begun.elapsed();
    assert!(waited >= TTL - Duration::from_millis(100), "{waited:?}");
    assert!(!hanging.fence().window().is_open());
    assert!(second.fence().term() > hanging.fence().term());
}

/// `etcdctl elect` with these arguments.
fn etcdctl_elect(etcd: &TestEtcd, args: &[&str]) -> Child {
    Command::from(etcd.etcdctl_command(&etcd.endpoints()))
        .arg("elect")
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .kill_on_drop(true)
        .spawn()
        .unwrap()
}

fn printed_by(etcdctl: &mut Child) -> Lines<BufReader<ChildStdout>> {
    BufReader::new(etcdctl.stdout.take().unwrap()).lines()
}

/// Waits until etcdctl prints this candidate: the key on one line, the name on the next.
async fn prints(lines: &mut Lines<BufReader<ChildStdout>>, name: &str) {
    timeout(SOON, async {
        while lines.next_line().await.unwrap().unwrap() != name {}
    })
    .await
    .unwrap_or_else(|_| panic!("etcdctl prints no {name}"));
}

#[tokio::test]
async fn etcdctl_listens_to_the_election_and_takes_part_in_it() {
    let etcd = TestEtcd::start().await;
    let client = connect(&etcd).await;
    let election = store(&client).keys.election();
    let mut beating = JoinSet::new();
    let pulse = pulse(&mut beating);
    let first = lead(&client, "first", &pulse).await.unwrap();

    let mut listener = etcdctl_elect(&etcd, &["--listen", &election]);
    let mut seen = printed_by(&mut listener);
    prints(&mut seen, "first").await;

    let mut operator = etcdctl_elect(&etcd, &[&election, "operator"]);
    let mut won = printed_by(&mut operator);
    wait_for_candidates(&client, &["first", "operator"]).await;
    let mut last = campaigning(&client, "last", &pulse);
    wait_for_candidates(&client, &["first", "operator", "last"]).await;
    first.resign().await;
    prints(&mut seen, "operator").await;
    wait_for_candidates(&client, &["operator", "last"]).await;

    // An interrupted etcdctl deletes its key, but not where it is interrupted while it reads the key that it has won.
    prints(&mut won, "operator").await;
    let pid = rustix::process::Pid::from_raw(operator.id().unwrap().try_into().unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    timeout(SOON, operator.wait()).await.unwrap().unwrap();
    outcome(&mut last).await.unwrap();
    prints(&mut seen, "last").await;
    listener.kill().await.unwrap();
}
