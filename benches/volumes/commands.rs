//! Volumes through the commands of operators: `apply`, `publish` and `delete`, as programs.

use std::process::Stdio;
use std::time::Instant;

use anyhow::{Result, ensure};
use quorate_dev::csi_plugin::process::PluginProcess;
use quorate_dev::workspace::programs;
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;

use super::at_work::AtWork;
use super::latency::LATENCY;
use super::measure::{Samples, Table, Unit};
use super::raw;
use super::records::{DRIVER, NODE, name};
use super::site::{Site, expect_empty, within};
use super::{CONCURRENCY, Scale};

pub async fn table(site: Site<'_>, scale: Scale) -> Result<Table> {
    let (mut commands, mut raw_rate) = <(Samples, Samples)>::default();
    for round in 1..=scale.rounds {
        eprintln!(
            "commands, round {round}/{}: {} volumes, {LATENCY:?} a call",
            scale.rounds, scale.by_commands
        );
        let (etcd, endpoint) = site.etcd(&format!("commands-{round}")).await?;
        let plugin = site.plugin(&format!("asked-{round}"), LATENCY).await?;
        let raw = raw::calls(&plugin, scale.by_commands, CONCURRENCY);
        raw_rate.push(within("the raw calls end", raw).await?);
        commands.push(lives(&endpoint, &plugin, scale.by_commands).await?);
        expect_empty(&plugin)?;
        drop((plugin, etcd));
    }
    let mut table = Table::new("Volumes by commands, whose calls take 10 ms each");
    table.row("volumes a second", &commands, Unit::Count, "");
    table.row("the same calls raw", &raw_rate, Unit::Count, "");
    table.row(
        "time of the former over that of the latter",
        &raw_rate.per(&commands),
        Unit::Times,
        "at most 1.5 ×",
    );
    table.note(format!(
        "{} volumes: one apply, one publish, one delete --wait, each a process. Only the end of the \
         publications, which nodes confirm, is written in bulk.",
        scale.by_commands
    ));
    Ok(table)
}

/// Volumes a second, through their whole lives: each is created, published, unpublished and deleted.
async fn lives(endpoint: &str, plugin: &PluginProcess, volumes: usize) -> Result<f64> {
    let at = plugin.endpoint().to_string();
    let (records, mut working) = AtWork::on_plugin(endpoint, &at, CONCURRENCY).await?;
    let documents: String = (0..volumes).map(document).collect();
    let names: Vec<String> = (0..volumes).map(name).collect();
    let begun = Instant::now();
    let applying = quorate(endpoint, &["apply", "-f", "-"], &documents);
    working.during("apply ends", applying).await?;
    eprintln!("  applied after {:?}", begun.elapsed());
    let publish = std::iter::once("publish").chain(names.iter().map(String::as_str));
    let publish: Vec<&str> = publish.chain([NODE]).collect();
    let publishing = async {
        quorate(endpoint, &publish, "").await?;
        records.wait_until_published(volumes).await
    };
    working.during("all volumes are published", publishing).await?;
    eprintln!("  published after {:?}", begun.elapsed());
    let unpublishing = async {
        records.unpublish(volumes).await?;
        records.wait_until_unpublished(volumes).await
    };
    working
        .during("all volumes are unpublished", unpublishing)
        .await?;
    eprintln!("  unpublished after {:?}", begun.elapsed());
    let delete = ["delete", "volume", "--yes", "--wait"].into_iter();
    let delete: Vec<&str> = delete.chain(names.iter().map(String::as_str)).collect();
    working
        .during("delete ends", quorate(endpoint, &delete, ""))
        .await?;
    let taken = begun.elapsed();
    eprintln!("  deleted after {taken:?}");
    working.end().await?;
    records.clear().await?;
    Ok(volumes as f64 / taken.as_secs_f64())
}

/// Runs a command to its end. It is killed where this is dropped before.
async fn quorate(endpoint: &str, args: &[&str], input: &str) -> Result<()> {
    let mut running = Command::new(&programs()?.quorate)
        .args(args)
        .env("QUORATE_ETCD_ENDPOINTS", endpoint)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    if let Some(mut stdin) = running.stdin.take() {
        // A command that reads nothing may have ended.
        let _ = stdin.write_all(input.as_bytes()).await;
    }
    let done = running.wait_with_output().await?;
    let said = String::from_utf8_lossy(&done.stderr);
    ensure!(done.status.success(), "quorate {}: {said}", args[0]);
    Ok(())
}

fn document(number: usize) -> String {
    format!(
        "apiVersion: quorate.dev/v1\nkind: Volume\nmetadata: {{name: {}}}\nspec: {{driver: {{name: {DRIVER}}}, \
         accessMode: {{scope: singleNode, sharing: none, mount: {{}}}}, capacity: {{required: 1Mi}}}}\n---\n",
        name(number)
    )
}
