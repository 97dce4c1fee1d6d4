//! Volumes that wait for a plugin that is not there.

use std::time::{Duration, Instant};

use anyhow::Result;

use super::at_work::AtWork;
use super::measure::{Samples, Table, Unit};
use super::processor::processor_time;
use super::records::Records;
use super::site::{Site, within};
use super::{CONCURRENCY, Scale, leader, raw};

/// How long is looked at what waiting costs.
const WINDOW: Duration = Duration::from_secs(10);

pub async fn table(site: Site<'_>, scale: Scale) -> Result<Table> {
    let (mut processor, mut writes) = <(Samples, Samples)>::default();
    for round in 1..=scale.rounds {
        eprintln!(
            "waiting, round {round}/{}: {} volumes of a plugin that is not there",
            scale.rounds, scale.waiting
        );
        let (etcd, endpoint) = site.etcd(&format!("waiting-{round}")).await?;
        let cost = for_a_dead_plugin(&endpoint, scale.waiting).await?;
        processor.push(cost.processor);
        writes.push(cost.writes);
        drop(etcd);
    }
    let mut table = Table::new("Volumes that wait for a plugin that is not there");
    table.row("processor seconds a second", &processor, Unit::Seconds, "");
    table.row("writes a second", &writes, Unit::Count, "under 10");
    table.note(format!(
        "{} volumes, for {WINDOW:?} after the leader has all of them wait. The processor time is that of the controller's process.",
        scale.waiting
    ));
    Ok(table)
}

/// What waiting costs in a second.
struct Cost {
    /// Processor seconds of this process.
    processor: f64,
    /// Transactions that wrote something.
    writes: f64,
}

/// The cost of so many volumes that wait for a plugin at whose endpoint nothing listens.
async fn for_a_dead_plugin(endpoint: &str, volumes: usize) -> Result<Cost> {
    let records = Records::connect(endpoint).await?;
    let writing = async {
        records
            .put_surroundings("unix:///nowhere/csi.sock", CONCURRENCY)
            .await?;
        records.create_and_publish(volumes).await
    };
    within("the volumes are written", writing).await?;
    let leader = within("a leader is elected", leader::elect(endpoint)).await?;
    let mut working = AtWork::begin(leader);
    let until_all_wait = async {
        while working.waiting().unwrap_or(0.0) < volumes as f64 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        anyhow::Ok(())
    };
    within(format_args!("{volumes} volumes wait"), until_all_wait).await?;
    let (mut kv, own) = (records.kv(), i32::try_from(std::process::id())?);
    let (before, used) = (raw::revision(&mut kv).await?, processor_time(own)?);
    let begun = Instant::now();
    let window = async {
        tokio::time::sleep(WINDOW).await;
        anyhow::Ok(())
    };
    working.during("the window is over", window).await?;
    let seconds = begun.elapsed().as_secs_f64();
    let cost = Cost {
        processor: (processor_time(own)? - used).as_secs_f64() / seconds,
        writes: (raw::revision(&mut kv).await? - before) as f64 / seconds,
    };
    working.end().await?;
    records.clear().await?;
    Ok(cost)
}
