//! Nodes become voters and workers again while a client writes all the time, and the raft leader is always among those that leave.

use std::fs;
use std::time::Duration;

use quorate::etcd::Etcd;

use super::site::{Manager, Managers};
use crate::support::client::{config, connect_with, follow, raft_leader};
use crate::support::etcd::EtcdVersion;
use crate::support::wait::{SOON, eventually, same};
use crate::support::writer::Writer;

/// Elections that take so long that a busy machine is no reason for one, and longer than the requests of a few changes of members
/// together. Where leadership is moved before the raft leader goes, there is none.
const ELECTION: Duration = Duration::from_secs(8);

/// The flags of the first etcd for that, and the settings of the others.
const FLAGS: [&str; 2] = ["--election-timeout=8000", "--heartbeat-interval=400"];
const SETTINGS: &str = "ETCD_ELECTION_TIMEOUT=8000\nETCD_HEARTBEAT_INTERVAL=400\n";

/// The names of the voters, in order.
async fn voters(etcd: &Etcd) -> Vec<String> {
    let list = eventually(SOON, "the member list", async || etcd.list_members().await).await;
    let mut names: Vec<String> = list.voters().map(|voter| voter.name.clone()).collect();
    names.sort();
    names
}

/// Waits until these vote. A member that is behind lists others for a moment.
async fn vote(etcd: &Etcd, names: &[&str]) -> Vec<String> {
    let names: Vec<String> = names.iter().map(ToString::to_string).collect();
    eventually(SOON, "these are the voters", async || {
        same(voters(etcd).await, names.clone())
    })
    .await
}

/// Demotes the raft leader through another member, until one of these voters is left. Returns its name.
async fn to_one_voter(etcd: &Etcd, nodes: &[Manager], mut left: Vec<String>) -> String {
    loop {
        let leading = eventually(SOON, "one of them is the raft leader", async || {
            let name = raft_leader(etcd).await.name;
            match left.contains(&name) {
                true => Ok(name),
                false => Err(name),
            }
        })
        .await;
        if left == [leading.as_str()] {
            return leading;
        }
        let other = nodes
            .iter()
            .find(|node| node.name != leading && left.contains(&node.name));
        let other = other.expect("an agent keeps another voter");
        let demote = ["demote", &leading, "--yes", "--wait", "--timeout=120s"];
        eventually(SOON, "it is demoted", async || {
            // Refused while a member has yet to answer, as on a busy machine.
            let demoted = other.run(&demote).await;
            match demoted.code {
                0 => Ok(()),
                _ => Err(demoted.stderr),
            }
        })
        .await;
        if let Some(node) = nodes.iter().find(|node| node.name == leading) {
            node.rests().await;
        }
        left.retain(|name| *name != leading);
        eventually(SOON, "the others stay", async || {
            same(voters(etcd).await, left.clone())
        })
        .await;
    }
}

/// INV-5.
async fn from_one_member_to_four_and_back_to_one_twice(version: EtcdVersion) {
    let managers = Managers::of(version, &FLAGS, |launch| launch).await;
    let settings = managers.home().join("etcd.settings");
    fs::write(&settings, SETTINGS).unwrap();
    let flag = format!("--etcd-settings={}", settings.display());
    let mut nodes = Vec::new();
    for name in ["n2", "n3", "n4"] {
        let node = managers
            .worker_with(name, &["--etcd-ends-with-agent", &flag])
            .await;
        managers.keeps_etcd(name).await;
        nodes.push(node);
    }
    let etcd = connect_with(config(managers.etcd.endpoints())).await;
    let _following = follow(&etcd);
    let writer = Writer::start(&managers.etcd).await;
    // All three at once: they join one after the other, and the command waits for the last vote.
    let promote = ["promote", "n2", "n3", "n4", "--wait", "--timeout=180s"];
    managers.done(&promote).await;
    let four = vote(&etcd, &["etcd-1", "n2", "n3", "n4"]).await;
    for node in &nodes {
        node.serves().await;
    }
    managers.lets_lead("etcd-1").await;
    let left = to_one_voter(&etcd, &nodes, four).await;
    assert_ne!(left, "etcd-1");

    // Again, on nothing that is left but this one.
    let (stays, others): (Vec<&Manager>, Vec<&Manager>) = nodes.iter().partition(|node| node.name == left);
    let promote = [
        "promote",
        &others[0].name,
        &others[1].name,
        "--wait",
        "--timeout=180s",
    ];
    stays[0].run(&promote).await.expect_done();
    let three = vote(&etcd, &["n2", "n3", "n4"]).await;
    to_one_voter(&etcd, &nodes, three).await;

    let gap = writer.longest_gap().await;
    assert!(gap < ELECTION, "no write was confirmed for {gap:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_writes_sees_no_gap_of_an_election_from_one_member_to_four_and_back_twice() {
    from_one_member_to_four_and_back_to_one_twice(EtcdVersion::Installed).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_writes_sees_no_gap_of_an_election_on_the_next_etcd_either() {
    from_one_member_to_four_and_back_to_one_twice(EtcdVersion::Next).await;
}
