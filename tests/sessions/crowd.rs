//! Many sessions on one replica: what each costs, and how all of them turn to another one.

use std::path::Path;
use std::time::{Duration, Instant};

use super::agents::{Crowd, authority, members};
use crate::agent::site::Site;
use crate::support::client::put_all;
use crate::support::quorate::TestReplica;
use crate::support::wait::{SOON, eventually, same};

/// Agents, the product's own, each with a connection, a state directory and a thread.
const AGENTS: usize = 1_000;

/// The lease of a session, by whose sixth agents come back spread out. No machine is busy enough for all to come back after it.
const LEASE: Duration = Duration::from_secs(120);

/// Resident memory of the replica for each session, its TLS connection included.
const MOST_MEMORY: usize = 256 << 10;

fn resident(replica: &mut TestReplica) -> usize {
    let pid = replica.pid().expect("it runs");
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .unwrap();
    let kib: usize = line.trim().trim_end_matches(" kB").parse().unwrap();
    kib << 10
}

/// The handshakes that a replica has had since its start, however they ended.
async fn handshakes(replica: &TestReplica) -> f64 {
    let mut all = 0.0;
    for result in ["done", "failed", "timed_out", "made_way", "not_ready"] {
        let series = format!("quorate_control_handshakes_total{{result=\"{result}\"}}");
        all += replica.metric(&series).await;
    }
    all
}

#[tokio::test]
async fn a_crowd_of_agents_costs_little_memory_and_turns_to_another_replica_with_its_leases_and_without_a_storm()
 {
    let lease = format!("--session-lease-ms={}", LEASE.as_millis());
    let mut site = Site::with(2, &[&lease]).await;
    let mut replicas = std::mem::take(&mut site.replicas);
    let [first, second] = &mut replicas[..] else {
        panic!("two replicas");
    };
    // The agents know both, and find the first.
    second.stop().await.unwrap();
    first.wait_leading().await;
    let authority = authority(Path::new(&site.ca)).unwrap();
    let cluster = site.store.etcd.cluster_id().unwrap();
    let nodes = members(AGENTS, &authority, cluster).unwrap();
    let records = nodes
        .iter()
        .map(|node| (format!("/quorate/nodes/{}", node.name), node.record.clone()));
    put_all(&site.store.etcd, records).await;
    let home = site.home().join("crowd");
    let mut crowd = Crowd::new(&home, &authority, cluster, &site.servers).unwrap();
    // What the first connection and session need once for all.
    crowd.start(&nodes[..1]).await.unwrap();
    let before = resident(first);
    let begun = Instant::now();
    crowd.start(&nodes[1..]).await.unwrap();
    eprintln!("{AGENTS} sessions opened in {:?}", begun.elapsed());
    let each = resident(first).saturating_sub(before) / (AGENTS - 1);
    eprintln!("{each} bytes of the replica for each session");
    assert!(each < MOST_MEMORY, "{each} bytes");
    assert_eq!(first.metric("quorate_sessions").await, AGENTS as f64);
    let leases = async || {
        let alive = site.list(&site.store.keys.all_alive()).await;
        alive.into_iter().map(|kv| (kv.key, kv.lease)).collect::<Vec<_>>()
    };
    let held = leases().await;
    assert_eq!(held.len(), AGENTS);

    second.launch().unwrap();
    second.wait_ready().await;
    first.kill().await.unwrap();
    let begun = Instant::now();
    eventually(LEASE, "every session is served", async || {
        same(second.metric("quorate_sessions").await, AGENTS as f64)
    })
    .await;
    // Each hears of its session a moment later.
    eventually(SOON, "every agent has a session", async || {
        same(crowd.in_session(), AGENTS)
    })
    .await;
    eprintln!("{AGENTS} sessions are back after {:?}", begun.elapsed());
    let needed = handshakes(second).await;
    assert!(needed <= 2.0 * AGENTS as f64, "{needed} handshakes are a storm");
    assert_eq!(leases().await, held, "each goes on with the lease of before");
}
