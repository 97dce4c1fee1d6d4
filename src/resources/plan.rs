//! Decides what to do about one object, from the manifest, the observed object, the inventory and the memory of earlier
//! passes. Pure: no I/O, no clock.

use std::fmt;
use std::time::{Duration, Instant};

use super::bundle::{ADOPT, LABEL};
use super::digest::digest;
use super::inventory::Entry;
use crate::kube::{FIELD_MANAGER, Meta, Precondition};

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

/// What an object is compared by to see whether it is still in place. A status, or a field that others own, may change all
/// the time without a change of it. Consists of:
///
/// - the generation, which counts the changes of the spec. Some subresources of older servers change our fields, as `scale`
///   does, and leave the owners as they are;
/// - whether it is being deleted;
/// - the names of the fields that we applied, and the time at which we last changed one. A field that another client changes
///   or removes is no longer ours; a late write of an earlier leader changes only the time;
/// - the version of an object of which we own nothing.
///
/// The time has whole seconds. What an earlier leader writes late, in the second of our own write, changes nothing of this where
/// the kind has no generation: such an object has its version beside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fingerprint {
    /// Identifies the object.
    pub uid: String,
    /// The digest of all that this type lists.
    pub digest: u64,
    /// The version of an object without a generation. A status, or a field that others own, changes it as well.
    version: Option<String>,
}

/// How long after an object came to be in place a write of an earlier leader may appear that the API server dates in the same second:
/// longer than it takes to store a write.
const LATE: Duration = Duration::from_secs(10);

impl Fingerprint {
    /// The fingerprint of an object with this metadata.
    pub fn of(meta: &Meta) -> Self {
        let ours = meta
            .applied_by(FIELD_MANAGER)
            .filter(|applied| applied.fields_v1.is_object())
            .map(|applied| (applied.fields_v1.to_string(), applied.time.as_deref()));
        let version = ours.is_none().then_some(meta.resource_version.as_str());
        Self {
            uid: meta.uid.clone(),
            digest: digest(&(meta.generation, meta.deletion_timestamp.is_some(), ours, version)),
            version: (meta.generation == 0).then(|| meta.resource_version.clone()),
        }
    }

    /// What the inventory holds of it: by this a later leader knows the object as it was left, with its version.
    pub fn recorded(&self) -> u64 {
        digest(&(self.digest, &self.version))
    }

    /// Whether both are of the same object, and of the same fields. The versions may differ.
    pub fn is_like(&self, other: &Self) -> bool {
        self.uid == other.uid && self.digest == other.digest
    }

    /// Whether an object that has been in place since `since` with this fingerprint still is, with the fingerprint `observed`. In the
    /// first [`LATE`] every change of the version counts: a write that leaves the object as it is costs little.
    pub fn is_still(&self, since: Instant, observed: &Self, now: Instant) -> bool {
        let may_be_late = now.saturating_duration_since(since) < LATE;
        self.is_like(observed) && (self.version == observed.version || !may_be_late)
    }
}

/// The memory of earlier passes about an object.
#[derive(Clone, Copy, Debug, Default)]
pub struct Remembered<'a> {
    /// The object as it was last in place, if it ever was, and since when it has been so in this term.
    pub in_sync: Option<(&'a Fingerprint, Instant)>,
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
    /// The object was in place and has been changed since.
    Changed,
    /// The object is not ours, and its manifest says to take it over.
    Adopted {
        /// Whether it was in place before, so that another writer took it away.
        again: bool,
    },
}

/// What to do about an object of the bundle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Write nothing: the object is as it was when it was last in place.
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

/// Decides about an object of the bundle. `recorded` is its entry in the inventory; an empty one if it has none.
pub fn plan(
    wanted: Wanted<'_>,
    observed: Option<&Meta>,
    recorded: &Entry,
    remembered: Remembered<'_>,
    now: Instant,
) -> Step {
    if let (Some(meta), Some((in_sync, since))) = (observed, remembered.in_sync)
        && in_sync.is_still(since, &Fingerprint::of(meta), now)
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
    let why = match foreign(wanted.bundle, meta, recorded) {
        None if remembered.in_sync.is_some() => ApplyReason::Changed,
        None => ApplyReason::FirstLook,
        Some(_) if wanted.adopt => ApplyReason::Adopted {
            again: remembered.in_sync.is_some(),
        },
        Some(foreign) => return Step::Refuse(foreign),
    };
    Step::Apply {
        uid: meta.uid.clone(),
        why,
    }
}

/// Why an object is not ours; `None` if it is. Our objects have the bundle's label *and* fields that our manager owns. If
/// the bundle was renamed, the name that it had when it applied the object counts too, provided that the inventory has the
/// object's uid, or says that the object is recreated.
fn foreign(bundle: &str, meta: &Meta, recorded: &Entry) -> Option<Foreign> {
    let Some(label) = meta.labels.get(LABEL) else {
        return Some(Foreign::NoLabel);
    };
    if !meta.is_managed_by(FIELD_MANAGER) {
        return Some(Foreign::NeverOurs);
    }
    if label == bundle || recorded.is_of(&meta.uid, label) {
        None
    } else {
        Some(Foreign::OtherBundle(label.clone()))
    }
}

#[cfg(test)]
mod tests;
