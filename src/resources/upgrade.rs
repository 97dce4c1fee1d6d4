//! What an upgrade from one bundle to another does, as far as it can be known offline. Pure.

use std::collections::BTreeMap;

use serde_json::Value;

use super::bundle::{Bundle, Manifest, Recreate, may_be_pruned};
use super::kinds;
use crate::kube::ObjectRef;

/// What the upgrade does to one object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Only the new bundle holds the object.
    Added,
    /// The object is changed in place, as far as is known offline.
    Changed,
    /// These fields (JSON pointers) are immutable: the object is deleted and created.
    Recreated(Vec<&'static str>),
    /// These fields (JSON pointers) are immutable and the object must not be recreated: its apply fails.
    Refused(Vec<&'static str>),
    /// Only the old bundle holds the object, which is deleted.
    Pruned,
    /// Only the old bundle holds the object, which stays in the cluster.
    Kept,
}

/// A rule that an upgrade from one bundle to another breaks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// The objects differ, the release does not.
    #[error(
        "rule \"releases increase\": the objects differ, but release {new} is not above {old}; raise the release, because \
         replicas distinguish bundles by it alone"
    )]
    ReleaseNotRaised {
        /// Release of the old bundle.
        old: String,
        /// Release of the new bundle.
        new: String,
    },
    /// New replicas wait for the old ones to go, and old ones for the new to be ready.
    #[error(
        "rule \"one minimum a release\": both minReconcilerRelease {reconciler} and minApiserverRelease {apiserver} are above \
         the old release {old}. A rolling update deadlocks: new replicas become ready only after the new bundle is \
         reconciled, and that waits until the old replicas are gone. Raise the minimums in separate releases, or scale to \
         0 first"
    )]
    BothMinimumsRaised {
        /// Release of the old bundle.
        old: String,
        /// minReconcilerRelease of the new bundle.
        reconciler: String,
        /// minApiserverRelease of the new bundle.
        apiserver: String,
    },
    /// The rollback goes below the minimum in the status.
    #[error(
        "rule \"no rollback below the stored minimum\": release {new} is below {minimum}, the oldest release that may work \
         with the state that {old} leaves. Its replicas would never be ready. Scale to 0 first, or use strategy: Recreate"
    )]
    BelowStoredMinimum {
        /// Release of the old bundle.
        old: String,
        /// minApiserverRelease of the old bundle.
        minimum: String,
        /// Release of the new bundle.
        new: String,
    },
}

/// An upgrade from one bundle to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upgrade {
    /// The changes by object; unchanged objects are left out.
    pub changes: BTreeMap<ObjectRef, Change>,
    /// The rules that the upgrade breaks; empty if a rolling update can make it.
    pub violations: Vec<Violation>,
    /// The rule that a rolling update back to the old bundle would break.
    pub rollback_violation: Option<Violation>,
}

impl Upgrade {
    /// Compares two bundles.
    pub fn between(old: &Bundle, new: &Bundle) -> Self {
        let changes = changes(old, new);
        let mut violations = Vec::new();
        if new.release() < old.release() {
            violations.extend(below_stored_minimum(old, new));
        } else if new.release() == old.release() && !changes.is_empty() {
            violations.push(Violation::ReleaseNotRaised {
                old: old.release().to_string(),
                new: new.release().to_string(),
            });
        }
        let old_release = old.release();
        if new.min_reconciler_release > old_release && new.min_apiserver_release > old_release {
            violations.push(Violation::BothMinimumsRaised {
                old: old_release.to_string(),
                reconciler: new.min_reconciler_release.to_string(),
                apiserver: new.min_apiserver_release.to_string(),
            });
        }
        Self {
            changes,
            violations,
            rollback_violation: below_stored_minimum(new, old),
        }
    }
}

fn below_stored_minimum(from: &Bundle, to: &Bundle) -> Option<Violation> {
    (to.release() < from.min_apiserver_release).then(|| Violation::BelowStoredMinimum {
        old: from.release().to_string(),
        minimum: from.min_apiserver_release.to_string(),
        new: to.release().to_string(),
    })
}

fn changes(old: &Bundle, new: &Bundle) -> BTreeMap<ObjectRef, Change> {
    let before: BTreeMap<&ObjectRef, &Manifest> = by_object(old);
    let after: BTreeMap<&ObjectRef, &Manifest> = by_object(new);
    let mut changes = BTreeMap::new();
    for (object, manifest) in &after {
        let change = match before.get(object) {
            None => Some(Change::Added),
            Some(before) => changed(before, manifest),
        };
        changes.extend(change.map(|change| ((*object).clone(), change)));
    }
    for (object, manifest) in before {
        if !after.contains_key(object) {
            let annotations = annotations(manifest);
            let change = match may_be_pruned(object, &annotations) {
                true => Change::Pruned,
                false => Change::Kept,
            };
            changes.insert(object.clone(), change);
        }
    }
    changes
}

fn changed(before: &Manifest, after: &Manifest) -> Option<Change> {
    // A renamed bundle changes only the label, in place. That is no change of the manifest.
    let mut relabelled = before.body.clone();
    relabelled["metadata"]["labels"][super::bundle::LABEL] =
        after.body["metadata"]["labels"][super::bundle::LABEL].clone();
    if relabelled == after.body {
        return None;
    }
    let frozen: &[&str] = match immutable_data(before) {
        true => &["/data", "/binaryData"],
        false => &[],
    };
    let fields: Vec<&'static str> = kinds::immutable_fields(&after.object.group, &after.object.kind)
        .iter()
        .chain(frozen)
        .copied()
        .filter(|field| before.body.pointer(field) != after.body.pointer(field))
        .collect();
    Some(match (fields.is_empty(), after.recreate) {
        (true, _) => Change::Changed,
        (false, Recreate::Never) => Change::Refused(fields),
        (false, _) => Change::Recreated(fields),
    })
}

/// Whether the manifest is a ConfigMap or Secret that declares its data immutable.
fn immutable_data(manifest: &Manifest) -> bool {
    let kind = manifest.object.kind.as_str();
    manifest.object.group.is_empty()
        && matches!(kind, "ConfigMap" | "Secret")
        && manifest.body["immutable"] == Value::Bool(true)
}

fn by_object(bundle: &Bundle) -> BTreeMap<&ObjectRef, &Manifest> {
    bundle
        .manifests
        .iter()
        .map(|manifest| (&manifest.object, manifest))
        .collect()
}

/// The annotations in the manifest.
pub(super) fn annotations(manifest: &Manifest) -> BTreeMap<String, String> {
    let annotations = manifest.body["metadata"]["annotations"].as_object();
    annotations
        .into_iter()
        .flatten()
        .filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bundle(releases: [&str; 3], manifests: &str) -> Bundle {
        let directory = tempfile::tempdir().unwrap();
        let [release, reconciler, apiserver] = releases;
        let description = format!(
            "name: web\nrelease: {release}\nminReconcilerRelease: {reconciler}\nminApiserverRelease: {apiserver}\n"
        );
        std::fs::write(directory.path().join("bundle.yaml"), description).unwrap();
        std::fs::write(directory.path().join("m.yaml"), manifests).unwrap();
        Bundle::load(directory.path()).unwrap()
    }

    const MAP: &str =
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a, namespace: default}\ndata: {k: v}\n";

    fn violations(old: [&str; 3], new: [&str; 3]) -> Vec<String> {
        let changed = MAP.replace("k: v", "k: w");
        let upgrade = Upgrade::between(&bundle(old, MAP), &bundle(new, &changed));
        upgrade
            .violations
            .iter()
            .map(|violation| violation.to_string().split('"').nth(1).unwrap().to_owned())
            .collect()
    }

    #[test]
    fn raising_both_minimums_above_the_old_release_deadlocks_and_raising_one_does_not() {
        let old = ["1.0.0", "1.0.0", "1.0.0"];
        assert_eq!(violations(old, ["1.1.0", "1.1.0", "1.0.0"]), [""; 0]);
        assert_eq!(violations(old, ["1.1.0", "1.0.0", "1.1.0"]), [""; 0]);
        assert_eq!(
            violations(old, ["1.1.0", "1.1.0", "1.1.0"]),
            ["one minimum a release"]
        );
        // Both are raised, but only up to the release that every old replica has.
        let old = ["1.5.0", "1.0.0", "1.0.0"];
        assert_eq!(violations(old, ["1.6.0", "1.5.0", "1.5.0"]), [""; 0]);
    }

    #[test]
    fn a_rollback_below_the_stored_minimum_is_refused_and_one_down_to_it_is_not() {
        let old = ["2.0.0", "1.0.0", "1.5.0"];
        assert_eq!(
            violations(old, ["1.4.0", "1.0.0", "1.0.0"]),
            ["no rollback below the stored minimum"]
        );
        assert_eq!(violations(old, ["1.5.0", "1.0.0", "1.0.0"]), [""; 0]);
    }

    #[test]
    fn a_rollback_that_would_break_a_rule_is_forecast() {
        let old = bundle(["1.0.0", "1.0.0", "1.0.0"], MAP);
        let new = bundle(["1.1.0", "1.0.0", "1.1.0"], MAP);
        let upgrade = Upgrade::between(&old, &new);
        assert!(upgrade.violations.is_empty());
        assert!(matches!(
            upgrade.rollback_violation,
            Some(Violation::BelowStoredMinimum { .. })
        ));
        assert_eq!(Upgrade::between(&new, &new).rollback_violation, None);
    }

    #[test]
    fn changed_objects_need_a_higher_release() {
        let releases = ["1.0.0", "1.0.0", "1.0.0"];
        assert_eq!(violations(releases, releases), ["releases increase"]);
        let same = Upgrade::between(&bundle(releases, MAP), &bundle(releases, MAP));
        assert!(same.violations.is_empty() && same.changes.is_empty());
    }

    #[test]
    fn the_forecast_names_the_change_of_each_object() {
        let old = "
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: bound}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: view}
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: fast, annotations: {quorate.dev/recreate: 'false'}}
provisioner: p
parameters: {tier: a}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: frozen, namespace: default}
immutable: true
data: {k: v}
---
apiVersion: v1
kind: Namespace
metadata: {name: gone}
---
apiVersion: v1
kind: Secret
metadata: {name: gone, namespace: default}
";
        let new = "
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: bound}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: edit}
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: fast, annotations: {quorate.dev/recreate: 'false'}}
provisioner: p
parameters: {tier: b}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: frozen, namespace: default}
immutable: true
data: {k: w}
---
apiVersion: v1
kind: Namespace
metadata: {name: new}
";
        let upgrade = Upgrade::between(
            &bundle(["1.0.0", "1.0.0", "1.0.0"], old),
            &bundle(["1.1.0", "1.0.0", "1.0.0"], new),
        );
        let shown: Vec<String> = upgrade
            .changes
            .iter()
            .map(|(object, change)| format!("{object}: {change:?}"))
            .collect();
        assert_eq!(
            shown,
            [
                "ConfigMap default/frozen: Recreated([\"/data\"])",
                "Namespace gone: Kept",
                "Namespace new: Added",
                "Secret default/gone: Pruned",
                "ClusterRoleBinding bound: Recreated([\"/roleRef\"])",
                "StorageClass fast: Refused([\"/parameters\"])",
            ]
        );
    }
}
