//! A node is removed: its agent ends, and stays out. A node that is only unknown is not removed (INV-12).

use std::fs;

use quorate::etcd::Txn;

use super::site::Site;

#[tokio::test]
async fn a_removed_node_ends_its_agent_which_leaves_its_state() {
    let site = Site::start().await;
    let token = site.token().await;
    let mut agent = site.agent("n1", &token);
    agent.ready().await;
    let (uid, stored) = (site.uid("n1").await, agent.stored());
    site.run(&["delete", "node", "n1", "--yes", "--force"])
        .await
        .expect_done();
    for _ in 0..2 {
        assert_eq!(agent.ended().await.code(), Some(4), "{}", agent.log());
        let said = format!("error: node n1 (uid {uid}) was removed from the cluster");
        assert!(agent.log().contains(&said), "{}", agent.log());
        assert!(!agent.log().contains("still mounted"), "{}", agent.log());
        assert_eq!(agent.stored(), stored);
        // It never comes back, not even with a token that lets in.
        agent.stop().await.unwrap();
        agent.launch().unwrap();
    }
    assert_eq!(agent.ended().await.code(), Some(4));
    // Without what it remembers, it is another node.
    fs::remove_file(agent.file()).unwrap();
    agent.stop().await.unwrap();
    agent.launch().unwrap();
    agent.ready().await;
    assert_ne!(site.uid("n1").await, uid);
}

/// An operator has rejected it: no token makes it another node by itself.
#[tokio::test]
async fn a_node_that_is_removed_while_it_waits_for_its_first_certificate_stays_out() {
    let site = Site::with(1, &["--approve-joins"]).await;
    let token = site.token().await;
    let mut agent = site.agent("n1", &token);
    agent.logs("an operator has yet to accept the node").await;
    let uid = site.uid("n1").await;
    site.run(&["delete", "node", "n1", "--yes"]).await.expect_done();
    let key = site.store.keys.node(&"n1".parse().unwrap());
    for _ in 0..3 {
        assert_eq!(agent.ended().await.code(), Some(4), "{}", agent.log());
        let said = format!("error: node n1 (uid {uid}) was removed from the cluster");
        assert!(agent.log().contains(&said), "{}", agent.log());
        assert_eq!(site.read(&key).await, None, "no other node has its name");
        agent.stop().await.unwrap();
        agent.launch().unwrap();
    }
    agent.ended().await;
}

#[tokio::test]
async fn a_node_that_is_unknown_before_its_first_certificate_joins_again() {
    let site = Site::with(1, &["--approve-joins"]).await;
    let token = site.token().await;
    let mut agent = site.agent("n1", &token);
    agent.logs("an operator has yet to accept the node").await;
    agent.kill().await.unwrap();
    let uid = site.uid("n1").await;
    let keys = &site.store.keys;
    let gone = Txn::new()
        .delete(&keys.node(&"n1".parse().unwrap()))
        .delete(&keys.certificate(&uid));
    site.commit(gone).await;
    agent.launch().unwrap();
    agent.logs("an operator has yet to accept the node").await;
    let next = site.uid("n1").await;
    assert_ne!(next, uid);
    assert_eq!(agent.stored()["uid"], next);
}
