//! Identity: how long a node waits for its first certificate, what a thousand sessions cost and how they come back, what the judgement
//! of a call costs, and how long a volume takes from its publication to its mount. `cargo bench --bench identity`; with `-- --small` a
//! fraction of it, to see that it runs.
//!
//! Beside each figure stands, from the same run, what it cannot do without: a TLS handshake and raw writes to etcd, signatures, a raw
//! read, a call that is not judged, the plugin's own calls. Replicas, etcd, the plugin and the agent that mounts are processes; the
//! thousand agents are the product's own, in the benchmark's process. The tables (Markdown) go to stdout, progress to stderr.

use std::time::Duration;

use anyhow::{Result, ensure};

mod cluster;
#[path = "../shared/crowd.rs"]
mod crowd;
#[path = "../shared/csi.rs"]
mod csi;
mod joins;
mod judgement;
#[allow(dead_code, reason = "the other benchmarks also elect leaders")]
#[path = "../shared/leader.rs"]
mod leader;
#[allow(dead_code, reason = "the tables of the other benchmarks use more of it")]
#[path = "../cluster/measure.rs"]
mod measure;
#[path = "../shared/processor.rs"]
mod processor;
#[path = "../shared/program.rs"]
mod program;
mod published;
#[allow(dead_code, reason = "the other benchmarks also start a kube-apiserver")]
#[path = "../cluster/servers.rs"]
mod servers;
mod sessions;

/// How much is measured.
#[derive(Clone, Copy)]
struct Scale {
    /// Joins, one after the other.
    joins: usize,
    /// Rounds of `at_once` joins and renewals.
    bulk_rounds: usize,
    at_once: usize,
    judged_rounds: usize,
    /// Calls of each kind in a round.
    judged: usize,
    agents: usize,
    /// How long sessions are observed. Longer than their lease of 30 s, so that they count as old when their replica is lost.
    window: Duration,
    published: usize,
}

const FULL: Scale = Scale {
    joins: 30,
    bulk_rounds: 5,
    at_once: 100,
    judged_rounds: 20,
    judged: 200,
    agents: 1_000,
    window: Duration::from_secs(40),
    published: 20,
};

const SMALL: Scale = Scale {
    joins: 3,
    bulk_rounds: 1,
    at_once: 20,
    judged_rounds: 3,
    judged: 20,
    agents: 50,
    window: Duration::from_secs(15),
    published: 3,
};

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    program::run("identity", &args, async |small| {
        measure(if small { SMALL } else { FULL }).await
    })
}

/// Measures everything, one part after the other. A part that fails keeps no other one from its table.
async fn measure(scale: Scale) -> Result<()> {
    let parts = [
        ("joins", joins::measure(scale).await),
        ("judgement", judgement::measure(scale).await),
        ("published", published::measure(scale).await),
        ("sessions", sessions::measure(scale).await),
    ];
    let mut failed = Vec::new();
    for (part, measured) in parts {
        if let Err(error) = measured {
            eprintln!("{part} failed: {error:?}");
            failed.push(part);
        }
    }
    ensure!(failed.is_empty(), "failed: {}", failed.join(", "));
    Ok(())
}
