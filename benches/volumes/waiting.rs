//! Volumes that wait for a plugin that is not there.

use std::time::{Duration, Instant};

use anyhow::Result;

use super::at_work::AtWork;
use super::processor::processor_time;
use super::records::Records;
use super::{leader, raw};

/// The time until the leader has come to rest: every volume was planned, and the plugin's status is written.
const SETTLE: Duration = Duration::from_secs(3);

const WINDOW: Duration = Duration::from_secs(10);

/// What waiting costs in a second.
pub struct Cost {
    /// Processor seconds of this process.
    pub processor: f64,
    /// Transactions that wrote something.
    pub writes: f64,
}

/// The cost of so many volumes that wait for a plugin at whose endpoint nothing listens.
pub async fn for_a_dead_plugin(endpoint: &str, volumes: usize, concurrency: u32) -> Result<Cost> {
    let records = Records::connect(endpoint).await?;
    records
        .put_surroundings("unix:///nowhere/csi.sock", concurrency)
        .await?;
    records.create_and_publish(volumes).await?;
    let working = AtWork::begin(leader::elect(endpoint).await?);
    tokio::time::sleep(SETTLE).await;
    let (mut kv, own) = (records.kv(), i32::try_from(std::process::id())?);
    let (before, used) = (raw::revision(&mut kv).await?, processor_time(own)?);
    let begun = Instant::now();
    tokio::time::sleep(WINDOW).await;
    let seconds = begun.elapsed().as_secs_f64();
    let cost = Cost {
        processor: (processor_time(own)? - used).as_secs_f64() / seconds,
        writes: (raw::revision(&mut kv).await? - before) as f64 / seconds,
    };
    working.end().await;
    records.clear().await?;
    Ok(cost)
}
