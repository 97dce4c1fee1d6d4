//! Names of objects, and their metadata.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;
use serde_json::Value;

/// Names one object, independent of the API version. Orders by group, kind, namespace, name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectRef {
    /// API group; empty for the core group.
    pub group: String,
    /// As in the manifest: `ClusterRole`.
    pub kind: String,
    /// `None` for a cluster-scoped object.
    pub namespace: Option<String>,
    /// `metadata.name`.
    pub name: String,
}

impl fmt::Display for ObjectRef {
    /// `ClusterRole system:x`, `ConfigMap kube-system/y`; custom kinds with their group.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.kind)?;
        if self.group.contains('.') && !self.group.ends_with(".k8s.io") {
            write!(f, ".{}", self.group)?;
        }
        match &self.namespace {
            Some(namespace) => write!(f, " {namespace}/{}", self.name),
            None => write!(f, " {}", self.name),
        }
    }
}

/// The metadata of an object as the server holds it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Meta {
    /// `metadata.name`.
    pub name: String,
    /// `None` for a cluster-scoped object.
    pub namespace: Option<String>,
    /// Distinguishes an object from a later one of the same name.
    pub uid: String,
    /// Opaque; changes with every write of the object.
    pub resource_version: String,
    /// Changes with every write of the spec; 0 for kinds without one.
    pub generation: i64,
    /// Ours is `quorate.dev/bundle`.
    pub labels: BTreeMap<String, String>,
    /// As the server holds them, not as the manifest says.
    pub annotations: BTreeMap<String, String>,
    /// Set while an object is being deleted.
    pub deletion_timestamp: Option<String>,
    /// The finalizers that must be removed before the object is gone.
    pub finalizers: Vec<String>,
    /// The owners of its fields.
    pub managed_fields: Vec<ManagedFields>,
}

/// One field manager of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ManagedFields {
    /// The field manager's name.
    pub manager: String,
    /// `Apply` or `Update`.
    pub operation: String,
    /// The subresource that was written, empty for the object itself.
    pub subresource: String,
    /// The fields, as a tree of `f:NAME`.
    pub fields_v1: Value,
    /// Time of the last write, RFC 3339 in seconds; orders as text.
    pub time: Option<String>,
}

impl Meta {
    /// Whether this field manager owns fields of the object.
    pub fn is_managed_by(&self, manager: &str) -> bool {
        self.managed_fields.iter().any(|fields| fields.manager == manager)
    }

    /// The fields that this field manager applied to the object itself.
    pub fn applied_by(&self, manager: &str) -> Option<&ManagedFields> {
        self.managed_fields.iter().find(|fields| {
            fields.manager == manager && fields.operation == "Apply" && fields.subresource.is_empty()
        })
    }

    /// Whether the annotation has the value that this field manager applied.
    pub fn is_annotated_by(&self, manager: &str, annotation: &str) -> bool {
        let annotations = |fields: &ManagedFields| {
            let owned = &fields.fields_v1["f:metadata"]["f:annotations"];
            owned.get(format!("f:{annotation}")).is_some()
        };
        self.applied_by(manager).is_some_and(annotations)
    }

    /// The field manager that wrote last, other than `own`.
    pub fn last_manager_besides(&self, own: &str) -> Option<&str> {
        self.managed_fields
            .iter()
            .filter(|fields| fields.manager != own)
            .max_by_key(|fields| fields.time.as_deref().unwrap_or_default())
            .map(|fields| fields.manager.as_str())
    }
}

/// An object reduced to its metadata.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct PartialObject {
    pub(super) metadata: Meta,
}

/// One page of a list of objects, each reduced to its metadata.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct PartialList {
    pub(super) metadata: ListMeta,
    /// `null` in an empty list.
    pub(super) items: Option<Vec<PartialObject>>,
}

/// The metadata of a list.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct ListMeta {
    pub(super) resource_version: String,
    #[serde(rename = "continue")]
    pub(super) next: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_other_manager_is_the_one_that_wrote_last() {
        let fields = |manager: &str, time: &str| ManagedFields {
            manager: manager.to_owned(),
            time: Some(time.to_owned()),
            ..ManagedFields::default()
        };
        let meta = Meta {
            managed_fields: vec![
                fields("quorate", "2024-05-01T00:00:09Z"),
                fields("old", "2024-05-01T00:00:01Z"),
                fields("fighter", "2024-05-01T00:00:05Z"),
            ],
            ..Meta::default()
        };
        assert_eq!(meta.last_manager_besides("quorate"), Some("fighter"));
        assert!(meta.is_managed_by("quorate") && !meta.is_managed_by("kubectl"));
    }

    #[test]
    fn an_object_is_shown_with_its_group_only_if_the_kind_is_a_custom_one() {
        let object = |group: &str, namespace: Option<&str>| ObjectRef {
            group: group.to_owned(),
            kind: "Role".to_owned(),
            namespace: namespace.map(str::to_owned),
            name: "a".to_owned(),
        };
        assert_eq!(
            object("rbac.authorization.k8s.io", Some("n")).to_string(),
            "Role n/a"
        );
        assert_eq!(object("example.com", None).to_string(), "Role.example.com a");
        assert_eq!(object("", None).to_string(), "Role a");
    }
}
