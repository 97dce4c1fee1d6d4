//! What blocks a volume, as Kubernetes Events in a real kube-apiserver.

use serde_json::Value;

use super::*;
use crate::support::kubernetes::Kubernetes;

/// The Events about volumes.
async fn events(kubernetes: &Kubernetes) -> Vec<Value> {
    let all = "/apis/events.k8s.io/v1/namespaces/kube-system/events";
    let mut all = kubernetes.get(all).await.unwrap();
    let Value::Array(mut events) = all["items"].take() else {
        panic!("{all}");
    };
    events.retain(|event| event["reason"] == "VolumeBlocked");
    events
}

#[tokio::test]
async fn what_fails_about_a_volume_or_a_publication_is_an_event_each_without_any_secret() {
    let kubernetes = Kubernetes::start().await;
    let world = World::start().await;
    let launch = Launch::on(&world.etcd).kubeconfig(kubernetes.kubeconfig());
    let mut replica = launch.start("r0");
    replica.wait_leading().await;
    let says = |code: &str| Happening::Fails(answer(code, "cannot log in with {secrets}"));
    let uses = "secrets: [{key: token, secret: backend}],";
    world.apply(&secret("backend", "token", "xyzzy-s3cr3t")).await;
    world.apply(&volume("good", uses)).await;
    world.expect_created("good").await;
    world
        .plugin
        .fault("CreateVolume", None, says("InvalidArgument"))
        .await;
    world
        .plugin
        .fault("ControllerPublishVolume", None, says("Unavailable"))
        .await;
    world.apply(&volume("bad", uses)).await;
    world.done(&["publish", "good", "n1"]).await;
    let expected = [
        "volume bad: InvalidArgument: CreateVolume: InvalidArgument: cannot log in with <secret>",
        "volume good on node n1: Unavailable: ControllerPublishVolume: Unavailable: cannot log in with <secret>",
    ];
    eventually(SOON, "both are reported", async || {
        let mut notes = Vec::new();
        for event in events(&kubernetes).await {
            notes.push(event["note"].as_str().unwrap().to_owned());
        }
        notes.sort();
        same(notes, expected.map(str::to_owned).to_vec())
    })
    .await;
    for event in events(&kubernetes).await {
        let reported = (
            &event["type"],
            &event["reportingController"],
            &event["reportingInstance"],
        );
        let by = ("Warning".into(), "quorate.dev/controller".into(), "r0".into());
        assert_eq!(reported, (&by.0, &by.1, &by.2), "{event}");
    }
    // A failure that is retried is reported once.
    eventually(SOON, "it was tried again", async || {
        match world.plugin.calls_of("ControllerPublishVolume").len() {
            4.. => Ok(()),
            calls => Err(calls),
        }
    })
    .await;
    assert_eq!(events(&kubernetes).await.len(), 2);
    replica.stop().await.unwrap();
}
