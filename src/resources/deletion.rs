//! The deletion policy: which objects may be deleted, in which order, and what waits. Pure.
//!
//! Absence proves nothing (INV-12): an object is deleted only if the inventory has it under this uid, its label names the
//! bundle that applied it, and everything that the bundle wants instead is in place.

use std::collections::HashSet;
use std::fmt;

use super::bundle::{LABEL, PRUNE, may_be_pruned};
use super::inventory::Entry;
use super::kinds;
use super::report::KEPT;
use crate::kube::{FIELD_MANAGER, Meta, ObjectRef};

/// What to do about an object that the inventory holds and the bundle does not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Prune {
    /// Remove the entry from the inventory: the cluster holds no object of ours under this name.
    Forget(ForgetReason),
    /// Leave the object and its entry.
    Keep(KeepReason),
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

impl Prune {
    /// Whether the object that the entry records is deleted, or is being deleted.
    pub fn shows_deletion(&self) -> bool {
        let gone = [ForgetReason::Absent, ForgetReason::Replaced].map(Self::Forget);
        *self == Self::AwaitDeletion || gone.contains(self)
    }
}

/// Why an entry is removed from the inventory without a deletion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForgetReason {
    /// The object does not exist.
    Absent,
    /// Its label was removed: others keep the object.
    Unlabelled,
    /// Another object has the name by now.
    Replaced,
    /// The object has the label, but we never wrote it.
    NeverOurs,
    /// Another bundle has taken the object over.
    OtherBundle,
}

/// Why an object stays although the bundle no longer holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeepReason {
    /// Its annotation says so.
    Annotated,
    /// Its kind is protected, and no annotation of the bundle allows the deletion.
    Protected,
    /// The bundle wants the same object under another group.
    WantedElsewhere,
    /// It has the label of this other bundle, and the entry does not say which bundle applied it, or which object.
    OtherBundle(String),
    /// The server does not serve its kind, so nothing is known about it.
    NotServed,
    /// Objects of the bundle are not in place yet. Their number would be written to every entry whenever it changes.
    WaitsForBundle,
    /// This object goes first.
    WaitsFor(ObjectRef),
    /// This object would go first if it exists, which cannot be seen.
    WaitsForLook(ObjectRef),
    /// This object would go with it, and stays.
    Holds(ObjectRef),
}

impl fmt::Display for KeepReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Annotated => write!(f, "its annotation {PRUNE} is \"false\""),
            Self::Protected => write!(
                f,
                "its kind is deleted only if the bundle annotated it with {PRUNE}: \"true\""
            ),
            Self::WantedElsewhere => write!(f, "the bundle holds the same object under another group"),
            Self::OtherBundle(name) => write!(f, "{OTHER_BUNDLE} \"{name}\""),
            Self::NotServed => write!(f, "the API server does not serve its kind"),
            Self::WaitsForBundle => write!(f, "waits for the objects of the bundle that are not in place"),
            Self::WaitsFor(object) => write!(f, "waits for the deletion of {object}"),
            Self::WaitsForLook(object) => write!(
                f,
                "waits for {object}, which may exist and cannot be looked at; if it is gone: {}",
                how_to_forget(object)
            ),
            Self::Holds(object) => write!(f, "{object} would be deleted with it, and stays"),
        }
    }
}

/// An object that stays: the bundle holds it, or it is kept although the bundle no longer does, or it may exist.
pub struct Stays {
    /// The object.
    pub object: ObjectRef,
    /// The name of its kind in paths; `None` if that is not known.
    pub plural: Option<String>,
    /// False where nothing is known of it.
    pub is_seen: bool,
}

impl Stays {
    /// An object of which nothing is known.
    pub fn unseen(object: &ObjectRef) -> Self {
        Self {
            object: object.clone(),
            plural: None,
            is_seen: false,
        }
    }

    /// Why it keeps what it would be deleted with.
    pub fn keeps(&self) -> KeepReason {
        let why = match self.is_seen {
            true => KeepReason::Holds,
            false => KeepReason::WaitsForLook,
        };
        why(self.object.clone())
    }
}

/// One of `stays` that the server would delete with this object: one in this namespace, or of the kind that this defines.
pub fn held_by<'a>(deleted: &ObjectRef, stays: &'a [Stays]) -> Option<&'a Stays> {
    let (group, kind) = (deleted.group.as_str(), deleted.kind.as_str());
    let goes_with = |stays: &&Stays| {
        if kinds::is_namespace(group, kind) {
            return stays.object.namespace.as_deref() == Some(&deleted.name);
        }
        let plural = deleted.name.split_once('.').map(|(plural, _)| plural);
        kinds::is_definition(group, kind)
            && kinds::may_serve(deleted, &stays.object.group)
            && (stays.plural.is_none() || stays.plural.as_deref() == plural)
    };
    stays.iter().find(goes_with)
}

/// The words of [`KeepReason::OtherBundle`] before the name.
const OTHER_BUNDLE: &str = "it has the label of bundle";

/// The recorded reason for which an object was kept when it was last seen, if that is one of its own. An object that only
/// waited for others, or of which nothing was known, has none; nor has one whose deletion was begun: it may still happen.
pub fn kept_for(recorded: &Entry) -> Option<&str> {
    let state = recorded.state.as_ref()?;
    let was_kept = state.dropped && state.outcome == KEPT && !recorded.deleting;
    let message = state.message.as_str();
    let own = [
        KeepReason::Annotated,
        KeepReason::Protected,
        KeepReason::WantedElsewhere,
    ];
    let is_own = own.iter().any(|reason| reason.to_string() == message) || message.starts_with(OTHER_BUNDLE);
    (was_kept && is_own).then_some(message)
}

/// The command that ends all waiting for an object.
pub fn how_to_forget(object: &ObjectRef) -> String {
    format!("quorate inventory forget {object}")
}

/// Decides about an object that the inventory holds and the bundle `bundle` does not. `wanted_uids` are the uids of the
/// objects that the bundle holds.
pub fn plan_prune(
    bundle: &str,
    wanted_uids: &HashSet<String>,
    object: &ObjectRef,
    observed: Option<&Meta>,
    recorded: &Entry,
) -> Prune {
    let Some(meta) = observed else {
        return Prune::Forget(ForgetReason::Absent);
    };
    if !recorded.uid.is_empty() && recorded.uid != meta.uid {
        return Prune::Forget(ForgetReason::Replaced);
    }
    let Some(label) = meta.labels.get(LABEL) else {
        return Prune::Forget(ForgetReason::Unlabelled);
    };
    // Without a uid the entry was recorded before the first write, and the response to it was lost. Only an object that we
    // wrote has fields of our manager.
    if recorded.uid.is_empty() && !meta.is_managed_by(FIELD_MANAGER) {
        return Prune::Forget(ForgetReason::NeverOurs);
    }
    if label != bundle && !recorded.is_of(&meta.uid, label) {
        return match recorded.bundle.is_empty() || recorded.bundle == *label {
            true => Prune::Keep(KeepReason::OtherBundle(label.clone())),
            false => Prune::Forget(ForgetReason::OtherBundle),
        };
    }
    if wanted_uids.contains(&meta.uid) {
        return Prune::Keep(KeepReason::WantedElsewhere);
    }
    if meta.deletion_timestamp.is_some() {
        return Prune::AwaitDeletion;
    }
    match meta.annotations.get(PRUNE).map(String::as_str) {
        Some("false") => return Prune::Keep(KeepReason::Annotated),
        // A client that may patch an object must not be able to have it deleted.
        Some("true") if meta.is_annotated_by(FIELD_MANAGER, PRUNE) => {}
        _ if may_be_pruned(object, &Default::default()) => {}
        _ => return Prune::Keep(KeepReason::Protected),
    }
    Prune::Delete {
        uid: meta.uid.clone(),
        resource_version: meta.resource_version.clone(),
    }
}

/// The order of deletions, the reverse of an installation: objects of a lower stage go first, and those of the next one
/// only once they are gone. The controller that removes a finalizer thus outlives the object that carries the finalizer.
pub fn stage(object: &ObjectRef) -> u8 {
    let (group, kind) = (object.group.as_str(), object.kind.as_str());
    match group {
        _ if kinds::is_foundation(group, kind) => 4,
        // Custom resources.
        _ if kinds::is_namespaced(group, kind).is_none() => 0,
        "admissionregistration.k8s.io" | "apiregistration.k8s.io" => 1,
        "apps" | "batch" | "autoscaling" | "policy" => 2,
        "" if matches!(kind, "Pod" | "ReplicationController") => 2,
        // Configuration, permissions, storage, networks.
        _ => 3,
    }
}

/// The number of objects that a pass may delete without permission: this many, or this part of what the bundle held if that is
/// more. An upgrade seldom drops more; a bundle that was mounted empty or mixed up does.
const FREE_DELETIONS: usize = 5;
const FREE_PART: usize = 5;

/// The deletions of a pass, all together.
#[derive(Clone, Copy, Debug)]
pub struct Deletions {
    /// Objects to delete, and those of which nothing is known.
    pub count: usize,
    /// Whether one of them was applied by a bundle with another name.
    pub renamed: bool,
    /// Whether the bundle holds nothing at all.
    pub retired: bool,
    /// How many objects the bundle held when it dropped them; the least number, if it dropped them one after another.
    pub of: usize,
    /// The number that the operator allowed.
    pub allowed: usize,
}

impl Deletions {
    /// Why the deletions wait for the operator; `None` if they may be made.
    pub fn held(&self) -> Option<String> {
        let free = FREE_DELETIONS.max(self.of / FREE_PART);
        let Self { count, of, .. } = *self;
        let why = match (self.renamed, self.retired) {
            _ if count <= self.allowed => return None,
            (true, _) => "of a bundle with another name".to_owned(),
            (false, true) => "for a bundle without manifests".to_owned(),
            (false, false) if count <= free => return None,
            (false, false) => format!("of {of} that the bundle held"),
        };
        Some(format!(
            "pruning {count} objects {why} waits for --allow-prune={count}"
        ))
    }
}

#[cfg(test)]
mod tests;
