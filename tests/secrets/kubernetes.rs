//! A Secret that names one of Kubernetes: read for each call, and waited for while it is missing or may not be read.

use serde_json::json;

use super::*;
use crate::support::kubernetes::Kubernetes;
use crate::volumes::world::{World, volume};

const SECRETS: &str = "/api/v1/namespaces/default/secrets";

/// A Secret that names `default/backend`, and a volume that uses it.
fn documents() -> String {
    "apiVersion: quorate.dev/v1\nkind: Secret\nmetadata: {name: s}\nkubernetes: {namespace: default, name: backend}\n---\n"
        .to_owned()
        + &volume("data", "secrets: [{key: token, secret: s}],")
}

fn backend() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "backend"}, "stringData": {"token": "of-kubernetes"},
    })
}

#[tokio::test]
async fn a_missing_secret_of_kubernetes_is_named_and_one_that_appears_is_read() {
    let (world, kubernetes) = (World::start().await, Kubernetes::start().await);
    let launch = Launch::on(&world.etcd).kubeconfig(kubernetes.kubeconfig());
    let mut replica = launch.start("r0");
    replica.wait_leading().await;
    world.plugin.order(expects("of-kubernetes")).await;
    world.apply(&documents()).await;
    let blocked = world
        .expect_blocked("data", None, "KubernetesSecretMissing")
        .await;
    assert!(
        blocked.message.contains("secret s: ") && blocked.message.contains("default/backend"),
        "{blocked:?}"
    );
    kubernetes.send("POST", SECRETS, &backend()).await;
    world.expect_created("data").await;
    // It is read for each call.
    let changed = json!({"stringData": {"token": "changed"}});
    kubernetes
        .send("PATCH", &format!("{SECRETS}/backend"), &changed)
        .await;
    world.plugin.order(expects("changed")).await;
    world.publish("data", "n1").await;
    let shown = status(&world, &[]).await;
    assert_eq!(of_secret(&shown, "s")["state"], "kubernetes", "{shown}");
    let listed = world.done(&["get", "secrets"]).await;
    assert!(listed.contains("kubernetes:default/backend"), "{listed}");
    replica.stop().await.unwrap();
}

#[tokio::test]
async fn a_forbidden_secret_of_kubernetes_is_named_with_the_permission_and_read_once_that_is_given() {
    let (world, kubernetes) = (World::start().await, Kubernetes::start().await);
    kubernetes.send("POST", SECRETS, &backend()).await;
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "quorate"}});
    kubernetes
        .send("POST", "/api/v1/namespaces/default/serviceaccounts", &account)
        .await;
    let kubeconfig = kubernetes.service_account_kubeconfig("default", "quorate").await;
    let mut replica = Launch::on(&world.etcd).kubeconfig(kubeconfig).start("r0");
    replica.wait_leading().await;
    world.apply(&documents()).await;
    let blocked = world
        .expect_blocked("data", None, "KubernetesSecretForbidden")
        .await;
    assert!(
        blocked
            .message
            .contains("get secrets \"backend\" in namespace default"),
        "{blocked:?}"
    );
    // As deploy/secrets/kubernetes has it.
    let rbac = "/apis/rbac.authorization.k8s.io/v1/namespaces/default";
    let version = "rbac.authorization.k8s.io/v1";
    let role = json!({
        "apiVersion": version, "kind": "Role", "metadata": {"name": "quorate-secrets"},
        "rules": [{"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["backend"], "verbs": ["get"]}],
    });
    let binding = json!({
        "apiVersion": version, "kind": "RoleBinding", "metadata": {"name": "quorate-secrets"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "quorate-secrets"},
        "subjects": [{"kind": "ServiceAccount", "name": "quorate", "namespace": "default"}],
    });
    kubernetes.send("POST", &format!("{rbac}/roles"), &role).await;
    kubernetes
        .send("POST", &format!("{rbac}/rolebindings"), &binding)
        .await;
    world.expect_created("data").await;
    replica.stop().await.unwrap();
}

#[tokio::test]
async fn without_kubernetes_a_volume_that_needs_a_secret_of_it_says_so() {
    let world = World::start().await;
    let leader = world.leader().await;
    world.apply(&documents()).await;
    let blocked = world
        .expect_blocked("data", None, "KubernetesSecretUnavailable")
        .await;
    assert!(blocked.message.contains("runs without Kubernetes"), "{blocked:?}");
    assert_eq!(world.plugin.calls_of("CreateVolume"), []);
    leader.resign().await;
}
