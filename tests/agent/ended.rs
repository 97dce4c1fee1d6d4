//! Certificates that arrive late, that have ended, or that are lost.

use std::fs;

use quorate::proto::node_certificate::State;

use super::site::{Site, TestAgent};
use crate::support::clock;
use crate::support::wait::{SOON, eventually};

#[tokio::test]
async fn a_certificate_that_was_issued_while_its_agent_was_away_is_replaced_in_time() {
    let site = Site::with(1, &["--approve-joins", "--node-cert-ttl=3h"]).await;
    let token = site.token().await;
    // After an hour and a half.
    let flags = ["--renewed-at-ms=5400000"];
    let mut agent = site.agent_with("n1", Some(&token), &flags);
    agent.logs("an operator has yet to accept the node").await;
    agent.stop().await.unwrap();
    site.run(&["accept", "n1"]).await.expect_done();
    let uid = site.uid("n1").await;
    let issued = eventually(SOON, "the certificate is issued", async || {
        let record = site.record(&uid).await;
        match record.state() {
            State::Issued => Ok(record.chain),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    let mut agent = site.agent_in(clock::variables("+2h"), "n1", &token, &flags);
    agent
        .logs("requesting another certificate: its certificate ends in 3")
        .await;
    let next = eventually(SOON, "another one", async || {
        let chain = agent.chain();
        if chain == issued {
            Err("the same")
        } else {
            Ok(chain)
        }
    })
    .await;
    agent.ready().await;
    // This process has made the key for it, so that it counts as new, whatever the wall clock says.
    let left = agent.metric("quorate_agent_certificate_seconds").await;
    assert!(left > 10_000.0, "{left}");
    assert_eq!(site.record(&uid).await.chain, next);
}

#[tokio::test]
async fn a_node_whose_certificate_has_ended_comes_back_with_a_token_of_its_own_alone() {
    let site = Site::with(1, &["--node-cert-ttl=1h"]).await;
    let token = site.token().await;
    let mut agent = site.agent("n1", &token);
    agent.ready().await;
    let (uid, ended) = (site.uid("n1").await, agent.chain());
    agent.stop().await.unwrap();
    let mut agent = site.agent_in(clock::variables("+2h"), "n1", &token, &[]);
    agent
        .logs("the certificate of the node has ended, and no other one was received: another node has this name")
        .await;
    eventually(SOON, "it is not ready", async || {
        match agent.get("/readyz?verbose").await {
            Ok(page) if page.body.contains("it has ended: another node has this name") => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    assert_eq!(agent.chain(), ended);

    let own = site.token_of(&["create", "--node=n1"]).await;
    fs::copy(&own, &token).unwrap();
    agent.ready().await;
    let next = agent.chain();
    assert_ne!(next, ended);
    let record = site.record(&uid).await;
    assert_eq!((site.uid("n1").await, record.chain), (uid.clone(), next));
    assert_eq!(agent.stored()["uid"], uid);
    let left = agent.metric("quorate_agent_certificate_seconds").await;
    assert!(left > 3000.0, "{left}");
    site.shows("n1", "READY", "yes").await;

    // The token was for one time.
    let mut other = site.another_agent("n1", Some(&own), None);
    other.logs("InvalidArgument").await;
    assert_eq!(site.record(&uid).await.state(), State::Issued);
}

/// Waits until `/readyz` of an agent answers so, with this in its text.
async fn page(agent: &TestAgent, status: u16, text: &str) {
    let what = format!("/readyz answers {status} with {text:?}");
    eventually(SOON, &what, async || {
        let page = agent.get("/readyz?verbose").await;
        match page.map_err(|error| error.to_string())? {
            page if page.status == status && page.body.contains(text) => Ok(()),
            page => Err(format!("{} {}", page.status, page.body)),
        }
    })
    .await;
}

/// The clock of the agent gives the certificate another hour, in which no server would take it.
#[tokio::test]
async fn a_certificate_that_ends_by_the_clock_of_the_servers_has_ended_until_one_takes_it() {
    let mut site = Site::with(1, &["--node-cert-ttl=1h"]).await;
    let token = site.token().await;
    let mut agent = site.agent("n1", &token);
    agent.ready().await;
    let (uid, first) = (site.uid("n1").await, agent.chain());
    site.replace_off_by("+90m").await;
    // Its own token lets in another node alone.
    page(
        &agent,
        503,
        "[-]certificate failed: it has ended: another node has this name",
    )
    .await;
    agent.logs("the certificate of the node has ended").await;
    agent.logs("the certificate has expired (PermissionDenied)").await;
    assert_eq!(agent.metric("quorate_agent_certificate_seconds").await, 0.0);
    assert_eq!(
        (agent.chain(), site.uid("n1").await),
        (first.clone(), uid.clone())
    );

    // The clock of the server was wrong: the certificate opens a session, in which the agent requests another one.
    site.replace_off_by("+0m").await;
    page(&agent, 200, "[+]certificate ok").await;
    let renewed = eventually(SOON, "another certificate", async || {
        let chain = agent.chain();
        if chain == first {
            Err("the same")
        } else {
            Ok(chain)
        }
    })
    .await;
    let left = agent.metric("quorate_agent_certificate_seconds").await;
    assert!(left > 2000.0, "{left}");
    assert_eq!(site.uid("n1").await, uid);
    assert!(!agent.has_ended(), "{}", agent.log());

    // The clock of the node is wrong.
    site.replace_off_by("+90m").await;
    page(&agent, 503, "[-]certificate failed: it has ended").await;
    assert_eq!(agent.chain(), renewed);
    let own = site.token_of(&["create", "--node=n1"]).await;
    fs::copy(&own, &token).unwrap();
    agent.ready().await;
    assert_ne!(agent.chain(), renewed);
    assert_eq!(site.uid("n1").await, uid);
}

#[tokio::test]
async fn an_agent_that_remembers_nothing_takes_its_node_over_with_a_token_of_it() {
    let site = Site::start().await;
    let token = site.token().await;
    let mut agent = site.agent("n1", &token);
    agent.ready().await;
    let (uid, lost) = (site.uid("n1").await, agent.chain());
    agent.stop().await.unwrap();
    fs::remove_file(agent.file()).unwrap();
    agent.launch().unwrap();
    agent.logs("no certificate yet: another node has this name").await;
    let own = site.token_of(&["create", "--node=n1"]).await;
    fs::copy(&own, &token).unwrap();
    agent.ready().await;
    assert_eq!(site.uid("n1").await, uid);
    assert_ne!(agent.chain(), lost);
}
