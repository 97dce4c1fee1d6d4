//! The records of removed nodes: how long they stay, and what it costs to delete many nodes.

use prost::Message;
use quorate::proto::publication_status::State;
use quorate::proto::{
    Join, Metadata, NodeCertificate, Publication, PublicationSpec, PublicationStatus, RemovedNode,
    node_certificate,
};
use quorate::store::Name;

use super::delete::answer;
use super::{keys, node};
use crate::support::base::Base;

const WEEK: i64 = 7 * 24 * 3600;

fn parsed(name: &str) -> Name {
    name.parse().unwrap()
}

/// These nodes, each with the record of a certificate that ended long ago. Returns their uids.
async fn with_certificates<const COUNT: usize>(names: [&str; COUNT]) -> (Base, [String; COUNT]) {
    let cluster = Base::start().await;
    let documents: String = names.iter().map(|name| node(name, "{}")).collect();
    cluster.apply(&documents).await;
    let mut uids = names.map(str::to_owned);
    for (name, uid) in names.iter().zip(&mut uids) {
        *uid = cluster.node(name).await.metadata.unwrap().uid;
        let key = keys().certificate(uid);
        cluster.put(&key, certificate(name)).await;
    }
    (cluster, uids)
}

fn certificate(node: &str) -> Vec<u8> {
    let now = jiff::Timestamp::now().as_second();
    let record = NodeCertificate {
        node: node.to_owned(),
        state: node_certificate::State::Issued.into(),
        latest_not_after: Some(prost_types::Timestamp {
            seconds: now - 4 * WEEK,
            nanos: 0,
        }),
        ..NodeCertificate::default()
    };
    record.encode_to_vec()
}

/// Publishes a volume, which takes this many bytes.
async fn publish(cluster: &Base, volume: &str, node: &str, node_uid: &str, bytes: usize) {
    let publication = Publication {
        metadata: Some(Metadata {
            name: node.to_owned(),
            uid: format!("of-{volume}"),
            ..Metadata::default()
        }),
        spec: Some(PublicationSpec {
            volume: volume.to_owned(),
            node_uid: node_uid.to_owned(),
            ..PublicationSpec::default()
        }),
        status: Some(PublicationStatus {
            state: State::Published.into(),
            publish_context: [("of".to_owned(), "x".repeat(bytes))].into(),
            ..PublicationStatus::default()
        }),
    };
    let key = keys().publication(&parsed(volume), &parsed(node));
    cluster.put(&key, publication.encode_to_vec()).await;
}

async fn removal(cluster: &Base, uid: &str) -> RemovedNode {
    let stored = cluster.read(&keys().removed(uid)).await;
    RemovedNode::decode(&*stored.expect("the removal is on record").value).unwrap()
}

/// INV-12: nothing limits how long these wait for the proof.
#[tokio::test]
async fn a_removal_stays_on_record_for_ever_where_a_volume_or_a_join_waits_for_it() {
    let (cluster, uids) = with_certificates(["with-volume", "with-join", "unreadable", "without"]).await;
    publish(&cluster, "data", "with-volume", &uids[0], 0).await;
    let join = keys().join(&parsed("with-join"));
    cluster.put(&join, Join::default().encode_to_vec()).await;
    // Of an earlier node of the name, and of one that cannot be read: whose it is is not known.
    publish(&cluster, "data", "without", "another", 0).await;
    let publication = keys().publication(&parsed("data"), &parsed("unreadable"));
    cluster.put(&publication, [0xff]).await;
    let delete = [
        "delete",
        "node",
        "with-volume",
        "with-join",
        "unreadable",
        "without",
        "--yes",
    ];
    cluster.run(&delete).await.expect_done();
    for (uid, stays) in uids.iter().zip([true, true, true, false]) {
        let removal = removal(&cluster, uid).await;
        assert_eq!(removal.expires_at.is_none(), stays, "{removal:?}");
    }
}

/// INV-12: the volume waits for the proof like any other.
#[tokio::test]
async fn a_removal_stays_on_record_where_a_volume_is_published_to_the_node_until_it_is_deleted() {
    let (cluster, [uid]) = with_certificates(["n1"]).await;
    let published = publish(&cluster, "data", "n1", &uid, 0);
    let (code, shown) = answer(&cluster, "node n1", published, "y\n").await;
    assert_eq!(code, Some(0), "{shown}");
    assert_eq!(removal(&cluster, &uid).await.expires_at, None);
}

/// It says when the node was removed, and what waited for that.
#[tokio::test]
async fn a_removal_that_is_on_record_is_not_written_again() {
    let (cluster, [uid]) = with_certificates(["n1"]).await;
    publish(&cluster, "data", "n1", &uid, 0).await;
    let delete = ["delete", "node", "n1", "--yes"];
    cluster.run(&delete).await.expect_done();
    let before = removal(&cluster, &uid).await;
    assert_eq!(before.expires_at, None);
    // As by a replica that was slow.
    let key = keys().certificate(&uid);
    cluster.put(&key, certificate("n1")).await;
    let said = cluster.run(&delete).await.expect_done();
    assert_eq!(
        said,
        "node/n1 left the record of its certificate, which is deleted\n"
    );
    assert_eq!(cluster.read(&key).await, None);
    assert_eq!(removal(&cluster, &uid).await, before);
    cluster.run(&delete).await.expect_code(3);
}

/// Of a node whose key is gone, the command says what it finds and nothing else.
#[tokio::test]
async fn what_a_node_whose_key_is_gone_has_left_is_said_before_it_goes() {
    let (cluster, [first, second]) = with_certificates(["n1", "n2"]).await;
    publish(&cluster, "data", "n2", &second, 0).await;
    for (name, uid) in [("n1", &first), ("n2", &second)] {
        let (node, certificate) = (keys().node(&parsed(name)), keys().certificate(uid));
        let txn = quorate::etcd::Txn::new().delete(&node);
        let txn = if name == "n2" {
            txn.delete(&certificate)
        } else {
            txn
        };
        cluster.commit(txn).await;
    }
    let recorded = "is gone: it is recorded as removed";
    let (certificate, volumes) = (
        "the record of its certificate is deleted",
        "its volumes are unpublished from it",
    );
    let (_, shown) = answer(&cluster, "node n1", async {}, "y\n").await;
    let shown = shown.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(shown.contains(recorded) && shown.contains(certificate), "{shown}");
    assert!(!shown.contains(volumes), "{shown}");
    let (_, shown) = answer(&cluster, "node n2", async {}, "y\n").await;
    let shown = shown.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(shown.contains(recorded) && shown.contains(volumes), "{shown}");
    assert!(!shown.contains(certificate), "{shown}");
    assert_eq!(removal(&cluster, &second).await.expires_at, None);
}

/// With as many publications as a large cluster has, each list of them takes a second.
#[tokio::test]
async fn many_nodes_are_deleted_with_one_list_of_the_publications() {
    const NODES: usize = 32;
    const VOLUMES: usize = 40;
    const BYTES: usize = 20_000;
    let cluster = Base::start().await;
    let names: Vec<String> = (0..NODES).map(|number| format!("n{number}")).collect();
    let documents: String = names.iter().map(|name| node(name, "{}")).collect();
    cluster.apply(&documents).await;
    for number in 0..VOLUMES {
        publish(&cluster, &format!("v{number}"), "elsewhere", "uid", BYTES).await;
    }
    let member = &cluster.etcd.members[0];
    let sent = async || {
        let sent = member.metric("etcd_network_client_grpc_sent_bytes_total").await;
        sent.expect("etcd counts what it sends")
    };
    let before = sent().await;
    let names = names.iter().map(String::as_str);
    let delete: Vec<&str> = ["delete", "node", "--yes"].into_iter().chain(names).collect();
    cluster.run(&delete).await.expect_done();
    let lists = (sent().await - before) / (VOLUMES * BYTES) as f64;
    assert!((1.0..3.0).contains(&lists), "{lists} lists were sent");
}
