//! The gate at the sizes of large clusters.

use std::time::{Duration, Instant};

use prost::Message as _;
use quorate::etcd::{Etcd, KeyRange, Txn};
use quorate::gate::status::State;
use quorate::grpc_code::Code;
use quorate::proto::{Metadata, Node, Registration};
use quorate::release::{Release, Version};
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

use super::term::{Cluster, bundle, registration, release, status};
use crate::support::client::{commit, connect_patiently, put, put_all, requests, requests_so_far};

fn worker(number: usize) -> (String, Vec<u8>) {
    let node = Node {
        metadata: Some(Metadata {
            name: format!("w{number}"),
            ..Metadata::default()
        }),
        ..Node::default()
    };
    (format!("/q/nodes/w{number}"), node.encode_to_vec())
}

/// How long etcd takes for one attempt at a restriction.
async fn one_attempt(etcd: &Etcd) -> Duration {
    let (begun, nodes) = (Instant::now(), KeyRange::prefix("/q/nodes/"));
    let (_, now) = etcd.count(&nodes).await.unwrap();
    let proof = Txn::new().when_range_unwritten_since(&nodes, now);
    commit(etcd, proof).await.unwrap();
    begun.elapsed()
}

/// Each write below `/nodes/` since the nodes were read refuses the restriction, and each attempt has etcd read them all.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restriction_is_made_among_twenty_thousand_nodes_of_which_fifty_change_a_second() {
    const NODES: usize = 20_000;
    let cluster = Cluster::start().await;
    cluster.put_status(status(State::Done, 4, 1).encode()).await;
    cluster.register("leader", release(5)).await;
    put_all(&cluster.client, (0..NODES).map(worker)).await;
    let one_attempt = one_attempt(&cluster.client).await;
    // On a slow machine fewer change, so that an attempt has a chance between two writes.
    let period = Duration::from_millis(20).max(3 * one_attempt);
    let writer = connect_patiently(&cluster.etcd).await;
    let mut writing = JoinSet::new();
    writing.spawn({
        let writer = writer.clone();
        async move {
            let mut ticks = tokio::time::interval(period);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            for number in (0..NODES).cycle() {
                ticks.tick().await;
                let (key, value) = worker(number);
                put(&writer, &key, value).await;
            }
        }
    });
    let attempts = || requests(&cluster.client, "txn", Code::Ok);
    let (before, begun) = (attempts(), Instant::now());
    let term = cluster.term(&bundle(5, 3)).await;
    let during = term.recorder.pass(1).await.status.unwrap();
    let (took, made) = (begun.elapsed(), attempts() - before);
    let written = requests_so_far(&writer, "txn", Code::Ok);
    assert_eq!(during, status(State::Working, 4, 3).encode());
    eprintln!("{made} transactions in {took:?}, beside {written} writes");
    assert!(took < Duration::from_secs(10) + 20 * one_attempt, "{took:?}");
    // One enters the election, and six come before the delays are a second, or up to a quarter less.
    let most = 8.0 + took.as_secs_f64() / 0.75;
    assert!(made <= most, "{made} transactions in {took:?}");
}

#[tokio::test]
async fn of_a_thousand_registrations_each_holds_the_status_back_until_it_is_upgraded() {
    const REPLICAS: usize = 1000;
    let cluster = Cluster::start().await;
    cluster.put_status(status(State::Done, 4, 1).encode()).await;
    let registered = |number: usize, release: Release| {
        let record = Registration {
            version: Some(Version::from(release).to_proto()),
            process: format!("p{number}"),
            registered_at: None,
            page: String::new(),
        };
        (registration(&format!("r{number:03}")), record.encode_to_vec())
    };
    let at = |release: Release| (0..REPLICAS).map(move |number| registered(number, release));
    put_all(&cluster.client, at(release(2))).await;
    let term = cluster.term(&bundle(5, 3)).await;
    let named = |nodes: [&str; 5]| {
        nodes
            .map(|node| format!("node {node} at 0.2.0, needs 0.3.0"))
            .join("; ")
    };
    let first = format!(
        "waiting for {}; and 995 more",
        named(["r000", "r001", "r002", "r003", "r004"])
    );
    cluster
        .wait_for_status_json(|json| json["degraded"]["message"] == first.as_str())
        .await;
    put_all(&cluster.client, at(release(5)).take(REPLICAS - 1)).await;
    let last = "waiting for node r999 at 0.2.0, needs 0.3.0";
    cluster
        .wait_for_status_json(|json| json["degraded"]["message"] == last)
        .await;
    assert_eq!(cluster.status().await.unwrap(), status(State::Done, 4, 1));
    assert!(term.recorder.passes().is_empty());
    cluster.register("r999", release(5)).await;
    cluster.wait_for_status(&status(State::Done, 5, 3)).await;
}
