//! The same work without a controller: the calls alone, and the transactions alone.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use etcd_client::{Compare, CompareOp, Txn, TxnOp, TxnOpResponse};
use futures::stream;
use futures::{StreamExt as _, TryStreamExt as _};
use quorate::csi::{CallError, CsiNodeId, Plugin, PublishVolume, Secrets, Session, VolumeId};
use quorate::metrics::Metrics;
use quorate_dev::csi_plugin::process::PluginProcess;

use super::at_work::AtWork;
use super::csi;
use super::records::{DRIVER, Records};

/// Raw transactions in flight at once: more do not make etcd faster.
const PARALLEL: usize = 64;

/// Volumes a second through the four calls of their lives, with this many in flight: all are created and published, then all are
/// unpublished, then deleted, as where a controller makes the calls. Volumes that come and go one after the other would be less work
/// for the plugin and for the disk, which etcd has as well: they are gone before the disk learns of them.
pub async fn calls(process: &PluginProcess, volumes: usize, at_a_time: u32) -> Result<f64> {
    let limit = Duration::from_secs(60);
    let plugin = Plugin::new(DRIVER, process.endpoint().clone(), limit, Metrics::new("0.0.0"));
    let session = plugin.session().await?;
    let at_a_time = usize::try_from(at_a_time)?;
    let (node, none) = (CsiNodeId::new("csi-n1")?, Secrets::none());
    let begun = Instant::now();
    let created = (0..volumes).map(|number| create_and_publish(&session, number, &node, &none));
    let created: Vec<VolumeId> = stream::iter(created)
        .buffer_unordered(at_a_time)
        .try_collect()
        .await?;
    let unpublished = created
        .iter()
        .map(|volume| session.unpublish_volume(volume, &node, &none));
    finish(unpublished, at_a_time).await?;
    let deleted = created.iter().map(|volume| session.delete_volume(volume, &none));
    finish(deleted, at_a_time).await?;
    Ok(volumes as f64 / begun.elapsed().as_secs_f64())
}

/// Makes these calls, so many at a time.
async fn finish<F>(calls: impl Iterator<Item = F>, at_a_time: usize) -> Result<()>
where
    F: Future<Output = Result<(), CallError>>,
{
    let mut calls = stream::iter(calls).buffer_unordered(at_a_time);
    while let Some(done) = calls.next().await {
        done?;
    }
    Ok(())
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
pub const RECORDS: usize = 7;

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

async fn create_and_publish(
    session: &Session,
    number: usize,
    node: &CsiNodeId,
    none: &Secrets,
) -> Result<VolumeId> {
    let create = csi::create(format!("raw-{number}"))?;
    let created = session.create_volume(&create, none).await?;
    let publish = PublishVolume {
        volume: created.id,
        node: node.clone(),
        capability: create.capability,
        read_only: false,
        context: created.context,
    };
    session.publish_volume(&publish, none).await?;
    Ok(publish.volume)
}

/// How many records of volumes and publications the leader writes in the life of one volume.
pub async fn writes_of_one_life(endpoint: &str, plugin: &PluginProcess) -> Result<f64> {
    let (records, mut working) = AtWork::on_plugin(endpoint, &plugin.endpoint().to_string(), 1).await?;
    let mut kv = records.kv();
    let before = written(&mut kv).await?;
    let living = async {
        records.create_and_publish(1).await?;
        records.wait_until_published(1).await?;
        records.unpublish(1).await?;
        records.wait_until_gone("publications/").await?;
        records.delete(1).await?;
        records.wait_until_gone("volumes/").await
    };
    working.during("one volume comes and goes", living).await?;
    let after = written(&mut kv).await?;
    working.end().await?;
    records.clear().await?;
    // Three of these transactions were this function's own; the others wrote a record each, as there was one volume.
    Ok((after - before - 3) as f64)
}

/// How many transactions have written anything, but for what the leader writes about its plugin and about the store.
async fn written(kv: &mut etcd_client::KvClient) -> Result<i64> {
    let others = [
        format!("/quorate/plugins/{DRIVER}/status"),
        "/quorate/history/volumes".to_owned(),
    ];
    let reads = others.map(|key| TxnOp::get(key, None));
    let answer = kv.txn(Txn::new().and_then(reads)).await?;
    let versions = answer.op_responses().into_iter().map(|read| match read {
        TxnOpResponse::Get(read) => read.kvs().first().map_or(0, etcd_client::KeyValue::version),
        _ => 0,
    });
    let revision = answer.header().map_or(0, |header| header.revision());
    Ok(revision - versions.sum::<i64>())
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
