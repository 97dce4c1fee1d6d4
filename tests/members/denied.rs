//! etcd with users: only one with the role root may change members.

use std::ffi::OsStr;

use quorate::grpc_code::Code;

use super::{Site, free_url};
use crate::support::etcd::{PASSWORD, USER};
use crate::support::metrics::requests_so_far;
use crate::support::quorate::{Finished, Launch, TestReplica, quorate_with};
use crate::support::wait::{QUIET, SOON, eventually, same};

/// An etcd that demands a password since its members were adopted.
struct Guarded {
    site: Site,
    /// The flags that name the user, who has not the role root.
    user: [String; 2],
}

impl Guarded {
    async fn start(members: usize) -> Self {
        let site = Site::adopted(members).await;
        site.etcd.demand_password("/quorate");
        let password = site.etcd.directory().join("password");
        std::fs::write(&password, PASSWORD).unwrap();
        let user = [
            format!("--etcd-user={USER}"),
            format!("--etcd-password-file={}", password.display()),
        ];
        Self { site, user }
    }

    async fn run_with(&self, args: &[&str], stdin: &str) -> Finished {
        let endpoints = format!("--etcd-endpoints={}", self.site.etcd.endpoints_flag());
        let flags = self.user.iter().chain([&endpoints]).map(String::as_str);
        let args = args.iter().copied().chain(flags).map(OsStr::new);
        quorate_with(args, Some(stdin), &[]).await
    }

    async fn run(&self, args: &[&str]) -> Finished {
        self.run_with(args, "").await
    }

    /// Starts a leader, and has a node become a manager that has yet to join.
    async fn led_with_manager(&self, node: &str) -> TestReplica {
        let launch = Launch::on(&self.site.etcd);
        let mut replica = launch.flag(&self.user[0]).flag(&self.user[1]).start("r1");
        replica.wait_leading().await;
        let worker = super::document(node, "worker");
        self.run_with(&["apply", "-f", "-"], &worker).await.expect_done();
        self.run(&["promote", node, "--wait", "--timeout", "30s"])
            .await
            .expect_done();
        replica
    }

    /// Waits until the description of a node has all of these words.
    async fn described(&self, node: &str, words: &[&str]) {
        eventually(SOON, &format!("{node} is described by {words:?}"), async || {
            let described = self.run(&["describe", "node", node]).await.expect_done();
            match words.iter().all(|word| described.contains(word)) {
                true => Ok(()),
                false => Err(described),
            }
        })
        .await;
    }
}

#[tokio::test]
async fn what_etcd_denies_for_want_of_the_role_root_says_what_to_do_and_goes_on_once_that_is_done() {
    let etcd = Guarded::start(3).await;
    let _replica = etcd.led_with_manager("n4").await;
    let url = free_url();
    let join = async |limit: &str| {
        let args = ["join", "n4", "--peer-url", &url, "-o", "env", "--timeout", limit];
        etcd.run(&args).await
    };
    eventually(SOON, "etcd answers", async || {
        let said = join("2s").await.expect_code(2);
        same(said.contains("did not answer"), false).map_err(|_| said)
    })
    .await;
    let advice = "etcdctl user grant-role USER root";
    etcd.described("n4", &["adding", "EtcdDenied", advice]).await;
    eventually(SOON, "it says why it waits", async || {
        let said = join("2s").await.expect_code(2);
        same(said.contains("EtcdDenied") && said.contains(advice), true).map_err(|_| said)
    })
    .await;
    // A demotion likewise.
    let demote = ["demote", "etcd-3", "--yes"];
    // Refused while a member has yet to answer.
    eventually(SOON, "it is demoted", async || {
        let demoted = etcd.run(&demote).await;
        match demoted.code == 4 && demoted.stderr.contains("QuorumRisk") {
            true => Err(demoted.stderr),
            false => Ok(demoted.expect_done()),
        }
    })
    .await;
    etcd.described("etcd-3", &["RoleChangeBlocked", "EtcdDenied", advice])
        .await;
    etcd.site
        .etcd
        .etcdctl_as_root(&["user", "grant-role", USER, "root"]);
    join("60s").await.expect_done();
    etcd.run(&[&demote[..], &["--wait", "--timeout", "60s"]].concat())
        .await
        .expect_done();
}

/// INV-9. As while etcd has no room and has yet to raise the alarm: why a join waits cannot be written either.
#[tokio::test]
async fn a_join_that_cannot_be_written_is_tried_less_and_less_often() {
    let etcd = Guarded::start(1).await;
    let server = &etcd.site.etcd;
    let replica = etcd.led_with_manager("n4").await;
    etcd.run(&["pause", "roles"]).await.expect_done();
    let url = free_url();
    let join = ["join", "n4", "--peer-url", &url, "--timeout", "2s"];
    etcd.run(&join).await.expect_code(2);
    // The user may write everything but joins from now on.
    let grant = |args: &[&str]| server.etcdctl_as_root(&[&["role", "grant-permission"], args].concat());
    grant(&[USER, "readwrite", "/quorate", "/quorate/joins/"]);
    grant(&[USER, "readwrite", "/quorate/joins0", "/quoratf"]);
    grant(&["--prefix=true", USER, "read", "/quorate"]);
    etcd.run(&["resume", "roles"]).await.expect_done();
    let denied = async || {
        let page = replica.get("/metrics").await.unwrap();
        requests_so_far(&page.body, "txn", Code::PermissionDenied)
    };
    eventually(SOON, "the leader is denied the join", async || {
        same(denied().await > 0.0, true)
    })
    .await;
    let before = denied().await;
    // The measured time.
    tokio::time::sleep(QUIET).await;
    let tried = denied().await - before;
    assert!(tried < 20.0, "{tried} times in {QUIET:?}");
}
