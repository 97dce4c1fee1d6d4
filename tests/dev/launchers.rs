//! etcd and kube-apiserver as child processes.

use std::time::Duration;

use quorate_dev::apiserver::User;
use quorate_dev::http::Request;
use quorate_dev::{ports, process};
use serde_json::{Value, json};

use crate::support::etcd::{PASSWORD, TestEtcd, USER};
use crate::support::kubernetes::Kubernetes;

#[tokio::test]
async fn three_members_lose_one_serve_on_and_take_it_back() {
    let mut etcd = TestEtcd::with(3, &[]).await;
    assert_eq!(etcd.endpoints().len(), 3);
    etcd.etcdctl(&["put", "/a", "1"]);
    let status = etcd.members[0].kill().await.unwrap().unwrap();
    assert!(process::was_killed(status));
    assert!(!etcd.members[0].is_healthy().await);
    etcd.members[1].wait_healthy().await.unwrap();
    etcd.members[2].wait_healthy().await.unwrap();
    etcd.members[0].start().await.unwrap();
    assert_eq!(etcd.get("/a").as_deref(), Some("1"));
    let pids: Vec<_> = etcd.members.iter().map(|member| member.pid().unwrap()).collect();
    etcd.stop().await.unwrap();
    for pid in pids {
        assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
    }
}

#[tokio::test]
async fn a_paused_member_is_unhealthy_until_it_goes_on() {
    let mut etcd = TestEtcd::start().await;
    etcd.members[0].pause();
    let asked = tokio::time::timeout(Duration::from_millis(300), etcd.members[0].is_healthy()).await;
    assert!(asked.is_err(), "a paused member does not answer");
    etcd.members[0].resume();
    etcd.members[0].wait_healthy().await.unwrap();
}

#[tokio::test]
async fn a_tls_cluster_refuses_clients_without_a_certificate() {
    let mut etcd = TestEtcd::with_tls().await;
    assert!(etcd.endpoints()[0].starts_with("https://"));
    etcd.etcdctl(&["put", "/a", "1"]);
    etcd.tls = None;
    etcd.try_etcdctl(&["--dial-timeout=1s", "--command-timeout=2s", "get", "/a"])
        .unwrap_err();
}

#[tokio::test]
async fn a_user_with_a_password_reaches_its_prefix_only() {
    let etcd = TestEtcd::with_password("/quorate", 300).await;
    let user = format!("--user={USER}:{PASSWORD}");
    etcd.etcdctl(&[&user, "put", "/quorate/a", "1"]);
    let refused = etcd.try_etcdctl(&[&user, "put", "/other", "1"]).unwrap_err();
    assert!(refused.contains("permission denied"), "{refused}");
    let refused = etcd.try_etcdctl(&["get", "/quorate/a"]).unwrap_err();
    assert!(refused.contains("user name is empty"), "{refused}");
}

#[tokio::test]
async fn an_apiserver_keeps_its_port_and_objects_over_a_kill() {
    let reader = User {
        name: "reader".to_owned(),
        groups: vec!["readers".to_owned()],
        token: "reader-token".to_owned(),
    };
    let mut kubernetes = Kubernetes::with(vec![reader], &[]).await;
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kept"}});
    kubernetes.send("POST", "/api/v1/namespaces", &namespace).await;

    kubernetes.kill().await.unwrap();
    assert!(!ports::is_taken(kubernetes.port()));
    kubernetes.launch().await.unwrap();
    assert!(kubernetes.get("/api/v1/namespaces/kept").await.is_some());
    assert!(kubernetes.get("/api/v1/namespaces/gone").await.is_none());

    // RBAC is on: the other user is known (403, not 401) and may not read.
    let ca = std::fs::read_to_string(kubernetes.directory().join("ca.crt")).unwrap();
    for (token, status) in [("reader-token", 403), ("unknown-token", 401)] {
        let request = Request {
            port: kubernetes.port(),
            method: "GET",
            path: "/api/v1/namespaces",
            ca: Some(&ca),
            token: Some(token),
            body: None,
        };
        assert_eq!(request.send().await.unwrap().status, status, "{token}");
    }
    assert!(kubernetes.kubeconfig().exists());
    kubernetes.stop().await.unwrap();
}

#[tokio::test]
async fn a_service_account_proves_itself_with_a_requested_token() {
    let mut kubernetes = Kubernetes::start().await;
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "apps"}});
    kubernetes.send("POST", "/api/v1/namespaces", &namespace).await;
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "robot"}});
    kubernetes
        .send("POST", "/api/v1/namespaces/apps/serviceaccounts", &account)
        .await;
    let file = kubernetes.service_account_kubeconfig("apps", "robot").await;
    let config: Value = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
    let ca = std::fs::read_to_string(kubernetes.directory().join("ca.crt")).unwrap();
    let review = json!({
        "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": {"verb": "delete", "resource": "nodes"}},
    });
    let request = Request {
        port: kubernetes.port(),
        method: "POST",
        path: "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
        ca: Some(&ca),
        token: config["users"][0]["user"]["token"].as_str(),
        body: Some(("application/json", &review.to_string())),
    };
    let response = request.send().await.unwrap();
    assert_eq!(response.status, 201, "{}", response.body);
    let review: Value = serde_json::from_str(&response.body).unwrap();
    assert_eq!(review["status"]["allowed"], json!(false));
    kubernetes.stop().await.unwrap();
}
