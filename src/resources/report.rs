//! The report of a pass, object by object.

use std::collections::BTreeMap;
use std::fmt;

use super::inventory::IN_PLACE;
use crate::kube::ObjectRef;
use crate::metrics::{self, Metrics};

/// The outcome of a pass for one object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The object was in place.
    Unchanged,
    /// The object did not exist and was created.
    Created,
    /// The object was changed.
    Applied,
    /// An immutable field had to change: the object was deleted and created.
    Recreated,
    /// The bundle no longer holds the object, and the object is gone.
    Pruned,
    /// The bundle no longer holds the object, and the object stays in the cluster for this reason.
    Kept(String),
    /// The bundle no longer holds the object; it is being deleted, and this holds it.
    Deleting(String),
    /// The bundle no longer holds the object; its deletion waits for the operator.
    Held(String),
    /// Another client keeps changing the object; the reconciler backs off. The message names the field manager.
    Contended(String),
    /// The object is not in place, for this reason.
    Failed(String),
}

/// The word of [`Outcome::Deleting`].
pub const DELETING: &str = "deleting";

/// The word of [`Outcome::Kept`].
pub const KEPT: &str = "kept";

/// All values of [`Outcome::word`].
pub(super) const WORDS: [&str; 10] = [
    "unchanged",
    "created",
    "applied",
    "recreated",
    "pruned",
    KEPT,
    DELETING,
    "held",
    "fighting",
    "failed",
];

impl Outcome {
    /// The label value of the metric `quorate_resources`.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Unchanged => "unchanged",
            Self::Created => "created",
            Self::Applied => "applied",
            Self::Recreated => "recreated",
            Self::Pruned => "pruned",
            Self::Kept(_) => KEPT,
            Self::Deleting(_) => DELETING,
            Self::Held(_) => "held",
            Self::Contended(_) => "fighting",
            Self::Failed(_) => "failed",
        }
    }

    /// The outcome as the inventory holds it. Of an object in place it does not matter what the last pass did.
    pub(super) fn state(&self) -> &'static str {
        match self {
            Self::Unchanged | Self::Created | Self::Applied | Self::Recreated => IN_PLACE,
            other => other.word(),
        }
    }

    /// The outcome in one word, for traces: `OK` unless there is trouble.
    pub(super) fn code(&self) -> &'static str {
        match self.trouble() {
            None => "OK",
            Some(_) => self.word(),
        }
    }

    /// The reason of an outcome that has one.
    pub(super) fn message(&self) -> &str {
        match self {
            Self::Kept(why) => why,
            other => other.trouble().unwrap_or_default(),
        }
    }

    /// Why the object is not as the bundle says; `None` if it is.
    pub(super) fn trouble(&self) -> Option<&str> {
        match self {
            Self::Contended(why) | Self::Failed(why) | Self::Deleting(why) | Self::Held(why) => Some(why),
            _ => None,
        }
    }
}

/// Why a pass ended before it reached every object. Not [`crate::etcd::Stop`]: the API server ends a pass, too, and two
/// reports are compared by the reason in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// The term is over, or its window closed.
    LostLeadership,
    /// The inventory in etcd could not be read or written.
    Etcd(String),
    /// The API server is unreachable, or rejects the credentials.
    ApiServer(String),
}

/// The outcomes of one pass.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    objects: BTreeMap<ObjectRef, Outcome>,
    acts: Vec<Act>,
    stopped: Option<Stopped>,
}

/// A deletion that the server has accepted. Each is a line in the log, and an Event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Act {
    /// An object that the bundle no longer holds was deleted, or its deletion began.
    Deleted(ObjectRef),
    /// An object with these immutable fields was deleted and created again. Without them if another pass created it than the
    /// one that began its recreation.
    Recreated(ObjectRef, Option<String>),
    /// An object with immutable fields was deleted, and is not created yet for this reason.
    Removed(ObjectRef, String),
    /// The successor of a deleted object was refused, and the object was created again as it was.
    PutBack(ObjectRef, String),
}

impl Act {
    /// The reason of the Event, in one word.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Deleted(_) | Self::Removed(..) => "ResourceDeleted",
            Self::Recreated(..) => "ResourceRecreated",
            Self::PutBack(..) => "ResourcePutBack",
        }
    }
}

impl fmt::Display for Act {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Deleted(object) => write!(f, "deleted {object} (no longer in the bundle)"),
            Self::Recreated(object, Some(why)) => {
                write!(f, "recreated {object} (immutable fields: {why})")
            }
            Self::Recreated(object, None) => write!(f, "recreated {object} (immutable fields)"),
            Self::Removed(object, why) => {
                write!(f, "deleted {object} to recreate it; not created yet: {why}")
            }
            Self::PutBack(object, why) => {
                write!(
                    f,
                    "put {object} back as it was: its successor was refused ({why})"
                )
            }
        }
    }
}

/// The number of objects that a summary names.
const SPELLED_OUT: usize = 3;

impl Report {
    pub(super) fn set(&mut self, object: ObjectRef, outcome: Outcome) {
        self.objects.insert(object, outcome);
    }

    pub(super) fn did(&mut self, act: Act) {
        self.acts.push(act);
    }

    /// What was deleted, in this order.
    pub fn acts(&self) -> &[Act] {
        &self.acts
    }

    /// Drops the outcomes. What was done stays.
    pub(super) fn begin_again(&mut self) {
        self.objects.clear();
    }

    pub(super) fn stop(&mut self, stopped: Stopped) {
        self.stopped = Some(stopped);
    }

    /// The outcome of every object of the bundle and the inventory; of a pass that stopped early, of those it reached.
    pub fn objects(&self) -> &BTreeMap<ObjectRef, Outcome> {
        &self.objects
    }

    /// Why the pass ended early, if it did.
    pub fn stopped(&self) -> Option<&Stopped> {
        self.stopped.as_ref()
    }

    /// The number of objects with this [`Outcome::word`].
    pub fn count(&self, word: &str) -> usize {
        self.objects
            .values()
            .filter(|outcome| outcome.word() == word)
            .count()
    }

    /// Whether everything that the bundle holds is in place.
    pub fn is_success(&self) -> bool {
        self.stopped.is_none() && self.objects.values().all(|outcome| outcome.trouble().is_none())
    }

    /// The reason of a failure in one word; empty after a success.
    pub fn reason(&self) -> &'static str {
        match &self.stopped {
            Some(Stopped::LostLeadership) => "LostLeadership",
            Some(Stopped::Etcd(_)) => "EtcdUnavailable",
            Some(Stopped::ApiServer(_)) => "ApiServerUnavailable",
            None if self.count("failed") > 0 => "ResourcesFailed",
            None if self.count("fighting") > 0 => "ResourcesContested",
            None if self.count("held") > 0 => "PruneHeld",
            None if self.count("deleting") > 0 => "DeletionPending",
            None => "",
        }
    }

    /// One line for people: what went wrong, or how many objects are in place.
    pub fn summary(&self) -> String {
        match &self.stopped {
            Some(Stopped::LostLeadership) => return "lost leadership".to_owned(),
            Some(Stopped::Etcd(why) | Stopped::ApiServer(why)) => return why.clone(),
            None => {}
        }
        let total = self.objects.len();
        let trouble: Vec<(&ObjectRef, &str)> = self
            .objects
            .iter()
            .filter_map(|(object, outcome)| Some((object, outcome.trouble()?)))
            .collect();
        if trouble.is_empty() {
            return format!("{total} objects in place");
        }
        let spelled_out: Vec<String> = trouble
            .iter()
            .take(SPELLED_OUT)
            .map(|(object, why)| format!("{object}: {why}"))
            .collect();
        let mut text = format!(
            "{} of {total} objects not in place: {}",
            trouble.len(),
            spelled_out.join("; ")
        );
        if trouble.len() > SPELLED_OUT {
            text.push_str(&format!("; and {} more", trouble.len() - SPELLED_OUT));
        }
        text
    }

    /// Sets the metrics of the pass.
    pub(super) fn record(&self, metrics: &Metrics, seconds: f64) {
        metrics.reconcile_passes.inc();
        metrics.reconcile_seconds.observe(seconds);
        if !self.is_success() {
            metrics.reconcile_errors.inc();
        }
        if self.stopped.is_some() {
            // The pass did not reach every object; the counts of the last complete pass stay.
            return;
        }
        for word in WORDS {
            let count = i64::try_from(self.count(word)).unwrap_or(i64::MAX);
            let label = metrics::Outcome { result: word };
            metrics.resources.get_or_create(&label).set(count);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(name: &str) -> ObjectRef {
        ObjectRef {
            group: String::new(),
            kind: "Namespace".to_owned(),
            namespace: None,
            name: name.to_owned(),
        }
    }

    #[test]
    fn a_report_counts_and_names_the_failed_objects() {
        let mut report = Report::default();
        report.set(object("a"), Outcome::Created);
        report.set(object("b"), Outcome::Kept("protected".to_owned()));
        assert!(report.is_success());
        assert_eq!(report.summary(), "2 objects in place");
        for name in ["c", "d", "e", "f"] {
            report.set(object(name), Outcome::Failed("rejected".to_owned()));
        }
        assert!(!report.is_success());
        assert_eq!(
            report.summary(),
            "4 of 6 objects not in place: Namespace c: rejected; Namespace d: rejected; Namespace e: rejected; and 1 more"
        );
        assert_eq!((report.count("failed"), report.reason()), (4, "ResourcesFailed"));
    }

    #[test]
    fn a_pass_that_stopped_reports_one_error() {
        let mut report = Report::default();
        report.set(object("a"), Outcome::Unchanged);
        report.stop(Stopped::ApiServer("it is down".to_owned()));
        assert!(!report.is_success());
        assert_eq!(report.summary(), "it is down");
        assert_eq!(report.reason(), "ApiServerUnavailable");
    }

    #[test]
    fn the_metrics_show_the_last_pass() {
        let metrics = Metrics::new("1.0.0");
        let mut report = Report::default();
        report.set(object("a"), Outcome::Failed("no".to_owned()));
        report.record(&metrics, 0.1);
        report.set(object("a"), Outcome::Applied);
        report.record(&metrics, 0.1);
        let text = metrics.encode();
        assert!(text.contains("quorate_resources{result=\"failed\"} 0"), "{text}");
        assert!(text.contains("quorate_resources{result=\"applied\"} 1"), "{text}");
        assert!(text.contains("quorate_reconcile_errors_total 1"), "{text}");
    }
}
