//! With Kubernetes: deallocation does not wait for the gate, and reports Events.

use quorate::proto::task_status::State;

use super::{World, document, network, service};
use crate::support::kubernetes::Kubernetes;
use crate::support::quorate::{Launch, status_json};
use crate::support::wait::{SOON, eventually};

async fn reasons(kubernetes: &Kubernetes) -> Vec<(String, String)> {
    let events = kubernetes.get("/apis/events.k8s.io/v1/events").await.unwrap();
    let text = |event: &serde_json::Value, field: &str| event[field].as_str().unwrap_or_default().to_owned();
    let all = events["items"].as_array().unwrap().iter();
    all.filter(|event| event["action"] == "Deallocate")
        .map(|event| (text(event, "reason"), text(event, "note")))
        .collect()
}

#[tokio::test]
async fn what_is_deleted_orphaned_or_held_is_an_event_also_while_the_gate_is_closed() {
    let (kubernetes, world) = tokio::join!(Kubernetes::start(), World::start());
    let launch = Launch::on(&world.etcd).kubeconfig(kubernetes.kubeconfig());
    let mut first = launch.start("a");
    first.wait_ready().await;
    first.kill().await.unwrap();
    // The gate waits all the time for requests of the previous leader.
    let mut replica = launch.flag("--settle-ms=600000").start("b");
    replica.wait_leading().await;

    let documents = network("front") + &service("web", "{networks: [front]}") + &document("Node", "n1", "{}");
    world.apply(&documents).await;
    world.task("web/1", "n1", State::Running).await;
    world.mark("network/front").await;
    world.mark("service/web").await;
    world.run(&["delete", "node", "n1", "--yes"]).await.expect_done();
    replica.wait_for_log("orphaned task web/1").await;
    world.remove("/tasks/web/1").await;
    world.expect_objects(&[]).await;
    world.put("/services/bad", b"\xff".to_vec()).await;

    let expected = [
        (
            "Deallocated",
            "deleted service web (no tasks) and network front (unused)",
        ),
        ("ServicesUnreadable", "1 service cannot be read"),
        ("TasksOrphaned", "orphaned task web/1 (its node does not exist)"),
    ];
    eventually(SOON, "the Events are there", async || {
        let mut seen = reasons(&kubernetes).await;
        seen.sort();
        let same = seen.len() == expected.len()
            && seen
                .iter()
                .zip(expected)
                .all(|((reason, note), (expected, begins))| reason == expected && note.starts_with(begins));
        if same { Ok(()) } else { Err(format!("{seen:?}")) }
    })
    .await;
    let status = status_json(&world.etcd, "/quorate").unwrap();
    assert_eq!(status["leader"], "b", "{status}");
    replica.stop().await.unwrap();
}
