//! The session of a node: at another server when one is gone, and until a removal.

use quorate::etcd::Txn;

use super::site::Site;
use crate::support::wait::{QUIET, SOON, eventually};

#[tokio::test]
async fn an_agent_turns_to_another_server_and_the_node_stays_ready() {
    let mut site = Site::with(2, &[]).await;
    let token = site.token().await;
    let mut agent = site.agent("n1", &token);
    agent.ready().await;
    for _ in 0..2 {
        let opened = agent.metric("quorate_agent_sessions_opened_total").await;
        let log = agent.log();
        let (_, at) = log.rsplit_once("session open at ").unwrap();
        let server = at.split_whitespace().next().unwrap();
        let serving = site.servers.iter().position(|address| address == server).unwrap();
        site.replicas[serving].kill().await.unwrap();
        agent.opens_another_session(opened).await;
        agent.ready().await;
        site.shows("n1", "READY", "yes").await;
        site.replicas[serving].launch().unwrap();
        site.replicas[serving].wait_ready().await;
    }
}

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
        assert_eq!(agent.stored(), stored);
        // It never comes back, not even with a token that lets in.
        agent.stop().await.unwrap();
        agent.launch().unwrap();
    }
    assert_eq!(agent.ended().await.code(), Some(4));
    // An empty state makes another node.
    std::fs::remove_dir_all(&agent.state).unwrap();
    agent.stop().await.unwrap();
    agent.launch().unwrap();
    agent.ready().await;
    assert_ne!(site.uid("n1").await, uid);
}

/// INV-12.
#[tokio::test]
async fn neither_an_unknown_node_nor_silence_ends_an_agent() {
    let mut site = Site::start().await;
    let token = site.token().await;
    let mut agent = site.agent("n1", &token);
    agent.ready().await;
    let key = site.store.keys.node(&"n1".parse().unwrap());
    let kept = site.read(&key).await.unwrap();
    site.commit(Txn::new().delete(&key)).await;
    agent.logs("NotFound").await;
    tokio::time::sleep(QUIET).await;
    assert!(!agent.has_ended(), "{}", agent.log());
    let uid = agent.stored()["uid"].clone();
    // Of the same uid. Its key was created again, so that its agent may have to wait for a server that has read it.
    site.put(&key, kept.value.to_vec()).await;
    agent.ready().await;
    assert_eq!(agent.stored()["uid"], uid);

    site.replicas[0].kill().await.unwrap();
    eventually(SOON, "the session is gone", async || {
        match agent.get("/readyz").await {
            Ok(page) if page.status == 503 => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    assert_eq!(agent.get("/livez").await.unwrap().status, 200);
    tokio::time::sleep(QUIET).await;
    assert!(!agent.has_ended(), "{}", agent.log());
    site.replicas[0].launch().unwrap();
    agent.ready().await;
}

#[tokio::test]
async fn a_stopped_agent_exits_in_order_and_leaves_its_state() {
    let site = Site::start().await;
    let token = site.token().await;
    let mut agent = site.agent("n1", &token);
    agent.ready().await;
    let stopped = agent.stop().await.unwrap().unwrap();
    assert_eq!(stopped.code(), Some(0));
    agent.chain();
}
