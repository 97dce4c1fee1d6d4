//! An agent is killed after any step: the next one ends where the records say, and no member is left over.

use std::collections::BTreeSet;

use super::rotation::RESTARTED;
use super::site::{Manager, Managers};
use crate::layers::source::Files;
use crate::support::etcd::EtcdVersion;
use crate::support::wait::{SOON, eventually, same};

/// Steps of an agent at which it dies: on the way up, and on the way down.
const PROMOTED: [&str; 6] = [
    "manager.joined",
    "manager.certificate-issued",
    "manager.before-note",
    "manager.noted",
    "manager.before-start",
    "manager.started",
];
const DEMOTED: [&str; 4] = [
    "manager.before-note",
    "manager.noted",
    "manager.stopped",
    "manager.set-aside",
];

#[test]
fn at_every_point_of_the_managers_part_an_agent_dies_in_these_tests() {
    let mut points = BTreeSet::new();
    for (_, file) in Files::below(&["src/agent"]).iter() {
        let quoted = file
            .text
            .split('"')
            .filter(|quoted| quoted.starts_with("manager."));
        points.extend(quoted.map(str::to_owned));
    }
    let tested = [&PROMOTED[..], &DEMOTED, &RESTARTED].concat();
    let tested: BTreeSet<String> = tested.into_iter().map(str::to_owned).collect();
    assert_eq!(points, tested);
}

/// Starts the agent with this point armed, and returns once it has aborted there.
async fn aborts_at(managers: &Managers, n2: &mut Manager, point: &str, cause: impl AsyncFnOnce()) {
    n2.stop().await.unwrap();
    let crash = format!("--crash-at={point}");
    managers.relaunch(n2, &["--etcd-ends-with-agent", &crash]);
    cause().await;
    let status = n2.ended().await;
    assert_eq!(status.code(), None, "{point}: {}", n2.log());
    assert!(n2.log().contains(&format!("failpoint {point}")), "{}", n2.log());
    managers.relaunch(n2, &["--etcd-ends-with-agent"]);
}

#[tokio::test]
async fn an_agent_that_is_killed_at_any_step_of_a_promotion_ends_as_one_voter() {
    killed_while_it_is_promoted(EtcdVersion::Installed).await;
}

#[tokio::test]
async fn an_agent_that_is_killed_at_any_step_of_a_promotion_ends_as_one_voter_of_the_next_etcd() {
    killed_while_it_is_promoted(EtcdVersion::Next).await;
}

async fn killed_while_it_is_promoted(version: EtcdVersion) {
    let managers = Managers::with_tls(version, &[]).await;
    let mut n2 = managers.worker("n2").await;
    for point in PROMOTED {
        let promote = async || managers.promote("n2").await;
        aborts_at(&managers, &mut n2, point, promote).await;
        managers.votes("n2").await;
        n2.serves().await;
        managers.counts(2).await;
        managers.demote("n2").await;
        n2.rests().await;
        managers.counts(1).await;
        n2.ready().await;
    }
}

#[tokio::test]
async fn an_agent_that_is_killed_at_any_step_of_a_demotion_sets_the_data_aside_once() {
    killed_while_it_is_demoted(EtcdVersion::Installed).await;
}

#[tokio::test]
async fn an_agent_that_is_killed_at_any_step_of_a_demotion_sets_the_data_of_the_next_etcd_aside_once() {
    killed_while_it_is_demoted(EtcdVersion::Next).await;
}

async fn killed_while_it_is_demoted(version: EtcdVersion) {
    let managers = Managers::with_tls(version, &[]).await;
    let mut n2 = managers.worker("n2").await;
    for point in DEMOTED {
        let id = managers.voter(&n2).await;
        // It votes before its agent notes that.
        n2.noted_as_started().await;
        let demote = async || {
            // Its etcd is healthy again: without it, there is no quorum to demote it with.
            managers.writes(point).await;
            managers.demote("n2").await;
        };
        aborts_at(&managers, &mut n2, point, demote).await;
        n2.ready().await;
        n2.rests().await;
        managers.counts(1).await;
        eventually(SOON, "its data is set aside", async || {
            same(
                (n2.aside(id).len(), n2.state.join("etcd.json").exists()),
                (1, false),
            )
        })
        .await;
    }
}
