//! A fresh cluster: what the leader and a standby show, and where the page is found.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::viewer::Viewer;
use super::{content, page, pictures, shown, state, texts, worker};
use crate::support::base::Base;
use crate::support::etcd::TestEtcd;
use crate::support::quorate::Launch;
use crate::support::wait::{SOON, eventually, same};

/// Adopts the members of etcd, once they have published their names.
async fn adopt(base: &Base) {
    eventually(SOON, "the members are adopted", async || {
        let adopted = base.run(&["adopt"]).await;
        same(adopted.code, 0).map_err(|_| adopted.stderr)
    })
    .await;
}

/// Whether the leader has asked this many members.
fn has_members(state: &Value, members: usize) -> bool {
    content(state, "roles")["members"]["members"]["total"] == members
}

#[tokio::test]
async fn a_fresh_cluster_shows_its_leader_and_its_parts_and_a_standby_leads_to_the_leader() {
    let base = Base::start().await;
    adopt(&base).await;
    let launch = Launch::on(&base.etcd);
    let mut leader = launch.start("r1");
    leader.wait_leading().await;
    let standby = launch.start("r2");
    let shows_both = |state: &Value| content(state, "releases")["replicas"]["total"] == 2;
    let seen = shown(&leader, "the leader shows its parts", |state| {
        let first = || content(state, "roles")["members"]["members"]["first"][0].clone();
        let answers = has_members(state, 1) && first()["healthy"] == true;
        shows_both(state) && answers && state["deletions"]["known"] == "now"
    })
    .await;

    let status: Value = serde_json::from_str(&base.done(&["status", "-o", "json"]).await).unwrap();
    assert_eq!(seen["leader"]["name"], "r1");
    assert_eq!(seen["leader"]["term"], status["leader"]["term"]);
    assert_eq!(seen["picture"]["cutOff"], false);
    assert_eq!(seen["replica"]["leads"], true);
    assert_eq!(
        texts(&content(&seen, "releases")["replicas"], "name"),
        ["r1", "r2"]
    );
    let member = &content(&seen, "roles")["members"]["members"]["first"][0];
    assert_eq!(
        (&member["node"], &member["kind"], &member["healthy"]),
        (&"etcd-1".into(), &"voter".into(), &true.into())
    );
    // Without a control port nothing says which nodes are ready.
    assert_eq!(content(&seen, "nodes")["ready"], Value::Null);
    assert_eq!(texts(&content(&seen, "nodes")["nodes"], "name"), ["etcd-1"]);
    assert!(seen["gate"].is_null() && seen["resources"].is_null(), "{seen:#}");

    // The address is registered, and printed.
    let address = format!("http://127.0.0.1:{}/", leader.port);
    assert_eq!(seen["leader"]["page"], address.as_str());
    let wide = base.done(&["status", "-o", "wide"]).await;
    assert!(wide.contains(&format!("{address} (r1)")), "{wide}");
    assert!(!base.done(&["status"]).await.contains(&address));
    let html = page(&leader).await;
    assert!(html.contains("Up to date: etcd answers this replica."), "{html}");
    pictures::take("fresh-leader", &leader).await;

    let seen = shown(&standby, "the standby sees the leader", |state| {
        shows_both(state) && state["leader"]["name"] == "r1"
    })
    .await;
    assert_eq!(seen["replica"]["leads"], false);
    for part in ["roles", "volumes", "deletions"] {
        assert_eq!(seen[part]["known"], "byTheLeader", "{part}");
    }
    let html = page(&standby).await;
    let link = format!("The leader alone knows this: <a rel=\"noreferrer\" href=\"{address}\">r1</a>.");
    assert!(html.contains(&link), "{html}");
    pictures::take("fresh-standby", &standby).await;
}

#[tokio::test]
async fn a_change_is_sent_to_a_viewer_within_a_second() {
    let base = Base::start().await;
    let mut replica = Launch::on(&base.etcd).start("r1");
    replica.wait_leading().await;
    shown(&replica, "it shows volumes", |state| {
        state["volumes"]["known"] == "now"
    })
    .await;
    let mut viewer = Viewer::open(replica.port).await;
    viewer.next().await;
    let mut took = Vec::new();
    for number in 0..5 {
        let (key, value) = worker(&format!("n{number}"));
        let begun = Instant::now();
        base.put(key.as_bytes(), value).await;
        viewer.wait_for("nodes", &format!(">n{number}<")).await;
        took.push(begun.elapsed());
    }
    // A machine that is busy with other tests may be late once, and not every time.
    took.sort_unstable();
    assert!(took[2] < Duration::from_secs(1), "{took:?}");
}

#[tokio::test]
async fn a_dead_member_is_shown_as_one_that_is_not_healthy() {
    let mut base = Base::on(TestEtcd::with(3, &[]).await).await;
    adopt(&base).await;
    let launch = Launch::on(&base.etcd).flag("--role-resync-ms=500");
    let mut replica = launch.start("r1");
    replica.wait_leading().await;
    shown(&replica, "three members, each of a node", |state| {
        let members = &content(state, "roles")["members"]["members"];
        has_members(state, 3) && texts(members, "node").iter().all(|node| !node.is_empty())
    })
    .await;
    base.etcd.members[2].kill().await.unwrap();
    shown(&replica, "one is not healthy, and it is not cut off", |state| {
        let rows = &content(state, "roles")["members"]["members"]["first"];
        let rows = rows.as_array().into_iter().flatten();
        let ill: Vec<&Value> = rows.filter(|row| row["healthy"] == false).collect();
        // The other two are a quorum. The dead one may have been raft's leader, or the one that was asked.
        ill.len() == 1 && ill[0]["node"] == "etcd-3" && state["picture"]["cutOff"] == false
    })
    .await;
    assert!(page(&replica).await.contains("not healthy"));
    pictures::take("dead-member", &replica).await;
}

#[tokio::test]
async fn a_replica_without_the_page_serves_none_and_registers_none() {
    let base = Base::start().await;
    let mut replica = Launch::on(&base.etcd).flag("--no-page").start("r1");
    replica.wait_leading().await;
    for path in [
        "/",
        "/api/v1/state",
        "/page/events",
        "/page/style.css",
        "/page/script.js",
    ] {
        let answer = replica.get(path).await.unwrap();
        assert_eq!(answer.status, 404, "{path}: {}", answer.body);
    }
    assert_eq!(replica.status_of("/livez").await, Some(200));
    let wide = base.done(&["status", "-o", "wide"]).await;
    assert!(wide.contains("<none> (r1)"), "{wide}");
}

#[tokio::test]
async fn a_replica_that_waits_for_etcd_shows_that() {
    let base = Base::start().await;
    let nowhere = format!("http://127.0.0.1:{}", quorate_dev::ports::free_port().unwrap());
    let launch = Launch::on(&base.etcd).endpoints(vec![nowhere]);
    let replica = launch.start("r1");
    let seen = eventually(SOON, "it listens", async || {
        replica
            .get("/api/v1/state")
            .await
            .map_err(|error| error.to_string())
    })
    .await;
    let seen: Value = serde_json::from_str(&seen.body).unwrap();
    assert_eq!(seen["picture"]["asOf"], Value::Null);
    assert!(
        page(&replica)
            .await
            .contains("This replica has not reached etcd yet.")
    );
    assert_eq!(state(&replica).await["releases"]["known"], "notYet");
}

/// The first line of the answer to a request for the state under this name.
async fn asked_as(host: &str, port: u16) -> String {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.unwrap();
    let request = format!("GET /api/v1/state HTTP/1.1\r\nhost: {host}:{port}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    let read = timeout(SOON, stream.read_to_string(&mut answer)).await;
    read.expect("the answer ends").unwrap();
    answer.lines().next().unwrap_or_default().to_owned()
}

#[tokio::test]
async fn over_loopback_the_page_is_shown_under_the_names_that_were_given_and_no_foreign_one() {
    let base = Base::start().await;
    let launch = Launch::on(&base.etcd).flag("--page-host=ctl1.example.com,quorate.example.com");
    let mut replica = launch.start("r1");
    replica.wait_leading().await;
    for (host, status) in [
        ("evil.example", "403 Forbidden"),
        ("example.com", "403 Forbidden"),
        ("ctl1.example.com", "200 OK"),
        ("QUORATE.example.com", "200 OK"),
        ("localhost", "200 OK"),
        ("127.0.0.1", "200 OK"),
    ] {
        let answered = asked_as(host, replica.port).await;
        assert_eq!(answered, format!("HTTP/1.1 {status}"), "{host}");
    }
}
