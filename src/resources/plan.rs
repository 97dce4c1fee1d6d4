//! Decides what to do about one object, from the manifest, the observed object, the inventory and the memory of earlier
//! passes. Pure: no I/O, no clock.

use std::fmt;
use std::time::Instant;

use super::bundle::{ADOPT, LABEL, may_be_pruned};
use crate::kube::{FIELD_MANAGER, Meta, ObjectRef, Precondition};

mod refused;

pub use refused::{Next, next_after, replanned};

/// The side of the bundle.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// Name of the bundle.
    pub bundle: &'a str,
    /// Whether to take over an existing object that is not ours.
    pub adopt: bool,
}

/// One version of one object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectVersion {
    /// Identifies the object.
    pub uid: String,
    /// Changes with every write of the object.
    pub resource_version: String,
}

impl ObjectVersion {
    /// The version that this metadata was read from.
    pub fn of(meta: &Meta) -> Self {
        Self {
            uid: meta.uid.clone(),
            resource_version: meta.resource_version.clone(),
        }
    }
}

/// The memory of earlier passes about an object.
#[derive(Clone, Copy, Debug, Default)]
pub struct Remembered<'a> {
    /// The version in which the object was last in place, if it ever was.
    pub in_sync: Option<&'a ObjectVersion>,
    /// No mend before this time: another writer keeps reverting the object.
    pub mend_after: Option<Instant>,
    /// No attempt before this time: the last one failed, and the object has not been replaced since.
    pub retry_after: Option<Instant>,
}

/// Why an existing object is not ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Foreign {
    /// It has no bundle label.
    NoLabel,
    /// It has the label of this other bundle.
    OtherBundle(String),
    /// It has the label of our bundle, but our field manager owns no field of it.
    NeverOurs,
}

impl fmt::Display for Foreign {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoLabel => write!(
                f,
                "already exists and is not managed by this bundle: no label {LABEL}"
            )?,
            Self::OtherBundle(name) => write!(f, "already exists and belongs to bundle \"{name}\"")?,
            Self::NeverOurs => write!(
                f,
                "already exists and is not managed by this bundle: it has the label {LABEL}, but field manager \
                 {FIELD_MANAGER} owns none of its fields"
            )?,
        }
        write!(f, "; delete it, or annotate the manifest with {ADOPT}: \"true\"")
    }
}

/// Why an object is applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApplyReason {
    /// This term has not yet seen the object in place.
    FirstLook,
    /// The object was in place and has been written since.
    Changed,
    /// The object is not ours, and its manifest says to take it over.
    Adopted,
}

/// What to do about an object of the bundle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Write nothing: the object has the version in which it was last in place.
    Leave,
    /// Create the object; it does not exist.
    Create {
        /// Whether the object was in place before, so that another writer deleted it.
        mends: bool,
    },
    /// Apply the manifest to the existing object.
    Apply {
        /// Uid of the object that was observed.
        uid: String,
        /// Why it is applied.
        why: ApplyReason,
    },
    /// Write nothing yet: another writer keeps reverting the object.
    BackOff {
        /// The end of the wait.
        until: Instant,
    },
    /// Write nothing yet: the last attempt failed.
    RetryLater {
        /// The end of the wait.
        until: Instant,
    },
    /// Write nothing yet: the object is being deleted. It can be created once it is gone.
    AwaitDeletion,
    /// Write nothing: the object is not ours.
    Refuse(Foreign),
}

impl Step {
    /// The precondition of the apply that carries out the step; `None` if the step writes nothing.
    pub(super) fn precondition(&self) -> Option<Precondition<'_>> {
        match self {
            Self::Create { .. } => Some(Precondition::Absent),
            Self::Apply { uid, .. } => Some(Precondition::Uid(uid)),
            _ => None,
        }
    }
}

/// Decides about an object of the bundle. `inventory_uid` is empty if the inventory has no uid of the object.
pub fn plan(
    wanted: Wanted<'_>,
    observed: Option<&Meta>,
    inventory_uid: &str,
    remembered: Remembered<'_>,
    now: Instant,
) -> Step {
    if let (Some(meta), Some(in_sync)) = (observed, remembered.in_sync)
        && *in_sync == ObjectVersion::of(meta)
    {
        return Step::Leave;
    }
    if let Some(until) = remembered.retry_after
        && until > now
    {
        return Step::RetryLater { until };
    }
    if let Some(until) = remembered.mend_after
        && until > now
        && remembered.in_sync.is_some()
    {
        return Step::BackOff { until };
    }
    let Some(meta) = observed else {
        return Step::Create {
            mends: remembered.in_sync.is_some(),
        };
    };
    if meta.deletion_timestamp.is_some() {
        return Step::AwaitDeletion;
    }
    let why = match foreign(wanted.bundle, meta, inventory_uid) {
        None if remembered.in_sync.is_some() => ApplyReason::Changed,
        None => ApplyReason::FirstLook,
        Some(_) if wanted.adopt => ApplyReason::Adopted,
        Some(foreign) => return Step::Refuse(foreign),
    };
    Step::Apply {
        uid: meta.uid.clone(),
        why,
    }
}

/// Why an object is not ours; `None` if it is. Our objects have the bundle's label *and* fields that our manager owns. If
/// the bundle was renamed, the old label counts too, provided the inventory has the object's uid.
fn foreign(bundle: &str, meta: &Meta, inventory_uid: &str) -> Option<Foreign> {
    let Some(label) = meta.labels.get(LABEL) else {
        return Some(Foreign::NoLabel);
    };
    if !meta.is_managed_by(FIELD_MANAGER) {
        return Some(Foreign::NeverOurs);
    }
    if label == bundle || inventory_uid == meta.uid {
        None
    } else {
        Some(Foreign::OtherBundle(label.clone()))
    }
}

/// What to do about an object that the inventory holds and the bundle does not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Prune {
    /// Remove the entry from the inventory: the cluster holds no object of ours under this name.
    Forget(ForgetReason),
    /// Leave the object: its kind is protected, or its annotation says so.
    Keep,
    /// Do nothing yet: the object is being deleted.
    AwaitDeletion,
    /// Delete the object, on condition that it still has this uid and version.
    Delete {
        /// Uid of the object that was observed.
        uid: String,
        /// Version of the object that was observed.
        resource_version: String,
    },
}

/// Why an entry is removed from the inventory without a deletion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForgetReason {
    /// The object does not exist, or its label was removed.
    Absent,
    /// Another object has the name by now.
    Replaced,
    /// The object has the label, but we never wrote it.
    NeverOurs,
}

/// Decides about an object that the inventory holds and the bundle does not.
pub fn plan_prune(object: &ObjectRef, observed: Option<&Meta>, inventory_uid: &str) -> Prune {
    let Some(meta) = observed.filter(|meta| meta.labels.contains_key(LABEL)) else {
        return Prune::Forget(ForgetReason::Absent);
    };
    if inventory_uid.is_empty() {
        // The entry was recorded before the first write, and the response to it was lost. Only an object that we wrote
        // has fields of our manager.
        if !meta.is_managed_by(FIELD_MANAGER) {
            return Prune::Forget(ForgetReason::NeverOurs);
        }
    } else if inventory_uid != meta.uid {
        return Prune::Forget(ForgetReason::Replaced);
    }
    if meta.deletion_timestamp.is_some() {
        return Prune::AwaitDeletion;
    }
    if !may_be_pruned(object, &meta.annotations) {
        return Prune::Keep;
    }
    Prune::Delete {
        uid: meta.uid.clone(),
        resource_version: meta.resource_version.clone(),
    }
}

#[cfg(test)]
mod tests;
