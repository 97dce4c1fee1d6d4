//! The whole way, with a leader: a worker becomes a manager, its etcd joins, learns, votes, and goes again.

use quorate::proto::Role;

use super::{Site, free_url};
use crate::support::quorate::{Launch, TestReplica};
use crate::support::wait::{SOON, eventually, same};

pub async fn led(site: &Site) -> TestReplica {
    let mut replica = Launch::on(&site.etcd).start("r1");
    replica.wait_leading().await;
    replica
}

pub async fn voters(site: &Site) -> Vec<String> {
    let list = site.members().await;
    let mut names: Vec<String> = list.voters().map(|member| member.name.clone()).collect();
    names.sort();
    names
}

/// What `join -o env` prints for a node that is promoted first.
pub async fn joined(site: &Site, node: &str, peer_url: &str) -> String {
    site.apply_role(node, "worker").await.expect_done();
    let output = site
        .run(&["promote", node, "--wait", "--timeout", "30s"])
        .await
        .expect_done();
    assert!(output.contains(&format!("node/{node} is a manager")), "{output}");
    let client_url = free_url();
    let args = [
        "join",
        node,
        "--peer-url",
        peer_url,
        "--client-url",
        &client_url,
        "-o",
        "env",
    ];
    site.run(&[&args[..], &["--timeout", "30s"]].concat())
        .await
        .expect_done()
}

pub async fn votes(site: &Site, node: &str, peer_url: &str) {
    let args = ["join", node, "--peer-url", peer_url, "--wait", "--timeout", "50s"];
    let output = site.run(&args).await;
    assert_eq!(output.code, 0, "{output:?}");
    assert!(output.stderr.contains("votes"), "{output:?}");
}

/// What the command said beside its output.
pub async fn demote(site: &Site, node: &str) -> String {
    let output = site.demoted(node, &["--wait", "--timeout", "50s"]).await;
    assert!(
        output.stdout.contains(&format!("node/{node} is a worker")),
        "{output:?}"
    );
    output.stderr
}

#[tokio::test]
async fn from_one_manager_to_three_and_back_by_the_commands_alone() {
    let site = Site::adopted(1).await;
    let _replica = led(&site).await;
    let mut running = Vec::new();
    for node in ["n2", "n3"] {
        let peer_url = free_url();
        let environment = joined(&site, node, &peer_url).await;
        // Asked again it says the same again.
        let client_url = environment
            .lines()
            .find_map(|line| line.strip_prefix("ETCD_ADVERTISE_CLIENT_URLS="));
        let args = [
            "join",
            node,
            "--peer-url",
            &peer_url,
            "--client-url",
            client_url.unwrap(),
            "-o",
            "env",
        ];
        assert_eq!(site.run(&args).await.expect_done(), environment);
        running.push(site.start_etcd(node, &environment));
        votes(&site, node, &peer_url).await;
    }
    assert_eq!(voters(&site).await, ["etcd-1", "n2", "n3"]);
    let members = ["get", "members", "--no-headers"];
    let all_answer = |table: &str| table.matches(" healthy ").count() == 3;
    site.shows(&members, all_answer).await;
    // Back, whichever of them leads its peers.
    let said = demote(&site, "n2").await;
    let tolerated = "has 2 instead of 3 voters, and tolerates no loss instead of 1 loss";
    assert!(said.contains(tolerated), "{said}");
    assert_eq!(voters(&site).await, ["etcd-1", "n3"]);
    assert_eq!(site.observed("n2").await, Role::Worker);
    let ended = tokio::time::timeout(SOON, running[0].exited()).await;
    assert!(ended.unwrap().unwrap().success(), "{}", running[0].last_lines());
    demote(&site, "n3").await;
    assert_eq!(voters(&site).await, ["etcd-1"]);
    site.refused("LastManager", &["demote", "etcd-1", "--yes"]).await;
    // And in again, on an empty directory, as another member.
    let peer_url = free_url();
    site.run(&["promote", "n2", "--wait", "--timeout", "30s"])
        .await
        .expect_done();
    let args = [
        "join",
        "n2",
        "--peer-url",
        &peer_url,
        "-o",
        "env",
        "--timeout",
        "30s",
    ];
    let environment = site.run(&args).await.expect_done();
    running.push(site.start_etcd("n2", &environment));
    votes(&site, "n2", &peer_url).await;
    assert_eq!(voters(&site).await, ["etcd-1", "n2"]);
}

#[tokio::test]
async fn a_deleted_nodes_member_is_evicted_and_it_never_comes_back() {
    let site = Site::adopted(3).await;
    // No replica leads yet: the leader finds it all later.
    site.demoted("etcd-3", &[]).await;
    let output = site
        .run(&["delete", "node", "etcd-3", "--yes"])
        .await
        .expect_done();
    assert!(output.contains("held back by its member"), "{output}");
    let _replica = led(&site).await;
    eventually(SOON, "the eviction", async || {
        same(
            voters(&site).await,
            vec!["etcd-1".to_owned(), "etcd-2".to_owned()],
        )
    })
    .await;
    eventually(SOON, "its record goes", async || {
        same(site.etcd.keys("/quorate/members/").len(), 2)
    })
    .await;
    let url = free_url();
    site.refused("NodeRemoved", &["join", "etcd-3", "--peer-url", &url])
        .await;
    // With a leader, and with --wait, in one go, also while leadership moves off the member.
    site.demoted("etcd-2", &[]).await;
    let delete = ["delete", "node", "etcd-2", "--yes", "--wait", "--timeout", "50s"];
    expect_evicted(&site, &delete, &["etcd-1"]).await;
}

/// Deletes a node whose member is left, and waits until exactly these members vote.
async fn expect_evicted(site: &Site, delete: &[&str], left: &[&str]) {
    let mut deleted = site.run(delete).await;
    if deleted.code == 1 && deleted.stderr.contains("look again") {
        // The member that etcd removed just then was the one that the command asked.
        deleted = site.run(delete).await;
        assert!(matches!(deleted.code, 0 | 3), "{deleted:?}");
        let left: Vec<_> = left.iter().map(ToString::to_string).collect();
        eventually(SOON, "the eviction", async || {
            same(voters(site).await, left.clone())
        })
        .await;
    } else {
        assert_eq!(deleted.code, 0, "{deleted:?}");
        assert_eq!(voters(site).await, left);
    }
}

/// INV-12: without a record of removal, a node whose key is gone keeps its member.
#[tokio::test]
async fn a_node_whose_key_was_deleted_by_mistake_is_adopted_again_or_deleted_for_good() {
    let site = Site::adopted(3).await;
    let _replica = led(&site).await;
    for name in ["etcd-2", "etcd-3"] {
        site.etcd.etcdctl(&["del", &format!("/quorate/nodes/{name}")]);
    }
    eventually(SOON, "the members say so", async || {
        let shown = site.run(&["describe", "member", "etcd-2"]).await.expect_done();
        same(shown.contains("NodeMissing"), true).map_err(|_| shown)
    })
    .await;
    let adopted = site.run(&["adopt"]).await.expect_done();
    let again = "adopted by node etcd-2, which is created as a manager";
    assert!(adopted.contains(again), "{adopted}");
    assert!(adopted.contains("belongs to node etcd-1 already"), "{adopted}");
    eventually(SOON, "nothing is said any more", async || {
        let shown = site.run(&["describe", "member", "etcd-2"]).await.expect_done();
        same(shown.contains("NodeMissing"), false).map_err(|_| shown)
    })
    .await;
    assert_eq!(voters(&site).await, ["etcd-1", "etcd-2", "etcd-3"]);
    site.etcd.etcdctl(&["del", "/quorate/nodes/etcd-3"]);
    let delete = ["delete", "node", "etcd-3", "--yes", "--wait", "--timeout", "50s"];
    expect_evicted(&site, &delete, &["etcd-1", "etcd-2"]).await;
    eventually(SOON, "nothing is left of it", async || {
        let again = site.run(&["delete", "node", "etcd-3", "--yes"]).await;
        same(again.code, 3).map_err(|_| format!("{again:?}"))
    })
    .await;
}

#[tokio::test]
async fn what_the_leader_refuses_is_shown_with_its_rule() {
    let site = Site::adopted(1).await;
    let _replica = led(&site).await;
    site.apply_role("n2", "manager").await.expect_done();
    site.run(&["promote", "n2", "--wait", "--timeout", "30s"])
        .await
        .expect_done();
    let join = [
        "join",
        "n2",
        "--timeout",
        "40s",
        "--peer-url",
        "http://no-such-host.invalid:2380",
    ];
    let output = site.run(&join).await.expect_code(4);
    assert!(output.contains("refused by rule PeerUnreachable: "), "{output}");
    assert!(output.contains("--no-dial"), "{output}");
    assert_eq!(site.members().await.members.len(), 1);
    // With --no-dial the learner is added; it does not start.
    let environment = site
        .run(&[&join[..], &["--no-dial", "-o", "env"]].concat())
        .await
        .expect_done();
    assert!(
        environment.contains("n2=http://no-such-host.invalid:2380"),
        "{environment}"
    );
    assert!(!environment.contains("ETCD_LISTEN_PEER_URLS"), "{environment}");
    let output = site
        .run(&[&join[..], &["--no-dial", "--wait", "--timeout", "1s"]].concat())
        .await;
    // The flag that comes twice is a mistake.
    assert_eq!(output.code, 64, "{output:?}");
    let members = site.run(&["get", "members"]).await.expect_done();
    assert!(
        members.contains("learner") && members.contains("not started"),
        "{members}"
    );
    // A learner goes like a voter.
    demote(&site, "n2").await;
    assert_eq!(site.members().await.members.len(), 1);
}

#[tokio::test]
async fn a_manager_beyond_the_allowed_voters_waits_to_join_until_more_are_allowed() {
    let site = Site::adopted(1).await;
    let mut replica = Launch::on(&site.etcd).flag("--max-voters=1").start("r1");
    replica.wait_leading().await;
    site.apply_role("n2", "worker").await.expect_done();
    let promote = ["promote", "n2", "--wait", "--timeout", "30s"];
    site.run(&promote).await.expect_done();
    let peer_url = free_url();
    let join = ["join", "n2", "--peer-url", &peer_url, "--timeout", "120s"];
    let waits = async {
        eventually(SOON, "the node says why it waits", async || {
            let described = site.run(&["describe", "node", "n2"]).await.expect_done();
            match described.contains("etcd has 1 voters, and the leader's --max-voters is 1") {
                true => Ok(()),
                false => Err(described),
            }
        })
        .await;
        assert_eq!(site.members().await.members.len(), 1);
        replica.stop().await.unwrap();
        led(&site).await
    };
    let (joined, _replica) = tokio::join!(site.run(&join), waits);
    let settings = joined.expect_done();
    assert!(settings.contains(&peer_url), "{settings}");
    assert_eq!(site.members().await.members.len(), 2);
}
