//! Objects: a person writes and reads them as YAML or JSON, etcd stores them as protobuf.
//!
//! An object has metadata, a spec that an operator writes, and a status that the parts of the system write. The
//! [`Object`] trait is what every kind has in common; a kind's own module ([`node`]) knows its fields. Everything here
//! is pure: bytes and documents in, bytes and documents out.

use std::collections::BTreeMap;

use crate::proto::Metadata;
use crate::store::keys::{BadName, Id, Name};

/// The name of a kind, and the accessors of the metadata that each of its messages has.
macro_rules! kind_with_metadata {
    ($kind:literal) => {
        const KIND: &'static str = $kind;

        fn metadata(&self) -> Option<&$crate::proto::Metadata> {
            self.metadata.as_ref()
        }

        fn metadata_mut(&mut self) -> &mut $crate::proto::Metadata {
            self.metadata.get_or_insert_default()
        }
    };
}

pub mod change;
pub mod condition;
pub mod document;
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
pub mod words;

use fields::{Fault, Fields};

/// The API version of every kind.
pub const API_VERSION: &str = "quorate.dev/v1";

/// A stored kind.
pub trait Object: prost::Message + Default + Clone + PartialEq + 'static {
    /// `Node`, as in a document's `kind`.
    const KIND: &'static str;

    /// The metadata, if the stored value has any.
    fn metadata(&self) -> Option<&Metadata>;

    /// The metadata, created empty if the stored value has none.
    fn metadata_mut(&mut self) -> &mut Metadata;

    /// The name; empty if the stored value has none.
    fn name(&self) -> &str {
        self.metadata().map_or("", |metadata| &metadata.name)
    }

    /// The uid that the object got when it was created; empty if the stored value has none.
    fn uid(&self) -> &str {
        self.metadata().map_or("", |metadata| &metadata.uid)
    }

    /// How often the spec was written.
    fn generation(&self) -> i64 {
        self.metadata().map_or(0, |metadata| metadata.generation)
    }

    /// Counts a change of the spec.
    fn next_generation(&mut self) {
        let metadata = self.metadata_mut();
        metadata.generation = metadata.generation.saturating_add(1);
    }

    /// The name of the owner, for kinds with one: the service of a task.
    fn owner(&self) -> Option<&str> {
        None
    }

    /// Whether the object is marked for deletion. Nothing may newly refer to a marked object.
    fn is_marked(&self) -> bool {
        false
    }

    /// Checks what protobuf accepts but this kind does not.
    ///
    /// # Errors
    /// The first faulty field.
    fn check(&self) -> Result<(), Fault> {
        Ok(())
    }
}

impl Metadata {
    /// The metadata of a new object.
    pub fn new(name: impl ToString, uid: impl Into<String>, now: jiff::Timestamp) -> Self {
        Self {
            name: name.to_string(),
            uid: uid.into(),
            labels: BTreeMap::new(),
            creation_time: Some(time::to_proto(now)),
            generation: 1,
        }
    }
}

/// Why a stored value cannot be read as an object.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// The value is not the protobuf message of its kind.
    #[error("the value is no {kind} message: {message}")]
    Encoding {
        /// The kind that the key belongs to.
        kind: &'static str,
        /// The decoder's error.
        message: String,
    },
    /// No object can have this key.
    #[error("the key says {key}: {bad}")]
    Key {
        /// Owner and name in the key.
        key: String,
        /// What is wrong with the owner or the name.
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
    /// [`Object::check`] found a faulty field.
    #[error("{0}")]
    Field(Fault),
}

/// Reads the protobuf message of a kind.
pub fn message<M: prost::Message + Default>(kind: &'static str, value: &[u8]) -> Result<M, Malformed> {
    M::decode(value).map_err(|error| Malformed::Encoding {
        kind,
        message: error.to_string(),
    })
}

/// Reads the stored value of the object `name`, which is `owner/name` for kinds with an owner.
///
/// # Errors
/// [`Malformed`]. A reader shows it in the object's place and goes on with the other objects (INV-8).
pub fn decode<O: Object>(name: &str, value: &[u8]) -> Result<O, Malformed> {
    let (owner, own) = match name.split_once('/') {
        Some((owner, own)) => (Some(owner), own),
        None => (None, name),
    };
    for part in owner.into_iter().chain([own]) {
        Name::check(part).map_err(|bad| Malformed::Key {
            key: name.to_owned(),
            bad,
        })?;
    }
    let object: O = message(O::KIND, value)?;
    if object.name() != own {
        return Err(Malformed::Name {
            key: name.to_owned(),
            name: object.name().to_owned(),
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

/// `apiVersion`, `kind` and `metadata` of a document. Creation time and generation are accepted, since `get -o yaml`
/// prints them, and ignored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// The name.
    pub name: Name,
    /// The owner, for kinds with one. It is part of the spec.
    pub owner: Option<Name>,
    /// The labels; `None` if the document leaves them out.
    pub labels: Option<BTreeMap<String, String>>,
    /// The uid, which must be that of the stored object.
    pub uid: Option<String>,
    /// The resource version, which must be the mod revision of the stored object.
    pub resource_version: Option<i64>,
}

impl Header {
    /// Reads the header fields of a document whose kind is already known. `None` if the name is missing or faulty, and a
    /// fault says so.
    pub fn read(document: &mut Fields<'_, '_>) -> Option<Self> {
        document.raw("kind", "a string");
        document.is_required("kind");
        document.require("apiVersion");
        if let Some(other) = document
            .string("apiVersion")
            .filter(|version| *version != API_VERSION)
        {
            let message = format!("\"{}\" is not {API_VERSION}", other.escape_debug());
            document.fault("apiVersion", message);
        }
        document.require("metadata");
        let header = document.object("metadata", |metadata| {
            metadata.require("name");
            let name = metadata.parsed("name", str::parse::<Name>);
            let labels = metadata.strings("labels");
            let mut faults = Vec::new();
            for (key, value) in labels.iter().flatten() {
                faults.extend(label::check_key(key).err());
                faults.extend(label::check_value(value).err());
            }
            for fault in faults {
                metadata.fault("labels", fault);
            }
            metadata.parsed("creationTimestamp", time::parse);
            metadata.integer("generation");
            let uid = metadata.string("uid").map(str::to_owned);
            let resource_version = metadata.parsed("resourceVersion", |text| {
                text.parse::<i64>()
                    .map_err(|_| format!("\"{}\" is not a number", text.escape_debug()))
            });
            Some(Self {
                name: name?,
                owner: None,
                labels,
                uid,
                resource_version,
            })
        });
        header.flatten()
    }

    /// The object's id: `n1`, or `web/1` for kinds with an owner.
    pub fn id(&self) -> Id {
        Id {
            owner: self.owner.clone(),
            name: self.name.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::proto::Node;

    fn header(value: &Value) -> (Option<Header>, Vec<String>) {
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
            Some(Header {
                name: "n1".parse().unwrap(),
                owner: None,
                labels: Some(BTreeMap::from([("a".to_owned(), "b".to_owned())])),
                uid: Some("u".to_owned()),
                resource_version: Some(17),
            })
        );
    }

    #[test]
    fn every_fault_of_a_header_is_reported() {
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
        for (document, expected) in [
            (
                json!({"kind": "Node"}),
                ["apiVersion: missing", "metadata: missing"],
            ),
            (
                json!({"kind": "Node", "apiVersion": null, "metadata": null}),
                ["apiVersion: missing", "metadata: missing"],
            ),
            (
                json!({"kind": "Node", "metadata": {"name": null}}),
                ["apiVersion: missing", "metadata.name: missing"],
            ),
        ] {
            assert_eq!(header(&document), (None, expected.map(str::to_owned).to_vec()));
        }
    }

    #[test]
    fn a_value_under_a_key_that_no_object_can_have_is_malformed() {
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
