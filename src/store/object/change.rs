//! Decides what applying a document changes in a stored object. Pure: it runs before anything is written.

use std::marker::PhantomData;

use serde_json::Value;

use super::fields::{Asked, Fault, Fields};
use super::{Header, Malformed, Object, decode};
use crate::etcd::Revision;
use crate::proto::Metadata;
use crate::store::keys::{Id, Name};
use crate::wire::updated;

/// A kind that `apply` writes.
pub trait Appliable: Object {
    /// The content of a document besides its header.
    type Manifest;

    /// Objects of a lower layer are written first, so that a document may refer to one that follows it.
    const LAYER: u8 = 0;

    /// The name of the owner, for kinds with one.
    fn owner_in(_manifest: &Self::Manifest) -> Option<Name> {
        None
    }

    /// The objects that this one uses. The transaction that writes it compares those that it newly refers to.
    fn references(&self) -> Vec<Reference> {
        Vec::new()
    }

    /// Reads a document without `apiVersion`, `kind` and `metadata`.
    fn read(document: &mut Fields<'_, '_>) -> Self::Manifest;

    /// A new object with this spec and its first status. The caller fills in the metadata.
    ///
    /// # Errors
    /// Why such an object cannot be created.
    fn create(name: &str, manifest: &Self::Manifest) -> Result<Self, Rejection>;

    /// Writes the spec of a stored object.
    ///
    /// # Errors
    /// The fields that cannot be changed or left out.
    fn update(&mut self, name: &str, manifest: &Self::Manifest) -> Result<(), Rejection>;

    /// Writes the reporter's part of the status, as far as the manifest contains it. Most kinds have no reporter.
    fn report(&mut self, _manifest: &Self::Manifest) {}

    /// Whether both have the same spec. The generation grows with each other spec.
    fn same_spec(&self, other: &Self) -> bool;

    /// Whether both have the same reporter's part of the status.
    fn same_report(&self, _other: &Self) -> bool {
        true
    }
}

/// An object that another one uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reference {
    /// Its kind: `Network`.
    pub kind: &'static str,
    /// Its name. No kind with an owner is referred to.
    pub name: Name,
}

impl Reference {
    /// A reference to the object of this name; `None` if no object can have it.
    pub fn to(kind: &'static str, name: &str) -> Option<Self> {
        let name = name.parse().ok()?;
        Some(Self { kind, name })
    }
}

/// The part of an object that `apply` writes. Each part has one writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The spec and the labels, which an operator writes.
    Spec,
    /// The part of the status that the object's reporter writes.
    Status,
}

/// The inputs of a decision besides the document and the stored object.
#[derive(Clone, Debug)]
pub struct Request {
    /// The part to write.
    pub part: Part,
    /// The creation time of a new object.
    pub now: jiff::Timestamp,
    /// The uid of a new object.
    pub uid: String,
}

/// A stored object.
#[derive(Clone, Copy, Debug)]
pub struct StoredValue<'a> {
    /// Its value.
    pub value: &'a [u8],
    /// The revision of its last write.
    pub mod_revision: Revision,
}

/// What applying a document writes. Every write compares the mod revision that the decision was made from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Put this value if the key is still absent.
    Create(Vec<u8>),
    /// Put this value if the key is unchanged.
    Configure(Vec<u8>),
    /// Nothing: the object is as the document says.
    Nothing,
}

/// Why a document cannot be applied.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Rejection {
    /// The document has faults, in itself or given what is stored.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Faulty(Vec<Fault>),
    /// A rule forbids it.
    #[error("refused by rule {rule}: {message}")]
    Refused {
        /// The rule's name, for scripts.
        rule: &'static str,
        /// What the rule forbids here, and what to do instead.
        message: String,
    },
    /// The document was made from another version of the object than the stored one.
    #[error("{0}")]
    Conflict(String),
    /// The object of a reported status does not exist.
    #[error("not found: a status can only be reported for an object that exists")]
    NotFound,
    /// The stored value cannot be read, so no part of it can be changed.
    #[error("the stored value is malformed ({0}); delete it with --force and apply it again")]
    Malformed(#[from] Malformed),
}

/// A kind as `apply` sees it: documents and stored bytes, independent of the message type.
pub trait Codec: Sync {
    /// The id of the object that a document of this kind describes.
    ///
    /// # Errors
    /// All faults of the document, at least one.
    fn check(&self, document: &Value) -> Result<Id, Vec<Fault>>;

    /// The fields that a document of this kind may have.
    fn fields(&self) -> Vec<Asked>;

    /// Decides what applying `document` to the stored object writes.
    ///
    /// # Errors
    /// Why the document cannot be applied.
    fn plan(
        &self,
        document: &Value,
        stored: Option<StoredValue<'_>>,
        request: &Request,
    ) -> Result<Step, Rejection>;

    /// [`Appliable::LAYER`].
    fn layer(&self) -> u8;

    /// The objects that the value `after` of the object `id` refers to and `before` did not.
    fn new_references(&self, id: &str, before: Option<&[u8]>, after: &[u8]) -> Vec<Reference>;

    /// Whether this stored value of the object `id` is marked for deletion.
    ///
    /// # Errors
    /// Why the value cannot be read.
    fn is_marked(&self, id: &str, value: &[u8]) -> Result<bool, Malformed>;

    /// Whether two stored values have the same identity and the same `part`. A write between them then changed another
    /// part, which is not a conflict.
    fn same_part(&self, name: &str, before: &[u8], after: &[u8], part: Part) -> bool;
}

/// The [`Codec`] of a kind.
#[derive(Debug)]
pub struct Of<O>(PhantomData<fn() -> O>);

impl<O: Appliable> Of<O> {
    /// The codec of the kind.
    pub const CODEC: &'static dyn Codec = &Self(PhantomData);
}

fn read<O: Appliable>(document: &Value) -> Result<(Header, O::Manifest), Vec<Fault>> {
    let mut faults = Vec::new();
    let read = Fields::document(document, &mut faults, |fields| {
        (Header::read(fields), O::read(fields))
    });
    match read {
        Some((Some(mut header), manifest)) if faults.is_empty() => {
            header.owner = O::owner_in(&manifest);
            Ok((header, manifest))
        }
        _ => Err(faults),
    }
}

impl<O: Appliable> Codec for Of<O> {
    fn check(&self, document: &Value) -> Result<Id, Vec<Fault>> {
        read::<O>(document).map(|(header, _)| header.id())
    }

    fn fields(&self) -> Vec<Asked> {
        Fields::asked(|fields| {
            Header::read(fields);
            O::read(fields);
        })
    }

    fn plan(
        &self,
        document: &Value,
        stored: Option<StoredValue<'_>>,
        request: &Request,
    ) -> Result<Step, Rejection> {
        let (header, manifest) = read::<O>(document).map_err(Rejection::Faulty)?;
        let name = header.name.as_str();
        let Some(stored) = stored else {
            return plan_create::<O>(name, &header, &manifest, request);
        };
        let before: O = decode(&header.id().to_string(), stored.value)?;
        check_identity(&header, &before, stored.mod_revision)?;
        let mut after = before.clone();
        match request.part {
            Part::Spec => {
                after.update(name, &manifest)?;
                if !after.same_spec(&before) {
                    after.next_generation();
                }
                if let Some(labels) = header.labels {
                    after.metadata_mut().labels = labels;
                }
            }
            Part::Status => after.report(&manifest),
        }
        Ok(if after == before {
            Step::Nothing
        } else {
            // What only a later release knows stays.
            Step::Configure(updated(stored.value, &before.encode_to_vec(), &after))
        })
    }

    fn layer(&self) -> u8 {
        O::LAYER
    }

    fn new_references(&self, id: &str, before: Option<&[u8]>, after: &[u8]) -> Vec<Reference> {
        let references = |value: &[u8]| decode::<O>(id, value).map(|object| object.references());
        let old = before.map(references).and_then(Result::ok).unwrap_or_default();
        let mut new = references(after).unwrap_or_default();
        new.retain(|reference| !old.contains(reference));
        new
    }

    fn is_marked(&self, id: &str, value: &[u8]) -> Result<bool, Malformed> {
        decode::<O>(id, value).map(|object| object.is_marked())
    }

    fn same_part(&self, name: &str, before: &[u8], after: &[u8], part: Part) -> bool {
        let (Ok(before), Ok(after)) = (decode::<O>(name, before), decode::<O>(name, after)) else {
            return false;
        };
        let labels = |object: &O| object.metadata().map(|metadata| metadata.labels.clone());
        before.uid() == after.uid()
            && match part {
                Part::Spec => before.same_spec(&after) && labels(&before) == labels(&after),
                Part::Status => before.same_report(&after),
            }
    }
}

fn plan_create<O: Appliable>(
    name: &str,
    header: &Header,
    manifest: &O::Manifest,
    request: &Request,
) -> Result<Step, Rejection> {
    if request.part == Part::Status {
        return Err(Rejection::NotFound);
    }
    if header.resource_version.is_some() || header.uid.is_some() {
        return Err(Rejection::Conflict(
            "the document has a uid or resourceVersion, but no such object exists (deleted meanwhile?); \
             leave both out to create it"
                .to_owned(),
        ));
    }
    let mut object = O::create(name, manifest)?;
    *object.metadata_mut() = Metadata {
        labels: header.labels.clone().unwrap_or_default(),
        ..Metadata::new(name, &request.uid, request.now)
    };
    Ok(Step::Create(object.encode_to_vec()))
}

fn check_identity<O: Object>(header: &Header, stored: &O, mod_revision: Revision) -> Result<(), Rejection> {
    let uid = stored.uid();
    if let Some(expected) = header.uid.as_deref().filter(|expected| *expected != uid) {
        return Err(Rejection::Conflict(format!(
            "metadata.uid is {expected:?}, but the object of this name has {uid:?}: it was deleted and created again"
        )));
    }
    if let Some(expected) = header
        .resource_version
        .filter(|expected| Revision(*expected) != mod_revision)
    {
        return Err(Rejection::Conflict(format!(
            "metadata.resourceVersion is {expected}, but the object is at {mod_revision}: it was changed meanwhile; \
             get it again, or leave resourceVersion out"
        )));
    }
    Ok(())
}
