//! What follows from a refused apply. Pure.

use super::{ApplyReason, Step};
use crate::kube::{Cause, Dependants};
use crate::resources::bundle::{RECREATE, Recreate};

/// What to do after the API server refused to apply an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// Read the object and plan again: it was changed, created or deleted in between.
    LookAgain,
    /// Delete the object and create it.
    Recreate {
        /// The immutable fields.
        why: String,
        /// What happens to the object's dependants.
        dependants: Dependants,
    },
    /// Leave the object as it is, for this reason.
    Fail(String),
    /// Report the server's error: nothing that this pass could do would help.
    GiveUp,
}

/// Decides what follows from the error of an apply. `recreate` is the manifest's permission to delete the object.
pub fn next_after(cause: &Cause, step: &Step, recreate: Recreate) -> Next {
    let (fields, reason) = match (cause, step) {
        (Cause::Conflict(_), _) => return Next::LookAgain,
        (Cause::Immutable(fields), Step::Apply { why, .. }) => (fields, why),
        // A create has no immutable field to change: the server refuses the manifest.
        _ => return Next::GiveUp,
    };
    let dependants = match (recreate, reason) {
        (Recreate::Annotated(dependants), _) => dependants,
        // To take an object over is not to delete it.
        (Recreate::Replaceable, ApplyReason::FirstLook | ApplyReason::Changed) => Dependants::Deleted,
        (Recreate::Replaceable, ApplyReason::Adopted { .. }) | (Recreate::Never, _) => {
            return Next::Fail(format!(
                "immutable fields: {fields}; annotate the manifest with {RECREATE}: \"true\" to delete and recreate the object"
            ));
        }
    };
    Next::Recreate {
        why: fields.clone(),
        dependants,
    }
}

/// The step to take instead of `before`, now that the object was read and planned again. The reason for the write stays:
/// the second plan remembers nothing, so it cannot know that the object was in place.
pub fn replanned(before: &Step, again: Step) -> Step {
    match (before, again) {
        (
            Step::Apply {
                why: ApplyReason::Changed,
                ..
            },
            Step::Apply {
                uid,
                why: ApplyReason::FirstLook,
            },
        ) => Step::Apply {
            uid,
            why: ApplyReason::Changed,
        },
        (
            Step::Create { mends: true }
            | Step::Apply {
                why: ApplyReason::Changed | ApplyReason::Adopted { again: true },
                ..
            },
            Step::Apply {
                uid,
                why: ApplyReason::Adopted { .. },
            },
        ) => Step::Apply {
            uid,
            why: ApplyReason::Adopted { again: true },
        },
        (Step::Create { mends }, Step::Create { .. }) => Step::Create { mends: *mends },
        (_, again) => again,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resources::plan::Foreign;

    const CREATE: Step = Step::Create { mends: false };

    fn apply(uid: &str, why: ApplyReason) -> Step {
        Step::Apply {
            uid: uid.to_owned(),
            why,
        }
    }

    fn first_look() -> Step {
        apply("u", ApplyReason::FirstLook)
    }

    #[test]
    fn a_conflict_is_looked_at_again_whatever_the_step() {
        let conflict = Cause::Conflict("changed".to_owned());
        for step in [CREATE, first_look()] {
            for recreate in [Recreate::Never, Recreate::Replaceable] {
                assert_eq!(next_after(&conflict, &step, recreate), Next::LookAgain);
            }
        }
    }

    #[test]
    fn immutable_fields_are_a_reason_to_recreate_only_with_permission_and_only_an_existing_object() {
        let immutable = Cause::Immutable("handler".to_owned());
        let adopted = apply("u", ApplyReason::Adopted { again: false });
        let (deleted, orphaned) = (Dependants::Deleted, Dependants::Orphaned);
        for (step, recreate, expected) in [
            (first_look(), Recreate::Never, None),
            (first_look(), Recreate::Replaceable, Some(deleted)),
            (first_look(), Recreate::Annotated(orphaned), Some(orphaned)),
            (adopted.clone(), Recreate::Never, None),
            (adopted.clone(), Recreate::Replaceable, None),
            (adopted, Recreate::Annotated(deleted), Some(deleted)),
        ] {
            match (next_after(&immutable, &step, recreate), expected) {
                (Next::Recreate { why, dependants }, Some(expected)) => {
                    assert_eq!((why.as_str(), dependants), ("handler", expected), "{recreate:?}");
                }
                (Next::Fail(why), None) => {
                    assert!(why.contains("handler") && why.contains(RECREATE), "{why}")
                }
                (next, expected) => panic!("{step:?} {recreate:?}: {next:?}, not {expected:?}"),
            }
        }
        assert_eq!(
            next_after(&immutable, &CREATE, Recreate::Annotated(deleted)),
            Next::GiveUp
        );
    }

    #[test]
    fn any_other_error_is_reported_as_it_is() {
        for cause in [
            Cause::NotFound("x".to_owned()),
            Cause::NoCredentials("x".to_owned()),
            Cause::Unauthorized("x".to_owned()),
            Cause::Rejected {
                code: 422,
                message: "x".to_owned(),
            },
        ] {
            assert_eq!(
                next_after(&cause, &first_look(), Recreate::Replaceable),
                Next::GiveUp,
                "{cause}"
            );
        }
    }

    #[test]
    fn the_reason_for_a_write_survives_a_second_look() {
        let changed = |uid| apply(uid, ApplyReason::Changed);
        assert_eq!(
            replanned(&changed("u"), apply("v", ApplyReason::FirstLook)),
            changed("v"),
            "the object that exists by now"
        );
        assert_eq!(
            replanned(&Step::Create { mends: true }, CREATE),
            Step::Create { mends: true }
        );
        let adopted = |again| apply("v", ApplyReason::Adopted { again });
        assert_eq!(
            replanned(&first_look(), adopted(false)),
            adopted(false),
            "an adoption is not a mend"
        );
        for in_place in [changed("u"), adopted(true), Step::Create { mends: true }] {
            assert_eq!(
                replanned(&in_place, adopted(false)),
                adopted(true),
                "unless another writer took away what was in place"
            );
        }
        assert_eq!(replanned(&changed("u"), CREATE), CREATE, "deleted in between");
        assert_eq!(
            replanned(&CREATE, first_look()),
            first_look(),
            "created in between"
        );
        let refuse = Step::Refuse(Foreign::NoLabel);
        assert_eq!(replanned(&changed("u"), refuse.clone()), refuse);
    }
}
