//! `get --watch`: rows as they change, over restarts and compactions.

use std::process::Stdio;

use quorate::proto::node_spec::Availability;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStderr, ChildStdout, Command};
use tokio::time::timeout;

use super::{keys, node};
use crate::support::base::Base;
use crate::support::quorate::binary;
use crate::support::wait::SOON;

struct Watch {
    lines: Lines<BufReader<ChildStdout>>,
    errors: Lines<BufReader<ChildStderr>>,
    child: Child,
}

impl Watch {
    fn start(cluster: &Base, args: &[&str]) -> Self {
        let mut child = Command::new(binary())
            .args(args)
            .arg("--watch")
            .arg(format!("--etcd-endpoints={}", cluster.etcd.endpoints_flag()))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let stdout = child.stdout.take().unwrap();
        let stderr = child.stderr.take().unwrap();
        Self {
            lines: BufReader::new(stdout).lines(),
            errors: BufReader::new(stderr).lines(),
            child,
        }
    }

    /// The next line, its cells separated by single spaces.
    async fn line(&mut self) -> String {
        let line = timeout(SOON, self.lines.next_line())
            .await
            .expect("a line comes")
            .unwrap()
            .expect("the watch goes on");
        line.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    /// The next line on standard error.
    async fn error(&mut self) -> String {
        let line = timeout(SOON, self.errors.next_line()).await;
        line.expect("a line comes").unwrap().expect("the watch goes on")
    }

    async fn stop(mut self) {
        self.child.kill().await.unwrap();
    }
}

#[tokio::test]
async fn rows_come_as_they_change_and_deletes_are_shown() {
    let cluster = Base::start().await;
    cluster.apply(&(node("n1", "{}") + &node("n2", "{}"))).await;
    let mut watch = Watch::start(&cluster, &["get", "nodes"]);
    assert_eq!(
        watch.line().await,
        "EVENT NAME ROLE DESIRED READY AVAILABILITY RELEASE CONTROLLER AGE"
    );
    assert!(watch.line().await.starts_with("ADDED n1 worker worker no active"));
    assert!(watch.line().await.starts_with("ADDED n2 worker worker no active"));
    cluster
        .put(&keys().alive(&"n2".parse().unwrap()), b"session".to_vec())
        .await;
    assert!(
        watch
            .line()
            .await
            .starts_with("MODIFIED n2 worker worker yes active")
    );
    cluster
        .apply(&node("n1", "{desiredRole: worker, availability: drain}"))
        .await;
    assert!(
        watch
            .line()
            .await
            .starts_with("MODIFIED n1 worker worker no drain")
    );
    cluster.apply(&node("n0", "{}")).await;
    assert!(watch.line().await.starts_with("ADDED n0 "));
    cluster
        .run(&["delete", "node", "n1", "--yes"])
        .await
        .expect_done();
    assert!(
        watch
            .line()
            .await
            .starts_with("DELETED n1 worker worker no drain")
    );
    watch.stop().await;
}

#[tokio::test]
async fn a_watch_survives_a_restart_and_shows_the_delete_that_a_compaction_hid() {
    let mut cluster = Base::start().await;
    cluster.apply(&(node("n1", "{}") + &node("n2", "{}"))).await;
    let mut watch = Watch::start(&cluster, &["get", "nodes", "-o", "name"]);
    assert_eq!(watch.line().await, "node/n1 added");
    assert_eq!(watch.line().await, "node/n2 added");
    let pid = rustix::process::Pid::from_raw(watch.child.id().unwrap().cast_signed()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    cluster.etcd.members[0].kill().await.unwrap();
    cluster.etcd.members[0].start().await.unwrap();
    cluster.etcd.etcdctl(&["del", "/quorate/nodes/n1"]);
    cluster
        .change("n2", |node| {
            node.spec.as_mut().unwrap().set_availability(Availability::Pause);
        })
        .await;
    cluster.etcd.compact();
    rustix::process::kill_process(pid, rustix::process::Signal::CONT).unwrap();
    let mut lines = [watch.line().await, watch.line().await];
    lines.sort();
    assert_eq!(lines, ["node/n1 deleted", "node/n2 modified"]);
    watch.stop().await;
}

#[tokio::test]
async fn one_object_is_watched_by_name_as_documents() {
    let cluster = Base::start().await;
    cluster.apply(&(node("n1", "{}") + &node("n2", "{}"))).await;
    let mut watch = Watch::start(&cluster, &["get", "node", "n2", "-o", "yaml"]);
    assert_eq!(watch.line().await, "---");
    assert_eq!(watch.line().await, "object:");
    cluster
        .apply(&node("n1", "{desiredRole: worker, availability: drain}"))
        .await;
    cluster
        .run(&["delete", "node", "n2", "--yes"])
        .await
        .expect_done();
    let mut types = Vec::new();
    let mut names = Vec::new();
    while types.len() < 2 {
        let line = watch.line().await;
        types.extend(line.strip_prefix("type: ").map(str::to_owned));
        names.extend(line.strip_prefix("name: ").map(str::to_owned));
    }
    assert_eq!(types, ["ADDED", "DELETED"]);
    assert_eq!(names, ["n2", "n2"]);
    watch.stop().await;
}

#[tokio::test]
async fn the_leader_among_the_replicas_is_watched() {
    let cluster = Base::start().await;
    let registration = quorate::proto::Registration {
        version: Some(quorate::release::own_version().to_proto()),
        process: "p".to_owned(),
        registered_at: None,
        page: String::new(),
    };
    let key = keys().registration(&"r1".parse().unwrap());
    cluster
        .put(&key, prost::Message::encode_to_vec(&registration))
        .await;
    let mut watch = Watch::start(&cluster, &["get", "replicas", "--no-headers"]);
    let release = env!("CARGO_PKG_VERSION");
    assert_eq!(watch.line().await, format!("ADDED r1 {release} no p <unknown>"));
    cluster
        .put(format!("{}/1a", keys().election()).as_bytes(), b"r1".to_vec())
        .await;
    assert_eq!(
        watch.line().await,
        format!("MODIFIED r1 {release} yes p <unknown>")
    );
    watch.stop().await;
}

#[tokio::test]
async fn an_outage_of_etcd_is_reported_beside_the_rows_and_so_is_its_end() {
    let mut cluster = Base::start().await;
    cluster.apply(&node("n1", "{}")).await;
    let mut nodes = Watch::start(&cluster, &["get", "nodes", "-o", "name"]);
    let mut status = Watch::start(&cluster, &["status", "-o", "json"]);
    assert_eq!(nodes.line().await, "node/n1 added");
    assert!(status.line().await.starts_with('{'));
    cluster.etcd.members[0].kill().await.unwrap();
    for watch in [&mut nodes, &mut status] {
        while watch.error().await != "etcd does not answer; waiting for it" {}
    }
    cluster.etcd.members[0].start().await.unwrap();
    for watch in [&mut nodes, &mut status] {
        while watch.error().await != "etcd answers again" {}
    }
    nodes.stop().await;
    status.stop().await;
}

#[tokio::test]
async fn the_status_shows_at_once_that_roles_are_paused() {
    let cluster = Base::start().await;
    let mut status = Watch::start(&cluster, &["status", "-o", "json"]);
    assert!(status.line().await.contains("\"rolesPaused\":null"));
    cluster
        .run(&["pause", "roles", "--reason=maintenance"])
        .await
        .expect_done();
    let shown = status.line().await;
    assert!(shown.contains("\"reason\":\"maintenance\""), "{shown}");
    cluster.run(&["resume", "roles"]).await.expect_done();
    let shown = status.line().await;
    assert!(shown.contains("\"rolesPaused\":null"), "{shown}");
    status.stop().await;
}
