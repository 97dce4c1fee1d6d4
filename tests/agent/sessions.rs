//! The session of a node: at another server when one is gone, and of one agent at a time.

use quorate::etcd::Txn;
use quorate::proto::Condition;
use quorate::store::object::condition;

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

async fn duplicate(site: &Site) -> Option<Condition> {
    let status = site.node("n1").await.status.unwrap_or_default();
    condition::find(&status.conditions, "DuplicateAgent").cloned()
}

#[tokio::test]
async fn two_agents_with_one_state_take_the_session_from_each_other_until_one_is_stopped() {
    let site = Site::with(1, &["--session-lease-ms=8000"]).await;
    let token = site.token().await;
    let mut first = site.agent("n1", &token);
    first.ready().await;
    let (uid, stored) = (site.uid("n1").await, first.stored());
    let mut copy = site.another_agent("n1", None, Some(&first.file()));
    // The newer session wins, whichever agent opens it.
    copy.logs("session open at").await;
    first.logs("another session of node n1 has begun (Aborted)").await;
    copy.logs("another session of node n1 has begun (Aborted)").await;
    eventually(SOON, "the node says so", async || {
        duplicate(&site).await.ok_or("it does not")
    })
    .await;
    let described = site.run(&["describe", "node", "n1"]).await.expect_done();
    assert!(described.contains("DuplicateAgent"), "{described}");
    assert!(!first.has_ended() && !copy.has_ended(), "a session is no removal");

    assert_eq!(first.stop().await.unwrap().unwrap().code(), Some(0));
    copy.ready().await;
    eventually(SOON, "the condition is gone", async || {
        match duplicate(&site).await {
            Some(condition) => Err(format!("{condition:?}")),
            None => Ok(()),
        }
    })
    .await;
    site.shows("n1", "READY", "yes").await;
    assert_eq!((site.uid("n1").await, copy.stored()), (uid, stored));
}
