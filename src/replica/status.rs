//! What a replica shows of itself.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::watch;

use super::log_levels::LogLevels;
use super::newer::Newer;
use super::rights::Refusal;
use super::summaries::Summaries;
use crate::etcd::election::Leader;
use crate::etcd::{Etcd, Fence, Pulse};
use crate::gate::readiness::Readiness;

/// What the probes of a replica ask for. All clones share one state.
#[derive(Clone, Debug, Default)]
pub struct ReplicaStatus {
    /// Beats while the work runtime is alive.
    pub pulse: Pulse,
    /// Whether the replica may serve.
    pub readiness: Readiness,
    /// What its parts know, for people.
    pub summaries: Summaries,
    /// The levels of the log that operators have set.
    pub log_levels: Arc<watch::Sender<LogLevels>>,
    /// The connection, once there is one.
    pub(super) etcd: Arc<OnceLock<Etcd>>,
    pub(super) leading: Arc<watch::Sender<Option<Fence>>>,
    pub(super) leader: Arc<watch::Sender<Option<Leader>>>,
    pub(super) newer: Arc<watch::Sender<Newer>>,
    pub(super) refusal: Refusal,
}

impl ReplicaStatus {
    /// Whether this replica leads at this instant.
    pub fn leads(&self) -> bool {
        self.leading
            .borrow()
            .as_ref()
            .is_some_and(|fence| fence.window().is_open())
    }

    /// Time until the local deadline of the term; zero without one.
    pub fn lease_margin(&self) -> Duration {
        self.leading
            .borrow()
            .as_ref()
            .map_or(Duration::ZERO, |fence| fence.window().remaining())
    }

    /// The leader, as far as this replica knows.
    pub fn leader(&self) -> Option<Leader> {
        self.leader.borrow().clone()
    }

    /// The connection to etcd; `None` before etcd has answered for the first time.
    pub fn etcd(&self) -> Option<&Etcd> {
        self.etcd.get()
    }

    /// Which newer replica stands for election, so that this one does not, in words.
    pub fn yields_to(&self) -> Option<String> {
        match &*self.newer.borrow() {
            Newer::Stands(which) => Some(which.clone()),
            Newer::Absent | Newer::Unknown | Newer::OnTrial(..) => None,
        }
    }

    /// Why etcd refuses the writes of this replica, in words. Such a one neither leads nor stands for election.
    pub fn refused(&self) -> Option<String> {
        self.refusal.borrow().clone()
    }
}
