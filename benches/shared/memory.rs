//! How much memory something takes: a fresh process takes it in and says by how much it grew.

use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use quorate::store::Store;

use crate::leader::store;

/// First argument of the benchmark's program as the fresh process; the endpoint follows.
pub const MODE: &str = "measure-memory-of-the-index";

/// The limit of the fresh process; only a fault exceeds it.
const LIMIT: Duration = Duration::from_secs(300);

/// By how many bytes a process grows when it takes everything in.
pub fn in_fresh_process(endpoint: &str) -> Result<f64> {
    let output = Command::new(std::env::current_exe()?)
        .args([MODE, endpoint])
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()?;
    ensure!(output.status.success(), "the fresh process: {}", output.status);
    Ok(String::from_utf8_lossy(&output.stdout).trim().parse()?)
}

/// What the fresh process does: prints the bytes by which it grew, with all that its allocator keeps.
pub fn print_growth<Index>(endpoint: &str, take_in: impl AsyncFnOnce(&Store) -> Result<Index>) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let measured = async {
        let store = store(endpoint).await?;
        // A first request, so that what the connection itself needs is there before.
        store.etcd.list(&store.keys.candidates()).await?;
        let before = resident()?;
        let index = take_in(&store).await?;
        println!("{}", resident()? - before);
        drop(index);
        anyhow::Ok(())
    };
    runtime.block_on(async { tokio::time::timeout(LIMIT, measured).await? })
}

/// In bytes, counted page by page.
fn resident() -> Result<f64> {
    let text = std::fs::read_to_string("/proc/self/smaps_rollup")?;
    let line = text.lines().find_map(|line| line.strip_prefix("Rss:"));
    let kib = line
        .and_then(|line| line.trim().strip_suffix(" kB"))
        .context("no Rss in smaps_rollup")?;
    Ok(kib.parse::<f64>()? * 1024.0)
}
