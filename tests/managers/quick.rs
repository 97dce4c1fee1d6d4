//! Roles that change again before what they ask for is done: each ends where the records say.

use std::fs;

use quorate::proto::Role;

use super::site::{Manager, Managers, has_log};
use crate::support::etcd::EtcdVersion;
use crate::support::wait::{QUIET, SOON, eventually};

/// An add that was taken back may still be made for so long: half a minute by default.
const DOUBT: &str = "--add-doubt-ms=2000";

/// How far a node is.
#[derive(Clone, Copy, Debug)]
enum Stage {
    /// Its desired role was written.
    Desired,
    /// Its observed role is that of a manager.
    Observed,
    /// Its agent has asked that etcd joins.
    Asked,
    /// Etcd has its member.
    Listed,
    /// Its etcd runs.
    Runs,
}

/// The request to join that is on record.
async fn request(managers: &Managers) -> Option<String> {
    let request = managers.join("n2").await.request;
    request.map(|request| request.id)
}

/// Promotes the node, and waits until the promotion has come as far.
async fn gets_to(managers: &Managers, n2: &Manager, stage: Stage) {
    let before = request(managers).await;
    managers.desire("n2", Role::Manager).await;
    let what = format!("the node gets to {stage:?}");
    eventually(SOON, &what, async || {
        let status = managers.node("n2").await.status.unwrap_or_default();
        let is_there = match stage {
            Stage::Desired => true,
            Stage::Observed => status.role() == Role::Manager,
            Stage::Asked => request(managers).await != before,
            Stage::Listed => managers.members().await.members.len() == 2,
            Stage::Runs => n2.etcd().is_some(),
        };
        match is_there {
            true => Ok(()),
            false => Err(format!("{status:?}")),
        }
    })
    .await;
}

/// Waits until the node is a worker of which nothing runs, and which no member is left of.
async fn is_a_worker(managers: &Managers, n2: &mut Manager) {
    managers.becomes("n2", Role::Worker).await;
    managers.counts(1).await;
    n2.rests().await;
    eventually(SOON, "nothing is noted of a member", async || {
        match n2.state.join("etcd.json").exists() || n2.data().exists() {
            true => Err("something is"),
            false => Ok(()),
        }
    })
    .await;
    managers.writes("as a worker").await;
    n2.ready().await;
}

#[tokio::test]
async fn a_promotion_that_is_taken_back_at_any_stage_leaves_a_worker_without_a_member() {
    promoted_and_taken_back(EtcdVersion::Installed).await;
}

#[tokio::test]
async fn a_promotion_that_is_taken_back_at_any_stage_leaves_no_member_of_the_next_etcd_either() {
    promoted_and_taken_back(EtcdVersion::Next).await;
}

/// INV-5, INV-12.
async fn promoted_and_taken_back(version: EtcdVersion) {
    let managers = Managers::of(version, &[], |launch| launch.flag(DOUBT)).await;
    let mut n2 = managers.worker("n2").await;
    for stage in [
        Stage::Desired,
        Stage::Observed,
        Stage::Asked,
        Stage::Listed,
        Stage::Runs,
    ] {
        eprintln!("{stage:?}");
        gets_to(&managers, &n2, stage).await;
        managers.desire("n2", Role::Worker).await;
        is_a_worker(&managers, &mut n2).await;
    }
    // It is as good as new.
    managers.voter(&n2).await;
}

#[tokio::test]
async fn a_demotion_that_is_taken_back_at_any_moment_leaves_one_voter_of_the_node() {
    demoted_and_taken_back(EtcdVersion::Installed).await;
}

#[tokio::test]
async fn a_demotion_that_is_taken_back_at_any_moment_leaves_one_voter_of_the_next_etcd() {
    demoted_and_taken_back(EtcdVersion::Next).await;
}

/// INV-5.
async fn demoted_and_taken_back(version: EtcdVersion) {
    let managers = Managers::of(version, &[], |launch| launch).await;
    let mut n2 = managers.worker("n2").await;
    let mut before = managers.voter(&n2).await;
    let of_etcd = async || managers.members().await.members;
    for is_out in [false, true] {
        managers.desire("n2", Role::Worker).await;
        if is_out {
            eventually(SOON, "its member is out", async || {
                match of_etcd().await.iter().any(|member| member.id == before) {
                    true => Err("it is listed"),
                    false => Ok(()),
                }
            })
            .await;
        }
        managers.desire("n2", Role::Manager).await;
        managers.becomes("n2", Role::Manager).await;
        let after = eventually(SOON, "one voter of the node", async || {
            let list = of_etcd().await;
            let of_node = list
                .iter()
                .filter(|member| member.name == "n2" && !member.learner);
            let ids: Vec<_> = of_node.map(|member| member.id).collect();
            // What is decided against the member that is listed still may yet be carried out.
            let is_decided = match ids[..] {
                [id] => managers.is_leaving(id).await,
                _ => true,
            };
            match (list.len(), is_decided) {
                (2, false) => Ok(ids[0]),
                _ => Err(format!("{list:?}")),
            }
        })
        .await;
        n2.serves().await;
        n2.ready().await;
        managers.writes("as a manager").await;
        assert!(has_log(&n2.data()));
        if is_out {
            assert_ne!(after, before);
            assert_eq!(n2.aside(before).len(), 1, "nothing is deleted");
        }
        before = after;
    }
}

#[tokio::test]
async fn a_node_that_is_promoted_and_demoted_before_its_agent_joins_starts_nothing() {
    let managers = Managers::start().await;
    let mut n2 = managers.worker("n2").await;
    n2.stop().await.unwrap();
    managers.promote("n2").await;
    // A manager without a member: no command demotes it.
    managers.run(&["demote", "n2", "--yes"]).await.expect_code(4);
    managers.desire("n2", Role::Worker).await;
    managers.becomes("n2", Role::Worker).await;
    managers.relaunch(&mut n2, &["--etcd-ends-with-agent"]);
    n2.ready().await;
    tokio::time::sleep(QUIET).await;
    assert_eq!(n2.etcd(), None);
    assert!(!n2.data().exists() && !n2.state.join("etcd.json").exists());
    managers.counts(1).await;
    assert_eq!(
        managers.join("n2").await.request,
        None,
        "it has asked for nothing"
    );
    let left = fs::read_dir(&n2.state).unwrap().flatten();
    let mut names = left.map(|entry| entry.file_name().into_string().unwrap());
    assert!(names.all(|name| !name.starts_with("etcd.")));
}
