//! Both authorities of a cluster are rotated again and again while a client writes: three members, each kept by an agent. The client
//! and the replica get their certificates by hand, as a person puts them in place.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use etcd_client::Client;
use prost::Message;
use quorate::proto::Rotation;
use quorate::proto::rotation::Phase;
use quorate_dev::workspace::programs;
use tokio::net::TcpStream;
use tokio::process::Command;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::LIMIT;
use super::cluster::Cluster;
use super::measure::{Samples, Table, Unit};

/// How often the members are looked at, and the phase of the rotation.
const LOOK: Duration = Duration::from_millis(5);

/// How long one write may take before the client connects again.
const WRITE_LIMIT: Duration = Duration::from_secs(2);

/// What goes on beside a rotation, since it was last asked.
#[derive(Default)]
struct Beside {
    /// The longest time between two writes that were confirmed, and how many were.
    longest_gap: Duration,
    writes: u32,
    /// How long fewer than two of the members ran.
    without_quorum: Duration,
    /// And fewer than three.
    one_down: Duration,
}

pub async fn table(rounds: usize) -> Result<Table> {
    let mut cluster = Cluster::start(&["n2", "n3", "n4"]).await?;
    eprintln!("three nodes become the members");
    cluster.by_agents_alone().await?;
    let cluster = Arc::new(cluster);
    let beside = Arc::new(Mutex::new(Beside::default()));
    let mut at_work = JoinSet::new();
    at_work.spawn(write(Arc::clone(&cluster), Arc::clone(&beside)));
    at_work.spawn(look(Arc::clone(&cluster), Arc::clone(&beside)));
    let taken = || std::mem::take(&mut *held(&beside));

    let (mut whole, mut gap, mut idle_gap) = (Samples::default(), Samples::default(), Samples::default());
    let (mut without_quorum, mut one_down, mut writes) =
        (Samples::default(), Samples::default(), Samples::default());
    for round in 1..=rounds {
        eprintln!("rotation {round}/{rounds}: nothing");
        _ = taken();
        sleep(Duration::from_secs(10)).await;
        idle_gap.push_time(taken().longest_gap);
        eprintln!("rotation {round}/{rounds}");
        let begun = Instant::now();
        rotate(&cluster).await?;
        whole.push(begun.elapsed().as_secs_f64());
        let seen = taken();
        ensure!(seen.writes > 0, "nothing was written");
        gap.push_time(seen.longest_gap);
        without_quorum.push_time(seen.without_quorum);
        one_down.push_time(seen.one_down);
        writes.push(f64::from(seen.writes));
        ensure!(at_work.try_join_next().is_none(), "the client has ended");
    }
    at_work.shutdown().await;
    let cluster = Arc::into_inner(cluster).context("what holds it has ended")?;
    cluster.stop().await?;

    let mut table = Table::new("Rotation of both authorities: three members by agents, with TLS, under load");
    table.row("quorate ca rotate → the phase done", &whole, Unit::Seconds, "");
    table.row(
        "time without a quorum of the members",
        &without_quorum,
        Unit::Millis,
        "0",
    );
    table.row("time with one member down", &one_down, Unit::Millis, "");
    table.row(
        "the longest gap of a client that writes",
        &gap,
        Unit::Millis,
        "at most 1000 ms: an election",
    );
    table.row("the same in 10 s without a rotation", &idle_gap, Unit::Millis, "");
    table.row(
        "writes in a rotation, one after the other",
        &writes,
        Unit::Count,
        "",
    );
    table.note("The client gives a write up after 2 s, and connects again after each that fails, with its files as they are then. A member is down while nothing listens at its port for metrics, which is looked at every 5 ms; without two of three there is no quorum. The certificates of the client and the replica are replaced by hand, by `quorate ca issue etcd-client`, as soon as the next authorities sign.");
    Ok(table)
}

/// What was seen so far. No holder of the lock leaves it half written.
fn held(beside: &Mutex<Beside>) -> MutexGuard<'_, Beside> {
    beside.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Writes, one after the other, for ever.
async fn write(cluster: Arc<Cluster>, beside: Arc<Mutex<Beside>>) {
    let mut last = Instant::now();
    loop {
        let Ok(client) = cluster.pki.connect(&cluster.endpoints()).await else {
            sleep(LOOK).await;
            continue;
        };
        let mut client = client.kv_client();
        while let Ok(Ok(_)) = timeout(WRITE_LIMIT, client.put("/written", "again", None)).await {
            let gap = std::mem::replace(&mut last, Instant::now()).elapsed();
            let mut beside = held(&beside);
            beside.longest_gap = beside.longest_gap.max(gap);
            beside.writes += 1;
        }
    }
}

/// Looks which members run, for ever.
async fn look(cluster: Arc<Cluster>, beside: Arc<Mutex<Beside>>) {
    let mut last = Instant::now();
    loop {
        let mut up = 0;
        for kept in &cluster.agents {
            up += usize::from(TcpStream::connect(("127.0.0.1", kept.metrics)).await.is_ok());
        }
        let passed = std::mem::replace(&mut last, Instant::now()).elapsed();
        {
            let mut beside = held(&beside);
            if up < cluster.agents.len() {
                beside.one_down += passed;
            }
            if up <= cluster.agents.len() / 2 {
                beside.without_quorum += passed;
            }
        }
        sleep(LOOK).await;
    }
}

/// Rotates both authorities, with what a person does on the way.
async fn rotate(cluster: &Cluster) -> Result<()> {
    run(cluster, &["ca", "rotate"]).await?;
    let mut client = cluster.pki.connect(&cluster.endpoints()).await?;
    let begun = Instant::now();
    while phase(&mut client).await? != Some(Phase::Reissue) {
        ensure!(
            begun.elapsed() < LIMIT,
            "the next authorities do not sign after {LIMIT:?}"
        );
        sleep(LOOK).await;
    }
    let output = cluster.pki.of_client.display().to_string();
    command(&["ca", "issue", "etcd-client", "-o", &output], &cluster.ca, &[]).await?;
    run(
        cluster,
        &["ca", "rotate", "--drop-old", "--wait", "--timeout=120s"],
    )
    .await
}

/// The phase of the rotation on record, if there is one.
async fn phase(client: &mut Client) -> Result<Option<Phase>> {
    let stored = client.get("/quorate/identity/trust", None).await?;
    let rotation = stored.kvs().first().map(|kv| Rotation::decode(kv.value()));
    Ok(rotation.transpose()?.map(|rotation| rotation.phase()))
}

/// Runs a command that needs etcd.
async fn run(cluster: &Cluster, args: &[&str]) -> Result<()> {
    let flags = cluster.pki.flags(&cluster.endpoints().join(","));
    command(args, &cluster.ca, &flags).await
}

async fn command(args: &[&str], ca: &Path, flags: &[String]) -> Result<()> {
    let mut command = Command::new(programs()?.quorate);
    command.args(args).arg("--ca-dir").arg(ca).args(flags);
    let ended = command.kill_on_drop(true).output().await?;
    let said = String::from_utf8_lossy(&ended.stderr);
    ensure!(ended.status.success(), "{args:?}: {} {said}", ended.status);
    Ok(())
}
