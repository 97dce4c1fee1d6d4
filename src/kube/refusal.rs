//! What a refusal says between the lines, in one table: fields that cannot change, permissions that are missing.
//!
//! Kubernetes says these things in words only; every phrase below was taken from a server's answer.

use serde::Deserialize;

use super::operand::{Action, Operand, Permission};

/// One cause of a 422, as the server details it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct FieldCause {
    message: String,
    field: String,
}

/// How a cause's message shows that the field cannot be changed in place. The message is
/// `<type>: <value>: <detail>`, and the value is whatever the manifest says, so only its ends are looked at.
const IMMUTABLE: &[fn(&str) -> bool] = &[
    // Most kinds: RuntimeClass handler, CSIDriver spec, selectors, immutable ConfigMaps.
    |message| message.ends_with(": field is immutable"),
    |message| message.starts_with("Forbidden: field is immutable"),
    // The value of a PriorityClass.
    |message| message.starts_with("Forbidden: may not be changed in an update"),
    // RoleBinding and ClusterRoleBinding.
    |message| message.ends_with(": cannot change roleRef"),
    // StorageClass ("updates to parameters are forbidden."), StatefulSet, and others of this form.
    |message| {
        message.starts_with("Forbidden: updates to ")
            && message.trim_end_matches('.').ends_with("are forbidden")
    },
];

/// Whether every cause is a field that cannot change: then, and only then, another object of that name helps.
pub(super) fn is_immutable(causes: &[FieldCause]) -> bool {
    let immutable = |cause: &FieldCause| {
        // Of these no new object would differ.
        !cause.field.starts_with("metadata.") && IMMUTABLE.iter().any(|says_so| says_so(&cause.message))
    };
    !causes.is_empty() && causes.iter().all(immutable)
}

/// Whether the refusal says that the object is not the one that was read: its uid is another.
pub(super) fn is_other_object(causes: &[FieldCause]) -> bool {
    !causes.is_empty() && causes.iter().all(|cause| cause.field == "metadata.uid")
}

/// Whether a 500 says that there is no object, and that none is created from a manifest with a resource version: Services
/// up to 1.21 or so, which are stored by code of their own.
pub(super) fn is_creation_with_version(message: &str) -> bool {
    message == "resourceVersion should not be set on objects to be created"
}

/// Whether a 500 is about the manifest, so that repeating it is of no use: 1.20 says so of what does not fit the schema.
pub(super) fn is_bad_manifest(message: &str) -> bool {
    message.starts_with("failed to create typed patch object")
}

/// The permission that a 403 means.
///
/// A role that grants more than its writer holds needs `escalate` on that role, a binding `bind` on the role that it
/// refers to; the server words both as "attempting to grant RBAC permissions not currently held". Otherwise it says
/// `cannot <verb> resource …`, where the verb may be another than the request's (an apply of an absent object creates).
pub(super) fn missing_permission(action: Action, operand: &Operand, message: &str) -> Permission {
    let mut permission = Permission {
        verb: action.verb().to_owned(),
        resource: operand.resource.clone(),
        name: operand.name.clone(),
        namespace: operand.namespace.clone(),
    };
    if matches!(action, Action::List | Action::Watch) {
        permission.name.clear();
    }
    if message.contains("attempting to grant RBAC permissions not currently held") {
        permission.verb = match &operand.bound_role {
            // Which role it is stands in the manifest; the server names the binding only.
            Some((resource, name)) => {
                permission.resource.clone_from(resource);
                permission.name.clone_from(name);
                "bind".to_owned()
            }
            None => "escalate".to_owned(),
        };
    } else if let Some(verb) = message
        .split_once(" cannot ")
        .and_then(|(_, rest)| rest.split_once(" resource "))
        .map(|(verb, _)| verb)
        .filter(|verb| !verb.is_empty() && !verb.contains(' '))
    {
        permission.verb = verb.to_owned();
    }
    permission
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cause(field: &str, message: &str) -> FieldCause {
        FieldCause {
            message: message.to_owned(),
            field: field.to_owned(),
        }
    }

    #[test]
    fn every_known_phrase_of_a_field_that_cannot_change_is_recognised() {
        for (field, message) in [
            ("handler", "Invalid value: \"runc\": field is immutable"),
            ("spec.attachRequired", "Invalid value: false: field is immutable"),
            ("data", "Forbidden: field is immutable when `immutable` is set"),
            (
                "roleRef",
                "Invalid value: rbac.RoleRef{APIGroup:\"rbac.authorization.k8s.io\", Kind:\"ClusterRole\", Name:\"b\"}: cannot change roleRef",
            ),
            ("Value", "Forbidden: may not be changed in an update."),
            ("parameters", "Forbidden: updates to parameters are forbidden."),
            ("provisioner", "Forbidden: updates to provisioner are forbidden."),
            (
                "spec",
                "Forbidden: updates to statefulset spec for fields other than 'replicas', 'template', and 'updateStrategy' are forbidden",
            ),
        ] {
            assert!(is_immutable(&[cause(field, message)]), "{message}");
        }
    }

    #[test]
    fn one_cause_of_another_sort_means_that_a_new_object_would_be_rejected_too() {
        let immutable = cause("parameters", "Forbidden: updates to parameters are forbidden.");
        let invalid = cause("volumeBindingMode", "Unsupported value: \"Never\"");
        assert!(is_immutable(std::slice::from_ref(&immutable)));
        assert!(!is_immutable(&[immutable, invalid]));
        assert!(!is_immutable(&[]), "a refusal without causes says nothing");
    }

    #[test]
    fn a_value_that_quotes_the_phrase_fools_nobody() {
        for message in [
            "Invalid value: \"field is immutable\": must be a number",
            "Invalid value: \"cannot change roleRef\": a lowercase RFC 1123 label is needed",
            "Invalid value: \"updates to x are forbidden\": no",
            "Required value: updates to x are forbidden",
        ] {
            assert!(!is_immutable(&[cause("spec.x", message)]), "{message}");
        }
    }

    #[test]
    fn another_uid_is_another_object_and_not_a_field_to_recreate_for() {
        let uid = cause("metadata.uid", "Invalid value: \"x\": field is immutable");
        assert!(is_other_object(std::slice::from_ref(&uid)));
        assert!(!is_immutable(&[uid]));
    }

    fn permission(action: Action, resource: &str, bound: Option<(&str, &str)>, message: &str) -> String {
        let operand = Operand {
            shown: String::new(),
            resource: resource.to_owned(),
            name: "a".to_owned(),
            namespace: None,
            bound_role: bound.map(|(resource, name)| (resource.to_owned(), name.to_owned())),
        };
        missing_permission(action, &operand, message).to_string()
    }

    #[test]
    fn a_403_names_verb_resource_and_name() {
        let roles = "clusterroles.rbac.authorization.k8s.io";
        assert_eq!(
            permission(
                Action::Apply,
                roles,
                None,
                "clusterroles \"a\" is forbidden: User \"u\" cannot patch resource \"clusterroles\" in API group"
            ),
            "patch clusterroles.rbac.authorization.k8s.io \"a\""
        );
        assert_eq!(
            permission(
                Action::Apply,
                roles,
                None,
                "clusterroles \"a\" is forbidden: User \"u\" cannot create resource \"clusterroles\" in API group"
            ),
            "create clusterroles.rbac.authorization.k8s.io \"a\""
        );
        assert_eq!(
            permission(Action::List, roles, None, "User \"u\" cannot list resource"),
            "list clusterroles.rbac.authorization.k8s.io"
        );
        assert_eq!(
            permission(
                Action::Apply,
                roles,
                None,
                "user \"u\" (groups=[]) is attempting to grant RBAC permissions not currently held:"
            ),
            "escalate clusterroles.rbac.authorization.k8s.io \"a\""
        );
    }

    #[test]
    fn a_binding_needs_bind_on_the_role_that_it_refers_to() {
        let roles = "clusterroles.rbac.authorization.k8s.io";
        assert_eq!(
            permission(
                Action::Apply,
                "clusterrolebindings.rbac.authorization.k8s.io",
                Some((roles, "cluster-admin")),
                "user \"u\" is attempting to grant RBAC permissions not currently held:"
            ),
            "bind clusterroles.rbac.authorization.k8s.io \"cluster-admin\""
        );
    }
}
