//! The differences between two states of an object, field by field. Pure.

use std::collections::BTreeSet;
use std::fmt;

use serde_json::Value;

use crate::kube::ObjectRef;

/// One field that differs.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    /// `rules[0].verbs[1]`
    pub path: String,
    /// `None` if the field is added.
    pub before: Option<Value>,
    /// `None` if the field is removed.
    pub after: Option<Value>,
    /// Whether the values must not be shown.
    pub secret: bool,
}

impl fmt::Display for Difference {
    /// As in a unified diff: a `-` line with the old value, a `+` line with the new one.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |value: &Value| match self.secret {
            true => "(not shown)".to_owned(),
            false => value.to_string(),
        };
        let before = self
            .before
            .as_ref()
            .map(|value| format!("- {}: {}", self.path, shown(value)));
        let after = self
            .after
            .as_ref()
            .map(|value| format!("+ {}: {}", self.path, shown(value)));
        let lines: Vec<String> = before.into_iter().chain(after).collect();
        f.write_str(&lines.join("\n"))
    }
}

/// The fields that the server sets by itself.
const SERVER_FIELDS: &[&str] = &[
    "metadata.creationTimestamp",
    "metadata.generation",
    "metadata.managedFields",
    "metadata.resourceVersion",
    "metadata.selfLink",
    "metadata.uid",
    "status",
];

/// The differences of two documents in the order of their paths, without their status and what a server sets by itself.
pub fn between(before: &Value, after: &Value) -> Vec<Difference> {
    let mut found = Vec::new();
    compare("", Some(before), Some(after), &mut found);
    found
}

/// [`between`] for an object of Kubernetes: those of a Secret are marked as secret.
pub fn differences(object: &ObjectRef, before: &Value, after: &Value) -> Vec<Difference> {
    let mut found = between(before, after);
    if object.group.is_empty() && object.kind == "Secret" {
        for difference in &mut found {
            // kubectl's annotation repeats the values.
            difference.secret = !difference.path.starts_with("metadata.labels");
        }
    }
    found
}

fn compare(path: &str, before: Option<&Value>, after: Option<&Value>, found: &mut Vec<Difference>) {
    if before == after || SERVER_FIELDS.contains(&path) {
        return;
    }
    match (before, after) {
        (Some(Value::Object(before)), Some(Value::Object(after))) => {
            let keys: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
            for key in keys {
                compare(&join_path(path, key), before.get(key), after.get(key), found);
            }
        }
        (Some(Value::Array(before)), Some(Value::Array(after))) => {
            // Skip the common start and end, so that one inserted or removed item is one difference.
            let same = |(before, after): &(&Value, &Value)| before == after;
            let first = before.iter().zip(after).take_while(same).count();
            let last = before[first..]
                .iter()
                .rev()
                .zip(after[first..].iter().rev())
                .take_while(same)
                .count();
            let (before, after) = (
                &before[first..before.len() - last],
                &after[first..after.len() - last],
            );
            for index in 0..before.len().max(after.len()) {
                let path = format!("{path}[{}]", first + index);
                compare(&path, before.get(index), after.get(index), found);
            }
        }
        _ => found.push(Difference {
            path: path.to_owned(),
            before: before.cloned(),
            after: after.cloned(),
            secret: false,
        }),
    }
}

/// `path.key`, or `path[key]` if the key has dots or slashes, as keys of labels do.
fn join_path(path: &str, key: &str) -> String {
    if key.contains(['.', '/']) {
        format!("{path}[{key}]")
    } else if path.is_empty() {
        key.to_owned()
    } else {
        format!("{path}.{key}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn object(kind: &str) -> ObjectRef {
        ObjectRef {
            group: String::new(),
            kind: kind.to_owned(),
            namespace: None,
            name: "a".to_owned(),
        }
    }

    fn shown(kind: &str, before: &Value, after: &Value) -> Vec<String> {
        differences(&object(kind), before, after)
            .iter()
            .map(ToString::to_string)
            .collect()
    }

    #[test]
    fn each_field_that_differs_is_one_entry_with_its_path() {
        let before = json!({"rules": [{"verbs": ["get", "list"]}], "metadata": {"labels": {"a.b/c": "1"}, "uid": "u"}});
        let after = json!({"rules": [{"verbs": ["get"]}, {"verbs": []}], "metadata": {"labels": {"a.b/c": "2"}}, "x": 1});
        assert_eq!(
            shown("ClusterRole", &before, &after),
            [
                "- metadata.labels[a.b/c]: \"1\"\n+ metadata.labels[a.b/c]: \"2\"",
                "- rules[0].verbs[1]: \"list\"",
                "+ rules[1]: {\"verbs\":[]}",
                "+ x: 1",
            ]
        );
    }

    #[test]
    fn an_item_inserted_in_front_is_one_difference() {
        let (before, after) = (json!({"rules": [1, 2, 3]}), json!({"rules": [0, 1, 2, 3]}));
        assert_eq!(shown("ClusterRole", &before, &after), ["+ rules[0]: 0"]);
        assert_eq!(shown("ClusterRole", &after, &before), ["- rules[0]: 0"]);
    }

    #[test]
    fn no_value_of_a_secret_is_shown() {
        let before = json!({"data": {"k": "c2VjcmV0"}, "metadata": {"annotations": {"last": "c2VjcmV0"}}});
        let after = json!({"data": {"k": "b3RoZXI="}, "metadata": {"annotations": {}}});
        let shown = shown("Secret", &before, &after).join("\n");
        assert_eq!(
            shown,
            "- data.k: (not shown)\n+ data.k: (not shown)\n- metadata.annotations.last: (not shown)"
        );
    }
}
