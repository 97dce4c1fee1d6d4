//! watch-nodes over 100,000 nodes, beside a raw read and a raw watch of the same keys.

use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use etcd_client::{Client, GetOptions, KeyValue, Txn, TxnOp, WatchOptions};
use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use prost::Message as _;
use quorate::etcd::{Config, Etcd, Revision};
use quorate::gate::plan::BundleVersions;
use quorate::gate::releases::Releases;
use quorate::gate::watch_nodes::watch_nodes;
use quorate::metrics::Metrics;
use quorate::proto::{CsiNode, Metadata, Node, NodeSpec, NodeStatus};
use quorate::release::Release;
use quorate::store::{Keys, Store};
use quorate::summary::Latest;
use tokio::process::Command;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::measure::{Samples, Table, Unit};
use super::servers::{EtcdServer, LIMIT, PREFIX, raw_client, resident_memory};

const NODES: usize = 100_000;
const LOAD_ROUNDS: usize = 15;
const CHANGES: usize = 300;
const MEMORY_ROUNDS: usize = 3;

/// The release of every node and of the bundle.
const RELEASE: Release = Release::new(1, 0, 0);

/// Keys a page of the raw read: as many as a page of `etcd::Pages` has.
const PAGE: i64 = 10_000;

/// The first argument that makes this program the fresh process whose memory is measured; the endpoint follows.
pub const MEMORY_MODE: &str = "measure-memory-of-watch-nodes";

pub async fn run() -> Result<Table> {
    let etcd = EtcdServer::start().await?;
    let bytes = fill(&etcd).await?;
    let store = connect(&etcd.endpoint()).await?;
    let mut table = Table::new("watch-nodes: 100,000 nodes, every tenth a controller");

    let (mut raw, mut ours) = (Samples::default(), Samples::default());
    for round in 0..LOAD_ROUNDS {
        // In turns, so that neither side always has the caches that the other one warmed.
        for turn in 0..2 {
            match (round + turn) % 2 {
                0 => raw.push_time(read_raw(etcd.raw_client().await?).await?),
                _ => ours.push_time(load(&store).await?),
            }
        }
    }
    table.row("raw paged read", &raw, Unit::Millis, "");
    table.row("load of watch-nodes", &ours, Unit::Millis, "");
    table.row(
        "the same, over the raw read",
        &ours.per(&raw),
        Unit::Times,
        "at most 1.5 ×",
    );

    let (raw, ours) = follow_changes(&etcd, &store).await?;
    table.row("one change → raw watch", &raw, Unit::Millis, "");
    table.row("one change → published by watch-nodes", &ours, Unit::Millis, "");
    table.row(
        "the same, less the raw watch of the same change",
        &ours.minus(&raw),
        Unit::Millis,
        "at most + 1 ms",
    );

    let mut memory = Samples::default();
    for _ in 0..MEMORY_ROUNDS {
        memory.push(memory_in_fresh_process(&etcd.endpoint()).await? / NODES as f64);
    }
    table.single(
        "key and value of a node in etcd",
        bytes / NODES as f64,
        Unit::Bytes,
        "",
    );
    table.row(
        "resident memory of watch-nodes per node",
        &memory,
        Unit::Bytes,
        "",
    );
    table.note(
        "Pages of 10,000 keys at one revision on both sides. The memory is what the process grew by from before the \
         load to after it, with all that the allocator keeps.",
    );
    Ok(table)
}

/// Writes the nodes and returns their size in bytes, keys included.
async fn fill(etcd: &EtcdServer) -> Result<f64> {
    let client = etcd.raw_client().await?;
    let mut bytes = 0;
    let mut writing = FuturesUnordered::new();
    for first in (0..NODES).step_by(128) {
        let nodes = (first..NODES.min(first + 128)).map(node);
        let puts: Vec<TxnOp> = nodes
            .map(|(key, node)| {
                let value = node.encode_to_vec();
                bytes += key.len() + value.len();
                TxnOp::put(key, value, None)
            })
            .collect();
        writing.push(async {
            let mut client = client.clone();
            client.txn(Txn::new().and_then(puts)).await
        });
        if writing.len() == 16 {
            writing.next().await.transpose()?;
        }
    }
    while let Some(written) = writing.next().await {
        written?;
    }
    Ok(bytes as f64)
}

/// A node of a cluster with racks and a storage plugin.
fn node(number: usize) -> (String, Node) {
    let name = format!("node-{number:06}.rack-{:03}.example", number / 200);
    let node = Node {
        metadata: Some(Metadata {
            name: name.clone(),
            uid: format!("{:032x}", number * 0x9e37_79b9),
            labels: [
                ("topology.example/rack", number / 200),
                ("topology.example/zone", number % 3),
            ]
            .map(|(label, value)| (label.to_owned(), value.to_string()))
            .into(),
            creation_time: Some(prost_types::Timestamp {
                seconds: 1_700_000_000,
                nanos: 0,
            }),
            generation: 1,
        }),
        spec: Some(NodeSpec {
            desired_role: 1,
            availability: 1,
            ..NodeSpec::default()
        }),
        status: Some(NodeStatus {
            role: 1,
            release: Some(RELEASE.to_proto()),
            agent_release: None,
            controller: number.is_multiple_of(10),
            csi: vec![CsiNode {
                plugin: "hostpath.csi.k8s.io".to_owned(),
                node_id: format!("csi-{number}"),
                topology: [("zone".to_owned(), (number % 3).to_string())].into(),
            }],
            conditions: Vec::new(),
            keeps_etcd: false,
        }),
    };
    (format!("{PREFIX}/nodes/{name}"), node)
}

async fn connect(endpoint: &str) -> Result<Store> {
    let etcd = Etcd::connect(Config::new(vec![endpoint.to_owned()]), Metrics::new("0.0.0")).await?;
    Ok(Store {
        etcd,
        keys: Keys::new(PREFIX.parse()?),
    })
}

/// Reads all pages at the revision of the first one, and keeps them undecoded.
async fn read_raw(client: Client) -> Result<Duration> {
    let begun = Instant::now();
    let mut kv = client.kv_client().max_decoding_message_size(64 << 20);
    let end = format!("{PREFIX}/nodes0");
    let mut options = GetOptions::new().with_range(end).with_limit(PAGE);
    let mut next = format!("{PREFIX}/nodes/").into_bytes();
    let mut all: Vec<KeyValue> = Vec::new();
    loop {
        let mut response = kv.get(next, Some(options.clone())).await?;
        let revision = response.header().map_or(0, |header| header.revision());
        if all.is_empty() {
            options = options.with_revision(revision);
        }
        all.append(&mut response.take_kvs());
        match all.last() {
            Some(last) if response.more() => next = [last.key(), &[0]].concat(),
            _ => break,
        }
    }
    let took = begun.elapsed();
    ensure!(all.len() == NODES, "the raw read found {} nodes", all.len());
    Ok(took)
}

/// watch-nodes as a replica runs it. Stops when dropped.
struct Watching {
    published: watch::Receiver<Option<Releases>>,
    _task: JoinSet<()>,
}

fn start(store: &Store) -> Watching {
    // All nodes lie between the minimum and the own release, as in a healthy cluster.
    let bundle = BundleVersions {
        version: RELEASE.into(),
        min_reconciler: Release::default(),
        min_apiserver: Release::default(),
    };
    let (sender, published) = watch::channel(None);
    let mut task = JoinSet::new();
    let store = store.clone();
    task.spawn(async move {
        let (summaries, stop) = (Latest::default(), CancellationToken::new());
        watch_nodes(&store, &bundle, sender, &summaries, stop).await;
    });
    Watching {
        published,
        _task: task,
    }
}

impl Watching {
    async fn loaded(&mut self) -> Result<()> {
        timeout(LIMIT, self.published.wait_for(Option::is_some)).await??;
        Ok(())
    }
}

async fn load(store: &Store) -> Result<Duration> {
    let begun = Instant::now();
    let mut watching = start(store);
    watching.loaded().await?;
    Ok(begun.elapsed())
}

/// When the last write that a sum holds was made.
fn written_at(releases: &Releases) -> Revision {
    releases
        .last_write
        .as_ref()
        .map_or(Revision::ABSENT, |last| last.revision)
}

/// Makes some changes one after the other. Returns how long a raw watch took to bring each one, and watch-nodes to publish
/// it. Each watch has its own connection.
async fn follow_changes(etcd: &EtcdServer, store: &Store) -> Result<(Samples, Samples)> {
    let mut watching = start(store);
    watching.loaded().await?;
    let options = WatchOptions::new().with_prefix();
    let raw = etcd.raw_client().await?;
    let mut stream = raw
        .watch_client()
        .watch(format!("{PREFIX}/nodes/"), Some(options))
        .await?;
    let (sender, mut arrivals) = mpsc::unbounded_channel();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        while let Ok(Some(response)) = stream.message().await {
            // The response to the creation of the watch has no event.
            let Some(kv) = response.events().last().and_then(|event| event.kv()) else {
                continue;
            };
            let revision = kv.mod_revision();
            if sender.send((Instant::now(), revision)).is_err() {
                return;
            }
        }
    });

    let mut writer = etcd.raw_client().await?;
    let (mut raw, mut ours) = (Samples::default(), Samples::default());
    for number in 0..CHANGES {
        let (key, mut node) = node(number * 10);
        if let Some(status) = &mut node.status {
            status.release = Some(Release::new(0, u32::try_from(number)?, 0).to_proto());
        }
        // The task that awaits it takes the time, so that neither side waits for the other.
        let mut published = watching.published.clone();
        let mut publication = JoinSet::new();
        let before = published.borrow_and_update().as_ref().map(written_at);
        publication.spawn(async move {
            let changed = published.wait_for(|now| now.as_ref().map(written_at) > before);
            changed
                .await
                .map(|releases| releases.as_ref().map(|releases| written_at(releases).0))
                .ok()
                .flatten()
                .zip(Some(Instant::now()))
        });
        let begun = Instant::now();
        let put = writer.put(key, node.encode_to_vec(), None).await?;
        let revision = put.header().map(|header| header.revision());
        let (arrived, of) = timeout(LIMIT, arrivals.recv())
            .await?
            .context("the raw watch ended")?;
        let publication = timeout(LIMIT, publication.join_next())
            .await?
            .context("no task")??;
        let (published_revision, published_at) = publication.context("watch-nodes ended")?;
        ensure!(
            Some(of) == revision && Some(published_revision) == revision,
            "a watch brought another change"
        );
        raw.push_time(arrived - begun);
        ours.push_time(published_at - begun);
    }
    Ok((raw, ours))
}

/// The bytes by which a process grows when watch-nodes loads.
async fn memory_in_fresh_process(endpoint: &str) -> Result<f64> {
    let output = Command::new(std::env::current_exe()?)
        .args([MEMORY_MODE, endpoint])
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .kill_on_drop(true)
        .output()
        .await?;
    ensure!(output.status.success(), "the fresh process: {}", output.status);
    Ok(String::from_utf8_lossy(&output.stdout).trim().parse()?)
}

/// The fresh process: prints the bytes by which it grew.
pub async fn measure_memory(endpoint: &str) -> Result<()> {
    let store = connect(endpoint).await?;
    // A first request of each kind, so that the memory of the connection itself does not count.
    store.etcd.list(&store.keys.candidates()).await?;
    raw_client(endpoint).await?.put("/bench/put", "x", None).await?;
    let before = resident_memory("self")?;
    let mut watching = start(&store);
    watching.loaded().await?;
    println!("{}", resident_memory("self")? - before);
    Ok(())
}
