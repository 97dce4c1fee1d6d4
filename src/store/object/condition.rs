//! Conditions, as in Kubernetes: what a part of the system found out about an object.

use jiff::Timestamp;
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

/// The condition of this type.
pub fn find<'c>(conditions: &'c [Condition], r#type: &str) -> Option<&'c Condition> {
    conditions.iter().find(|condition| condition.r#type == r#type)
}

/// Makes the condition of this type true, with a reason and a message. A condition that is true already keeps the time
/// since when it is, whatever its reason was. Returns whether anything changed.
pub fn set(
    conditions: &mut Vec<Condition>,
    r#type: &str,
    why: (&str, &str),
    generation: i64,
    now: Timestamp,
) -> bool {
    let before = find(conditions, r#type);
    let since = before.filter(|before| before.status() == Status::True);
    let since = since.and_then(|before| before.last_transition_time);
    let after = Condition {
        r#type: r#type.to_owned(),
        status: Status::True.into(),
        reason: why.0.to_owned(),
        message: why.1.to_owned(),
        last_transition_time: since.or_else(|| Some(time::to_proto(now))),
        observed_generation: generation,
    };
    if before == Some(&after) {
        return false;
    }
    match conditions.iter_mut().find(|condition| condition.r#type == r#type) {
        Some(stored) => *stored = after,
        None => conditions.push(after),
    }
    true
}

/// Makes the condition of this type false from `since` on, with a reason and a message.
pub fn set_false(conditions: &mut Vec<Condition>, r#type: &str, why: (&str, &str), since: Timestamp) {
    clear(conditions, r#type);
    conditions.push(Condition {
        r#type: r#type.to_owned(),
        status: Status::False.into(),
        reason: why.0.to_owned(),
        message: why.1.to_owned(),
        last_transition_time: Some(time::to_proto(since)),
        observed_generation: 0,
    });
}

/// Removes the condition of this type. Returns whether there was one.
pub fn clear(conditions: &mut Vec<Condition>, r#type: &str) -> bool {
    let before = conditions.len();
    conditions.retain(|condition| condition.r#type != r#type);
    conditions.len() != before
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
        condition.parsed("lastTransitionTime", time::parse);
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
    fn a_condition_is_set_since_it_became_true_and_leaves_those_of_other_types_alone() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let other = Condition {
            r#type: "Ready".to_owned(),
            ..Condition::default()
        };
        let mut conditions = vec![other.clone()];
        assert!(set(
            &mut conditions,
            "Blocked",
            ("QuorumRisk", "two are down"),
            3,
            at(10)
        ));
        assert!(
            !set(
                &mut conditions,
                "Blocked",
                ("QuorumRisk", "two are down"),
                3,
                at(20)
            ),
            "the same"
        );
        assert!(set(
            &mut conditions,
            "Blocked",
            ("QuorumRisk", "one is down"),
            4,
            at(30)
        ));
        let blocked = find(&conditions, "Blocked").unwrap();
        assert_eq!(blocked.last_transition_time, Some(time::to_proto(at(10))));
        assert_eq!(
            (blocked.observed_generation, &*blocked.message),
            (4, "one is down")
        );

        // A release that wrote it as false; it becomes true now.
        conditions[1].set_status(Status::False);
        assert!(set(
            &mut conditions,
            "Blocked",
            ("QuorumRisk", "one is down"),
            4,
            at(40)
        ));
        let blocked = find(&conditions, "Blocked").unwrap();
        assert_eq!(blocked.last_transition_time, Some(time::to_proto(at(40))));

        assert!(clear(&mut conditions, "Blocked"));
        assert!(!clear(&mut conditions, "Blocked"), "it is gone already");
        assert_eq!(conditions, [other]);
        assert_eq!(find(&conditions, "Blocked"), None);
    }

    #[test]
    fn a_status_number_of_a_later_release_is_unknown() {
        let condition = Condition {
            status: 9,
            ..Condition::default()
        };
        assert_eq!(status_word(&condition), "Unknown");
    }

    #[test]
    fn a_condition_that_becomes_false_takes_the_place_of_the_true_one() {
        let (then, now) = (Timestamp::UNIX_EPOCH, Timestamp::MAX);
        let mut conditions = Vec::new();
        set(&mut conditions, "Blocked", ("A", "a"), 1, then);
        set_false(&mut conditions, "Blocked", ("B", "b"), now);
        let [only] = &conditions[..] else {
            panic!("{conditions:?}")
        };
        assert_eq!((status_word(only), &*only.reason), ("False", "B"));
        assert_eq!(only.last_transition_time, Some(time::to_proto(now)));
    }
}
