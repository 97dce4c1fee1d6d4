//! WaitReady, as a library function and as a command.

use std::process::Stdio;

use quorate::etcd::Txn;
use quorate::gate::status::State;
use quorate::gate::{Requirements, wait_ready};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::term::{Cluster, release, status};
use crate::support::client::{commit, connect_to, store};
use crate::support::etcd::{PASSWORD, READS_BEGUN, TestEtcd, USER};
use crate::support::proxy::{Network, Proxy};
use crate::support::quorate::{Finished, binary, program, quorate, quorate_on};
use crate::support::wait::{SOON, eventually, same};

/// Release 0.4.0, which requires a state reconciled by 0.2.0.
const REQUIREMENTS: Requirements = Requirements {
    release: quorate::release::Release::new(0, 4, 0),
    min_reconciler: quorate::release::Release::new(0, 2, 0),
};

/// Waits beside the test, and records the reasons.
struct Waiting {
    reasons: std::sync::Arc<std::sync::Mutex<Vec<String>>>,
    task: JoinSet<()>,
}

impl Waiting {
    fn start(store: &quorate::store::Store) -> Self {
        let reasons = std::sync::Arc::<std::sync::Mutex<Vec<String>>>::default();
        let mut task = JoinSet::new();
        let (store, recorded) = (store.clone(), reasons.clone());
        task.spawn(async move {
            wait_ready(&store, REQUIREMENTS, |reason| {
                recorded.lock().unwrap().push(reason.to_string())
            })
            .await
            .unwrap();
        });
        Self { reasons, task }
    }

    fn reasons(&self) -> Vec<String> {
        self.reasons.lock().unwrap().clone()
    }

    /// Waits until this many reasons were reported, and returns the last of them.
    async fn reason(&self, count: usize) -> String {
        eventually(SOON, "reasons", async || {
            let reasons = self.reasons();
            match reasons.len() >= count {
                true => Ok(reasons[count - 1].clone()),
                false => Err(format!("{reasons:?}")),
            }
        })
        .await
    }

    async fn ends(mut self) -> Vec<String> {
        timeout(SOON, self.task.join_next())
            .await
            .expect("it is ready")
            .unwrap()
            .unwrap();
        self.reasons()
    }
}

#[tokio::test]
async fn each_new_reason_to_wait_is_reported_once() {
    let cluster = Cluster::start().await;
    let waiting = Waiting::start(&cluster.store);
    assert!(waiting.reason(1).await.contains("no reconciler status"));
    cluster.put_status([0xff]).await;
    assert!(waiting.reason(2).await.contains("cannot be decoded"));
    cluster.put_status(status(State::Done, 6, 5).encode()).await;
    let excluded = waiting.reason(3).await;
    assert!(
        excluded.contains("0.4.0 is below the minimum compatible release 0.5.0"),
        "{excluded}"
    );
    // Another state with the same minimum gives the same reason.
    cluster.put_status(status(State::Working, 6, 5).encode()).await;
    cluster.put_status(status(State::Done, 1, 0).encode()).await;
    let behind = waiting.reason(4).await;
    assert!(
        behind.contains("reconciled by 0.1.0, but 0.4.0 needs at least 0.2.0"),
        "{behind}"
    );
    let txn = Txn::new().delete(&cluster.store.keys.status());
    commit(&cluster.client, txn).await.unwrap();
    assert_eq!(
        waiting.reason(5).await,
        waiting.reasons()[0],
        "a reason that comes back is reported again"
    );
    cluster.put_status(status(State::Working, 3, 4).encode()).await;
    assert_eq!(waiting.ends().await.len(), 5, "WORKING does not block");
}

#[tokio::test]
async fn a_compatible_status_that_exists_already_gives_no_reason_to_wait() {
    let cluster = Cluster::start().await;
    for state in [State::Done, State::Working] {
        cluster.put_status(status(state, 2, 4).encode()).await;
        assert_eq!(Waiting::start(&cluster.store).ends().await, [""; 0]);
    }
}

#[tokio::test]
async fn waiting_survives_a_restart_of_etcd_a_broken_connection_and_a_compaction() {
    let mut cluster = Cluster::start().await;
    cluster.put_status(status(State::Done, 1, 0).encode()).await;
    let proxy = Proxy::in_front_of(&cluster.etcd.endpoints()[0]);
    let waiting = Waiting::start(&store(&connect_to(vec![proxy.url()]).await));
    waiting.reason(1).await;
    cluster.etcd.members[0].kill().await.unwrap();
    cluster.etcd.members[0].start().await.unwrap();
    cluster
        .etcd
        .etcdctl(&["put", "/q/kubernetes/reconciler/status", "garbage"]);
    waiting.reason(2).await;
    proxy.set(Network::Resets);
    cluster.etcd.etcdctl(&["del", "/q/kubernetes/reconciler/status"]);
    cluster.etcd.compact();
    proxy.set(Network::Passes);
    assert!(waiting.reason(3).await.contains("no reconciler status"));
    let value = status(State::Done, 4, 4).encode();
    eventually(SOON, "etcd takes the status", async || {
        let txn = Txn::new().put(&cluster.store.keys.status(), value.clone());
        commit(&cluster.client, txn).await
    })
    .await;
    waiting.ends().await;
}

/// Runs the command on this etcd, with these further arguments.
async fn command(etcd: &TestEtcd, args: &[&str]) -> Finished {
    quorate_on(etcd, &[&["wait-ready", "--prefix=/q"], args].concat(), "").await
}

#[tokio::test]
async fn the_exit_code_says_whether_the_release_is_admitted() {
    let cluster = Cluster::start().await;
    let release_flag = format!("--release={}", REQUIREMENTS.release);
    let args = [&*release_flag, "--min-reconciler-release=0.2.0", "--timeout=1s"];
    let waited = command(&cluster.etcd, &args).await;
    assert_eq!(waited.code, 2, "{waited:?}");
    assert_eq!(waited.stdout, "waiting: there is no reconciler status yet\n");
    assert!(
        waited.stderr.contains("0.4.0 is not admitted after 1s"),
        "{}",
        waited.stderr
    );

    cluster.put_status(status(State::Done, 6, 5).encode()).await;
    let excluded = command(&cluster.etcd, &args).await;
    assert_eq!(excluded.code, 2);
    assert_eq!(excluded.stdout.lines().count(), 1, "{}", excluded.stdout);

    cluster.put_status(status(State::Done, 4, 4).encode()).await;
    let admitted = command(&cluster.etcd, &args).await.expect_done();
    assert_eq!(admitted, "ready: the reconciled state admits release 0.4.0\n");

    let impossible = command(
        &cluster.etcd,
        &["--release=0.1.0", "--min-reconciler-release=0.2.0"],
    )
    .await;
    assert!(
        impossible
            .expect_code(64)
            .contains("0.2.0 is above --release 0.1.0")
    );
    assert_eq!(cluster.etcd.keys("/q/nodes/"), [""; 0], "it registers nothing");
}

#[tokio::test]
async fn a_user_who_may_only_read_the_status_can_wait_for_it() {
    let etcd = TestEtcd::with_password("/nothing", 60).await;
    let status_key = "/q/kubernetes/reconciler/status";
    etcd.etcdctl_as_root(&["role", "grant-permission", USER, "read", status_key]);
    let directory = tempfile::tempdir().unwrap();
    let password = directory.path().join("password");
    std::fs::write(&password, PASSWORD).unwrap();
    let user = format!("--etcd-user={USER}");
    let password = format!("--etcd-password-file={}", password.display());
    let release = format!("--release={}", REQUIREMENTS.release);
    let args = [
        &*user,
        &*password,
        &*release,
        "--min-reconciler-release=0.2.0",
        "--timeout=3s",
    ];
    let waited = command(&etcd, &args).await;
    assert_eq!(waited.code, 2, "{waited:?}");
    assert_eq!(waited.stdout, "waiting: there is no reconciler status yet\n");
}

#[tokio::test]
async fn without_time_the_command_looks_once_and_says_what_it_saw() {
    let cluster = Cluster::start().await;
    let args = ["--release=0.4.0", "--timeout=0s"];
    let unadmitted = command(&cluster.etcd, &args).await;
    assert_eq!(unadmitted.stdout, "waiting: there is no reconciler status yet\n");
    assert!(
        unadmitted
            .expect_code(2)
            .contains("0.4.0 is not admitted after 0s")
    );

    cluster.put_status(status(State::Done, 4, 4).encode()).await;
    command(&cluster.etcd, &args).await.expect_done();

    let proxy = Proxy::in_front_of(&cluster.etcd.members[0].client_url);
    proxy.set(Network::Resets);
    let endpoint = format!("--etcd-endpoints={}", proxy.url());
    let shown = cluster.etcd.credentials().flags();
    let shown = shown.iter().map(String::as_str);
    let args: Vec<&str> = ["wait-ready", "--prefix=/q", &endpoint]
        .into_iter()
        .chain(args)
        .chain(shown)
        .collect();
    let unseen = quorate(args).await;
    assert!(
        unseen.stdout.starts_with("waiting: no etcd endpoint answers"),
        "{unseen:?}"
    );
    assert!(unseen.expect_code(2).contains("the state was not seen within 0s"));
}

#[tokio::test]
async fn the_command_waits_for_an_etcd_that_does_not_answer_at_its_start() {
    let cluster = Cluster::start().await;
    cluster.put_status(status(State::Done, 4, 4).encode()).await;
    let proxy = Proxy::in_front_of(&cluster.etcd.members[0].client_url);
    proxy.set(Network::Resets);
    let mut waiting = program()
        .args(["wait-ready", "--prefix=/q", "--release=0.4.0", "--timeout=50s"])
        .arg(format!("--etcd-endpoints={}", proxy.url()))
        .args(cluster.etcd.credentials().flags())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut shown = BufReader::new(waiting.stdout.take().unwrap()).lines();
    let reason = timeout(SOON, shown.next_line()).await.unwrap().unwrap().unwrap();
    assert!(
        reason.starts_with("waiting: no etcd endpoint answers"),
        "{reason}"
    );
    proxy.set(Network::Passes);
    let ended = timeout(SOON, waiting.wait()).await.unwrap().unwrap();
    assert!(ended.success(), "{ended}");
}

#[tokio::test]
async fn the_command_survives_a_restart_of_etcd() {
    let mut cluster = Cluster::start().await;
    let mut args = cluster.etcd.credentials().flags();
    args.push(format!("--etcd-endpoints={}", cluster.etcd.endpoints_flag()));
    let mut waiting = JoinSet::new();
    waiting.spawn(async move {
        let wait = ["wait-ready", "--prefix=/q", "--release=0.4.0", "--timeout=50s"];
        quorate(wait.into_iter().map(str::to_owned).chain(args)).await
    });
    let connected = async || {
        let metric = cluster.etcd.members[0]
            .metric("etcd_debugging_mvcc_watcher_total")
            .await;
        same(metric, Some(1.0))
    };
    eventually(SOON, "the command watches", connected).await;
    cluster.etcd.members[0].kill().await.unwrap();
    cluster.etcd.members[0].start().await.unwrap();
    let value = status(State::Done, 4, 4).encode();
    eventually(SOON, "etcd takes the status", async || {
        let txn = Txn::new().put(&cluster.store.keys.status(), value.clone());
        commit(&cluster.client, txn).await
    })
    .await;
    let ended = waiting.join_next().await.unwrap().unwrap();
    let stdout = ended.expect_done();
    assert!(
        stdout.starts_with("waiting: there is no reconciler status yet\n"),
        "{stdout}"
    );
}

#[tokio::test]
async fn the_command_waits_on_when_the_reader_of_its_output_is_gone() {
    let cluster = Cluster::start().await;
    let mut waiting = Command::new(binary())
        .args(["wait-ready", "--prefix=/q", "--release=0.4.0", "--timeout=50s"])
        .arg(format!("--etcd-endpoints={}", cluster.etcd.endpoints_flag()))
        .args(cluster.etcd.credentials().flags())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    drop(waiting.stdout.take());
    // It watches after it printed the first reason.
    eventually(SOON, "the command watches", async || {
        same(
            cluster.etcd.members[0]
                .metric("etcd_debugging_mvcc_watcher_total")
                .await,
            Some(1.0),
        )
    })
    .await;
    cluster.put_status(status(State::Done, 4, 4).encode()).await;
    let ended = timeout(SOON, waiting.wait()).await.unwrap().unwrap();
    assert!(ended.success(), "{ended}");
}

#[tokio::test]
async fn the_command_uses_other_members_than_the_one_that_it_was_given() {
    let mut etcd = TestEtcd::with(3, &[]).await;
    let mut args = etcd.credentials().flags();
    args.push(format!("--etcd-endpoints={}", etcd.members[0].client_url));
    let mut waiting = JoinSet::new();
    waiting.spawn(async move {
        let wait = ["wait-ready", "--prefix=/q", "--release=0.4.0", "--timeout=55s"];
        quorate(wait.into_iter().map(str::to_owned).chain(args)).await
    });
    eventually(SOON, "the command knows the other members", async || {
        same(etcd.members[1].metric(READS_BEGUN).await > Some(0.0), true)
    })
    .await;
    etcd.members[0].kill().await.unwrap();
    etcd.members[1].wait_healthy().await.unwrap();
    let store = store(&connect_to(vec![etcd.members[1].client_url.clone()]).await);
    let value = status(State::Done, 4, 4).encode();
    eventually(SOON, "etcd takes the status", async || {
        commit(&store.etcd, Txn::new().put(&store.keys.status(), value.clone())).await
    })
    .await;
    waiting.join_next().await.unwrap().unwrap().expect_done();
}

#[tokio::test]
async fn the_command_survives_the_end_of_its_token_and_of_the_member_that_issued_it() {
    let mut etcd = TestEtcd::with_password("/q", 1).await;
    let file = etcd.directory().join("password");
    std::fs::write(&file, PASSWORD).unwrap();
    let flags = [
        format!("--etcd-endpoints={}", etcd.endpoints_flag()),
        format!("--etcd-user={USER}"),
        format!("--etcd-password-file={}", file.display()),
    ];
    let mut waiting = JoinSet::new();
    waiting.spawn(async move {
        let args = ["wait-ready", "--prefix=/q", "--release=0.4.0", "--timeout=50s"];
        quorate(args.into_iter().map(str::to_owned).chain(flags)).await
    });
    eventually(SOON, "the command watches", async || {
        same(
            etcd.members[0].metric("etcd_debugging_mvcc_watcher_total").await,
            Some(1.0),
        )
    })
    .await;
    // A member keeps the tokens that it issued in memory.
    etcd.members[0].kill().await.unwrap();
    etcd.members[0].start().await.unwrap();
    // Protobuf by hand: state DONE; version 0.4.0; minimum compatible release 0.1.0.
    let value = status(State::Done, 4, 1).encode();
    assert!(
        value.is_ascii() && !value.contains(&0),
        "etcdctl takes it as an argument"
    );
    let text = String::from_utf8(value).unwrap();
    etcd.etcdctl_as_root(&["put", "--", "/q/kubernetes/reconciler/status", &text]);
    waiting.join_next().await.unwrap().unwrap().expect_done();
    assert_eq!(release(4), REQUIREMENTS.release);
}
