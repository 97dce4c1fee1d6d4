//! Certificates of etcd: the leader signs them for managers, and revokes them once the nodes are none.

use std::fs;

use jiff::Timestamp;
use prost::Message;
use quorate::etcd::{MemberId, Txn};
use quorate::proto::node_certificate::State;
use quorate::proto::{IssuedCertificate, Member, NodeCertificate, RemovedNode, Role};
use rcgen::PublicKeyData;

use super::etcd_site::{names, serials};
use super::site::{Site, WEEK, read, request};
use crate::support::base::parsed;
use crate::support::wait::{QUIET, SOON, eventually, same};

/// INV-13.
#[tokio::test]
async fn the_member_of_a_manager_gets_a_certificate_of_the_hosts_on_record() {
    let site = Site::start().await;
    let leader = site.leader().await;
    let uid = site.add_manager("n1", 7, "10.0.0.1").await;
    let (csr, key) = request();
    site.request_of_etcd("n1", &uid, &csr).await;
    let record = site.answered_of_etcd(&uid, State::Issued).await;
    let (subject, public) = read(&record.chain);
    assert_eq!(subject, "CN=quorate-etcd");
    assert_eq!(public, key.subject_public_key_info());
    let cluster = site.store.etcd.cluster_id().unwrap();
    let uri = format!("spiffe://{cluster}/etcd/{uid}");
    let local = format!("{:?}", std::net::Ipv6Addr::LOCALHOST.octets());
    assert_eq!(
        names(&record.chain),
        ["n1", "[10, 0, 0, 1]", "localhost", "[127, 0, 0, 1]", &local, &uri]
    );
    let authority = fs::read_to_string(site.etcd_authority_key().with_extension("crt")).unwrap();
    assert_eq!(record.authorities, authority);
    assert_eq!((record.role(), serials(&record).len()), (Role::Unspecified, 1));
    assert_eq!(record.latest_not_after, record.not_after);

    // A renewal has a serial number of its own, and the former certificate stays on record.
    site.request_of_etcd("n1", &uid, &request().0).await;
    let renewed = site.answered_of_etcd(&uid, State::Issued).await;
    assert_eq!(serials(&renewed)[..1], serials(&record));
    assert_eq!(serials(&renewed).len(), 2);
    for (series, count) in [
        ("quorate_etcd_certificates_issued_total", 2.0),
        ("quorate_etcd_certificates{state=\"issued\"}", 1.0),
        ("quorate_etcd_certificates_ending{days=\"7\"}", 1.0),
        ("quorate_etcd_certificates_ending{days=\"1\"}", 0.0),
        ("quorate_etcd_certificates_revoked", 0.0),
        ("quorate_node_certificates_issued_total", 0.0),
    ] {
        eventually(SOON, series, async || same(leader.metric(series), count)).await;
    }
    let described = site.done(&["describe", "node", "n1"]).await;
    assert!(described.contains("etcd Certificate:"), "{described}");
    let status = site.done(&["status"]).await;
    assert!(status.contains("that of the etcd of node n1 ends at"), "{status}");
    let rotate = ["certificate", "rotate", "n1", "--etcd"];
    site.done(&rotate).await;
    let asked = site.record_of_etcd(&uid).await;
    assert_eq!(
        (asked.state(), serials(&asked)),
        (State::Rotate, serials(&renewed))
    );
}

/// INV-13.
#[tokio::test]
async fn neither_workers_nor_nodes_without_a_member_nor_the_hosts_of_others_are_certified() {
    let site = Site::start().await;
    let _leader = site.leader().await;
    let first = site.add_manager("first", 7, "10.0.0.1").await;
    let worker = site.add_manager("worker", 8, "10.0.0.2").await;
    site.observe("worker", Role::Worker).await;
    let unjoined = site.add_node("unjoined").await;
    site.observe("unjoined", Role::Manager).await;
    let leaving = site.add_manager("leaving", 9, "10.0.0.3").await;
    let record = Member {
        node: "leaving".to_owned(),
        node_uid: leaving.clone(),
        removal: Some(quorate::proto::Removal::default()),
        ..Member::default()
    };
    let key = site.store.keys.member(MemberId(9));
    site.put(&key, record.encode_to_vec()).await;
    let greedy = site.add_manager("greedy", 10, "10.0.0.1").await;
    for (name, uid, reason) in [
        ("worker", &worker, "NotAManager"),
        ("unjoined", &unjoined, "NotJoined"),
        ("leaving", &leaving, "NotJoined"),
        ("greedy", &greedy, "HostTaken"),
    ] {
        site.request_of_etcd(name, uid, &request().0).await;
        let refused = site.answered_of_etcd(uid, State::Failed).await;
        assert_eq!(
            (refused.reason.as_str(), refused.chain.as_str()),
            (reason, ""),
            "{name}"
        );
    }
    site.request_of_etcd("first", &first, &request().0).await;
    site.answered_of_etcd(&first, State::Issued).await;
}

/// INV-13.
#[tokio::test]
async fn every_certificate_of_a_demoted_node_is_revoked_and_stays_so_when_it_is_promoted_again() {
    let site = Site::start().await;
    let leader = site.leader().await;
    let first = site.revoked(&[]).await;
    assert!(
        !first.crl.is_empty(),
        "etcd refuses everybody where there is none"
    );
    let uid = site.add_manager("n1", 7, "10.0.0.1").await;
    let other = site.add_manager("n2", 8, "10.0.0.2").await;
    let mut issued = Vec::new();
    for (node, uid) in [("n1", &uid), ("n1", &uid), ("n2", &other)] {
        site.request_of_etcd(node, uid, &request().0).await;
        issued.push(site.answered_of_etcd(uid, State::Issued).await);
    }
    let own = serials(&issued[1]);
    assert_eq!(own.len(), 2);
    // Unreadable, it is no word that the node is a worker (INV-12).
    let key = site.store.keys.node(&parsed("n1"));
    let node = site.read(&key).await.unwrap().value;
    site.put(&key, vec![0xff]).await;
    tokio::time::sleep(QUIET).await;
    assert_eq!(site.revocation_list().await.unwrap(), first);
    site.put(&key, node).await;
    site.observe("n1", Role::Worker).await;
    let list = site.revoked(&own).await;
    assert!(list.number > first.number);
    assert!(
        list.revoked
            .iter()
            .all(|of| of.node == "n1" && of.node_uid == uid)
    );
    eventually(SOON, "they are counted", async || {
        same(leader.metric("quorate_etcd_certificates_revoked"), 2.0)
    })
    .await;
    let printed = site.done(&["ca", "crl"]).await;
    assert!(printed.contains(&format!("node n1 ({uid})")), "{printed}");

    // It gets others, and loses them again.
    site.observe("n1", Role::Manager).await;
    site.request_of_etcd("n1", &uid, &request().0).await;
    let third = serials(&site.answered_of_etcd(&uid, State::Issued).await);
    assert_eq!(third.len(), 3);
    assert_eq!(site.revocation_list().await.unwrap(), list);
    leader.resign().await;
    // A leader that begins finds what its predecessor has left.
    site.observe("n1", Role::Worker).await;
    let _next = site.leader().await;
    site.revoked(&third).await;
}

#[tokio::test]
async fn the_certificates_of_a_removed_node_are_revoked_and_its_record_goes_once_they_have_ended() {
    let site = Site::start().await;
    let _leader = site.leader().await;
    let uid = site.add_manager("n1", 7, "10.0.0.1").await;
    site.request("n1", &uid, &request().0).await;
    let own = site.answered(&uid, State::Issued).await;
    site.request_of_etcd("n1", &uid, &request().0).await;
    let of_etcd = site.answered_of_etcd(&uid, State::Issued).await;
    site.done(&["delete", "node", "n1", "--yes", "--force"]).await;
    site.revoked(&serials(&of_etcd)).await;
    // That of etcd ends later.
    let (own, end) = (own.latest_not_after.unwrap(), of_etcd.latest_not_after.unwrap());
    assert!(end.seconds > own.seconds);
    let removal = site.removal(&uid).await;
    if let Some(expiry) = removal.expires_at {
        assert_eq!(expiry.seconds, end.seconds + WEEK);
    }
    assert_eq!(site.stored(&uid).await, None);
    let left = site
        .stored_of_etcd(&uid)
        .await
        .expect("its serials stay on record");
    // Once they have ended, the record goes, and never before.
    let ended = NodeCertificate {
        issued: vec![IssuedCertificate {
            serial: vec![1],
            not_after: Some(prost_types::Timestamp {
                seconds: Timestamp::now().as_second() - WEEK,
                nanos: 0,
            }),
        }],
        ..NodeCertificate::decode(&*left.value).unwrap()
    };
    site.put(&site.store.keys.etcd_certificate(&uid), ended.encode_to_vec())
        .await;
    eventually(SOON, "the record is deleted", async || {
        same(site.stored_of_etcd(&uid).await, None)
    })
    .await;
    site.revoked(&serials(&of_etcd)).await;
}

/// INV-12: the record of a node that is merely out of sight.
#[tokio::test]
async fn no_record_is_deleted_of_a_node_that_is_gone_and_was_not_removed() {
    let site = Site::start().await;
    let uid = site.add_manager("n1", 7, "10.0.0.1").await;
    let record = NodeCertificate {
        node: "n1".to_owned(),
        state: State::Issued.into(),
        ..NodeCertificate::default()
    };
    let (key, node) = (
        site.store.keys.etcd_certificate(&uid),
        site.store.keys.node(&parsed("n1")),
    );
    site.commit(Txn::new().put(&key, record.encode_to_vec()).delete(&node))
        .await;
    let _leader = site.leader().await;
    site.revoked(&[]).await;
    tokio::time::sleep(QUIET).await;
    assert!(site.stored_of_etcd(&uid).await.is_some());
    let removed = RemovedNode::default().encode_to_vec();
    site.put(&site.store.keys.removed(&uid), removed).await;
    eventually(SOON, "the record is deleted", async || {
        same(site.stored_of_etcd(&uid).await, None)
    })
    .await;
}

#[tokio::test]
async fn the_certificates_of_a_demoted_node_whose_record_cannot_be_read_are_reported_as_not_revoked() {
    let site = Site::start().await;
    let mut replica = site.launch().start("c1");
    replica.wait_leading().await;
    // The members of the test are in no list of etcd.
    site.done(&["pause", "roles"]).await;
    let uid = site.add_manager("n1", 7, "10.0.0.1").await;
    let key = site.store.keys.etcd_certificate(&uid);
    site.put(&key, b"\xff\xff".to_vec()).await;
    site.observe("n1", Role::Worker).await;
    let key = String::from_utf8_lossy(&key).into_owned();
    let line = "certificates of etcd cannot be revoked (node n1): the record of them cannot be read";
    replica.wait_for_log(&format!("{line} ({key})")).await;
}

#[tokio::test]
async fn a_revocation_waits_for_an_authority_that_can_sign_and_says_so() {
    let site = Site::start().await;
    let (key, kept) = (
        site.etcd_authority_key(),
        fs::read(site.etcd_authority_key()).unwrap(),
    );
    let mut replica = site.launch().start("c1");
    replica.wait_leading().await;
    // The members of the test are in no list of etcd.
    site.done(&["pause", "roles"]).await;
    let uid = site.add_manager("n1", 7, "10.0.0.1").await;
    site.request_of_etcd("n1", &uid, &request().0).await;
    let issued = site.answered_of_etcd(&uid, State::Issued).await;
    fs::remove_file(&key).unwrap();
    replica
        .wait_for_log("the etcd authority cannot sign any more: cannot read")
        .await;
    site.observe("n1", Role::Worker).await;
    replica
        .wait_for_log("certificates of etcd are yet to be revoked (node n1): the etcd authority cannot sign")
        .await;
    fs::write(&key, kept).unwrap();
    site.revoked(&serials(&issued)).await;
    replica
        .wait_for_log("revoked 1 certificates of the etcd of node n1")
        .await;
}
