//! The parts that the descriptions of several kinds share.

use jiff::Timestamp;

use super::view::Item;
use crate::cli::output::{Description, NONE, UNKNOWN, one_line, or_none};
use crate::proto::{Condition, Metadata};
use crate::store::object::mark::{self, Marked};
use crate::store::object::{Malformed, Object, condition, time};

/// How many blockers a description lists.
const LISTED: usize = 10;

impl Description {
    /// The metadata of a stored object, which is returned; or why it cannot be read.
    pub fn object<O: Object>(&mut self, item: &Item<'_>) -> Option<O> {
        match item.object::<O>() {
            Ok(object) => {
                let metadata = object.metadata().cloned().unwrap_or_default();
                self.metadata(&metadata, item);
                Some(object)
            }
            Err(malformed) => {
                self.malformed(item, &malformed);
                None
            }
        }
    }

    fn metadata(&mut self, metadata: &Metadata, item: &Item<'_>) {
        let created = time::from_proto(metadata.creation_time.as_ref());
        let created = created.map_or_else(|| UNKNOWN.to_owned(), |created| time::since(created, item.now));
        self.pairs("Labels", &metadata.labels)
            .field("UID", or_none(&metadata.uid))
            .field("Created", created)
            .field("Generation", metadata.generation.to_string())
            .field("Resource Version", item.revision().to_string());
    }

    /// Why the value of an object cannot be read, in the place of its metadata.
    pub fn malformed(&mut self, item: &Item<'_>, malformed: &Malformed) {
        self.field("Malformed", malformed.to_string())
            .field("Resource Version", item.revision().to_string())
            .field("Value", format!("{} bytes", item.stored.value.len()));
    }

    /// A section with a paragraph for each condition.
    pub fn conditions(&mut self, conditions: &[Condition], now: Timestamp) {
        if conditions.is_empty() {
            self.field("Conditions", NONE);
            return;
        }
        self.field("Conditions", "");
        for shown in conditions {
            let reason = match shown.reason.as_str() {
                "" => String::new(),
                reason => format!(" ({reason})"),
            };
            let status = condition::status_word(shown);
            self.nested(&one_line(&shown.r#type), format!("{status}{reason}"));
            if !shown.message.is_empty() {
                self.nested("", shown.message.as_str());
            }
            let since = time::from_proto(shown.last_transition_time.as_ref());
            let since = since.map(|at| format!("since {}", time::since(at, now)));
            let generation = Some(shown.observed_generation).filter(|generation| *generation != 0);
            let generation = generation.map(|generation| format!("observed at generation {generation}"));
            let dated: Vec<String> = since.into_iter().chain(generation).collect();
            if !dated.is_empty() {
                self.nested("", dated.join(", "));
            }
        }
    }

    /// Whether an object is marked for deletion, and since when.
    pub fn mark(&mut self, mark: Option<&prost_types::Timestamp>, now: Timestamp) {
        let text = match (mark, time::from_proto(mark)) {
            (None, _) => "no".to_owned(),
            (Some(_), Some(at)) => format!("yes, since {}", time::since(at, now)),
            (Some(_), None) => "yes".to_owned(),
        };
        self.field("Deleting", text);
    }

    /// Whether an object is marked for deletion, and the first [`LISTED`] of its users, which then hold it back.
    pub fn deletion(&mut self, object: &impl Marked, now: Timestamp, users: &[String]) {
        self.mark(object.mark(), now);
        let blockers = mark::blockers(object, users);
        let shown = blockers.iter().take(LISTED).cloned();
        let more = blockers.len().checked_sub(LISTED).filter(|more| *more > 0);
        let more = more.map(|more| format!("and {more} more"));
        self.list("Blockers", shown.chain(more), NONE);
    }
}
