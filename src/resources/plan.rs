//! What to do about one object, decided from what is wanted, what is there, what the inventory holds and what is
//! remembered. Pure: no I/O, no clock.

use std::fmt;
use std::time::Instant;

use super::bundle::{LABEL, may_be_pruned};
use crate::kube::{FIELD_MANAGER, Meta, ObjectRef};

/// What is wanted.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// Name of the bundle.
    pub bundle: &'a str,
    /// Whether an object that is not ours is taken over.
    pub adopt: bool,
}

/// The state in which an object was left in place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectVersion {
    /// Which object.
    pub uid: String,
    /// Its version after our last look that found nothing to change.
    pub resource_version: String,
}

impl ObjectVersion {
    /// The state of this object.
    pub fn of(meta: &Meta) -> Self {
        Self {
            uid: meta.uid.clone(),
            resource_version: meta.resource_version.clone(),
        }
    }
}

/// What is remembered of an object from pass to pass.
#[derive(Clone, Copy, Debug, Default)]
pub struct Remembered<'a> {
    /// Set once it was in place.
    pub in_sync: Option<&'a ObjectVersion>,
    /// Not to be mended before: someone keeps changing it back.
    pub mend_after: Option<Instant>,
    /// Not to be tried again before: it failed, and nothing about it has changed since.
    pub retry_after: Option<Instant>,
}

/// ApplyReason an object is left to whom it belongs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Foreign {
    /// It carries no label of any bundle.
    NoLabel,
    /// It carries the label of this bundle.
    OtherBundle(String),
    /// It carries our label, but we never wrote it.
    NeverOurs,
}

impl fmt::Display for Foreign {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoLabel => write!(f, "exists, and is not ours: it has no label {LABEL}")?,
            Self::OtherBundle(name) => {
                write!(f, "exists, and is not ours: it belongs to the bundle \"{name}\"")?
            }
            Self::NeverOurs => write!(
                f,
                "exists, and is not ours: it has the label {LABEL}, but field manager {FIELD_MANAGER} owns nothing of it"
            )?,
        }
        write!(
            f,
            "; delete it, or annotate the manifest with {}: \"true\"",
            super::bundle::ADOPT
        )
    }
}

/// ApplyReason an object is applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApplyReason {
    /// Whether it is as wanted was not looked at yet.
    FirstLook,
    /// It was in place, and was written since.
    Changed,
    /// It was someone else's, and its manifest says to take it over.
    Adopted,
}

/// What to do about an object of the bundle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing: it is as it was left.
    Leave,
    /// Create it; it does not exist.
    Create {
        /// It was in place before, so that someone deleted it.
        mends: bool,
    },
    /// Apply it to the object with this uid.
    Apply {
        /// Of the object that was looked at.
        uid: String,
        /// For what reason.
        why: ApplyReason,
    },
    /// Nothing yet: someone keeps changing it back.
    BackOff {
        /// Until then.
        until: Instant,
    },
    /// Nothing yet: it failed a moment ago.
    RetryLater {
        /// Until then.
        until: Instant,
    },
    /// Nothing yet: it is being deleted, and can be created once it is gone.
    AwaitDeletion,
    /// Nothing: it is someone else's.
    Refuse(Foreign),
}

/// Decides about an object of the bundle. `inventory_uid` is what the inventory says of it; empty where it says nothing.
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

/// Whether an object is someone else's. Ours has the bundle's label *and* fields that our manager owns; or, after the
/// bundle was called differently, another bundle's label and the uid that the inventory knows.
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
    /// Drop it from the inventory: there is nothing of ours left.
    Forget(ForgetReason),
    /// Leave it: its loss would take other things with it, or it is annotated so.
    Keep,
    /// Nothing yet: it is being deleted.
    AwaitDeletion,
    /// Delete it, if it still is this object in this state.
    Delete {
        /// Of the object that was looked at.
        uid: String,
        /// Likewise.
        resource_version: String,
    },
}

/// ApplyReason nothing of ours is left of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForgetReason {
    /// It does not exist, or someone took our label off.
    Absent,
    /// Another object has its name by now.
    Replaced,
    /// It is ours by the label alone: we never wrote it.
    NeverOurs,
}

/// Decides about an object that the bundle no longer holds. Only what the inventory holds is ever asked about.
pub fn plan_prune(object: &ObjectRef, observed: Option<&Meta>, inventory_uid: &str) -> Prune {
    let Some(meta) = observed.filter(|meta| meta.labels.contains_key(LABEL)) else {
        return Prune::Forget(ForgetReason::Absent);
    };
    if inventory_uid.is_empty() {
        // Recorded before the first write, whose answer never arrived: fields of ours show whether it was made.
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
