//! The delete mark of services, networks and volumes: set once, never taken back. The object goes when nothing uses it.

use jiff::Timestamp;
use prost_types::Timestamp as Stored;
use serde_json::{Map, Value, json};

use super::fields::Fields;
use super::{Object, time};
use crate::proto::{Metadata, Network, Service, Volume};

/// A kind that is deleted by a mark.
pub trait Marked: Object {
    /// The mark. Its presence counts, also with a time that is out of range.
    fn mark(&self) -> Option<&Stored>;

    /// Where the mark is.
    fn mark_mut(&mut self) -> &mut Option<Stored>;

    /// An object of this name that uses nothing and is marked: what replaces one whose value cannot be read and that
    /// is to go all the same.
    fn empty_and_marked(name: &str, uid: String, now: Timestamp) -> Self {
        let mut object = Self::default();
        *object.metadata_mut() = Metadata {
            name: name.to_owned(),
            uid,
            creation_time: Some(time::to_proto(now)),
            generation: 1,
            ..Metadata::default()
        };
        *object.mark_mut() = Some(time::to_proto(now));
        object
    }
}

impl Marked for Service {
    fn mark(&self) -> Option<&Stored> {
        self.status.as_ref()?.delete_requested.as_ref()
    }

    fn mark_mut(&mut self) -> &mut Option<Stored> {
        &mut self.status.get_or_insert_default().delete_requested
    }
}

impl Marked for Network {
    fn mark(&self) -> Option<&Stored> {
        self.status.as_ref()?.delete_requested.as_ref()
    }

    fn mark_mut(&mut self) -> &mut Option<Stored> {
        &mut self.status.get_or_insert_default().delete_requested
    }
}

impl Marked for Volume {
    fn mark(&self) -> Option<&Stored> {
        self.status.as_ref()?.delete_requested.as_ref()
    }

    fn mark_mut(&mut self) -> &mut Option<Stored> {
        &mut self.status.get_or_insert_default().delete_requested
    }
}

/// The status of a document: whether it is marked, since when, and what holds it back.
pub fn status(mark: Option<&Stored>, blockers: &[String]) -> Value {
    let mut status = Map::new();
    status.insert("deleting".to_owned(), json!(mark.is_some()));
    if let Some(since) = time::from_proto(mark) {
        status.insert("deletingSince".to_owned(), json!(time::rfc3339(since)));
    }
    status.insert("blockers".to_owned(), json!(blockers));
    Value::Object(status)
}

/// Checks the status of a document. Nobody can set it; it stands in what `get -o yaml` printed.
pub fn check(document: &mut Fields<'_, '_>) {
    document.object("status", |status| {
        status.boolean("deleting");
        status.parsed("deletingSince", str::parse::<Timestamp>);
        status.distinct("blockers", |text| Ok::<_, String>(text.to_owned()));
    });
}
