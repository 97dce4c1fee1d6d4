//! etcd is restored from a snapshot: agents go on where the cluster keeps its id, and come back as the manual says where it does not.

use std::fs;

use super::site::Site;

#[tokio::test]
async fn agents_go_on_after_a_restore_that_keeps_the_id_of_the_cluster() {
    let mut site = Site::start().await;
    let token = site.token().await;
    let mut agent = site.agent("n1", &token);
    agent.ready().await;
    let (uid, chain) = (site.uid("n1").await, agent.chain());
    let snapshot = site.etcd.snapshot();
    let mut later = site.agent("n2", &token);
    later.ready().await;
    let unknown = site.uid("n2").await;
    let opened = agent.metric("quorate_agent_sessions_opened_total").await;
    site.restore(&snapshot, None).await;
    agent.opens_another_session(opened).await;
    agent.ready().await;
    site.shows("n1", "READY", "yes").await;
    assert_eq!((site.uid("n1").await, agent.chain()), (uid, chain));

    // The snapshot is older than this node. Nothing says that it was removed (INV-12).
    later
        .logs(&format!("there is no node with the uid {unknown}"))
        .await;
    assert!(!later.has_ended(), "{}", later.log());
    later.stop().await.unwrap();
    fs::remove_file(later.file()).unwrap();
    later.launch().unwrap();
    later.ready().await;
    site.shows("n2", "READY", "yes").await;
    assert_ne!(site.uid("n2").await, unknown);
}

#[tokio::test]
async fn agents_need_a_token_of_their_node_after_a_restore_as_another_cluster() {
    let mut site = Site::start().await;
    let token = site.token().await;
    let mut agent = site.agent("n1", &token);
    agent.ready().await;
    let uid = site.uid("n1").await;
    let snapshot = site.etcd.snapshot();
    site.restore(&snapshot, Some("another-token")).await;
    agent
        .logs("invalid peer certificate: certificate not valid for name \"control.")
        .await;
    site.shows("n1", "READY", "no").await;
    assert!(!agent.has_ended(), "{}", agent.log());

    let own = site.token_of(&["create", "--node=n1"]).await;
    agent.stop().await.unwrap();
    fs::rename(agent.file(), agent.state.join("agent.json.former")).unwrap();
    fs::copy(&own, &token).unwrap();
    agent.launch().unwrap();
    agent.ready().await;
    site.shows("n1", "READY", "yes").await;
    assert_eq!(site.uid("n1").await, uid, "it is the node that it was");
}
