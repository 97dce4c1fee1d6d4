//! The shipped Deployment: its containers as processes on this machine, with their environment, on the bundled etcd, with
//! a token of the shipped ServiceAccount and only the shipped permissions.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::Secret;
use quorate_dev::process::{Program, Supervised};
use quorate_dev::{http, ports, workspace};
use serde_json::{Value, json};

use super::apiserver::apply;
use super::audit::{Audit, Request};
use super::bundled_etcd::BundledEtcd;
use super::kustomize::Deploy;
use crate::support::kubernetes::Kubernetes;
use crate::support::quorate::binary;
use crate::support::wait::{SOON, eventually, same};

/// Everything that the shipped Deployment needs, but not its pods.
pub struct Cluster {
    pub deploy: Deploy,
    objects: Vec<Value>,
    pub etcd: BundledEtcd,
    audit: Audit,
    pub kubernetes: Kubernetes,
    kubeconfig: PathBuf,
    /// The folder that holds the volumes of the Deployment.
    mounts: PathBuf,
}

impl Cluster {
    pub async fn start(deploy: Deploy) -> Self {
        let (audit, kubernetes) = Audit::of("system:serviceaccount:quorate-system:quorate").await;
        apply(&kubernetes, &deploy, "overlays/bundled-etcd").await;
        let objects = deploy.objects("overlays/bundled-etcd");
        let etcd = BundledEtcd::start(&deploy, &objects).await;
        let kubeconfig = kubernetes
            .service_account_kubeconfig("quorate-system", "quorate")
            .await;
        let mounts = deploy.folder("mounts");
        for volume in deployment(&objects)["spec"]["template"]["spec"]["volumes"]
            .as_array()
            .unwrap()
        {
            let directory = mounts.join(volume["name"].as_str().unwrap());
            mount(&objects, volume, &directory);
        }
        Self {
            deploy,
            objects,
            etcd,
            audit,
            kubernetes,
            kubeconfig,
            mounts,
        }
    }

    /// The environment of the container, with the files and addresses of this machine.
    fn environment(&self, pod: &str, port: u16) -> BTreeMap<String, String> {
        let container = &deployment(&self.objects)["spec"]["template"]["spec"]["containers"][0];
        let mut environment = BTreeMap::new();
        let settings = find(
            &self.objects,
            "ConfigMap",
            &container["envFrom"][0]["configMapRef"]["name"],
        );
        for (name, value) in settings["data"].as_object().unwrap() {
            environment.insert(name.clone(), value.as_str().unwrap().to_owned());
        }
        for entry in container["env"].as_array().unwrap() {
            let value = match entry["valueFrom"]["fieldRef"]["fieldPath"].as_str() {
                Some("metadata.name") => pod.to_owned(),
                Some("metadata.namespace") => "quorate-system".to_owned(),
                Some("metadata.uid") => format!("uid-of-{pod}"),
                Some("status.podIP") => "127.0.0.1".to_owned(),
                Some(other) => panic!("this test does not know {other}"),
                None => entry["value"].as_str().unwrap().replace("$(POD_NAME)", pod),
            };
            environment.insert(entry["name"].as_str().unwrap().to_owned(), value);
        }
        for value in environment.values_mut() {
            *value = value
                .replace("/etc/quorate", &self.mounts.display().to_string())
                .replace("0.0.0.0:8080", &format!("127.0.0.1:{port}"));
            if value.contains("quorate-etcd-0") {
                *value = self.etcd.with_client_addresses(value);
            }
        }
        // Replaces the token and the address that Kubernetes mounts into a pod.
        environment.insert(
            "QUORATE_KUBECONFIG".to_owned(),
            self.kubeconfig.display().to_string(),
        );
        environment
    }

    /// Starts the container of a pod with `settings` added to the shipped ones, and waits until its probes succeed.
    pub async fn start_pod(&self, pod: &str, settings: &[(&str, &Path)]) -> Pod {
        let port = ports::free_port().unwrap();
        let container = &deployment(&self.objects)["spec"]["template"]["spec"]["containers"][0];
        let mut env: Vec<(String, OsString)> = self
            .environment(pod, port)
            .into_iter()
            .map(|(name, value)| (name, value.into()))
            .collect();
        env.extend(
            settings
                .iter()
                .map(|(name, value)| ((*name).to_owned(), value.as_os_str().to_owned())),
        );
        let program = Program {
            name: pod.to_owned(),
            path: binary(),
            args: container["args"]
                .as_array()
                .unwrap()
                .iter()
                .map(|arg| arg.as_str().unwrap().into())
                .collect(),
            env,
            hidden_env: "QUORATE_",
            log: self.deploy.folder(&format!("{pod}.log")),
        };
        let mut pod = Pod {
            process: program.start().unwrap(),
            port,
        };
        for probe in ["startupProbe", "livenessProbe", "readinessProbe"] {
            pod.expect_page(container[probe]["httpGet"]["path"].as_str().unwrap())
                .await;
        }
        pod
    }

    /// Waits until there is an Event about this pod.
    async fn wait_for_event_about(&self, pod: &str) {
        eventually(SOON, "there is an Event about the pod", async || {
            let path = "/apis/events.k8s.io/v1/namespaces/quorate-system/events";
            let events = self.kubernetes.get(path).await.unwrap();
            let mut items = events["items"].as_array().into_iter().flatten();
            match items.any(|event| event["regarding"]["name"] == pod) {
                true => Ok(()),
                false => Err(events.to_string()),
            }
        })
        .await;
    }

    /// The objects of the built-in bundle in the cluster, by resource and name.
    async fn kept(&self) -> BTreeMap<(String, String), Value> {
        let mut kept = BTreeMap::new();
        for resource in [
            "rbac.authorization.k8s.io/v1/clusterroles",
            "rbac.authorization.k8s.io/v1/clusterrolebindings",
            "storage.k8s.io/v1/storageclasses",
            "storage.k8s.io/v1/csidrivers",
            "node.k8s.io/v1/runtimeclasses",
        ] {
            let list = self
                .kubernetes
                .get(&format!("/apis/{resource}?labelSelector=quorate.dev/bundle"))
                .await
                .unwrap();
            for object in list["items"].as_array().unwrap() {
                let name = object["metadata"]["name"].as_str().unwrap();
                kept.insert((resource.to_owned(), name.to_owned()), object.clone());
            }
        }
        kept
    }

    /// Deletes the objects of the built-in bundle, and waits until the controller has restored them.
    pub async fn expect_restored(&self) {
        let built_in = self.kept().await;
        assert_eq!(built_in.len(), 11, "{:?}", built_in.keys());
        for (resource, name) in built_in.keys() {
            let path = format!("/apis/{resource}/{name}");
            self.kubernetes.send("DELETE", &path, &json!({})).await;
        }
        eventually(SOON, "everything is there again", async || {
            let kept = self.kept().await;
            match kept.keys().eq(built_in.keys()) {
                true => Ok(()),
                false => Err(format!("{:?}", kept.keys())),
            }
        })
        .await;
    }
}

pub struct Pod {
    process: Supervised,
    port: u16,
}

impl Pod {
    pub async fn expect_page(&mut self, path: &str) {
        let port = self.port;
        let ask = || async move {
            match http::get(port, path).await {
                Ok(response) if response.status == 200 => Ok(()),
                Ok(response) => Err(format!("{path}: {} {}", response.status, response.body)),
                Err(error) => Err(format!("{path}: {error}")),
            }
        };
        let answered = self.process.wait_until(SOON, ask).await;
        answered.unwrap_or_else(|error| panic!("{error}"));
    }

    pub async fn stop(mut self) {
        let status = self.process.stop(SOON).await.unwrap();
        assert!(status.success(), "{status}");
    }
}

fn find<'a>(objects: &'a [Value], kind: &str, name: &Value) -> &'a Value {
    objects
        .iter()
        .find(|object| object["kind"] == kind && object["metadata"]["name"] == *name)
        .unwrap_or_else(|| panic!("no {kind} {name}"))
}

fn deployment(objects: &[Value]) -> &Value {
    find(objects, "Deployment", &"quorate".into())
}

/// Writes the files of a Secret or ConfigMap as the kubelet does: as links into a hidden folder.
fn mount(objects: &[Value], volume: &Value, directory: &Path) {
    let mut files: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    if let Some(name) = volume.pointer("/secret/secretName") {
        let exists = |object: &Value| object["kind"] == "Secret" && object["metadata"]["name"] == *name;
        if volume["secret"]["optional"] == true && !objects.iter().any(exists) {
            return;
        }
        let secret: Secret = serde_json::from_value(find(objects, "Secret", name).clone()).unwrap();
        files.extend(
            secret
                .data
                .unwrap()
                .into_iter()
                .map(|(file, content)| (file, content.0)),
        );
    } else {
        let source = &volume["configMap"];
        let is_it =
            |object: &&Value| object["kind"] == "ConfigMap" && object["metadata"]["name"] == source["name"];
        let Some(map) = objects.iter().find(is_it) else {
            assert_eq!(source["optional"], true, "no ConfigMap {}", source["name"]);
            return;
        };
        let data = map["data"].as_object().unwrap();
        files.extend(
            data.iter()
                .map(|(file, text)| (file.clone(), text.as_str().unwrap().into())),
        );
    }
    let hidden = directory.join("..data");
    fs::create_dir_all(&hidden).unwrap();
    for (file, content) in files {
        fs::write(hidden.join(&file), content).unwrap();
        symlink(Path::new("..data").join(&file), directory.join(&file)).unwrap();
    }
}

/// A next release of the built-in bundle: it drops a file, and changes immutable fields of two objects. No replica of the
/// present release may serve once it has reconciled.
fn next_release(directory: &Path) {
    let builtin = workspace::root().join("src/resources/builtin");
    fs::create_dir(directory).unwrap();
    let description =
        "name: builtin\nrelease: 99.0.0\nminReconcilerRelease: 0.1.0\nminApiserverRelease: 99.0.0\n";
    fs::write(directory.join("bundle.yaml"), description).unwrap();
    for (file, old, new) in [
        (
            "network-services.yaml",
            "  kind: ClusterRole\n  name: quorate:network-services",
            "  kind: ClusterRole\n  name: quorate:csi-provisioner",
        ),
        ("rbac.yaml", "", ""),
        (
            "storage.yaml",
            "provisioner: csi.quorate.dev",
            "provisioner: csi.quorate.dev\nparameters: {tier: fast}",
        ),
    ] {
        let text = fs::read_to_string(builtin.join(file)).unwrap();
        assert!(text.contains(old), "{file} no longer holds {old:?}");
        fs::write(directory.join(file), text.replace(old, new)).unwrap();
    }
}

#[track_caller]
fn expect_none_refused(requests: &[Request]) {
    assert!(!requests.is_empty(), "the audit log is empty");
    let refused: Vec<_> = requests
        .iter()
        .filter(|request| [401, 403].contains(&request.code))
        .collect();
    assert!(refused.is_empty(), "{refused:#?}");
}

#[tokio::test]
async fn under_the_shipped_permissions_every_call_of_the_controllers_succeeds() {
    let cluster = Cluster::start(Deploy::prepared()).await;
    let mut first = cluster.start_pod("quorate-0", &[]).await;
    first.expect_page("/leaderz").await;
    cluster.expect_restored().await;

    // The next release waits until the last replica of this one is gone, and reports it in an Event.
    let bundle = cluster.deploy.folder("next-release");
    next_release(&bundle);
    let mut second = cluster
        .start_pod("quorate-1", &[("QUORATE_BUNDLE", &bundle)])
        .await;
    second.expect_page("/leaderz").await;
    cluster.wait_for_event_about("quorate-1").await;
    first.stop().await;

    // Then it prunes the runtime classes and recreates two objects.
    wait_for_next_release(&cluster).await;
    second.stop().await;
    cluster.etcd.stop().await;

    let requests = cluster.audit.requests();
    expect_none_refused(&requests);
    for (verb, target) in [
        ("list", "clusterroles"),
        ("watch", "clusterroles"),
        ("patch", "clusterroles"),
        ("delete", "runtimeclasses"),
        ("delete", "clusterrolebindings"),
        ("create", "events"),
    ] {
        assert!(
            requests
                .iter()
                .any(|request| request.verb == verb && request.target == target),
            "no {verb} of {target} among {requests:#?}"
        );
    }
}

/// Waits until the bundle of [`next_release`] is in place.
async fn wait_for_next_release(cluster: &Cluster) {
    eventually(SOON, "the next release is in place", async || {
        let kept = cluster.kept().await;
        let seen = |resource: &str, name: &str, pointer: &str| {
            let object = kept.get(&(resource.to_owned(), name.to_owned()));
            object.and_then(|object| object.pointer(pointer)?.as_str())
        };
        let seen = (
            seen(
                "rbac.authorization.k8s.io/v1/clusterrolebindings",
                "quorate:network-services",
                "/roleRef/name",
            ),
            seen(
                "storage.k8s.io/v1/storageclasses",
                "quorate-local",
                "/parameters/tier",
            ),
            kept.len(),
        );
        same(seen, (Some("quorate:csi-provisioner"), Some("fast"), 9)).map(drop)
    })
    .await;
}

#[tokio::test]
async fn a_bundle_from_a_configmap_is_kept_in_place_under_the_permissions_printed_for_it() {
    let deploy = Deploy::prepared();
    deploy.choose_the_example_bundle("overlays/bundled-etcd");
    let cluster = Cluster::start(deploy).await;
    let mut pod = cluster.start_pod("quorate-0", &[]).await;
    pod.expect_page("/leaderz").await;
    for path in [
        "/api/v1/namespaces/team-blue",
        "/api/v1/namespaces/team-blue/resourcequotas/share",
        "/apis/rbac.authorization.k8s.io/v1/namespaces/team-blue/rolebindings/developers",
        "/apis/scheduling.k8s.io/v1/priorityclasses/batch",
    ] {
        let object = cluster.kubernetes.get(path).await;
        let object = object.unwrap_or_else(|| panic!("{path} is missing"));
        assert_eq!(
            object["metadata"]["labels"]["quorate.dev/bundle"], "example",
            "{path}"
        );
    }
    assert!(
        cluster.kept().await.is_empty(),
        "the built-in bundle is not in use"
    );
    pod.stop().await;
    cluster.etcd.stop().await;
    expect_none_refused(&cluster.audit.requests());
}
