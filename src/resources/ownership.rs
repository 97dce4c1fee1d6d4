//! The fields of an adopted object that its former managers own. Pure.
//!
//! Server-side apply makes us a co-owner of what we apply. As long as `kubectl` or Helm own the fields too, a field that the
//! bundle drops later would stay in the object. So their share becomes ours before the first apply, as client-go's
//! `csaupgrade` does for kubectl.

use serde_json::{Map, Value, json};

use crate::kube::FIELD_MANAGER;

/// Whether an entry is of a client that a person or a release used to write the whole object, not of a controller.
fn is_foldable(entry: &Value) -> bool {
    let manager = entry["manager"].as_str().unwrap_or_default();
    let of_object = entry["subresource"].as_str().unwrap_or_default().is_empty();
    of_object && (manager.starts_with("kubectl") || ["helm", "Helm", "before-first-apply"].contains(&manager))
}

fn is_ours(entry: &Value) -> bool {
    entry["manager"] == FIELD_MANAGER && entry["operation"] == "Apply"
}

/// The `managedFields` with the share of such clients as ours; `None` if none of them owns fields.
pub fn folded(managed: &[Value]) -> Option<Vec<Value>> {
    let version = managed.iter().find(|entry| is_foldable(entry))?["apiVersion"].clone();
    // Fields of another version may have other names.
    let (taken, mut left): (Vec<&Value>, Vec<&Value>) = managed
        .iter()
        .partition(|entry| (is_foldable(entry) || is_ours(entry)) && entry["apiVersion"] == version);
    left.retain(|entry| !is_ours(entry));
    let mut fields = Map::new();
    for entry in &taken {
        if let Value::Object(owned) = &entry["fieldsV1"] {
            merge(&mut fields, owned);
        }
    }
    let ours = json!({
        "manager": FIELD_MANAGER,
        "operation": "Apply",
        "apiVersion": version,
        "time": taken.last().map(|entry| entry["time"].clone()),
        "fieldsType": "FieldsV1",
        "fieldsV1": fields,
    });
    Some(left.into_iter().cloned().chain([ours]).collect())
}

/// Adds a tree of fields to another.
fn merge(into: &mut Map<String, Value>, from: &Map<String, Value>) {
    for (name, below) in from {
        match (into.get_mut(name), below) {
            (Some(Value::Object(into)), Value::Object(from)) => merge(into, from),
            _ => {
                into.insert(name.clone(), below.clone());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(manager: &str, operation: &str, fields: Value) -> Value {
        json!({"manager": manager, "operation": operation, "apiVersion": "v1", "time": "t", "fieldsType": "FieldsV1", "fieldsV1": fields})
    }

    #[test]
    fn the_share_of_kubectl_and_helm_becomes_ours_and_that_of_a_controller_stays() {
        let controller = entry("kube-controller-manager", "Update", json!({"f:status": {}}));
        let mut scaled = entry("kubectl", "Update", json!({"f:spec": {"f:replicas": {}}}));
        scaled["subresource"] = "scale".into();
        let managed = [
            entry(
                "kubectl-client-side-apply",
                "Update",
                json!({"f:data": {"f:a": {}, "f:b": {}}}),
            ),
            controller.clone(),
            scaled.clone(),
            entry("helm", "Apply", json!({"f:data": {"f:c": {}}, "f:type": {}})),
        ];
        let ours = entry(
            FIELD_MANAGER,
            "Apply",
            json!({"f:data": {"f:a": {}, "f:b": {}, "f:c": {}}, "f:type": {}}),
        );
        assert_eq!(folded(&managed), Some(vec![controller.clone(), scaled, ours]));
        assert_eq!(folded(&[controller]), None);
        assert_eq!(folded(&[]), None);
    }
}
