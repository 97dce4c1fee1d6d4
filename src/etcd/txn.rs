//! Transactions: compares, then writes. Their results say whether anything was written.

use etcd_client::{Compare, CompareOp, DeleteOptions, PutOptions, TxnOp, TxnOpResponse};

use super::connect::Etcd;
use super::error::Error;
use super::kv::{KeyRange, LeaseId, Revision, revision_of};

/// Writes that etcd makes together if every compare holds, and else not at all.
///
/// etcd takes up to 128 compares and 128 writes (`--max-txn-ops`) and 1.5 MiB a request.
#[derive(Clone, Debug, Default)]
pub struct Txn {
    first_key: Option<Vec<u8>>,
    compares: Vec<Compare>,
    writes: Vec<TxnOp>,
}

/// A committed transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Committed {
    /// The revision of all its writes.
    pub revision: Revision,
}

/// Why a transaction was not committed, or may not have been.
#[derive(Debug, thiserror::Error)]
pub enum TxnError {
    /// A compare did not hold; nothing was written.
    #[error("something changed since it was read")]
    Conflict {
        /// The create revision of the first compare's key at that moment; [`Revision::ABSENT`] if there is no such key.
        first_key_created: Revision,
    },
    /// etcd gave no answer, or ran out of space: the writes may have been made.
    #[error("the outcome is unknown")]
    Unknown(#[source] Error),
    /// etcd refused it; nothing was written.
    #[error(transparent)]
    Failed(Error),
}

impl Txn {
    /// A transaction without compares and writes.
    pub fn new() -> Self {
        Self::default()
    }

    fn when(mut self, key: &[u8], compare: Compare) -> Self {
        self.first_key.get_or_insert_with(|| key.to_vec());
        self.compares.push(compare);
        self
    }

    /// Adds the fence: the first of all compares, on the key whose state a refusal reports.
    pub(super) fn first_created_at(mut self, key: &[u8], revision: Revision) -> Self {
        self.first_key = Some(key.to_vec());
        self.compares
            .insert(0, Compare::create_revision(key, CompareOp::Equal, revision.0));
        self
    }

    /// Requires that the key does not exist.
    #[must_use]
    pub fn when_absent(self, key: &[u8]) -> Self {
        self.when(key, Compare::create_revision(key, CompareOp::Equal, 0))
    }

    /// Requires that the last write of the key was at this revision; with [`Revision::ABSENT`], that the key does not
    /// exist.
    #[must_use]
    pub fn when_unchanged(self, key: &[u8], mod_revision: Revision) -> Self {
        self.when(key, Compare::mod_revision(key, CompareOp::Equal, mod_revision.0))
    }

    /// Requires that the key was created at this revision, and not deleted since. It may have been written.
    #[must_use]
    pub fn when_created_at(self, key: &[u8], create_revision: Revision) -> Self {
        let compare = Compare::create_revision(key, CompareOp::Equal, create_revision.0);
        self.when(key, compare)
    }

    /// Requires what is never so: a key that does not exist counts as created at 0.
    #[must_use]
    pub(super) fn when_never(self, key: &[u8]) -> Self {
        self.when(key, Compare::create_revision(key, CompareOp::Less, 0))
    }

    /// Requires that the key exists.
    #[must_use]
    pub fn when_present(self, key: &[u8]) -> Self {
        self.when(key, Compare::create_revision(key, CompareOp::Greater, 0))
    }

    /// Requires that no key of the range was written after this revision. Does not see deletes. Costs etcd a read of the
    /// whole range.
    #[must_use]
    pub fn when_range_unwritten_since(self, range: &KeyRange, revision: Revision) -> Self {
        let compare = Compare::mod_revision(range.start.clone(), CompareOp::Less, revision.next().0)
            .with_range(range.end.clone());
        self.when(&range.start, compare)
    }

    /// Requires that no key of the range was created after this revision; those that are there may change. Costs etcd a read of
    /// the whole range.
    #[must_use]
    pub fn when_none_created_since(self, range: &KeyRange, revision: Revision) -> Self {
        let compare = Compare::create_revision(range.start.clone(), CompareOp::Less, revision.next().0)
            .with_range(range.end.clone());
        self.when(&range.start, compare)
    }

    /// Requires that the range holds no key. Costs etcd a read of the whole range.
    #[must_use]
    pub fn when_range_empty(self, range: &KeyRange) -> Self {
        let compare =
            Compare::create_revision(range.start.clone(), CompareOp::Equal, 0).with_range(range.end.clone());
        self.when(&range.start, compare)
    }

    /// Writes a key. Takes it off its lease: see [`Txn::put_keeping_lease`].
    #[must_use]
    pub fn put(mut self, key: &[u8], value: impl Into<Vec<u8>>) -> Self {
        self.writes.push(TxnOp::put(key, value, None));
        self
    }

    /// Writes a key and attaches it to the lease, whose end deletes it.
    #[must_use]
    pub fn put_leased(mut self, key: &[u8], value: impl Into<Vec<u8>>, lease: LeaseId) -> Self {
        self.writes.push(TxnOp::put(
            key,
            value,
            Some(PutOptions::new().with_lease(lease.0)),
        ));
        self
    }

    /// Writes a key that must exist, and keeps it on the lease that it has.
    #[must_use]
    pub fn put_keeping_lease(mut self, key: &[u8], value: impl Into<Vec<u8>>) -> Self {
        self.writes.push(TxnOp::put(
            key,
            value,
            Some(PutOptions::new().with_ignore_lease()),
        ));
        self
    }

    /// Deletes a key, if it exists.
    #[must_use]
    pub fn delete(mut self, key: &[u8]) -> Self {
        self.writes.push(TxnOp::delete(key, None));
        self
    }

    /// Deletes every key of a range.
    #[must_use]
    pub fn delete_range(mut self, range: &KeyRange) -> Self {
        let options = DeleteOptions::new().with_range(range.end.clone());
        self.writes
            .push(TxnOp::delete(range.start.clone(), Some(options)));
        self
    }

    /// The number of writes, each range delete counted once.
    pub fn len(&self) -> usize {
        self.writes.len()
    }

    /// Whether the transaction writes nothing.
    pub fn is_empty(&self) -> bool {
        self.writes.is_empty()
    }
}

impl Etcd {
    /// Commits a transaction without a fence. For those that do not act as the leader: operators' commands and owners of
    /// leases.
    ///
    /// # Errors
    /// [`TxnError`]; its variants say whether anything may have been written.
    pub async fn unfenced(&self, txn: Txn) -> Result<Committed, TxnError> {
        self.commit(txn).await
    }

    pub(super) async fn commit(&self, txn: Txn) -> Result<Committed, TxnError> {
        let Txn {
            first_key,
            compares,
            writes,
        } = txn;
        let mut request = etcd_client::Txn::new().when(compares).and_then(writes);
        if let Some(key) = first_key {
            request = request.or_else([TxnOp::get(key, None)]);
        }
        let response = self
            .call("txn", |connection| {
                let request = request.clone();
                async move { connection.client.kv_client().txn(request).await }
            })
            .await
            .map_err(|error| match error.outcome_unknown() {
                true => TxnError::Unknown(error),
                false => TxnError::Failed(error),
            })?;
        if response.succeeded() {
            return Ok(Committed {
                revision: revision_of(response.header()),
            });
        }
        let first_key_created = match response.op_responses().first() {
            Some(TxnOpResponse::Get(read)) => read
                .kvs()
                .first()
                .map_or(Revision::ABSENT, |kv| Revision(kv.create_revision())),
            _ => Revision::ABSENT,
        };
        Err(TxnError::Conflict { first_key_created })
    }
}
