//! A new leader that finds settled volumes, and the memory that they take.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use quorate::store::{Follower, Store, Update};
use quorate::volumes::index::{Index, Part};

use super::at_work::AtWork;
use super::measure::{Samples, Table, Unit};
use super::records::Records;
use super::site::{Site, within};
use super::{CONCURRENCY, Scale, leader, memory};

pub async fn table(site: Site<'_>, scale: Scale) -> Result<Table> {
    let (mut bytes, mut taken) = <(Samples, Samples)>::default();
    for round in 1..=scale.rounds {
        eprintln!(
            "settled, round {round}/{}: a leader that finds {} volumes",
            scale.rounds, scale.settled
        );
        let (etcd, endpoint) = site.etcd(&format!("settled-{round}")).await?;
        let plugin = site.plugin(&format!("idle-{round}"), Duration::ZERO).await?;
        let at = plugin.endpoint().to_string();
        let records = Records::connect(&endpoint).await?;
        let writing = async {
            // Without its node a publication is not settled: the leader ends it.
            records.put_surroundings(&at, CONCURRENCY).await?;
            records.fill_settled(scale.settled, &at).await
        };
        within("the settled volumes are written", writing).await?;
        // The process ends by itself.
        bytes.push(memory::in_fresh_process(&endpoint)? / scale.settled as f64);
        taken.push_time(take_over(&endpoint, &records).await?);
        drop((plugin, etcd));
    }
    let mut table = Table::new("A leader that finds settled volumes");
    table.row(
        "leader elected → first step taken",
        &taken,
        Unit::Millis,
        "under 750 ms",
    );
    table.row(
        "resident memory a volume with a publication",
        &bytes,
        Unit::Bytes,
        "",
    );
    table.note(format!(
        "{} settled volumes, each published. The step is the end of a volume that needs no plugin.",
        scale.settled
    ));
    Ok(table)
}

/// From winning the election to the first step taken.
async fn take_over(endpoint: &str, records: &Records) -> Result<Duration> {
    let leader = within("a leader is elected", leader::elect(endpoint)).await?;
    records.put_one_to_drop().await?;
    let begun = Instant::now();
    let mut working = AtWork::begin(leader);
    working
        .during("the marked volume is gone", records.wait_until_dropped())
        .await?;
    let taken = begun.elapsed();
    working.end().await?;
    Ok(taken)
}

/// The index, as the controller keeps it.
pub async fn index(store: &Store) -> Result<Index> {
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
