//! Members that etcd had before Quorate knew of them.

use prost::Message as _;
use quorate::etcd::{Event, KeyRange};
use quorate::proto::{Member, Node, Role};

use super::tour::{led, voters};
use super::{Site, free_url, keys};
use crate::support::client::history;

#[tokio::test]
async fn every_member_becomes_the_member_of_a_manager_of_its_name_and_etcd_does_not_notice() {
    let site = Site::start(3).await;
    let listed = site.members().await;
    let output = site.run(&["adopt"]).await.expect_done();
    assert_eq!(
        output.matches("which is created as a manager").count(),
        3,
        "{output}"
    );
    for name in ["etcd-1", "etcd-2", "etcd-3"] {
        assert_eq!(site.desired(name).await, Role::Manager);
        assert_eq!(site.observed(name).await, Role::Manager);
        let key = keys().member(site.member(name).await);
        let (record, _) = site.store.etcd.get(&key).await.unwrap();
        let record = Member::decode(&*record.unwrap().value).unwrap();
        let uid = site.node(name).await.metadata.unwrap().uid;
        assert_eq!((record.node.as_str(), &record.node_uid), (name, &uid));
        assert!(record.removal.is_none() && record.joined_at.is_some());
    }
    let before = site.contents().await;
    let again = site.run(&["adopt"]).await.expect_done();
    assert_eq!(again.matches("already").count(), 3, "{again}");
    assert_eq!(site.contents().await, before);
    assert_eq!(site.members().await.members, listed.members);
}

#[tokio::test]
async fn only_the_members_that_are_named_are_adopted_by_id_or_by_name() {
    let site = Site::start(3).await;
    let id = site.member("etcd-2").await.to_string();
    // As etcdctl prints it, without leading zeros, too.
    let short = id.trim_start_matches('0');
    site.run(&["adopt", "etcd-1", short]).await.expect_done();
    let listed = site.run(&["get", "members", "--no-headers"]).await.expect_done();
    let unmanaged: Vec<&str> = listed
        .lines()
        .filter(|line| line.contains("<none>   voter"))
        .collect();
    assert_eq!(unmanaged.len(), 1, "{listed}");
    assert!(unmanaged[0].contains("etcd-3"), "{listed}");
    let output = site.run(&["adopt", "etcd-9"]).await.expect_code(3);
    assert!(output.contains("etcd-9"), "{output}");
}

#[tokio::test]
async fn a_member_is_not_given_to_a_worker_nor_to_a_node_that_has_one() {
    let site = Site::start(2).await;
    site.apply_role("etcd-1", "worker").await.expect_done();
    site.refused("NotAManager", &["adopt", "etcd-1"]).await;
    site.run(&["promote", "etcd-1"]).await.expect_done();
    let output = site.run(&["adopt", "etcd-1"]).await.expect_done();
    assert!(output.contains("adopted by node etcd-1\n"), "{output}");
    // A member that never started has no name.
    let nameless = site.add_by_hand(&free_url()).await;
    site.refused("NoName", &["adopt", &nameless.to_string()]).await;
    // The others are adopted all the same.
    let output = site.run(&["adopt"]).await;
    assert_eq!(output.code, 4, "{output:?}");
    assert!(output.stdout.contains("adopted by node etcd-2"), "{output:?}");
}

#[tokio::test]
async fn a_member_is_tied_to_the_node_that_is_named_where_no_node_has_it() {
    let site = Site::start(2).await;
    let first = site.member("etcd-1").await;
    // The node must exist, and be a manager; one node has one member.
    let unknown = site
        .run(&["adopt", "etcd-1", "--node", "n1"])
        .await
        .expect_code(3);
    assert!(unknown.contains("node/n1 does not exist"), "{unknown}");
    site.apply_role("n1", "worker").await.expect_done();
    site.refused("NotAManager", &["adopt", "etcd-1", "--node", "n1"])
        .await;
    site.run(&["promote", "n1"]).await.expect_done();
    let several = ["adopt", "etcd-1", "etcd-2", "--node", "n1"];
    site.run(&several).await.expect_code(64);
    site.run(&["adopt", "--node", "n1"]).await.expect_code(64);
    let adopt = ["adopt", "etcd-1", "--node", "n1"];
    let adopted = site.run(&adopt).await.expect_done();
    assert_eq!(adopted, format!("member/{first} adopted by node n1\n"));
    let key = keys().member(first);
    let record = Member::decode(&*site.read(&key).await.unwrap().value).unwrap();
    let uid = site.node("n1").await.metadata.unwrap().uid;
    assert_eq!((record.node.as_str(), record.node_uid), ("n1", uid));
    let again = site.run(&adopt).await.expect_done();
    assert!(again.contains("belongs to node n1 already"), "{again}");
    site.refused("NodeHasMember", &["adopt", "etcd-2", "--node", "n1"])
        .await;
    // A member that has a node keeps it.
    site.apply_role("n2", "manager").await.expect_done();
    let kept = site
        .refused("MemberHasNode", &["adopt", "etcd-1", "--node", "n2"])
        .await;
    assert!(kept.contains("it belongs to node n1"), "{kept}");
    // One whose node was deleted by a slip of the hand has none, and it is not that of a later node of this name.
    site.etcd.etcdctl(&["del", "/quorate/nodes/n1"]);
    site.apply_role("n1", "manager").await.expect_done();
    site.run(&["adopt", "etcd-1", "--node", "n2"]).await.expect_done();
    // A learner that never started has no name, and a node all the same.
    let nameless = site.add_by_hand(&free_url()).await.to_string();
    let adopted = site
        .run(&["adopt", &nameless, "--node", "n1"])
        .await
        .expect_done();
    assert!(adopted.contains("adopted by node n1"), "{adopted}");
}

#[tokio::test]
async fn a_node_without_a_uid_adopts_nothing() {
    let site = Site::start(1).await;
    site.apply_role("n1", "manager").await.expect_done();
    site.change("n1", |node| node.metadata.as_mut().unwrap().uid.clear())
        .await;
    let refused = site
        .refused("Malformed", &["adopt", "etcd-1", "--node", "n1"])
        .await;
    assert!(refused.contains("has no uid"), "{refused}");
}

/// In the order of docs/troubleshooting.md: in another one, the node would become a worker while its member votes on.
#[tokio::test]
async fn a_manager_whose_member_record_cannot_be_read_stays_one_while_the_record_is_mended() {
    let site = Site::adopted(3).await;
    let mut replica = led(&site).await;
    let id = site.member("etcd-2").await;
    let (record, node) = (keys().member(id), keys().node(&"etcd-2".parse().unwrap()));
    let since = site.read(&node).await.unwrap().mod_revision;
    site.put(&record, [0xff, 0xff]).await;
    site.change("etcd-2", |node| {
        node.spec.get_or_insert_default().set_desired_role(Role::Worker);
    })
    .await;
    replica.wait_for_log("cannot be read").await;
    let (id, record) = (id.to_string(), String::from_utf8(record).unwrap());
    site.run(&["pause", "roles"]).await.expect_done();
    site.run(&["promote", "etcd-2"]).await.expect_done();
    site.etcd.etcdctl(&["del", &record]);
    site.run(&["adopt", &id, "--node", "etcd-2"]).await.expect_done();
    site.run(&["resume", "roles"]).await.expect_done();
    let now = site.read(&node).await.unwrap().mod_revision;
    for event in history(&site.store.etcd, KeyRange::key(node), since, now).await {
        let Event::Put(kv) = event else {
            panic!("it was deleted")
        };
        let node = Node::decode(&*kv.value).unwrap();
        assert_eq!(node.status.unwrap().role(), Role::Manager);
    }
    assert_eq!(voters(&site).await, ["etcd-1", "etcd-2", "etcd-3"]);
}
