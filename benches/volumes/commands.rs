//! Volumes through the commands of operators: `apply`, `publish` and `delete`, as programs.

use std::path::Path;
use std::time::Instant;

use anyhow::{Result, ensure};
use futures::{StreamExt as _, stream};
use quorate_dev::csi_plugin::process::PluginProcess;
use quorate_dev::workspace::programs;
use tokio::process::Command;

use super::at_work::AtWork;
use super::records::{DRIVER, NODE, name};

/// Programs at a time.
const AT_ONCE: usize = 8;

/// Volumes a second, through their whole lives: each is created, published, unpublished and deleted. Only the end of the
/// publications, which nodes confirm, is written in bulk.
pub async fn lives(
    endpoint: &str,
    plugin: &PluginProcess,
    directory: &Path,
    volumes: usize,
    concurrency: u32,
) -> Result<f64> {
    let at = plugin.endpoint().to_string();
    let (records, working) = AtWork::on_plugin(endpoint, &at, concurrency).await?;
    let documents = directory.join("volumes.yaml");
    std::fs::write(&documents, (0..volumes).map(document).collect::<String>())?;
    let begun = Instant::now();
    let file = documents.display().to_string();
    quorate(endpoint, &["apply", "-f", &file]).await?;
    let names: Vec<String> = (0..volumes).map(name).collect();
    let publishing = names.iter().map(|name| async move {
        let args = ["publish", name, NODE];
        quorate(endpoint, &args).await
    });
    let mut publishing = stream::iter(publishing).buffer_unordered(AT_ONCE);
    while let Some(published) = publishing.next().await {
        published?;
    }
    records.wait_until_published(volumes).await?;
    records.unpublish(volumes).await?;
    records.wait_until_gone("publications/").await?;
    let delete = ["delete", "volume", "--yes", "--wait"].into_iter();
    let delete: Vec<&str> = delete.chain(names.iter().map(String::as_str)).collect();
    quorate(endpoint, &delete).await?;
    let taken = begun.elapsed();
    working.end().await;
    records.clear().await?;
    Ok(volumes as f64 / taken.as_secs_f64())
}

async fn quorate(endpoint: &str, args: &[&str]) -> Result<()> {
    let mut command = Command::new(&programs()?.quorate);
    command
        .args(args)
        .env("QUORATE_ETCD_ENDPOINTS", endpoint)
        .kill_on_drop(true);
    let done = command.output().await?;
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
