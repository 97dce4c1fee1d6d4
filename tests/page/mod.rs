//! The status page of real replicas, as a person, a script and many viewers see it.

mod blocked;
mod cut_off;
mod fresh;
mod pictures;
mod secrets;
mod viewer;
mod viewers;
mod volumes;

use prost::Message as _;
use quorate::proto::{Metadata, Node, NodeSpec, NodeStatus, Role};
use serde_json::Value;

use crate::support::quorate::TestReplica;
use crate::support::wait::{SOON, eventually};

/// `/api/v1/state` of a replica.
async fn state(replica: &TestReplica) -> Value {
    let answer = replica.get("/api/v1/state").await.unwrap();
    assert_eq!(answer.status, 200, "{}", answer.body);
    serde_json::from_str(&answer.body).unwrap()
}

/// The page of a replica.
async fn page(replica: &TestReplica) -> String {
    let answer = replica.get("/").await.unwrap();
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.body
}

/// Waits until the state is as asked, and returns it.
async fn shown(replica: &TestReplica, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
    eventually(SOON, what, async || {
        let state = state(replica).await;
        if is_so(&state) {
            Ok(state)
        } else {
            Err(format!("{state:#}"))
        }
    })
    .await
}

/// What is known of a part.
fn content<'s>(state: &'s Value, part: &str) -> &'s Value {
    &state[part]["content"]
}

/// The rows of a table, as the texts of this field.
fn texts(rows: &Value, field: &str) -> Vec<String> {
    let rows = rows["first"].as_array().unwrap().iter();
    rows.map(|row| row[field].as_str().unwrap_or_default().to_owned())
        .collect()
}

/// The key and the record of a worker.
fn worker(name: &str) -> (String, Vec<u8>) {
    let node = Node {
        metadata: Some(Metadata {
            name: name.to_owned(),
            uid: format!("uid-of-{name}"),
            ..Metadata::default()
        }),
        spec: Some(NodeSpec {
            desired_role: Role::Worker.into(),
            ..NodeSpec::default()
        }),
        status: Some(NodeStatus {
            role: Role::Worker.into(),
            ..NodeStatus::default()
        }),
    };
    (format!("/quorate/nodes/{name}"), node.encode_to_vec())
}
