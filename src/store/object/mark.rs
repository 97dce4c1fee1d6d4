//! The delete mark of services, networks and volumes. It is set once and never taken back; the leader deletes a marked
//! object once nothing uses it.

use prost_types::Timestamp as StoredTime;
use serde_json::{Value, json};

use super::document::present;
use super::fields::Fields;
use super::{Object, time};
use crate::proto::{Network, Service, Volume};

/// A kind whose objects are deleted by a mark.
pub trait Marked: Object {
    /// When the object was marked. Its presence counts, even with a time that is out of range.
    fn mark(&self) -> Option<&StoredTime>;

    /// The mark, to set it.
    fn mark_mut(&mut self) -> &mut Option<StoredTime>;
}

macro_rules! marked {
    ($($kind:ty),+) => {$(
        impl Marked for $kind {
            fn mark(&self) -> Option<&StoredTime> {
                self.status.as_ref()?.delete_requested.as_ref()
            }

            fn mark_mut(&mut self) -> &mut Option<StoredTime> {
                &mut self.status.get_or_insert_default().delete_requested
            }
        }
    )+};
}

marked!(Service, Network, Volume);

/// What holds the object back: its users, once it is marked.
pub fn blockers<'a>(object: &impl Marked, users: &'a [String]) -> &'a [String] {
    if object.is_marked() { users } else { &[] }
}

/// The status part of a document: whether the object is marked, since when, and what holds it back.
pub fn status(mark: Option<&StoredTime>, blockers: &[String]) -> Value {
    present(json!({
        "deleting": mark.is_some(),
        "deletingSince": time::document(mark),
        "blockers": blockers,
    }))
}

/// Checks the status part of a document. `get -o yaml` prints it; `apply` does not write it.
pub fn check(document: &mut Fields<'_, '_>) {
    document.object("status", |status| {
        status.boolean("deleting");
        status.parsed("deletingSince", time::parse);
        status.distinct("blockers", |text| Ok::<_, String>(text.to_owned()));
    });
}
