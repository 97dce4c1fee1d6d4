//! The same work without a controller: the calls alone, and the transactions alone.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use etcd_client::{Compare, CompareOp, Txn, TxnOp};
use futures::StreamExt as _;
use futures::stream;
use quorate::csi::wire::volume_capability::access_mode::Mode;
use quorate::csi::wire::volume_capability::{AccessMode, AccessType, MountVolume};
use quorate::csi::wire::{CapacityRange, VolumeCapability};
use quorate::csi::{Context, CreateVolume, CsiNodeId, Plugin, PublishVolume, Secrets, Session, VolumeName};
use quorate::metrics::Metrics;
use quorate_dev::csi_plugin::process::PluginProcess;

use super::at_work::AtWork;
use super::records::{DRIVER, Records};

/// Raw transactions in flight at once: more do not make etcd faster.
const PARALLEL: usize = 64;

/// Volumes a second through the four calls of their lives, with this many in flight.
pub async fn calls(process: &PluginProcess, volumes: usize, at_a_time: u32) -> Result<f64> {
    let limit = Duration::from_secs(60);
    let plugin = Plugin::new(DRIVER, process.endpoint().clone(), limit, Metrics::new("0.0.0"));
    let session = plugin.session().await?;
    let at_a_time = usize::try_from(at_a_time)?;
    let begun = Instant::now();
    let lives = (0..volumes).map(|number| live(&session, number));
    let mut lives = stream::iter(lives).buffer_unordered(at_a_time);
    while let Some(lived) = lives.next().await {
        lived?;
    }
    Ok(volumes as f64 / begun.elapsed().as_secs_f64())
}

/// The same while operators write what they write about as many volumes.
pub async fn calls_beside_requests(
    endpoint: &str,
    process: &PluginProcess,
    volumes: usize,
    at_a_time: u32,
) -> Result<f64> {
    let records = Records::connect(endpoint).await?;
    let requests = async {
        records.create_and_publish(volumes).await?;
        records.unpublish(volumes).await?;
        records.delete(volumes).await
    };
    let (rate, ()) = tokio::try_join!(calls(process, volumes, at_a_time), requests)?;
    records.clear().await?;
    Ok(rate)
}

/// The records of a volume's life where each call has an intent and a result; unpublishing has the first in the publication.
const RECORDS: usize = 7;

/// Volumes a second of the calls and, on the same machine, of transactions of one record each.
pub async fn calls_and_transactions(
    endpoint: &str,
    process: &PluginProcess,
    volumes: usize,
    at_a_time: u32,
) -> Result<f64> {
    let begun = Instant::now();
    tokio::try_join!(
        calls(process, volumes, at_a_time),
        transactions(endpoint, volumes * RECORDS)
    )?;
    Ok(volumes as f64 / begun.elapsed().as_secs_f64())
}

async fn live(session: &Session, number: usize) -> Result<()> {
    let capability = VolumeCapability {
        access_mode: Some(AccessMode {
            mode: Mode::SingleNodeWriter.into(),
        }),
        access_type: Some(AccessType::Mount(MountVolume::default())),
    };
    let create = CreateVolume {
        name: VolumeName::new(format!("raw-{number}"))?,
        capacity: Some(CapacityRange {
            required_bytes: 1 << 20,
            limit_bytes: 0,
        }),
        capability: capability.clone(),
        parameters: Context::new(),
        topology: None,
    };
    let none = Secrets::none();
    let created = session.create_volume(&create, &none).await?;
    let publish = PublishVolume {
        volume: created.id.clone(),
        node: CsiNodeId::new("csi-n1")?,
        capability,
        read_only: false,
        context: created.context,
    };
    session.publish_volume(&publish, &none).await?;
    session
        .unpublish_volume(&created.id, &publish.node, &none)
        .await?;
    session.delete_volume(&created.id, &none).await?;
    Ok(())
}

/// How many records the leader writes in the life of one volume: the versions of its keys, less those that operators
/// write.
pub async fn writes_of_one_life(endpoint: &str, plugin: &PluginProcess) -> Result<f64> {
    let (records, working) = AtWork::on_plugin(endpoint, &plugin.endpoint().to_string(), 1).await?;
    let mut kv = records.kv();
    let before = revision(&mut kv).await?;
    records.create_and_publish(1).await?;
    records.wait_until_published(1).await?;
    records.unpublish(1).await?;
    records.wait_until_gone("publications/").await?;
    records.delete(1).await?;
    records.wait_until_gone("volumes/").await?;
    let after = revision(&mut kv).await?;
    working.end().await;
    records.clear().await?;
    // Three of these transactions were this function's own; the others wrote a record each, as there was one volume.
    Ok((after - before - 3) as f64)
}

pub async fn revision(kv: &mut etcd_client::KvClient) -> Result<i64> {
    let answer = kv.get("/quorate/volumes/", None).await?;
    Ok(answer.header().map_or(0, |header| header.revision()))
}

/// Transactions a second that compare a fence and a record's revision and write the record, as each write of the leader
/// does.
pub async fn transactions(endpoint: &str, records_written: usize) -> Result<f64> {
    let records = Records::connect(endpoint).await?;
    let value = vec![b'v'; 300];
    let txns = (0..records_written).map(|number| {
        let key = format!("/quorate/raw/{number}");
        let fence = Compare::create_revision("/quorate/fence", CompareOp::Equal, 0);
        let absent = Compare::mod_revision(key.clone(), CompareOp::Equal, 0);
        let put = TxnOp::put(key, value.clone(), None);
        let mut kv = records.kv();
        async move { kv.txn(Txn::new().when([fence, absent]).and_then([put])).await }
    });
    let begun = Instant::now();
    let mut txns = stream::iter(txns).buffer_unordered(PARALLEL);
    while let Some(committed) = txns.next().await {
        ensure!(committed?.succeeded(), "a transaction was refused");
    }
    let rate = records_written as f64 / begun.elapsed().as_secs_f64();
    records.clear().await?;
    Ok(rate)
}
