//! Managers that agents keep: how long a node takes from its promotion to its vote, and from its demotion to a worker whose etcd has
//! stopped; and how a cluster of three fares while its authorities are rotated. `cargo bench --bench managers`; with `-- --small` a fraction
//! of it, to see that it runs; with `-- --only=PART` one part of it: `life`, `rotation`.
//!
//! Beside each figure of `life` stands, from the same round on the same cluster, the same by hand with the same TLS: member add, certificates that
//! are on disk already, the start of etcd, member promote tried every 100 ms; and member remove, and a stop of etcd. etcd, the replica and
//! the agent are processes, with the agent's usual intervals. etcd's own check (`--strict-reconfig-check`) is off, as in `roles`: its wait of
//! 5 s would hide everything else. The tables (Markdown) go to stdout, progress to stderr.

use std::time::Duration;

use anyhow::{Result, bail, ensure};

mod cluster;
mod life;
#[allow(dead_code, reason = "the tables of the other benchmarks use more of it")]
#[path = "../cluster/measure.rs"]
mod measure;
#[path = "../shared/program.rs"]
mod program;
mod rotation;
#[path = "../roles/seen.rs"]
mod seen;

use measure::Table;
use quorate_dev::workspace::programs;

/// How much is measured.
#[derive(Clone, Copy)]
struct Scale {
    rounds: usize,
    rotations: usize,
}

const FULL: Scale = Scale {
    rounds: 10,
    rotations: 5,
};

const SMALL: Scale = Scale {
    rounds: 2,
    rotations: 1,
};

/// The limit of every wait here; only a fault exceeds it.
const LIMIT: Duration = Duration::from_secs(120);

/// The parts, each with a table of its own.
const PARTS: [&str; 2] = ["life", "rotation"];

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    program::run("managers", &args, async |small| {
        let only = args.iter().find_map(|arg| arg.strip_prefix("--only="));
        measure_parts(if small { SMALL } else { FULL }, only).await
    })
}

async fn measure_parts(scale: Scale, only: Option<&str>) -> Result<()> {
    // Before anything is measured: cargo may have to build them.
    programs()?;
    let chosen = PARTS
        .into_iter()
        .filter(|part| only.is_none_or(|only| only == *part));
    let mut measured = 0;
    for part in chosen {
        println!("{}", table(part, scale).await?);
        measured += 1;
    }
    ensure!(
        measured > 0,
        "there is no such part: expected {}",
        PARTS.join(", ")
    );
    Ok(())
}

async fn table(part: &str, scale: Scale) -> Result<Table> {
    match part {
        "life" => life::table(scale.rounds).await,
        "rotation" => rotation::table(scale.rotations).await,
        other => bail!("there is no part {other}"),
    }
}
