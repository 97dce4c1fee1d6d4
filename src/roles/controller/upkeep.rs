//! Writes that nothing else waits for: conditions, and the end of what nobody needs any more.

use std::time::{Duration, Instant};

use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use jiff::Timestamp;

use crate::etcd::{Fence, FencedError, Revision, Txn};
use crate::retry::Delays;
use crate::roles::index::{Index, Owner};
use crate::store::object::member::is_ended;
use crate::store::object::time;
use crate::store::{Keys, Name, Store};

/// Deletions in one transaction: each takes up to two compares of the 128 that etcd allows, and the fence one.
const BATCH: usize = 60;

/// What is being written.
pub struct Upkeep {
    under_way: FuturesUnordered<BoxFuture<'static, Result<Revision, FencedError>>>,
    /// Until the index has come so far, what was written would be written again.
    written: Revision,
    /// After a write that failed.
    rest: Option<Instant>,
    delays: Delays,
}

impl Upkeep {
    pub fn new() -> Self {
        Self {
            under_way: FuturesUnordered::new(),
            written: Revision::ABSENT,
            rest: None,
            delays: Delays::etcd(),
        }
    }

    /// Whether what the index holds can be acted on now.
    pub fn is_free(&self, index: &Index) -> bool {
        self.is_settled(index) && self.rest.is_none_or(|until| until <= Instant::now())
    }

    fn is_settled(&self, index: &Index) -> bool {
        index.is_complete() && self.under_way.is_empty() && index.revision() >= self.written
    }

    /// When the next record of a removed node is to be deleted. `None` where there is none, or where that has to wait for
    /// what is heard of when it comes: a list, the end of a write, news of it.
    pub fn due(&self, index: &Index, now: Timestamp) -> Option<Instant> {
        if !self.is_settled(index) {
            return None;
        }
        let left = Duration::try_from(index.next_expiry()?.duration_since(now)).unwrap_or_default();
        let due = Instant::now() + left;
        Some(self.rest.map_or(due, |rest| rest.max(due)))
    }

    /// Commits all of these at once: one that cannot be written delays no other.
    pub fn begin(&mut self, store: &Store, fence: &Fence, txns: impl IntoIterator<Item = Txn>) {
        for txn in txns {
            let (etcd, fence) = (store.etcd.clone(), fence.clone());
            self.under_way.push(Box::pin(async move {
                let committed = etcd.fenced(&fence, txn).await?;
                Ok(committed.revision)
            }));
        }
    }

    /// Resolves when one of them has ended; never while there is none. Safe to cancel.
    pub async fn next(&mut self) -> Result<Revision, FencedError> {
        match self.under_way.next().await {
            Some(ended) => ended,
            None => std::future::pending().await,
        }
    }

    /// Takes note of how one has ended. Whatever it was to write is compared with what is there before it is written again.
    pub fn ended(&mut self, ended: &Result<Revision, FencedError>) {
        match ended {
            Ok(revision) => {
                self.written = self.written.max(*revision);
                self.rest = None;
                self.delays.reset();
            }
            Err(_) => self.rest = Some(Instant::now() + self.delays.next_delay()),
        }
    }
}

/// Deletes records of removed nodes that have expired; `None` if there is none.
pub fn expired_nodes(index: &Index, keys: &Keys, now: Timestamp) -> Option<Txn> {
    let expired = index.expired(now).take(BATCH);
    let txn = expired.fold(Txn::new(), |txn, (uid, revision)| {
        let key = keys.removed(uid);
        txn.when_unchanged(&key, revision).delete(&key)
    });
    (!txn.is_empty()).then_some(txn)
}

/// Deletes joins that nothing can become of any more; `None` if there is none. Compared with them, each node is still
/// gone: to one that is there its join says how far it has come.
pub fn ended_joins(index: &Index, keys: &Keys, now: Timestamp, keep: Duration) -> Option<Txn> {
    let txn = of_no_use(index, now, keep)
        .take(BATCH)
        .fold(Txn::new(), |txn, (name, revision)| {
            let key = keys.join(&name);
            let node = index
                .node(name.as_str())
                .map_or(Revision::ABSENT, |entry| entry.mod_revision);
            txn.when_unchanged(&key, revision)
                .when_unchanged(&keys.node(&name), node)
                .delete(&key)
        });
    (!txn.is_empty()).then_some(txn)
}

/// Joins that ended so long ago, of nodes that do not exist and have no member. Without its node no join is asked for
/// again, and an add that may still be made is not ended.
fn of_no_use(index: &Index, now: Timestamp, keep: Duration) -> impl Iterator<Item = (Name, Revision)> {
    index.joins().filter_map(move |(node, join, revision)| {
        let uid = &join.request.as_ref()?.node_uid;
        let gone = index.owner_of(node, uid) == Owner::Gone && !index.may_be_member(node);
        let ended = time::from_proto(join.changed_at.as_ref())?;
        let passed = Duration::try_from(now.duration_since(ended)).unwrap_or_default();
        let due = is_ended(join) && gone && passed >= keep;
        due.then(|| Some((node.parse().ok()?, revision)))?
    })
}

#[cfg(test)]
mod tests;
