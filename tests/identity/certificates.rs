//! Certificates of nodes: the leader answers what replicas request for authenticated callers.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use jiff::Timestamp;
use prost::Message;
use quorate::etcd::{KeyRange, Txn};
use quorate::kube::events::Severity;
use quorate::proto::node_certificate::State;
use quorate::proto::node_spec::Membership;
use quorate::proto::{NodeCertificate, RemovedNode, Role};
use quorate::term::Notices;
use rcgen::PublicKeyData;
use tokio::time::timeout;

use super::site::{Site, WEEK, ended, read, request};
use super::{authorities, home};
use crate::support::base::{Base, document};
use crate::support::quorate::Launch;
use crate::support::wait::{SOON, eventually, same};

/// INV-13.
#[tokio::test]
async fn a_certificate_says_the_observed_role_whatever_was_asked_for() {
    let site = Site::start().await;
    let leader = site.leader().await;
    let uid = site.add_node("n1").await;
    let (csr, key) = request();
    site.request("n1", &uid, &csr).await;
    let record = site.answered(&uid, State::Issued).await;
    let cluster = site.store.etcd.cluster_id().unwrap();
    let (subject, public) = read(&record.chain);
    assert_eq!(subject, format!("CN={uid}, O={cluster}, OU=quorate-worker"));
    assert_eq!(public, key.subject_public_key_info());
    assert_eq!(record.role(), Role::Worker);
    assert_eq!(record.latest_not_after, record.not_after);

    let table = site.run(&["get", "certificates"]).await.expect_done();
    let row = table.lines().nth(1).unwrap();
    assert!(row.starts_with(&uid) && row.contains(" n1 "), "{table}");
    assert!(row.contains(" issued ") && row.contains(" worker "), "{table}");
    let document = site.run(&["get", "certificate", &uid, "-o", "json"]).await;
    let document: serde_json::Value = serde_json::from_str(&document.expect_done()).unwrap();
    assert_eq!(document["status"]["chain"], record.chain);
    assert_eq!(document["spec"]["node"], "n1");
    let described = site.run(&["describe", "certificate", &uid]).await.expect_done();
    let says = |line: &str| line.starts_with("State:") && line.ends_with(" issued");
    assert!(described.lines().any(says), "{described}");

    // The role that was signed for stays until there is another request.
    site.observe("n1", Role::Manager).await;
    let rotate = ["certificate", "rotate", "n1"];
    let done = site.run(&rotate).await.expect_done();
    assert_eq!(done, "node/n1 is asked to replace its certificate\n");
    site.run(&rotate).await.expect_done();
    let asked = site.record(&uid).await;
    assert_eq!((asked.state(), asked.role()), (State::Rotate, Role::Worker));
    assert_eq!(asked.chain, record.chain);
    site.request("n1", &uid, &csr).await;
    let record = site.answered(&uid, State::Issued).await;
    assert_eq!(record.role(), Role::Manager);
    assert!(read(&record.chain).0.ends_with("OU=quorate-manager"));
    eventually(SOON, "both are counted", async || {
        same(leader.metric("quorate_node_certificates_issued_total"), 2.0)
    })
    .await;
}

/// The life is three hours.
#[tokio::test]
async fn the_leader_counts_certificates_by_state_and_by_the_days_that_they_have_left() {
    let site = Site::start().await;
    let long_ago = Timestamp::now().as_second() - WEEK;
    let (over, fresh) = (site.add_node("over").await, site.add_node("fresh").await);
    site.put(&site.store.keys.certificate(&over), ended("over", long_ago))
        .await;
    site.request("fresh", &fresh, &request().0).await;
    let leader = site.leader().await;
    site.answered(&fresh, State::Issued).await;
    for (series, count) in [
        ("quorate_node_certificates{state=\"issued\"}", 2.0),
        ("quorate_node_certificates{state=\"pending\"}", 0.0),
        ("quorate_node_certificates_ending{days=\"0\"}", 1.0),
        ("quorate_node_certificates_ending{days=\"1\"}", 2.0),
        ("quorate_node_certificates_ending{days=\"7\"}", 2.0),
        ("quorate_node_certificates_ending{days=\"30\"}", 2.0),
    ] {
        eventually(SOON, series, async || same(leader.metric(series), count)).await;
    }
}

#[tokio::test]
async fn a_request_waits_for_the_operator_and_for_an_authority_that_can_sign() {
    let site = Site::start().await;
    let (key, kept) = (site.authority_key(), fs::read(site.authority_key()).unwrap());
    fs::remove_file(&key).unwrap();
    let leader = site.leader().await;
    let uid = site.add_node("n1").await;
    site.change("n1", |node| {
        node.spec
            .get_or_insert_default()
            .set_membership(Membership::Pending);
    })
    .await;
    site.request("n1", &uid, &request().0).await;
    let wait_pending = async |count: f64| {
        eventually(SOON, "the leader counts the requests", async || {
            let series = "quorate_node_certificates{state=\"pending\"}";
            same(leader.metric(series), count)
        })
        .await;
    };
    wait_pending(1.0).await;
    fs::write(&key, "no key").unwrap();
    let (broken, other) = (b"no request".as_slice(), site.add_node("n2").await);
    site.request("n2", &other, broken).await;
    // Only once the authority is back is anything answered.
    wait_pending(2.0).await;
    fs::write(&key, kept).unwrap();
    let failed = site.answered(&other, State::Failed).await;
    assert_eq!(failed.reason, "BadRequest");
    let refused = site.stored(&other).await.unwrap().mod_revision;
    assert_eq!(site.record(&uid).await.state(), State::Pending);

    let table = site.run(&["get", "node", "n1", "-o", "yaml"]).await.expect_done();
    assert!(table.contains("membership: pending"), "{table}");
    let again = document("Node", "n1", "{desiredRole: worker}");
    let applied = site.run_with(&["apply", "-f", "-"], &again).await;
    let said = applied.expect_code(64);
    assert!(
        said.contains("spec.membership: missing: node n1 is pending"),
        "{said}"
    );
    site.run(&["accept", "n1", "n9"]).await.expect_code(3);
    let spec = site.node("n1").await.spec.unwrap();
    assert_eq!(spec.membership(), Membership::Pending);
    let done = site.run(&["accept", "n1"]).await.expect_done();
    assert_eq!(done, format!("node/n1 (uid {uid}) is accepted\n"));
    site.answered(&uid, State::Issued).await;
    let again = site.run(&["accept", "n1"]).await.expect_done();
    assert_eq!(again, format!("node/n1 (uid {uid}) is accepted already\n"));
    let now = site.stored(&other).await.unwrap().mod_revision;
    assert_eq!(now, refused, "a broken request fails once");
}

#[tokio::test]
async fn what_a_request_waits_for_is_reported_once_however_many_others_are_answered() {
    const OTHERS: usize = 200;
    let site = Site::start().await;
    let waiting = site.add_node("waiting").await;
    let (csr, _) = request();
    site.request("waiting", &waiting, &csr).await;
    let (mut node, keys) = (site.node("waiting").await, &site.store.keys);
    let request = site.record(&waiting).await;
    for batch in 0..OTHERS / 50 {
        let txn = (0..50).fold(Txn::new(), |txn, number| {
            let (name, uid) = (format!("n{batch}-{number}"), format!("uid-{batch}-{number}"));
            let metadata = node.metadata.get_or_insert_default();
            (metadata.name, metadata.uid) = (name.clone(), uid.clone());
            let request = NodeCertificate {
                node: name.clone(),
                ..request.clone()
            };
            txn.put(&keys.node(&name.parse().unwrap()), node.encode_to_vec())
                .put(&keys.certificate(&uid), request.encode_to_vec())
        });
        site.commit(txn).await;
    }
    site.change("waiting", |node| {
        node.spec
            .get_or_insert_default()
            .set_membership(Membership::Pending);
    })
    .await;
    let (sending, mut notices) = Notices::channel(1000);
    let begun = Instant::now();
    let _leader = site.leader_that_notifies(sending).await;
    let all = KeyRange::prefix(*b"/quorate/identity/certificates/");
    eventually(SOON, "every other request is answered", async || {
        let records = site.list(&all).await;
        let states = records
            .iter()
            .map(|kv| NodeCertificate::decode(&*kv.value).unwrap().state());
        same(states.filter(|state| *state == State::Issued).count(), OTHERS)
    })
    .await;
    let said = std::iter::from_fn(|| notices.try_recv().ok());
    let (joined, said): (Vec<_>, Vec<_>) = said.partition(|notice| notice.reason == "NodeJoined");
    let said: Vec<(Severity, String)> = said
        .into_iter()
        .map(|notice| (notice.severity, notice.note))
        .collect();
    // Operators who accept each node expect it.
    let waits = "requests for certificates wait (node waiting): an operator has yet to accept the node";
    assert_eq!(said, [(Severity::Normal, waits.to_owned())]);
    let minutes = begun.elapsed().as_secs() / 60;
    assert!(!joined.is_empty(), "the first one is reported at once");
    assert!(
        joined.len() as u64 <= 1 + minutes,
        "they would crowd out other Events: {joined:?}"
    );
}

#[tokio::test]
async fn each_new_cause_why_the_authority_cannot_sign_is_reported() {
    let site = Site::start().await;
    let key = site.authority_key();
    fs::remove_file(&key).unwrap();
    let uid = site.add_node("n1").await;
    site.request("n1", &uid, &request().0).await;
    let (sending, mut notices) = Notices::channel(1000);
    let _leader = site.leader_that_notifies(sending).await;
    let mut next = async || {
        let notice = timeout(SOON, notices.recv()).await.expect("there is a notice");
        notice.unwrap().note
    };
    let missing = next().await;
    assert!(
        missing.contains("cannot read") && missing.contains("node n1"),
        "{missing}"
    );
    // At once: a file that is empty for a moment would be a cause of its own.
    let written = key.with_extension("new");
    fs::write(&written, "no key").unwrap();
    fs::rename(&written, &key).unwrap();
    let broken = next().await;
    assert!(broken.contains("its key cannot be read"), "{broken}");
}

#[tokio::test]
async fn an_authority_that_can_no_longer_sign_is_reported_before_a_node_asks() {
    let site = Site::start().await;
    let (key, aside) = (site.authority_key(), site.authority_key().with_extension("aside"));
    fs::rename(&key, &aside).unwrap();
    let mut replica = site.launch().start("r1");
    replica
        .wait_for_log("the node authority cannot sign: cannot read")
        .await;
    fs::rename(&aside, &key).unwrap();
    replica.wait_for_log(" can sign").await;
    fs::rename(&key, &aside).unwrap();
    replica
        .wait_for_log("the node authority cannot sign any more: cannot read")
        .await;
}

#[tokio::test]
async fn a_record_that_cannot_be_read_is_counted_and_goes_with_its_node() {
    let site = Site::start().await;
    let leader = site.leader().await;
    let uid = site.add_node("n1").await;
    site.put(&site.store.keys.certificate(&uid), vec![0xff]).await;
    eventually(SOON, "the leader counts the record", async || {
        let series = "quorate_node_certificates{state=\"malformed\"}";
        same(leader.metric(series), 1.0)
    })
    .await;
    site.run(&["certificate", "rotate", "n1"]).await.expect_code(4);
    site.run(&["delete", "node", "n1", "--yes"]).await.expect_done();
    assert_eq!(site.stored(&uid).await, None);
    let removal = site.removal(&uid).await;
    assert_eq!(removal.expires_at, None, "when its certificate ends is not known");
}

#[tokio::test]
async fn what_a_later_release_has_written_outlives_answers_and_rotations() {
    // In the request, which a newer replica writes, and beside it: field 15, a varint.
    let newer: [&[u8]; 2] = [&[0x12, 2, 0x78, 7], &[0x78, 9]];
    let site = Site::start().await;
    let (uid, removed) = (site.add_node("n1").await, "of-a-removed-node");
    let removal = RemovedNode::default().encode_to_vec();
    site.put(&site.store.keys.removed(removed), removal).await;
    for (node, uid) in [("n1", uid.as_str()), ("gone", removed)] {
        site.request(node, uid, &request().0).await;
        let mut stored = site.stored(uid).await.unwrap().value;
        stored.extend(newer.concat());
        site.put(&site.store.keys.certificate(uid), stored).await;
    }
    let kept = async |uid: &str| {
        let stored = site.stored(uid).await.unwrap().value;
        let holds = |field: &[u8]| stored.windows(field.len()).any(|bytes| bytes == field);
        assert!(newer.into_iter().all(holds), "{stored:?}");
    };
    let _leader = site.leader().await;
    site.answered(&uid, State::Issued).await;
    kept(&uid).await;
    site.answered(removed, State::Failed).await;
    kept(removed).await;
    site.run(&["certificate", "rotate", "n1"]).await.expect_done();
    assert_eq!(site.record(&uid).await.state(), State::Rotate);
    kept(&uid).await;
    let later = NodeCertificate {
        state: 99,
        ..site.record(&uid).await
    };
    site.put(&site.store.keys.certificate(&uid), later.encode_to_vec())
        .await;
    let said = site.run(&["certificate", "rotate", "n1"]).await.expect_code(4);
    assert!(said.contains("LaterRelease"), "{said}");
}

#[tokio::test]
async fn removed_nodes_get_nothing_and_absent_ones_are_waited_for() {
    let site = Site::start().await;
    let (gone, absent) = (site.add_node("gone").await, site.add_node("absent").await);
    site.request("gone", &gone, &request().0).await;
    site.run(&["delete", "node", "gone", "--yes"]).await.expect_done();
    assert_eq!(site.stored(&gone).await, None, "its record goes with it");
    // As by a replica that was slow.
    site.request("gone", &gone, &request().0).await;
    site.request("absent", &absent, &request().0).await;
    let key = site.store.keys.node(&"absent".parse().unwrap());
    let node = site.read(&key).await.unwrap().value;
    site.commit(Txn::new().delete(&key)).await;
    let _leader = site.leader().await;
    let refused = site.answered(&gone, State::Failed).await;
    assert_eq!(refused.reason, "NodeRemoved");
    assert_eq!(refused.chain, "");
    let later = site.add_node("later").await;
    site.request("later", &later, &request().0).await;
    site.answered(&later, State::Issued).await;
    assert_eq!(site.record(&absent).await.state(), State::Pending);
    site.put(&key, node).await;
    site.answered(&absent, State::Issued).await;
}

#[tokio::test]
async fn the_removal_of_a_node_is_kept_for_a_week_longer_than_its_certificate() {
    let site = Site::start().await;
    let _leader = site.leader().await;
    let uid = site.add_node("n1").await;
    let said = site.run(&["certificate", "rotate", "n1"]).await.expect_code(3);
    assert!(said.contains("never requested a certificate"), "{said}");
    site.request("n1", &uid, &request().0).await;
    let record = site.answered(&uid, State::Issued).await;
    site.run(&["delete", "node", "n1", "--yes"]).await.expect_done();
    assert_eq!(site.stored(&uid).await, None);
    let end = record.latest_not_after.unwrap().seconds;
    assert_eq!(site.removal(&uid).await.expires_at.unwrap().seconds, end + WEEK);
}

#[tokio::test]
async fn a_node_whose_key_is_gone_leaves_nothing_once_it_is_deleted_by_name() {
    let token = b"/quorate/identity/tokens/node/n1";
    let delete = ["delete", "node", "n1", "--yes"];
    let site = Site::start().await;
    let _leader = site.leader().await;
    let uid = site.add_node("n1").await;
    site.request("n1", &uid, &request().0).await;
    let record = site.answered(&uid, State::Issued).await;
    site.put(token, Vec::<u8>::new()).await;
    let node = site.store.keys.node(&"n1".parse().unwrap());
    site.commit(Txn::new().delete(&node)).await;
    let said = site.run(&delete).await.expect_done();
    assert!(said.contains("node/n1 recorded as removed"), "{said}");
    assert_eq!(site.stored(&uid).await, None);
    assert_eq!(site.read(token).await, None);
    let end = record.latest_not_after.unwrap().seconds;
    assert_eq!(site.removal(&uid).await.expires_at.unwrap().seconds, end + WEEK);
    site.run(&delete).await.expect_code(3);
    // As by a replica that was slow.
    site.request("n1", &uid, &request().0).await;
    site.run(&delete).await.expect_done();
    assert_eq!(site.stored(&uid).await, None);
}

/// INV-12: the removal is the proof by which the leader evicts and unpublishes, however long the node has been dead.
#[tokio::test]
async fn the_removal_of_a_node_whose_last_certificate_ended_long_ago_is_kept_for_a_week() {
    let site = Site::start().await;
    let uid = site.add_node("n1").await;
    let now = Timestamp::now().as_second();
    site.put(&site.store.keys.certificate(&uid), ended("n1", now - 4 * WEEK))
        .await;
    site.run(&["delete", "node", "n1", "--yes"]).await.expect_done();
    let expires = site.removal(&uid).await.expires_at.unwrap().seconds;
    assert!(expires >= now + WEEK, "{} s from now", expires - now);
}

/// INV-10: a leader whose file system hangs leads on, and stops in order.
#[tokio::test]
async fn an_authority_whose_file_is_never_read_to_its_end_holds_up_nothing_else() {
    let home = home();
    let directory = authorities(&home).await;
    let key = Path::new(&directory).join("current/node-ca.key");
    fs::remove_file(&key).unwrap();
    // A pipe without a writer.
    let made = Command::new("mkfifo").arg(&key).status().unwrap();
    assert!(made.success());
    let base = Base::start().await;
    let launch = Launch::on(&base.etcd).flag(format!("--ca-dir={directory}"));
    let mut replica = launch.start("c1");
    replica.wait_leading().await;
    replica.lease_renewed().await;
    assert!(replica.leads().await);
    let stopped = replica.stop().await.unwrap().unwrap();
    assert!(stopped.success(), "{stopped}: {}", replica.log());
}
