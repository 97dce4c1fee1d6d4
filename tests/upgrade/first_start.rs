//! A first start: three replicas with the built-in bundle, and everything that shows it.

use std::collections::BTreeSet;
use std::process::Stdio;

use quorate::release::own_version;
use quorate::resources::Bundle;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::Cluster;
use crate::support::quorate::{binary, quorate, status_json};
use crate::support::wait::{SOON, eventually, same};

/// A command that runs on, and the lines that it prints.
struct Following {
    _process: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Following {
    fn start(mut command: Command) -> Self {
        let mut process = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        Self {
            _process: process,
            lines,
        }
    }

    async fn next(&mut self) -> String {
        let line = timeout(SOON, self.lines.next_line()).await;
        let line = line.expect("the command prints another line").unwrap();
        line.expect("the command runs on")
    }

    /// Reads up to a line for which `wanted` holds, and returns that line.
    async fn until(&mut self, wanted: impl Fn(&str) -> bool) -> String {
        loop {
            let line = self.next().await;
            if wanted(&line) {
                return line;
            }
        }
    }
}

/// Decodes bytes with protoc, which does not know the message.
async fn decoded(bytes: &[u8]) -> String {
    let mut protoc = Command::new("protoc")
        .arg("--decode_raw")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("protoc is installed (Debian package protobuf-compiler)");
    protoc.stdin.take().unwrap().write_all(bytes).await.unwrap();
    let output = protoc.wait_with_output().await.unwrap();
    assert!(output.status.success(), "protoc: {}", output.status);
    String::from_utf8(output.stdout).unwrap()
}

/// The objects of the built-in bundle that the API server holds, as `kind/name`.
async fn objects_in_place(cluster: &Cluster) -> BTreeSet<String> {
    let kubeconfig = cluster.kubernetes.kubeconfig();
    let kinds = "clusterroles,clusterrolebindings,storageclasses,csidrivers,runtimeclasses";
    let output = Command::new("kubectl")
        .arg("--kubeconfig")
        .arg(kubeconfig)
        .args(["get", kinds, "-l", "quorate.dev/bundle", "-o", "json"])
        .arg("--show-managed-fields")
        .output()
        .await
        .expect("kubectl is installed (Debian package kubernetes-client)");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let list: Value = serde_json::from_slice(&output.stdout).unwrap();
    let objects = list["items"].as_array().unwrap();
    objects
        .iter()
        .map(|object| {
            let managers = object["metadata"]["managedFields"].to_string();
            assert!(managers.contains("\"manager\":\"quorate\""), "{object}");
            format!(
                "{}/{}",
                object["kind"].as_str().unwrap(),
                object["metadata"]["name"].as_str().unwrap()
            )
        })
        .collect()
}

#[tokio::test]
async fn a_first_start_puts_the_built_in_bundle_in_place_and_successors_keep_it() {
    let cluster = Cluster::start().await;
    let etcd = cluster.etcd();
    let quorate_deployment = cluster.deployment("quorate");
    let endpoints = format!("--etcd-endpoints={}", etcd.endpoints_flag());
    let release = own_version();

    // Before the first replica: an init container that waits, and an operator who watches.
    let shown = quorate_deployment.shown().await;
    assert!(
        shown.contains("none yet: nothing is reconciled, no replica is admitted"),
        "{shown}"
    );
    let mut initializing = JoinSet::new();
    let waiting = [
        "wait-ready".to_owned(),
        "--timeout=1m".to_owned(),
        endpoints.clone(),
    ];
    initializing.spawn(async move { quorate(waiting).await });
    let mut watching = Command::new(binary());
    watching.args(["status", "--watch", "-o", "json", &endpoints]);
    let mut watching = Following::start(watching);
    let first: Value = serde_json::from_str(&watching.next().await).unwrap();
    assert_eq!((&first["status"], &first["leader"]), (&Value::Null, &Value::Null));

    let mut replicas = quorate_deployment
        .launch_with_short_leases()
        .start_all(&["r1", "r2", "r3"]);
    for replica in &mut replicas.0 {
        replica.wait_ready().await;
    }
    let (leader, _) = replicas.leader().await;
    let name = replicas.0[leader].node_id.clone();

    let waited = initializing.join_next().await.unwrap().unwrap().expect_done();
    let reasons: Vec<&str> = waited.lines().collect();
    assert_eq!(
        reasons,
        [
            "waiting: there is no reconciler status yet".to_owned(),
            format!("ready: the reconciled state admits release {}", release.release),
        ]
    );
    let complete = |line: &str| {
        let shown: Value = serde_json::from_str(line).unwrap();
        shown["status"]["state"] == "DONE" && shown["replicas"].as_array().unwrap().len() == 3
    };
    let shown: Value = serde_json::from_str(&watching.until(complete).await).unwrap();
    assert_eq!(shown["leader"]["name"], name, "{shown}");
    assert_eq!(shown["status"]["version"], release.to_string(), "{shown}");

    // status.json, as etcdctl shows it.
    let json = status_json(etcd, "/quorate").unwrap();
    assert_eq!(json["state"], "DONE");
    assert_eq!(json["version"], release.to_string());
    assert_eq!(json["minimumCompatibleRelease"], "0.1.0");
    assert_eq!(json["leader"], name);
    assert!(json["degraded"].is_null());
    let text = etcd.get("/quorate/kubernetes/reconciler/status.json").unwrap();
    assert!(
        text.starts_with("{\n  \"state\": \"DONE\",\n  \"version\": "),
        "{text}"
    );

    // The status, as another implementation decodes it: state DONE, the release, the minimum.
    let (stored, _) = cluster
        .client
        .get(&quorate_deployment.store().keys.status())
        .await
        .unwrap();
    let raw = decoded(&stored.unwrap().value).await;
    assert!(raw.starts_with("1: 1\n2 {\n  1 {\n"), "{raw}");
    assert!(
        raw.ends_with("3 {\n  1: 0\n  2: 1\n}\n") || raw.ends_with("3 {\n  2: 1\n}\n"),
        "{raw}"
    );

    // Every object of the bundle, and no other.
    let manifests = Bundle::builtin().manifests;
    let wanted: BTreeSet<String> = manifests
        .iter()
        .map(|manifest| format!("{}/{}", manifest.object.kind, manifest.object.name))
        .collect();
    assert!(wanted.len() > 5, "{wanted:?}");
    assert_eq!(objects_in_place(&cluster).await, wanted);
    let shown = quorate_deployment.shown().await;
    let total = wanted.len();
    assert!(shown.contains(&format!("{total}/{total} applied")), "{shown}");
    assert!(
        shown.contains(&format!("{name} (term {})", json["term"])),
        "{shown}"
    );

    // etcdctl shows the leader. Then it stops, and its successor is killed; each time the next leader corrects drift.
    let mut listening = Command::new("etcdctl");
    listening
        .env("ETCDCTL_API", "3")
        .arg(format!("--endpoints={}", etcd.endpoints_flag()))
        .args(["elect", "--listen", "/quorate/kubernetes/reconciler/leader"]);
    let mut listening = Following::start(listening);
    listening.until(|line| line == name).await;
    let drift = "/apis/storage.k8s.io/v1/csidrivers";
    let driver = manifests
        .iter()
        .find(|manifest| manifest.object.kind == "CSIDriver")
        .unwrap();
    let path = format!("{drift}/{}", driver.object.name);
    let mut before = leader;
    for gracefully in [true, false] {
        match gracefully {
            true => drop(replicas.0[before].stop().await.unwrap()),
            false => drop(replicas.0[before].kill().await.unwrap()),
        }
        let (after, _) = replicas.leader().await;
        let name = replicas.0[after].node_id.clone();
        listening.until(|line| line == name).await;
        eventually(SOON, "the status names the new leader", async || {
            same(
                status_json(etcd, "/quorate").unwrap()["leader"].clone(),
                Value::from(name.as_str()),
            )
        })
        .await;
        let uid = cluster.kubernetes.get(&path).await.unwrap()["metadata"]["uid"].clone();
        let gone = cluster.kubernetes.request("DELETE", &path, None).await.unwrap();
        assert_eq!(gone.status, 200, "{}", gone.body);
        eventually(SOON, "the driver is created again", async || {
            match cluster.kubernetes.get(&path).await {
                Some(object) if object["metadata"]["uid"] != uid => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await;
        replicas.0[before].launch().unwrap();
        replicas.0[before].wait_ready().await;
        before = after;
    }
    assert_eq!(
        quorate_deployment.status_line().await,
        format!("DONE by {release}, minimum compatible release 0.1.0")
    );
}
