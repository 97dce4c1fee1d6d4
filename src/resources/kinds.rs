//! Facts about Kubernetes' own kinds that need no server: scope, plural, protection from deletion, immutable fields. Pure.

use serde_json::Value;

use crate::kube::ObjectRef;

/// The namespaced kinds of Kubernetes' own groups.
const NAMESPACED: &[(&str, &str)] = &[
    ("", "Binding"),
    ("", "ConfigMap"),
    ("", "Endpoints"),
    ("", "Event"),
    ("", "LimitRange"),
    ("", "PersistentVolumeClaim"),
    ("", "Pod"),
    ("", "PodTemplate"),
    ("", "ReplicationController"),
    ("", "ResourceQuota"),
    ("", "Secret"),
    ("", "Service"),
    ("", "ServiceAccount"),
    ("apps", "ControllerRevision"),
    ("apps", "DaemonSet"),
    ("apps", "Deployment"),
    ("apps", "ReplicaSet"),
    ("apps", "StatefulSet"),
    ("autoscaling", "HorizontalPodAutoscaler"),
    ("batch", "CronJob"),
    ("batch", "Job"),
    ("coordination.k8s.io", "Lease"),
    ("coordination.k8s.io", "LeaseCandidate"),
    ("discovery.k8s.io", "EndpointSlice"),
    ("events.k8s.io", "Event"),
    ("extensions", "DaemonSet"),
    ("extensions", "Deployment"),
    ("extensions", "Ingress"),
    ("extensions", "NetworkPolicy"),
    ("extensions", "ReplicaSet"),
    ("networking.k8s.io", "Ingress"),
    ("networking.k8s.io", "NetworkPolicy"),
    ("policy", "Eviction"),
    ("policy", "PodDisruptionBudget"),
    ("rbac.authorization.k8s.io", "Role"),
    ("rbac.authorization.k8s.io", "RoleBinding"),
    ("storage.k8s.io", "CSIStorageCapacity"),
];

/// Their cluster-scoped kinds.
const CLUSTER_SCOPED: &[(&str, &str)] = &[
    ("", "Namespace"),
    ("", "Node"),
    ("", "PersistentVolume"),
    ("admissionregistration.k8s.io", "MutatingAdmissionPolicy"),
    ("admissionregistration.k8s.io", "MutatingAdmissionPolicyBinding"),
    ("admissionregistration.k8s.io", "MutatingWebhookConfiguration"),
    ("admissionregistration.k8s.io", "ValidatingAdmissionPolicy"),
    ("admissionregistration.k8s.io", "ValidatingAdmissionPolicyBinding"),
    ("admissionregistration.k8s.io", "ValidatingWebhookConfiguration"),
    ("apiextensions.k8s.io", "CustomResourceDefinition"),
    ("apiregistration.k8s.io", "APIService"),
    ("certificates.k8s.io", "CertificateSigningRequest"),
    ("certificates.k8s.io", "ClusterTrustBundle"),
    ("flowcontrol.apiserver.k8s.io", "FlowSchema"),
    ("flowcontrol.apiserver.k8s.io", "PriorityLevelConfiguration"),
    ("networking.k8s.io", "IPAddress"),
    ("networking.k8s.io", "IngressClass"),
    ("networking.k8s.io", "ServiceCIDR"),
    ("node.k8s.io", "RuntimeClass"),
    ("policy", "PodSecurityPolicy"),
    ("rbac.authorization.k8s.io", "ClusterRole"),
    ("rbac.authorization.k8s.io", "ClusterRoleBinding"),
    ("scheduling.k8s.io", "PriorityClass"),
    ("storage.k8s.io", "CSIDriver"),
    ("storage.k8s.io", "CSINode"),
    ("storage.k8s.io", "StorageClass"),
    ("storage.k8s.io", "VolumeAttachment"),
    ("storage.k8s.io", "VolumeAttributesClass"),
];

/// The API group of roles and their bindings.
pub const RBAC: &str = "rbac.authorization.k8s.io";

/// Whether a kind is namespaced; `None` if only the server knows: a custom kind, or one of a later Kubernetes.
pub fn is_namespaced(group: &str, kind: &str) -> Option<bool> {
    match (group, kind) {
        known if NAMESPACED.contains(&known) => Some(true),
        known if CLUSTER_SCOPED.contains(&known) => Some(false),
        _ => None,
    }
}

/// Whether this is a kind of one of Kubernetes' own groups that these tables do not have: one of a later Kubernetes.
pub fn is_newer(group: &str, kind: &str) -> bool {
    let mut known = NAMESPACED.iter().chain(CLUSTER_SCOPED);
    is_namespaced(group, kind).is_none() && known.any(|(own, _)| *own == group)
}

/// The plural of one of Kubernetes' own kinds, as RBAC and URLs use it. For other kinds it is a guess.
pub fn plural(kind: &str) -> String {
    let lower = kind.to_ascii_lowercase();
    if lower == "endpoints" {
        lower
    } else if let Some(stem) = lower.strip_suffix('y')
        && !stem.ends_with(['a', 'e', 'o'])
    {
        format!("{stem}ies")
    } else if lower.ends_with(['s', 'x']) || lower.ends_with("ch") {
        format!("{lower}es")
    } else {
        format!("{lower}s")
    }
}

/// The short names of kinds that people type most, as the API server serves them.
const SHORT: &[(&str, &str, &str)] = &[
    ("cm", "", "ConfigMap"),
    ("ep", "", "Endpoints"),
    ("limits", "", "LimitRange"),
    ("ns", "", "Namespace"),
    ("pv", "", "PersistentVolume"),
    ("pvc", "", "PersistentVolumeClaim"),
    ("po", "", "Pod"),
    ("quota", "", "ResourceQuota"),
    ("rc", "", "ReplicationController"),
    ("sa", "", "ServiceAccount"),
    ("svc", "", "Service"),
    ("crd", "apiextensions.k8s.io", "CustomResourceDefinition"),
    ("crds", "apiextensions.k8s.io", "CustomResourceDefinition"),
    ("cj", "batch", "CronJob"),
    ("deploy", "apps", "Deployment"),
    ("ds", "apps", "DaemonSet"),
    ("rs", "apps", "ReplicaSet"),
    ("sts", "apps", "StatefulSet"),
    ("hpa", "autoscaling", "HorizontalPodAutoscaler"),
    ("ing", "networking.k8s.io", "Ingress"),
    ("netpol", "networking.k8s.io", "NetworkPolicy"),
    ("pdb", "policy", "PodDisruptionBudget"),
    ("pc", "scheduling.k8s.io", "PriorityClass"),
    ("sc", "storage.k8s.io", "StorageClass"),
];

/// Whether a person who writes this means the kind: `ConfigMap`, `configmaps` or `cm`, in any case, with the group behind a
/// dot or without.
pub fn is_called(text: &str, group: &str, kind: &str) -> bool {
    let (name, of) = match text.split_once('.') {
        Some((name, of)) => (name, Some(of)),
        None => (text, None),
    };
    let is_short = |&(short, of, long): &(&str, &str, &str)| {
        (of, long) == (group, kind) && name.eq_ignore_ascii_case(short)
    };
    (name.eq_ignore_ascii_case(kind)
        || name.eq_ignore_ascii_case(&plural(kind))
        || SHORT.iter().any(is_short))
        && of.is_none_or(|of| of.eq_ignore_ascii_case(group))
}

/// Whether objects of this kind are applied first, because other objects need them.
pub fn is_foundation(group: &str, kind: &str) -> bool {
    is_namespace(group, kind) || is_definition(group, kind)
}

/// Whether the kind is Namespace.
pub fn is_namespace(group: &str, kind: &str) -> bool {
    (group, kind) == ("", "Namespace")
}

/// Whether the kind is CustomResourceDefinition.
pub fn is_definition(group: &str, kind: &str) -> bool {
    (group, kind) == ("apiextensions.k8s.io", "CustomResourceDefinition")
}

/// Group and kind that a CustomResourceDefinition defines.
pub fn defined(definition: &Value) -> Option<(&str, &str)> {
    let spec = &definition["spec"];
    Some((spec["group"].as_str()?, spec["names"]["kind"].as_str()?))
}

/// Whether an object of this name may be what has the server serve kinds of a group: a CustomResourceDefinition
/// `balls.toys.example.com`, or an APIService `v1.toys.example.com`.
pub fn may_serve(definition: &ObjectRef, group: &str) -> bool {
    let kind = (definition.group.as_str(), definition.kind.as_str());
    (is_definition(kind.0, kind.1) || kind == ("apiregistration.k8s.io", "APIService"))
        && definition.name.split_once('.').is_some_and(|(_, of)| of == group)
}

/// Whether the kind is protected: deleting such an object deletes other objects or data. Quorate deletes it only if an
/// annotation allows it.
pub fn is_protected(group: &str, kind: &str) -> bool {
    is_foundation(group, kind)
        || (group.is_empty() && matches!(kind, "PersistentVolume" | "PersistentVolumeClaim"))
}

/// Whether objects of this kind have neither state nor dependants, so that an object with an immutable field can be deleted
/// and created again, and nothing else goes with it. `frozen` says that the manifest declares its data immutable.
pub fn is_replaceable(group: &str, kind: &str, frozen: bool) -> bool {
    match (group, kind) {
        (RBAC, "RoleBinding" | "ClusterRoleBinding")
        | ("storage.k8s.io", "StorageClass" | "CSIDriver")
        | ("node.k8s.io", "RuntimeClass")
        | ("scheduling.k8s.io", "PriorityClass")
        | ("batch", "Job") => true,
        ("", "ConfigMap" | "Secret") => frozen,
        _ => false,
    }
}

/// Immutable fields of a kind, by JSON pointer. The table serves the forecast of `bundle check` and is not complete; the
/// server's refusal decides.
pub fn immutable_fields(group: &str, kind: &str) -> &'static [&'static str] {
    match (group, kind) {
        (RBAC, "RoleBinding" | "ClusterRoleBinding") => &["/roleRef"],
        ("storage.k8s.io", "StorageClass") => &[
            "/provisioner",
            "/parameters",
            "/reclaimPolicy",
            "/volumeBindingMode",
        ],
        ("storage.k8s.io", "CSIDriver") => &["/spec/attachRequired", "/spec/volumeLifecycleModes"],
        ("node.k8s.io", "RuntimeClass") => &["/handler"],
        ("scheduling.k8s.io", "PriorityClass") => &["/value", "/preemptionPolicy"],
        ("apps", "Deployment" | "DaemonSet" | "ReplicaSet") => &["/spec/selector"],
        ("apps", "StatefulSet") => &[
            "/spec/selector",
            "/spec/serviceName",
            "/spec/volumeClaimTemplates",
        ],
        ("batch", "Job") => &["/spec/selector", "/spec/template", "/spec/completionMode"],
        ("", "Secret") => &["/type"],
        _ => &[],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plurals_are_the_servers() {
        for (kind, expected) in [
            ("ConfigMap", "configmaps"),
            ("ClusterRole", "clusterroles"),
            ("StorageClass", "storageclasses"),
            ("RuntimeClass", "runtimeclasses"),
            ("CSIDriver", "csidrivers"),
            ("NetworkPolicy", "networkpolicies"),
            ("Ingress", "ingresses"),
            ("Endpoints", "endpoints"),
            ("PodDisruptionBudget", "poddisruptionbudgets"),
            ("Gateway", "gateways"),
            ("CustomResourceDefinition", "customresourcedefinitions"),
        ] {
            assert_eq!(plural(kind), expected);
        }
    }

    #[test]
    fn a_kind_is_called_by_its_name_its_plural_or_its_short_name_with_or_without_its_group() {
        for text in ["ConfigMap", "configmap", "configmaps", "CM", "cm.", "configmaps."] {
            assert!(is_called(text, "", "ConfigMap"), "{text}");
        }
        for text in ["ball", "balls.toys.example.com", "BALL.TOYS.example.com"] {
            assert!(is_called(text, "toys.example.com", "Ball"), "{text}");
        }
        assert!(is_called("deploy.apps", "apps", "Deployment"));
        for text in ["config", "configmaps.apps", "cm.apps", ""] {
            assert!(!is_called(text, "", "ConfigMap"), "{text}");
        }
        assert!(!is_called("deploy", "toys.example.com", "Deployment"));
        for (_, group, kind) in SHORT {
            assert!(is_namespaced(group, kind).is_some(), "{kind}.{group}");
        }
    }

    #[test]
    fn the_name_of_a_definition_tells_the_group_that_it_serves() {
        let definition = |group: &str, kind: &str, name: &str| ObjectRef {
            group: group.to_owned(),
            kind: kind.to_owned(),
            namespace: None,
            name: name.to_owned(),
        };
        let custom = ("apiextensions.k8s.io", "CustomResourceDefinition");
        let aggregated = ("apiregistration.k8s.io", "APIService");
        for ((group, kind), name, serves) in [
            (custom, "balls.toys.example.com", true),
            (aggregated, "v1.toys.example.com", true),
            (custom, "balls.old.toys.example.com", false),
            (custom, "toys.example.com", false),
            (("", "ConfigMap"), "balls.toys.example.com", false),
        ] {
            let definition = definition(group, kind, name);
            assert_eq!(may_serve(&definition, "toys.example.com"), serves, "{definition}");
        }
        assert!(!may_serve(
            &definition(aggregated.0, aggregated.1, "v1."),
            "toys.example.com"
        ));
    }

    #[test]
    fn an_object_with_state_or_dependants_is_not_replaceable() {
        for (group, kind) in [
            (RBAC, "RoleBinding"),
            (RBAC, "ClusterRoleBinding"),
            ("storage.k8s.io", "StorageClass"),
            ("storage.k8s.io", "CSIDriver"),
            ("node.k8s.io", "RuntimeClass"),
            ("scheduling.k8s.io", "PriorityClass"),
            ("batch", "Job"),
            ("", "ConfigMap"),
            ("", "Secret"),
        ] {
            assert!(is_replaceable(group, kind, true), "{group} {kind}");
        }
        for (group, kind) in [
            ("", "Namespace"),
            ("", "PersistentVolumeClaim"),
            ("", "Service"),
            ("apps", "StatefulSet"),
            ("apps", "Deployment"),
            ("apps", "DaemonSet"),
            ("apiextensions.k8s.io", "CustomResourceDefinition"),
            ("example.com", "Database"),
            ("example.com", "StorageClass"),
        ] {
            assert!(!is_replaceable(group, kind, true), "{group} {kind}");
        }
        assert!(!is_replaceable("", "Secret", false), "it can be changed in place");
    }

    #[test]
    fn only_the_scope_of_kubernetes_own_kinds_is_known() {
        assert_eq!(is_namespaced("", "ConfigMap"), Some(true));
        assert_eq!(is_namespaced("", "Namespace"), Some(false));
        assert_eq!(is_namespaced(RBAC, "ClusterRole"), Some(false));
        assert_eq!(is_namespaced(RBAC, "Role"), Some(true));
        assert_eq!(is_namespaced("example.com", "Toy"), None);
        assert_eq!(is_namespaced("networking.k8s.io", "KindOfALaterRelease"), None);
        assert!(is_newer("networking.k8s.io", "KindOfALaterRelease"));
        assert!(!is_newer("networking.k8s.io", "Ingress") && !is_newer("example.com", "Toy"));
    }
}
