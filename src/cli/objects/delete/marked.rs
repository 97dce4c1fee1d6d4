//! Deleting services and networks: a mark. The leader alone deletes them, once nothing uses them (INV-7).

use futures::FutureExt;
use futures::future::BoxFuture;
use jiff::Timestamp;

use super::{Deletable, Deletion, EndsLater};
use crate::cli::exit::Failure;
use crate::cli::objects::view::View;
use crate::etcd::{KeyRange, Revision, Txn};
use crate::store::object::mark::Marked;
use crate::store::object::{decode, time};
use crate::store::{Id, Keys, Name, Store};

/// A kind that is deleted by a mark, as `delete` sees it.
pub struct DeleteMarked<O> {
    /// The key of an object.
    pub key: fn(&Keys, &Name) -> Vec<u8>,
    /// The ranges that show an object and everything that can hold it back.
    pub ranges: fn(&Keys, &Name) -> Vec<KeyRange>,
    /// What holds an object back, each in words.
    pub blockers: fn(&View, &Name) -> Vec<String>,
    /// When it goes, in words.
    pub condition: &'static str,
    /// What it is.
    pub kind: std::marker::PhantomData<fn() -> O>,
}

impl<O: Marked> Deletable for DeleteMarked<O> {
    fn plan<'a>(
        &'a self,
        store: &'a Store,
        id: &'a Id,
        force: bool,
    ) -> BoxFuture<'a, Result<Deletion, Failure>> {
        async move {
            let key = (self.key)(&store.keys, &id.name);
            let stored = super::read(store, &key).await?;
            let now = Timestamp::now();
            let kind = O::KIND.to_lowercase();
            let condition = self.condition;
            let (statement, after) = match decode::<O>(id.name.as_str(), &stored.value) {
                Ok(object) if object.is_marked() => {
                    return Ok(Deletion {
                        statement: format!("{kind}/{id} is marked for deletion already; {condition}"),
                        outcome: "is marked for deletion already",
                        txn: None,
                    });
                }
                Ok(mut object) => {
                    *object.mark_mut() = Some(time::to_proto(now));
                    let statement = format!(
                        "{kind}/{id} is marked for deletion, which cannot be taken back; {condition}"
                    );
                    (statement, object)
                }
                // What it used is unknown, and so it holds every marked network; the empty one lets go of all.
                Err(_) if force => {
                    let statement = format!(
                        "{kind}/{id} cannot be read: it is replaced by an empty one, which uses nothing and is marked \
                         for deletion; {condition}"
                    );
                    let uid = uuid::Uuid::new_v4().to_string();
                    (statement, O::empty_and_marked(id.name.as_str(), uid, now))
                }
                Err(malformed) => return Err(super::malformed(&malformed)),
            };
            let txn = Txn::new()
                .when_unchanged(&key, stored.mod_revision)
                .put(&key, after.encode_to_vec());
            Ok(Deletion {
                statement,
                outcome: "marked for deletion",
                txn: Some(txn),
            })
        }
        .boxed()
    }

    fn ends_later(&self) -> Option<&dyn EndsLater> {
        Some(self)
    }
}

impl<O: Marked> EndsLater for DeleteMarked<O> {
    fn came_to_be(&self, view: &View, id: &Id) -> Option<Revision> {
        let stored = view.get(&(self.key)(&view.keys, &id.name));
        stored.map(|kv| kv.create_revision)
    }

    fn ranges(&self, keys: &Keys, id: &Id) -> Vec<KeyRange> {
        (self.ranges)(keys, &id.name)
    }

    fn blockers(&self, view: &View, id: &Id) -> Vec<String> {
        (self.blockers)(view, &id.name)
    }
}
