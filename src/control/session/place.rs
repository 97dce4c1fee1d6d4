//! The place of a session among those of its replica.

use std::sync::Arc;

use tokio::sync::Notify;

use super::Sessions;
use crate::metrics::Reason;
use crate::store::Name;

/// A session, from the moment it begins. Dropped, it is closed.
pub struct Place {
    sessions: Arc<Sessions>,
    node: Name,
    woken: Arc<Notify>,
    /// Whether it is on record, and shown to its agent.
    is_open: bool,
    reason: &'static str,
}

impl Place {
    pub(super) fn new(sessions: Arc<Sessions>, node: Name, woken: Arc<Notify>) -> Self {
        Self {
            sessions,
            node,
            woken,
            is_open: false,
            // Unless another reason is given: the agent ended it, or its connection did.
            reason: "closed",
        }
    }

    /// Resolves once something changed that concerns the node.
    pub async fn woken(&self) {
        self.woken.notified().await;
    }

    /// From now on it counts as one that the replica serves: before, the agent knows of none.
    pub fn opens(&mut self) {
        if !std::mem::replace(&mut self.is_open, true) {
            self.sessions.store.etcd.metrics().sessions.inc();
        }
    }

    /// Why it ends, as a label of the metric.
    pub fn ends_for(&mut self, reason: &'static str) {
        self.reason = reason;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.sessions.leave(&self.node, &self.woken);
        let metrics = self.sessions.store.etcd.metrics();
        if self.is_open {
            metrics.sessions.dec();
        }
        let reason = self.reason;
        metrics.sessions_ended.get_or_create(&Reason { reason }).inc();
    }
}
