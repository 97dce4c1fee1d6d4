//! One object of a bundle: what is demanded of its document, and what is sent of it.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::super::kinds;
use super::fault::{Fault, Place};
use crate::kube::ObjectRef;

/// Label of every object that is in place; its value is the bundle's name. Half of what makes an object ours.
pub const LABEL: &str = "quorate.dev/bundle";

/// Annotation of a manifest: `"true"` takes over an object that exists and is not ours.
pub const ADOPT: &str = "quorate.dev/adopt";

/// Annotation of an object: whether it is deleted once no bundle holds it any more. Unless it says so, Namespaces,
/// CustomResourceDefinitions, PersistentVolumes and their claims are not, and everything else is.
pub const PRUNE: &str = "quorate.dev/prune";

/// Annotation of a manifest: whether the object is deleted and created anew where a field has to change that cannot.
/// The default is that of [`PRUNE`].
pub const RECREATE: &str = "quorate.dev/recreate";

/// An object as the bundle wants it.
#[derive(Clone, Debug, PartialEq)]
pub struct Manifest {
    /// Which object.
    pub object: ObjectRef,
    /// API version without the group: `v1`.
    pub version: String,
    /// What is applied: the document with the bundle's label, without what only a server sets.
    pub body: Value,
    /// Whether an object that is not ours is taken over.
    pub adopt: bool,
    /// Whether it may be deleted and created anew.
    pub recreate: bool,
    /// Where it is written.
    pub place: Place,
}

/// Whether an object may be deleted for good, by its annotations.
pub fn may_be_pruned(object: &ObjectRef, annotations: &BTreeMap<String, String>) -> bool {
    match annotations.get(PRUNE).map(String::as_str) {
        Some("true") => true,
        Some("false") => false,
        _ => !kinds::is_protected(&object.group, &object.kind),
    }
}

/// Reads one object. Every fault is added to `faults`; one is enough for there to be no manifest.
pub(super) fn read(
    document: Value,
    bundle: &str,
    place: &Place,
    faults: &mut Vec<Fault>,
) -> Option<Manifest> {
    let before = faults.len();
    let mut reader = Reader { place, faults };
    let Value::Object(mut body) = document else {
        reader.fault("", "expected an object with apiVersion, kind and metadata");
        return None;
    };
    let api_version = reader.text(&body, "apiVersion", "apiVersion");
    let kind = reader.text(&body, "kind", "kind");
    // Written by generators, owned by the server; applying it would mean to own it.
    body.remove("status");
    let (name, namespace, annotations) = match body.get_mut("metadata") {
        Some(Value::Object(metadata)) => reader.metadata(metadata, bundle),
        Some(_) => {
            reader.fault("metadata", "expected an object");
            return None;
        }
        None => {
            reader.fault("metadata", "is missing");
            return None;
        }
    };
    let (group, version) = match api_version.as_deref().map(|text| (text, text.split_once('/'))) {
        Some((_, Some((group, version))))
            if !group.is_empty() && !version.is_empty() && !version.contains('/') =>
        {
            (group.to_owned(), version.to_owned())
        }
        Some((version, None)) if !version.is_empty() => (String::new(), version.to_owned()),
        Some((text, _)) => {
            reader.fault(
                "apiVersion",
                format!("\"{text}\" is not GROUP/VERSION or VERSION"),
            );
            return None;
        }
        None => return None,
    };
    let kind = kind?;
    reader.scope(&group, &kind, namespace.as_deref());
    let flag = |annotation| annotations.get(annotation).copied();
    let manifest = Manifest {
        recreate: flag(RECREATE).unwrap_or(!kinds::is_protected(&group, &kind)),
        adopt: flag(ADOPT).unwrap_or(false),
        object: ObjectRef {
            group,
            kind,
            namespace,
            name: name?,
        },
        version,
        body: Value::Object(body),
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

    /// A field that has to be a text with something in it.
    fn text(&mut self, object: &Map<String, Value>, key: &str, path: &str) -> Option<String> {
        match object.get(key) {
            Some(Value::String(text)) if !text.trim().is_empty() => Some(text.clone()),
            Some(Value::String(_)) => {
                self.fault(path, "is empty");
                None
            }
            Some(_) => {
                self.fault(path, "expected a text");
                None
            }
            None => {
                self.fault(path, "is missing");
                None
            }
        }
    }

    /// Name, namespace and our annotations; sets our label.
    fn metadata(
        &mut self,
        metadata: &mut Map<String, Value>,
        bundle: &str,
    ) -> (Option<String>, Option<String>, BTreeMap<&'static str, bool>) {
        // Generators write `creationTimestamp: null`.
        if metadata.get("creationTimestamp") == Some(&Value::Null) {
            metadata.remove("creationTimestamp");
        }
        for key in SERVER_FIELDS {
            if metadata.contains_key(*key) {
                self.fault(&format!("metadata.{key}"), "is set by the server: leave it out");
            }
        }
        if metadata.contains_key("generateName") {
            self.fault(
                "metadata.generateName",
                "an object of a bundle has a fixed name: give metadata.name",
            );
        }
        let name = self.text(metadata, "name", "metadata.name").filter(|name| {
            // What Kubernetes demands of every name, as path of a URL; kinds demand more, and their servers check it.
            let good = !name.contains(['/', '%']) && name != "." && name != ".." && name.len() <= 253;
            if !good {
                self.fault("metadata.name", format!("\"{name}\" cannot be a name"));
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
                        format!("\"{namespace}\" cannot be a namespace"),
                    );
                }
                good
            });
        let annotations = self.annotations(metadata);
        self.label(metadata, bundle);
        (name, namespace, annotations)
    }

    fn annotations(&mut self, metadata: &Map<String, Value>) -> BTreeMap<&'static str, bool> {
        let mut read = BTreeMap::new();
        for (key, value) in self.ours(metadata, "annotations") {
            let Some(known) = [ADOPT, PRUNE, RECREATE].into_iter().find(|known| *known == key) else {
                let what = match key == LABEL {
                    true => "is a label, and set by itself".to_owned(),
                    false => format!("is unknown; there are {ADOPT}, {PRUNE} and {RECREATE}"),
                };
                self.fault(&format!("metadata.annotations[{key}]"), what);
                continue;
            };
            match value.as_str() {
                Some("true") => read.insert(known, true),
                Some("false") => read.insert(known, false),
                _ => {
                    self.fault(
                        &format!("metadata.annotations[{key}]"),
                        format!("is {value}: expected \"true\" or \"false\", as a text"),
                    );
                    None
                }
            };
        }
        read
    }

    fn label(&mut self, metadata: &mut Map<String, Value>, bundle: &str) {
        for (key, value) in self.ours(metadata, "labels") {
            let path = format!("metadata.labels[{key}]");
            if key != LABEL {
                let what = match [ADOPT, PRUNE, RECREATE].contains(&key.as_str()) {
                    true => "is an annotation, not a label".to_owned(),
                    false => format!("is unknown; the only label of ours is {LABEL}, and set by itself"),
                };
                self.fault(&path, what);
            } else if value != bundle {
                self.fault(
                    &path,
                    format!("is {value}, but the bundle is called \"{bundle}\": leave it out"),
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
            _ => self.fault("metadata.labels", "expected an object"),
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
                self.fault(&format!("metadata.{of}"), "expected an object");
                Vec::new()
            }
        }
    }

    fn scope(&mut self, group: &str, kind: &str, namespace: Option<&str>) {
        match (kinds::is_namespaced(group, kind), namespace) {
            (Some(true), None) => {
                self.fault(
                    "metadata.namespace",
                    format!("is missing: a {kind} lies in a namespace"),
                );
            }
            (Some(false), Some(_)) => {
                self.fault(
                    "metadata.namespace",
                    format!("leave it out: a {kind} lies in no namespace"),
                );
            }
            _ => {}
        }
    }
}

/// What a manifest must not say, as it would be a condition on the object that is there, or be refused.
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

/// RFC 1123: lower-case letters, digits and dashes, 63 at most.
fn is_dns_label(text: &str) -> bool {
    let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    (1..=63).contains(&text.len())
        && text.chars().all(inner)
        && !text.starts_with('-')
        && !text.ends_with('-')
}

/// Whether a text can be the value of a label that has one.
pub(super) fn is_label_value(text: &str) -> bool {
    let edge = |c: char| c.is_ascii_alphanumeric();
    let inner = |c: char| edge(c) || matches!(c, '-' | '_' | '.');
    (1..=63).contains(&text.len())
        && text.chars().all(inner)
        && text.starts_with(edge)
        && text.ends_with(edge)
}
