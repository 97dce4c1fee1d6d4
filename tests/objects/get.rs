//! What `get` and `describe` print, format by format.

use quorate::proto::condition::Status;
use quorate::proto::{Condition, Metadata, Registration, Role};
use quorate::release::{Release, Version};
use serde_json::{Value, json};

use super::{keys, node};
use crate::support::base::Base;
use crate::support::quorate::Launch;

/// 2026-03-01T12:00:00Z; far enough in the past that ages are days or more and do not change during a test.
const CREATED: i64 = 1_772_366_400;

fn at(seconds: i64) -> Option<prost_types::Timestamp> {
    Some(prost_types::Timestamp { seconds, nanos: 0 })
}

/// The age of an object created at [`CREATED`], as a table shows it now.
fn age() -> String {
    let then = jiff::Timestamp::from_second(CREATED).unwrap();
    quorate::store::object::time::age(then, jiff::Timestamp::now())
}

/// n1 with everything, n2 with nothing, n3 malformed.
async fn cluster() -> Base {
    let cluster = Base::start().await;
    cluster
        .apply(&(node("n1", "{desiredRole: manager}") + &node("n2", "{desiredRole: worker}")))
        .await;
    for name in ["n1", "n2"] {
        cluster
            .change(name, |node| {
                node.metadata = Some(Metadata {
                    uid: format!("uid-of-{name}"),
                    creation_time: at(CREATED),
                    ..node.metadata.clone().unwrap()
                });
            })
            .await;
    }
    cluster
        .change("n1", |node| {
            let metadata = node.metadata.as_mut().unwrap();
            metadata.labels = [("zone".to_owned(), "a".to_owned())].into();
            let status = node.status.as_mut().unwrap();
            status.set_role(Role::Manager);
            status.release = Some(Release::new(1, 2, 0).to_proto());
            status.controller = true;
            status.conditions = vec![Condition {
                r#type: "RoleChangeBlocked".to_owned(),
                status: Status::False.into(),
                ..Condition::default()
            }];
        })
        .await;
    cluster
        .put(&keys().alive(&"n1".parse().unwrap()), b"session".to_vec())
        .await;
    cluster
        .put(&keys().node(&"n3".parse().unwrap()), vec![0xff, 0xff])
        .await;
    cluster
}

#[tokio::test]
async fn nodes_are_listed_in_every_format_and_a_malformed_one_hides_no_other() {
    let cluster = cluster().await;
    let age = age();

    let table = cluster.run(&["get", "nodes"]).await;
    assert!(
        table
            .stderr
            .starts_with("warning: node/n3 is malformed: the value is no Node message"),
        "{}",
        table.stderr
    );
    assert_eq!(
        table.expect_done(),
        format!(
            "\
NAME   ROLE          DESIRED   READY   AVAILABILITY   RELEASE   CONTROLLER   AGE
n1     manager       manager   yes     active         1.2.0     yes          {age}
n2     worker        worker    no      active         <none>    no           {age}
n3     <malformed>
"
        )
    );

    let wide = cluster.run(&["get", "no", "-o", "wide", "--no-headers"]).await;
    let wide = wide.expect_done();
    let rows: Vec<Vec<&str>> = wide
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    assert_eq!(rows[0][8..], ["uid-of-n1", "zone=a", "<none>"]);
    assert_eq!(rows.len(), 3);

    let names = cluster.run(&["get", "nodes", "-o", "name"]).await;
    assert_eq!(names.expect_done(), "node/n1\nnode/n2\nnode/n3\n");

    let json: Value =
        serde_json::from_str(&cluster.run(&["get", "nodes", "-o", "json"]).await.expect_done()).unwrap();
    assert_eq!(json["kind"], "List");
    assert_eq!(json["items"][2]["status"]["conditions"][0]["type"], "Malformed");
    assert_eq!(
        json["items"][1],
        json!({
            "apiVersion": "quorate.dev/v1", "kind": "Node",
            "metadata": {
                "name": "n2", "uid": "uid-of-n2", "creationTimestamp": "2026-03-01T12:00:00Z", "generation": 1,
                "resourceVersion": json["items"][1]["metadata"]["resourceVersion"],
            },
            "spec": {"desiredRole": "worker", "availability": "active"},
            "status": {"role": "worker", "ready": false, "controller": false},
        })
    );
}

#[tokio::test]
async fn one_node_is_shown_as_one_document_and_described_in_words() {
    let cluster = cluster().await;
    let yaml = cluster
        .run(&["get", "node", "n1", "-o", "yaml"])
        .await
        .expect_done();
    let version = yaml
        .lines()
        .find_map(|line| line.trim().strip_prefix("resourceVersion: "))
        .unwrap();
    assert_eq!(
        yaml,
        format!(
            "\
apiVersion: quorate.dev/v1
kind: Node
metadata:
  creationTimestamp: \"2026-03-01T12:00:00Z\"
  generation: 1
  labels:
    zone: a
  name: n1
  resourceVersion: {version}
  uid: uid-of-n1
spec:
  availability: active
  desiredRole: manager
status:
  conditions:
  - status: \"False\"
    type: RoleChangeBlocked
  controller: true
  ready: true
  release: \"1.2.0\"
  role: manager
"
        )
    );
    let words = cluster.run(&["describe", "node/n1"]).await.expect_done();
    let age = age();
    assert_eq!(
        words,
        format!(
            "\
Name:              n1
Kind:              Node
Labels:            zone=a
UID:               uid-of-n1
Created:           2026-03-01T12:00:00Z ({age} ago)
Generation:        1
Resource Version:  {}
Role:              manager
Desired Role:      manager
Availability:      active
Member:            <none>
Ready:             yes
Session:           <none> on no lease: it does not end with its agent
Agent Release:     <none>
Certificate:       <none> (the node never requested one)
Release:           1.2.0
Controller:        yes (its release counts in the gate)
CSI Plugins:       <none>
Conditions:
  RoleChangeBlocked:  False
Registration:      <none> (no replica of this name runs)
",
            version.trim_matches('"')
        )
    );
    let malformed = cluster.run(&["get", "node", "n3"]).await;
    assert!(malformed.stdout.contains("<malformed>"));
    assert!(malformed.expect_code(1).contains("node/n3 cannot be read"));
}

#[tokio::test]
async fn replicas_are_read_from_registrations_and_the_election() {
    let cluster = Base::start().await;
    for (name, process) in [("r1", "p1"), ("r2", "p2")] {
        let registration = Registration {
            version: Some(Version::from(Release::new(1, 2, 3)).to_proto()),
            process: process.to_owned(),
            registered_at: at(CREATED),
            page: String::new(),
        };
        let key = keys().registration(&name.parse().unwrap());
        cluster
            .put(&key, prost::Message::encode_to_vec(&registration))
            .await;
    }
    // The first candidate leads, whatever the order of the lease ids.
    cluster
        .put(format!("{}/9f", keys().election()).as_bytes(), b"r2".to_vec())
        .await;
    cluster
        .put(format!("{}/1a", keys().election()).as_bytes(), b"r1".to_vec())
        .await;
    let age = age();
    assert_eq!(
        cluster.run(&["get", "replicas"]).await.expect_done(),
        format!(
            "\
NAME   RELEASE   LEADER   PROCESS   REGISTERED
r1     1.2.3     no       p1        {age}
r2     1.2.3     yes      p2        {age}
"
        )
    );
    let document = cluster.run(&["get", "rep/r2", "-o", "json"]).await.expect_done();
    let document: Value = serde_json::from_str(&document).unwrap();
    assert_eq!(
        document["status"],
        json!({
            "leader": true, "process": "p2", "release": "1.2.3", "version": "1.2.3",
            "registeredAt": "2026-03-01T12:00:00Z",
        })
    );
    let nodes = cluster.run(&["get", "nodes"]).await;
    assert_eq!(
        (nodes.stdout.as_str(), nodes.stderr.as_str()),
        ("", "no nodes found below /quorate\n")
    );
}

#[tokio::test]
async fn a_running_replica_is_listed_as_the_leader_and_with_the_node_of_its_name() {
    let cluster = Base::start().await;
    cluster.apply(&node("r1", "{}")).await;
    let mut replica = Launch::on(&cluster.etcd).start("r1");
    replica.wait_leading().await;
    let row = cluster
        .run(&["get", "replicas", "--no-headers"])
        .await
        .expect_done();
    let cells: Vec<&str> = row.split_whitespace().collect();
    assert_eq!(cells[..3], ["r1", env!("CARGO_PKG_VERSION"), "yes"], "{row}");
    assert!(cells[4].ends_with('s'), "registered seconds ago: {row}");
    let words = cluster.run(&["describe", "node", "r1"]).await.expect_done();
    let registration = words.split_once("Registration:\n").expect("it is registered").1;
    assert!(
        registration.contains(&format!("Process:  {}", cells[3])),
        "{words}"
    );
    let words = cluster.run(&["describe", "replica", "r1"]).await.expect_done();
    assert!(words.contains("Leader:            yes\n"), "{words}");
}

#[tokio::test]
async fn a_selector_selects_and_a_missing_object_is_not_found() {
    let cluster = cluster().await;
    let selected = |selector: &'static str| {
        let cluster = &cluster;
        async move {
            let found = cluster.run(&["get", "nodes", "-o", "name", "-l", selector]).await;
            found.expect_done()
        }
    };
    assert_eq!(selected("zone=a").await, "node/n1\n");
    assert_eq!(selected("!zone").await, "node/n2\nnode/n3\n");
    let missing = cluster
        .run(&["get", "node", "n7", "n1", "n8", "-o", "name"])
        .await;
    assert_eq!(missing.stdout, "node/n1\n");
    assert!(
        missing
            .expect_code(3)
            .starts_with("error: node/n7, node/n8 not found\n")
    );
    let missing = cluster.run(&["describe", "node", "n7"]).await;
    assert!(missing.expect_code(3).starts_with("error: node/n7 not found\n"));
}

#[tokio::test]
async fn a_completion_script_that_cannot_be_written_is_an_error_and_a_closed_pipe_is_none() {
    use std::process::{Command, Stdio};
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let (reader, closed) = std::io::pipe().unwrap();
    drop(reader);
    for (out, code, error) in [
        (Stdio::from(full), 1, "error: cannot write to standard output"),
        (Stdio::from(closed), 0, ""),
    ] {
        let mut command = Command::new(crate::support::quorate::binary());
        let ended = command
            .args(["completions", "bash"])
            .stdout(out)
            .stderr(Stdio::piped());
        let ended = ended.spawn().unwrap().wait_with_output().unwrap();
        let stderr = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), Some(code), "{stderr}");
        assert!(
            stderr.starts_with(error) && !stderr.contains("panicked"),
            "{stderr}"
        );
    }
}

#[tokio::test]
async fn wrong_questions_are_usage_errors() {
    let cluster = Base::start().await;
    for (args, expected) in [
        (&["get", "noeds"][..], "did you mean nodes?"),
        (&["get", "node", "N1"], "RFC 1123"),
        (&["get", "node/n1", "replica/r1"], "one command takes one kind"),
        (
            &["get", "nodes", "-o", "xml"],
            "possible values: table, wide, json, yaml, name",
        ),
        (&["get", "nodes", "-l", "a b"], "not a label name"),
        (&["get", "node", "n1", "-l", "a=b"], "cannot be used with"),
        (&["get", "node/n1", "-l", "a=b"], "cannot be used with"),
        (
            &["get", "publication", "data/n1/x"],
            "\"data/n1/x\" is not the id of a publication: expected VOLUME/NODE",
        ),
        (&["get"], "required"),
    ] {
        let error = cluster.run(args).await.expect_code(64);
        assert!(error.contains(expected), "{args:?}: {error}");
    }
}
