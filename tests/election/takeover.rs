//! Replicas as processes: how leadership passes to the successor.

use std::time::{Duration, Instant};

use quorate_dev::http;
use tokio::task::JoinSet;

use super::{
    ELECTION, SHORT_TTL, TTL, launch, launch_for, store_of_replicas, three, three_for, wait_for_candidates,
};
use crate::support::client::{connect, written_since};
use crate::support::etcd::TestEtcd;
use crate::support::proxy::{Network, Proxy};
use crate::support::quorate::{Replicas, TestReplica, quorate_on};
use crate::support::wait::{SOON, eventually, same};

/// Waits until a replica other than `gone` leads. Returns its index, and when it was seen leading.
async fn successor(replicas: &Replicas, gone: usize) -> (usize, Instant) {
    successor_within(SOON, replicas, gone).await
}

async fn successor_within(limit: Duration, replicas: &Replicas, gone: usize) -> (usize, Instant) {
    eventually(limit, "another replica leads", async || {
        for (index, replica) in replicas.0.iter().enumerate() {
            if index != gone && replica.leads().await {
                return Ok((index, Instant::now()));
            }
        }
        Err("none")
    })
    .await
}

#[tokio::test]
async fn of_three_replicas_one_leads_and_after_sigterm_the_next_at_once() {
    let etcd = TestEtcd::start().await;
    let (mut replicas, leader) = three(&etcd).await;
    let name = replicas.0[leader].node_id.clone();
    assert_eq!(etcd.leader_of(ELECTION).unwrap().1, name);
    let asked = Instant::now();
    replicas.0[leader].terminate();
    let (next, led) = successor(&replicas, leader).await;
    // A few round trips. If the lease were not revoked, it would take the whole TTL.
    assert!(led - asked < TTL / 2, "{:?}", led - asked);
    let status = replicas.0[leader].ended().await;
    assert!(status.success(), "{status}");
    let named = etcd.leader_of(ELECTION).unwrap().1;
    assert_eq!(named, replicas.0[next].node_id);
    assert_eq!(etcd.keys(ELECTION).len(), 2);
    assert_eq!(
        etcd.keys(&format!("/quorate/nodes/{name}/")),
        [""; 0],
        "its registration went with it"
    );
}

/// How long no replica led.
fn report_gaps(mut gaps: Vec<Duration>) {
    gaps.sort();
    let longest = gaps[gaps.len() - 1];
    eprintln!(
        "{} rounds: median {:?}, longest {longest:?}",
        gaps.len(),
        gaps[gaps.len() / 2]
    );
}

/// The leader gives its lease back through every endpoint, so that one that is gone does not cost the TTL.
#[tokio::test]
async fn a_leader_that_stops_as_a_member_of_etcd_dies_hands_over_at_once_each_time() {
    // No machine is busy enough for the members to elect another leader meanwhile.
    let patient = ["--election-timeout=4000", "--heartbeat-interval=200"];
    let mut etcd = TestEtcd::with(3, &patient).await;
    let (mut replicas, mut leader) = three(&etcd).await;
    let raft_leader = etcd.raft_leader().await;
    let mut gaps = Vec::new();
    for round in 0..30 {
        let member = (raft_leader + 1 + round % 2) % 3;
        etcd.members[member].kill().await.unwrap();
        let asked = Instant::now();
        replicas.0[leader].terminate();
        let (next, led) = successor(&replicas, leader).await;
        gaps.push(led - asked);
        // Without the lease that is given back it would take nearly the TTL.
        assert!(led - asked < TTL / 2, "{:?} in round {round}", led - asked);
        assert!(replicas.0[leader].ended().await.success());
        etcd.members[member].start().await.unwrap();
        replicas.0[leader].launch().unwrap();
        wait_for_candidates(&etcd, 3).await;
        leader = next;
    }
    // A busy machine delays some.
    let slow = gaps.iter().filter(|gap| **gap >= Duration::from_secs(1)).count();
    assert!(slow < gaps.len() / 2, "{gaps:?}");
    report_gaps(gaps);
}

/// etcd takes no lease back until its members have elected another raft leader, 1 to 2 s later. A replica waits for that.
#[tokio::test]
async fn a_leader_that_stops_as_the_raft_leader_dies_hands_over_once_another_one_is_elected() {
    let mut etcd = TestEtcd::with(3, &[]).await;
    let (mut replicas, mut leader) = three(&etcd).await;
    let mut gaps = Vec::new();
    // A busy machine may delay an election beyond the limit; then the lease runs out.
    while gaps.last().is_none_or(|gap| *gap > TTL / 4) {
        assert!(gaps.len() < 5, "{gaps:?}");
        let member = etcd.raft_leader().await;
        etcd.members[member].kill().await.unwrap();
        let asked = Instant::now();
        replicas.0[leader].terminate();
        let (next, led) = successor_within(2 * TTL, &replicas, leader).await;
        gaps.push(led - asked);
        assert!(replicas.0[leader].ended().await.success());
        etcd.members[member].start().await.unwrap();
        replicas.0[leader].launch().unwrap();
        wait_for_candidates(&etcd, 3).await;
        leader = next;
    }
    report_gaps(gaps);
}

#[tokio::test]
async fn after_sigkill_the_next_leads_only_once_the_lease_has_expired() {
    let etcd = TestEtcd::start().await;
    let (mut replicas, leader) = three_for(&etcd, SHORT_TTL).await;
    replicas.0[leader].lease_renewed().await;
    let killed = Instant::now();
    replicas.0[leader].kill().await.unwrap();
    let (_, led) = successor(&replicas, leader).await;
    let waited = led - killed;
    // The last keep-alive was sent at most a sixth of the TTL before the kill.
    assert!(
        waited > SHORT_TTL.mul_f64(0.75),
        "{waited:?}: the old lease may still be alive"
    );
}

#[tokio::test]
async fn a_leader_paused_beyond_its_ttl_steps_down_and_stands_again() {
    let etcd = TestEtcd::start().await;
    let (mut replicas, leader) = three_for(&etcd, SHORT_TTL).await;
    let pid = replicas.0[leader].process().unwrap().pid();
    let name = replicas.0[leader].node_id.clone();
    let (old_key, _) = etcd.leader_of(ELECTION).unwrap();
    replicas.0[leader].pause();
    let (next, _) = successor(&replicas, leader).await;
    assert!(etcd.keys(&old_key).is_empty());
    let resumed_at = etcd.revision();
    replicas.0[leader].resume();
    replicas.0[leader].wait_for_log("no longer leading").await;
    wait_for_candidates(&etcd, 3).await;
    assert_eq!(replicas.0[leader].process().unwrap().pid(), pid);
    assert!(
        replicas.0[leader].process().unwrap().status().is_none(),
        "the same process"
    );
    assert!(!replicas.0[leader].leads().await && replicas.0[next].leads().await);
    replicas.0[leader].wait_ready().await;
    // Since then it wrote its registration and its candidacy, and nothing under its old term.
    let written = written_since(&connect(&etcd).await, "/quorate/", resumed_at).await;
    let registration = format!("/quorate/nodes/{name}/release");
    let own = |key: &String| *key == registration || (key.starts_with(ELECTION) && *key != old_key);
    assert!(!written.is_empty() && written.iter().all(own), "{written:?}");
}

#[tokio::test]
async fn a_leader_whose_lease_is_revoked_makes_way_and_stands_again() {
    let etcd = TestEtcd::start().await;
    let (mut replicas, leader) = three(&etcd).await;
    let (key, _) = etcd.leader_of(ELECTION).unwrap();
    etcd.etcdctl(&["lease", "revoke", key.strip_prefix(ELECTION).unwrap()]);
    let (next, _) = successor(&replicas, leader).await;
    replicas.0[leader].wait_for_log("no longer leading").await;
    wait_for_candidates(&etcd, 3).await;
    assert_eq!(etcd.leader_of(ELECTION).unwrap().1, replicas.0[next].node_id);
    assert_eq!(replicas.leader().await.0, next);
}

#[tokio::test]
async fn a_leader_whose_key_is_deleted_makes_way_and_stands_again() {
    let etcd = TestEtcd::start().await;
    let (mut replicas, leader) = three(&etcd).await;
    let (key, _) = etcd.leader_of(ELECTION).unwrap();
    etcd.etcdctl(&["del", &key]);
    let (next, _) = successor(&replicas, leader).await;
    replicas.0[leader].wait_for_log("no longer leading").await;
    wait_for_candidates(&etcd, 3).await;
    assert_eq!(
        replicas.leader().await.0,
        next,
        "one leads, although the old lease is alive"
    );
    let leases = etcd.etcdctl(&["lease", "list"]);
    assert!(!leases.contains(key.strip_prefix(ELECTION).unwrap()), "{leases}");
}

#[tokio::test]
async fn a_waiting_candidate_whose_lease_is_revoked_stands_again() {
    let etcd = TestEtcd::start().await;
    let (mut replicas, leader) = three(&etcd).await;
    let waiting: Vec<String> = etcd
        .keys(ELECTION)
        .into_iter()
        .filter(|key| *key != etcd.leader_of(ELECTION).unwrap().0)
        .collect();
    for key in &waiting {
        etcd.etcdctl(&["lease", "revoke", key.strip_prefix(ELECTION).unwrap()]);
    }
    eventually(SOON, "they stand again, on other leases", async || {
        let keys = etcd.keys(ELECTION);
        same(
            (keys.len(), keys.iter().any(|key| waiting.contains(key))),
            (3, false),
        )
    })
    .await;
    assert_eq!(replicas.leader().await.0, leader);
    for replica in &mut replicas.0 {
        let led = replica.log().matches("leading").count();
        assert_eq!(led, usize::from(replica.leads().await), "{}", replica.log());
    }
}

#[tokio::test]
async fn a_second_process_with_the_same_node_id_logs_so_and_waits_for_the_first() {
    let etcd = TestEtcd::start().await;
    let mut first = launch(&etcd).start("same");
    first.wait_leading().await;
    let mut second = launch(&etcd).start("same");
    second
        .wait_for_log("node id same is in use by another process")
        .await;
    assert_eq!(second.status_of("/readyz").await, Some(503));
    assert_eq!(second.status_of("/livez").await, Some(200));
    assert_eq!(etcd.keys(ELECTION).len(), 1, "it is no candidate either");
    first.stop().await.unwrap();
    second.wait_leading().await;
    second.wait_ready().await;
}

#[tokio::test]
async fn a_registration_that_cannot_be_read_is_shown_as_such() {
    let etcd = TestEtcd::start().await;
    etcd.etcdctl(&["put", "/quorate/nodes/ghost/release", "garbage"]);
    let shown = quorate_on(&etcd, &["status"], "").await.expect_done();
    let ghost = "ghost, not standing for election: its registration cannot be read";
    assert!(shown.contains(ghost), "{shown}");
}

/// A replica that reaches etcd only through a proxy.
fn behind(proxy: &Proxy, etcd: &TestEtcd, node: &str) -> TestReplica {
    launch_for(etcd, TTL)
        .endpoints(vec![proxy.url()])
        .flag("--etcd-sync-endpoints=false")
        .flag("--etcd-request-timeout-ms=1000")
        .flag("--etcd-watch-silence-ms=500")
        .start(node)
}

#[tokio::test]
async fn a_replica_cut_off_is_unready_before_its_record_expires_and_recovers() {
    let etcd = TestEtcd::start().await;
    let proxy = Proxy::in_front_of(&etcd.endpoints()[0]);
    let mut replica = behind(&proxy, &etcd, "a");
    replica.wait_leading().await;
    replica.wait_ready().await;
    let leader = async || http::get(replica.port, "/leaderz").await.unwrap().body;
    eventually(SOON, "it has seen that it leads", async || {
        same(leader().await.starts_with("leader: a"), true)
    })
    .await;
    let client = connect(&etcd).await;
    let record = store_of_replicas(&client)
        .keys
        .registration(&"a".parse().unwrap());
    proxy.set(Network::BlackHole);
    let cut = Instant::now();
    eventually(SOON, "it is unready", async || {
        same(replica.status_of("/readyz").await, Some(503))
    })
    .await;
    assert!(
        client.get(&record).await.unwrap().0.is_some(),
        "its record still stands"
    );
    assert!(cut.elapsed() < TTL, "{:?}", cut.elapsed());
    eventually(SOON, "it does not lead", async || {
        same(replica.leads().await, false)
    })
    .await;
    assert_eq!(
        leader().await,
        "leader: a (as last known: not registered in etcd, or out of its reach)\n"
    );
    // Its lease cannot be revoked now, and it tries for a second; but its window is closed.
    assert_eq!(replica.metric("quorate_leader").await, 0.0);
    assert_eq!(replica.status_of("/livez").await, Some(200));
    eventually(SOON, "its record expires", async || {
        same(client.get(&record).await.unwrap().0.is_none(), true)
    })
    .await;
    proxy.set(Network::Passes);
    replica.wait_ready().await;
    replica.wait_leading().await;
    assert!(client.get(&record).await.unwrap().0.is_some());
}

#[tokio::test]
async fn a_replica_cut_off_for_less_than_its_ttl_takes_over_its_own_record() {
    let etcd = TestEtcd::start().await;
    let proxy = Proxy::in_front_of(&etcd.endpoints()[0]);
    let mut replica = behind(&proxy, &etcd, "a");
    replica.wait_ready().await;
    proxy.set(Network::Resets);
    // Its window closes a fifth of the TTL before the record can expire.
    eventually(SOON, "it is unready", async || {
        same(replica.status_of("/readyz").await, Some(503))
    })
    .await;
    proxy.set(Network::Passes);
    replica.wait_ready().await;
    assert!(
        !replica.log().contains("in use by another process"),
        "{}",
        replica.log()
    );
}

/// A key without a lease that no process deletes.
#[tokio::test]
async fn status_names_an_election_key_that_was_written_by_hand_and_the_command_that_deletes_it() {
    let etcd = TestEtcd::start().await;
    let key = format!("{ELECTION}1");
    etcd.etcdctl(&["put", &key, "by hand"]);
    let (mut replica, status) = (launch(&etcd).start("a"), async || {
        quorate_on(&etcd, &["status"], "").await.expect_done()
    });
    wait_for_candidates(&etcd, 2).await;
    assert!(!replica.leads().await);
    let shown = status().await;
    let (_, command) = shown.split_once("etcdctl ").expect(&shown);
    let command: Vec<&str> = command.lines().next().unwrap().split(' ').collect();
    assert_eq!(command, ["del", &key], "{shown}");
    let json = quorate_on(&etcd, &["status", "-o", "json"], "")
        .await
        .expect_done();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["keysWithoutLease"], serde_json::json!([key]));
    etcd.etcdctl(&command);
    replica.wait_leading().await;
    assert!(!status().await.contains("Election:"));
}

#[tokio::test]
async fn replicas_below_different_prefixes_do_not_see_each_other() {
    let etcd = TestEtcd::start().await;
    let mut one = launch(&etcd).flag("--prefix=/one").start("a");
    let mut other = launch(&etcd).flag("--prefix=/one-more").start("a");
    one.wait_leading().await;
    other.wait_leading().await;
    let mut both = JoinSet::new();
    for mut replica in [one, other] {
        both.spawn(async move { replica.stop().await.unwrap().unwrap() });
    }
    while let Some(status) = both.join_next().await {
        assert!(status.unwrap().success());
    }
    let mut left = etcd.keys("/");
    // A leader records once how far etcd is, for every later one.
    left.retain(|key| !key.ends_with("/history/volumes"));
    assert_eq!(left, [""; 0], "both left no other keys");
}
