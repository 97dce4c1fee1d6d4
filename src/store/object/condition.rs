//! Conditions, as in Kubernetes: what a part of the system found out about an object.

use serde_json::{Value, json};

use super::document::{given, present};
use super::fields::Fields;
use super::time;
use super::words::word;
use crate::proto::Condition;
use crate::proto::condition::Status;

/// The words for a condition's status.
const STATUSES: &[(&str, Status)] = &[
    ("True", Status::True),
    ("False", Status::False),
    ("Unknown", Status::Unknown),
];

/// `True`, `False` or `Unknown`; a number that no release knows counts as unknown.
pub fn status_word(condition: &Condition) -> &'static str {
    word(STATUSES, &condition.status())
}

/// The conditions as a part of a document; `None` if there are none.
pub fn documents(conditions: &[Condition]) -> Option<Value> {
    (!conditions.is_empty()).then(|| conditions.iter().map(document).collect())
}

fn document(condition: &Condition) -> Value {
    present(json!({
        "type": condition.r#type,
        "status": status_word(condition),
        "reason": given(&condition.reason),
        "message": given(&condition.message),
        "lastTransitionTime": time::document(condition.last_transition_time.as_ref()),
        "observedGeneration": given(&condition.observed_generation),
    }))
}

/// Checks the `conditions` of a document. `get -o yaml` prints them; `apply` does not write them.
pub fn check(status: &mut Fields<'_, '_>) {
    status.objects("conditions", |condition| {
        condition.string("type");
        condition.one_of("status", STATUSES);
        condition.string("reason");
        condition.string("message");
        condition.parsed("lastTransitionTime", str::parse::<jiff::Timestamp>);
        condition.integer("observedGeneration");
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_is_written_as_in_kubernetes_and_read_without_a_fault() {
        let condition = Condition {
            r#type: "RoleChangeBlocked".to_owned(),
            status: Status::True.into(),
            reason: "QuorumRisk".to_owned(),
            message: "2 of 3 voters are healthy".to_owned(),
            last_transition_time: Some(prost_types::Timestamp {
                seconds: 1_772_366_400,
                nanos: 0,
            }),
            observed_generation: 4,
        };
        let document = json!({"conditions": documents(&[condition])});
        assert_eq!(
            document,
            json!({"conditions": [{
                "type": "RoleChangeBlocked", "status": "True", "reason": "QuorumRisk",
                "message": "2 of 3 voters are healthy", "lastTransitionTime": "2026-03-01T12:00:00Z",
                "observedGeneration": 4,
            }]})
        );
        let mut faults = Vec::new();
        Fields::document(&document, &mut faults, check);
        assert!(faults.is_empty(), "{faults:?}");
    }

    #[test]
    fn a_status_number_of_a_later_release_is_unknown() {
        let condition = Condition {
            status: 9,
            ..Condition::default()
        };
        assert_eq!(status_word(&condition), "Unknown");
    }
}
