//! The manifests in a real kube-apiserver.

use std::process::Command;

use serde_json::Value;

use super::kustomize::{Deploy, OVERLAYS, name_of, run};
use crate::support::kubernetes::Kubernetes;

/// Applies the objects of an overlay. Returns the objects applied, and those whose kind this server does not serve.
pub async fn apply(kubernetes: &Kubernetes, deploy: &Deploy, overlay: &str) -> (Vec<Value>, Vec<Value>) {
    let versions = kubernetes.get("/apis").await.unwrap().to_string();
    let (served, unserved): (Vec<Value>, Vec<Value>) =
        deploy.objects(overlay).into_iter().partition(|object| {
            let version = object["apiVersion"].as_str().unwrap();
            version == "v1" || versions.contains(&format!("\"{version}\""))
        });
    let list = serde_json::json!({"apiVersion": "v1", "kind": "List", "items": served});
    let file = kubernetes.directory().join("list.json");
    std::fs::write(&file, list.to_string()).unwrap();
    run(Command::new("kubectl")
        .arg("--kubeconfig")
        .arg(kubernetes.kubeconfig())
        .args(["apply", "--server-side", "-f"])
        .arg(file));
    (served, unserved)
}

async fn expect_applied(kubernetes: &Kubernetes, overlay: &str) {
    let deploy = Deploy::prepared();
    let (served, unserved) = apply(kubernetes, &deploy, overlay).await;
    assert!(served.len() > 5, "{overlay}: {served:?}");
    for object in &served {
        let name = name_of(object);
        let kind = object["kind"].as_str().unwrap();
        let out = run(Command::new("kubectl")
            .arg("--kubeconfig")
            .arg(kubernetes.kubeconfig())
            .args(["get", "-o", "name", "-n", "quorate-system", kind])
            .arg(object["metadata"]["name"].as_str().unwrap()));
        assert!(!out.is_empty(), "{overlay}: {name}");
    }
    // The server is Kubernetes 1.20, built from Debian's sources, which has PodDisruptionBudget only as v1beta1. Another
    // test checks the type.
    for object in &unserved {
        assert_eq!(
            object["apiVersion"],
            "policy/v1",
            "{overlay}: {}",
            name_of(object)
        );
    }
}

#[tokio::test]
async fn a_kube_apiserver_accepts_every_manifest_of_every_overlay() {
    let kubernetes = Kubernetes::start().await;
    // One after the other on the same server, as for an operator who changes overlays.
    for overlay in OVERLAYS {
        expect_applied(&kubernetes, overlay).await;
    }
}
