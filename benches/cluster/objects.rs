//! A thousand Kubernetes objects of the kinds in a cluster's base set.

use serde_json::{Value, json};

/// The number of objects from [`generate`].
pub const COUNT: usize = 1000;

/// The number of their kinds.
pub const KINDS: usize = 13;

const NAMESPACES: usize = 10;

/// The objects, namespaces first, all names beginning with `prefix`.
pub fn generate(prefix: &str) -> Vec<Value> {
    let named = |number: usize| format!("{prefix}-{number:03}");
    let namespace = |number: usize| named(number % NAMESPACES);
    let kinds: [(usize, &dyn Fn(usize) -> Value); KINDS] = [
        (NAMESPACES, &|n| cluster("v1", "Namespace", &named(n), json!({}))),
        (100, &|n| {
            namespaced("v1", "ServiceAccount", &named(n), &namespace(n), json!({}))
        }),
        (300, &|n| {
            let data = json!({"data": {
                "number": n.to_string(),
                "config.yaml": format!("listen: 0.0.0.0:8080\nlevel: info\nshard: {n}\n").repeat(8),
            }});
            namespaced("v1", "ConfigMap", &named(n), &namespace(n), data)
        }),
        (100, &|n| {
            let data = json!({"type": "Opaque", "data": {"token": "c2VjcmV0LXRva2VuLW9mLWEtYmVuY2htYXJr"}});
            namespaced("v1", "Secret", &named(n), &namespace(n), data)
        }),
        (80, &|n| {
            let spec = json!({"spec": {"limits": [
                {"type": "Container", "default": {"memory": "64Mi"}, "defaultRequest": {"cpu": "10m"}},
            ]}});
            namespaced("v1", "LimitRange", &named(n), &namespace(n), spec)
        }),
        (100, &|n| {
            namespaced(
                "apps/v1",
                "Deployment",
                &named(n),
                &namespace(n),
                deployment(&named(n)),
            )
        }),
        (80, &|n| {
            let rules = json!({"rules": [
                {"apiGroups": [""], "resources": ["configmaps", "secrets"], "verbs": ["get", "list", "watch"]},
            ]});
            namespaced(RBAC, "Role", &named(n), &namespace(n), rules)
        }),
        (80, &|n| {
            let binding = binding("Role", &named(n), &namespace(n));
            namespaced(RBAC, "RoleBinding", &named(n), &namespace(n), binding)
        }),
        (50, &|n| {
            let rules =
                json!({"rules": [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list"]}]});
            cluster(RBAC, "ClusterRole", &named(n), rules)
        }),
        (50, &|n| {
            let binding = binding("ClusterRole", &named(n), &namespace(n));
            cluster(RBAC, "ClusterRoleBinding", &named(n), binding)
        }),
        (30, &|n| {
            let spec = json!({"spec": {"podSelector": {"matchLabels": {"app": named(n)}}, "policyTypes": ["Ingress"]}});
            namespaced(
                "networking.k8s.io/v1",
                "NetworkPolicy",
                &named(n),
                &namespace(n),
                spec,
            )
        }),
        (10, &|n| {
            let class = json!({"provisioner": "hostpath.csi.k8s.io", "parameters": {"tier": "fast"}});
            cluster("storage.k8s.io/v1", "StorageClass", &named(n), class)
        }),
        (10, &|n| {
            cluster(
                "scheduling.k8s.io/v1",
                "PriorityClass",
                &named(n),
                json!({"value": n}),
            )
        }),
    ];
    let of_kind = |(count, make): (usize, &dyn Fn(usize) -> Value)| (0..count).map(make).collect::<Vec<_>>();
    kinds.into_iter().flat_map(of_kind).collect()
}

const RBAC: &str = "rbac.authorization.k8s.io/v1";

fn cluster(api_version: &str, kind: &str, name: &str, mut rest: Value) -> Value {
    rest["apiVersion"] = json!(api_version);
    rest["kind"] = json!(kind);
    rest["metadata"] =
        json!({"name": name, "annotations": {"example.com/description": "part of a benchmark"}});
    rest
}

fn namespaced(api_version: &str, kind: &str, name: &str, namespace: &str, rest: Value) -> Value {
    let mut object = cluster(api_version, kind, name, rest);
    object["metadata"]["namespace"] = json!(namespace);
    object
}

fn binding(kind: &str, name: &str, namespace: &str) -> Value {
    json!({
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": namespace}],
    })
}

fn deployment(name: &str) -> Value {
    json!({"spec": {
        "replicas": 2,
        "selector": {"matchLabels": {"app": name}},
        "template": {
            "metadata": {"labels": {"app": name}},
            "spec": {
                "serviceAccountName": name,
                "containers": [{
                    "name": "main",
                    "image": "registry.example/app:1.0.0",
                    "args": ["--listen=:8080"],
                    "ports": [{"containerPort": 8080, "protocol": "TCP"}],
                    "resources": {"requests": {"cpu": "10m", "memory": "32Mi"}, "limits": {"memory": "64Mi"}},
                    "volumeMounts": [{"name": "config", "mountPath": "/etc/app", "readOnly": true}],
                }],
                "volumes": [{"name": "config", "configMap": {"name": name}}],
            },
        },
    }})
}

/// The path of an object in the API.
pub fn path(object: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let api_version = text(&object["apiVersion"]);
    let root = if api_version.contains('/') { "apis" } else { "api" };
    // The plurals of the kinds above are regular.
    let mut plural = text(&object["kind"]).to_lowercase();
    plural = match plural.strip_suffix('y') {
        Some(stem) => format!("{stem}ies"),
        None if plural.ends_with('s') => plural + "es",
        None => plural + "s",
    };
    let scope = match &object["metadata"]["namespace"] {
        Value::String(namespace) => format!("namespaces/{namespace}/"),
        _ => String::new(),
    };
    let name = text(&object["metadata"]["name"]);
    format!("/{root}/{api_version}/{scope}{plural}/{name}")
}
