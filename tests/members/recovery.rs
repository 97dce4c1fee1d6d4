//! Without a quorum: what still answers, and the way back, step by step as `quorate recover plan` prints it.

use quorate::etcd::{KeyRange, Txn};
use quorate::proto::Role;

use super::Site;
use super::tour::{led, voters};
use crate::support::client::{commit, connect_to};
use crate::support::etcd::EtcdVersion;
use crate::support::quorate::{Finished, quorate};
use crate::support::shell::typed;
use crate::support::wait::{SOON, eventually, same};

/// Runs a command on this member alone.
async fn on(url: &str, args: &[&str]) -> Finished {
    let flag = format!("--etcd-endpoints={url}");
    quorate([args, &[flag.as_str()]].concat()).await
}

async fn write(site: &Site, key: &str) {
    let txn = Txn::new().put(format!("/data/{key}").as_bytes(), "acknowledged");
    eventually(SOON, "a write", async || {
        commit(&site.store.etcd, txn.clone()).await
    })
    .await;
}

/// The commands of a plan, in their order. Each ends its line.
fn commands(plan: &str) -> Vec<String> {
    let begins = ["ETCDCTL_API=3 etcdctl ", "quorate "];
    let of = |line: &str| {
        begins
            .iter()
            .find_map(|begin| Some(line[line.find(begin)?..].to_owned()))
    };
    plan.lines().filter_map(of).collect()
}

/// Runs a printed command as it stands, in the directory of the cluster; what it printed.
async fn run_literally(site: &Site, line: &str) -> String {
    typed(&site.etcd, site.etcd.directory(), line).await
}

async fn brought_back_by_what_is_printed(version: EtcdVersion) {
    let mut site = Site::adopted_on(version, 3).await;
    {
        let mut replica = led(&site).await;
        write(&site, "before").await;
        replica.stop().await.unwrap();
    }
    let url = site.etcd.members[0].client_url.clone();
    for lost in [1, 2] {
        site.0.etcd.members[lost].kill().await.unwrap();
    }
    // Nothing is written, and everything is shown, under a banner.
    for args in [
        &["get", "members"][..],
        &["describe", "node", "etcd-2"],
        &["status"],
        &["get", "nodes"],
    ] {
        let shown = on(&url, args).await;
        assert_eq!(shown.code, 0, "{args:?}: {shown:?}");
        assert!(shown.stderr.contains("may be out of date"), "{shown:?}");
    }
    let members = eventually(SOON, "the one that is left says its version", async || {
        let shown = on(&url, &["get", "members", "--no-headers"]).await.expect_done();
        if shown.contains("3.") {
            Ok(shown)
        } else {
            Err(shown)
        }
    })
    .await;
    assert_eq!(members.matches(" unhealthy ").count(), 3, "{members}");
    let leaders = members.lines().map(|line| line.split_whitespace().nth(4));
    assert!(
        leaders.eq([Some("<unknown>"); 3]),
        "without a quorum no member leads: {members}"
    );
    let plan = on(&url, &["recover", "plan"]).await.expect_done();
    for part in [
        "of 3 voters 1 answer here, and 2 are needed",
        "etcd-1 knows the most",
        "--force-new-cluster",
        "quorate join etcd-2 --peer-url",
    ] {
        assert!(plan.contains(part), "{part:?} is missing: {plan}");
    }
    let commands = commands(&plan);
    let [snapshot, get_members, rejoining @ ..] = &commands[..] else {
        panic!("{plan}")
    };
    assert_eq!(rejoining.len(), 4, "{plan}");
    // Step 3: the snapshot is also possible without a quorum.
    run_literally(&site, snapshot).await;
    assert!(site.etcd.directory().join("before-recovery.db").exists());
    // Step 5.
    let survivor = &mut site.0.etcd.members[0];
    survivor.kill().await.unwrap();
    survivor.force_new_cluster(true);
    survivor.start().await.unwrap();
    survivor.kill().await.unwrap();
    survivor.force_new_cluster(false);
    survivor.start().await.unwrap();
    // Step 6.
    eventually(SOON, "the one that is left is healthy", async || {
        let members = run_literally(&site, get_members).await;
        same(members.matches(" healthy ").count(), 1).map_err(|_| members)
    })
    .await;
    let plan = on(&url, &["recover", "plan"]).await.expect_done();
    assert!(plan.contains("etcd has a quorum"), "{plan}");
    // Step 7.
    site.0.store.etcd = connect_to(vec![url.clone()]).await;
    let _replica = led(&site).await;
    eventually(SOON, "the lost members are forgotten", async || {
        same(site.etcd.keys("/quorate/members/").len(), 1)
    })
    .await;
    // Step 8 and 9: the settings, and the wait.
    let mut back = Vec::new();
    for (node, commands) in ["etcd-2", "etcd-3"].into_iter().zip(rejoining.chunks(2)) {
        let settings = run_literally(&site, &commands[0]).await;
        assert!(settings.contains("ETCD_INITIAL_CLUSTER="), "{settings}");
        back.push(site.start_etcd(node, &settings));
        run_literally(&site, &commands[1]).await;
        let lasting = run_literally(&site, &commands[0]).await;
        assert!(!lasting.contains("ETCD_INITIAL_CLUSTER="), "{lasting}");
    }
    assert_eq!(voters(&site).await, ["etcd-1", "etcd-2", "etcd-3"]);
    let data = site.list(&KeyRange::prefix(b"/data/".to_vec())).await;
    assert_eq!(data.len(), 1);
}

#[tokio::test]
async fn without_a_quorum_the_commands_show_what_is_left_and_the_printed_steps_bring_the_cluster_back() {
    brought_back_by_what_is_printed(EtcdVersion::Installed).await;
}

#[tokio::test]
async fn the_printed_steps_bring_a_cluster_of_the_next_release_of_etcd_back() {
    brought_back_by_what_is_printed(EtcdVersion::Next).await;
}

async fn restored_under_a_replica(version: EtcdVersion) {
    let mut site = Site::adopted_on(version, 3).await;
    let mut replica = led(&site).await;
    write(&site, "before").await;
    let snapshot = site.etcd.snapshot();
    write(&site, "after").await;
    site.0.etcd.restore_as("another-token", &snapshot).await;
    // It ends, since what it remembers is void.
    assert!(!replica.ended().await.success());
    site.0.store.etcd = connect_to(site.etcd.endpoints()).await;
    let _replica = led(&site).await;
    eventually(SOON, "the members of before are forgotten", async || {
        let records = site.etcd.keys("/quorate/members/");
        same(records.len(), 0)
    })
    .await;
    site.run(&["adopt"]).await.expect_done();
    assert_eq!(voters(&site).await, ["etcd-1", "etcd-2", "etcd-3"]);
    for node in ["etcd-1", "etcd-2", "etcd-3"] {
        let shown = site
            .run(&["get", "node", node, "--no-headers"])
            .await
            .expect_done();
        assert_eq!(shown.matches("manager").count(), 2, "{shown}");
    }
}

#[tokio::test]
async fn after_a_restore_under_a_running_replica_nothing_leaves_and_adopt_ties_the_members_again() {
    restored_under_a_replica(EtcdVersion::Installed).await;
}

#[tokio::test]
async fn nor_does_anything_leave_after_a_restore_of_the_next_release_of_etcd() {
    restored_under_a_replica(EtcdVersion::Next).await;
}

#[tokio::test]
async fn while_roles_are_paused_no_role_and_no_member_changes() {
    let site = Site::adopted(3).await;
    let replica = led(&site).await;
    let paused = site
        .run(&["pause", "roles", "--reason", "a disk"])
        .await
        .expect_done();
    assert_eq!(paused, "roles are paused\n");
    eventually(SOON, "the leader has noticed", async || {
        same(replica.metric("quorate_roles_paused").await as i64, 1)
    })
    .await;
    let status = site.run(&["status"]).await.expect_done();
    assert!(
        status.contains("paused since") && status.contains(": a disk"),
        "{status}"
    );
    site.apply_role("n4", "manager").await.expect_done();
    site.demoted("etcd-3", &[]).await;
    let demote = ["demote", "etcd-3", "--yes", "--wait", "--timeout", "3s"];
    site.times_out_with(&demote, "roles are paused").await;
    assert_eq!(voters(&site).await, ["etcd-1", "etcd-2", "etcd-3"]);
    assert_eq!(site.observed("n4").await, Role::Worker);
    assert_eq!(
        site.run(&["resume", "roles"]).await.expect_done(),
        "roles are resumed\n"
    );
    let resumed = site.run(&["resume", "roles"]).await.expect_done();
    assert_eq!(resumed, "roles are not paused\n");
    site.demoted("etcd-3", &["--wait", "--timeout", "60s"]).await;
    assert_eq!(voters(&site).await, ["etcd-1", "etcd-2"]);
}
