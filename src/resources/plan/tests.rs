use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::kube::ManagedFields;

const WANTED: Wanted<'_> = Wanted {
    bundle: "web",
    adopt: false,
};

fn meta(uid: &str, resource_version: &str, label: Option<&str>, manager: Option<&str>) -> Meta {
    Meta {
        uid: uid.to_owned(),
        resource_version: resource_version.to_owned(),
        labels: label
            .map(|label| (LABEL.to_owned(), label.to_owned()))
            .into_iter()
            .collect(),
        managed_fields: manager
            .map(|manager| ManagedFields {
                manager: manager.to_owned(),
                time: None,
            })
            .into_iter()
            .collect(),
        ..Meta::default()
    }
}

fn ours(uid: &str, resource_version: &str) -> Meta {
    meta(uid, resource_version, Some("web"), Some(FIELD_MANAGER))
}

fn object(kind: &str) -> ObjectRef {
    ObjectRef {
        group: String::new(),
        kind: kind.to_owned(),
        namespace: None,
        name: "a".to_owned(),
    }
}

fn fresh(observed: Option<&Meta>, inventory_uid: &str) -> Step {
    plan(
        WANTED,
        observed,
        inventory_uid,
        Remembered::default(),
        Instant::now(),
    )
}

fn apply(why: ApplyReason) -> Step {
    Step::Apply {
        uid: "u".to_owned(),
        why,
    }
}

#[test]
fn an_absent_object_is_created() {
    assert_eq!(fresh(None, ""), Step::Create { mends: false });
    assert_eq!(
        fresh(None, "u"),
        Step::Create { mends: false },
        "deleted, then crashed"
    );
}

#[test]
fn our_object_is_applied_once_and_then_left_alone_until_it_changes() {
    let seen = ours("u", "5");
    assert_eq!(fresh(Some(&seen), "u"), apply(ApplyReason::FirstLook));
    let in_sync = ObjectVersion::of(&seen);
    let remembered = Remembered {
        in_sync: Some(&in_sync),
        ..Remembered::default()
    };
    let now = Instant::now();
    assert_eq!(plan(WANTED, Some(&seen), "u", remembered, now), Step::Leave);
    let changed = ours("u", "6");
    assert_eq!(
        plan(WANTED, Some(&changed), "u", remembered, now),
        apply(ApplyReason::Changed)
    );
    assert_eq!(
        plan(WANTED, None, "u", remembered, now),
        Step::Create { mends: true }
    );
}

#[test]
fn an_object_is_ours_only_by_label_and_field_manager_together() {
    for (label, manager, expected) in [
        (None, None, Foreign::NoLabel),
        (None, Some(FIELD_MANAGER), Foreign::NoLabel),
        (Some("web"), Some("kubectl"), Foreign::NeverOurs),
        (
            Some("other"),
            Some(FIELD_MANAGER),
            Foreign::OtherBundle("other".to_owned()),
        ),
    ] {
        let seen = meta("u", "5", label, manager);
        assert_eq!(fresh(Some(&seen), ""), Step::Refuse(expected.clone()));
        let adopt = Wanted {
            adopt: true,
            ..WANTED
        };
        let now = Instant::now();
        assert_eq!(
            plan(adopt, Some(&seen), "", Remembered::default(), now),
            apply(ApplyReason::Adopted),
            "{expected}"
        );
    }
}

#[test]
fn a_renamed_bundle_keeps_its_objects() {
    let seen = meta("u", "5", Some("old-name"), Some(FIELD_MANAGER));
    assert_eq!(fresh(Some(&seen), "u"), apply(ApplyReason::FirstLook));
    assert_eq!(
        fresh(Some(&seen), "another uid"),
        Step::Refuse(Foreign::OtherBundle("old-name".to_owned()))
    );
}

#[test]
fn an_object_that_is_being_deleted_is_awaited() {
    let mut seen = ours("u", "5");
    seen.deletion_timestamp = Some("2024-05-01T00:00:00Z".to_owned());
    assert_eq!(fresh(Some(&seen), "u"), Step::AwaitDeletion);
    assert_eq!(
        plan_prune(&object("ConfigMap"), Some(&seen), "u"),
        Prune::AwaitDeletion
    );
}

#[test]
fn a_contended_or_failed_object_is_written_again_once_its_wait_is_over() {
    let in_sync = ObjectVersion::of(&ours("u", "5"));
    let now = Instant::now();
    let until = now + Duration::from_secs(1);
    let changed = ours("u", "6");
    let contended = Remembered {
        in_sync: Some(&in_sync),
        mend_after: Some(until),
        retry_after: None,
    };
    assert_eq!(
        plan(WANTED, Some(&changed), "", contended, now),
        Step::BackOff { until }
    );
    assert_eq!(
        plan(WANTED, None, "", contended, now),
        Step::BackOff { until },
        "deleted again"
    );
    assert_eq!(
        plan(WANTED, Some(&changed), "", contended, until),
        apply(ApplyReason::Changed)
    );
    assert_eq!(
        plan(WANTED, Some(&ours("u", "5")), "", contended, now),
        Step::Leave
    );
    let failed = Remembered {
        retry_after: Some(until),
        ..Remembered::default()
    };
    assert_eq!(plan(WANTED, None, "", failed, now), Step::RetryLater { until });
    assert_eq!(
        plan(WANTED, None, "", failed, until),
        Step::Create { mends: false }
    );
}

#[test]
fn only_an_object_that_was_ours_and_still_is_gets_pruned() {
    let config_map = object("ConfigMap");
    let delete = Prune::Delete {
        uid: "u".to_owned(),
        resource_version: "5".to_owned(),
    };
    assert_eq!(plan_prune(&config_map, Some(&ours("u", "5")), "u"), delete);
    assert_eq!(
        plan_prune(&config_map, None, "u"),
        Prune::Forget(ForgetReason::Absent)
    );
    let unlabelled = meta("u", "5", None, Some(FIELD_MANAGER));
    assert_eq!(
        plan_prune(&config_map, Some(&unlabelled), "u"),
        Prune::Forget(ForgetReason::Absent)
    );
    assert_eq!(
        plan_prune(&config_map, Some(&ours("another", "5")), "u"),
        Prune::Forget(ForgetReason::Replaced)
    );
    assert_eq!(
        plan_prune(&config_map, Some(&ours("u", "5")), ""),
        delete,
        "the response was lost"
    );
    let foreign = meta("u", "5", Some("web"), Some("kubectl"));
    assert_eq!(
        plan_prune(&config_map, Some(&foreign), ""),
        Prune::Forget(ForgetReason::NeverOurs)
    );
}

#[test]
fn a_protected_kind_is_pruned_only_with_the_annotation() {
    let definition = ObjectRef {
        group: "apiextensions.k8s.io".to_owned(),
        ..object("CustomResourceDefinition")
    };
    for protected in [
        object("Namespace"),
        object("PersistentVolume"),
        object("PersistentVolumeClaim"),
        definition,
    ] {
        let mut seen = ours("u", "5");
        assert_eq!(
            plan_prune(&protected, Some(&seen), "u"),
            Prune::Keep,
            "{protected}"
        );
        seen.annotations
            .insert(crate::resources::bundle::PRUNE.to_owned(), "true".to_owned());
        assert!(matches!(
            plan_prune(&protected, Some(&seen), "u"),
            Prune::Delete { .. }
        ));
    }
    let mut kept = ours("u", "5");
    kept.annotations
        .insert(crate::resources::bundle::PRUNE.to_owned(), "false".to_owned());
    assert_eq!(plan_prune(&object("ConfigMap"), Some(&kept), "u"), Prune::Keep);
}

fn any_meta() -> impl Strategy<Value = Option<Meta>> {
    let label = prop_oneof![Just(None), Just(Some("web")), Just(Some("other"))];
    let manager = prop_oneof![Just(None), Just(Some(FIELD_MANAGER)), Just(Some("kubectl"))];
    let parts = ("[uv]", "[56]", label, manager, any::<bool>());
    proptest::option::of(parts.prop_map(|(uid, version, label, manager, deleting)| {
        let mut meta = meta(&uid, &version, label, manager);
        meta.deletion_timestamp = deleting.then(|| "2024-05-01T00:00:00Z".to_owned());
        meta
    }))
}

proptest! {
    /// Whatever is remembered: an object that is not ours is written only if its manifest adopts it, and every write
    /// names the observed object.
    #[test]
    fn an_object_that_is_not_ours_is_never_written(
        observed in any_meta(),
        inventory_uid in "[uv]?",
        remembered_version in proptest::option::of("[56]"),
        adopt in any::<bool>(),
    ) {
        let in_sync = remembered_version.map(|resource_version| ObjectVersion { uid: "u".to_owned(), resource_version });
        let remembered = Remembered { in_sync: in_sync.as_ref(), ..Remembered::default() };
        let wanted = Wanted { adopt, ..WANTED };
        let step = plan(wanted, observed.as_ref(), &inventory_uid, remembered, Instant::now());
        match (&step, &observed) {
            (Step::Create { .. }, seen) => prop_assert!(seen.is_none()),
            (Step::Apply { uid, .. }, Some(meta)) => {
                prop_assert_eq!(uid, &meta.uid);
                let ours = meta.is_managed_by(FIELD_MANAGER) && meta.labels.contains_key(LABEL);
                prop_assert!(ours || adopt);
            }
            (Step::Apply { .. }, None) => prop_assert!(false, "nothing to apply to"),
            _ => {}
        }
    }

    /// Only an object with a bundle label is deleted, and only the one whose uid is in the inventory, if one is.
    #[test]
    fn nothing_but_the_object_in_the_inventory_is_pruned(observed in any_meta(), uid in "[uv]?") {
        if let Prune::Delete { uid: deleted, resource_version } = plan_prune(&object("ConfigMap"), observed.as_ref(), &uid) {
            let meta = observed.unwrap();
            prop_assert_eq!(&deleted, &meta.uid);
            prop_assert_eq!(resource_version, meta.resource_version);
            prop_assert!(meta.labels.contains_key(LABEL));
            prop_assert!(uid == deleted || (uid.is_empty() && meta.labels.len() == 1));
        }
    }
}
