//! With Kubernetes: what operators read of agents as Events.

use super::agent::Agent;
use crate::control::site::{Key, Site, leads};
use crate::support::kubernetes::Kubernetes;
use crate::support::wait::{SOON, eventually, same};

/// Reason, type and note of each Event about agents.
async fn events(kubernetes: &Kubernetes) -> Vec<[String; 3]> {
    let path = "/apis/events.k8s.io/v1/namespaces/kube-system/events";
    let events = kubernetes.get(path).await.unwrap();
    let all = events["items"].as_array().unwrap().iter();
    let mut about: Vec<[String; 3]> = all
        .map(|event| {
            ["reason", "type", "note"].map(|field| event[field].as_str().unwrap_or_default().to_owned())
        })
        .filter(|[reason, ..]| ["DuplicateAgent", "NodeJoinRefused", "NodeJoined"].contains(&reason.as_str()))
        .collect();
    about.sort();
    about
}

/// Each once, however often it happens.
#[tokio::test]
async fn a_join_refused_joins_and_several_agents_of_one_node_are_an_event_each() {
    let (kubernetes, site) = tokio::join!(Kubernetes::start(), Site::start());
    let launch = site.launch().kubeconfig(kubernetes.kubeconfig());
    let mut replica = launch.flag("--session-lease-ms=300000").start("c1");
    leads(&replica).await;
    let former = site.token(&["--role", "worker"]).await;
    let token = site.token_by("rotate", &["--role", "worker"]).await;
    let mut client = site.client(&mut replica).await;
    for _ in 0..3 {
        let refused = Key::new().join(&mut client, "n9", &former).await;
        refused.expect_err("the token was rotated");
    }
    let node = site.member(&mut client, "n1", &token).await;
    let mut agent = Agent::open(&site, &mut replica, &node).await;
    for _ in 0..3 {
        let newer = Agent::open(&site, &mut replica, &node).await;
        agent.ended().await;
        agent = newer;
    }
    let seen = eventually(SOON, "the Events are there", async || {
        let seen = events(&kubernetes).await;
        let reasons: Vec<String> = seen.iter().map(|[reason, ..]| reason.clone()).collect();
        let wanted = ["DuplicateAgent", "NodeJoinRefused", "NodeJoined"].map(str::to_owned);
        same(reasons, wanted.to_vec()).map(|_| seen)
    })
    .await;
    let types: Vec<&str> = seen.iter().map(|[_, severity, _]| severity.as_str()).collect();
    assert_eq!(types, ["Warning", "Warning", "Normal"]);
    let [duplicate, refused, joined] = [0, 1, 2].map(|at: usize| seen[at][2].as_str());
    assert!(duplicate.contains("node n1"), "{duplicate}");
    assert!(
        refused.starts_with("an agent may not join as node n9: the token lets in no node here"),
        "{refused}"
    );
    assert_eq!(joined, "node n1 has joined");
    let secret = former.rsplit('-').next().unwrap();
    assert!(!refused.contains(secret), "{refused}");
}
