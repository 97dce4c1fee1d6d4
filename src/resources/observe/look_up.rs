//! What the term knows of an object, and what changes it between two lists.

use super::super::deletion::Stays;
use super::{Cluster, GroupKind, KindState, Question, Target};
use crate::kube::{Cause, Error as ApiError, Meta, ObjectRef, Resource};

/// Why the state of an object is unknown.
#[derive(Clone, Debug, thiserror::Error)]
pub(in crate::resources) enum LookupError {
    #[error("no matches for kind \"{kind}\" in version \"{api_version}\"")]
    NotServed { kind: String, api_version: String },
    #[error("the API server has not answered what objects of kind {0} there are yet")]
    Unanswered(String),
    #[error(transparent)]
    Unknown(ApiError),
    #[error("metadata.namespace is required: {0} is namespaced")]
    NeedsNamespace(String),
    #[error("metadata.namespace must be omitted: {0} is cluster-scoped")]
    TakesNoNamespace(String),
}

impl LookupError {
    /// The error in a line that names this object already.
    pub(in crate::resources) fn about(&self, object: &ObjectRef) -> String {
        match self {
            Self::Unknown(error) => error.about(object),
            other => other.to_string(),
        }
    }
}

impl Cluster {
    /// An object that stays, as far as its kind is known.
    pub(in crate::resources) fn stays(&self, target: &Target) -> Stays {
        let plural = match self.look_up(&target.object, &target.version) {
            Ok((resource, _)) => Some(resource.plural.clone()),
            Err(_) => None,
        };
        Stays {
            object: target.object.clone(),
            plural,
            is_seen: true,
        }
    }

    /// The resource to write an object through, and the object as it is known.
    pub(in crate::resources) fn look_up(
        &self,
        object: &ObjectRef,
        version: &str,
    ) -> Result<(&Resource, Option<&Meta>), LookupError> {
        let ObjectRef {
            group,
            kind,
            namespace,
            ..
        } = object;
        let not_served = || LookupError::NotServed {
            kind: kind.clone(),
            api_version: match group.as_str() {
                "" => version.to_owned(),
                group => format!("{group}/{version}"),
            },
        };
        let resource = self.discovery.known(group, version, kind).flatten();
        match (resource.map(|resource| resource.namespaced), namespace) {
            (Some(true), None) => return Err(LookupError::NeedsNamespace(kind.clone())),
            (Some(false), Some(_)) => return Err(LookupError::TakesNoNamespace(kind.clone())),
            _ => {}
        }
        let state = self.kinds.get(&(group.clone(), kind.clone()));
        let read = self.read.get(object);
        let observed = match (state, read.map(|read| (&read.resource, &read.result))) {
            (None | Some(KindState::NotServed), _) => return Err(not_served()),
            (Some(KindState::Unanswered), _) => return Err(LookupError::Unanswered(kind.clone())),
            (Some(KindState::Unlisted), _) => None,
            (Some(KindState::Listed(known)), _) if known.covers(object) => known.get(object),
            // What was read before is older than this.
            (Some(KindState::Unknown(error)), _) if !matches!(error.cause, Cause::Forbidden { .. }) => {
                return Err(LookupError::Unknown(error.clone()));
            }
            (_, Some((resource, Ok(read)))) => return Ok((resource, read.as_ref())),
            (_, Some((_, Err(error)))) => return Err(LookupError::Unknown(error.clone())),
            (Some(KindState::Unknown(error)), None) => return Err(LookupError::Unknown(error.clone())),
            (Some(KindState::Listed(_)), None) => return Err(LookupError::Unanswered(kind.clone())),
        };
        Ok((resource.ok_or_else(not_served)?, observed))
    }

    /// Notes a change that a watch delivered. Returns whether it is later than what is known.
    pub(in crate::resources) fn note(&mut self, object: &ObjectRef, meta: &Meta, deleted: bool) -> bool {
        match self.kinds.get_mut(&kind_of(object)) {
            Some(KindState::Listed(known)) => known.note(meta, deleted),
            _ => false,
        }
    }

    /// Whether this version of an object is later than what is known.
    pub(in crate::resources) fn is_news(&self, object: &ObjectRef, meta: &Meta) -> bool {
        match self.kinds.get(&kind_of(object)) {
            Some(KindState::Listed(known)) => known.is_news(meta),
            _ => false,
        }
    }

    /// Notes that an object was deleted.
    pub(in crate::resources) fn remove(&mut self, object: &ObjectRef) {
        self.read.remove(object);
        if let Some(KindState::Listed(known)) = self.kinds.get_mut(&kind_of(object)) {
            known.remove(object);
        }
    }

    /// Has the next pass list a kind.
    pub(in crate::resources) fn doubt(&mut self, kind: &GroupKind) {
        if let Some(KindState::Listed(known)) = self.kinds.get_mut(kind) {
            known.is_doubtful = true;
        }
    }

    /// Whether there are kinds that the next pass lists for the first time.
    pub(in crate::resources) fn has_unlisted(&self) -> bool {
        let mut kinds = self.kinds.iter();
        kinds.any(|(kind, state)| {
            matches!(state, KindState::Unlisted) && !self.questions.is_busy(&Question::List(kind.clone()))
        })
    }

    /// Whether the kind of the object is yet to be listed for the first time, so that only the memory of the term tells
    /// whether the object exists.
    pub(in crate::resources) fn is_unlisted(&self, object: &ObjectRef) -> bool {
        matches!(self.kinds.get(&kind_of(object)), Some(KindState::Unlisted))
    }

    /// Whether the server serves a kind under this plural, in a version that the bundle uses.
    pub(in crate::resources) fn serves(&self, group: &str, kind: &str, plural: &str) -> bool {
        self.discovery.serves(group, kind, plural)
    }

    /// Stores which kinds a version of a group serves.
    pub(in crate::resources) fn learn(&mut self, group: &str, version: &str, served: Vec<Resource>) {
        self.discovery.learn(group, version, served);
        self.undiscovered.remove(&(group.to_owned(), version.to_owned()));
    }

    /// All kinds that are served, or may be.
    pub(in crate::resources) fn kinds(&mut self) -> impl Iterator<Item = (&GroupKind, &mut KindState)> {
        let kinds = self.kinds.iter_mut();
        kinds.filter(|(_, state)| !matches!(state, KindState::NotServed))
    }
}

fn kind_of(object: &ObjectRef) -> GroupKind {
    (object.group.clone(), object.kind.clone())
}
