//! What only a later release knows of an object.

use quorate::proto::node_spec::{Availability, Membership};

use super::{keys, node};
use crate::support::base::Base;

/// In the spec, which is field 2, and beside it: field 15, a varint.
const NEWER: [&[u8]; 2] = [&[0x78, 7], &[0x78, 9]];

/// Decision 24.
#[tokio::test]
async fn what_only_a_later_release_knows_of_a_node_outlives_the_commands() {
    let cluster = Base::start().await;
    cluster.apply(&node("n1", "{desiredRole: worker}")).await;
    cluster
        .change("n1", |node| {
            node.spec.as_mut().unwrap().set_membership(Membership::Pending);
        })
        .await;
    let key = keys().node(&"n1".parse().unwrap());
    let mut stored = cluster.read(&key).await.unwrap().value;
    // Protobuf merges a message that follows another.
    stored.extend([&[0x12, 2], NEWER[0], NEWER[1]].concat());
    cluster.put(&key, stored).await;
    let applied = "apiVersion: quorate.dev/v1\nkind: Node\nmetadata: {name: n1, labels: {zone: a}}\n\
                   spec: {desiredRole: worker, membership: accepted, availability: drain}\n";
    let reported = "apiVersion: quorate.dev/v1\nkind: Node\nmetadata: {name: n1}\n\
                    status: {csi: [{plugin: p.example, nodeID: csi-n1}]}\n";
    for (args, document) in [
        (&["accept", "n1"][..], ""),
        (&["drain", "n1"], ""),
        (&["apply", "-f", "-"], applied),
        (&["apply", "--subresource", "status", "-f", "-"], reported),
    ] {
        let before = cluster.read(&key).await.unwrap();
        cluster.run_with(args, document).await.expect_done();
        let now = cluster.read(&key).await.unwrap();
        assert_ne!(now.mod_revision, before.mod_revision, "{args:?} writes");
        let holds = |field: &[u8]| now.value.windows(field.len()).any(|bytes| bytes == field);
        assert!(NEWER.into_iter().all(holds), "{args:?}: {:?}", now.value);
    }
    let now = cluster.node("n1").await;
    let spec = now.spec.unwrap();
    assert_eq!(spec.membership(), Membership::Accepted);
    assert_eq!(spec.availability(), Availability::Drain);
    assert_eq!(now.status.unwrap().csi.len(), 1);
}
