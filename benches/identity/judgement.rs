//! What it costs that each call is judged (INV-13).

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use etcd_client::{Client as EtcdClient, Txn, TxnOp};
use quorate::proto::ReportRequest;
use quorate::proto::version::Release;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use super::Scale;
use super::cluster::{Client, Cluster};
use super::crowd;
use super::measure::{Samples, Table, Unit};

pub async fn measure(scale: Scale) -> Result<()> {
    let cluster = Cluster::start(1).await?;
    let members = crowd::members(1, &cluster.authority, cluster.id)?;
    cluster.put(&members).await?;
    let channel = cluster.target(0, Some(&members[0]))?.connect().await?;
    let (mut control, mut health) = (Client::new(channel.clone()), HealthClient::new(channel));
    let mut etcd = cluster.etcd_client().await?;
    let report = ReportRequest {
        agent_release: Some(Release {
            major: 1,
            ..Release::default()
        }),
        ..ReportRequest::default()
    };
    // From now on it says what is on record, and is judged and nothing else.
    control.report(report.clone()).await?;
    let keys = [
        format!("/quorate/nodes/{}", members[0].name),
        format!("/quorate/removed/{}", members[0].uid),
    ];
    let (mut judged, mut unjudged) = (Samples::default(), Samples::default());
    let mut read = Samples::default();
    eprintln!("{} rounds of {} calls", scale.judged_rounds, scale.judged);
    for _ in 0..scale.judged_rounds {
        let begun = Instant::now();
        for _ in 0..scale.judged {
            let answer = health.check(HealthCheckRequest::default()).await?.into_inner();
            ensure!(answer.status() == ServingStatus::Serving, "{answer:?}");
        }
        unjudged.push_time(each(begun, scale));
        let begun = Instant::now();
        for _ in 0..scale.judged {
            control.report(report.clone()).await?;
        }
        judged.push_time(each(begun, scale));
        let begun = Instant::now();
        for _ in 0..scale.judged {
            read_raw(&mut etcd, &keys).await?;
        }
        read.push_time(each(begun, scale));
    }
    let mut table = Table::new("The judgement of a call");
    table.row("a call that is not judged (health)", &unjudged, Unit::Millis, "");
    table.row(
        "a call that is judged, and does nothing else",
        &judged,
        Unit::Millis,
        "",
    );
    let cost = judged.minus(&unjudged);
    table.row("the latter less the former", &cost, Unit::Millis, "");
    table.row(
        "one linearizable read of the two keys, raw",
        &read,
        Unit::Millis,
        "",
    );
    table.row(
        "the judgement over the raw read",
        &cost.per(&read),
        Unit::Times,
        "",
    );
    table.note(format!(
        "{} calls of each kind a round, one after the other over one connection. The judged one is a report of what is on record.",
        scale.judged
    ));
    println!("{table}");
    Ok(())
}

fn each(begun: Instant, scale: Scale) -> Duration {
    // A round has fewer calls than that.
    begun.elapsed() / u32::try_from(scale.judged).unwrap_or(u32::MAX)
}

async fn read_raw(etcd: &mut EtcdClient, keys: &[String; 2]) -> Result<()> {
    let gets = keys.iter().map(|key| TxnOp::get(key.as_str(), None));
    let answer = etcd.txn(Txn::new().and_then(gets.collect::<Vec<_>>())).await?;
    ensure!(answer.succeeded(), "{answer:?}");
    Ok(())
}
