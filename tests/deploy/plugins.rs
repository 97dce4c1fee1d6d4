//! The two ways to deploy a CSI plugin: the Plugin object for Quorate matches the manifests for Kubernetes.

use quorate::csi::Endpoint;
use serde_json::Value;

use super::kustomize::{Deploy, pod_specs};
use crate::support::etcd::TestEtcd;
use crate::support::quorate::quorate_on;

/// Kubernetes mounts the service account's token here into every container that mounts nothing here itself.
const TOKEN: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// The endpoint in the Plugin object of a folder.
fn endpoint(deploy: &Deploy, folder: &str) -> Endpoint {
    let text = std::fs::read_to_string(deploy.folder(folder).join("plugin-object.yaml")).unwrap();
    let object: Value = serde_saphyr::from_str(&text).unwrap();
    object["spec"]["endpoint"].as_str().unwrap().parse().unwrap()
}

#[tokio::test]
async fn quorate_accepts_the_plugin_objects_as_they_are() {
    let etcd = TestEtcd::start().await;
    let deploy = Deploy::prepared();
    for (folder, outcome) in [("plugins/sidecar", "created"), ("plugins/over-tcp", "configured")] {
        let file = deploy.folder(folder).join("plugin-object.yaml");
        let applied = quorate_on(&etcd, &["apply", "-f", file.to_str().unwrap()], "").await;
        assert_eq!(
            applied.expect_done(),
            format!("plugin/plugin.csi.example.com {outcome}\n"),
            "{folder}"
        );
    }
}

fn named<'a>(list: &'a Value, name: &str) -> &'a Value {
    let list = list.as_array().unwrap();
    let found = list.iter().find(|entry| entry["name"] == name);
    found.unwrap_or_else(|| panic!("{name} is not among {list:?}"))
}

fn object<'a>(objects: &'a [Value], kind: &str, name: &str) -> &'a Value {
    let mut found = objects.iter().filter(|object| object["kind"] == kind);
    found
        .find(|object| object["metadata"]["name"] == name)
        .unwrap_or_else(|| panic!("there is no {kind} {name}"))
}

#[test]
fn a_sidecar_plugin_shares_the_directory_of_its_socket_with_the_replica() {
    let deploy = Deploy::prepared();
    let objects = deploy.objects("plugins/sidecar");
    let Endpoint::Unix(socket) = endpoint(&deploy, "plugins/sidecar") else {
        panic!("the endpoint is not a unix socket");
    };
    let pods = pod_specs(&objects);
    let [(_, pod)] = &pods[..] else {
        panic!("{} pods", pods.len());
    };
    let mut shared = Vec::new();
    for container in ["quorate", "csi-plugin"] {
        let mounts = named(&pod["containers"], container)["volumeMounts"]
            .as_array()
            .unwrap();
        let mount = mounts
            .iter()
            .find(|mount| socket.parent().unwrap().to_str() == mount["mountPath"].as_str());
        let mount = mount.unwrap_or_else(|| panic!("{container} does not mount {}", socket.display()));
        assert_eq!(
            mount["readOnly"],
            Value::Null,
            "{container}: a socket is connected to by writing"
        );
        shared.push(mount["name"].as_str().unwrap());
    }
    assert_eq!(shared[0], shared[1]);
    assert!(named(&pod["volumes"], shared[0])["emptyDir"].is_object());
    let listens = named(&named(&pod["containers"], "csi-plugin")["env"], "CSI_ENDPOINT");
    assert_eq!(listens["value"], format!("unix://{}", socket.display()));
    let mounts = named(&pod["containers"], "csi-plugin")["volumeMounts"]
        .as_array()
        .unwrap();
    let token = mounts.iter().find(|mount| mount["mountPath"] == TOKEN);
    let instead = token
        .expect("the plugin container mounts nothing over the token of Quorate's service account")["name"]
        .as_str();
    assert!(named(&pod["volumes"], instead.unwrap())["emptyDir"].is_object());
    // The patch keeps the fields of the base.
    let quorate = named(&pod["containers"], "quorate");
    assert_eq!(quorate["volumeMounts"].as_array().unwrap().len(), 3);
    assert!(quorate["readinessProbe"].is_object());
}

#[test]
fn a_plugin_over_tcp_has_a_service_and_admits_only_the_replicas() {
    let deploy = Deploy::prepared();
    let objects = deploy.objects("plugins/over-tcp");
    let Endpoint::Tcp(uri) = endpoint(&deploy, "plugins/over-tcp") else {
        panic!("the endpoint is not a URL");
    };
    let service = object(&objects, "Service", "quorate-csi-plugin");
    let name = format!(
        "{}.{}.svc",
        service["metadata"]["name"].as_str().unwrap(),
        service["metadata"]["namespace"].as_str().unwrap()
    );
    assert_eq!(uri.host(), Some(name.as_str()));
    let port = &service["spec"]["ports"][0];
    assert_eq!(port["port"], uri.port_u16().unwrap());

    let plugin = object(&objects, "Deployment", "quorate-csi-plugin");
    let labels = &plugin["spec"]["template"]["metadata"]["labels"];
    assert_eq!(&service["spec"]["selector"], labels);
    let container = &plugin["spec"]["template"]["spec"]["containers"][0];
    assert_eq!(container["ports"][0]["name"], port["targetPort"]);
    let listens = named(&container["env"], "CSI_ENDPOINT")["value"]
        .as_str()
        .unwrap();
    assert!(
        listens.ends_with(&format!(":{}", container["ports"][0]["containerPort"])),
        "{listens}"
    );

    let controllers = &object(&objects, "Deployment", "quorate")["spec"]["template"]["metadata"]["labels"];
    let inward = &object(&objects, "NetworkPolicy", "quorate-csi-plugin")["spec"];
    assert_eq!(&inward["podSelector"]["matchLabels"], labels);
    let ingress = inward["ingress"].as_array().unwrap();
    assert_eq!(ingress.len(), 1);
    assert_eq!(ingress[0]["from"].as_array().unwrap().len(), 1);
    assert_eq!(&ingress[0]["from"][0]["podSelector"]["matchLabels"], controllers);
    assert_eq!(ingress[0]["ports"][0]["port"], port["targetPort"]);
    let outward = &object(&objects, "NetworkPolicy", "quorate-to-csi-plugin")["spec"];
    assert_eq!(&outward["podSelector"]["matchLabels"], controllers);
    assert_eq!(
        &outward["egress"][0]["to"][0]["podSelector"]["matchLabels"],
        labels
    );
}
