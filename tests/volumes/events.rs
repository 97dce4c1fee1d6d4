//! What blocks a volume, as Kubernetes Events in a real kube-apiserver.

use quorate::term::Notices;
use quorate::volumes::controller::Times;
use serde_json::Value;

use super::world::leader_reporting;
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

/// No call is made for it that could fail.
#[tokio::test]
async fn what_cannot_even_be_tried_is_reported_once_and_not_again_by_the_next_leader() {
    let world = World::start().await;
    world
        .apply(&document("Node", "n4", "{desiredRole: worker}"))
        .await;
    world.apply(&volume("data", "")).await;
    world.done(&["publish", "data", "n4"]).await;
    let mut reported = Vec::new();
    for (number, later) in ["first", "second"].into_iter().enumerate() {
        let (notices, mut received) = Notices::channel(16);
        let leader = leader_reporting(&world.store, Times::default(), notices).await;
        world.expect_blocked("data", Some("n4"), "NodeIDMissing").await;
        // Volumes that are settled are planned last, and this one comes after all of them.
        world.apply(&volume(later, "")).await;
        world.expect_created(later).await;
        while let Ok(notice) = received.try_recv() {
            reported.push((number, notice.reason, notice.note));
        }
        leader.resign().await;
    }
    let note = format!(
        "volume data on node n4: NodeIDMissing: node n4 does not report a node id for plugin {DRIVER}"
    );
    assert_eq!(reported, [(0, "VolumeBlocked", note)]);
}
