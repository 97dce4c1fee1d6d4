//! An etcd that runs is left alone: an agent that ends, silence and an unknown node stop none.

use quorate::etcd::Txn;

use super::site::Managers;
use crate::support::wait::QUIET;

#[tokio::test]
async fn etcd_outlives_its_agent_and_the_next_agent_takes_it_over() {
    let managers = Managers::start().await;
    let mut n2 = managers.worker_with("n2", &[]).await;
    let id = managers.voter(&n2).await;
    let pid = n2.etcd().unwrap();
    n2.kill().await.unwrap();
    tokio::time::sleep(QUIET).await;
    assert_eq!(n2.etcd(), Some(pid));
    managers.writes("without an agent").await;

    managers.relaunch(&mut n2, &[]);
    n2.logs("etcd runs already").await;
    n2.serves().await;
    assert_eq!(n2.etcd(), Some(pid));
    let stopped = n2.stop().await.unwrap().unwrap();
    assert_eq!(stopped.code(), Some(0));
    assert_eq!(n2.etcd(), Some(pid), "a stop of the agent is none of etcd");

    // What it has taken over, it stops as its own.
    managers.relaunch(&mut n2, &[]);
    n2.ready().await;
    managers.demote("n2").await;
    n2.rests().await;
    managers.counts(1).await;
    n2.logs(&format!("set the data of member {id} aside")).await;
}

#[tokio::test]
async fn an_etcd_that_ends_is_started_again_as_the_same_member() {
    let managers = Managers::start().await;
    let n2 = managers.worker("n2").await;
    let id = managers.voter(&n2).await;
    let pid = n2.etcd().unwrap();
    let process = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(process, rustix::process::Signal::KILL).unwrap();
    n2.lost(pid).await;
    n2.serves().await;
    assert_eq!(managers.votes("n2").await, id);
    assert!(n2.metric("quorate_agent_etcd_starts_total").await >= 2.0);
}

/// All machines of a cluster may lose their power at once: replicas need etcd, and etcd is started by agents.
#[tokio::test]
async fn etcd_is_started_again_while_no_replica_can_be_reached() {
    let mut managers = Managers::start().await;
    let mut n2 = managers.worker("n2").await;
    let id = managers.voter(&n2).await;
    managers.replicas[0].stop().await.unwrap();
    n2.kill().await.unwrap();
    n2.rests().await;
    managers.relaunch(&mut n2, &["--etcd-ends-with-agent"]);
    n2.runs().await;
    assert_eq!(managers.votes("n2").await, id);
    managers.writes("without a replica").await;
}

/// INV-12.
#[tokio::test]
async fn neither_silence_nor_an_unknown_node_nor_a_worker_by_an_old_word_stops_etcd() {
    let mut managers = Managers::start().await;
    let mut n2 = managers.worker("n2").await;
    managers.voter(&n2).await;
    let pid = n2.etcd().unwrap();
    // Silence.
    managers.replicas[0].stop().await.unwrap();
    tokio::time::sleep(QUIET).await;
    assert_eq!(n2.etcd(), Some(pid));
    managers.replicas[0].launch().unwrap();
    managers.replicas[0].wait_ready().await;
    n2.ready().await;
    // NotFound.
    let key = managers.store.keys.node(&"n2".parse().unwrap());
    let kept = managers.read(&key).await.unwrap();
    managers.run(&["pause", "roles"]).await.expect_done();
    managers.commit(Txn::new().delete(&key)).await;
    n2.logs("NotFound").await;
    tokio::time::sleep(QUIET).await;
    assert_eq!(n2.etcd(), Some(pid));
    managers.put(&key, kept.value.to_vec()).await;
    n2.ready().await;
    // A role of worker, while the records do not say that the member is out.
    managers
        .change("n2", |node| {
            node.status
                .get_or_insert_default()
                .set_role(quorate::proto::Role::Worker);
        })
        .await;
    tokio::time::sleep(QUIET).await;
    assert_eq!(n2.etcd(), Some(pid));
    assert!(!n2.has_ended());
}
