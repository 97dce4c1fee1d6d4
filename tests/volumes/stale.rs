//! Decisions from stale records: the transaction refuses them, and no call is made (INV-3, INV-6).

use std::sync::Arc;

use quorate::csi::Session;
use quorate::proto::node_spec::Availability;
use quorate::secrets::Reader;
use quorate::store::writer::writer;
use quorate::volumes::index::VolumeSnapshot;
use quorate::volumes::operation::{Action, Compensation, Env, Interrupted, Operation, PublishedTo};
use quorate::volumes::plan::{Lost, Node, Step};
use tokio::sync::Semaphore;

use super::*;
use crate::support::csi::LONG;
use crate::support::hold::Hold;
use crate::support::leader::Leader;

/// A leader without a controller, which runs only the operations of the test.
async fn idle_leader(world: &World) -> (Leader, Env) {
    let mut leader = Leader::elect(&world.store, "test").await;
    let (writer, writing) = writer(&world.store.etcd, leader.fence());
    leader.work(writing);
    let env = Env {
        store: world.store.clone(),
        fence: leader.fence().clone(),
        writer,
        secrets: Reader::default(),
    };
    (leader, env)
}

/// A volume as it is stored, without its publications.
async fn snapshot_of(world: &World, name: &str) -> VolumeSnapshot {
    let key = world.store.keys.volume(&parsed(name));
    let (stored, _) = world.store.etcd.get(&key).await.unwrap();
    let stored = stored.unwrap();
    VolumeSnapshot {
        volume: Volume::decode(&*stored.value).unwrap(),
        revision: stored.mod_revision,
        ..VolumeSnapshot::default()
    }
}

/// The same with its publication to a node, and with that node.
async fn published_snapshot(world: &World, name: &str, node: &str) -> VolumeSnapshot {
    let mut snapshot = snapshot_of(world, name).await;
    let node = parsed(node);
    let key = world.store.keys.publication(&parsed(name), &node);
    let stored = world.read(&key).await.unwrap();
    let publication = Publication::decode(&*stored.value).unwrap();
    snapshot.publications.insert(node.clone(), publication);
    snapshot.revisions.insert(node.clone(), stored.mod_revision);
    let stored = world.read(&world.store.keys.node(&node)).await.unwrap();
    let seen = Node {
        uid: String::new(),
        mod_revision: stored.mod_revision,
        out_of_service: false,
        availability: Availability::Active,
        csi_node_id: Some(format!("csi-{node}")),
        topology: Default::default(),
    };
    snapshot.nodes.insert(node, seen);
    snapshot
}

fn operation(name: &str, snapshot: &VolumeSnapshot, step: Step, session: &Arc<Session>) -> Operation {
    Operation {
        volume: parsed(name),
        driver: parsed(DRIVER),
        snapshot: snapshot.clone(),
        action: Action::Step(step),
        session: Some(session.clone()),
        plaintext_secrets: false,
        checks_capacity: false,
        permits: Arc::new(Semaphore::new(1)),
    }
}

#[tokio::test]
async fn a_deletion_and_a_detachment_prove_in_their_transactions_what_they_were_decided_from() {
    let world = World::start().await;
    let leader = world.leader().await;
    world.apply(&(volume("data", "") + &volume("other", ""))).await;
    world.expect_created("data").await;
    world.expect_created("other").await;
    leader.resign().await;
    world.done(&["delete", "volume", "data", "--yes"]).await;
    let deleted = snapshot_of(&world, "data").await;
    // A publication that came after the mark. The commands allow none.
    let publication = world.store.keys.publication(&parsed("data"), &parsed("n1"));
    world.commit(Txn::new().put(&publication, "")).await;

    world.done(&["publish", "other", "n1"]).await;
    let published = published_snapshot(&world, "other", "n1").await;
    let n1 = parsed("n1");
    let node = async || {
        let (node, _) = world.store.etcd.get(&world.store.keys.node(&n1)).await.unwrap();
        node.unwrap().mod_revision
    };
    let before = node().await;
    world.report_csi("n1", "csi-later").await;
    let detach = |lost| Step::Detach {
        node: n1.clone(),
        lost: Some(lost),
        again: false,
    };

    let removed = Lost::Removed {
        uid: "of-n1".to_owned(),
        revision: before,
    };

    let (leader, env) = idle_leader(&world).await;
    let session = world.plugin.client(LONG).session().await.unwrap();
    let at = world.records().await;
    for (name, snapshot, step) in [
        ("data", &deleted, Step::Delete),
        ("data", &deleted, Step::DeleteRecord),
        ("other", &published, detach(removed)),
        ("other", &published, detach(Lost::OutOfService(before))),
    ] {
        let operation = operation(name, snapshot, step.clone(), &session);
        let result = operation.run(env.clone()).await.result;
        assert!(matches!(result, Err(Interrupted::Stale)), "{step:?}: {result:?}");
        assert_eq!(world.records().await, at, "{step:?}: nothing was written");
    }
    assert_eq!(world.plugin.calls_of("DeleteVolume"), []);
    // The same steps from the current records.
    let step = detach(Lost::OutOfService(node().await));
    let operation = operation("other", &published, step, &session);
    let result = operation.run(env.clone()).await.result;
    assert!(result.is_ok(), "{result:?}");
    world.expect_state("other", "n1", "pendingUnpublish").await;
    leader.resign().await;
}

/// INV-3, INV-6: a leader may see a new publication before it sees that the volume is still to leave its node id.
#[tokio::test]
async fn a_publication_is_intended_only_while_its_volume_is_as_it_was() {
    let world = World::start().await;
    let leader = world.leader().await;
    world.apply(&volume("data", "")).await;
    world.expect_created("data").await;
    leader.resign().await;
    world.done(&["publish", "data", "n1"]).await;
    let before = published_snapshot(&world, "data", "n1").await;
    world.done(&["unpublish", "data", "--node-id", "csi-n1"]).await;
    let at = world.records().await;

    let (leader, env) = idle_leader(&world).await;
    let session = world.plugin.client(LONG).session().await.unwrap();
    let publish = Step::Publish {
        node: parsed("n1"),
        csi_node_id: "csi-n1".to_owned(),
    };
    let completion = operation("data", &before, publish, &session).run(env).await;
    let result = completion.result;
    assert!(matches!(result, Err(Interrupted::Stale)), "{result:?}");
    assert_eq!(world.plugin.calls_of("ControllerPublishVolume"), []);
    assert_eq!(world.records().await, at, "nothing was written");
    let of_volume = world.store.keys.volume(&parsed("data"));
    let mut seen = completion.records.iter();
    assert!(
        seen.any(|record| record.key == of_volume),
        "what has changed is known"
    );
    leader.resign().await;
}

/// A leader may see a new publication before it sees that the node is drained.
#[tokio::test]
async fn a_publication_is_intended_only_while_its_node_is_as_it_was() {
    let world = World::start().await;
    let leader = world.leader().await;
    world.apply(&volume("data", "")).await;
    world.expect_created("data").await;
    leader.resign().await;
    world.done(&["publish", "data", "n1"]).await;
    let before = published_snapshot(&world, "data", "n1").await;
    world.done(&["drain", "n1"]).await;
    let at = world.records().await;

    let (leader, env) = idle_leader(&world).await;
    let session = world.plugin.client(LONG).session().await.unwrap();
    let publish = Step::Publish {
        node: parsed("n1"),
        csi_node_id: "csi-n1".to_owned(),
    };
    let of_node = world.store.keys.node(&parsed("n1"));
    // A plugin that publishes nothing is not called. The node could use the volume all the same.
    for step in [publish, Step::PublishNothing { node: parsed("n1") }] {
        let operation = operation("data", &before, step.clone(), &session);
        let completion = operation.run(env.clone()).await;
        let result = completion.result;
        assert!(matches!(result, Err(Interrupted::Stale)), "{step:?}: {result:?}");
        assert_eq!(world.records().await, at, "{step:?}: nothing was written");
        let mut seen = completion.records.iter();
        assert!(
            seen.any(|record| record.key == of_node),
            "{step:?}: what has changed is known"
        );
    }
    assert_eq!(world.plugin.calls_of("ControllerPublishVolume"), []);
    leader.resign().await;
}

/// The node is drained between the decision and its intent, with all that the leader does otherwise.
#[tokio::test]
async fn a_drain_is_not_overtaken_by_a_publication_that_was_decided_on_before_it() {
    let world = World::start().await;
    let hold = Hold::at("volumes.publishing");
    let mut replica = hold.on(Launch::on(&world.etcd)).start("r0");
    world.apply(&volume("data", "")).await;
    world.done(&["publish", "data", "n1"]).await;
    hold.reached().await;
    world.done(&["drain", "n1"]).await;
    hold.release();
    world.expect_blocked("data", Some("n1"), "NodePaused").await;
    assert_eq!(world.plugin.calls_of("ControllerPublishVolume"), []);
    let active = document("Node", "n1", "{desiredRole: worker, availability: active}");
    world.apply(&active).await;
    world.expect_state("data", "n1", "published").await;
    replica.stop().await.unwrap();
}

/// INV-6: a publication may have been put back beside the mark and the intent, and not be seen yet.
#[tokio::test]
async fn a_deletion_that_was_begun_before_proves_again_that_no_publication_exists() {
    let world = World::start().await;
    let leader = world.leader().await;
    world.apply(&volume("data", "")).await;
    world.expect_created("data").await;
    leader.resign().await;
    world.done(&["delete", "volume", "data", "--yes"]).await;
    let mut deleted = snapshot_of(&world, "data").await;
    deleted.volume.status.as_mut().unwrap().delete_attempted = true;
    let key = world.store.keys.volume(&parsed("data"));
    deleted.revision = world.put(&key, deleted.volume.encode_to_vec()).await;
    let publication = world.store.keys.publication(&parsed("data"), &parsed("n1"));
    world.commit(Txn::new().put(&publication, "")).await;

    let (leader, env) = idle_leader(&world).await;
    let session = world.plugin.client(LONG).session().await.unwrap();
    let delete = operation("data", &deleted, Step::Delete, &session);
    let result = delete.clone().run(env.clone()).await.result;
    assert!(matches!(result, Err(Interrupted::Stale)), "{result:?}");
    assert_eq!(world.plugin.calls_of("DeleteVolume"), []);
    world.commit(Txn::new().delete(&publication)).await;
    let result = delete.run(env).await.result;
    assert!(result.is_ok(), "{result:?}");
    world.expect_empty_backend().await;
    leader.resign().await;
}

/// INV-3, INV-6: the leader may not have seen yet that the volume was taken back.
#[tokio::test]
async fn what_was_taken_back_a_moment_ago_is_not_undone() {
    let world = World::start().await;
    let leader = world.leader().await;
    world.apply(&volume("data", "")).await;
    world.publish("data", "n1").await;
    leader.resign().await;
    let snapshot = snapshot_of(&world, "data").await;
    let publication = world.publication("data", "n1").await.unwrap();
    world
        .done(&["delete", "volume", "data", "--yes", "--force"])
        .await;
    let name = forced::tombstone(&world).await;
    world.done(&["tombstone", "adopt", &name, "--as", "old"]).await;

    let (leader, env) = idle_leader(&world).await;
    let session = world.plugin.client(LONG).session().await.unwrap();
    let published = PublishedTo {
        node: parsed("n1"),
        uid: publication.metadata.unwrap().uid,
        csi_node_id: "csi-n1".to_owned(),
    };
    let undo = async |publication| {
        let mut undo = operation("data", &snapshot, Step::Delete, &session);
        undo.action = Action::Compensate(Box::new(Compensation {
            volume: snapshot.volume.clone(),
            publication,
        }));
        undo.run(env.clone()).await.result
    };
    for publication in [None, Some(published.clone())] {
        let result = undo(publication).await;
        assert!(matches!(result, Err(Interrupted::Stale)), "{result:?}");
    }
    // INV-12: a record of which nothing can be read may be the one.
    world
        .put(&world.store.keys.volume(&parsed("old")), [0xff, 0xff])
        .await;
    for publication in [None, Some(published)] {
        match undo(publication).await {
            Err(Interrupted::Failed(failure)) => assert_eq!(failure.why.reason, "RecordMalformed"),
            result => panic!("{result:?}"),
        }
    }
    for method in ["DeleteVolume", "ControllerUnpublishVolume"] {
        assert_eq!(world.plugin.calls_of(method), []);
    }
    leader.resign().await;
}
