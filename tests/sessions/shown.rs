//! What operators see of a session, and what it holds back.

use prost::Message;
use quorate::etcd::Txn;
use quorate::proto::publication_status::State;
use quorate::proto::{Metadata, NodeSession, Publication, PublicationSpec, PublicationStatus};
use tokio::time::sleep;

use super::agent::{Agent, cell, held};
use crate::control::site::Site;
use crate::support::wait::QUIET;

#[tokio::test]
async fn a_node_in_a_session_is_ready_and_deleted_by_force_alone() {
    let site = Site::start().await;
    let token = site.token(&["--role", "worker"]).await;
    let mut replica = site.replica().await;
    let mut client = site.client(&mut replica).await;
    let node = site.member(&mut client, "n1", &token).await;
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
    let line = format!("{} on lease {lease}", session.session_id);
    assert!(described.contains(&line), "{described}");
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
    };
    let key = site.store.keys.alive(&"n1".parse().unwrap());
    site.put(&key, session.encode_to_vec()).await;
    assert_eq!(cell(&site, "n1", "READY").await, "no");
    site.run(&["delete", "node", "n1", "--yes"]).await.expect_done();
}

/// INV-6: that a node is down proves nothing.
#[tokio::test]
async fn a_node_that_is_down_keeps_its_publication() {
    let site = Site::start().await;
    let replica = site.replica().await;
    let uid = site.add_node("n1").await;
    let metadata = |name: &str, uid: &str| Some(Metadata::new(name, uid, jiff::Timestamp::now()));
    let publication = Publication {
        metadata: metadata("n1", "p"),
        spec: Some(PublicationSpec {
            volume: "data".to_owned(),
            volume_uid: "v".to_owned(),
            node_uid: uid.clone(),
            ..PublicationSpec::default()
        }),
        status: Some(PublicationStatus {
            state: State::PendingNodeUnpublish.into(),
            csi_node_id: "csi-n1".to_owned(),
            ..PublicationStatus::default()
        }),
    };
    let keys = &site.store.keys;
    let (volume, node) = ("data".parse().unwrap(), "n1".parse().unwrap());
    let (key, alive) = (keys.publication(&volume, &node), keys.alive(&node));
    site.put(&key, publication.encode_to_vec()).await;
    let session = NodeSession {
        node_uid: uid,
        session_id: "s".to_owned(),
    };
    site.put(&alive, session.encode_to_vec()).await;
    assert_eq!(cell(&site, "n1", "READY").await, "yes");
    site.commit(Txn::new().delete(&alive)).await;
    sleep(QUIET).await;
    assert!(replica.leads().await);
    let stored = site.read(&key).await.expect("the publication is there");
    let stored = Publication::decode(&*stored.value).unwrap();
    assert_eq!(stored.status.unwrap().state(), State::PendingNodeUnpublish);
}
