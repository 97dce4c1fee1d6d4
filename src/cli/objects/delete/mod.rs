//! Deletion: what deleting an object of a kind means, and how its end is followed.

use futures::future::BoxFuture;
use jiff::Timestamp;

use self::published::Reads;
use super::view::View;
use crate::cli::commit::Proposal;
use crate::cli::exit::Failure;
use crate::etcd::{KeyValue, Revision, Txn};
use crate::store::object::mark::Marked;
use crate::store::object::{Malformed, Object, decode, time};
use crate::store::{Id, Store};

pub mod command;
mod following;
mod leftovers;
pub mod marked;
pub mod nodes;
mod published;
pub mod tasks;
pub mod tombstones;
pub mod used_by_volumes;
pub mod volumes;

/// How the objects of a kind are deleted.
pub struct Deletable {
    /// Reads what decides besides the object, and decides. Exit code 4 for an object that must not be deleted.
    pub plan: for<'a> fn(Request<'a>) -> BoxFuture<'a, Result<Deletion, Failure>>,
    /// The same for an object that does not exist, but may have left something behind.
    pub plan_absent: Option<PlanAbsent>,
    /// How the end is followed of objects that are only marked, or that leave something behind.
    pub ending: Option<Ending>,
}

/// Decides about an object that does not exist; the flag is whether `--force` is given. `None` if nothing is left of it.
pub type PlanAbsent =
    for<'a> fn(&'a Store, &'a Id, bool, Reads<'a>) -> BoxFuture<'a, Result<Option<Deletion>, Failure>>;

/// An object to delete.
pub struct Request<'a> {
    /// Where it is stored.
    pub store: &'a Store,
    /// Its name.
    pub id: &'a Id,
    /// Its key and value.
    pub stored: KeyValue,
    /// Whether `--force` is given.
    pub force: bool,
    /// What is read once for all objects.
    pub reads: Reads<'a>,
}

/// What deleting one object means. It is only marked, or has the mark already, if its kind has one.
pub type Deletion = Proposal<&'static str>;

/// What is in the way of the end of an object.
pub enum Blockers {
    /// The objects that hold it back, such as `task web/1 (running)`.
    Objects(fn(&View, &Id) -> Vec<String>),
    /// What has to happen before, a sentence each, such as `the leader has to delete the volume`.
    Sentences(fn(&View, &Id) -> Vec<String>),
}

/// How the end of a deletion is followed.
pub struct Ending {
    /// When that which has to go was created: a later one of the same name is another one. `None` once it is gone.
    pub created: fn(&View, key: &[u8], &Id) -> Option<Revision>,
    /// What is in its way.
    pub blockers: Blockers,
    /// What is printed about the object at the end.
    pub outcome: &'static str,
}

impl Ending {
    /// The end of an object that is deleted once nothing holds it back.
    pub const fn of_marked(blockers: Blockers) -> Self {
        Self {
            created: |view, key, _| view.get(key).map(|kv| kv.create_revision),
            blockers,
            outcome: "deleted",
        }
    }
}

impl Request<'_> {
    /// The stored object.
    fn object<O: Object>(&self) -> Result<O, Malformed> {
        decode(&self.id.to_string(), &self.stored.value)
    }

    /// Compares the object with what was read.
    fn when_unchanged(&self) -> Txn {
        Txn::new().when_unchanged(&self.stored.key, self.stored.mod_revision)
    }

    /// Deletes the object at once.
    fn delete(&self, statement: String) -> Deletion {
        Deletion {
            statement,
            outcome: "deleted",
            txn: Some(self.when_unchanged().delete(&self.stored.key)),
        }
    }

    /// Marks the object, which the leader then deletes.
    fn mark<O: Marked>(&self, mut object: O, statement: String) -> Deletion {
        *object.mark_mut() = Some(time::to_proto(Timestamp::now()));
        Deletion {
            statement,
            outcome: "marked for deletion",
            txn: Some(
                self.when_unchanged()
                    .put(&self.stored.key, object.encode_to_vec()),
            ),
        }
    }

    /// Leaves an object alone that has the mark.
    fn marked_already(&self, kind: &str, condition: &str) -> Deletion {
        Deletion {
            statement: format!("{kind}/{} is marked for deletion already{condition}", self.id),
            outcome: "is marked for deletion already",
            txn: None,
        }
    }
}

/// The refusal of an object whose stored value cannot be read.
fn malformed(malformed: &Malformed) -> Failure {
    Failure::refused(
        "Malformed",
        format!("the stored value cannot be read ({malformed})"),
    )
    .hint("--force deletes it all the same")
}
