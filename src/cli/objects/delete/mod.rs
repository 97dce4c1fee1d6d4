//! Deletion: the kinds that can be deleted say what deleting an object means, and how its end is followed.

use futures::future::BoxFuture;

use super::view::View;
use crate::cli::exit::{Exit, Failure};
use crate::etcd::{KeyRange, KeyValue, Revision, Txn};
use crate::store::object::Malformed;
use crate::store::{Id, Keys, Store};

pub mod command;
pub mod marked;
pub mod nodes;
pub mod tasks;
pub mod tombstones;
pub mod used_by_volumes;
pub mod volumes;
mod wait;

/// A kind that `delete` deletes.
pub trait Deletable: Sync {
    /// Reads what decides, and decides.
    ///
    /// The failure of an object that does not exist has exit code 3, that of one that may not go has 4.
    fn plan<'a>(
        &'a self,
        store: &'a Store,
        id: &'a Id,
        force: bool,
    ) -> BoxFuture<'a, Result<Deletion, Failure>>;

    /// How its end is followed, if deleting it only marks it.
    fn ends_later(&self) -> Option<&dyn EndsLater> {
        None
    }
}

/// A kind whose deletion ends later: objects that are marked and go once nothing uses them, or that leave something
/// behind.
pub trait EndsLater: Sync {
    /// When that which is waited for came to be: another one of the same name is not waited for. `None` if it is gone.
    fn came_to_be(&self, view: &View, id: &Id) -> Option<Revision>;

    /// The ranges that show it and everything that can hold it back.
    fn ranges(&self, keys: &Keys, id: &Id) -> Vec<KeyRange>;

    /// What holds it back, each in words.
    fn blockers(&self, view: &View, id: &Id) -> Vec<String>;

    /// What is said of it at the end.
    fn ended(&self) -> &'static str {
        "deleted"
    }
}

/// What deleting one object means.
#[derive(Clone, Debug)]
pub struct Deletion {
    /// What will happen to what, for the question: `node/n1 is deleted: …`.
    pub statement: String,
    /// What has happened then: `deleted`.
    pub outcome: &'static str,
    /// Compares what was read, and deletes or marks; `None` if there is nothing left to do.
    pub txn: Option<Txn>,
}

/// Reads the object that is to be deleted.
///
/// # Errors
/// 3 if it is not there.
pub async fn read(store: &Store, key: &[u8]) -> Result<KeyValue, Failure> {
    let (stored, _) = store.etcd.get(key).await.map_err(Failure::failed)?;
    stored.ok_or_else(|| Failure::new(Exit::NotFound, "not found"))
}

/// The failure of an object whose stored value cannot be read.
pub fn malformed(malformed: &Malformed) -> Failure {
    let why = format!("refused by rule Malformed: the stored value cannot be read ({malformed})");
    Failure::new(Exit::Refused, why).hint("--force deletes it all the same")
}
