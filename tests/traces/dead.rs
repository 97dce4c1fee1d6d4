//! A collector that is gone, hangs or answers nonsense costs a replica nothing but the traces.

use std::time::{Duration, Instant};

use quorate_dev::ports;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tonic::Code;

use crate::support::collector::{Collector, Does};
use crate::support::etcd::TestEtcd;
use crate::support::quorate::{Launch, TestReplica, quorate};
use crate::support::wait::{SOON, eventually};

const DROPPED: &str = "quorate_trace_spans_dropped_total";

/// An exit takes this long at most: what a replica has for its parts, and two seconds for the last spans. A request to a collector
/// may take longer.
const EXIT: Duration = Duration::from_secs(9);

/// A replica that makes many spans: it looks at etcd again and again.
fn busy(etcd: &TestEtcd, prefix: &str, collector: &str) -> TestReplica {
    let launch = Launch::on(etcd)
        .flag(format!("--prefix={prefix}"))
        .flag(format!("--otlp-endpoint={collector}"))
        .flag("--role-resync-ms=5")
        .flag("--rights-interval-ms=5")
        .flag("--etcd-endpoint-interval-ms=20");
    launch.start("a")
}

async fn drops(replica: &TestReplica, what: &str) {
    eventually(SOON * 2, what, async || {
        let dropped = replica.metric(DROPPED).await;
        if dropped > 0.0 {
            Ok(())
        } else {
            Err("none was dropped")
        }
    })
    .await;
}

async fn exits_in_time(mut replica: TestReplica, what: &str) {
    replica.lease_renewed().await;
    assert!(replica.leads().await, "{what}");
    let begun = Instant::now();
    replica.terminate();
    let status = replica.ended().await;
    assert!(status.success(), "{what}: {status}: {}", replica.log());
    assert!(begun.elapsed() < EXIT, "{what}: {:?}", begun.elapsed());
}

/// The URL of a server that takes connections and does this to each.
async fn server(answer: &'static [u8], tasks: &mut JoinSet<()>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tasks.spawn(async move {
        let mut open = Vec::new();
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            // The client may be gone already.
            let _ = stream.write_all(answer).await;
            open.push(stream);
        }
    });
    url
}

#[tokio::test]
async fn a_replica_whose_collector_does_not_answer_leads_drops_spans_and_ends_in_time() {
    let etcd = TestEtcd::start().await;
    let mut tasks = JoinSet::new();
    let gone = format!("http://127.0.0.1:{}", ports::free_port().unwrap());
    let silent = server(b"", &mut tasks).await;
    let hanging = Collector::that(Does::Hangs).await;
    let mut replicas = [
        ("gone", busy(&etcd, "/gone", &gone)),
        ("silent", busy(&etcd, "/silent", &silent)),
        ("hanging", busy(&etcd, "/hanging", &hanging.url)),
    ];
    for (_, replica) in &mut replicas {
        replica.wait_leading().await;
    }
    for (what, replica) in replicas {
        drops(&replica, what).await;
        exits_in_time(replica, what).await;
    }
    assert!(hanging.requests() > 0, "it was asked");
}

#[tokio::test]
async fn a_replica_whose_collector_refuses_or_answers_nonsense_leads_drops_spans_and_ends_in_time() {
    let etcd = TestEtcd::start().await;
    let mut tasks = JoinSet::new();
    let refusing = Collector::that(Does::Refuses(Code::InvalidArgument)).await;
    let rejecting = Collector::that(Does::Rejects).await;
    let garbage = server(b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\ngarbage", &mut tasks).await;
    let mut replicas = [
        ("refusing", busy(&etcd, "/refusing", &refusing.url)),
        ("rejecting", busy(&etcd, "/rejecting", &rejecting.url)),
        ("garbage", busy(&etcd, "/garbage", &garbage)),
    ];
    for (_, replica) in &mut replicas {
        replica.wait_leading().await;
    }
    for (what, mut replica) in replicas {
        drops(&replica, what).await;
        let why = match what {
            "rejecting" => "rejects spans, which are dropped: \"no room\"",
            _ => "does not take traces",
        };
        replica.wait_for_log(why).await;
        exits_in_time(replica, what).await;
    }
}

#[tokio::test]
async fn what_a_collector_could_not_take_for_a_moment_is_sent_again_and_the_last_spans_at_the_end() {
    let etcd = TestEtcd::start().await;
    let collector = Collector::that(Does::Refuses(Code::Unavailable)).await;
    let mut replica = Launch::on(&etcd).flag(collector.flag()).start("a");
    replica.wait_leading().await;
    replica.wait_for_log("does not take traces").await;
    let refused = collector.spans();
    let first = refused.0.first().unwrap().span_id.clone();
    collector.does(Does::Takes);
    replica.wait_for_log("takes traces again").await;
    let sent = collector.spans();
    let times = sent.0.iter().filter(|span| span.span_id == first).count();
    assert!(times > 1, "it was sent {times} times");
    assert_eq!(replica.metric(DROPPED).await, 0.0);
    replica.stop().await.unwrap();
    // The last thing that a leader does.
    let last = collector.spans();
    assert!(
        last.named("etcd lease_revoke").next().is_some(),
        "the lease was given back"
    );
}

#[tokio::test]
async fn what_is_no_collector_is_a_usage_error() {
    for url in ["localhost:4317", "http://c:4318/v1/traces", "grpc://c:4317"] {
        let flag = format!("--otlp-endpoint={url}");
        let finished = quorate(["run", &flag, "--no-kubernetes"]).await;
        let stderr = finished.expect_code(64);
        assert!(stderr.contains("http://localhost:4317"), "{stderr}");
    }
}
