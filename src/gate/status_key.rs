//! The status key and `status.json`, as the leader of one term reads, writes and watches them.

use jiff::Timestamp;
use tracing::warn;

use super::degraded::Troubles;
use super::status::{Status, StatusJson};
use crate::etcd::{Error, Fence, KeyRange, Revision, Stop, Txn, Watched, Watcher};
use crate::span;
use crate::store::Store;
use crate::summary::Latest;

/// What a leader knows of `status.json` from one reading of the status to the next.
#[derive(Default)]
pub(super) struct Known {
    /// Its content; `None` while it is not known.
    status_json: Option<StatusJson>,
    /// What is wrong. It lasts, also when someone else writes the status.
    troubles: Troubles,
}

/// The status as it was read, and as it was written since then.
pub(super) struct StatusKey {
    store: Store,
    fence: Fence,
    /// Node id of the leader, for `status.json`.
    node: String,
    status: Option<Status>,
    /// The revision of the last read or write of the status; [`Revision::ABSENT`] without one.
    mod_revision: Revision,
    watcher: Watcher,
    troubles: Troubles,
    /// The content of `status.json`; `None` while it is not known.
    status_json: Option<StatusJson>,
    /// Gets the content with each write.
    summaries: Latest<StatusJson>,
}

impl StatusKey {
    /// Reads the status, and watches it from then on: the first write opens the watch, or [`StatusKey::changed_by_others`].
    /// Takes `known` over where it succeeds.
    pub async fn read(
        store: &Store,
        fence: &Fence,
        node: &str,
        summaries: &Latest<StatusJson>,
        known: &mut Known,
    ) -> Result<Self, Error> {
        let name = store.keys.status();
        let (stored, revision) = store.etcd.get(&name).await?;
        let watcher = Watcher::new(&store.etcd, KeyRange::key(name), revision.next());
        let status = stored.as_ref().and_then(|stored| {
            Status::decode(&stored.value)
                .inspect_err(|error| warn!("the stored status counts as none: {error}"))
                .ok()
        });
        let Known {
            status_json,
            troubles,
        } = std::mem::take(known);
        Ok(Self {
            store: store.clone(),
            fence: fence.clone(),
            node: node.to_owned(),
            status,
            mod_revision: stored.map_or(Revision::ABSENT, |stored| stored.mod_revision),
            watcher,
            troubles,
            status_json,
            summaries: summaries.clone(),
        })
    }

    /// What is known, for the next reading.
    pub fn into_known(self) -> Known {
        Known {
            status_json: self.status_json,
            troubles: self.troubles,
        }
    }

    /// The status; `None` if it is absent or malformed.
    pub fn status(&self) -> Option<&Status> {
        self.status.as_ref()
    }

    /// Whether the key exists, even with a malformed value.
    pub fn exists(&self) -> bool {
        self.mod_revision > Revision::ABSENT
    }

    /// Adds the status and `status.json` to the transaction `proof` and commits it. [`Stop::Stale`] if someone else
    /// wrote the status meanwhile, or the proof does not hold.
    pub async fn write(&mut self, to: &Status, proof: Txn) -> Result<(), Stop> {
        let name = self.store.keys.status();
        let status_json = self.status_json_with(Some(to));
        let txn = proof
            .when_unchanged(&name, self.mod_revision)
            .put(&name, to.encode());
        let step = span::step("gate", format_args!("write the status {to}"), "status");
        self.mod_revision = span::within(step, self.commit(txn, status_json), Stop::outcome).await?;
        self.status = Some(to.clone());
        Ok(())
    }

    /// Commits the transaction `proof` without another write than `status.json`. [`Stop::Stale`] as for [`StatusKey::write`].
    pub async fn prove(&mut self, proof: Txn) -> Result<(), Stop> {
        let status_json = self.status_json_with(self.status.as_ref());
        let txn = proof.when_unchanged(&self.store.keys.status(), self.mod_revision);
        self.commit(txn, status_json).await.map(drop)
    }

    /// Whether an earlier leader has begun: there is a status, if only a malformed one, or one of the two keys that a leader
    /// writes before the status.
    pub async fn is_preceded(&mut self) -> Result<bool, Error> {
        let (etcd, keys) = (&self.store.etcd, &self.store.keys);
        if self.exists() || etcd.get(&keys.status_json()).await?.0.is_some() {
            return Ok(true);
        }
        let (applied, _) = etcd.count(&keys.all_inventory()).await?;
        Ok(applied > 0)
    }

    /// Writes `status.json` alone, if its content would change.
    pub async fn write_status_json(&mut self) -> Result<(), Stop> {
        let status_json = self.status_json_with(self.status.as_ref());
        if self.status_json.as_ref() == Some(&status_json) {
            return Ok(());
        }
        self.commit(Txn::new(), status_json).await.map(drop)
    }

    fn status_json_with(&self, status: Option<&Status>) -> StatusJson {
        let degraded = self.troubles.shown().cloned();
        StatusJson::new(status, &self.node, self.fence.term(), degraded)
    }

    /// Makes every write of the two keys.
    async fn commit(&mut self, txn: Txn, status_json: StatusJson) -> Result<Revision, Stop> {
        // Until the write is confirmed, `status.json` may hold the old content or the new.
        self.status_json = None;
        let txn = txn.put(&self.store.keys.status_json(), status_json.to_json());
        // At the same time, and the watch first: a new leader's first write does not wait for it, and it is open before the
        // store goes on. What was begun goes on with the next look.
        let Self {
            store,
            fence,
            watcher,
            ..
        } = self;
        let opening = async {
            watcher.open().await;
            std::future::pending().await
        };
        let committed = tokio::select! {
            biased;
            never = opening => never,
            committed = store.etcd.fenced(fence, txn) => committed?,
        };
        self.summaries.publish(status_json.clone());
        self.status_json = Some(status_json);
        Ok(committed.revision)
    }

    /// Sets why a pass over the resources failed, for the next write. Returns whether the message is another than before.
    pub fn set_degraded(&mut self, reason: &str, message: &str) -> bool {
        self.troubles.fails(reason, message, Timestamp::now())
    }

    /// Clears why the last pass failed, for the next write. Returns whether it had.
    pub fn clear_degraded(&mut self) -> bool {
        self.troubles.failure.take().is_some()
    }

    /// The nodes in the way of a restriction, if there are any.
    pub fn blockers(&self) -> Option<&str> {
        self.troubles.blockers.as_ref().map(|blockers| &*blockers.message)
    }

    /// Sets the nodes in the way of a restriction, for the next write.
    pub fn set_blockers(&mut self, message: &str) {
        self.troubles.waits_for_nodes(message, Timestamp::now());
    }

    /// No node is in the way any more: clears that for the next write, and leaves any other trouble.
    pub fn clear_blockers(&mut self) {
        self.troubles.blockers = None;
    }

    /// Resolves when someone else wrote or deleted the status. Safe to cancel.
    pub async fn changed_by_others(&mut self) {
        loop {
            match self.watcher.next().await {
                Watched::Compacted => return,
                Watched::Events(events) => {
                    // Each own write was conditional, so nothing up to the last of them is news.
                    if events.iter().any(|event| event.revision() > self.mod_revision) {
                        warn!("another client changed the reconciler status: planning again");
                        return;
                    }
                }
            }
        }
    }
}
