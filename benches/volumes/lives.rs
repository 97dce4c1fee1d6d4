//! Volumes through their whole lives, with a leader at work.

use std::time::Instant;

use anyhow::Result;
use quorate_dev::csi_plugin::process::PluginProcess;

use super::at_work::AtWork;

/// Volumes a second: all are created and published, then all are unpublished, then deleted. Operators write in bulk.
pub async fn lives(endpoint: &str, plugin: &PluginProcess, volumes: usize, concurrency: u32) -> Result<f64> {
    let at = plugin.endpoint().to_string();
    let (records, mut working) = AtWork::on_plugin(endpoint, &at, concurrency).await?;
    let begun = Instant::now();
    let publishing = async {
        records.create_and_publish(volumes).await?;
        records.wait_until_published(volumes).await
    };
    working
        .during(format_args!("{volumes} volumes are published"), publishing)
        .await?;
    eprintln!("  created and published after {:?}", begun.elapsed());
    let unpublishing = async {
        records.unpublish(volumes).await?;
        records.wait_until_unpublished(volumes).await
    };
    working
        .during(format_args!("{volumes} volumes are unpublished"), unpublishing)
        .await?;
    eprintln!("  unpublished after {:?}", begun.elapsed());
    let deleting = async {
        records.delete(volumes).await?;
        records.wait_until_deleted(volumes).await
    };
    working
        .during(format_args!("{volumes} volumes are deleted"), deleting)
        .await?;
    let taken = begun.elapsed();
    eprintln!("  deleted after {taken:?}");
    working.end().await?;
    records.clear().await?;
    Ok(volumes as f64 / taken.as_secs_f64())
}
