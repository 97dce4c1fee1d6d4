//! What is known of Kubernetes' own kinds without asking a server: scope, names, what their loss means, and which of
//! their fields cannot change.

/// Groups whose kinds are all known here.
const OWN_GROUPS: &[&str] = &[
    "",
    "admissionregistration.k8s.io",
    "apiextensions.k8s.io",
    "apiregistration.k8s.io",
    "apps",
    "autoscaling",
    "batch",
    "certificates.k8s.io",
    "coordination.k8s.io",
    "discovery.k8s.io",
    "events.k8s.io",
    "flowcontrol.apiserver.k8s.io",
    "networking.k8s.io",
    "node.k8s.io",
    "policy",
    "rbac.authorization.k8s.io",
    "scheduling.k8s.io",
    "storage.k8s.io",
];

/// The kinds of those groups that do not lie in namespaces.
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

/// The group of roles and bindings.
pub const RBAC: &str = "rbac.authorization.k8s.io";

/// Whether objects of this kind lie in namespaces; `None` where only the server knows.
pub fn is_namespaced(group: &str, kind: &str) -> Option<bool> {
    OWN_GROUPS
        .contains(&group)
        .then(|| !CLUSTER_SCOPED.contains(&(group, kind)))
}

/// The plural by which RBAC and URLs name a kind of Kubernetes' own.
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

/// Whether other objects have to wait for those of this kind.
pub fn is_foundation(group: &str, kind: &str) -> bool {
    is_namespace(group, kind) || is_definition(group, kind)
}

/// A Namespace.
pub fn is_namespace(group: &str, kind: &str) -> bool {
    (group, kind) == ("", "Namespace")
}

/// A CustomResourceDefinition.
pub fn is_definition(group: &str, kind: &str) -> bool {
    (group, kind) == ("apiextensions.k8s.io", "CustomResourceDefinition")
}

/// Kinds whose deletion takes other objects, or people's data, with it: never deleted unless told so explicitly.
pub fn is_protected(group: &str, kind: &str) -> bool {
    is_foundation(group, kind)
        || (group.is_empty() && matches!(kind, "PersistentVolume" | "PersistentVolumeClaim"))
}

/// Fields that no server changes in place, by JSON pointer. Not all of them: what can be known offline, to warn of; a
/// server's refusal is what decides.
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
    fn plurals_are_those_that_the_server_uses() {
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
    fn the_scope_is_known_of_kubernetes_own_kinds_only() {
        assert_eq!(is_namespaced("", "ConfigMap"), Some(true));
        assert_eq!(is_namespaced("", "Namespace"), Some(false));
        assert_eq!(is_namespaced(RBAC, "ClusterRole"), Some(false));
        assert_eq!(is_namespaced(RBAC, "Role"), Some(true));
        assert_eq!(is_namespaced("example.com", "Toy"), None);
    }
}
