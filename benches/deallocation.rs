//! Deallocation at scale: 100,000 tasks of 10,000 services on 1,000 networks, all marked.
//! `cargo bench --bench deallocation`.
//!
//! Deletions are measured beside raw transactions of the same shape (the same compares, the same deletes, as many under
//! way) on the same etcd, because the times of one machine say little and the ratios much. The table (Markdown) goes to
//! stdout, progress to stderr.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use etcd_client::{Client, Compare, CompareOp, DeleteOptions, GetOptions, Txn, TxnOp};
use futures::StreamExt as _;
use futures::stream;
use prost::Message as _;
use prost_types::Timestamp;
use quorate::deallocator::controller::Deallocator;
use quorate::deallocator::index::Index;
use quorate::proto::{
    Metadata, Network, NetworkStatus, Service, ServiceSpec, ServiceStatus, Task, TaskSpec, TaskStatus,
};
use quorate::store::{Follower, Store};
use quorate::summary::Latest;
use quorate::term::Notices;
use quorate_dev::etcd::{self, Options};
use tokio::task::JoinSet;

#[path = "shared/leader.rs"]
mod leader;
#[path = "shared/memory.rs"]
mod memory;
#[path = "shared/program.rs"]
mod program;

use quorate_dev::leader::Leader;

const NETWORKS: usize = 1_000;
const SERVICES: usize = 10_000;
const TASKS_EACH: usize = 10;
const OBJECTS: usize = NETWORKS + SERVICES;
const ROUNDS: usize = 3;

/// Transactions under way at once, as the deallocator has them.
const PARALLEL: usize = 8;

/// Services a raw transaction: as many as its 128 compares allow, as the deallocator's.
const BATCH: usize = 63;

/// For anything that is waited for here; only a fault exceeds it.
const LIMIT: Duration = Duration::from_secs(120);

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match &args[..] {
        [mode, endpoint] if mode == memory::MODE => memory::print_growth(endpoint, index),
        _ => program::run("deallocation", &args, async |_| measure().await),
    }
}

async fn measure() -> Result<()> {
    let directory = tempfile::Builder::new().prefix("quorate-bench-").tempdir()?;
    let server = etcd::Etcd::start(directory.path(), &Options::default()).await?;
    let endpoint = server.endpoints().concat();
    let mut figures = Figures::default();
    for round in 1..=ROUNDS {
        eprintln!("round {round}/{ROUNDS}: memory and taking over");
        let mut client = Client::connect([&endpoint], None).await?;
        fill(&client, TASKS_EACH).await?;
        let grown = memory::in_fresh_process(&endpoint)?;
        figures
            .memory
            .push(grown / (OBJECTS + SERVICES * TASKS_EACH) as f64);
        let leader = leader::elect(&endpoint).await?;
        // One service is free, so that taking over ends with something that can be seen.
        clear(&mut client, "tasks/s00000/").await?;
        let begun = Instant::now();
        let deallocating = deallocate(&leader);
        wait_until(&client, "services/s00000", 0).await?;
        figures.take_over.push(begun.elapsed().as_secs_f64() * 1e3);

        eprintln!("round {round}/{ROUNDS}: tasks finish one transaction after the other");
        let begun = Instant::now();
        finish_tasks(&client).await?;
        let last_task = Instant::now();
        wait_until_all_gone(&client).await?;
        figures
            .after_last_task
            .push(last_task.elapsed().as_secs_f64() * 1e3);
        figures.whole.push(begun.elapsed().as_secs_f64());

        eprintln!("round {round}/{ROUNDS}: everything is free at once, beside raw transactions");
        // Tasks that hold everything until they go in one revision.
        fill(&client, 1).await?;
        let begun = Instant::now();
        clear(&mut client, "tasks/").await?;
        wait_until_all_gone(&client).await?;
        let ours = OBJECTS as f64 / begun.elapsed().as_secs_f64();
        drop(deallocating);
        leader.resign().await;
        fill(&client, 0).await?;
        let begun = Instant::now();
        delete_raw(&client).await?;
        let raw = OBJECTS as f64 / begun.elapsed().as_secs_f64();
        wait_until_all_gone(&client).await?;
        figures.ours.push(ours);
        figures.raw.push(raw);
        figures.ratio.push(100.0 * ours / raw);
    }
    figures.print();
    drop(server);
    Ok(())
}

/// What was measured, round by round.
#[derive(Default)]
struct Figures {
    memory: Vec<f64>,
    take_over: Vec<f64>,
    after_last_task: Vec<f64>,
    whole: Vec<f64>,
    ours: Vec<f64>,
    raw: Vec<f64>,
    ratio: Vec<f64>,
}

impl Figures {
    fn print(&self) {
        println!("### Deallocation: 100,000 tasks, 10,000 services, 1,000 networks\n");
        println!("| measured | median | least – greatest | aim |\n| --- | --- | --- | --- |");
        for (what, samples, unit, aim) in [
            (
                "leader elected → first of them deleted (taking over)",
                &self.take_over,
                "ms",
                "",
            ),
            (
                "tasks finish as fast as etcd takes it, all of them and what follows",
                &self.whole,
                "s",
                "",
            ),
            (
                "the same: last task gone → last object gone",
                &self.after_last_task,
                "ms",
                "",
            ),
            ("all free at once: deletions a second", &self.ours, "", ""),
            (
                "raw transactions of the same shape: deletions a second",
                &self.raw,
                "",
                "",
            ),
            ("the former over the latter", &self.ratio, "%", "over 50 %"),
            ("resident memory an object", &self.memory, "B", ""),
        ] {
            let mut sorted = samples.clone();
            sorted.sort_by(f64::total_cmp);
            let show = |value: Option<&f64>| value.map_or_else(String::new, |value| format!("{value:.1}"));
            let (least, middle, greatest) = (sorted.first(), sorted.get(sorted.len() / 2), sorted.last());
            println!(
                "| {what} | {} {unit} | {} – {} | {aim} |",
                show(middle),
                show(least),
                show(greatest)
            );
        }
    }
}

fn metadata(name: &str) -> Option<Metadata> {
    Some(Metadata {
        name: name.to_owned(),
        uid: "0b9c6c4e-59a5-4f0e-9f4e-8f2d3b6f7a10".to_owned(),
        generation: 1,
        creation_time: MARK,
        ..Metadata::default()
    })
}

const MARK: Option<Timestamp> = Some(Timestamp {
    seconds: 1_700_000_000,
    nanos: 0,
});

/// Writes everything, marked: each service has two networks and this many tasks.
async fn fill(client: &Client, tasks_each: usize) -> Result<()> {
    let networks = (0..NETWORKS).map(|number| {
        let name = format!("n{number:04}");
        let network = Network {
            metadata: metadata(&name),
            spec: None,
            status: Some(NetworkStatus {
                delete_requested: MARK,
            }),
        };
        (format!("/quorate/networks/{name}"), network.encode_to_vec())
    });
    let services = (0..SERVICES).map(|number| {
        let name = format!("s{number:05}");
        let network = |which: usize| format!("n{:04}", (number * 7 + which * 13) % NETWORKS);
        let service = Service {
            metadata: metadata(&name),
            spec: Some(ServiceSpec {
                networks: vec![network(0), network(1)],
                task_networks: Vec::new(),
            }),
            status: Some(ServiceStatus {
                delete_requested: MARK,
            }),
        };
        (format!("/quorate/services/{name}"), service.encode_to_vec())
    });
    let tasks = (0..SERVICES).flat_map(|service| (0..tasks_each).map(move |task| (service, task)));
    let tasks = tasks.map(|(service, task)| {
        let (service, name) = (format!("s{service:05}"), format!("t{task}"));
        let object = Task {
            metadata: metadata(&name),
            spec: Some(TaskSpec {
                service: service.clone(),
                node: String::new(),
            }),
            status: Some(TaskStatus { state: 8 }),
        };
        (format!("/quorate/tasks/{service}/{name}"), object.encode_to_vec())
    });
    // Tasks first: nothing is free on the way, also where a leader watches.
    let all = tasks.chain(networks).chain(services);
    let puts: Vec<TxnOp> = all.map(|(key, value)| TxnOp::put(key, value, None)).collect();
    commit_all(client, puts.chunks(128).map(|puts| Txn::new().and_then(puts))).await
}

/// Deletes tasks as the program that runs them does: service by service, as fast as etcd takes it.
async fn finish_tasks(client: &Client) -> Result<()> {
    let keys = (0..SERVICES)
        .flat_map(|service| (0..TASKS_EACH).map(move |task| format!("/quorate/tasks/s{service:05}/t{task}")));
    let deletes: Vec<TxnOp> = keys.map(|key| TxnOp::delete(key, None)).collect();
    commit_all(
        client,
        deletes.chunks(128).map(|deletes| Txn::new().and_then(deletes)),
    )
    .await
}

/// Services and networks by transactions of the deallocator's shape, from what was read before the clock started.
async fn delete_raw(client: &Client) -> Result<()> {
    let mut kv = client.kv_client();
    let options = GetOptions::new()
        .with_range("/quorate/services0")
        .with_keys_only();
    let services = kv.get("/quorate/services/", Some(options)).await?;
    let options = GetOptions::new()
        .with_range("/quorate/networks0")
        .with_keys_only();
    let networks = kv.get("/quorate/networks/", Some(options)).await?;
    let unchanged =
        |kv: &etcd_client::KeyValue| Compare::mod_revision(kv.key(), CompareOp::Equal, kv.mod_revision());
    let fence = || Compare::create_revision("/quorate/fence", CompareOp::Equal, 0);
    let mut txns = Vec::new();
    for batch in services.kvs().chunks(BATCH) {
        let mut compares = vec![fence()];
        for kv in batch {
            let tasks = String::from_utf8_lossy(kv.key()).replace("/services/", "/tasks/");
            let (start, end) = (format!("{tasks}/"), format!("{tasks}0"));
            compares.push(unchanged(kv));
            compares.push(Compare::create_revision(start, CompareOp::Equal, 0).with_range(end));
        }
        let deletes: Vec<TxnOp> = batch.iter().map(|kv| TxnOp::delete(kv.key(), None)).collect();
        txns.push(Txn::new().when(compares).and_then(deletes));
    }
    for batch in networks.kvs().chunks(127) {
        let mut compares = vec![fence()];
        compares.extend(batch.iter().map(unchanged));
        let deletes: Vec<TxnOp> = batch.iter().map(|kv| TxnOp::delete(kv.key(), None)).collect();
        txns.push(Txn::new().when(compares).and_then(deletes));
    }
    commit_all(client, txns).await
}

async fn commit_all(client: &Client, txns: impl IntoIterator<Item = Txn>) -> Result<()> {
    let commits = txns.into_iter().map(|txn| {
        let mut kv = client.kv_client();
        async move { kv.txn(txn).await }
    });
    let mut commits = stream::iter(commits).buffer_unordered(PARALLEL);
    while let Some(committed) = commits.next().await {
        ensure!(committed?.succeeded(), "a transaction was refused");
    }
    Ok(())
}

async fn clear(client: &mut Client, below: &str) -> Result<()> {
    let options = DeleteOptions::new().with_prefix();
    client.delete(format!("/quorate/{below}"), Some(options)).await?;
    Ok(())
}

async fn wait_until_all_gone(client: &Client) -> Result<()> {
    wait_until(client, "services/", 0).await?;
    wait_until(client, "networks/", 0).await
}

async fn wait_until(client: &Client, below: &str, count: i64) -> Result<()> {
    let begun = Instant::now();
    let mut kv = client.kv_client();
    loop {
        // One key is read, not all of them counted: etcd counts by walking.
        let options = GetOptions::new().with_prefix().with_keys_only().with_limit(1);
        let response = kv.get(format!("/quorate/{below}"), Some(options)).await?;
        let seen = i64::try_from(response.kvs().len())?;
        if seen == count {
            return Ok(());
        }
        ensure!(
            begun.elapsed() < LIMIT,
            "{below} is not at {count} after {LIMIT:?}"
        );
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Until dropped.
fn deallocate(leader: &Leader) -> JoinSet<()> {
    let deallocator = Deallocator {
        store: leader.store.clone(),
        fence: leader.fence().clone(),
        notices: Notices::default(),
        summaries: Latest::default(),
    };
    let mut tasks = JoinSet::new();
    tasks.spawn(deallocator.run());
    tasks
}

/// All that the deallocator keeps.
async fn index(store: &Store) -> Result<Index> {
    let mut index = Index::new(store.keys.clone());
    let mut follower = Follower::new(&store.etcd, store.keys.deallocator_range());
    while !index.synced().is_complete() {
        index.take_in(follower.next().await);
    }
    Ok(index)
}
