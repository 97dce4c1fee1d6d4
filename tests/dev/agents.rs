//! `quorate dev --agents`: nodes that join with a token.

use rustix::process::{Pid, Signal, kill_process};

use super::started::Dev;
use crate::support::quorate::quorate;
use crate::support::wait::{SOON, eventually};

async fn nodes(endpoints: &str) -> String {
    let flag = format!("--etcd-endpoints={endpoints}");
    quorate(["get", "nodes", "--no-headers", &flag])
        .await
        .expect_done()
}

/// Waits until these agents, and no others, have a ready node.
async fn ready(endpoints: &str, names: &[&str]) {
    eventually(SOON, "the nodes are ready", async || {
        let table = nodes(endpoints).await;
        let rows = table
            .lines()
            .map(|row| row.split_whitespace().collect::<Vec<_>>());
        let agents: Vec<_> = rows.filter(|row| row[0].starts_with("agent-")).collect();
        let ready = agents.iter().filter(|row| row[3] == "yes").map(|row| row[0]);
        if agents.len() == names.len() && ready.eq(names.iter().copied()) {
            Ok(())
        } else {
            Err(table)
        }
    })
    .await;
}

#[tokio::test]
async fn agents_join_one_is_removed_one_is_killed_and_nothing_is_left() {
    let parent = tempfile::tempdir().unwrap();
    let data = format!("--data-dir={}", parent.path().join("data").display());
    let args = ["--no-kubernetes", "--agents=3", data.as_str()];
    let mut dev = Dev::start(&args);
    dev.wait_for("Ctrl-C stops everything").await;
    let output = dev.output();
    assert!(output.contains("agents          starting 3 agents"), "{output}");
    let (_, endpoints) = output.split_once("export QUORATE_ETCD_ENDPOINTS=").unwrap();
    let endpoints = endpoints.split_whitespace().next().unwrap().to_owned();
    ready(&endpoints, &["agent-1", "agent-2", "agent-3"]).await;

    let flag = format!("--etcd-endpoints={endpoints}");
    quorate(["delete", "node", "agent-3", "--yes", "--force", &flag])
        .await
        .expect_done();
    dev.wait_for("agent-3 was removed from the cluster, and has ended")
        .await;
    kill_process(Pid::from_raw(dev.child("--name=agent-2")).unwrap(), Signal::KILL).unwrap();
    dev.wait_for("agent agent-2 ended (signal: 9 (SIGKILL)), and is started again")
        .await;
    eventually(SOON, "agent-2 runs again", async || {
        dev.find_child("--name=agent-2").ok_or("it does not")
    })
    .await;
    ready(&endpoints, &["agent-1", "agent-2"]).await;
    dev.signal(Signal::INT);
    assert_eq!(dev.ended().await.code(), Some(0), "{}", dev.output());
    dev.assert_nothing_is_left().await;
}

#[tokio::test]
async fn agents_of_an_earlier_run_are_the_nodes_that_they_were() {
    let parent = tempfile::tempdir().unwrap();
    let data = format!("--data-dir={}", parent.path().join("data").display());
    let args = ["--no-kubernetes", "--agents=1", data.as_str()];
    let mut states = Vec::new();
    for _ in 0..2 {
        let mut dev = Dev::start(&args);
        dev.wait_for("Ctrl-C stops everything").await;
        let state = std::fs::read_to_string(parent.path().join("data/agents/agent-1/agent.json")).unwrap();
        states.push(state);
        dev.signal(Signal::INT);
        assert_eq!(dev.ended().await.code(), Some(0), "{}", dev.output());
        dev.assert_nothing_is_left().await;
    }
    assert_eq!(states[0], states[1]);
}

/// Waits until so many members of etcd vote and are healthy.
async fn voters(endpoints: &str, count: usize) {
    let flag = format!("--etcd-endpoints={endpoints}");
    eventually(SOON, &format!("{count} voters"), async || {
        let table = quorate(["get", "members", "--no-headers", &flag]).await;
        let rows: Vec<&str> = table.stdout.lines().collect();
        let vote = |row: &&str| row.contains(" voter ") && row.contains(" healthy ");
        if rows.len() == count && rows.iter().all(vote) {
            Ok(())
        } else {
            Err(format!("{table:?}"))
        }
    })
    .await;
}

#[tokio::test]
async fn an_agent_that_is_promoted_starts_an_etcd_also_in_the_next_run_until_it_is_demoted() {
    let parent = tempfile::tempdir().unwrap();
    let data = format!("--data-dir={}", parent.path().join("data").display());
    let args = ["--no-kubernetes", "--agents=1", data.as_str()];
    for change in ["promote", "demote"] {
        let mut dev = Dev::start(&args);
        dev.wait_for("Ctrl-C stops everything").await;
        let output = dev.output();
        assert!(output.contains("promote agent-1 --wait"), "{output}");
        let (_, endpoints) = output.split_once("export QUORATE_ETCD_ENDPOINTS=").unwrap();
        let endpoints = endpoints.split_whitespace().next().unwrap().to_owned();
        ready(&endpoints, &["agent-1"]).await;
        let (before, after) = match change {
            "promote" => (1, 2),
            _ => (2, 1),
        };
        voters(&endpoints, before).await;
        let flag = format!("--etcd-endpoints={endpoints}");
        let yes = (change == "demote").then_some("--yes");
        let command = [change, "agent-1", "--wait", "--timeout=100s", &flag];
        quorate(command.into_iter().chain(yes)).await.expect_done();
        voters(&endpoints, after).await;
        dev.signal(Signal::INT);
        assert_eq!(dev.ended().await.code(), Some(0), "{}", dev.output());
        dev.assert_nothing_is_left().await;
    }
}
