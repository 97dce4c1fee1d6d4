//! The last pass over the Kubernetes resources, for people. Pure.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::Serialize;

use super::report::{Report, WORDS};
use crate::store::object::time;
use crate::summary::Rows;

/// The resources after the last pass.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ResourcesSummary {
    /// How many objects had each outcome in the last pass that reached all of them, by its word.
    pub outcomes: BTreeMap<&'static str, usize>,
    /// Those of them that are not as the bundle says.
    pub troubled: Rows<ResourceRow>,
    /// Why the last pass did not reach every object; `None` if it did.
    pub stopped: Option<String>,
    /// When the last pass ended, in RFC 3339.
    pub passed_at: String,
}

/// An object that is not as the bundle says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ResourceRow {
    /// Kind, namespace and name.
    pub object: String,
    /// `failed`, `fighting`, `held`, `deleting`
    pub outcome: &'static str,
    /// Why.
    pub message: String,
}

impl ResourcesSummary {
    /// After a pass with this report. One that stopped early says nothing of the objects that it did not reach, so what was known
    /// before stays.
    pub fn after(&self, report: &Report, now: Timestamp) -> Self {
        let passed_at = time::rfc3339(now);
        if report.stopped().is_some() {
            return Self {
                stopped: Some(report.summary()),
                passed_at,
                ..self.clone()
            };
        }
        let outcomes = WORDS.map(|word| (word, report.count(word)));
        let troubled = report.objects().iter();
        let troubled =
            troubled.filter_map(|(object, outcome)| Some((object, outcome.word(), outcome.trouble()?)));
        Self {
            outcomes: outcomes.into_iter().filter(|(_, count)| *count > 0).collect(),
            troubled: Rows::least(troubled).map(|(object, outcome, message)| ResourceRow {
                object: object.to_string(),
                outcome,
                message: message.to_owned(),
            }),
            stopped: None,
            passed_at,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kube::ObjectRef;
    use crate::resources::report::{Outcome, Stopped};

    fn object(name: &str) -> ObjectRef {
        ObjectRef {
            group: String::new(),
            kind: "ConfigMap".to_owned(),
            namespace: Some("a".to_owned()),
            name: name.to_owned(),
        }
    }

    #[test]
    fn a_pass_that_stopped_early_keeps_what_the_last_whole_one_found() {
        let mut report = Report::default();
        report.set(object("x"), Outcome::Applied);
        report.set(object("y"), Outcome::Failed("denied".to_owned()));
        let whole = ResourcesSummary::default().after(&report, Timestamp::UNIX_EPOCH);
        assert_eq!(whole.outcomes, [("applied", 1), ("failed", 1)].into());
        let row = ResourceRow {
            object: "ConfigMap a/y".to_owned(),
            outcome: "failed",
            message: "denied".to_owned(),
        };
        assert_eq!(whole.troubled.first, [row]);
        let mut report = Report::default();
        report.stop(Stopped::ApiServer("it is down".to_owned()));
        let stopped = whole.after(&report, Timestamp::UNIX_EPOCH);
        assert_eq!(stopped.stopped.as_deref(), Some("it is down"));
        assert_eq!(
            (stopped.outcomes, stopped.troubled),
            (whole.outcomes, whole.troubled)
        );
    }
}
