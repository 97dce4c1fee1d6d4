//! Which fields of a volume may change, and which a document must not leave out.

use super::{AVAILABILITIES, Manifest, RECLAIM_POLICIES, format_bytes, word};
use crate::proto::access_mode::Kind;
use crate::proto::volume_spec::{Availability, ReclaimPolicy};
use crate::proto::{Capacity, VolumeSpec, VolumeStatus};
use crate::store::object::fields::Fault;

/// The fields that differ and must not. `status` is that of the stored volume.
pub(super) fn changed_for_good(stored: &VolumeSpec, status: &VolumeStatus, given: &VolumeSpec) -> Vec<Fault> {
    let mut changed = Vec::new();
    let mut compare = |path: &str, same: bool| {
        if !same {
            changed.push(Fault::new(path, "cannot be changed"));
        }
    };
    let driver = |spec: &VolumeSpec| spec.driver.clone().unwrap_or_default();
    let (before, after) = (driver(stored), driver(given));
    compare("spec.driver.name", before.name == after.name);
    compare("spec.driver.options", before.options == after.options);
    let mode = |spec: &VolumeSpec| spec.access_mode.clone().unwrap_or_default();
    let (before, after) = (mode(stored), mode(given));
    compare("spec.accessMode.scope", before.scope == after.scope);
    compare("spec.accessMode.sharing", before.sharing == after.sharing);
    let kind = match before.kind {
        Some(Kind::Block(_)) => "spec.accessMode.block",
        Some(Kind::Mount(_)) | None => "spec.accessMode.mount",
    };
    compare(kind, before.kind == after.kind);
    compare("spec.secrets", stored.secrets == given.secrets);
    compare("spec.topology", stored.topology == given.topology);
    compare("spec.source", stored.source == given.source);
    compare("spec.group", stored.group == given.group);
    // A capacity that is left out has a fault of its own.
    if given.capacity.is_some() || stored.capacity.is_none() {
        changed.extend(changed_capacity(stored, status, given));
    }
    changed
}

/// What is wrong with another capacity. The volume never shrinks. What was asked for and not made may be taken back, down to what the
/// volume has: a plugin may refuse it for good.
fn changed_capacity(stored: &VolumeSpec, status: &VolumeStatus, given: &VolumeSpec) -> Vec<Fault> {
    let capacity = |spec: &VolumeSpec| spec.capacity.unwrap_or_default();
    let (before, after) = (capacity(stored), capacity(given));
    let limit = |capacity: Capacity| match capacity.limit {
        0 => i64::MAX,
        limit => limit,
    };
    // Nothing is known yet of a volume without an id.
    let is_there = !status.volume_id.is_empty();
    let made = status.capacity_bytes.max(status.fulfilled_bytes);
    let (least, least_limit) = match is_there {
        true => (
            before.required.min(status.fulfilled_bytes),
            limit(before).min(made),
        ),
        false => (before.required, limit(before)),
    };
    let mut changed = Vec::new();
    if after.required < least {
        let text = format!("less than {}: a volume can only grow", format_bytes(least));
        changed.push(Fault::new("spec.capacity.required", text));
    }
    if limit(after) < least_limit {
        let than = match least_limit {
            i64::MAX => "no limit".to_owned(),
            bytes => format_bytes(bytes),
        };
        let text = format!("less than {than}: a limit can only grow");
        changed.push(Fault::new("spec.capacity.limit", text));
    }
    changed
}

/// The fields that a document leaves out though their defaults would change the volume silently.
pub(super) fn left_out(name: &str, stored: &VolumeSpec, manifest: &Manifest) -> Vec<Fault> {
    let mut faults = Vec::new();
    let availability = stored.availability();
    if manifest.availability.is_none() && matches!(availability, Availability::Pause | Availability::Drain) {
        let word = word(AVAILABILITIES, &availability);
        let message = format!(
            "missing: volume {name} is set to {word}, and leaving the availability out would set it to active"
        );
        faults.push(Fault::new("spec.availability", message));
    }
    if manifest.reclaim_policy.is_none() && stored.reclaim_policy() != ReclaimPolicy::Unspecified {
        let word = word(RECLAIM_POLICIES, &stored.reclaim_policy());
        let message =
            format!("missing: volume {name} is set to {word}, and leaving it out would change that");
        faults.push(Fault::new("spec.reclaimPolicy", message));
    }
    if manifest.capacity.is_none() && stored.capacity.is_some() {
        let message = format!("missing: volume {name} has one, and it cannot be taken back");
        faults.push(Fault::new("spec.capacity", message));
    }
    faults
}
