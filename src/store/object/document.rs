//! Documents as they are shown. Keys come out in alphabetical order, as Kubernetes writes them, too.

use serde::Serialize;
use serde_json::{Value, json};

use super::{API_VERSION, Malformed, time};
use crate::etcd::Revision;
use crate::proto::Metadata;

/// The document of a stored object: its metadata, then `parts` (spec, status).
pub fn document(kind: &str, metadata: Option<&Metadata>, mod_revision: Revision, parts: Value) -> Value {
    let empty = Metadata::default();
    let metadata = metadata.unwrap_or(&empty);
    let shown = json!({
        "name": metadata.name,
        "uid": given(&metadata.uid),
        "labels": given(&metadata.labels),
        "creationTimestamp": time::document(metadata.creation_time.as_ref()),
        "generation": given(&metadata.generation),
        // A string, as in Kubernetes: it is compared, not counted with.
        "resourceVersion": mod_revision.to_string(),
    });
    with_header(kind, present(shown), parts)
}

/// The document in the place of an object whose value is malformed: a condition says why.
pub fn malformed(kind: &str, name: &str, mod_revision: Revision, malformed: &Malformed) -> Value {
    let metadata = Metadata {
        name: name.to_owned(),
        ..Metadata::default()
    };
    let condition = json!({
        "type": "Malformed", "status": "True", "reason": "Unreadable", "message": malformed.to_string(),
    });
    let parts = json!({"status": {"conditions": [condition]}});
    document(kind, Some(&metadata), mod_revision, parts)
}

/// A document of `kind` with this metadata and these parts, both objects.
pub fn with_header(kind: &str, metadata: Value, parts: Value) -> Value {
    let mut document = json!({"apiVersion": API_VERSION, "kind": kind, "metadata": metadata});
    if let (Value::Object(document), Value::Object(parts)) = (&mut document, parts) {
        document.extend(parts);
    }
    document
}

/// An object without the fields that are null.
pub fn present(mut object: Value) -> Value {
    if let Value::Object(fields) = &mut object {
        fields.retain(|_, value| !value.is_null());
    }
    object
}

/// A value that was set, or null: protobuf stores no difference between an unset value and an empty one or 0.
pub fn given<T: Default + PartialEq + Serialize>(value: &T) -> Option<&T> {
    (*value != T::default()).then_some(value)
}
