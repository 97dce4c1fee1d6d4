//! Deleting tombstones: at once, and with them the last trace of what forced deletions left behind.

use futures::FutureExt;
use futures::future::BoxFuture;

use super::{Deletable, Deletion};
use crate::cli::exit::Failure;
use crate::etcd::Txn;
use crate::proto::Tombstone;
use crate::store::object::{decode, tombstone};
use crate::store::{Id, Store};

/// The kind, as `delete` sees it.
pub struct DeleteTombstone;

impl Deletable for DeleteTombstone {
    fn plan<'a>(
        &'a self,
        store: &'a Store,
        id: &'a Id,
        _force: bool,
    ) -> BoxFuture<'a, Result<Deletion, Failure>> {
        async move {
            let key = store.keys.tombstone(&id.name);
            let stored = super::read(store, &key).await?;
            let left = decode::<Tombstone>(id.name.as_str(), &stored.value)
                .map_or_else(|_| "unknown".to_owned(), |stored| tombstone::left_behind(&stored));
            Ok(Deletion {
                statement: format!(
                    "tombstone/{id} is deleted: nobody is reminded any more of what is left at the backend ({left})"
                ),
                outcome: "deleted",
                txn: Some(Txn::new().when_unchanged(&key, stored.mod_revision).delete(&key)),
            })
        }
        .boxed()
    }
}
