//! A leader in this process, for tests and benchmarks.

use std::time::Duration;

use quorate::etcd::election::{CampaignError, Leadership, campaign};
use quorate::etcd::{Fence, Pulse};
use quorate::store::Store;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// An elected leader that does nothing by itself. Its lease is renewed until it resigns or is dropped.
pub struct Leader {
    /// The store that it leads in.
    pub store: Store,
    leadership: Leadership,
    _pulse: JoinSet<()>,
}

impl Leader {
    /// Campaigns below the prefix of the store, under this name and with this TTL, and waits until it is elected.
    ///
    /// # Errors
    /// The candidacy ended, for instance because etcd was electing its own leader.
    pub async fn elect(store: &Store, name: &str, ttl: Duration) -> Result<Self, CampaignError> {
        let pulse = Pulse::default();
        let mut beating = JoinSet::new();
        beating.spawn(pulse.clone().beat_forever());
        let (election, never) = (store.keys.election(), CancellationToken::new());
        let leadership = campaign(&store.etcd, &election, name, ttl, &pulse, &never).await?;
        Ok(Self {
            store: store.clone(),
            leadership,
            _pulse: beating,
        })
    }

    /// The fence of its term.
    pub fn fence(&self) -> &Fence {
        self.leadership.fence()
    }

    /// Gives up its leadership and revokes its lease.
    pub async fn resign(self) {
        self.leadership.resign().await;
    }
}
