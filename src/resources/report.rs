//! What a pass did, object by object.

use std::collections::BTreeMap;

use crate::kube::ObjectRef;
use crate::metrics::{self, Metrics};

/// What became of one object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is in place, and nothing had to be done.
    Unchanged,
    /// It did not exist.
    Created,
    /// It was, or could have been, different.
    Applied,
    /// A field that cannot change had to: it was deleted and created.
    Recreated,
    /// The bundle no longer holds it: it is gone, or going.
    Pruned,
    /// The bundle no longer holds it, but it is not to be deleted.
    Kept,
    /// Someone keeps changing it back; it is left alone for a while.
    Contended(String),
    /// It is not in place.
    Failed(String),
}

/// The words of [`Outcome::word`].
const WORDS: [&str; 8] = [
    "unchanged",
    "created",
    "applied",
    "recreated",
    "pruned",
    "kept",
    "fighting",
    "failed",
];

impl Outcome {
    /// The same in one word, for metrics.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Unchanged => "unchanged",
            Self::Created => "created",
            Self::Applied => "applied",
            Self::Recreated => "recreated",
            Self::Pruned => "pruned",
            Self::Kept => "kept",
            Self::Contended(_) => "fighting",
            Self::Failed(_) => "failed",
        }
    }

    /// Why it is not in place.
    pub(super) fn trouble(&self) -> Option<&str> {
        match self {
            Self::Contended(why) | Self::Failed(why) => Some(why),
            _ => None,
        }
    }
}

/// What kept a pass as a whole from being made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// The term is over, or about to be.
    LostLeadership,
    /// etcd: the inventory cannot be read or written.
    Etcd(String),
    /// The API server does not answer, or not to us.
    ApiServer(String),
}

/// What a pass did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    objects: BTreeMap<ObjectRef, Outcome>,
    stopped: Option<Stopped>,
}

/// Failures that a summary spells out.
const SPELLED_OUT: usize = 3;

impl Report {
    pub(super) fn set(&mut self, object: ObjectRef, outcome: Outcome) {
        self.objects.insert(object, outcome);
    }

    pub(super) fn stop(&mut self, stopped: Stopped) {
        self.stopped = Some(stopped);
    }

    /// Every object of the bundle and of the inventory, with what became of it; after [`Report::stopped`], those that
    /// the pass came to.
    pub fn objects(&self) -> &BTreeMap<ObjectRef, Outcome> {
        &self.objects
    }

    /// What kept the pass as a whole from being made.
    pub fn stopped(&self) -> Option<&Stopped> {
        self.stopped.as_ref()
    }

    /// How many objects ended so.
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

    /// Why it is no success, in one word; empty if it is.
    pub fn reason(&self) -> &'static str {
        match &self.stopped {
            Some(Stopped::LostLeadership) => "LostLeadership",
            Some(Stopped::Etcd(_)) => "EtcdUnavailable",
            Some(Stopped::ApiServer(_)) => "ApiServerUnavailable",
            None if self.count("failed") > 0 => "ResourcesFailed",
            None if self.count("fighting") > 0 => "ResourcesContested",
            None => "",
        }
    }

    /// What went wrong, or how many objects are in place.
    pub fn summary(&self) -> String {
        match &self.stopped {
            Some(Stopped::LostLeadership) => return "leadership is lost".to_owned(),
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
            .map(|(object, why)| match why.contains(&object.to_string()) {
                true => (*why).to_owned(),
                false => format!("{object}: {why}"),
            })
            .collect();
        let mut text = format!("{} of {total} objects: {}", trouble.len(), spelled_out.join("; "));
        if trouble.len() > SPELLED_OUT {
            text.push_str(&format!("; and {} more", trouble.len() - SPELLED_OUT));
        }
        text
    }

    /// Shows it in the metrics.
    pub(super) fn record(&self, metrics: &Metrics, seconds: f64) {
        metrics.reconcile_passes.inc();
        metrics.reconcile_seconds.observe(seconds);
        if !self.is_success() {
            metrics.reconcile_errors.inc();
        }
        if self.stopped.is_some() {
            // What was not looked at is as it was, as far as anyone knows.
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
    fn a_report_counts_and_names_what_failed() {
        let mut report = Report::default();
        report.set(object("a"), Outcome::Created);
        report.set(object("b"), Outcome::Kept);
        assert!(report.is_success());
        assert_eq!(report.summary(), "2 objects in place");
        for name in ["c", "d", "e", "f"] {
            report.set(object(name), Outcome::Failed("rejected".to_owned()));
        }
        assert!(!report.is_success());
        assert_eq!(
            report.summary(),
            "4 of 6 objects: Namespace c: rejected; Namespace d: rejected; Namespace e: rejected; and 1 more"
        );
        assert_eq!((report.count("failed"), report.reason()), (4, "ResourcesFailed"));
    }

    #[test]
    fn what_stopped_a_pass_is_one_error() {
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
