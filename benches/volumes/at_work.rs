//! A leader that reconciles the volumes of one plugin, and the records that it works on.

use anyhow::Result;
use quorate::term::Notices;
use quorate::volumes::controller::{Times, VolumeController};
use quorate_dev::leader::Leader;
use tokio::task::JoinSet;

use super::leader;
use super::records::Records;

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
        let leader = leader::elect(endpoint).await?;
        Ok((records, Self::begin(leader)))
    }

    /// Reconciles what is there already.
    pub fn begin(leader: Leader) -> Self {
        let volumes = VolumeController {
            store: leader.store.clone(),
            fence: leader.fence().clone(),
            times: Times::default(),
            notices: Notices::default(),
        };
        let mut working = JoinSet::new();
        working.spawn(volumes.run());
        Self { leader, working }
    }

    /// Stops.
    pub async fn end(self) {
        drop(self.working);
        self.leader.resign().await;
    }
}
