//! Two processes with the certificate of one node.

use quorate::proto::Condition;
use quorate::store::object::condition;
use tokio::time::sleep;
use tonic::Code;

use super::agent::{Agent, held};
use crate::control::site::{Joined, Member, Serving, Site};
use crate::support::quorate::TestReplica;
use crate::support::wait::{QUIET, SOON, eventually};

async fn begin(flags: &[&str]) -> (Site, TestReplica, Member) {
    let Joined {
        site, replica, node, ..
    } = Serving::with(flags).await.join("n1").await;
    (site, replica, node)
}

async fn duplicate(site: &Site) -> Option<Condition> {
    let status = site.node("n1").await.status.unwrap_or_default();
    condition::find(&status.conditions, "DuplicateAgent").cloned()
}

async fn expect_duplicate(site: &Site, expected: bool) {
    let what = format!("the condition DuplicateAgent is there: {expected}");
    eventually(SOON, &what, async || match duplicate(site).await {
        found if found.is_some() == expected => Ok(()),
        found => Err(format!("{found:?}")),
    })
    .await;
}

#[tokio::test]
async fn of_two_processes_the_newer_one_wins_and_the_third_change_in_a_minute_is_a_condition() {
    let (site, mut replica, node) = begin(&["--session-lease-ms=300000"]).await;
    let mut agent = Agent::open(&site, &mut replica, &node).await;
    let lease = held(&site, "n1").await.1;
    for change in 1..=3 {
        let newer = Agent::open(&site, &mut replica, &node).await;
        let status = agent.ended().await;
        assert_eq!(status.code(), Code::Aborted, "{status:?}");
        let (session, now) = held(&site, "n1").await;
        assert_eq!((session.session_id, now), (newer.begun.session_id.clone(), lease));
        if change < 3 {
            assert_eq!(duplicate(&site).await, None, "after {change} changes");
        }
        agent = newer;
    }
    expect_duplicate(&site, true).await;
    let described = site.run(&["describe", "node", "n1"]).await.expect_done();
    assert!(described.contains("DuplicateAgent"), "{described}");
    // It goes on undisturbed, and the one of before puts nothing back.
    agent.keep_beating();
    sleep(QUIET).await;
    let (session, _) = held(&site, "n1").await;
    assert_eq!(session.session_id, agent.begun.session_id);
}

#[tokio::test]
async fn an_agent_that_comes_back_after_its_connection_has_ended_is_no_second_one() {
    let (site, mut replica, node) = begin(&["--session-lease-ms=300000"]).await;
    for sessions in 1..=5 {
        drop(Agent::open(&site, &mut replica, &node).await);
        let series = "quorate_sessions_ended_total{reason=\"closed\"}";
        eventually(SOON, "its session is over", async || {
            let closed = replica.metric(series).await;
            if closed >= f64::from(sessions) {
                Ok(())
            } else {
                Err(closed)
            }
        })
        .await;
    }
    sleep(QUIET).await;
    assert_eq!(duplicate(&site).await, None);
}

#[tokio::test]
async fn one_agent_that_is_left_clears_the_condition() {
    // Two leases without another session are enough.
    let (site, mut replica, node) = begin(&["--session-lease-ms=8000"]).await;
    site.change("n1", |node| {
        let conditions = &mut node.status.get_or_insert_default().conditions;
        condition::set(
            conditions,
            "DuplicateAgent",
            ("SessionsCollide", "two"),
            0,
            jiff::Timestamp::now(),
        );
    })
    .await;
    let mut agent = Agent::open(&site, &mut replica, &node).await;
    agent.keep_beating();
    eventually(SOON, "the condition is gone", async || {
        // A busy machine may cost it its lease.
        if agent.is_over() {
            agent = Agent::open(&site, &mut replica, &node).await;
            agent.keep_beating();
        }
        match duplicate(&site).await {
            Some(condition) => Err(format!("{condition:?}")),
            None => Ok(()),
        }
    })
    .await;
}
