//! Deleting tasks: at once. Whoever deletes one says that it runs no more.

use futures::FutureExt;
use futures::future::BoxFuture;

use super::{Deletable, Deletion};
use crate::cli::exit::Failure;
use crate::cli::objects::pending;
use crate::etcd::Txn;
use crate::proto::Task;
use crate::store::object::decode;
use crate::store::{Id, Store};

/// The kind, as `delete` sees it.
pub struct DeleteTask;

impl Deletable for DeleteTask {
    fn plan<'a>(
        &'a self,
        store: &'a Store,
        id: &'a Id,
        force: bool,
    ) -> BoxFuture<'a, Result<Deletion, Failure>> {
        async move {
            let key = store.keys.task(id.owner.as_ref().unwrap_or(&id.name), &id.name);
            let stored = super::read(store, &key).await?;
            let state = match decode::<Task>(&id.to_string(), &stored.value) {
                Ok(task) => pending::task_state(&task),
                Err(_) if force => "malformed".to_owned(),
                Err(malformed) => return Err(super::malformed(&malformed)),
            };
            Ok(Deletion {
                statement: format!("task/{id} ({state}) is deleted"),
                outcome: "deleted",
                txn: Some(Txn::new().when_unchanged(&key, stored.mod_revision).delete(&key)),
            })
        }
        .boxed()
    }
}
