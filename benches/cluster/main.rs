//! Whole-process benchmarks on real servers: `make bench`, or `make bench ARGS=failover` for those whose name
//! contains that word.
//!
//! Each measurement stands beside a reference in the same run (one etcd put, a raw read, `kubectl`): the times of one
//! machine say little, the ratios much. Progress goes to stderr, the tables (Markdown, as in
//! BENCHMARKS.md) to stdout. Every server and replica is a child of this process and ends with it.

mod bundle;
mod endpoints;
mod failover;
mod idle;
mod machine;
mod measure;
mod network;
mod objects;
#[path = "../shared/processor.rs"]
mod processor;
mod servers;
mod sides;
mod watch_nodes;

use std::time::Instant;

use anyhow::Result;
use futures::FutureExt;
use futures::future::LocalBoxFuture;

use measure::Table;

/// The name of a benchmark, and the function that runs it.
type Benchmark = (&'static str, fn() -> LocalBoxFuture<'static, Result<Table>>);

const BENCHMARKS: &[Benchmark] = &[
    ("failover", || failover::run().boxed_local()),
    ("endpoints", || endpoints::run().boxed_local()),
    ("watch-nodes", || watch_nodes::run().boxed_local()),
    ("idle", || idle::run().boxed_local()),
    ("bundle-first", || bundle::first().boxed_local()),
    ("bundle-kept", || bundle::kept().boxed_local()),
];

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    // As many threads as `quorate run` has.
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    if let [mode, endpoint] = &args[..]
        && mode == watch_nodes::MEMORY_MODE
    {
        return runtime.block_on(watch_nodes::measure_memory(endpoint));
    }
    // Cargo passes `--bench`. The other arguments are words; a name must contain one of them.
    let words: Vec<&String> = args.iter().filter(|arg| !arg.starts_with('-')).collect();
    let chosen = |name: &str| words.is_empty() || words.iter().any(|word| name.contains(word.as_str()));
    runtime.block_on(async {
        let mut machine_shown = false;
        for (name, benchmark) in BENCHMARKS.iter().filter(|(name, _)| chosen(name)) {
            if !std::mem::replace(&mut machine_shown, true) {
                println!("{}", machine::describe());
            }
            eprintln!("==> {name}");
            let started = Instant::now();
            let table = tokio::select! {
                table = benchmark() => table?,
                // Dropping the benchmark ends its processes and removes its files.
                _ = tokio::signal::ctrl_c() => anyhow::bail!("interrupted"),
            };
            eprintln!("==> {name}: {} s", started.elapsed().as_secs());
            println!("{table}");
        }
        Ok(())
    })
}
