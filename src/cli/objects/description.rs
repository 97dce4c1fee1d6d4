//! The parts that the descriptions of several kinds share.

use jiff::Timestamp;

use crate::cli::output::{Description, NONE, one_line, or_none};
use crate::etcd::KeyValue;
use crate::proto::{Condition, Metadata};
use crate::store::object::{Malformed, Object, condition, decode, time};

/// How many blockers a description lists.
const LISTED: usize = 10;

/// A stored object in full: its metadata, or why it cannot be read; then what `own` adds, which gets `None` if it cannot
/// be read.
pub fn object<O: Object>(
    name: &str,
    stored: &KeyValue,
    now: Timestamp,
    own: impl FnOnce(&mut Description, Option<&O>),
) -> String {
    let mut description = Description::default();
    description.field(0, "Name", name).field(0, "Kind", O::KIND);
    match decode::<O>(name, &stored.value) {
        Ok(object) => {
            let metadata = object.metadata().cloned().unwrap_or_default();
            description.metadata(&metadata, stored, now);
            own(&mut description, Some(&object));
        }
        Err(error) => {
            description.malformed(stored, &error);
            own(&mut description, None);
        }
    }
    description.render()
}

impl Description {
    /// The metadata, which has the same fields in every kind.
    pub fn metadata(&mut self, metadata: &Metadata, stored: &KeyValue, now: Timestamp) {
        self.pairs("Labels", &metadata.labels)
            .field(0, "UID", or_none(&metadata.uid))
            .field(
                0,
                "Created",
                time::from_proto(metadata.creation_time.as_ref())
                    .map_or_else(|| "<unknown>".to_owned(), |created| time::since(created, now)),
            )
            .field(0, "Generation", metadata.generation.to_string())
            .field(0, "Resource Version", stored.mod_revision.to_string());
    }

    /// Why a value cannot be read, in the place of its metadata.
    pub fn malformed(&mut self, stored: &KeyValue, malformed: &Malformed) {
        self.field(0, "Malformed", malformed.to_string())
            .field(0, "Resource Version", stored.mod_revision.to_string())
            .field(0, "Value", format!("{} bytes", stored.value.len()));
    }

    /// A section with a paragraph for each condition.
    pub fn conditions(&mut self, conditions: &[Condition], now: Timestamp) {
        if conditions.is_empty() {
            self.field(0, "Conditions", NONE);
            return;
        }
        self.field(0, "Conditions", "");
        for shown in conditions {
            let reason = match shown.reason.as_str() {
                "" => String::new(),
                reason => format!(" ({reason})"),
            };
            let status = condition::status_word(shown);
            self.field(1, &one_line(&shown.r#type), format!("{status}{reason}"));
            if !shown.message.is_empty() {
                self.field(1, "", shown.message.as_str());
            }
            let since = time::from_proto(shown.last_transition_time.as_ref());
            let since = since.map(|at| format!("since {}", time::since(at, now)));
            let generation = Some(shown.observed_generation).filter(|generation| *generation != 0);
            let generation = generation.map(|generation| format!("observed at generation {generation}"));
            let dated: Vec<String> = since.into_iter().chain(generation).collect();
            if !dated.is_empty() {
                self.field(1, "", dated.join(", "));
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
        self.field(0, "Deleting", text);
    }

    /// A section that lists the first [`LISTED`] of the objects that hold this one back.
    pub fn blockers(&mut self, blockers: &[String]) {
        let shown = blockers.iter().take(LISTED).cloned();
        let more = blockers.len().checked_sub(LISTED).filter(|more| *more > 0);
        let more = more.map(|more| format!("and {more} more"));
        self.list("Blockers", shown.chain(more), NONE);
    }
}
