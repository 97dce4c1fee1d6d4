//! What follows from the text of a refusal: immutable fields, missing permissions.
//!
//! Kubernetes reports these in words only. Every phrase below was taken from a server's response.

use std::collections::BTreeSet;

use serde::Deserialize;

use super::operand::{Action, Operand, Permission};

/// One entry of `details.causes` of a 422.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct FieldCause {
    message: String,
    field: String,
}

/// How the message of a cause shows that the field is immutable. The message is `<type>: <value>: <detail>`. The value
/// comes from the manifest and may contain any text, so each test looks only at the start and the end of the message.
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

/// Whether every cause is an immutable field. Only then would deleting and creating the object help.
pub(super) fn is_immutable(causes: &[FieldCause]) -> bool {
    let immutable = |cause: &FieldCause| {
        // A new object would have the same metadata.
        !cause.field.starts_with("metadata.") && IMMUTABLE.iter().any(|says_so| says_so(&cause.message))
    };
    !causes.is_empty() && causes.iter().all(immutable)
}

/// Whether the refusal says that another object, with another uid, has the name.
pub(super) fn is_other_object(causes: &[FieldCause]) -> bool {
    !causes.is_empty() && causes.iter().all(|cause| cause.field == "metadata.uid")
}

/// The words of the API server before the name of a webhook that it could not call.
const UNCALLED: &str = "Internal error occurred: failed calling webhook ";

/// What a refusal of a Secret says up to its first colon, where values may begin, and the paths of the fields that it is about.
pub(super) fn without_values(message: &str, causes: &[FieldCause]) -> String {
    // What etcd says, and which webhook could not be called, quotes nothing.
    if message.starts_with("etcdserver: ") {
        return message.to_owned();
    }
    let before_colon = |text: &str| text.split_once(": ").map(|(begin, _)| begin.to_owned());
    let uncalled = message.strip_prefix(UNCALLED).and_then(before_colon);
    let begin = uncalled.map(|webhook| format!("{UNCALLED}{webhook}"));
    let Some(begin) = begin.or_else(|| before_colon(message)) else {
        return message.to_owned();
    };
    let fields: BTreeSet<&str> = causes
        .iter()
        .map(|cause| cause.field.as_str())
        .filter(|field| !field.is_empty())
        .collect();
    let mut text = begin;
    for (number, field) in fields.into_iter().enumerate() {
        text.push_str(if number == 0 { ": " } else { ", " });
        text.push_str(field);
    }
    text.push_str(" (the rest may quote the secret)");
    text
}

/// Whether a 500 means: the object does not exist, and the server does not create it from a manifest with a resource
/// version. Services up to about 1.21 respond so; the server stores them by code of their own.
pub(super) fn is_creation_with_version(message: &str) -> bool {
    message == "resourceVersion should not be set on objects to be created"
}

/// Whether a 500 is about the manifest, so that a repetition cannot succeed. Kubernetes 1.20 reports a manifest that
/// does not match the schema this way.
pub(super) fn is_bad_manifest(message: &str) -> bool {
    message.starts_with("failed to create typed patch object")
}

/// The permission whose absence a 403 reports; `None` if the refusal is not the authorizer's but one of admission.
///
/// Writing a role that grants more than the writer holds needs `escalate` on that role; writing such a binding needs
/// `bind` on the role that it refers to. The server words both as "attempting to grant RBAC permissions not currently
/// held". Any other message is `cannot <verb> resource …`; its verb can differ from the request's, because an apply of
/// an absent object is a `create`.
pub(super) fn missing_permission(action: Action, operand: &Operand, message: &str) -> Option<Permission> {
    let escalates = message.contains("attempting to grant RBAC permissions not currently held");
    let lacks_verb = message.contains("User \"") && message.contains(" cannot ");
    if !escalates && !lacks_verb {
        return None;
    }
    let mut permission = Permission {
        verb: action.verb().to_owned(),
        resource: operand.resource.clone(),
        name: operand.name.clone(),
        namespace: operand.namespace.clone(),
    };
    if matches!(action, Action::List | Action::Watch) {
        permission.name.clear();
    }
    if escalates {
        permission.verb = match &operand.bound_role {
            // The server names only the binding; the manifest names the role.
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
    Some(permission)
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
    fn every_known_phrase_for_an_immutable_field_is_recognised() {
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
    fn one_other_cause_means_that_a_new_object_would_be_rejected_too() {
        let immutable = cause("parameters", "Forbidden: updates to parameters are forbidden.");
        let invalid = cause("volumeBindingMode", "Unsupported value: \"Never\"");
        assert!(is_immutable(std::slice::from_ref(&immutable)));
        assert!(!is_immutable(&[immutable, invalid]));
        assert!(!is_immutable(&[]), "a refusal without causes proves nothing");
    }

    #[test]
    fn a_value_that_quotes_the_phrase_is_not_taken_for_it() {
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
    fn another_uid_means_another_object_and_not_an_immutable_field() {
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
        let missing = missing_permission(action, &operand, message);
        missing.map_or_else(|| "none".to_owned(), |permission| permission.to_string())
    }

    #[test]
    fn a_denial_by_admission_names_no_permission() {
        for message in [
            "admission webhook \"validation.gatekeeper.sh\" denied the request: [labels] you must provide labels: {\"owner\"}",
            "pods \"a\" is forbidden: exceeded quota: share, requested: pods=1, used: pods=2, limited: pods=2",
            "pods \"a\" is forbidden: violates PodSecurity \"restricted:latest\": allowPrivilegeEscalation != false",
            "configmaps \"a\" is forbidden: unable to create new content in namespace team because it is being terminated",
            "ValidatingAdmissionPolicy 'owners' with binding 'all' denied request: an owner label is required",
        ] {
            assert_eq!(
                permission(Action::Apply, "configmaps", None, message),
                "none",
                "{message}"
            );
        }
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
