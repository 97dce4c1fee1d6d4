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
                operation: "Apply".to_owned(),
                ..ManagedFields::default()
            })
            .into_iter()
            .collect(),
        ..Meta::default()
    }
}

fn ours(uid: &str, resource_version: &str) -> Meta {
    meta(uid, resource_version, Some("web"), Some(FIELD_MANAGER))
}

fn entry(uid: &str) -> Entry {
    Entry {
        uid: uid.to_owned(),
        bundle: "web".to_owned(),
        ..Entry::default()
    }
}

fn fresh(observed: Option<&Meta>, inventory_uid: &str) -> Step {
    plan(
        WANTED,
        observed,
        &entry(inventory_uid),
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
    let in_sync = Fingerprint::of(&seen);
    let now = Instant::now();
    let remembered = Remembered {
        in_sync: Some((&in_sync, now)),
        ..Remembered::default()
    };
    assert_eq!(
        plan(WANTED, Some(&seen), &entry("u"), remembered, now),
        Step::Leave
    );
    let changed = ours("u", "6");
    assert_eq!(
        plan(WANTED, Some(&changed), &entry("u"), remembered, now),
        apply(ApplyReason::Changed)
    );
    assert_eq!(
        plan(WANTED, None, &entry("u"), remembered, now),
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
            plan(adopt, Some(&seen), &entry(""), Remembered::default(), now),
            apply(ApplyReason::Adopted { again: false }),
            "{expected}"
        );
    }
}

#[test]
fn a_renamed_bundle_keeps_its_objects_and_takes_back_none() {
    let seen = meta("u", "5", Some("old-name"), Some(FIELD_MANAGER));
    let planned = |uid: &str, bundle: &str| {
        let recorded = Entry {
            bundle: bundle.to_owned(),
            ..entry(uid)
        };
        plan(
            WANTED,
            Some(&seen),
            &recorded,
            Remembered::default(),
            Instant::now(),
        )
    };
    assert_eq!(planned("u", "old-name"), apply(ApplyReason::FirstLook));
    let recreated = Entry {
        recreating: true,
        bundle: "old-name".to_owned(),
        ..entry("")
    };
    assert_eq!(
        plan(
            WANTED,
            Some(&seen),
            &recreated,
            Remembered::default(),
            Instant::now()
        ),
        apply(ApplyReason::FirstLook)
    );
    let refuse = Step::Refuse(Foreign::OtherBundle("old-name".to_owned()));
    assert_eq!(planned("another uid", "old-name"), refuse);
    assert_eq!(planned("u", "web"), refuse, "another bundle has taken it over");
    assert_eq!(planned("u", ""), refuse);
    assert_eq!(
        planned("", "old-name"),
        refuse,
        "its creation failed: the object is of another installation"
    );
}

#[test]
fn a_status_and_the_fields_of_others_are_no_change() {
    let applied = |fields: serde_json::Value, generation: i64, version: &str| {
        let mut meta = ours("u", version);
        meta.generation = generation;
        meta.managed_fields[0].fields_v1 = fields;
        meta
    };
    let both = serde_json::json!({"f:spec": {"f:a": {}, "f:b": {}}});
    let one = serde_json::json!({"f:spec": {"f:a": {}}});
    let in_place = applied(both.clone(), 3, "5");
    let in_sync = Fingerprint::of(&in_place);
    let mut status = applied(both.clone(), 3, "6");
    status.managed_fields.push(ManagedFields {
        manager: "controller".to_owned(),
        operation: "Update".to_owned(),
        subresource: "status".to_owned(),
        ..ManagedFields::default()
    });
    assert_eq!(Fingerprint::of(&status), in_sync);
    assert_ne!(
        Fingerprint::of(&applied(one, 3, "6")),
        in_sync,
        "a field is no longer ours"
    );
    assert_ne!(
        Fingerprint::of(&applied(both.clone(), 4, "6")),
        in_sync,
        "the spec changed"
    );
    let mut late = applied(both.clone(), 3, "6");
    late.managed_fields[0].time = Some("2024-05-01T00:00:00Z".to_owned());
    assert_ne!(
        Fingerprint::of(&late),
        in_sync,
        "an earlier leader wrote other values"
    );
    let mut deleting = applied(both, 3, "6");
    deleting.deletion_timestamp = Some("2024-05-01T00:00:00Z".to_owned());
    assert_ne!(Fingerprint::of(&deleting), in_sync);
}

/// INV-4: the API server dates writes in whole seconds, and a kind without a generation shows no other trace.
#[test]
fn a_late_write_in_the_second_of_ours_is_a_change_of_a_kind_without_a_generation() {
    let ours_at = |generation: i64, version: &str| {
        let mut meta = ours("u", version);
        meta.generation = generation;
        meta.managed_fields[0].fields_v1 = serde_json::json!({"f:data": {"f:release": {}}});
        meta
    };
    let since = Instant::now();
    let planned = |generation, version: &str, now| {
        let in_sync = Fingerprint::of(&ours_at(generation, "5"));
        let remembered = Remembered {
            in_sync: Some((&in_sync, since)),
            ..Remembered::default()
        };
        let observed = ours_at(generation, version);
        plan(WANTED, Some(&observed), &entry("u"), remembered, now)
    };
    assert_eq!(planned(0, "5", since), Step::Leave);
    assert_eq!(planned(0, "6", since), apply(ApplyReason::Changed));
    assert_eq!(planned(0, "6", since + LATE), Step::Leave, "a status of it");
    assert_eq!(planned(3, "6", since), Step::Leave, "its generation counts");
    let recorded = |generation, version| Fingerprint::of(&ours_at(generation, version)).recorded();
    assert_ne!(recorded(0, "5"), recorded(0, "6"), "the next leader looks again");
    assert_eq!(recorded(3, "5"), recorded(3, "6"));
}

#[test]
fn an_object_that_is_being_deleted_is_awaited() {
    let mut seen = ours("u", "5");
    seen.deletion_timestamp = Some("2024-05-01T00:00:00Z".to_owned());
    assert_eq!(fresh(Some(&seen), "u"), Step::AwaitDeletion);
}

#[test]
fn a_contended_or_failed_object_is_written_again_once_its_wait_is_over() {
    let in_sync = Fingerprint::of(&ours("u", "5"));
    let now = Instant::now();
    let until = now + Duration::from_secs(1);
    let changed = ours("u", "6");
    let contended = Remembered {
        in_sync: Some((&in_sync, now)),
        mend_after: Some(until),
        retry_after: None,
    };
    assert_eq!(
        plan(WANTED, Some(&changed), &entry(""), contended, now),
        Step::BackOff { until }
    );
    assert_eq!(
        plan(WANTED, None, &entry(""), contended, now),
        Step::BackOff { until },
        "deleted again"
    );
    assert_eq!(
        plan(WANTED, Some(&changed), &entry(""), contended, until),
        apply(ApplyReason::Changed)
    );
    assert_eq!(
        plan(WANTED, Some(&ours("u", "5")), &entry(""), contended, now),
        Step::Leave
    );
    let failed = Remembered {
        retry_after: Some(until),
        ..Remembered::default()
    };
    assert_eq!(
        plan(WANTED, None, &entry(""), failed, now),
        Step::RetryLater { until }
    );
    assert_eq!(
        plan(WANTED, None, &entry(""), failed, until),
        Step::Create { mends: false }
    );
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
        let in_sync = remembered_version.map(|version| Fingerprint::of(&ours("u", &version)));
        let now = Instant::now();
        let in_sync = in_sync.as_ref().map(|in_sync| (in_sync, now));
        let remembered = Remembered { in_sync, ..Remembered::default() };
        let wanted = Wanted { adopt, ..WANTED };
        let step = plan(wanted, observed.as_ref(), &entry(&inventory_uid), remembered, now);
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
}
