//! Nodes that are drained, removed, down, or out of service.

use super::*;

async fn published_on_two(world: &World) -> String {
    world.apply(&shared_volume("data", "")).await;
    for node in ["n1", "n2"] {
        world.publish("data", node).await;
    }
    world.backend_id("data").await
}

#[tokio::test]
async fn a_removed_nodes_publications_are_unpublished_from_that_node_alone() {
    let world = World::start().await;
    let leader = world.leader().await;
    let id = published_on_two(&world).await;
    world.done(&["delete", "node", "n2", "--yes", "--force"]).await;
    world.expect_state("data", "n2", "").await;
    assert_eq!(world.attached(&id), ["csi-n1"]);
    world.expect_state("data", "n1", "published").await;
    let calls = world.plugin.calls_of("ControllerUnpublishVolume");
    let nodes: Vec<_> = calls.iter().map(|call| call.begun.node.clone()).collect();
    assert_eq!(nodes, [Some("csi-n2".to_owned())]);
    leader.resign().await;
}

/// INV-6, INV-12: etcd's operators and their scripts delete keys by mistake.
#[tokio::test]
async fn nodes_whose_keys_are_merely_gone_keep_their_volumes_until_they_are_recorded_as_removed() {
    let world = World::start().await;
    let leader = world.leader().await;
    let id = published_on_two(&world).await;
    world.etcd.etcdctl(&["del", "--prefix", "/quorate/nodes/"]);
    for node in ["n1", "n2"] {
        world.expect_blocked("data", Some(node), "NodeMissing").await;
    }
    // Another node of that name may be another machine.
    world.add_node("n1").await;
    world.done(&["unpublish", "data", "n2"]).await;
    world.expect_state("data", "n2", "pendingNodeUnpublish").await;
    world.expect_blocked("data", Some("n2"), "NodeMissing").await;
    world.expect_blocked("data", Some("n1"), "NodeMissing").await;
    assert_eq!(world.attached(&id), ["csi-n1", "csi-n2"]);
    assert_eq!(world.plugin.calls_of("ControllerUnpublishVolume"), []);
    // The operator's word.
    let deleted = world.done(&["delete", "node", "n2", "--yes"]).await;
    assert!(deleted.contains("node/n2 recorded as removed"), "{deleted}");
    world.expect_state("data", "n2", "").await;
    assert_eq!(world.attached(&id), ["csi-n1"]);
    // That is said of the present node of that name, and the former one may run.
    world.done(&["drain", "n1", "--out-of-service", "--yes"]).await;
    stays(QUIET, "the former node keeps the volume", async || {
        same(world.attached(&id), vec!["csi-n1".to_owned()])
    })
    .await;
    world.unpublish("data", "n1").await;
    assert_eq!(world.attached(&id), Vec::<String>::new());
    leader.resign().await;
}

#[tokio::test]
async fn a_new_leader_unpublishes_a_removed_node_by_the_stored_id() {
    let world = World::start().await;
    let leader = world.leader().await;
    let id = published_on_two(&world).await;
    leader.resign().await;
    // No replica leads: the new leader never knew the node.
    world.done(&["delete", "node", "n2", "--yes", "--force"]).await;
    let leader = world.leader().await;
    world.expect_state("data", "n2", "").await;
    assert_eq!(world.attached(&id), ["csi-n1"]);
    world.check_calls();
    leader.resign().await;
}

#[tokio::test]
async fn a_node_that_is_down_keeps_its_volumes_until_it_is_declared_out_of_service() {
    let world = World::start().await;
    let leader = world.leader().await;
    let id = published_on_two(&world).await;
    // The node was never alive, so it is down throughout; its confirmation never comes.
    world.done(&["unpublish", "data", "n2"]).await;
    world.expect_state("data", "n2", "pendingNodeUnpublish").await;
    world.done(&["drain", "n2"]).await;
    stays(QUIET, "a drained node is not out of service", async || {
        same(
            world.attached(&id),
            ["csi-n1", "csi-n2"].map(str::to_owned).to_vec(),
        )
    })
    .await;
    // The node now reports another id than the one that it has the volume under.
    world.report_csi("n2", "csi-later").await;
    world.done(&["drain", "n2", "--out-of-service", "--yes"]).await;
    world.expect_state("data", "n2", "").await;
    assert_eq!(world.attached(&id), ["csi-n1"]);
    let calls = world.plugin.calls_of("ControllerUnpublishVolume");
    let nodes: Vec<_> = calls.iter().map(|call| call.begun.node.as_deref()).collect();
    assert_eq!(nodes, [Some("csi-n2")]);
    let refused = world.run(&["publish", "data", "n2"]).await.expect_code(4);
    assert!(refused.contains("OutOfService"), "{refused}");
    leader.resign().await;
}

/// A volume that is published to n1 and n2, while no replica leads and the name n2 is that of another node. Returns its id.
async fn left_to_another_n2(world: &World) -> String {
    let leader = world.leader().await;
    let id = published_on_two(world).await;
    leader.resign().await;
    world.done(&["delete", "node", "n2", "--yes", "--force"]).await;
    world.add_node("n2").await;
    world.report_csi("n2", "csi-new").await;
    id
}

#[tokio::test]
async fn a_node_of_the_same_name_is_another_node() {
    let world = World::start().await;
    let id = left_to_another_n2(&world).await;
    assert_eq!(world.csi_of("n2").await[0].node_id, "csi-new");
    let leader = world.leader().await;
    world.expect_state("data", "n2", "").await;
    assert_eq!(world.attached(&id), ["csi-n1"]);
    world.publish("data", "n2").await;
    assert_eq!(world.attached(&id), ["csi-n1", "csi-new"]);
    leader.resign().await;
}

/// What the former node has is no answer to a request for the present one.
#[tokio::test]
async fn a_volume_requested_for_a_node_of_the_same_name_goes_to_it_once_the_former_one_has_lost_it() {
    let world = World::start().await;
    let id = left_to_another_n2(&world).await;
    for _ in 0..2 {
        let said = world.done(&["publish", "data", "n2"]).await;
        assert!(said.contains("a former node n2"), "{said}");
    }
    let (_, leader) = tokio::join!(world.publish("data", "n2"), world.leader());
    assert_eq!(world.attached(&id), ["csi-n1", "csi-new"]);
    let there = world.publication("data", "n2").await.unwrap().spec.unwrap();
    assert_eq!(there.node_uid, world.node("n2").await.metadata.unwrap().uid);
    leader.resign().await;
}

#[tokio::test]
async fn a_node_whose_plugin_comes_later_is_waited_for() {
    let world = World::start().await;
    let leader = world.leader().await;
    world.apply(&document("Node", "n4", "{}")).await;
    world.apply(&shared_volume("data", "")).await;
    world.done(&["publish", "data", "n4"]).await;
    world.expect_blocked("data", Some("n4"), "NodeIDMissing").await;
    world.report_csi("n4", "csi-n4").await;
    world.expect_state("data", "n4", "published").await;
    leader.resign().await;
}

#[tokio::test]
async fn what_was_requested_before_a_node_was_drained_waits_until_the_node_is_active() {
    let mut world = World::start().await;
    let leader = world.leader().await;
    world.apply(&volume("data", "")).await;
    world.expect_created("data").await;
    world.plugin.stop().await.unwrap();
    world.done(&["publish", "data", "n1"]).await;
    world.expect_plugin("PluginUnreachable").await;
    world.done(&["drain", "n1"]).await;
    let blocked = world.expect_blocked("data", Some("n1"), "NodePaused").await;
    assert!(blocked.message.contains("node n1 is set to drain"), "{blocked:?}");
    world.plugin.launch().await.unwrap();
    // The plugin answers, and was asked for other things alone.
    world.apply(&volume("after", "")).await;
    world.expect_created("after").await;
    assert_eq!(world.plugin.calls_of("ControllerPublishVolume"), []);
    world.expect_state("data", "n1", "pendingPublish").await;
    let active = "{desiredRole: worker, availability: active}";
    world.apply(&document("Node", "n1", active)).await;
    world.expect_state("data", "n1", "published").await;
    world.expect_blocked("data", Some("n1"), "").await;
    leader.resign().await;
}

/// It was asked for again while it waited to end.
#[tokio::test]
async fn a_publication_that_ends_does_not_start_over_on_a_node_that_was_drained_since() {
    let mut world = World::start().await;
    let leader = world.leader().await;
    world.apply(&volume("data", "")).await;
    world.publish("data", "n1").await;
    world.plugin.stop().await.unwrap();
    world.done(&["unpublish", "data", "n1", "--confirm"]).await;
    world.done(&["publish", "data", "n1"]).await;
    world.done(&["drain", "n1"]).await;
    world.plugin.launch().await.unwrap();
    world.expect_state("data", "n1", "").await;
    assert_eq!(world.plugin.calls_of("ControllerPublishVolume").len(), 1);
    leader.resign().await;
}
