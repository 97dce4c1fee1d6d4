//! What is refused: by its rule, with exit code 4, and with nothing changed. No replica runs here: the commands check by
//! themselves.

use quorate::proto::Role;

use super::{Site, document, free_url};

#[tokio::test]
async fn the_last_manager_is_not_demoted_by_any_command() {
    let site = Site::adopted(1).await;
    site.refused("LastManager", &["demote", "etcd-1", "--yes"]).await;
    let before = site.contents().await;
    let output = site.apply_role("etcd-1", "worker").await.expect_code(4);
    assert!(output.contains("refused by rule LastManager"), "{output}");
    assert_eq!(site.contents().await, before);
}

#[tokio::test]
async fn the_last_manager_is_not_demoted_either_where_quorum_would_hold() {
    let site = Site::start(3).await;
    site.run(&["adopt", "etcd-1"]).await.expect_done();
    // Two voters would be left, but of no node.
    site.refused("LastManager", &["demote", "etcd-1", "--yes"]).await;
    // A manager that has yet to join is no other manager.
    site.apply_role("n2", "manager").await.expect_done();
    site.observe("n2", Role::Manager).await;
    site.refused("LastManager", &["demote", "etcd-1", "--yes"]).await;
    site.run(&["adopt"]).await.expect_done();
    site.demoted("etcd-1", &[]).await;
    assert_eq!(site.desired("etcd-1").await, Role::Worker);
    assert_eq!(site.observed("etcd-1").await, Role::Manager);
    // Done twice is done once.
    let before = site.contents().await;
    let again = site.run(&["demote", "etcd-1", "--yes"]).await.expect_done();
    assert!(again.contains("already"), "{again}");
    assert_eq!(site.contents().await, before);
    // Withdrawn before a leader began.
    site.run(&["promote", "etcd-1"]).await.expect_done();
    assert_eq!(site.desired("etcd-1").await, Role::Manager);
}

#[tokio::test]
async fn of_several_nodes_none_is_promoted_where_one_does_not_exist() {
    let site = Site::adopted(1).await;
    site.apply_role("n2", "worker").await.expect_done();
    let before = site.contents().await;
    let output = site.run(&["promote", "n2", "n9"]).await.expect_code(3);
    assert!(output.contains("node/n9 not found"), "{output}");
    assert_eq!(site.contents().await, before);
}

#[tokio::test]
async fn a_manager_that_is_not_in_the_member_list_is_not_demoted_but_may_be_deleted() {
    let site = Site::adopted(1).await;
    site.apply_role("n2", "manager").await.expect_done();
    site.observe("n2", Role::Manager).await;
    site.refused("NotAMember", &["demote", "n2", "--yes"]).await;
    site.run(&["delete", "node", "n2", "--yes"]).await.expect_done();
    // One whose promotion was not carried out yet has not led to anything.
    site.apply_role("n3", "manager").await.expect_done();
    site.run(&["demote", "n3", "--yes"]).await.expect_done();
    assert_eq!(site.desired("n3").await, Role::Worker);
}

#[tokio::test]
async fn a_demotion_that_would_cost_quorum_is_refused_and_that_of_the_dead_member_is_not() {
    let mut site = Site::adopted(3).await;
    site.etcd.members[2].kill().await.unwrap();
    site.etcd.members[0].wait_healthy().await.unwrap();
    site.etcd.members[1].wait_healthy().await.unwrap();
    let output = site.refused("QuorumRisk", &["demote", "etcd-1", "--yes"]).await;
    assert!(output.contains("1 of 2 voters healthy, 2 needed"), "{output}");
    site.demoted("etcd-3", &[]).await;
    assert_eq!(site.desired("etcd-3").await, Role::Worker);
}

#[tokio::test]
async fn of_two_managers_only_one_is_demoted_however_both_are_asked_for() {
    let site = Site::adopted(2).await;
    let both = format!("{}{}", document("etcd-1", "worker"), document("etcd-2", "worker"));
    let before = site.contents().await;
    let output = site.run_with(&["apply", "-f", "-"], &both).await.expect_code(4);
    assert!(output.contains("nothing was written"), "{output}");
    assert!(output.contains("LastManager"), "{output}");
    assert_eq!(site.contents().await, before);
    let (one, other) = tokio::join!(
        site.run(&["demote", "etcd-1", "--yes"]),
        site.run(&["demote", "etcd-2", "--yes"])
    );
    let mut codes = [one.code, other.code];
    codes.sort_unstable();
    assert_eq!(codes, [0, 4], "{one:?} {other:?}");
    let roles = [site.desired("etcd-1").await, site.desired("etcd-2").await];
    let workers = roles.iter().filter(|role| **role == Role::Worker).count();
    assert_eq!(workers, 1, "{roles:?}");
}

#[tokio::test]
async fn a_node_in_the_member_list_is_not_deleted_before_it_is_demoted() {
    let site = Site::adopted(2).await;
    for force in [&[][..], &["--force"]] {
        let args = [&["delete", "node", "etcd-2", "--yes"], force].concat();
        site.refused("MemberOfEtcd", &args).await;
    }
    site.demoted("etcd-2", &[]).await;
    site.run(&["delete", "node", "etcd-2", "--yes"])
        .await
        .expect_done();
    // Its uid is on record, and the record of its member tells the leader what to evict.
    let kept = site.etcd.keys("/quorate/");
    assert!(
        kept.iter().any(|key| key.starts_with("/quorate/removed/")),
        "{kept:?}"
    );
    let members = kept.iter().filter(|key| key.starts_with("/quorate/members/"));
    assert_eq!(members.count(), 2, "{kept:?}");
}

#[tokio::test]
async fn a_ready_node_is_deleted_by_force_alone_and_the_node_of_the_last_voter_never() {
    let site = Site::adopted(1).await;
    site.apply_role("n2", "worker").await.expect_done();
    site.etcd.etcdctl(&["put", "/quorate/alive/n2", "session"]);
    site.refused("Ready", &["delete", "node", "n2", "--yes"]).await;
    site.run(&["delete", "node", "n2", "--yes", "--force"])
        .await
        .expect_done();
    // The role was written without any check.
    site.change("etcd-1", |node| {
        node.spec.get_or_insert_default().set_desired_role(Role::Worker);
    })
    .await;
    for force in [&[][..], &["--force"]] {
        let args = [&["delete", "node", "etcd-1", "--yes"], force].concat();
        site.refused("LastVoter", &args).await;
    }
}

#[tokio::test]
async fn a_join_is_refused_for_workers_removed_nodes_and_urls_of_others() {
    let site = Site::adopted(1).await;
    let url = free_url();
    let join = |node: &'static str, url: String| {
        vec!["join".to_owned(), node.to_owned(), "--peer-url".to_owned(), url]
    };
    let refused = async |rule: &str, args: Vec<String>| {
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        site.refused(rule, &args).await
    };
    site.apply_role("n2", "worker").await.expect_done();
    refused("NotAManager", join("n2", url.clone())).await;
    site.apply_role("n2", "manager").await.expect_done();
    refused("NotAManager", join("n2", url.clone())).await;
    site.observe("n2", Role::Manager).await;
    let output = refused("PeerUrlTaken", join("n2", site.etcd.members[0].peer_url.clone())).await;
    assert!(output.contains("of node etcd-1"), "{output}");
    // Also of a member without a record.
    let other = free_url();
    site.etcd
        .etcdctl(&["member", "add", "x", "--learner", &format!("--peer-urls={other}")]);
    let output = refused("PeerUrlTaken", join("n2", other)).await;
    assert!(output.contains("which has no node"), "{output}");
    // A uid that is not the node's is that of another node.
    let mut uid = join("n2", url.clone());
    uid.extend([
        "--uid".to_owned(),
        "11111111-2222-3333-4444-555555555555".to_owned(),
    ]);
    refused("NodeNotFound", uid.clone()).await;
    let own = site.node("n2").await.metadata.unwrap().uid;
    site.run(&["delete", "node", "n2", "--yes"]).await.expect_done();
    refused("NodeRemoved", join("n2", url.clone())).await;
    // Created again it is another node; the old uid is not its own.
    site.apply_role("n2", "manager").await.expect_done();
    site.observe("n2", Role::Manager).await;
    *uid.last_mut().unwrap() = own;
    refused("NodeRemoved", uid).await;
    site.run(&["join", "n9", "--peer-url", &url]).await.expect_code(3);
}

#[tokio::test]
async fn mistyped_arguments_are_usage_errors_that_say_what_is_expected() {
    let site = Site::adopted(1).await;
    let before = site.contents().await;
    for (args, said) in [
        (&["join", "n2"][..], "--peer-url"),
        (
            &["join", "n2", "--peer-url", "10.0.0.1:2380"],
            "expected like https://10.0.0.1:2380",
        ),
        (&["join", "n2", "--peer-url", "http://10.0.0.1"], "expected like"),
        (
            &["join", "n2", "--peer-url", "http://10.0.0.1:0"],
            "expected like",
        ),
        (&["join", "n2", "--peer-url", "http://a:1/path"], "expected like"),
        (&["join", "N2", "--peer-url", "http://a:1"], "N2"),
        (&["join", "n2", "--peer-url", "http://a:1", "-o", "yaml"], "env"),
        (&["promote"], "NODE"),
        (&["promote", "n2", "--timeout", "5s"], "--wait"),
        (
            &["demote", "etcd-1", "--yes", "--wait", "--timeout", "soon"],
            "duration",
        ),
        (&["demote", "etcd-1"], "--yes"),
        (&["demote", "etcd-1", "etcd-2", "--yes"], "etcd-2"),
        (&["delete", "member", "etcd-1", "--yes"], "cannot be deleted"),
    ] {
        let output = site.run(args).await.expect_code(64);
        assert!(output.contains(said), "{args:?}: {output}");
    }
    for args in [
        &["promote", "n2"][..],
        &["demote", "n2", "--yes"],
        &["adopt", "n2"],
        &["get", "member", "n2"],
        &["describe", "member", "ffffffffffffffff"],
    ] {
        site.run(args).await.expect_code(3);
    }
    assert_eq!(site.contents().await, before);
}

#[tokio::test]
async fn a_wait_ends_with_its_time_and_says_that_no_leader_is_elected() {
    let site = Site::adopted(2).await;
    site.demoted("etcd-2", &[]).await;
    let demote = ["demote", "etcd-2", "--yes", "--wait", "--timeout", "2s"];
    let no_leader = "no Quorate leader is elected";
    let output = site.times_out_with(&demote, no_leader).await;
    assert!(output.contains("the request stays"), "{output}");
    site.apply_role("n3", "manager").await.expect_done();
    site.observe("n3", Role::Manager).await;
    let url = free_url();
    let join = ["join", "n3", "--peer-url", &url, "--timeout", "2s"];
    site.times_out_with(&join, no_leader).await;
    // Asked again, it waits for the request that is there.
    let before = site.contents().await;
    site.run(&join).await.expect_code(2);
    assert_eq!(site.contents().await, before);
}
