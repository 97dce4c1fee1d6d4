//! Objects: what a person writes and reads as YAML or JSON, and etcd holds as protobuf.
//!
//! An object has metadata, a spec that an operator writes, and a status that the parts of the system write. The
//! [`Object`] trait is what every kind has in common; a kind's own module ([`node`]) knows its fields. Everything here
//! is pure: bytes and documents in, bytes and documents out.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::etcd::Revision;
use crate::proto::Metadata;
use crate::store::keys::{BadName, Id, Name};

pub mod change;
pub mod condition;
pub mod fields;
pub mod label;
pub mod mark;
pub mod member;
pub mod network;
pub mod node;
pub mod plugin;
pub mod publication;
pub mod replica;
pub mod secret;
pub mod service;
pub mod task;
pub mod text;
pub mod time;
pub mod tombstone;
pub mod volume;

use fields::{Fault, Fields};

/// The API version of every kind.
pub const API_VERSION: &str = "quorate.dev/v1";

/// What every stored kind has.
pub trait Object: prost::Message + Default + Clone + PartialEq + 'static {
    /// `Node`, as in a document's `kind`.
    const KIND: &'static str;

    /// The stored metadata.
    fn metadata(&self) -> Option<&Metadata>;

    /// The stored metadata, made if there is none.
    fn metadata_mut(&mut self) -> &mut Metadata;

    /// The name of the object that it belongs to, for kinds whose objects have one: the service of a task.
    fn owner(&self) -> Option<&str> {
        None
    }

    /// Whether it is marked for deletion: nothing may newly refer to it.
    fn is_marked(&self) -> bool {
        false
    }

    /// What protobuf lets through, but no writer of this kind may have meant.
    ///
    /// # Errors
    /// The first such field.
    fn check(&self) -> Result<(), Fault>;
}

/// Why a stored value is not shown or used as an object.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// Not the protobuf message of its kind.
    #[error("the value is no {kind} message: {message}")]
    Encoding {
        /// The kind that the key says.
        kind: &'static str,
        /// The decoder's words.
        message: String,
    },
    /// The key is that of no object.
    #[error("the key says {key}: {bad}")]
    Key {
        /// Owner and name in the key.
        key: String,
        /// What is wrong with one of the two.
        bad: BadName,
    },
    /// The value belongs to another key.
    #[error("the key says {key}, but metadata.name is {name:?}")]
    Name {
        /// The name in the key.
        key: String,
        /// The name in the value.
        name: String,
    },
    /// The value belongs to an object of another owner.
    #[error("the key says {key}, but the value belongs to {owner:?}")]
    Owner {
        /// Owner and name in the key.
        key: String,
        /// The owner in the value.
        owner: String,
    },
    /// A field that no writer may have meant.
    #[error("{0}")]
    Field(Fault),
}

/// Reads the value of the key of the object `name`, which is `owner/name` where the key has both.
///
/// # Errors
/// [`Malformed`]; a reader shows it in the object's place and goes on with the others (INV-8).
pub fn decode<O: Object>(name: &str, value: &[u8]) -> Result<O, Malformed> {
    let (owner, own) = match name.split_once('/') {
        Some((owner, own)) => (Some(owner), own),
        None => (None, name),
    };
    for part in owner.into_iter().chain([own]) {
        part.parse::<Name>().map_err(|bad| Malformed::Key {
            key: name.to_owned(),
            bad,
        })?;
    }
    let object = O::decode(value).map_err(|error| Malformed::Encoding {
        kind: O::KIND,
        message: error.to_string(),
    })?;
    let stored = object.metadata().map_or("", |metadata| metadata.name.as_str());
    if stored != own {
        return Err(Malformed::Name {
            key: name.to_owned(),
            name: stored.to_owned(),
        });
    }
    if object.owner() != owner {
        return Err(Malformed::Owner {
            key: name.to_owned(),
            owner: object.owner().unwrap_or_default().to_owned(),
        });
    }
    object.check().map_err(Malformed::Field)?;
    Ok(object)
}

/// What a document says in `apiVersion`, `kind` and `metadata`. Creation time and generation may stand there, as
/// `get -o yaml` prints them, but nobody can set them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// `None` together with a fault.
    pub name: Option<Name>,
    /// The object that it belongs to, for kinds whose objects have one; stands in the spec.
    pub owner: Option<Name>,
    /// `None` if the document does not mention labels.
    pub labels: Option<BTreeMap<String, String>>,
    /// Must be that of the stored object.
    pub uid: Option<String>,
    /// Must be the mod revision of the stored object.
    pub resource_version: Option<i64>,
}

impl Header {
    /// Reads the header fields of a document whose kind is already known.
    pub fn read(document: &mut Fields<'_, '_>) -> Self {
        document.value("kind");
        match document.string("apiVersion") {
            Some(API_VERSION) => {}
            Some(other) => {
                let message = format!("\"{}\" is not {API_VERSION}", other.escape_debug());
                document.fault("apiVersion", message);
            }
            None if document.is_given("apiVersion") => {}
            None => document.missing("apiVersion"),
        }
        let header = document.object("metadata", |metadata| {
            let name = metadata.parsed("name", str::parse::<Name>);
            if name.is_none() && !metadata.is_given("name") {
                metadata.missing("name");
            }
            let labels = metadata.strings("labels");
            let mut faults = Vec::new();
            for (key, value) in labels.iter().flatten() {
                faults.extend(label::check_key(key).err());
                faults.extend(label::check_value(value).err());
            }
            for fault in faults {
                metadata.fault("labels", fault);
            }
            metadata.parsed("creationTimestamp", str::parse::<jiff::Timestamp>);
            metadata.integer("generation");
            Self {
                name,
                owner: None,
                labels,
                uid: metadata.string("uid").map(str::to_owned),
                resource_version: metadata.parsed("resourceVersion", |text| {
                    text.parse::<i64>()
                        .map_err(|_| format!("\"{}\" is not a number", text.escape_debug()))
                }),
            }
        });
        if header.is_none() && !document.is_given("metadata") {
            document.missing("metadata");
        }
        header.unwrap_or_default()
    }

    /// What the object is called: `n1`, or `web/1` where it belongs to another.
    pub fn id(&self) -> Option<Id> {
        Some(Id {
            owner: self.owner.clone(),
            name: self.name.clone()?,
        })
    }
}

/// The document of an object: `apiVersion`, `kind` and `metadata` as stored, then `parts` (spec, status). Keys come
/// out in alphabetical order, which is the order in which Kubernetes writes them, too.
pub fn document(
    kind: &str,
    metadata: Option<&Metadata>,
    mod_revision: Revision,
    parts: Map<String, Value>,
) -> Value {
    let mut shown = Map::new();
    let empty = Metadata::default();
    let metadata = metadata.unwrap_or(&empty);
    shown.insert("name".to_owned(), json!(metadata.name));
    if !metadata.uid.is_empty() {
        shown.insert("uid".to_owned(), json!(metadata.uid));
    }
    if !metadata.labels.is_empty() {
        shown.insert("labels".to_owned(), json!(metadata.labels));
    }
    if let Some(time) = time::from_proto(metadata.creation_time.as_ref()) {
        shown.insert("creationTimestamp".to_owned(), json!(time::rfc3339(time)));
    }
    if metadata.generation != 0 {
        shown.insert("generation".to_owned(), json!(metadata.generation));
    }
    // A string, as in Kubernetes: it is compared, not counted with.
    shown.insert("resourceVersion".to_owned(), json!(mod_revision.to_string()));
    with_header(kind, shown, parts)
}

/// What is shown in the place of an object whose value is malformed: a condition says why.
pub fn malformed_document(kind: &str, name: &str, mod_revision: Revision, malformed: &Malformed) -> Value {
    let metadata = Metadata {
        name: name.to_owned(),
        ..Metadata::default()
    };
    let condition = json!({
        "type": "Malformed", "status": "True", "reason": "Unreadable", "message": malformed.to_string(),
    });
    let parts = Map::from_iter([("status".to_owned(), json!({"conditions": [condition]}))]);
    document(kind, Some(&metadata), mod_revision, parts)
}

/// A document of `kind` with this metadata and these parts.
pub fn with_header(kind: &str, metadata: Map<String, Value>, parts: Map<String, Value>) -> Value {
    let mut document = Map::new();
    document.insert("apiVersion".to_owned(), json!(API_VERSION));
    document.insert("kind".to_owned(), json!(kind));
    document.insert("metadata".to_owned(), Value::Object(metadata));
    document.extend(parts);
    Value::Object(document)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::Node;

    fn header(value: &Value) -> (Header, Vec<String>) {
        let mut faults = Vec::new();
        let header = Fields::document(value, &mut faults, Header::read).unwrap();
        (header, faults.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn a_header_as_get_prints_it_is_understood() {
        let (header, faults) = header(&json!({
            "apiVersion": "quorate.dev/v1", "kind": "Node",
            "metadata": {
                "name": "n1", "uid": "u", "labels": {"a": "b"}, "creationTimestamp": "2026-03-01T12:00:00Z",
                "generation": 3, "resourceVersion": "17",
            },
        }));
        assert!(faults.is_empty(), "{faults:?}");
        assert_eq!(
            header,
            Header {
                name: "n1".parse().ok(),
                owner: None,
                labels: Some(BTreeMap::from([("a".to_owned(), "b".to_owned())])),
                uid: Some("u".to_owned()),
                resource_version: Some(17),
            }
        );
    }

    #[test]
    fn every_fault_of_a_header_is_told() {
        let (_, faults) = header(&json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": {"name": "N 1", "labels": {"a b": "ok", "c": "d e"}, "resourceVersion": "new", "namespace": "x"},
        }));
        let paths: Vec<&str> = faults
            .iter()
            .filter_map(|fault| fault.split(':').next())
            .collect();
        assert_eq!(
            paths,
            [
                "apiVersion",
                "metadata.name",
                "metadata.labels",
                "metadata.labels",
                "metadata.resourceVersion",
                "metadata.namespace"
            ],
            "{faults:?}"
        );
        let (_, faults) = header(&json!({"kind": "Node"}));
        assert_eq!(faults, ["apiVersion: missing", "metadata: missing"]);
    }

    #[test]
    fn what_lies_under_a_key_that_no_object_can_have_is_malformed() {
        for key in ["A", "", "a/b/c", "a/B"] {
            let mut node = Node::default();
            node.metadata_mut().name = key.rsplit('/').next().unwrap().to_owned();
            let error = decode::<Node>(key, &prost::Message::encode_to_vec(&node)).unwrap_err();
            assert!(matches!(error, Malformed::Key { .. }), "{key}: {error}");
        }
    }

    #[test]
    fn garbage_an_empty_value_and_a_foreign_name_are_malformed() {
        assert!(matches!(
            decode::<Node>("n1", &[0xff, 0xff]),
            Err(Malformed::Encoding { .. })
        ));
        assert!(matches!(decode::<Node>("n1", &[]), Err(Malformed::Name { .. })));
        let mut other = Node::default();
        other.metadata_mut().name = "n2".to_owned();
        let error = decode::<Node>("n1", &prost::Message::encode_to_vec(&other)).unwrap_err();
        assert_eq!(error.to_string(), "the key says n1, but metadata.name is \"n2\"");
    }
}
