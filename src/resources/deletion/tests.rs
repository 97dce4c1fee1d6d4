use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::kube::ManagedFields;
use crate::resources::inventory::State;
use crate::resources::kinds::RBAC;

const BUNDLE: &str = "web";

fn object(group: &str, kind: &str) -> ObjectRef {
    ObjectRef {
        group: group.to_owned(),
        kind: kind.to_owned(),
        namespace: None,
        name: "a".to_owned(),
    }
}

fn meta(uid: &str, label: Option<&str>, manager: &str) -> Meta {
    Meta {
        uid: uid.to_owned(),
        resource_version: "5".to_owned(),
        labels: label
            .map(|label| (LABEL.to_owned(), label.to_owned()))
            .into_iter()
            .collect(),
        managed_fields: vec![ManagedFields {
            manager: manager.to_owned(),
            operation: "Apply".to_owned(),
            ..ManagedFields::default()
        }],
        ..Meta::default()
    }
}

fn ours() -> Meta {
    meta("u", Some(BUNDLE), FIELD_MANAGER)
}

fn entry(uid: &str, bundle: &str) -> Entry {
    Entry {
        version: "v1".to_owned(),
        uid: uid.to_owned(),
        bundle: bundle.to_owned(),
        ..Entry::default()
    }
}

fn planned(kind: &str, observed: Option<&Meta>, recorded: &Entry) -> Prune {
    plan_prune(BUNDLE, &HashSet::new(), &object("", kind), observed, recorded)
}

fn delete() -> Prune {
    Prune::Delete {
        uid: "u".to_owned(),
        resource_version: "5".to_owned(),
    }
}

#[test]
fn only_an_object_that_was_ours_and_still_is_gets_pruned() {
    let other = meta("v", Some(BUNDLE), FIELD_MANAGER);
    let unlabelled = meta("u", None, FIELD_MANAGER);
    let foreign = meta("u", Some(BUNDLE), "kubectl");
    for (observed, recorded, expected) in [
        (Some(&ours()), entry("u", BUNDLE), delete()),
        (Some(&ours()), entry("", BUNDLE), delete()),
        (Some(&ours()), entry("u", ""), delete()),
        (None, entry("u", BUNDLE), Prune::Forget(ForgetReason::Absent)),
        (
            Some(&unlabelled),
            entry("u", BUNDLE),
            Prune::Forget(ForgetReason::Unlabelled),
        ),
        (
            Some(&unlabelled),
            entry("before", BUNDLE),
            Prune::Forget(ForgetReason::Replaced),
        ),
        (
            Some(&other),
            entry("u", BUNDLE),
            Prune::Forget(ForgetReason::Replaced),
        ),
        (
            Some(&foreign),
            entry("", BUNDLE),
            Prune::Forget(ForgetReason::NeverOurs),
        ),
    ] {
        assert_eq!(
            planned("ConfigMap", observed, &recorded),
            expected,
            "{observed:?} {recorded:?}"
        );
    }
}

#[test]
fn an_object_of_another_bundle_is_left_to_that_bundle() {
    let theirs = meta("u", Some("other"), FIELD_MANAGER);
    assert_eq!(
        planned("ConfigMap", Some(&theirs), &entry("u", BUNDLE)),
        Prune::Forget(ForgetReason::OtherBundle)
    );
    assert_eq!(
        planned("ConfigMap", Some(&theirs), &entry("u", "other")),
        delete(),
        "our bundle had that name when it applied the object"
    );
    assert_eq!(
        planned("ConfigMap", Some(&theirs), &entry("u", "")),
        Prune::Keep(KeepReason::OtherBundle("other".to_owned()))
    );
    assert_eq!(
        planned("ConfigMap", Some(&theirs), &entry("", "other")),
        Prune::Keep(KeepReason::OtherBundle("other".to_owned())),
        "its creation failed: the object may be of another installation"
    );
}

#[test]
fn an_object_that_is_wanted_under_another_group_is_kept() {
    let wanted = HashSet::from(["u".to_owned()]);
    let old = object("extensions", "Ingress");
    assert_eq!(
        plan_prune(BUNDLE, &wanted, &old, Some(&ours()), &entry("u", BUNDLE)),
        Prune::Keep(KeepReason::WantedElsewhere)
    );
}

#[test]
fn an_object_that_is_being_deleted_is_awaited() {
    let mut seen = ours();
    seen.deletion_timestamp = Some("2024-05-01T00:00:00Z".to_owned());
    assert_eq!(
        planned("ConfigMap", Some(&seen), &entry("u", BUNDLE)),
        Prune::AwaitDeletion
    );
}

#[test]
fn a_protected_kind_is_pruned_only_if_the_bundle_annotated_it() {
    for kind in ["Namespace", "PersistentVolume", "PersistentVolumeClaim"] {
        let mut seen = ours();
        let keep = Prune::Keep(KeepReason::Protected);
        assert_eq!(planned(kind, Some(&seen), &entry("u", BUNDLE)), keep, "{kind}");
        seen.annotations.insert(PRUNE.to_owned(), "true".to_owned());
        assert_eq!(
            planned(kind, Some(&seen), &entry("u", BUNDLE)),
            keep,
            "{kind}: another client's annotation"
        );
        seen.managed_fields[0].fields_v1 =
            json!({"f:metadata": {"f:annotations": {format!("f:{PRUNE}"): {}}}});
        assert_eq!(
            planned(kind, Some(&seen), &entry("u", BUNDLE)),
            delete(),
            "{kind}"
        );
    }
    let mut kept = ours();
    kept.annotations.insert(PRUNE.to_owned(), "false".to_owned());
    assert_eq!(
        planned("ConfigMap", Some(&kept), &entry("u", BUNDLE)),
        Prune::Keep(KeepReason::Annotated),
        "any client's annotation keeps an object"
    );
}

#[test]
fn only_an_object_that_was_kept_for_a_reason_of_its_own_counts_as_kept_once_it_is_out_of_sight() {
    let kept = |reason: KeepReason| Entry {
        state: Some(State {
            outcome: KEPT.to_owned(),
            message: reason.to_string(),
            since: None,
            retry_at: None,
            dropped: true,
        }),
        ..entry("u", BUNDLE)
    };
    let other = object("", "Secret");
    for (reason, counts) in [
        (KeepReason::Annotated, true),
        (KeepReason::Protected, true),
        (KeepReason::WantedElsewhere, true),
        (KeepReason::OtherBundle("other".to_owned()), true),
        (KeepReason::NotServed, false),
        (KeepReason::WaitsForBundle, false),
        (KeepReason::WaitsFor(other.clone()), false),
        (KeepReason::WaitsForLook(other), false),
    ] {
        let recorded = kept(reason.clone());
        let message = reason.to_string();
        assert_eq!(
            kept_for(&recorded),
            counts.then_some(message.as_str()),
            "{reason:?}"
        );
    }
    let mut deleting = kept(KeepReason::Annotated);
    deleting.deleting = true;
    assert_eq!(kept_for(&deleting), None, "its deletion may still happen");
    for (outcome, dropped) in [("failed", true), (KEPT, false)] {
        let mut recorded = kept(KeepReason::Annotated);
        if let Some(state) = &mut recorded.state {
            (state.outcome, state.dropped) = (outcome.to_owned(), dropped);
        }
        assert_eq!(kept_for(&recorded), None, "{outcome}, dropped: {dropped}");
    }
    assert_eq!(kept_for(&entry("u", BUNDLE)), None);
}

#[test]
fn a_controller_goes_after_the_objects_whose_finalizers_it_removes() {
    let order = [
        object("example.com", "Database"),
        object("admissionregistration.k8s.io", "ValidatingWebhookConfiguration"),
        object("apps", "Deployment"),
        object("", "ServiceAccount"),
        object("apiextensions.k8s.io", "CustomResourceDefinition"),
    ];
    assert!(order.is_sorted_by(|one, next| stage(one) < stage(next)));
    assert_eq!(
        stage(&object(RBAC, "ClusterRole")),
        stage(&object("", "ConfigMap"))
    );
    assert_eq!(stage(&object("", "Namespace")), 4);
}

fn deletions(count: usize, of: usize) -> Deletions {
    Deletions {
        count,
        renamed: false,
        retired: false,
        of,
        allowed: 0,
    }
}

#[test]
fn many_deletions_at_once_wait_for_the_operator() {
    for (count, of, free) in [
        (0, 0, true),
        (5, 5, true),
        (6, 7, false),
        (20, 100, true),
        (21, 100, false),
    ] {
        assert_eq!(deletions(count, of).held().is_none(), free, "{count} of {of}");
    }
    let held = deletions(21, 100);
    assert_eq!(
        held.held().as_deref(),
        Some("pruning 21 objects of 100 that the bundle held waits for --allow-prune=21")
    );
    assert_eq!(Deletions { allowed: 21, ..held }.held(), None);
    assert!(Deletions { allowed: 20, ..held }.held().is_some());
}

#[test]
fn the_objects_of_a_bundle_with_another_name_or_without_manifests_wait_however_few_they_are() {
    let one = deletions(1, 100);
    for one in [
        Deletions { renamed: true, ..one },
        Deletions { retired: true, ..one },
    ] {
        assert!(one.held().is_some(), "{one:?}");
        assert_eq!(Deletions { allowed: 1, ..one }.held(), None);
    }
}

fn any_meta() -> impl Strategy<Value = Option<Meta>> {
    let label = prop_oneof![
        Just(None),
        Just(Some("web")),
        Just(Some("other")),
        Just(Some("third"))
    ];
    let manager = prop_oneof![Just(FIELD_MANAGER), Just("kubectl")];
    let parts = ("[uv]", label, manager, any::<bool>());
    proptest::option::of(parts.prop_map(|(uid, label, manager, deleting)| {
        let mut meta = meta(&uid, label, manager);
        meta.deletion_timestamp = deleting.then(|| "2024-05-01T00:00:00Z".to_owned());
        meta
    }))
}

proptest! {
    /// Only an object with the label of the bundle, or of the bundle that applied it, is deleted, and only the one whose
    /// uid is in the inventory, if one is (INV-12).
    #[test]
    fn nothing_but_the_object_in_the_inventory_is_pruned(
        observed in any_meta(),
        uid in "[uv]?",
        bundle in prop_oneof![Just(""), Just("web"), Just("other")],
        wanted in "[uv]?",
    ) {
        let wanted = HashSet::from([wanted]);
        let planned = plan_prune(BUNDLE, &wanted, &object("", "ConfigMap"), observed.as_ref(), &entry(&uid, bundle));
        if let Prune::Delete { uid: deleted, resource_version } = planned {
            let meta = observed.unwrap();
            prop_assert_eq!(&deleted, &meta.uid);
            prop_assert_eq!(resource_version, meta.resource_version);
            let label = &meta.labels[LABEL];
            prop_assert!(label == BUNDLE || label == bundle);
            prop_assert!(uid == deleted || (uid.is_empty() && meta.managed_fields[0].manager == FIELD_MANAGER));
            prop_assert!(!wanted.contains(&deleted));
        }
    }
}

/// INV-12
#[test]
fn a_namespace_holds_what_is_in_it_and_a_definition_the_objects_of_its_kind_and_of_no_other() {
    let object = |group: &str, kind: &str, namespace: Option<&str>, name: &str| ObjectRef {
        group: group.to_owned(),
        kind: kind.to_owned(),
        namespace: namespace.map(str::to_owned),
        name: name.to_owned(),
    };
    let stays = |object: &ObjectRef, plural: Option<&str>| Stays {
        object: object.clone(),
        plural: plural.map(str::to_owned),
        is_seen: true,
    };
    let held = |deleted: &ObjectRef, other: Stays| held_by(deleted, &[other]).is_some();
    let map = object("", "ConfigMap", Some("team"), "a");
    let namespace = |name| object("", "Namespace", None, name);
    assert!(held(&namespace("team"), stays(&map, Some("configmaps"))));
    assert!(!held(&namespace("other"), stays(&map, Some("configmaps"))));
    assert!(!held(&map, stays(&map, Some("configmaps"))), "it holds nothing");
    let ball = object("toys.example.com", "Ball", None, "red");
    let (crd, api) = ("apiextensions.k8s.io", "apiregistration.k8s.io");
    let balls = object(crd, "CustomResourceDefinition", None, "balls.toys.example.com");
    let bats = object(crd, "CustomResourceDefinition", None, "bats.toys.example.com");
    let service = object(api, "APIService", None, "v1.toys.example.com");
    assert!(held(&balls, stays(&ball, Some("balls"))));
    assert!(!held(&bats, stays(&ball, Some("balls"))));
    assert!(held(&bats, stays(&ball, None)), "its kind may be that one");
    assert!(
        !held(&service, stays(&ball, Some("balls"))),
        "no object goes with it"
    );
    assert_eq!(stays(&ball, None).keeps(), KeepReason::Holds(ball.clone()));
    assert_eq!(Stays::unseen(&ball).keeps(), KeepReason::WaitsForLook(ball));
}
