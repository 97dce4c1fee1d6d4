//! The cost of a leader and a standby that are idle: processor, memory, requests to etcd.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::Result;
use tokio::time::sleep;

use super::measure::{Table, Unit};
use super::processor::processor_time;
use super::servers::{EtcdServer, Kubernetes, TestReplica, resident_memory, wait_for};

/// Two passes over the resources, six probes of the endpoints.
const WINDOW: Duration = Duration::from_secs(60);

/// Time for the work of the start to end.
const SETTLE: Duration = Duration::from_secs(5);

/// The use of one replica during the window.
struct Usage {
    processor_seconds: f64,
    resident: f64,
}

pub async fn run() -> Result<Table> {
    let kubernetes = Kubernetes::start(&[], |_| Ok(Vec::new())).await?;
    let etcd = EtcdServer::start().await?;
    let kubeconfig = kubernetes.server.kubeconfig();

    let mut leader = TestReplica::start("leader", &etcd.endpoint(), &kubeconfig, &[])?;
    leader.wait_ready().await?;
    eprintln!("    a leader alone for {} s", WINDOW.as_secs());
    let (alone, requests) = observe(&etcd, &mut [&mut leader]).await?;

    let mut standby = TestReplica::start("standby", &etcd.endpoint(), &kubeconfig, &[])?;
    standby.wait_ready().await?;
    wait_for("the leader still leads", async || {
        Ok((leader.metric("quorate_leader").await? > 0.0).then_some(()))
    })
    .await?;
    eprintln!("    a leader and a standby for {} s", WINDOW.as_secs());
    let (both, requests_of_both) = observe(&etcd, &mut [&mut leader, &mut standby]).await?;

    let mut table = Table::new("Idle: per minute, with the built-in bundle");
    let usages = alone.iter().zip(["leader"]);
    let usages = usages.chain(both.iter().zip(["leader, beside a standby", "standby"]));
    for (usage, who) in usages {
        table.single(
            &format!("{who}: processor"),
            usage.processor_seconds,
            Unit::Seconds,
            "",
        );
        table.single(
            &format!("{who}: resident memory"),
            usage.resident / 1024.0 / 1024.0,
            Unit::Mebibytes,
            "",
        );
    }
    let of_standby: BTreeMap<String, f64> = requests_of_both
        .iter()
        .map(|(method, count)| (method.clone(), count - requests.get(method).unwrap_or(&0.0)))
        .collect();
    for (who, requests) in [("leader", &requests), ("standby", &of_standby)] {
        let total = requests.values().sum();
        table.single(&format!("{who}: requests to etcd"), total, Unit::Count, "");
        let by_method: Vec<String> = requests
            .iter()
            .filter(|(_, count)| **count != 0.0)
            .map(|(method, count)| format!("{method} {count:.0}"))
            .collect();
        table.note(format!("Requests of the {who}: {}.", by_method.join(", ")));
    }
    table.note(
        "Requests are the gRPC messages that etcd counts as received: those of the leader while it is alone, those of \
         the standby as what it adds.",
    );
    Ok(table)
}

/// The use of these replicas in a minute, and the requests that etcd receives in it, by method.
async fn observe(
    etcd: &EtcdServer,
    replicas: &mut [&mut TestReplica],
) -> Result<(Vec<Usage>, BTreeMap<String, f64>)> {
    sleep(SETTLE).await;
    let mut pids = Vec::new();
    for replica in replicas {
        pids.push(replica.pid()?);
    }
    let received_before = etcd.received().await?;
    let begun = Instant::now();
    let used_before = pids
        .iter()
        .map(|pid| processor_time(*pid))
        .collect::<Result<Vec<_>>>()?;
    sleep(WINDOW).await;
    let per_minute = 60.0 / begun.elapsed().as_secs_f64();
    let mut usages = Vec::new();
    for (pid, before) in pids.iter().zip(used_before) {
        usages.push(Usage {
            processor_seconds: (processor_time(*pid)? - before).as_secs_f64() * per_minute,
            resident: resident_memory(pid)?,
        });
    }
    let mut received = etcd.received().await?;
    for (method, count) in &mut received {
        *count = (*count - received_before.get(method).unwrap_or(&0.0)).round();
    }
    Ok((usages, received))
}
