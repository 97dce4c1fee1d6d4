//! Volumes at scale: 10,000 of them through their whole life, created, published, unpublished and deleted, through a real
//! plugin in a process of its own. `cargo bench --bench volumes`; with `-- --small` a fiftieth of it, to see that it runs; with
//! `-- --only=PART` one part of it: `latency`, `no-latency`, `commands`, `waiting` or `settled`.
//!
//! Beside the controller stand the same calls made raw, as many at a time as the plugin takes, and raw transactions on the
//! same etcd: the times of one machine say little and the ratios much. The table of each part (Markdown) goes to stdout as soon as
//! it is complete, progress to stderr. A part that fails leaves the others as they are.

use anyhow::{Result, bail, ensure};
use quorate_dev::workspace::programs;

mod at_work;
mod commands;
#[path = "../shared/csi.rs"]
mod csi;
mod latency;
#[path = "../shared/leader.rs"]
mod leader;
mod lives;
#[allow(dead_code, reason = "the tables of the other benchmarks use more of it")]
#[path = "../cluster/measure.rs"]
mod measure;
#[path = "../shared/memory.rs"]
mod memory;
mod no_latency;
#[path = "../shared/processor.rs"]
mod processor;
#[path = "../shared/program.rs"]
mod program;
mod raw;
mod records;
mod settled;
mod site;
mod waiting;

use measure::Table;
use site::Site;

/// Calls at a time: the default of a Plugin.
const CONCURRENCY: u32 = 16;

/// Rounds of each part, and the sizes.
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

/// The parts, the quickest first.
const PARTS: [&str; 5] = ["commands", "waiting", "settled", "no-latency", "latency"];

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match &args[..] {
        [mode, endpoint] if mode == memory::MODE => memory::print_growth(endpoint, settled::index),
        _ => program::run("volumes", &args, async |small| {
            let only = args.iter().find_map(|arg| arg.strip_prefix("--only="));
            measure(if small { SMALL } else { FULL }, only).await
        }),
    }
}

async fn measure(scale: Scale, only: Option<&str>) -> Result<()> {
    if let Some(only) = only {
        ensure!(
            PARTS.contains(&only),
            "there is no part {only}: expected {}",
            PARTS.join(", ")
        );
    }
    // Before anything is measured: cargo may have to build them.
    programs()?;
    let directory = tempfile::Builder::new().prefix("qbench-").tempdir()?;
    let backends = site::backends()?;
    let site = Site {
        directory: directory.path(),
        backends: backends.path(),
    };
    let mut failed = Vec::new();
    for part in PARTS
        .into_iter()
        .filter(|part| only.is_none_or(|only| only == *part))
    {
        match table(part, site, scale).await {
            Ok(table) => println!("{table}"),
            Err(error) => {
                eprintln!("{part}: {error:#}");
                failed.push(part);
            }
        }
    }
    ensure!(failed.is_empty(), "not measured: {}", failed.join(", "));
    Ok(())
}

async fn table(part: &str, site: Site<'_>, scale: Scale) -> Result<Table> {
    match part {
        "commands" => commands::table(site, scale).await,
        "waiting" => waiting::table(site, scale).await,
        "settled" => settled::table(site, scale).await,
        "no-latency" => no_latency::table(site, scale).await,
        "latency" => latency::table(site, scale).await,
        other => bail!("there is no part {other}"),
    }
}
