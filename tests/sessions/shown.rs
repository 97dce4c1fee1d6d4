//! What operators see of a session, and what it holds back.

use prost::Message;
use quorate::proto::NodeSession;
use quorate::proto::node_publication::Instruction;
use quorate::store::object::time;
use tokio::time::sleep;

use super::agent::{Agent, cell, down, held};
use crate::control::site::{Joined, Serving, Site, confirm_unpublished, report};
use crate::support::csi::{DRIVER, TestPlugin};
use crate::support::wait::{QUIET, SOON, eventually, same};

#[tokio::test]
async fn a_node_in_a_session_is_ready_and_deleted_by_force_alone() {
    let Joined {
        site,
        mut replica,
        node,
        mut own,
        ..
    } = Joined::start().await;
    site.add_node("n2").await;
    let status = async || site.run(&["status"]).await.expect_done();
    let nodes = |status: &str| {
        let line = status.lines().find(|line| line.starts_with("Nodes:"));
        line.map(|line| line.split_whitespace().skip(1).collect::<Vec<_>>().join(" "))
    };
    assert_eq!(nodes(&status().await).as_deref(), Some("0/2 ready"));
    assert_eq!(cell(&site, "n1", "READY").await, "no");
    let described = site.run(&["describe", "node", "n1"]).await.expect_done();
    assert!(
        described.contains("no (down: its session has ended"),
        "{described}"
    );

    let agent = Agent::open(&site, &mut replica, &node).await;
    let (session, lease) = held(&site, "n1").await;
    assert_eq!(session.session_id, agent.begun.session_id);
    assert_eq!(nodes(&status().await).as_deref(), Some("1/2 ready"));
    assert_eq!(cell(&site, "n1", "READY").await, "yes");
    assert_eq!(cell(&site, "n2", "READY").await, "no");
    let described = site.run(&["describe", "node", "n1"]).await.expect_done();
    let line = format!("{} on lease {lease}, at replica c1", session.session_id);
    assert!(described.contains(&line), "{described}");
    assert!(described.contains("yes, since "), "{described}");
    let end = time::document(site.record(&node.uid).await.not_after.as_ref()).unwrap();
    let certificate = described.split_once("Certificate:").unwrap().1;
    assert!(
        certificate.contains(" issued\n") && certificate.contains(" worker\n"),
        "{described}"
    );
    assert!(certificate.contains(&format!("{end} (in 89d)")), "{described}");
    report(&mut own, 7, &[]).await.unwrap();
    let described = site.run(&["describe", "node", "n1"]).await.expect_done();
    let release = described.lines().find(|line| line.starts_with("Agent Release:"));
    assert!(release.unwrap().ends_with(" 7.0.1"), "{described}");
    let refused = site.run(&["delete", "node", "n1", "--yes"]).await.expect_code(4);
    assert!(refused.contains("refused by rule Ready"), "{refused}");
    site.run(&["delete", "node", "n1", "--yes", "--force"])
        .await
        .expect_done();
}

#[tokio::test]
async fn the_session_of_an_earlier_node_makes_its_successor_neither_ready_nor_hard_to_delete() {
    let site = Site::start().await;
    site.add_node("n1").await;
    let session = NodeSession {
        node_uid: "the uid of an earlier node".to_owned(),
        session_id: "s".to_owned(),
        ..NodeSession::default()
    };
    let key = site.store.keys.alive(&"n1".parse().unwrap());
    site.put(&key, session.encode_to_vec()).await;
    assert_eq!(cell(&site, "n1", "READY").await, "no");
    site.run(&["delete", "node", "n1", "--yes"]).await.expect_done();
}

/// INV-6: that a node is down proves nothing.
#[tokio::test]
async fn a_node_that_is_down_keeps_its_volume_until_it_confirms() {
    let plugin = TestPlugin::start().await;
    let Joined {
        site,
        mut replica,
        node,
        mut own,
        ..
    } = Serving::with(&["--session-lease-ms=5000"]).await.join("n1").await;
    report(&mut own, 1, &[(DRIVER, "csi-n1")]).await.unwrap();
    site.publish(&plugin, "n1").await;
    // It is suspended.
    let agent = Agent::open(&site, &mut replica, &node).await;
    down(&site, "n1").await;
    assert_eq!(cell(&site, "n1", "READY").await, "no");
    site.expect_state("data", "n1", "published").await;
    site.done(&["unpublish", "data", "n1"]).await;
    let waits = "pendingNodeUnpublish";
    site.expect_state("data", "n1", waits).await;
    sleep(QUIET).await;
    assert!(replica.leads().await);
    site.expect_state("data", "n1", waits).await;
    assert_eq!(plugin.calls_of("ControllerUnpublishVolume"), []);

    // Its next session is asked as well; then it is free.
    drop(agent);
    let again = Agent::open(&site, &mut replica, &node).await;
    let view = again.begun.view.unwrap();
    assert_eq!(view.publications[0].instruction(), Instruction::Unpublish);
    confirm_unpublished(&mut own, &view.publications[0].publication_uid)
        .await
        .unwrap();
    eventually(SOON, "the volume is unpublished", async || {
        same(plugin.calls_of("ControllerUnpublishVolume").len(), 1)
    })
    .await;
}
