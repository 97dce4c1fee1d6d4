//! The component in an overlay: what it adds, and that the pod monitors find the pods.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::deploy::kustomize::{Deploy, name_of};

/// A PodMonitor, as far as it is used here. The operator's own type has many more fields.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct PodMonitorSpec {
    #[serde(default)]
    namespace_selector: NamespaceSelector,
    selector: Selector,
    pod_metrics_endpoints: Vec<Endpoint>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct NamespaceSelector {
    match_names: Vec<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Selector {
    match_labels: BTreeMap<String, String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Endpoint {
    port: String,
    path: String,
    interval: String,
    relabelings: Vec<Relabeling>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Relabeling {
    #[serde(default)]
    source_labels: Vec<String>,
    target_label: String,
    replacement: Option<String>,
}

fn read<T: DeserializeOwned>(object: &Value) -> T {
    let name = name_of(object);
    serde_json::from_value(object["spec"].clone()).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn of_kind<'o>(objects: &'o [Value], kind: &str) -> Vec<&'o Value> {
    objects.iter().filter(|object| object["kind"] == kind).collect()
}

#[test]
fn the_component_adds_rules_pod_monitors_and_a_dashboard_and_changes_nothing_else() {
    let deploy = Deploy::prepared();
    let before = deploy.objects("overlays/external-etcd");
    let monitored = deploy.with_component("overlays/external-etcd", "monitoring");
    let (mut kept, mut added) = (Vec::new(), Vec::new());
    for object in deploy.objects(monitored) {
        match before.contains(&object) {
            true => kept.push(object),
            false => added.push(object),
        }
    }
    assert_eq!(kept.len(), before.len());
    let mut names: Vec<String> = added.iter().map(name_of).collect();
    names.sort();
    assert_eq!(
        names,
        [
            "ConfigMap quorate-dashboard",
            "PodMonitor quorate",
            "PodMonitor quorate-agent",
            "PrometheusRule quorate"
        ]
    );
    for object in &added {
        assert_eq!(object["metadata"]["namespace"], "quorate-system");
    }
    let dashboard = of_kind(&added, "ConfigMap")[0];
    assert_eq!(dashboard["metadata"]["labels"]["grafana_dashboard"], "1");
    let text = dashboard["data"]["quorate.json"].as_str().unwrap();
    let dashboard: Value = serde_json::from_str(text).unwrap();
    assert_eq!(dashboard["uid"], "quorate");
    let rules = of_kind(&added, "PrometheusRule")[0];
    assert!(rules["spec"]["groups"].as_array().unwrap().len() > 5);
}

#[test]
fn the_pod_monitors_select_the_replicas_and_the_agents_and_name_them_as_the_rules_do() {
    let deploy = Deploy::prepared();
    let monitored = deploy.objects(deploy.with_component("overlays/external-etcd", "monitoring"));
    let agents = deploy.objects("agents/workers");
    let workloads = [
        ("quorate", of_kind(&monitored, "Deployment")[0]),
        ("quorate-agent", of_kind(&agents, "DaemonSet")[0]),
    ];
    let monitors = of_kind(&monitored, "PodMonitor");
    assert_eq!(monitors.len(), workloads.len());
    for (monitor, (job, workload)) in monitors.into_iter().zip(workloads) {
        let spec: PodMonitorSpec = read(monitor);
        let labels = &workload["spec"]["template"]["metadata"]["labels"];
        for (label, value) in &spec.selector.match_labels {
            assert_eq!(labels[label], value.as_str(), "{job}");
        }
        assert_eq!(spec.selector.match_labels.len(), 2, "{job}");
        let own = &monitor["metadata"]["namespace"];
        let namespace = match &spec.namespace_selector.match_names[..] {
            [] => own.as_str().unwrap(),
            [namespace] => namespace.as_str(),
            several => panic!("{job}: {several:?}"),
        };
        assert_eq!(workload["metadata"]["namespace"], namespace, "{job}");
        let [endpoint] = &spec.pod_metrics_endpoints[..] else {
            panic!("{job} has not one endpoint")
        };
        let ports = workload["spec"]["template"]["spec"]["containers"][0]["ports"].as_array();
        assert!(
            ports
                .unwrap()
                .iter()
                .any(|port| port["name"] == endpoint.port.as_str())
        );
        assert_eq!(
            (&*endpoint.path, &*endpoint.interval),
            ("/metrics", "30s"),
            "{job}"
        );
        let [name, instance] = &endpoint.relabelings[..] else {
            panic!("{job} has not two relabelings")
        };
        assert_eq!(
            (&*name.target_label, name.replacement.as_deref()),
            ("job", Some(job))
        );
        assert!(name.source_labels.is_empty());
        assert_eq!(
            (&*instance.target_label, instance.source_labels.len()),
            ("instance", 1)
        );
    }
}
