//! What is wrong with Kubernetes.

use std::path::{Path, PathBuf};
use std::time::Duration;

use quorate_dev::apiserver::User;
use rustix::process::Signal;
use serde_json::Value;

use super::{Call, FAULTS, WARNINGS, sound_etcd};
use crate::support::kubernetes::Kubernetes;
use crate::support::quorate::Launch;
use crate::support::wait::{SOON, eventually, same};
use crate::upgrade::bundles::Release;

/// Writes a bundle with these ConfigMaps.
fn bundle(directory: &Path, release: &str, names: &[&str]) -> PathBuf {
    let directory = directory.join(release);
    std::fs::create_dir(&directory).unwrap();
    let description =
        format!("name: web\nrelease: {release}\nminReconcilerRelease: 0.1.0\nminApiserverRelease: 0.1.0\n");
    std::fs::write(directory.join("bundle.yaml"), description).unwrap();
    let map = |name: &&str| {
        format!(
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}, namespace: default, annotations: \
             {{quorate.dev/prune: \"false\"}}}}\n---\n"
        )
    };
    let manifests: String = names.iter().map(map).collect();
    std::fs::write(directory.join("maps.yaml"), manifests).unwrap();
    directory
}

/// Waits until doctor has at most a note, that the API server is older than the manifests need: the one of these tests is of 1.20
/// where none is given.
async fn finds_nothing_but_an_old_server(call: &Call, kubernetes: &Kubernetes) {
    let version = kubernetes.get("/version").await.unwrap();
    let minor = version["minor"].as_str().unwrap().trim_end_matches('+');
    let is_old = minor.parse::<u32>().unwrap() < 27;
    eventually(SOON, "doctor finds at most an old API server", async || {
        let said = call.run().await;
        let reasons = said.findings().iter().map(|found| found["reason"].clone());
        let reasons: Vec<Value> = reasons.collect();
        let expected: Vec<Value> = is_old
            .then(|| Value::from("KubernetesRelease"))
            .into_iter()
            .collect();
        same((said.code, reasons), (0, expected)).map_err(|seen| format!("{seen}: {said:?}"))
    })
    .await;
}

#[tokio::test]
async fn missing_permissions_leftovers_and_an_api_server_that_hangs_or_is_gone_are_named() {
    let viewer = User {
        name: "viewer".to_owned(),
        groups: Vec::new(),
        token: "viewers-token".to_owned(),
    };
    let kubernetes = Kubernetes::with(vec![viewer], &[]).await;
    let etcd = sound_etcd(1, &[]).await;
    let before = bundle(kubernetes.directory(), "1.0.0", &["a", "b"]);
    let after = bundle(kubernetes.directory(), "1.0.1", &["a"]);
    let launch = |bundle: &Path| {
        Launch::on(&etcd)
            .kubeconfig(kubernetes.kubeconfig())
            .bundle(bundle)
    };
    let call = |bundle: &Path, kubeconfig: &Path| {
        let call = Call::on(&etcd).without("--no-kubernetes");
        let call = call.with(format!("--bundle={}", bundle.display()));
        call.with(format!("--kubeconfig={}", kubeconfig.display()))
    };
    let mut replica = launch(&before).start("r1");
    replica.wait_ready().await;
    let sound = call(&before, &kubernetes.kubeconfig());
    finds_nothing_but_an_old_server(&sound, &kubernetes).await;

    let kubeconfig = kubernetes.write_kubeconfig("viewer", "viewers-token").unwrap();
    let refused = call(&before, &kubeconfig)
        .names_first("KubernetesRights", "API server")
        .await;
    assert_eq!(refused.code, FAULTS);
    assert!(
        refused
            .what()
            .contains("patch configmaps \"a\" in namespace default"),
        "{refused:?}"
    );
    let broken = kubernetes.directory().join("broken.kubeconfig");
    std::fs::write(&broken, "][").unwrap();
    call(&before, &broken)
        .names_first("KubernetesUnreachable", "API server")
        .await;
    finds_nothing_but_an_old_server(&sound, &kubernetes).await;

    replica.stop().await.unwrap();
    let mut replica = launch(&after).start("r1");
    replica.wait_ready().await;
    let left = call(&after, &kubernetes.kubeconfig())
        .names_first("InventoryLeft", "default/b")
        .await;
    assert_eq!(left.code, WARNINGS);

    kubernetes.signal(Signal::STOP);
    let hangs = sound.names_first("KubernetesUnreachable", "API server").await;
    assert_eq!(hangs.code, FAULTS);
    assert!(hangs.took < Duration::from_secs(20), "{:?}", hangs.took);
    kubernetes.signal(Signal::CONT);
}

#[tokio::test]
async fn an_upgrade_that_waits_for_an_older_replica_is_named_with_that_replica() {
    let kubernetes = Kubernetes::start().await;
    let etcd = sound_etcd(1, &[]).await;
    let launch = Launch::on(&etcd)
        .kubeconfig(kubernetes.kubeconfig())
        .flag("--lease-ttl=30")
        .flag("--settle-ms=200")
        .flag("--pass-interval-ms=1000");
    let first = Release::of("shop", "1.0.0", "1.0.0", "1.0.0");
    let second = Release::of("shop", "2.0.0", "1.0.0", "1.1.0");
    let mut old = launch.clone().bundle(first.bundle()).start("old");
    old.wait_ready().await;
    let call = Call::on(&etcd)
        .without("--no-kubernetes")
        .with(format!("--kubeconfig={}", kubernetes.kubeconfig().display()))
        .with(format!("--bundle={}", second.bundle().display()));
    finds_nothing_but_an_old_server(&call, &kubernetes).await;
    let mut new = launch.bundle(second.bundle()).start("new");
    new.wait_leading().await;
    let waits = call.names_first("Degraded", "leader").await;
    assert_eq!(waits.code, FAULTS);
    assert!(
        waits.what().contains("WaitingForNodes") && waits.what().contains("node old at 1.0.0"),
        "{waits:?}"
    );
    old.stop().await.unwrap();
    finds_nothing_but_an_old_server(&call, &kubernetes).await;
}
