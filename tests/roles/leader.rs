//! A leader in this process, which follows the desired roles and does nothing else.

use quorate::etcd::{Etcd, Fence};
use quorate::kube::events::Notice;
use quorate::roles::controller::{RoleController, Settings};
use quorate::store::{Keys, Store};
use quorate::summary::Latest;
use quorate::term::{NodeWrites, Notices};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::world::{LONG, World, store};
use crate::support::etcd::TestEtcd;
use crate::support::leader;
use crate::support::wait::{SOON, eventually, same};

/// The controller of one term, and the notices that it sends.
pub struct Leader {
    term: leader::Leader,
    /// The notices that would be published as Events.
    pub notices: mpsc::Receiver<Notice>,
    _following: JoinSet<()>,
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
        let mut following = JoinSet::new();
        let store = store(etcd, &mut following).await;
        Self::elect_on(store, settings, following).await
    }

    /// A leader that works below another prefix.
    pub async fn elect_below(etcd: &TestEtcd, prefix: &str) -> Self {
        let mut following = JoinSet::new();
        let mut store = store(etcd, &mut following).await;
        store.keys = Keys::new(prefix.parse().unwrap());
        Self::elect_on(store, Settings::default(), following).await
    }

    /// A leader on this connection, which lives as long as these tasks.
    pub async fn elect_on(store: Store, settings: Settings, following: JoinSet<()>) -> Self {
        let mut term = leader::Leader::elect(&store, "test").await;
        let (sending, notices) = Notices::channel(1000);
        let controller = RoleController {
            store,
            fence: term.fence().clone(),
            notices: sending,
            node_writes: NodeWrites::default(),
            settings,
            summaries: Latest::default(),
        };
        term.work(controller.run());
        Self {
            term,
            notices,
            _following: following,
        }
    }

    pub fn etcd(&self) -> &Etcd {
        &self.term.store.etcd
    }

    pub fn fence(&self) -> &Fence {
        self.term.fence()
    }

    /// Waits until it has noticed that it no longer leads.
    pub async fn ended(&mut self) {
        self.term.work_ended().await;
    }

    /// A series of its metrics, by its name with labels.
    #[track_caller]
    pub fn metric(&self, series: &str) -> f64 {
        self.term.metric(series)
    }

    /// Waits until a sample of its metrics has this value.
    pub async fn wait_metric(&self, sample: &str, wanted: f64) {
        eventually(LONG, sample, async || same(self.metric(sample), wanted)).await;
    }

    /// Waits for a notice with this reason, and returns its note.
    pub async fn wait_notice(&mut self, reason: &str) -> String {
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
            .unwrap_or_else(|_| panic!("no notice {reason}"))
    }

    pub async fn resign(self) {
        self.term.resign().await;
    }
}
