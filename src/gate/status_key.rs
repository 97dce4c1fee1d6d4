//! The status key and `status.json`, as the leader of one term reads, writes and watches them.

use tracing::warn;

use super::status::{Degraded, Status, StatusJson};
use crate::etcd::{Error, Fence, FencedError, KeyRange, Revision, Txn, Watched, Watcher};
use crate::store::Store;
use crate::store::object::time;

/// Why the controller looks at the status anew, or stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Interrupt {
    /// The status, or what it was decided on, is not what it was.
    Replan,
    /// The term is over.
    LostLeadership,
}

/// The status as it was read, and as it was written since.
pub(super) struct StatusKey {
    store: Store,
    fence: Fence,
    /// Node id of the leader, for `status.json`.
    node: String,
    status: Option<Status>,
    /// Of what was read or written last; [`Revision::ABSENT`] without a status.
    mod_revision: Revision,
    watcher: Watcher,
    degraded: Option<Degraded>,
    /// What `status.json` says; `None` while that is not known.
    status_json: Option<StatusJson>,
}

impl StatusKey {
    /// Reads it, and watches it from then on. `status_json` is what `status.json` says, if that is known.
    pub async fn read(
        store: &Store,
        fence: &Fence,
        node: &str,
        status_json: Option<StatusJson>,
    ) -> Result<Self, Error> {
        let name = store.keys.status();
        let (stored, revision) = store.etcd.get(&name).await?;
        let mut watcher = Watcher::new(&store.etcd, KeyRange::key(name), revision.next());
        watcher.open().await;
        let status = stored.as_ref().and_then(|stored| {
            Status::decode(&stored.value)
                .inspect_err(|error| warn!("the stored status counts as none: {error}"))
                .ok()
        });
        Ok(Self {
            store: store.clone(),
            fence: fence.clone(),
            node: node.to_owned(),
            status,
            mod_revision: stored.map_or(Revision::ABSENT, |stored| stored.mod_revision),
            watcher,
            degraded: None,
            status_json,
        })
    }

    /// What `status.json` says, if that is known.
    pub fn into_status_json(self) -> Option<StatusJson> {
        self.status_json
    }

    /// What it says; `None` if it is absent or malformed.
    pub fn status(&self) -> Option<&Status> {
        self.status.as_ref()
    }

    /// Whether there is one, be it malformed.
    pub fn exists(&self) -> bool {
        self.mod_revision > Revision::ABSENT
    }

    /// Writes the status and `status.json`, on top of `proof`, if the status is still the one that is known.
    pub async fn write(&mut self, to: &Status, proof: Txn) -> Result<(), Interrupt> {
        let name = self.store.keys.status();
        let status_json = self.status_json_with(Some(to));
        let txn = proof
            .when_unchanged(&name, self.mod_revision)
            .put(&name, to.encode());
        self.mod_revision = self.commit(txn, status_json).await?;
        self.status = Some(to.clone());
        Ok(())
    }

    /// Writes `status.json` alone, if it would change.
    pub async fn write_status_json(&mut self) -> Result<(), Interrupt> {
        let status_json = self.status_json_with(self.status.as_ref());
        if self.status_json.as_ref() == Some(&status_json) {
            return Ok(());
        }
        self.commit(Txn::new(), status_json).await.map(drop)
    }

    fn status_json_with(&self, status: Option<&Status>) -> StatusJson {
        StatusJson::new(status, &self.node, self.fence.term(), self.degraded.clone())
    }

    /// The only writes of both keys.
    async fn commit(&mut self, txn: Txn, status_json: StatusJson) -> Result<Revision, Interrupt> {
        // Whatever becomes of this, what `status.json` said before is no measure any more.
        self.status_json = None;
        let txn = txn.put(&self.store.keys.status_json(), status_json.to_json());
        match self.store.etcd.fenced(&self.fence, txn).await {
            Ok(committed) => {
                self.status_json = Some(status_json);
                Ok(committed.revision)
            }
            Err(FencedError::LostLeadership(_)) => Err(Interrupt::LostLeadership),
            Err(FencedError::Conflict) => Err(Interrupt::Replan),
            Err(error @ (FencedError::Unknown(_) | FencedError::Failed(_))) => {
                warn!("writing the reconciler status failed, reading it again: {error}");
                Err(Interrupt::Replan)
            }
        }
    }

    /// Takes down what is wrong, for the next write, and whether that is news. An ongoing trouble keeps its beginning.
    pub fn degrade(&mut self, reason: &str, message: &str) -> bool {
        let before = self.degraded.take();
        let news = before.as_ref().map(|before| &*before.message) != Some(message);
        let since = before.map_or_else(|| time::rfc3339(jiff::Timestamp::now()), |before| before.since);
        self.degraded = Some(Degraded {
            reason: reason.to_owned(),
            message: message.to_owned(),
            since,
        });
        news
    }

    /// Nothing is wrong any more; whether anything was.
    pub fn mend(&mut self) -> bool {
        self.degraded.take().is_some()
    }

    /// Resolves when someone else wrote or deleted the status. Safe to cancel.
    pub async fn changed_by_others(&mut self) {
        loop {
            match self.watcher.next().await {
                Watched::Compacted => return,
                Watched::Events(events) => {
                    // Up to the own last write everything is known: each of them was conditional.
                    if events.iter().any(|event| event.revision() > self.mod_revision) {
                        warn!("someone else changed the reconciler status: planning anew");
                        return;
                    }
                }
            }
        }
    }
}
