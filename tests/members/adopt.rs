//! Members that etcd had before Quorate knew of them.

use quorate::proto::{Member, Role};

use super::{Site, free_url, keys};

#[tokio::test]
async fn every_member_becomes_the_member_of_a_manager_of_its_name_and_etcd_does_not_notice() {
    let site = Site::start(3).await;
    let listed = site.store.etcd.list_members().await.unwrap();
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
        let record: Member = prost::Message::decode(&*record.unwrap().value).unwrap();
        let uid = site.node(name).await.metadata.unwrap().uid;
        assert_eq!((record.node.as_str(), &record.node_uid), (name, &uid));
        assert!(record.removal.is_none() && record.joined_at.is_some());
    }
    let before = site.contents().await;
    let again = site.run(&["adopt"]).await.expect_done();
    assert_eq!(again.matches("already").count(), 3, "{again}");
    assert_eq!(site.contents().await, before);
    assert_eq!(
        site.store.etcd.list_members().await.unwrap().members,
        listed.members
    );
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
