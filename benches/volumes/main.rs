//! Volumes at scale: 10,000 of them through their whole life, created, published, unpublished and deleted, through a real
//! plugin in a process of its own. `cargo bench --bench volumes`; with `-- --small` a fiftieth of it, to see that it runs.
//!
//! Beside the controller stand the same calls made raw, as many at a time as the plugin takes, and raw transactions on the
//! same etcd: the times of one machine say little and the ratios much. The table (Markdown) goes to stdout, progress to
//! stderr.

use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use quorate::store::{Follower, Store, Update};
use quorate::volumes::index::{Index, Part};
use quorate_dev::csi_plugin::options::Options as PluginOptions;
use quorate_dev::csi_plugin::process::PluginProcess;
use quorate_dev::etcd::{self, Options};
use quorate_dev::workspace::programs;

mod at_work;
mod commands;
#[path = "../shared/leader.rs"]
mod leader;
#[allow(dead_code, reason = "the tables of the other benchmarks use more of it")]
#[path = "../cluster/measure.rs"]
mod measure;
#[path = "../shared/memory.rs"]
mod memory;
#[path = "../shared/processor.rs"]
mod processor;
mod raw;
mod records;
mod waiting;

use at_work::AtWork;
use measure::{Samples, Table, Unit};
use records::{DRIVER, Records};

/// The time of a call, as of a plugin that asks a storage system over the network.
const LATENCY: Duration = Duration::from_millis(10);

/// Calls at a time: the default of a Plugin.
const CONCURRENCY: u32 = 16;

/// Rounds of each size.
#[derive(Clone, Copy)]
struct Scale {
    rounds: usize,
    volumes: usize,
    /// Volumes whose calls are made one after the other; as many as a benchmark has time for.
    one_by_one: usize,
    by_commands: usize,
    settled: usize,
    waiting: usize,
}

const FULL: Scale = Scale {
    rounds: 3,
    volumes: 10_000,
    one_by_one: 200,
    by_commands: 500,
    settled: 100_000,
    waiting: 10_000,
};

const SMALL: Scale = Scale {
    rounds: 1,
    volumes: 200,
    one_by_one: 20,
    by_commands: 40,
    settled: 2_000,
    waiting: 200,
};

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        match &args[..] {
            [mode, endpoint] if mode == memory::MODE => memory::print_growth(endpoint, index).await,
            _ if !is_chosen(&args) => Ok(()),
            _ => {
                let scale = if args.iter().any(|arg| arg == "--small") {
                    SMALL
                } else {
                    FULL
                };
                tokio::select! {
                    measured = measure(scale) => measured,
                    // Dropping the future ends its processes and removes its files.
                    _ = tokio::signal::ctrl_c() => bail!("interrupted"),
                }
            }
        }
    })
}

/// Whether this benchmark is chosen: cargo passes `--bench` and the given words, one of which the name must contain.
fn is_chosen(args: &[String]) -> bool {
    let mut words = args.iter().filter(|arg| !arg.starts_with('-')).peekable();
    words.peek().is_none() || words.any(|word| "volumes".contains(word.as_str()))
}

async fn measure(scale: Scale) -> Result<()> {
    let directory = tempfile::Builder::new().prefix("qbench-").tempdir()?;
    let mut figures = Figures::default();
    for round in 1..=scale.rounds {
        // A new etcd for each: the history of an earlier round slows it.
        let data = directory.path().join(format!("etcd-{round}"));
        let cluster = etcd::Etcd::start(&data, &Options::default()).await?;
        let endpoint = cluster.endpoints().concat();
        eprintln!(
            "round {round}/{}: {} volumes, latency {LATENCY:?}",
            scale.rounds, scale.volumes
        );
        let slow = start_plugin(directory.path(), &format!("slow-{round}"), LATENCY).await?;
        let raw = raw::calls_beside_requests(&endpoint, &slow, scale.volumes, CONCURRENCY).await?;
        let ours = lives(&endpoint, &slow, scale.volumes, CONCURRENCY).await?;
        let alone = lives(&endpoint, &slow, scale.one_by_one, 1).await?;
        eprintln!(
            "round {round}/{}: {} volumes by commands",
            scale.rounds, scale.by_commands
        );
        let (by_commands, files) = (scale.by_commands, directory.path());
        figures
            .commands
            .push(commands::lives(&endpoint, &slow, files, by_commands, CONCURRENCY).await?);
        figures
            .commands_raw
            .push(raw::calls(&slow, by_commands, CONCURRENCY).await?);
        expect_empty(&slow)?;
        figures.slow_raw.push(raw);
        figures.slow.push(ours);
        figures.one_by_one.push(alone);
        drop(slow);

        eprintln!(
            "round {round}/{}: {} volumes, no latency",
            scale.rounds, scale.volumes
        );
        let quick = start_plugin(directory.path(), &format!("quick-{round}"), Duration::ZERO).await?;
        figures
            .quick_raw
            .push(raw::calls(&quick, scale.volumes, CONCURRENCY).await?);
        figures
            .combined
            .push(raw::calls_and_transactions(&endpoint, &quick, scale.volumes, CONCURRENCY).await?);
        let writes = raw::writes_of_one_life(&endpoint, &quick).await?;
        let ours = lives(&endpoint, &quick, scale.volumes, CONCURRENCY).await?;
        expect_empty(&quick)?;
        figures.quick.push(ours);
        figures.writes.push(writes);
        figures.writes_a_second.push(ours * writes);
        figures
            .transactions
            .push(raw::transactions(&endpoint, scale.volumes).await?);

        eprintln!(
            "round {round}/{}: {} volumes of a plugin that is not there",
            scale.rounds, scale.waiting
        );
        let cost = waiting::for_a_dead_plugin(&endpoint, scale.waiting, CONCURRENCY).await?;
        figures.waiting_processor.push(cost.processor);
        figures.waiting_writes.push(cost.writes);

        eprintln!(
            "round {round}/{}: a leader that finds {} volumes",
            scale.rounds, scale.settled
        );
        let records = Records::connect(&endpoint).await?;
        // Without its node a publication is not settled: the leader ends it.
        records
            .put_surroundings(&quick.endpoint().to_string(), CONCURRENCY)
            .await?;
        let settled_at = quick.endpoint().to_string();
        records.fill_settled(scale.settled, &settled_at).await?;
        figures
            .memory
            .push(memory::in_fresh_process(&endpoint)? / scale.settled as f64);
        figures.take_over.push_time(take_over(&endpoint, &records).await?);
        drop(cluster);
    }
    figures.print(scale);
    Ok(())
}

async fn start_plugin(directory: &std::path::Path, name: &str, latency: Duration) -> Result<PluginProcess> {
    let mut options = PluginOptions::in_directory(&directory.join(name), DRIVER);
    options.latency = latency;
    Ok(PluginProcess::start(&programs()?.quorate_dev, options).await?)
}

/// Checks that nothing is left at the backend.
fn expect_empty(plugin: &PluginProcess) -> Result<()> {
    let left = plugin.backend().ids()?;
    ensure!(left.is_empty(), "{} volumes are left at the backend", left.len());
    Ok(())
}

/// Volumes a second, through their whole lives: all are created and published, then all are unpublished, then deleted.
async fn lives(endpoint: &str, plugin: &PluginProcess, volumes: usize, concurrency: u32) -> Result<f64> {
    let at = plugin.endpoint().to_string();
    let (records, working) = AtWork::on_plugin(endpoint, &at, concurrency).await?;
    let begun = Instant::now();
    records.create_and_publish(volumes).await?;
    records.wait_until_published(volumes).await?;
    eprintln!("  created and published after {:?}", begun.elapsed());
    records.unpublish(volumes).await?;
    records.wait_until_gone("publications/").await?;
    eprintln!("  unpublished after {:?}", begun.elapsed());
    records.delete(volumes).await?;
    records.wait_until_gone("volumes/").await?;
    let taken = begun.elapsed();
    eprintln!("  deleted after {taken:?}");
    working.end().await;
    records.clear().await?;
    Ok(volumes as f64 / taken.as_secs_f64())
}

/// From winning the election to the first step taken: the end of a volume that needs no plugin.
async fn take_over(endpoint: &str, records: &Records) -> Result<Duration> {
    let leader = leader::elect(endpoint).await?;
    records.put_one_to_drop().await?;
    let begun = Instant::now();
    let working = AtWork::begin(leader);
    records.wait_until_dropped().await?;
    let taken = begun.elapsed();
    working.end().await;
    Ok(taken)
}

/// The index, as the controller keeps it.
async fn index(store: &Store) -> Result<Index> {
    let mut index = Index::new(store.keys.clone());
    for part in Part::ALL {
        let mut follower = Follower::new(&store.etcd, part.range(&store.keys));
        loop {
            let update = follower.next().await;
            let listed = matches!(update, Update::Listed(_));
            index.take_in(part, update);
            if listed {
                break;
            }
        }
    }
    ensure!(index.is_complete(), "something was not listed");
    Ok(index)
}

/// The measurements, round by round.
#[derive(Default)]
struct Figures {
    slow: Samples,
    slow_raw: Samples,
    one_by_one: Samples,
    commands: Samples,
    commands_raw: Samples,
    quick: Samples,
    quick_raw: Samples,
    combined: Samples,
    writes: Samples,
    writes_a_second: Samples,
    transactions: Samples,
    memory: Samples,
    take_over: Samples,
    waiting_processor: Samples,
    waiting_writes: Samples,
}

impl Figures {
    fn print(&self, scale: Scale) {
        let mut table = Table::new("Volumes: 10,000 of them, created, published, unpublished and deleted");
        let mut row = |what: &str, samples: &Samples, unit, aim| table.row(what, samples, unit, aim);
        let (count, times) = (Unit::Count, Unit::Times);
        row("plugin latency 10 ms: volumes a second", &self.slow, count, "");
        row(
            "the same calls raw, 16 at a time, beside the operators' writes",
            &self.slow_raw,
            count,
            "",
        );
        row(
            "the former over the latter",
            &self.slow.per(&self.slow_raw),
            times,
            "at least 0.95 ×",
        );
        row(
            "one call at a time: volumes a second",
            &self.one_by_one,
            count,
            "",
        );
        row(
            "16 at a time over one",
            &self.slow.per(&self.one_by_one),
            times,
            "",
        );
        row("by commands: volumes a second", &self.commands, count, "");
        row("the same calls raw", &self.commands_raw, count, "");
        row(
            "time of the former over that of the latter",
            &self.commands_raw.per(&self.commands),
            times,
            "at most 1.5 ×",
        );
        row("no latency: volumes a second", &self.quick, count, "");
        row("the same calls raw, 16 at a time", &self.quick_raw, count, "");
        row(
            "the same, and 7 raw transactions of one record a volume",
            &self.combined,
            count,
            "",
        );
        row(
            "volumes a second over the combined raw load",
            &self.quick.per(&self.combined),
            times,
            "at least 1.4 ×",
        );
        row("records written a volume", &self.writes, count, "");
        row("records written a second", &self.writes_a_second, count, "");
        row(
            "raw transactions of one record a second",
            &self.transactions,
            count,
            "",
        );
        let ratio = self.writes_a_second.per(&self.transactions);
        row("the former over the latter", &ratio, times, "over 0.25 ×");
        row(
            "resident memory a volume with a publication",
            &self.memory,
            Unit::Bytes,
            "",
        );
        row(
            "leader elected → first step taken",
            &self.take_over,
            Unit::Millis,
            "under 750 ms",
        );
        row(
            "waiting for a plugin that is not there: processor seconds a second",
            &self.waiting_processor,
            Unit::Seconds,
            "",
        );
        row(
            "the same: writes a second",
            &self.waiting_writes,
            count,
            "under 10",
        );
        table.note(format!(
            "{} volumes; one at a time {}; by commands {}; waiting {}; memory and taking over with {} settled ones. Each round \
             has a plugin of its own, whose process shares the machine with etcd and the controller.",
            scale.volumes, scale.one_by_one, scale.by_commands, scale.waiting, scale.settled
        ));
        println!("{table}");
    }
}
