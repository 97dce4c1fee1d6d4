//! The place of a session among those of its replica.

use std::sync::Arc;

use tokio::sync::Notify;

use super::Sessions;
use crate::metrics::Reason;
use crate::store::Name;

/// A session that is open. Dropped, it is closed.
pub struct Place {
    sessions: Arc<Sessions>,
    node: Name,
    woken: Arc<Notify>,
    reason: &'static str,
}

impl Place {
    pub(super) fn new(sessions: Arc<Sessions>, node: Name, woken: Arc<Notify>) -> Self {
        sessions.store.etcd.metrics().sessions.inc();
        Self {
            sessions,
            node,
            woken,
            // Unless another reason is given: the agent ended it, or its connection did.
            reason: "closed",
        }
    }

    /// Resolves once something changed that concerns the node.
    pub async fn woken(&self) {
        self.woken.notified().await;
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
        metrics.sessions.dec();
        let reason = self.reason;
        metrics.sessions_ended.get_or_create(&Reason { reason }).inc();
    }
}
