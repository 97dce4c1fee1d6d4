//! The manifests without a server: every field is known, and names and settings are consistent.

use clap::CommandFactory as _;
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, StatefulSet};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Secret, Service, ServiceAccount};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};
use quorate_dev::workspace;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::kustomize::{Deploy, OVERLAYS, name_of, pod_specs};

/// Reads the object into its type and back. A field that the type does not know is lost.
fn through<T: DeserializeOwned + Serialize>(object: &Value) -> Result<Value, serde_json::Error> {
    serde_json::to_value(serde_json::from_value::<T>(object.clone())?)
}

fn typed(object: &Value) -> Result<Value, serde_json::Error> {
    let of = |field: &str| object[field].as_str().unwrap_or_default();
    match (of("apiVersion"), of("kind")) {
        ("v1", "Namespace") => through::<Namespace>(object),
        ("v1", "ServiceAccount") => through::<ServiceAccount>(object),
        ("v1", "Service") => through::<Service>(object),
        ("v1", "ConfigMap") => through::<ConfigMap>(object),
        ("v1", "Secret") => through::<Secret>(object),
        ("apps/v1", "DaemonSet") => through::<DaemonSet>(object),
        ("apps/v1", "Deployment") => through::<Deployment>(object),
        ("apps/v1", "StatefulSet") => through::<StatefulSet>(object),
        ("policy/v1", "PodDisruptionBudget") => through::<PodDisruptionBudget>(object),
        ("networking.k8s.io/v1", "NetworkPolicy") => through::<NetworkPolicy>(object),
        ("rbac.authorization.k8s.io/v1", "ClusterRole") => through::<ClusterRole>(object),
        ("rbac.authorization.k8s.io/v1", "ClusterRoleBinding") => through::<ClusterRoleBinding>(object),
        ("rbac.authorization.k8s.io/v1", "Role") => through::<Role>(object),
        ("rbac.authorization.k8s.io/v1", "RoleBinding") => through::<RoleBinding>(object),
        (version, kind) => panic!("add the type of {version} {kind} here"),
    }
}

/// The path of the first field that differs.
fn first_difference(one: &Value, other: &Value) -> Option<String> {
    let below = |name: String, one: &Value, other: &Value| {
        first_difference(one, other).map(|path| format!("{name}{path}"))
    };
    match (one, other) {
        (Value::Object(one), Value::Object(other)) => {
            one.keys()
                .chain(other.keys())
                .find_map(|key| match (one.get(key), other.get(key)) {
                    (Some(one), Some(other)) => below(format!(".{key}"), one, other),
                    _ => Some(format!(".{key}")),
                })
        }
        (Value::Array(one), Value::Array(other)) if one.len() == other.len() => {
            let pairs = one.iter().zip(other).enumerate();
            pairs
                .into_iter()
                .find_map(|(index, (one, other))| below(format!("[{index}]"), one, other))
        }
        (one, other) => (one != other).then(String::new),
    }
}

#[test]
fn every_manifest_has_only_fields_of_its_type() {
    let deploy = Deploy::prepared();
    for folder in ["base", "agents/workers"].iter().chain(&OVERLAYS) {
        let objects = deploy.objects(folder);
        assert!(!objects.is_empty(), "{folder} is empty");
        for object in &objects {
            let name = name_of(object);
            let through = typed(object).unwrap_or_else(|error| panic!("{folder}: {name}: {error}"));
            assert_eq!(first_difference(object, &through), None, "{folder}: {name}");
        }
    }
}

#[test]
fn a_misspelt_field_is_found() {
    let deploy = Deploy::prepared();
    for mut object in deploy.objects("overlays/bundled-etcd") {
        if object["kind"] != "PodDisruptionBudget" {
            continue;
        }
        object["spec"]["maxUnavailabel"] = 1.into();
        let difference = first_difference(&object, &typed(&object).unwrap());
        assert_eq!(difference.as_deref(), Some(".spec.maxUnavailabel"));
    }
}

#[test]
fn every_object_is_in_the_namespace_or_cluster_scoped() {
    let deploy = Deploy::prepared();
    for overlay in OVERLAYS {
        for object in deploy.objects(overlay) {
            let cluster_wide = ["Namespace", "ClusterRole", "ClusterRoleBinding"];
            let namespace = match object["kind"].as_str() {
                Some(kind) if cluster_wide.contains(&kind) => Value::Null,
                _ => "quorate-system".into(),
            };
            assert_eq!(
                object["metadata"]["namespace"],
                namespace,
                "{overlay}: {}",
                name_of(&object)
            );
        }
    }
}

#[test]
fn every_selector_selects_the_pods_of_one_workload() {
    let deploy = Deploy::prepared();
    let objects = deploy.objects("overlays/bundled-etcd");
    let labels: Vec<&Value> = objects
        .iter()
        .filter_map(|object| object.pointer("/spec/template/metadata/labels"))
        .collect();
    assert_eq!(labels.len(), 2, "the controllers and etcd");
    let selects = |selector: &Value, labels: &Value| {
        let selector = selector.as_object().unwrap();
        selector
            .iter()
            .all(|(name, value)| labels.get(name) == Some(value))
    };
    for object in &objects {
        let pointer = match object["kind"].as_str().unwrap() {
            "Deployment" | "StatefulSet" | "PodDisruptionBudget" => "/spec/selector/matchLabels",
            "NetworkPolicy" => "/spec/podSelector/matchLabels",
            "Service" => "/spec/selector",
            _ => continue,
        };
        let selector = object.pointer(pointer).unwrap();
        let selected = labels.iter().filter(|labels| selects(selector, labels)).count();
        assert_eq!(selected, 1, "{}", name_of(object));
    }
}

#[test]
fn the_label_by_which_a_namespace_reaches_etcd_is_that_of_the_manual_and_opens_the_client_port_alone() {
    let deploy = Deploy::prepared();
    let objects = deploy.objects("overlays/bundled-etcd");
    let policy = objects
        .iter()
        .find(|object| object["kind"] == "NetworkPolicy" && object["metadata"]["name"] == "quorate-etcd")
        .unwrap();
    let mut opened = Vec::new();
    for rule in policy["spec"]["ingress"].as_array().unwrap() {
        let from = rule["from"].as_array().into_iter().flatten();
        for labels in from.filter_map(|peer| peer.pointer("/namespaceSelector/matchLabels")) {
            opened.push((labels.clone(), rule["ports"].clone()));
        }
    }
    let labels = json!({"quorate.dev/wait-ready": "allowed"});
    let ports = json!([{"protocol": "TCP", "port": "client"}]);
    assert_eq!(opened, [(labels, ports)]);
    let manual = std::fs::read_to_string(workspace::root().join("docs/operate.md")).unwrap();
    assert!(manual.contains("`quorate.dev/wait-ready: allowed`"));
}

#[test]
fn quorate_run_reads_every_setting_in_the_manifests() {
    let command = quorate::cli::Cli::command();
    let run = command.find_subcommand("run").unwrap();
    let known: Vec<&str> = command
        .get_arguments()
        .chain(run.get_arguments())
        .filter_map(|argument| argument.get_env()?.to_str())
        .collect();

    let deploy = Deploy::prepared();
    for overlay in OVERLAYS {
        let objects = deploy.objects(overlay);
        let mut settings: Vec<String> = Vec::new();
        for object in &objects {
            if let Some(data) = object["data"]
                .as_object()
                .filter(|_| object["kind"] == "ConfigMap")
            {
                settings.extend(data.keys().cloned());
            }
        }
        for (_, pod) in pod_specs(&objects) {
            let env = pod["containers"][0]["env"].as_array().unwrap();
            settings.extend(env.iter().map(|entry| entry["name"].as_str().unwrap().to_owned()));
        }
        settings.retain(|name| name.starts_with("QUORATE_"));
        for setting in ["QUORATE_ETCD_ENDPOINTS", "QUORATE_NODE_ID", "QUORATE_LISTEN"] {
            assert!(
                settings.iter().any(|name| name == setting),
                "{overlay}: {setting} is missing"
            );
        }
        for setting in &settings {
            assert!(
                known.contains(&setting.as_str()),
                "{overlay}: no flag reads {setting}; known: {known:?}"
            );
        }
    }
}

#[test]
fn pods_name_the_generated_settings_and_secrets_of_their_overlay() {
    let deploy = Deploy::prepared();
    for overlay in OVERLAYS {
        let objects = deploy.objects(overlay);
        let exists = |kind: &str, name: &Value| {
            objects
                .iter()
                .any(|object| object["kind"] == kind && object["metadata"]["name"] == *name)
        };
        for (owner, pod) in pod_specs(&objects) {
            for volume in pod["volumes"].as_array().unwrap() {
                if let Some(secret) = volume.pointer("/secret/secretName") {
                    // One that an operator adds later is optional.
                    let is_optional = volume["secret"]["optional"] == true;
                    assert!(
                        is_optional || exists("Secret", secret),
                        "{overlay}: {owner}: {secret}"
                    );
                }
            }
            if let Some(settings) = pod.pointer("/containers/0/envFrom/0/configMapRef/name") {
                assert!(exists("ConfigMap", settings), "{overlay}: {owner}: {settings}");
            }
        }
    }
}
