//! What a round of a part is measured on: an etcd and a plugin of its own, below one directory.

use std::fmt;
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use quorate_dev::csi_plugin::options::Options as PluginOptions;
use quorate_dev::csi_plugin::process::PluginProcess;
use quorate_dev::etcd::{Etcd, Options};
use quorate_dev::workspace::programs;
use tempfile::TempDir;

use super::records::DRIVER;

/// The limit of everything that is waited for; only a fault exceeds it. The longest takes a minute and a half.
pub const LIMIT: Duration = Duration::from_secs(300);

/// The file system in memory of Linux.
const MEMORY: &str = "/dev/shm";

/// Where the files of all rounds are.
#[derive(Clone, Copy)]
pub struct Site<'a> {
    pub directory: &'a Path,
    /// Of the plugins.
    pub backends: &'a Path,
}

/// A directory in memory, or on disk on a machine without one. A plugin's backend is a directory a volume, and what thousands of
/// these cost on disk differs with what was deleted there before.
pub fn backends() -> Result<TempDir> {
    let mut builder = tempfile::Builder::new();
    let named = builder.prefix("qbench-");
    let created = named.tempdir_in(MEMORY).or_else(|_| named.tempdir());
    Ok(created?)
}

impl Site<'_> {
    /// A new etcd: the history of an earlier round would slow it. With its endpoint.
    pub async fn etcd(&self, name: &str) -> Result<(Etcd, String)> {
        let data = self.directory.join(format!("etcd-{name}"));
        let etcd = within("etcd starts", Etcd::start(&data, &Options::default())).await?;
        let endpoint = etcd.endpoints().concat();
        Ok((etcd, endpoint))
    }

    /// A plugin whose calls take so long.
    pub async fn plugin(&self, name: &str, latency: Duration) -> Result<PluginProcess> {
        let mut options = PluginOptions::in_directory(&self.backends.join(name), DRIVER);
        options.latency = latency;
        let program = programs()?.quorate_dev;
        within("the plugin starts", PluginProcess::start(&program, options)).await
    }
}

/// Checks that nothing is left at the backend.
pub fn expect_empty(plugin: &PluginProcess) -> Result<()> {
    let left = plugin.backend().ids()?;
    ensure!(left.is_empty(), "{} volumes are left at the backend", left.len());
    Ok(())
}

/// What this comes to. Fails after [`LIMIT`], and says what did not happen until then.
pub async fn within<T, E>(what: impl fmt::Display, doing: impl Future<Output = Result<T, E>>) -> Result<T>
where
    anyhow::Error: From<E>,
{
    match tokio::time::timeout(LIMIT, doing).await {
        Ok(done) => Ok(done?),
        Err(_) => bail!("not within {LIMIT:?}: {what}"),
    }
}
