//! The NetworkPolicies against the ports that the programs open and call.

use std::collections::BTreeSet;

use serde_json::Value;

use super::kustomize::{Deploy, OVERLAYS, name_of};

/// A protocol and a port.
type Ports = BTreeSet<(String, u64)>;

fn tcp(ports: impl IntoIterator<Item = u64>) -> Ports {
    ports.into_iter().map(|port| ("TCP".to_owned(), port)).collect()
}

/// DNS, over either protocol.
fn dns() -> Ports {
    [("UDP".to_owned(), 53), ("TCP".to_owned(), 53)].into()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// The port at the end of an address or a URL.
fn port_of(address: &str) -> u64 {
    let (_, port) = address
        .rsplit_once(':')
        .unwrap_or_else(|| panic!("{address} has no port"));
    port.trim_end_matches('/')
        .parse()
        .unwrap_or_else(|_| panic!("{address} has no port"))
}

fn env<'a>(container: &'a Value, name: &str) -> Option<&'a str> {
    let mut variables = list(&container["env"]).iter();
    variables.find(|variable| variable["name"] == name)?["value"].as_str()
}

/// The ports that a container listens at, as its flags and variables say.
fn opened(container: &Value) -> Ports {
    let mut ports = Vec::new();
    ports.extend(env(container, "QUORATE_LISTEN").map(port_of));
    // Without authorities there is no control port.
    if env(container, "QUORATE_CA_DIR").is_some() {
        ports.push(port_of(env(container, "QUORATE_CONTROL_LISTEN").unwrap()));
    }
    ports.extend(
        env(container, "CSI_ENDPOINT")
            .filter(|url| !url.starts_with("unix:"))
            .map(port_of),
    );
    for flag in list(&container["args"]).iter().filter_map(Value::as_str) {
        if let Some((name, urls)) = flag.split_once('=')
            && name.starts_with("--listen-")
        {
            ports.extend(urls.split(',').map(port_of));
        }
    }
    tcp(ports)
}

/// The ports that a workload calls: of etcd and Kubernetes for a replica, of the other members for etcd.
fn called(objects: &[Value], workload: &Value) -> Option<Ports> {
    let container = &workload["spec"]["template"]["spec"]["containers"][0];
    match component(workload) {
        "controller" => {
            let settings = objects
                .iter()
                .find(|object| object["kind"] == "ConfigMap")
                .unwrap();
            let endpoints = settings["data"]["QUORATE_ETCD_ENDPOINTS"].as_str().unwrap();
            let mut ports = tcp(endpoints.split(',').map(port_of));
            // Where the leader dials a member that joins; the API server at the usual ports.
            ports.append(&mut tcp([2380, 443, 6443]));
            let mut services = objects.iter().filter(|object| object["kind"] == "Service");
            // A plugin that is reached over the network.
            if let Some(plugin) = services.find(|service| component(service) == "csi-plugin") {
                ports.append(&mut tcp([plugin["spec"]["ports"][0]["port"].as_u64().unwrap()]));
            }
            ports.append(&mut dns());
            Some(ports)
        }
        "etcd" => {
            let initial = list(&container["args"]).iter().filter_map(Value::as_str);
            let mut ports = tcp(initial
                .filter(|flag| {
                    flag.contains("-advertise-peer-urls=") || flag.contains("--advertise-client-urls=")
                })
                .map(port_of));
            ports.append(&mut dns());
            Some(ports)
        }
        // An operator's own.
        _ => None,
    }
}

fn component(object: &Value) -> &str {
    object["metadata"]["labels"]["app.kubernetes.io/component"]
        .as_str()
        .unwrap_or_default()
}

/// The ports of the rules of a direction, over all policies that select the pods of a workload. `None` if no policy of that
/// direction does: then everything is allowed.
fn allowed(objects: &[Value], workload: &Value, direction: &str) -> Option<Ports> {
    let template = &workload["spec"]["template"];
    let selects = |policy: &&Value| {
        let labels = policy["spec"]["podSelector"]["matchLabels"].as_object().unwrap();
        let is_of = list(&policy["spec"]["policyTypes"]).iter().any(|kind| {
            kind.as_str()
                .is_some_and(|kind| kind.eq_ignore_ascii_case(direction))
        });
        is_of
            && labels
                .iter()
                .all(|(name, value)| template["metadata"]["labels"][name] == *value)
    };
    let policies: Vec<&Value> = objects
        .iter()
        .filter(|object| object["kind"] == "NetworkPolicy")
        .filter(selects)
        .collect();
    if policies.is_empty() {
        return None;
    }
    let rules = policies
        .iter()
        .flat_map(|policy| list(&policy["spec"][direction]));
    let ports = rules.flat_map(|rule| list(&rule["ports"]));
    let number = |port: &Value| match port["port"].as_u64() {
        Some(number) => number,
        None => named_port(objects, &port["port"]),
    };
    Some(
        ports
            .map(|port| (port["protocol"].as_str().unwrap().to_owned(), number(port)))
            .collect(),
    )
}

/// The number of a port with a name, which is that of the same name in one of the containers.
fn named_port(objects: &[Value], name: &Value) -> u64 {
    let containers = objects
        .iter()
        .flat_map(|object| list(&object["spec"]["template"]["spec"]["containers"]));
    let ports: BTreeSet<u64> = containers
        .flat_map(|container| list(&container["ports"]))
        .filter(|port| port["name"] == *name)
        .map(|port| port["containerPort"].as_u64().unwrap())
        .collect();
    assert_eq!(ports.len(), 1, "the port {name} is not one: {ports:?}");
    ports.into_iter().next().unwrap()
}

fn workloads(objects: &[Value]) -> impl Iterator<Item = &Value> {
    objects
        .iter()
        .filter(|object| object["spec"]["template"].is_object())
}

/// What is wrong with the policies of an overlay: a port that is opened or called and not allowed, or the reverse.
fn faults(objects: &[Value]) -> Vec<String> {
    let mut faults = Vec::new();
    for workload in workloads(objects) {
        let name = name_of(workload);
        let containers = list(&workload["spec"]["template"]["spec"]["containers"]);
        let opened: Ports = containers.iter().flat_map(opened).collect();
        match allowed(objects, workload, "ingress") {
            Some(allowed) if allowed == opened => {}
            allowed => faults.push(format!("{name} opens {opened:?}, and {allowed:?} may be reached")),
        }
        let declared = containers.iter().flat_map(|container| list(&container["ports"]));
        let declared = tcp(declared.map(|port| port["containerPort"].as_u64().unwrap()));
        if declared != opened {
            faults.push(format!("{name} opens {opened:?} and declares {declared:?}"));
        }
        if let Some(called) = called(objects, workload) {
            match allowed(objects, workload, "egress") {
                Some(allowed) if allowed == called => {}
                allowed => faults.push(format!("{name} calls {called:?}, and {allowed:?} is allowed")),
            }
        }
    }
    faults
}

#[test]
fn the_network_policies_open_exactly_the_ports_that_the_programs_use() {
    let deploy = Deploy::prepared();
    for overlay in OVERLAYS {
        let objects = deploy.objects(overlay);
        assert!(workloads(&objects).next().is_some());
        let faults = faults(&objects);
        assert!(faults.is_empty(), "{overlay}: {faults:#?}");
    }
}

#[test]
fn of_its_own_namespace_only_controllers_and_members_reach_etcd() {
    let objects = Deploy::prepared().objects("overlays/bundled-etcd");
    let mut policies = objects.iter().filter(|object| object["kind"] == "NetworkPolicy");
    let policy = policies
        .find(|policy| policy["metadata"]["name"] == "quorate-etcd")
        .unwrap();
    let from = list(&policy["spec"]["ingress"])
        .iter()
        .flat_map(|rule| list(&rule["from"]));
    let pods = from.filter_map(|from| from["podSelector"]["matchLabels"].as_object());
    let components: Vec<&str> = pods
        .map(|labels| labels.get("app.kubernetes.io/component").and_then(Value::as_str))
        .map(Option::unwrap_or_default)
        .collect();
    assert_eq!(components, ["controller", "etcd", "etcd"]);
}

#[test]
fn a_policy_that_opens_too_much_or_too_little_is_found() {
    let deploy = Deploy::prepared();
    let sound = deploy.objects("overlays/bundled-etcd");
    assert_eq!(faults(&sound), Vec::<String>::new());
    for (policy, direction) in [
        ("quorate", "ingress"),
        ("quorate", "egress"),
        ("quorate-etcd", "ingress"),
        ("quorate-etcd", "egress"),
    ] {
        let find = |objects: &mut Vec<Value>, change: &dyn Fn(&mut Vec<Value>)| {
            let policy = objects
                .iter_mut()
                .find(|object| object["kind"] == "NetworkPolicy" && object["metadata"]["name"] == policy);
            change(policy.unwrap()["spec"][direction].as_array_mut().unwrap());
        };
        let mut closed = sound.clone();
        find(&mut closed, &|rules| drop(rules.pop()));
        assert_eq!(faults(&closed).len(), 1, "{policy}: {direction} closed");
        let mut open = sound.clone();
        let more = serde_json::json!({"ports": [{"protocol": "TCP", "port": 22}]});
        find(&mut open, &|rules| rules.push(more.clone()));
        assert_eq!(faults(&open).len(), 1, "{policy}: {direction} opened");
    }
}
