//! How far a watch has come beyond its last change.

use std::time::Duration;

use etcd_client::WatchStream;
use tokio::sync::{Notify, watch};

use crate::etcd::kv::Revision;

/// A watch whose range does not change says nothing by itself. This asks how far it has come.
#[derive(Debug, Default)]
pub struct Progress {
    asked: Notify,
    shown: watch::Sender<Revision>,
}

impl Progress {
    /// From one question to the next. Newer etcd leaves a question without an answer that comes before the watch has caught up.
    const AGAIN: Duration = Duration::from_secs(1);

    /// Resolves once every change of the range up to this revision was returned. Before etcd 3.4.25 an answer could overtake
    /// changes that were on their way (etcd issue 15220): they follow it within an instant.
    pub async fn come_to(&self, revision: Revision) {
        let mut shown = self.shown.subscribe();
        while *shown.borrow_and_update() < revision {
            self.asked.notify_one();
            // The sender lives as long as this.
            let _ = tokio::time::timeout(Self::AGAIN, shown.changed()).await;
        }
    }

    /// Resolves when [`Progress::come_to`] asks.
    pub(super) async fn asked(&self) {
        self.asked.notified().await;
    }

    /// Every change up to this revision was returned.
    pub(crate) fn show(&self, revision: Revision) {
        self.shown.send_if_modified(|shown| {
            let further = revision > *shown;
            *shown = revision.max(*shown);
            further
        });
    }

    /// The range is listed again, perhaps in another history.
    pub(crate) fn forget(&self) {
        self.shown.send_replace(Revision::ABSENT);
    }
}

/// Asks etcd for a message. False if the request cannot even be queued: a full send queue is a dead connection.
pub(super) async fn request_progress(stream: &mut WatchStream, limit: Duration) -> bool {
    matches!(
        tokio::time::timeout(limit, stream.request_progress()).await,
        Ok(Ok(()))
    )
}
