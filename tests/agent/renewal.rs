//! Certificates are replaced: in time, by an operator's wish, and with the role.

use quorate::proto::Role;
use quorate::proto::node_certificate::State;

use super::site::{Site, TestAgent};
use crate::identity::site::read;
use crate::support::wait::{SOON, eventually};

/// Waits until the agent shows another certificate than this one; its public key and subject.
async fn other_than(agent: &TestAgent, chain: &str) -> String {
    eventually(SOON, "another certificate", async || {
        let now = agent.chain();
        if now == chain { Err("the same") } else { Ok(now) }
    })
    .await
}

#[tokio::test]
async fn a_certificate_is_replaced_in_time_with_another_key_and_the_node_stays_ready() {
    let site = Site::start().await;
    let token = site.token().await;
    let mut agent = site.agent_with("n1", Some(&token), &["--renewed-at-ms=1000"]);
    agent.ready().await;
    let uid = site.uid("n1").await;
    let mut chains = vec![agent.chain()];
    let mut keys = vec![read(&chains[0]).1];
    for _ in 0..3 {
        let next = other_than(&agent, chains.last().unwrap()).await;
        let (_, key) = read(&next);
        assert!(!keys.contains(&key), "each request has a key of its own");
        keys.push(key);
        chains.push(next);
        site.shows("n1", "READY", "yes").await;
    }
    assert_eq!(site.uid("n1").await, uid);
    // Each over a channel of its own.
    agent.opens_another_session(3.0).await;
    agent.stop().await.unwrap();
    let record = site.record(&uid).await;
    if agent.stored()["requestedKey"].is_null() && record.state() == State::Issued {
        assert_eq!(agent.chain(), record.chain);
    }
}

/// INV-13.
#[tokio::test]
async fn an_operators_wish_and_another_role_replace_it_at_once() {
    let site = Site::start().await;
    let token = site.token().await;
    let mut agent = site.agent("n1", &token);
    agent.ready().await;
    let first = agent.chain();
    site.run(&["certificate", "rotate", "n1"]).await.expect_done();
    let second = other_than(&agent, &first).await;
    assert_ne!(read(&second).1, read(&first).1);
    agent.logs("an operator asks for another certificate").await;

    site.run(&["promote", "n1", "--wait"]).await.expect_done();
    eventually(SOON, "the certificate of a manager", async || {
        let (subject, _) = read(&agent.chain());
        if subject.ends_with("OU=quorate-manager") {
            Ok(())
        } else {
            Err(subject)
        }
    })
    .await;
    agent.ready().await;
    let uid = site.uid("n1").await;
    // It is no member yet, so that `quorate demote` refuses.
    site.change("n1", |node| {
        node.spec.get_or_insert_default().set_desired_role(Role::Worker)
    })
    .await;
    eventually(SOON, "the certificate of a worker", async || {
        let (subject, _) = read(&agent.chain());
        if subject.ends_with("OU=quorate-worker") {
            Ok(())
        } else {
            Err(subject)
        }
    })
    .await;
    assert_eq!(site.uid("n1").await, uid);
}

/// Waits until a request of the node waits for its answer.
async fn pending(site: &Site, uid: &str) {
    eventually(SOON, "another one is requested", async || {
        match site.record(uid).await.state() {
            State::Pending => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
}

#[tokio::test]
async fn an_agent_that_ends_before_the_answer_takes_it_when_it_is_back() {
    let site = Site::start().await;
    let token = site.token().await;
    let mut agent = site.agent("n1", &token);
    agent.ready().await;
    let uid = site.uid("n1").await;
    let first = agent.chain();
    // The leader leaves the request pending.
    let key = std::path::Path::new(&site.ca).join("current/node-ca.key");
    let kept = std::fs::read(&key).unwrap();
    std::fs::remove_file(&key).unwrap();
    site.run(&["certificate", "rotate", "n1"]).await.expect_done();
    pending(&site, &uid).await;
    agent.kill().await.unwrap();
    let requested = agent.stored()["requestedKey"].clone();
    assert!(requested.is_string());
    std::fs::write(&key, kept).unwrap();
    agent.launch().unwrap();
    let second = other_than(&agent, &first).await;
    assert_eq!(agent.stored()["certificate"]["key"], requested);
    eventually(SOON, "it is the one on record", async || {
        let record = site.record(&uid).await;
        if record.chain == second || record.chain == agent.chain() {
            Ok(())
        } else {
            Err(record.chain)
        }
    })
    .await;
}

/// The metric that an operator is alerted by.
#[tokio::test]
async fn what_is_left_of_a_certificate_is_counted_while_another_one_is_waited_for() {
    let site = Site::start().await;
    let token = site.token().await;
    let mut agent = site.agent("n1", &token);
    agent.ready().await;
    let uid = site.uid("n1").await;
    // The leader leaves the request pending.
    std::fs::remove_file(std::path::Path::new(&site.ca).join("current/node-ca.key")).unwrap();
    site.run(&["certificate", "rotate", "n1"]).await.expect_done();
    pending(&site, &uid).await;
    let left = async || agent.metric("quorate_agent_certificate_seconds").await;
    let before = left().await;
    eventually(SOON, "less is left", async || match left().await {
        now if now < before => Ok(()),
        now => Err(now),
    })
    .await;
    assert_eq!(site.record(&uid).await.state(), State::Pending);
}
