//! The rules of Kubernetes' restricted Pod Security profile, which the namespace of the controllers enforces.

use serde_json::{Value, json};

use super::kustomize::{Deploy, OVERLAYS, pod_specs};

/// The kinds of volumes that the profile admits, besides the one that stands for none.
const VOLUMES: [&str; 8] = [
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "persistentVolumeClaim",
    "projected",
    "secret",
];

/// The sysctls that the profile admits.
const SYSCTLS: [&str; 6] = [
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.ping_group_range",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.tcp_keepalive_time",
];

/// The types of SELinux that the profile admits.
const SELINUX: [&str; 3] = ["container_t", "container_init_t", "container_kvm_t"];

/// What of a pod the profile forbids.
fn violations(template: &Value) -> Vec<String> {
    let pod = &template["spec"];
    let mut found = Vec::new();
    for field in ["hostNetwork", "hostPID", "hostIPC"] {
        if pod[field] == true {
            found.push(field.to_owned());
        }
    }
    for volume in list(&pod["volumes"]) {
        let kinds = volume.as_object().into_iter().flatten().map(|(field, _)| field);
        for kind in kinds.filter(|field| *field != "name") {
            if !VOLUMES.contains(&kind.as_str()) {
                found.push(format!("volume {}: {kind}", volume["name"]));
            }
        }
    }
    for sysctl in list(&pod["securityContext"]["sysctls"]) {
        if !sysctl["name"]
            .as_str()
            .is_some_and(|name| SYSCTLS.contains(&name))
        {
            found.push(format!("sysctl {}", sysctl["name"]));
        }
    }
    let annotations = template["metadata"]["annotations"]
        .as_object()
        .into_iter()
        .flatten();
    for (name, value) in annotations {
        if name.starts_with("container.apparmor.security.beta.kubernetes.io/") && value == "unconfined" {
            found.push(name.clone());
        }
    }
    found.extend(context_violations("pod", &pod["securityContext"]));
    for field in ["initContainers", "containers", "ephemeralContainers"] {
        for container in list(&pod[field]) {
            found.extend(container_violations(&pod["securityContext"], container));
        }
    }
    found
}

/// What the profile forbids in a security context, of a pod or of a container.
fn context_violations(owner: &str, context: &Value) -> Vec<String> {
    let mut found = Vec::new();
    let mut forbid = |what: &str, forbidden: bool| {
        if forbidden {
            found.push(format!("{owner}: {what}"));
        }
    };
    forbid("runAsUser", context["runAsUser"] == 0);
    forbid("hostProcess", context["windowsOptions"]["hostProcess"] == true);
    let selinux = &context["seLinuxOptions"];
    for field in ["user", "role"] {
        forbid(
            field,
            selinux[field].as_str().is_some_and(|text| !text.is_empty()),
        );
    }
    forbid(
        "seLinux type",
        selinux["type"]
            .as_str()
            .is_some_and(|kind| !SELINUX.contains(&kind)),
    );
    forbid("appArmor", context["appArmorProfile"]["type"] == "Unconfined");
    found
}

fn container_violations(pod: &Value, container: &Value) -> Vec<String> {
    let name = format!("container {}", container["name"]);
    let context = &container["securityContext"];
    let mut found = context_violations(&name, context);
    let mut forbid = |what: &str, forbidden: bool| {
        if forbidden {
            found.push(format!("{name}: {what}"));
        }
    };
    // What a container leaves out, it has of its pod.
    let of = |field: &str| {
        if context[field].is_null() {
            &pod[field]
        } else {
            &context[field]
        }
    };
    forbid("runAsNonRoot", of("runAsNonRoot") != true);
    let seccomp = of("seccompProfile")["type"].as_str();
    forbid(
        "seccompProfile",
        !matches!(seccomp, Some("RuntimeDefault" | "Localhost")),
    );
    forbid("privileged", context["privileged"] == true);
    forbid(
        "allowPrivilegeEscalation",
        context["allowPrivilegeEscalation"] != false,
    );
    let drops = list(&context["capabilities"]["drop"]);
    forbid(
        "capabilities are not dropped",
        !drops.iter().any(|dropped| dropped == "ALL"),
    );
    let adds = list(&context["capabilities"]["add"]);
    forbid(
        "capabilities are added",
        adds.iter().any(|added| added != "NET_BIND_SERVICE"),
    );
    let proc_mount = &context["procMount"];
    forbid("procMount", !proc_mount.is_null() && proc_mount != "Default");
    let ports = list(&container["ports"]);
    forbid(
        "hostPort",
        ports
            .iter()
            .any(|port| port["hostPort"].as_u64().is_some_and(|port| port > 0)),
    );
    for probe in ["livenessProbe", "readinessProbe", "startupProbe"] {
        for kind in ["httpGet", "tcpSocket"] {
            forbid("the host of a probe", !container[probe][kind]["host"].is_null());
        }
    }
    found
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

#[test]
fn every_pod_meets_the_restricted_profile() {
    let deploy = Deploy::prepared();
    for overlay in OVERLAYS {
        let objects = deploy.objects(overlay);
        assert!(!pod_specs(&objects).is_empty(), "{overlay}");
        for object in objects
            .iter()
            .filter(|object| object["spec"]["template"].is_object())
        {
            let found = violations(&object["spec"]["template"]);
            assert!(
                found.is_empty(),
                "{overlay}: {}: {found:#?}",
                object["metadata"]["name"]
            );
        }
    }
}

/// The profile does not ask for it; a process that was taken over cannot change its own program.
#[test]
fn no_container_can_write_to_its_root() {
    let deploy = Deploy::prepared();
    for overlay in OVERLAYS {
        for (owner, pod) in pod_specs(&deploy.objects(overlay)) {
            for container in list(&pod["containers"]) {
                assert_eq!(
                    container["securityContext"]["readOnlyRootFilesystem"], true,
                    "{overlay}: {owner}"
                );
            }
        }
    }
}

#[test]
fn the_profile_finds_each_field_that_it_forbids() {
    let deploy = Deploy::prepared();
    let objects = deploy.objects("overlays/bundled-etcd");
    let deployment = objects
        .iter()
        .find(|object| object["kind"] == "Deployment")
        .unwrap();
    let sound = &deployment["spec"]["template"];
    assert_eq!(violations(sound), Vec::<String>::new());
    let spoilt = [
        ("/spec/hostNetwork", json!(true)),
        ("/spec/hostPID", json!(true)),
        ("/spec/hostIPC", json!(true)),
        ("/spec/securityContext/runAsNonRoot", json!(false)),
        ("/spec/securityContext/runAsUser", json!(0)),
        (
            "/spec/securityContext/seccompProfile",
            json!({"type": "Unconfined"}),
        ),
        (
            "/spec/securityContext/sysctls",
            json!([{"name": "kernel.msgmax", "value": "1"}]),
        ),
        ("/spec/securityContext/seLinuxOptions", json!({"type": "spc_t"})),
        (
            "/spec/volumes/0",
            json!({"name": "etcd-tls", "hostPath": {"path": "/"}}),
        ),
        (
            "/spec/initContainers",
            json!([{"name": "first", "image": "quorate"}]),
        ),
        ("/spec/containers/0/ports/0/hostPort", json!(8080)),
        ("/spec/containers/0/securityContext/privileged", json!(true)),
        ("/spec/containers/0/securityContext/runAsUser", json!(0)),
        ("/spec/containers/0/securityContext/runAsNonRoot", json!(false)),
        ("/spec/containers/0/securityContext/procMount", json!("Unmasked")),
        (
            "/spec/containers/0/securityContext/allowPrivilegeEscalation",
            json!(null),
        ),
        (
            "/spec/containers/0/securityContext/capabilities",
            json!({"drop": ["NET_RAW"]}),
        ),
        (
            "/spec/containers/0/securityContext/capabilities",
            json!({"drop": ["ALL"], "add": ["SYS_ADMIN"]}),
        ),
        (
            "/spec/containers/0/securityContext/appArmorProfile",
            json!({"type": "Unconfined"}),
        ),
        ("/spec/containers/0/livenessProbe/httpGet/host", json!("10.0.0.1")),
    ];
    for (pointer, value) in spoilt {
        let mut template = sound.clone();
        let (parent, field) = pointer.rsplit_once('/').unwrap();
        match template.pointer_mut(parent).unwrap() {
            Value::Array(list) => list[field.parse::<usize>().unwrap()] = value,
            parent => parent[field] = value,
        }
        assert!(!violations(&template).is_empty(), "{pointer} was not found");
    }
}
