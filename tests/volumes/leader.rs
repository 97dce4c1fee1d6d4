//! A leader in this process, which sees to volumes and does nothing else.

use std::time::Duration;

use quorate::etcd::Pulse;
use quorate::etcd::election::{Leadership, campaign};
use quorate::store::Store;
use quorate::volumes::controller::{Times, Volumes};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::support::client::pulse;
use crate::support::wait::SOON;

/// One term.
pub struct Leader {
    leadership: Leadership,
    working: JoinSet<()>,
    _beating: JoinSet<()>,
    store: Store,
}

impl Leader {
    /// Stands as a candidate until it leads.
    pub async fn elect(store: Store, times: Times) -> Self {
        let mut beating = JoinSet::new();
        let pulse: Pulse = pulse(&mut beating);
        pulse.beat();
        let election = store.keys.election();
        let never = CancellationToken::new();
        // However busy the machine is: terms end here when the test says so.
        let ttl = Duration::from_secs(60);
        let leadership = campaign(&store.etcd, &election, "test", ttl, &pulse, &never)
            .await
            .unwrap();
        let mut working = JoinSet::new();
        let volumes = Volumes {
            store: store.clone(),
            fence: leadership.fence().clone(),
            times,
            notices: None,
        };
        working.spawn(volumes.run());
        Self {
            leadership,
            working,
            _beating: beating,
            store,
        }
    }

    /// A sample of the metrics by its full name with labels; None where it was never counted.
    pub fn metric(&self, sample: &str) -> Option<f64> {
        quorate::metrics::sample(&self.store.etcd.metrics().encode(), sample)
    }

    /// Its term is over, and it knows (INV-2).
    pub fn close_window(&self) {
        self.leadership.fence().window().close();
    }

    /// Waits until it has found out itself that it no longer leads.
    pub async fn ended(&mut self) {
        timeout(SOON, self.working.join_next())
            .await
            .expect("the leader gives up");
    }

    /// Stops, and lets the next one lead.
    pub async fn resign(mut self) {
        self.working.shutdown().await;
        self.leadership.resign().await;
    }
}
