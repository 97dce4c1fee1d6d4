//! `delete`: its rules, the records of removed nodes, and the confirmation.

use std::process::Stdio;

use prost::Message;
use quorate::proto::RemovedNode;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use super::{keys, node};
use crate::support::base::{Base, document};
use crate::support::quorate::binary;
use crate::support::wait::SOON;

async fn cluster() -> Base {
    let cluster = Base::start().await;
    cluster
        .apply(&(node("n1", "{desiredRole: manager}") + &node("n2", "{}") + &node("n3", "{}")))
        .await;
    let alive = keys().alive(&"n2".parse().unwrap());
    cluster.put(&alive, b"session".to_vec()).await;
    cluster
}

fn nodes(cluster: &Base) -> Vec<String> {
    cluster.etcd.keys("/quorate/nodes/")
}

#[tokio::test]
async fn a_deleted_node_is_gone_and_its_uid_on_record_in_the_same_revision() {
    let cluster = cluster().await;
    let uid = cluster.node("n3").await.metadata.unwrap().uid;
    let revision = cluster.etcd.revision();
    let deleted = cluster
        .run(&["delete", "node", "n3", "--yes"])
        .await
        .expect_done();
    assert_eq!(deleted, "node/n3 deleted\n");
    assert_eq!(cluster.etcd.revision(), revision + 1, "one transaction");
    assert_eq!(nodes(&cluster), ["/quorate/nodes/n1", "/quorate/nodes/n2"]);
    let record = cluster.read(&keys().removed(&uid)).await;
    let record = RemovedNode::decode(&*record.unwrap().value).unwrap();
    assert_eq!(record.name, "n3");
    assert!(record.removed_at.is_some() && record.expires_at.is_none());
}

#[tokio::test]
async fn a_ready_node_is_deleted_by_force_alone_and_nothing_beside_a_refused_one() {
    let cluster = cluster().await;
    let before = cluster.contents().await;
    let error = cluster
        .run(&["delete", "node", "n3", "n2", "--yes"])
        .await
        .expect_code(4);
    assert_eq!(
        error,
        "error: nothing was deleted\n  node/n2: refused by rule Ready: node n2 is ready: it still runs\n    \
         stop it first, or delete it all the same with --force\n"
    );
    assert_eq!(cluster.contents().await, before);
    let deleted = cluster
        .run(&["delete", "node/n3", "node/n2", "--yes", "--force"])
        .await;
    assert_eq!(deleted.expect_done(), "node/n3 deleted\nnode/n2 deleted\n");
    assert_eq!(nodes(&cluster), ["/quorate/nodes/n1"]);
}

#[tokio::test]
async fn a_desired_manager_in_the_member_list_stays_even_with_force() {
    let cluster = cluster().await;
    let member = "etcd-1";
    cluster.run(&["adopt", member]).await.expect_done();
    let before = cluster.contents().await;
    for args in [
        &["delete", "node", member, "--yes"][..],
        &["delete", "node", member, "--yes", "--force"],
    ] {
        let error = cluster.run(args).await.expect_code(4);
        assert!(error.contains("refused by rule MemberOfEtcd"), "{error}");
    }
    assert_eq!(cluster.contents().await, before);
    let other = cluster.run(&["delete", "node", "n1", "--yes"]).await;
    assert_eq!(
        other.expect_done(),
        "node/n1 deleted\n",
        "a desired manager that is no member"
    );
}

#[tokio::test]
async fn a_malformed_node_is_deleted_by_force() {
    let cluster = cluster().await;
    cluster.etcd.etcdctl(&["put", "/quorate/nodes/n4", "garbage"]);
    let error = cluster
        .run(&["delete", "node", "n4", "--yes"])
        .await
        .expect_code(4);
    assert!(error.contains("refused by rule Malformed"), "{error}");
    let deleted = cluster.run(&["delete", "node", "n4", "--yes", "--force"]).await;
    assert_eq!(deleted.expect_done(), "node/n4 deleted\n");
    assert!(cluster.etcd.keys("/quorate/removed/").is_empty());
}

#[tokio::test]
async fn wrong_requests_have_their_codes_and_delete_nothing() {
    let cluster = cluster().await;
    let before = cluster.contents().await;
    for (args, code, expected) in [
        (
            &["delete", "node", "n3", "n9", "--yes"][..],
            3,
            "node/n9: not found",
        ),
        (
            &["delete", "node", "n3"],
            64,
            "add --yes to delete without being asked",
        ),
        (&["delete", "node", "--yes"], 64, "no node named"),
        (
            &["delete", "replica", "r1", "--yes"],
            64,
            "replicas cannot be deleted",
        ),
        (&["delete", "pod", "p", "--yes"], 64, "is not a kind of object"),
    ] {
        let error = cluster.run(args).await.expect_code(code);
        assert!(error.contains(expected), "{args:?}: {error}");
        assert_eq!(cluster.contents().await, before, "{args:?}");
    }
}

/// Runs `delete` on a terminal. Once it asks for confirmation, runs `meanwhile`, and then types the answer.
pub async fn answer<T>(
    cluster: &Base,
    what: &str,
    meanwhile: impl Future<Output = T>,
    answer: &str,
) -> (Option<i32>, String) {
    let command = format!(
        "{} delete {what} --etcd-endpoints={}",
        binary().display(),
        cluster.etcd.endpoints_flag()
    );
    let mut child = tokio::process::Command::new("script")
        .args(["--quiet", "--return", "--command", &command, "/dev/null"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("script is installed (Debian package bsdutils, always there)");
    let mut terminal = child.stdin.take().unwrap();
    let mut screen = child.stdout.take().unwrap();
    let talk = async {
        let mut shown = Vec::new();
        while !String::from_utf8_lossy(&shown).contains("Go on? [y/N]") {
            let read = screen.read_buf(&mut shown).await.unwrap();
            assert!(read > 0, "it does not ask: {}", String::from_utf8_lossy(&shown));
        }
        meanwhile.await;
        terminal.write_all(answer.as_bytes()).await.unwrap();
        screen.read_to_end(&mut shown).await.unwrap();
        (child.wait().await.unwrap().code(), shown)
    };
    let (code, shown) = timeout(SOON, talk).await.expect("the command ends");
    (code, String::from_utf8_lossy(&shown).replace('\r', ""))
}

#[tokio::test]
async fn on_a_terminal_it_prints_what_will_happen_and_asks_for_confirmation() {
    let cluster = cluster().await;
    let uid = cluster.node("n3").await.metadata.unwrap().uid;
    let before = cluster.contents().await;
    let (code, shown) = answer(&cluster, "node n3", async {}, "n\n").await;
    let statement = format!("node/n3 (down) is deleted, and its uid {uid} is recorded as removed");
    assert!(
        shown.contains(&statement) && shown.contains("Go on? [y/N]"),
        "{shown}"
    );
    assert!(shown.contains("not confirmed, nothing was deleted"), "{shown}");
    assert_eq!(code, Some(1));
    assert_eq!(cluster.contents().await, before);
    let (code, shown) = answer(&cluster, "node n3", async {}, "y\n").await;
    assert_eq!(code, Some(0), "{shown}");
    assert!(shown.contains("node/n3 deleted"), "{shown}");
    assert_eq!(nodes(&cluster), ["/quorate/nodes/n1", "/quorate/nodes/n2"]);
}

#[tokio::test]
async fn a_change_during_the_confirmation_is_a_conflict() {
    let cluster = cluster().await;
    let replaced = cluster.change("n3", |node| {
        node.metadata.as_mut().unwrap().uid = "another".to_owned()
    });
    let (code, shown) = answer(&cluster, "node n3", replaced, "y\n").await;
    assert_eq!(code, Some(5), "{shown}");
    let now = "node/n3: it changed meanwhile; now: node/n3 (down) is deleted, and its uid another is recorded as removed";
    assert!(shown.contains(now), "{shown}");
    let alive = keys().alive(&"n3".parse().unwrap());
    let returned = cluster.put(&alive, b"session".to_vec());
    let (code, shown) = answer(&cluster, "node n3", returned, "y\n").await;
    assert_eq!(code, Some(4), "{shown}");
    assert!(shown.contains("node/n3: refused by rule Ready"), "{shown}");
    assert_eq!(nodes(&cluster).len(), 3);
}

#[tokio::test]
async fn an_object_that_another_writer_marks_during_the_confirmation_is_marked() {
    let cluster = Base::start().await;
    cluster.apply(&document("Network", "front", "{}")).await;
    let marked = async {
        cluster
            .run(&["delete", "network", "front", "--yes"])
            .await
            .expect_done();
    };
    let (code, shown) = answer(&cluster, "network front", marked, "y\n").await;
    assert_eq!(code, Some(0), "{shown}");
    assert!(
        shown.contains(
            "network/front is marked for deletion already\n  network/front: nothing holds it back\n"
        ),
        "{shown}"
    );
}

#[tokio::test]
async fn a_wait_that_times_out_does_not_hide_what_was_not_deleted() {
    let cluster = Base::start().await;
    cluster
        .apply(&(document("Network", "a", "{}") + &document("Network", "b", "{}")))
        .await;
    let key = keys().network(&"b".parse().unwrap());
    let garbled = cluster.put(&key, vec![0xff]);
    // No leader is elected, so the other one stays.
    let (code, shown) = answer(&cluster, "network a b --wait --timeout 300ms", garbled, "y\n").await;
    assert_eq!(code, Some(4), "{shown}");
    assert!(
        shown.contains("not everything was deleted\n  network/b: refused by rule Malformed"),
        "{shown}"
    );
}
