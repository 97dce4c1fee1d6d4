//! A plugin that asks a storage system over the network: each call takes a while.

use std::time::Duration;

use anyhow::Result;

use super::lives::lives;
use super::measure::{Samples, Table, Unit};
use super::raw;
use super::site::{Site, expect_empty, within};
use super::{CONCURRENCY, Scale};

/// The time of a call.
pub const LATENCY: Duration = Duration::from_millis(10);

pub async fn table(site: Site<'_>, scale: Scale) -> Result<Table> {
    let (mut raw_rate, mut ours, mut one_by_one) = <(Samples, Samples, Samples)>::default();
    for round in 1..=scale.rounds {
        eprintln!(
            "latency, round {round}/{}: {} volumes, {LATENCY:?} a call",
            scale.rounds, scale.volumes
        );
        let (etcd, endpoint) = site.etcd(&format!("latency-{round}")).await?;
        let plugin = site.plugin(&format!("slow-{round}"), LATENCY).await?;
        let raw = raw::calls_beside_requests(&endpoint, &plugin, scale.volumes, CONCURRENCY);
        raw_rate.push(within("the raw calls end", raw).await?);
        eprintln!("  raw: {:.1} a second", raw_rate.median());
        ours.push(lives(&endpoint, &plugin, scale.volumes, CONCURRENCY).await?);
        one_by_one.push(lives(&endpoint, &plugin, scale.one_by_one, 1).await?);
        expect_empty(&plugin)?;
        drop((plugin, etcd));
    }
    let mut table = Table::new("Volumes whose calls take 10 ms each");
    let (count, times) = (Unit::Count, Unit::Times);
    table.row("volumes a second", &ours, count, "");
    table.row(
        "the same calls raw, 16 at a time, beside the operators' writes",
        &raw_rate,
        count,
        "",
    );
    let ratio = ours.per(&raw_rate);
    table.row("the former over the latter", &ratio, times, "at least 0.95 ×");
    table.row("one call at a time: volumes a second", &one_by_one, count, "");
    table.row("16 at a time over one", &ours.per(&one_by_one), times, "");
    table.note(format!(
        "{} volumes, one at a time {}. Each is created, published, unpublished and deleted. Each round has an etcd and a plugin of its \
         own, which share the machine with the controller.",
        scale.volumes, scale.one_by_one
    ));
    Ok(table)
}
