//! How long no replica leads: after SIGTERM of the leader in etcd puts, after SIGKILL beyond the lease's TTL.
//!
//! The end of the gap is the first fenced write of the next leader, as a raw watch sees it: `status.json`, which
//! names the leader, is written before anything else.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use etcd_client::{
    Client, Compare, CompareOp, GetOptions, PutOptions, SortOrder, SortTarget, Txn, TxnOp, WatchOptions,
    WatchStream,
};
use quorate::etcd::election::campaign;
use quorate::etcd::{Config, Etcd, Pulse};
use quorate::metrics::Metrics;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::measure::{Samples, Table, Unit};
use super::servers::{EtcdServer, Kubernetes, LIMIT, PREFIX, TestReplica, wait_for};

const GRACEFUL_ROUNDS: usize = 15;
const CROWD_ROUNDS: usize = 15;
const KILL_ROUNDS: usize = 5;

/// Candidates behind the three replicas, so that 200 stand for election.
const CROWD: usize = 197;

/// The default of `quorate run`.
const TTL: Duration = Duration::from_secs(10);

/// A change below the reconciler's prefix, and when the raw watch brought it.
struct Seen {
    at: Instant,
    key: String,
    /// `None` if the key was deleted.
    value: Option<Vec<u8>>,
}

struct Cluster {
    replicas: Vec<TestReplica>,
    client: Client,
    seen: mpsc::UnboundedReceiver<Seen>,
    endpoint: String,
    // Joined, that is aborted, when dropped.
    _watching: JoinSet<()>,
}

/// Candidates that only stand for election, behind all that stood before.
struct Crowd {
    standing: JoinSet<()>,
    withdraw: CancellationToken,
    _beating: JoinSet<()>,
}

/// The times of one failover.
struct Gap {
    /// From the signal until the old leader's election key was gone.
    to_vacancy: Duration,
    /// From the signal until the next leader's first write.
    to_first_write: Duration,
    /// One put in the same round, in milliseconds.
    put: f64,
    /// The requests of a handover, sent raw one after the other in the same round, in milliseconds.
    raw: f64,
}

pub async fn run() -> Result<Table> {
    let kubernetes = Kubernetes::start(&[], |_| Ok(Vec::new())).await?;
    let etcd = EtcdServer::start().await?;
    let mut cluster = Cluster::start(&etcd, &kubernetes).await?;
    let mut graceful = Vec::new();
    for _ in 0..GRACEFUL_ROUNDS {
        graceful.push(cluster.fail_over(TestReplica::terminate, 0).await?);
    }
    let mut crowded = Vec::new();
    for round in 1..=CROWD_ROUNDS {
        eprintln!("    200 candidates {round}/{CROWD_ROUNDS}");
        crowded.push(cluster.fail_over(TestReplica::terminate, CROWD).await?);
    }
    let mut killed = Vec::new();
    for round in 1..=KILL_ROUNDS {
        eprintln!("    SIGKILL {round}/{KILL_ROUNDS}");
        killed.push(cluster.fail_over(TestReplica::kill, 0).await?);
    }
    let mut table = report(&graceful, &killed);
    report_crowd(&mut table, &crowded);
    Ok(table)
}

fn column(gaps: &[Gap], part: fn(&Gap) -> f64) -> Samples {
    let mut samples = Samples::default();
    gaps.iter().for_each(|gap| samples.push(part(gap)));
    samples
}

fn report_crowd(table: &mut Table, crowded: &[Gap]) {
    let first_write = column(crowded, |gap| gap.to_first_write.as_secs_f64() * 1e3);
    table.row(
        "200 candidates: SIGTERM of the leader → first fenced write of the next",
        &first_write,
        Unit::Millis,
        "as with three",
    );
    let raw = column(crowded, |gap| gap.raw);
    table.row(
        "200 candidates: that, over the requests of such a handover, raw",
        &first_write.per(&raw),
        Unit::Times,
        "",
    );
}

fn report(graceful: &[Gap], killed: &[Gap]) -> Table {
    let millis = |time: Duration| time.as_secs_f64() * 1e3;
    let puts = column(graceful, |gap| gap.put);
    let vacancy = column(graceful, |gap| gap.to_vacancy.as_secs_f64() * 1e3);
    let first_write = column(graceful, |gap| gap.to_first_write.as_secs_f64() * 1e3);

    let mut table = Table::new("Failover: three replicas, one etcd member");
    table.row("one etcd put", &puts, Unit::Millis, "");
    table.row(
        "SIGTERM of the leader → its election key is gone",
        &vacancy,
        Unit::Millis,
        "",
    );
    table.row(
        "SIGTERM of the leader → first fenced write of the next",
        &first_write,
        Unit::Millis,
        "",
    );
    table.row(
        "the same, in puts",
        &first_write.per(&puts),
        Unit::Times,
        "a few round trips",
    );
    let raw = column(graceful, |gap| gap.raw);
    table.row("the requests of such a handover, raw", &raw, Unit::Millis, "");
    table.row(
        "SIGTERM → first fenced write, over that",
        &first_write.per(&raw),
        Unit::Times,
        "",
    );
    let mut excess = Samples::default();
    let mut takeover = Samples::default();
    for gap in killed {
        excess.push(gap.to_first_write.as_secs_f64() - TTL.as_secs_f64());
        takeover.push(millis(gap.to_first_write.saturating_sub(gap.to_vacancy)));
    }
    table.row(
        "SIGKILL of the leader → first fenced write of the next, less the TTL",
        &excess,
        Unit::Seconds,
        "at most + 1 s",
    );
    table.row(
        "of that: its election key is gone → first fenced write",
        &takeover,
        Unit::Millis,
        "",
    );
    table.note(format!(
        "The TTL is {} s. It runs from the last keep-alive before the SIGKILL, which is up to a sixth of the TTL \
         earlier, and etcd revokes leases that ran out every 500 ms: so the excess lies between − {:.1} s and + 0.5 s \
         when the takeover itself costs nothing.",
        TTL.as_secs(),
        TTL.as_secs_f64() / 6.0
    ));
    table
}

impl Cluster {
    async fn start(etcd: &EtcdServer, kubernetes: &Kubernetes) -> Result<Self> {
        let client = etcd.raw_client().await?;
        let options = WatchOptions::new().with_prefix();
        let stream = client
            .watch_client()
            .watch(format!("{PREFIX}/kubernetes/reconciler/"), Some(options))
            .await?;
        let (sender, seen) = mpsc::unbounded_channel();
        let mut watching = JoinSet::new();
        watching.spawn(watch(stream, sender));

        let ttl = format!("--lease-ttl={}", TTL.as_secs());
        // A leader waits for its predecessor's requests after its first write: the wait only prolongs a round.
        let flags = [ttl.as_str(), "--settle-ms=100"];
        let kubeconfig = kubernetes.server.kubeconfig();
        let mut replicas = Vec::new();
        for node_id in ["n1", "n2", "n3"] {
            replicas.push(TestReplica::start(
                node_id,
                &etcd.endpoint(),
                &kubeconfig,
                &flags,
            )?);
        }
        Ok(Self {
            replicas,
            client,
            seen,
            endpoint: etcd.endpoint(),
            _watching: watching,
        })
    }

    /// Has this many candidates more stand for election, and waits until all do.
    async fn stand(&mut self, crowd: usize) -> Result<Crowd> {
        let (mut standing, mut beating) = (JoinSet::new(), JoinSet::new());
        let (withdraw, pulse) = (CancellationToken::new(), Pulse::default());
        beating.spawn(pulse.clone().beat_forever());
        let config = Config::new(vec![self.endpoint.clone()]);
        let etcd = Etcd::connect(config, Metrics::new("bench")).await?;
        let election = format!("{PREFIX}/kubernetes/reconciler/leader");
        for number in 0..crowd {
            let (etcd, election) = (etcd.clone(), election.clone());
            let (withdraw, pulse) = (withdraw.clone(), pulse.clone());
            standing.spawn(async move {
                let name = format!("crowd-{number}");
                // It never wins: the replicas stand before it.
                drop(campaign(&etcd, &election, &name, 6 * TTL, &pulse, &withdraw).await);
            });
        }
        let all = self.replicas.len() + crowd;
        wait_for("the crowd stands for election", async || {
            let candidates = candidates(&mut self.client).await?;
            Ok((candidates.len() == all).then_some(()))
        })
        .await?;
        // The last of them have yet to open their watches.
        tokio::time::sleep(Duration::from_millis(300)).await;
        Ok(Crowd {
            standing,
            withdraw,
            _beating: beating,
        })
    }

    /// Ends the leader with `end`, measures until its successor writes, and starts the old leader again. Behind the replicas
    /// `crowd` others stand for election.
    async fn fail_over(&mut self, end: fn(&mut TestReplica) -> Result<()>, crowd: usize) -> Result<Gap> {
        for replica in &mut self.replicas {
            replica.wait_ready().await?;
        }
        let (key, name) = wait_for("all replicas stand for election", async || {
            let candidates = candidates(&mut self.client).await?;
            let all = candidates.len() == self.replicas.len();
            Ok(all.then(|| candidates.into_iter().next()).flatten())
        })
        .await?;
        let mut replicas = self.replicas.iter();
        let leader = replicas.position(|replica| replica.replica.node_id == name);
        let leader = leader.context("the leader is none of the replicas")?;
        let crowd = self.stand(crowd).await?;
        let leader = &mut self.replicas[leader];
        wait_for("the leader has reconciled", async || {
            Ok((leader.metric("quorate_reconcile_passes_total").await? > 0.0).then_some(()))
        })
        .await?;
        let put = one_put(&mut self.client).await?;
        let raw = raw_handover(&mut self.client).await?;

        while self.seen.try_recv().is_ok() {}
        let begun = Instant::now();
        end(leader)?;
        let mut vacant = None;
        let to_first_write = loop {
            let seen = timeout(LIMIT, self.seen.recv())
                .await?
                .context("the raw watch ended")?;
            if seen.key == key && seen.value.is_none() {
                vacant = Some(seen.at - begun);
            }
            if seen.key.ends_with("/status.json")
                && seen.value.is_some_and(|value| names_another(&value, &name))
            {
                break seen.at - begun;
            }
        };
        leader.process()?.exited().await?;
        crowd.leave().await;
        leader.replica.launch()?;
        Ok(Gap {
            to_vacancy: vacant.context("a successor wrote before the election key was gone")?,
            to_first_write,
            put,
            raw,
        })
    }
}

impl Crowd {
    async fn leave(mut self) {
        self.withdraw.cancel();
        while self.standing.join_next().await.is_some() {}
    }
}

async fn watch(mut stream: WatchStream, sender: mpsc::UnboundedSender<Seen>) {
    while let Ok(Some(response)) = stream.message().await {
        let at = Instant::now();
        for event in response.events() {
            let Some(kv) = event.kv() else { continue };
            let seen = Seen {
                at,
                key: String::from_utf8_lossy(kv.key()).into_owned(),
                value: (kv.version() > 0).then(|| kv.value().to_vec()),
            };
            if sender.send(seen).is_err() {
                return;
            }
        }
    }
}

/// The keys and names of the candidates, the leader first.
async fn candidates(client: &mut Client) -> Result<Vec<(String, String)>> {
    let options = GetOptions::new()
        .with_prefix()
        .with_sort(SortTarget::Create, SortOrder::Ascend);
    let response = client
        .get(format!("{PREFIX}/kubernetes/reconciler/leader/"), Some(options))
        .await?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ok(response
        .kvs()
        .iter()
        .map(|kv| (text(kv.key()), text(kv.value())))
        .collect())
}

/// The median of some puts of 100 bytes, one after the other, in milliseconds.
async fn one_put(client: &mut Client) -> Result<f64> {
    let mut times = Samples::default();
    for _ in 0..25 {
        let begun = Instant::now();
        client.put("/bench/put", [b'x'; 100], None).await?;
        times.push_time(begun.elapsed());
    }
    Ok(times.median())
}

/// The median of some handovers without any replica: the lease is revoked, a watch brings the deletion of its key, the
/// candidates and the status are read, the status is watched, a fenced transaction writes it.
async fn raw_handover(client: &mut Client) -> Result<f64> {
    let mut times = Samples::default();
    for _ in 0..5 {
        let lease = client.lease_grant(60, None).await?.id();
        let key = "/bench/leader/1";
        let leased = PutOptions::new().with_lease(lease);
        client.put(key, "n1", Some(leased)).await?;
        client.put("/bench/leader/2", "n2", None).await?;
        let mut watch = client.watch(key, None).await?;
        let begun = Instant::now();
        client.lease_revoke(lease).await?;
        while watch
            .message()
            .await?
            .context("the raw watch ended")?
            .events()
            .is_empty()
        {}
        let range = GetOptions::new().with_prefix();
        client.get("/bench/leader/", Some(range)).await?;
        client.get("/bench/status", None).await?;
        let _watching = client.watch("/bench/status", None).await?;
        let fence = Compare::create_revision("/bench/leader/2", CompareOp::Greater, 0);
        let write = TxnOp::put("/bench/status", [b'x'; 100], None);
        client.txn(Txn::new().when([fence]).and_then([write])).await?;
        times.push_time(begun.elapsed());
    }
    Ok(times.median())
}

fn names_another(status: &[u8], leader: &str) -> bool {
    let status: serde_json::Value = serde_json::from_slice(status).unwrap_or_default();
    status["leader"].as_str().is_some_and(|named| named != leader)
}
