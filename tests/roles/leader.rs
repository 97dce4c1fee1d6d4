//! A leader in this process, which follows the desired roles and does nothing else.

use std::time::Duration;

use quorate::etcd::election::{Leadership, campaign};
use quorate::etcd::{Etcd, Pulse};
use quorate::kube::events::Notice;
use quorate::metrics;
use quorate::roles::controller::{RoleController, Settings};
use quorate::store::{Keys, Store};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::world::{LONG, World, store};
use crate::support::etcd::TestEtcd;
use crate::support::wait::{SOON, eventually, same};

pub struct Leader {
    pub leadership: Leadership,
    pub working: JoinSet<()>,
    /// What would be published as Events.
    pub notices: mpsc::Receiver<Notice>,
    _tasks: JoinSet<()>,
    pub etcd: Etcd,
}

impl World {
    pub async fn leader(&self) -> Leader {
        self.leader_with(Settings::default()).await
    }

    pub async fn leader_with(&self, settings: Settings) -> Leader {
        Leader::elect(&self.etcd, settings).await
    }
}

impl Leader {
    async fn elect(etcd: &TestEtcd, settings: Settings) -> Self {
        let mut tasks = JoinSet::new();
        let store = store(etcd, &mut tasks).await;
        Self::elect_on(store, settings, tasks).await
    }

    /// One that looks below another prefix.
    pub async fn elect_below(etcd: &TestEtcd, prefix: &str) -> Self {
        let mut tasks = JoinSet::new();
        let mut store = store(etcd, &mut tasks).await;
        store.keys = Keys::new(prefix.parse().unwrap());
        Self::elect_on(store, Settings::default(), tasks).await
    }

    /// One on this connection, which lives with these tasks.
    pub async fn elect_on(store: Store, settings: Settings, mut tasks: JoinSet<()>) -> Self {
        let pulse = Pulse::default();
        pulse.beat();
        tasks.spawn(pulse.clone().beat_forever());
        let never = CancellationToken::new();
        let ttl = Duration::from_secs(20);
        // The members may be electing: then a candidacy ends, and the next one begins, as in a replica.
        let leadership = eventually(SOON, "it leads", async || {
            campaign(&store.etcd, &store.keys.election(), "test", ttl, &pulse, &never).await
        })
        .await;
        let etcd = store.etcd.clone();
        let (sender, notices) = mpsc::channel(1000);
        let controller = RoleController {
            store,
            fence: leadership.fence().clone(),
            notices: Some(sender),
            settings,
        };
        let mut working = JoinSet::new();
        working.spawn(controller.run());
        Self {
            leadership,
            working,
            notices,
            _tasks: tasks,
            etcd,
        }
    }

    /// A sample of its metrics by its full name with labels; 0 where it was never counted.
    pub fn metric(&self, sample: &str) -> f64 {
        metrics::sample(&self.etcd.metrics().encode(), sample).unwrap_or(0.0)
    }

    /// Waits until a sample of its metrics has this value.
    pub async fn wait_metric(&self, sample: &str, wanted: f64) {
        eventually(LONG, sample, async || same(self.metric(sample), wanted)).await;
    }

    /// Waits until it tells this, and returns what it says.
    pub async fn wait_told(&mut self, reason: &str) -> String {
        let telling = async {
            loop {
                let notice = self.notices.recv().await.expect("it works");
                if notice.reason == reason {
                    return notice.note;
                }
            }
        };
        tokio::time::timeout(SOON, telling)
            .await
            .unwrap_or_else(|_| panic!("{reason} is never told"))
    }

    pub async fn resign(mut self) {
        self.working.shutdown().await;
        self.leadership.resign().await;
    }
}
