//! Replicas whose user of etcd has lost its rights: they neither lead nor stand for election, and say so.

use std::path::PathBuf;
use std::time::Duration;

use quorate::etcd::Txn;
use quorate::grpc_code::Code;
use quorate::release::Release;
use quorate_dev::http;

use super::newer::{record, registration};
use super::{ELECTION, SHORT_TTL, launch, launch_for};
use crate::support::client::{LONG_TTL, commit, config, connect_with};
use crate::support::etcd::{PASSWORD, TestEtcd, USER};
use crate::support::metrics;
use crate::support::proxy::{Network, Proxy};
use crate::support::quorate::{TestReplica, quorate_with};
use crate::support::wait::{SOON, eventually, same};

/// Another user with the same rights.
const ABLE: &str = "able";

/// A replica that leads as [`USER`], through a proxy, and one behind it as [`ABLE`].
struct World {
    etcd: TestEtcd,
    proxy: Proxy,
    leader: TestReplica,
    able: TestReplica,
}

impl World {
    /// The leader asks for its rights every few seconds.
    async fn start() -> Self {
        Self::with_ttl(SHORT_TTL).await
    }

    async fn with_ttl(ttl: Duration) -> Self {
        Self::start_with(ttl, &["--rights-interval-ms=2000"]).await
    }

    async fn start_with(ttl: Duration, flags: &[&str]) -> Self {
        let etcd = TestEtcd::with_password("/quorate", 60).await;
        etcd.etcdctl_as_root(&["user", "add", &format!("{ABLE}:{PASSWORD}")]);
        etcd.etcdctl_as_root(&["user", "grant-role", ABLE, USER]);
        let proxy = Proxy::in_front_of(&etcd.endpoints()[0]);
        let mut leader = start(&etcd, USER, proxy.url(), ttl, flags);
        leader.wait_leading().await;
        leader.wait_ready().await;
        let mut able = start(&etcd, ABLE, etcd.endpoints()[0].clone(), ttl, flags);
        able.wait_ready().await;
        able.wait_for_log(&format!("standing by behind {USER}")).await;
        Self {
            etcd,
            proxy,
            leader,
            able,
        }
    }

    /// The leader makes way, says so, and does not stand for election.
    async fn expect_refused(&mut self, error: &str) {
        eventually(SOON, "the replica that may write leads", async || {
            same(self.able.leads().await, true)
        })
        .await;
        let refused = &mut self.leader;
        let port = refused.port;
        let page = async |path: &str| http::get(port, path).await.unwrap();
        eventually(SOON, "the other one is not ready", async || {
            same(page("/readyz").await.status, 503)
        })
        .await;
        let ready = page("/readyz").await.body;
        assert!(
            ready.contains("[-]etcd failed") && ready.contains(error),
            "{ready}"
        );
        let leader = page("/leaderz").await.body;
        assert!(
            leader.contains("not standing for election: etcd refuses") && leader.contains(error),
            "{leader}"
        );
        assert_eq!(refused.metric("quorate_etcd_refuses").await, 1.0);
        assert!(refused.log().contains("etcd refuses"), "{}", refused.log());
        let before = self.attempts();
        // The measured time, in which no candidacy may begin.
        tokio::time::sleep(Duration::from_secs(3)).await;
        assert_eq!(self.attempts(), before);
    }

    /// Whether the first replica knows that etcd refuses it.
    async fn expect_refusal(&self, refused: f64) {
        eventually(SOON, "what the replica knows of its rights", async || {
            same(self.leader.metric("quorate_etcd_refuses").await, refused)
        })
        .await;
    }

    /// The keys of the candidates, and how many candidacies of the replica that is refused have failed.
    fn attempts(&mut self) -> (String, usize) {
        let keys = ["get", "--prefix", "--keys-only", ELECTION];
        let failed = self.leader.log().matches("standing again").count();
        (self.etcd.etcdctl_as_root(&keys), failed)
    }

    /// The replica that was refused stands for election, behind the leader.
    async fn expect_accepted(mut self) {
        self.leader.wait_ready().await;
        self.leader
            .wait_for_log(&format!("standing by behind {ABLE}"))
            .await;
        assert_eq!(self.leader.metric("quorate_etcd_refuses").await, 0.0);
        assert_eq!(self.leader.metric("quorate_leader_transitions_total").await, 1.0);
        assert!(self.able.leads().await);
        assert_eq!(self.able.metric("quorate_leader_transitions_total").await, 1.0);
    }
}

fn password_file(etcd: &TestEtcd, user: &str) -> PathBuf {
    etcd.directory().join(format!("password-of-{user}"))
}

fn start(etcd: &TestEtcd, user: &str, endpoint: String, ttl: Duration, flags: &[&str]) -> TestReplica {
    let file = password_file(etcd, user);
    std::fs::write(&file, PASSWORD).unwrap();
    let launch = launch_for(etcd, ttl);
    let launch = flags.iter().fold(launch, |launch, flag| launch.flag(*flag));
    launch
        .endpoints(vec![endpoint])
        .flag("--etcd-sync-endpoints=false")
        .flag(format!("--etcd-user={user}"))
        .flag(format!("--etcd-password-file={}", file.display()))
        .start(user)
}

#[tokio::test]
async fn a_leader_whose_role_is_revoked_makes_way_and_stands_again_once_it_may_write() {
    let mut world = World::start().await;
    world.etcd.etcdctl_as_root(&["user", "revoke-role", USER, USER]);
    world.expect_refused("permission denied").await;
    world.etcd.etcdctl_as_root(&["user", "grant-role", USER, USER]);
    world.expect_accepted().await;
}

/// Nothing else would tell it for a minute.
#[tokio::test]
async fn a_leader_whose_write_is_refused_makes_way_at_once() {
    let mut world = World::start_with(SHORT_TTL, &[]).await;
    world.etcd.etcdctl_as_root(&["user", "revoke-role", USER, USER]);
    // The leader has to note its observed role.
    let node = "{apiVersion: quorate.dev/v1, kind: Node, metadata: {name: n}, spec: {desiredRole: manager}}";
    let applied = quorate_with(
        [
            "apply".to_owned(),
            "-f".to_owned(),
            "-".to_owned(),
            format!("--etcd-endpoints={}", world.etcd.endpoints_flag()),
            format!("--etcd-user={ABLE}"),
            format!(
                "--etcd-password-file={}",
                password_file(&world.etcd, ABLE).display()
            ),
        ],
        Some(node),
        &[],
    );
    applied.await.expect_done();
    world.expect_refused("permission denied").await;
}

/// Keep-alives are no proposals.
#[tokio::test]
async fn a_leader_that_has_nothing_to_write_proposes_nothing() {
    let etcd = TestEtcd::start().await;
    let mut replica = launch(&etcd).start("a");
    replica.wait_leading().await;
    replica.wait_ready().await;
    // The first leader of all records once how far etcd is.
    eventually(SOON, "that is recorded", async || {
        same(etcd.keys("/quorate/history/").len(), 1)
    })
    .await;
    let port = replica.port;
    let proposed = async || {
        let page = http::get(port, "/metrics").await.unwrap();
        metrics::requests_so_far(&page.body, "txn", Code::Ok)
    };
    let before = proposed().await;
    // The measured time.
    tokio::time::sleep(Duration::from_secs(8)).await;
    assert_eq!(proposed().await, before);
    assert!(replica.leads().await);
}

/// It cannot register, and so does not stand for election in any case.
#[tokio::test]
async fn a_replica_that_starts_without_rights_says_that_etcd_refuses_it() {
    let etcd = TestEtcd::with_password("/quorate", 60).await;
    etcd.etcdctl_as_root(&["user", "revoke-role", USER, USER]);
    let mut replica = start(&etcd, USER, etcd.endpoints()[0].clone(), SHORT_TTL, &[]);
    let port = replica.port;
    eventually(SOON, "it says so", async || {
        let page = http::get(port, "/leaderz")
            .await
            .map_err(|error| error.to_string())?;
        match page.body.contains("not standing for election: etcd refuses") {
            true => Ok(()),
            false => Err(page.body),
        }
    })
    .await;
    assert_eq!(replica.metric("quorate_etcd_refuses").await, 1.0);
    etcd.etcdctl_as_root(&["user", "grant-role", USER, USER]);
    replica.wait_leading().await;
    assert_eq!(replica.metric("quorate_etcd_refuses").await, 0.0);
}

/// Two reasons keep it from standing. Each is shown for as long as it lasts.
#[tokio::test]
async fn a_replica_that_is_refused_while_a_newer_one_stands_shows_both() {
    let mut world = World::start().await;
    // It may read: it sees which other replicas there are.
    let root = |args: &[&str]| world.etcd.etcdctl_as_root(args);
    root(&["role", "add", "reader"]);
    root(&[
        "role",
        "grant-permission",
        "reader",
        "read",
        "--prefix=true",
        "/quorate",
    ]);
    root(&["user", "grant-role", USER, "reader"]);
    root(&["user", "revoke-role", USER, USER]);
    world.expect_refused("permission denied").await;
    let mut config = config(world.etcd.endpoints());
    config.user = Some((ABLE.to_owned(), password_file(&world.etcd, ABLE)));
    let able = connect_with(config).await;
    let newer = format!("{ELECTION}newer");
    let stands = Txn::new()
        .put(registration("newer").as_bytes(), record(Release::new(999, 0, 0)))
        .put(newer.as_bytes(), "newer");
    commit(&able, stands).await.unwrap();
    let port = world.leader.port;
    let shown = async |reasons: &[&str]| {
        eventually(SOON, "what keeps it from standing", async || {
            let page = http::get(port, "/leaderz")
                .await
                .map_err(|error| error.to_string())?;
            let lines = page.body.matches("not standing for election").count();
            let all = reasons.iter().all(|reason| page.body.contains(reason));
            match lines == reasons.len() && all {
                true => Ok(()),
                false => Err(page.body),
            }
        })
        .await;
    };
    let (refused, yields) = ("etcd refuses", "replica newer runs release 999.0.0");
    shown(&[refused, yields]).await;
    world.etcd.etcdctl_as_root(&["user", "grant-role", USER, USER]);
    shown(&[yields]).await;
    assert_eq!(world.leader.metric("quorate_etcd_refuses").await, 0.0);
    let standing = world
        .etcd
        .etcdctl_as_root(&["get", "--prefix", "--keys-only", ELECTION]);
    assert_eq!(standing.trim(), newer);
    world.etcd.etcdctl_as_root(&["del", &newer]);
    eventually(SOON, "both stand again", async || {
        let standing = world
            .etcd
            .etcdctl_as_root(&["get", "--prefix", "--keys-only", ELECTION]);
        same(standing.matches(ELECTION).count(), 2)
    })
    .await;
}

#[tokio::test]
async fn a_leader_whose_password_is_changed_makes_way_and_stands_again_with_the_new_one() {
    let mut world = World::start().await;
    let changed = "a staple for the battery";
    world.etcd.change_password(changed);
    world.expect_refused("invalid user ID or password").await;
    std::fs::write(password_file(&world.etcd, USER), changed).unwrap();
    world.expect_accepted().await;
}

#[tokio::test]
async fn a_replica_that_is_refused_stays_so_while_etcd_is_out_of_reach() {
    // The registration outlives the outage: a replica that is not registered does not ask.
    let mut world = World::with_ttl(LONG_TTL).await;
    world.etcd.etcdctl_as_root(&["user", "revoke-role", USER, USER]);
    world.expect_refusal(1.0).await;
    let port = world.leader.port;
    let unanswered = async || {
        let page = http::get(port, "/metrics").await.unwrap();
        metrics::failed_so_far(&page.body, "txn")
    };
    let before = unanswered().await;
    world.proxy.set(Network::Resets);
    eventually(SOON, "questions go unanswered", async || {
        same(unanswered().await >= before + 2.0, true)
    })
    .await;
    world.proxy.set(Network::Passes);
    world.expect_refusal(1.0).await;
    let log = world.leader.log();
    assert!(!log.contains("accepts the writes"), "{log}");
    world.etcd.etcdctl_as_root(&["user", "grant-role", USER, USER]);
    world.expect_refusal(0.0).await;
}
