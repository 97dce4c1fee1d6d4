//! Promotion is one command, and so is demotion.

use quorate::proto::Role;

use super::site::{Managers, has_log};
use crate::support::etcd::EtcdVersion;
use crate::support::wait::{QUIET, SOON, eventually};

/// INV-5, INV-13.
async fn a_node_becomes_a_voter_and_a_worker_again(managers: Managers) {
    let n2 = managers.worker("n2").await;
    assert_eq!(n2.etcd(), None);
    let first = managers.voter(&n2).await;
    managers.counts(2).await;
    managers.writes("two").await;
    assert!(has_log(&n2.data()));

    managers.demote("n2").await;
    n2.rests().await;
    managers.counts(1).await;
    managers.writes("one").await;
    eventually(SOON, "its data is set aside", async || {
        match n2.aside(first).as_slice() {
            [aside] if has_log(aside) && !n2.data().exists() => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;

    // Again, as another member, on nothing.
    let second = managers.voter(&n2).await;
    assert_ne!(second, first);
    managers.writes("two again").await;
    assert_eq!(n2.aside(first).len(), 1, "nothing is deleted");
}

#[tokio::test]
async fn a_node_is_promoted_and_demoted_again_and_again_with_tls() {
    let managers = Managers::with_tls(EtcdVersion::Installed, &[]).await;
    a_node_becomes_a_voter_and_a_worker_again(managers).await;
}

#[tokio::test]
async fn a_node_is_promoted_and_demoted_again_and_again_with_tls_on_the_next_etcd() {
    let managers = Managers::with_tls(EtcdVersion::Next, &[]).await;
    a_node_becomes_a_voter_and_a_worker_again(managers).await;
}

#[tokio::test]
async fn a_node_is_promoted_and_demoted_again_and_again_in_clear_text() {
    a_node_becomes_a_voter_and_a_worker_again(Managers::start().await).await;
}

#[tokio::test]
async fn promote_waits_for_the_vote_of_a_member_that_an_agent_keeps_and_says_what_it_waits_for() {
    let managers = Managers::start().await;
    let mut n2 = managers.worker("n2").await;
    managers.keeps_etcd("n2").await;
    let promote = ["promote", "n2", "--wait", "--timeout=120s"];
    let said = managers.done(&promote).await;
    let list = managers.members().await;
    let own = list.members.iter().find(|member| member.name == "n2").unwrap();
    assert!(!own.learner, "{list:?}");
    let expected = format!(
        "node/n2 is a desired manager\nnode/n2 is a manager\nnode/n2: member {} votes\n",
        own.id
    );
    assert_eq!(said, expected);
    n2.serves().await;

    managers.demote("n2").await;
    n2.rests().await;
    managers.counts(1).await;
    n2.stop().await.unwrap();
    managers.promote("n2").await;
    let args = ["promote", "n2", "--wait", "--timeout=5s"];
    let waits = managers.run(&args).await.expect_code(2);
    assert!(waits.contains("node/n2: its agent"), "{waits}");
    managers.relaunch(&mut n2, &["--etcd-ends-with-agent"]);
    managers.votes("n2").await;
}

#[tokio::test]
async fn an_agent_without_a_peer_url_keeps_no_etcd() {
    let managers = Managers::start().await;
    let mut agent = managers.agent("n2", &managers.token);
    agent.ready().await;
    let said = managers.done_with(&["promote", "n2"]).await;
    assert!(said.ends_with("node/n2 is a manager\n"), "nothing votes: {said}");
    agent.logs("role=\"manager\"").await;
    tokio::time::sleep(QUIET).await;
    assert_eq!(managers.members().await.members.len(), 1);
    assert!(!agent.state.join("etcd.json").exists());
    let node = managers.node("n2").await;
    assert_eq!(node.status.unwrap().role(), Role::Manager);
    agent.ready().await;
}
