//! One object of a bundle: reads and checks its document, and derives the body to apply.

use std::collections::BTreeMap;

use k8s_openapi::ByteString;
use serde_json::{Map, Value, json};

use super::super::digest::digest;
use super::super::kinds;
use super::fault::{Fault, Place};
use crate::kube::{Dependants, ObjectRef};

/// Label of every managed object. Its value is the name of the bundle.
pub const LABEL: &str = "quorate.dev/bundle";

/// Annotation of a manifest: `"true"` takes over an existing object that is not ours.
pub const ADOPT: &str = "quorate.dev/adopt";

/// Annotation of an object: whether the object is deleted once the bundle no longer holds it. The default is `"false"` for
/// Namespaces, CustomResourceDefinitions, PersistentVolumes and PersistentVolumeClaims, `"true"` for other kinds.
pub const PRUNE: &str = "quorate.dev/prune";

/// Annotation of a manifest: whether the object is deleted and recreated if an immutable field has to change; `"orphan"`
/// leaves its dependants in place. Without it only kinds that have neither state nor dependants are recreated.
pub const RECREATE: &str = "quorate.dev/recreate";

/// Whether the object is deleted and recreated if an immutable field has to change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recreate {
    /// Its apply fails.
    Never,
    /// It is, because it has neither state nor dependants; but not while it is adopted.
    Replaceable,
    /// It is: its annotation says so.
    Annotated(Dependants),
}

/// An object of the bundle.
#[derive(Clone, Debug, PartialEq)]
pub struct Manifest {
    /// Names the object.
    pub object: ObjectRef,
    /// API version without the group: `v1`.
    pub version: String,
    /// The body of the apply: the document with the bundle's label and without the fields that only a server sets.
    pub body: Value,
    /// The digest of the body.
    pub digest: u64,
    /// Whether to take over an existing object that is not ours.
    pub adopt: bool,
    /// Whether to delete and recreate the object if an immutable field has to change.
    pub recreate: Recreate,
    /// The document that holds the object.
    pub place: Place,
}

/// Whether an object that the bundle no longer holds may be deleted, by its annotations and its kind.
pub fn may_be_pruned(object: &ObjectRef, annotations: &BTreeMap<String, String>) -> bool {
    match annotations.get(PRUNE).map(String::as_str) {
        Some("true") => true,
        Some("false") => false,
        _ => !kinds::is_protected(&object.group, &object.kind),
    }
}

/// Reads one object, and adds every fault to `faults`. Returns no manifest if there is one.
pub(super) fn read(
    document: Value,
    bundle: &str,
    place: &Place,
    faults: &mut Vec<Fault>,
) -> Option<Manifest> {
    let before = faults.len();
    let mut reader = Reader { place, faults };
    let Value::Object(mut body) = document else {
        reader.fault("", "must be an object with apiVersion, kind and metadata");
        return None;
    };
    let api_version = reader.text(&body, "apiVersion", "apiVersion");
    let kind = reader.text(&body, "kind", "kind");
    // Generators write a status, but the server owns it; applying it would take it over.
    body.remove("status");
    let (name, namespace, annotations) = match body.get_mut("metadata") {
        Some(Value::Object(metadata)) => reader.metadata(metadata, bundle),
        Some(_) => {
            reader.fault("metadata", "must be an object");
            return None;
        }
        None => {
            reader.fault("metadata", "is required");
            return None;
        }
    };
    let (group, version) = reader.group_version(&api_version?)?;
    let kind = kind?;
    reader.scope(&group, &kind, namespace.as_deref());
    if group.is_empty() && kind == "Secret" {
        reader.encode_string_data(&mut body);
    }
    let object = ObjectRef {
        group,
        kind,
        namespace,
        name: name?,
    };
    let annotation = |key| annotations.get(key).map(String::as_str);
    let body = Value::Object(body);
    let frozen = body["immutable"] == Value::Bool(true);
    let manifest = Manifest {
        recreate: match annotation(RECREATE) {
            Some("true") => Recreate::Annotated(Dependants::Deleted),
            Some("orphan") => Recreate::Annotated(Dependants::Orphaned),
            None if kinds::is_replaceable(&object.group, &object.kind, frozen) => Recreate::Replaceable,
            _ => Recreate::Never,
        },
        adopt: annotation(ADOPT) == Some("true"),
        object,
        version,
        digest: digest(&body.to_string()),
        body,
        place: place.clone(),
    };
    (faults.len() == before).then_some(manifest)
}

struct Reader<'a> {
    place: &'a Place,
    faults: &'a mut Vec<Fault>,
}

impl Reader<'_> {
    fn fault(&mut self, field: &str, what: impl Into<String>) {
        self.faults.push(Fault::new(self.place.clone(), field, what));
    }

    /// Splits `GROUP/VERSION`; the core group is empty and written without a slash.
    fn group_version(&mut self, api_version: &str) -> Option<(String, String)> {
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        let core = !api_version.contains('/');
        if version.is_empty() || version.contains('/') || (group.is_empty() && !core) {
            self.fault(
                "apiVersion",
                format!("\"{api_version}\" is not GROUP/VERSION or VERSION"),
            );
            return None;
        }
        Some((group.to_owned(), version.to_owned()))
    }

    /// Reads a string that must not be empty.
    fn text(&mut self, object: &Map<String, Value>, key: &str, path: &str) -> Option<String> {
        match object.get(key) {
            Some(Value::String(text)) if !text.trim().is_empty() => Some(text.clone()),
            Some(Value::String(_)) => {
                self.fault(path, "must not be empty");
                None
            }
            Some(_) => {
                self.fault(path, "must be a string");
                None
            }
            None => {
                self.fault(path, "is required");
                None
            }
        }
    }

    /// Reads name, namespace and our annotations, and sets our label.
    fn metadata(
        &mut self,
        metadata: &mut Map<String, Value>,
        bundle: &str,
    ) -> (Option<String>, Option<String>, BTreeMap<&'static str, String>) {
        // Generators write `creationTimestamp: null`.
        if metadata.get("creationTimestamp") == Some(&Value::Null) {
            metadata.remove("creationTimestamp");
        }
        for key in SERVER_FIELDS {
            if metadata.contains_key(*key) {
                self.fault(&format!("metadata.{key}"), "is set by the server; remove it");
            }
        }
        if metadata.contains_key("generateName") {
            self.fault("metadata.generateName", "is not allowed; set metadata.name");
        }
        let name = self.text(metadata, "name", "metadata.name").filter(|name| {
            // The rules for every name, because it is part of a URL. Kinds have stricter rules, which the server checks.
            let good = !name.contains(['/', '%']) && name != "." && name != ".." && name.len() <= 253;
            if !good {
                self.fault("metadata.name", format!("\"{name}\" is not a valid name"));
            }
            good
        });
        let namespace = metadata
            .contains_key("namespace")
            .then(|| self.text(metadata, "namespace", "metadata.namespace"))
            .flatten()
            .filter(|namespace| {
                let good = is_dns_label(namespace);
                if !good {
                    self.fault(
                        "metadata.namespace",
                        format!("\"{namespace}\" is not a valid namespace"),
                    );
                }
                good
            });
        let annotations = self.annotations(metadata);
        self.label(metadata, bundle);
        (name, namespace, annotations)
    }

    fn annotations(&mut self, metadata: &Map<String, Value>) -> BTreeMap<&'static str, String> {
        let mut read = BTreeMap::new();
        for (key, value) in self.ours(metadata, "annotations") {
            let Some(known) = [ADOPT, PRUNE, RECREATE].into_iter().find(|known| *known == key) else {
                let what = match key == LABEL {
                    true => "is a label, which Quorate sets; remove it".to_owned(),
                    false => format!("is unknown; known are {ADOPT}, {PRUNE} and {RECREATE}"),
                };
                self.fault(&format!("metadata.annotations[{key}]"), what);
                continue;
            };
            let (allowed, shown): (&[&str], _) = match known {
                RECREATE => (&["true", "false", "orphan"], "\"true\", \"false\" or \"orphan\""),
                _ => (&["true", "false"], "\"true\" or \"false\""),
            };
            match value.as_str().filter(|value| allowed.contains(value)) {
                Some(value) => {
                    read.insert(known, value.to_owned());
                }
                None => self.fault(
                    &format!("metadata.annotations[{key}]"),
                    format!("is {value}; must be the string {shown}"),
                ),
            }
        }
        read
    }

    fn label(&mut self, metadata: &mut Map<String, Value>, bundle: &str) {
        for (key, value) in self.ours(metadata, "labels") {
            let path = format!("metadata.labels[{key}]");
            if key != LABEL {
                let what = match [ADOPT, PRUNE, RECREATE].contains(&key.as_str()) {
                    true => "is an annotation, not a label".to_owned(),
                    false => format!("is unknown; the only known label is {LABEL}, which Quorate sets"),
                };
                self.fault(&path, what);
            } else if value != bundle {
                self.fault(
                    &path,
                    format!("is {value}, but the name of the bundle is \"{bundle}\"; remove it"),
                );
            }
        }
        let labels = metadata
            .entry("labels")
            .or_insert_with(|| Value::Object(Map::new()));
        if labels.is_null() {
            *labels = Value::Object(Map::new());
        }
        match labels {
            Value::Object(labels) => {
                labels.insert(LABEL.to_owned(), bundle.into());
            }
            _ => self.fault("metadata.labels", "must be an object"),
        }
    }

    /// The labels or annotations below `quorate.dev/`.
    fn ours(&mut self, metadata: &Map<String, Value>, of: &str) -> Vec<(String, Value)> {
        match metadata.get(of) {
            Some(Value::Object(all)) => all
                .iter()
                .filter(|(key, _)| key.starts_with("quorate.dev/"))
                .map(|(key, value)| (key.clone(), value.clone()))
                .collect(),
            Some(Value::Null) | None => Vec::new(),
            Some(_) => {
                self.fault(&format!("metadata.{of}"), "must be an object");
                Vec::new()
            }
        }
    }

    /// Moves the `stringData` of a Secret to `data`, as the server does. An apply that named `stringData` would own
    /// `stringData`, so a key that is dropped from it later would stay in `data`.
    fn encode_string_data(&mut self, body: &mut Map<String, Value>) {
        let plain = match body.remove("stringData") {
            None | Some(Value::Null) => return,
            Some(Value::Object(plain)) => plain,
            Some(_) => return self.fault("stringData", "must be an object"),
        };
        let data = body.entry("data").or_insert_with(|| Value::Object(Map::new()));
        if data.is_null() {
            *data = Value::Object(Map::new());
        }
        let Value::Object(data) = data else {
            return self.fault("data", "must be an object");
        };
        for (key, value) in plain {
            let path = format!("stringData.{key}");
            match value.as_str() {
                _ if data.contains_key(&key) => self.fault(&path, "is in data, too"),
                Some(text) => {
                    data.insert(key, json!(ByteString(text.as_bytes().to_vec())));
                }
                None => self.fault(&path, format!("is {value}; must be a string")),
            }
        }
    }

    fn scope(&mut self, group: &str, kind: &str, namespace: Option<&str>) {
        match (kinds::is_namespaced(group, kind), namespace) {
            (Some(true), None) => {
                self.fault("metadata.namespace", format!("is required: {kind} is namespaced"));
            }
            (Some(false), Some(_)) => {
                self.fault(
                    "metadata.namespace",
                    format!("must be omitted: {kind} is cluster-scoped"),
                );
            }
            _ => {}
        }
    }
}

/// Fields of metadata that a manifest must not set: the server would take them for a precondition, or refuse them.
const SERVER_FIELDS: &[&str] = &[
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "generation",
    "managedFields",
    "resourceVersion",
    "selfLink",
    "uid",
];

/// Whether the text is an RFC 1123 label: lower-case letters, digits and dashes, at most 63 characters.
fn is_dns_label(text: &str) -> bool {
    let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    (1..=63).contains(&text.len())
        && text.chars().all(inner)
        && !text.starts_with('-')
        && !text.ends_with('-')
}

/// Whether the text is a valid label value that is not empty.
pub(super) fn is_label_value(text: &str) -> bool {
    let edge = |c: char| c.is_ascii_alphanumeric();
    let inner = |c: char| edge(c) || matches!(c, '-' | '_' | '.');
    (1..=63).contains(&text.len())
        && text.chars().all(inner)
        && text.starts_with(edge)
        && text.ends_with(edge)
}
