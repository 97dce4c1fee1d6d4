//! A plugin whose calls take no time: what the machine can do beside the calls themselves.

use std::time::Duration;

use anyhow::Result;

use super::lives::lives;
use super::measure::{Samples, Table, Unit};
use super::raw;
use super::site::{Site, expect_empty, within};
use super::{CONCURRENCY, Scale};

#[derive(Default)]
struct Figures {
    ours: Samples,
    calls: Samples,
    combined: Samples,
    writes: Samples,
    writes_a_second: Samples,
    transactions: Samples,
}

pub async fn table(site: Site<'_>, scale: Scale) -> Result<Table> {
    let mut figures = Figures::default();
    for round in 1..=scale.rounds {
        eprintln!(
            "no latency, round {round}/{}: {} volumes",
            scale.rounds, scale.volumes
        );
        let (etcd, endpoint) = site.etcd(&format!("no-latency-{round}")).await?;
        let plugin = site.plugin(&format!("quick-{round}"), Duration::ZERO).await?;
        let calls = raw::calls(&plugin, scale.volumes, CONCURRENCY);
        figures.calls.push(within("the raw calls end", calls).await?);
        let both = raw::calls_and_transactions(&endpoint, &plugin, scale.volumes, CONCURRENCY);
        figures
            .combined
            .push(within("the combined raw load ends", both).await?);
        let transactions = raw::transactions(&endpoint, scale.volumes);
        figures
            .transactions
            .push(within("the raw transactions end", transactions).await?);
        let writes = raw::writes_of_one_life(&endpoint, &plugin).await?;
        let ours = lives(&endpoint, &plugin, scale.volumes, CONCURRENCY).await?;
        figures.ours.push(ours);
        figures.writes.push(writes);
        figures.writes_a_second.push(ours * writes);
        expect_empty(&plugin)?;
        drop((plugin, etcd));
    }
    Ok(figures.table(scale))
}

impl Figures {
    fn table(&self, scale: Scale) -> Table {
        let mut table = Table::new("Volumes whose calls take no time");
        let (count, times) = (Unit::Count, Unit::Times);
        table.row("volumes a second", &self.ours, count, "");
        table.row("the same calls raw, 16 at a time", &self.calls, count, "");
        let what = format!(
            "the same, and {} raw transactions of one record a volume",
            raw::RECORDS
        );
        table.row(&what, &self.combined, count, "");
        table.row(
            "volumes a second over the combined raw load",
            &self.ours.per(&self.combined),
            times,
            "at least 1.4 ×",
        );
        table.row("records written a volume", &self.writes, count, "");
        table.row("records written a second", &self.writes_a_second, count, "");
        table.row(
            "raw transactions of one record a second",
            &self.transactions,
            count,
            "",
        );
        let ratio = self.writes_a_second.per(&self.transactions);
        table.row("the former over the latter", &ratio, times, "over 0.25 ×");
        table.note(format!("{} volumes, as above.", scale.volumes));
        table
    }
}
