//! A leader that reconciles the volumes of one plugin, and the records that it works on.

use std::fmt;

use anyhow::{Result, bail};
use quorate::summary::Latest;
use quorate::term::Notices;
use quorate::volumes::controller::{Times, VolumeController};
use quorate_dev::leader::Leader;
use tokio::task::JoinSet;

use super::leader;
use super::records::Records;
use super::site::within;

/// A leader at work. Dropping it stops the work.
pub struct AtWork {
    leader: Leader,
    working: JoinSet<()>,
}

impl AtWork {
    /// Puts the plugin and its node into an empty etcd, and begins.
    pub async fn on_plugin(endpoint: &str, plugin: &str, concurrency: u32) -> Result<(Records, Self)> {
        let records = Records::connect(endpoint).await?;
        records.put_surroundings(plugin, concurrency).await?;
        let leader = within("a leader is elected", leader::elect(endpoint)).await?;
        Ok((records, Self::begin(leader)))
    }

    /// Reconciles what is there already.
    pub fn begin(leader: Leader) -> Self {
        let volumes = VolumeController {
            store: leader.store.clone(),
            fence: leader.fence().clone(),
            times: Times::default(),
            secrets: Default::default(),
            notices: Notices::default(),
            summaries: Latest::default(),
        };
        let mut working = JoinSet::new();
        working.spawn(volumes.run());
        Self { leader, working }
    }

    /// What this comes to while the leader works. Fails as soon as it does so no more, as after a lost lease: nothing would come of
    /// what is waited for.
    pub async fn during<T>(
        &mut self,
        what: impl fmt::Display,
        doing: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        tokio::select! {
            done = within(&what, doing) => done,
            ended = self.working.join_next() => bail!("the leader works no more ({ended:?}) before this: {what}"),
        }
    }

    /// The volumes that wait for their plugin, as the leader counts them; `None` before it has.
    pub fn waiting(&self) -> Option<f64> {
        let metrics = self.leader.store.etcd.metrics().encode();
        let of_plugin = |line: &&str| line.starts_with("quorate_csi_plugin_waiting_volumes{");
        let line = metrics.lines().find(of_plugin)?;
        line.rsplit(' ').next()?.parse().ok()
    }

    /// Stops.
    pub async fn end(self) -> Result<()> {
        let Self { leader, mut working } = self;
        let ending = async {
            working.shutdown().await;
            leader.resign().await;
            anyhow::Ok(())
        };
        within("the leader ends", ending).await
    }
}
