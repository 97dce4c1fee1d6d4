//! Certificates of nodes: the leader answers what replicas request for authenticated callers. The tests write the requests.

use std::fs;
use std::ops::Deref;
use std::path::{Path, PathBuf};

use jiff::{SignedDuration, Timestamp};
use prost::Message;
use quorate::etcd::{KeyValue, Revision, Txn};
use quorate::identity::controller::{Certifier, Settings};
use quorate::proto::node_certificate::State;
use quorate::proto::node_spec::Membership;
use quorate::proto::{CertificateRequest, NodeCertificate, RemovedNode, Role};
use quorate::term::Notices;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, KeyPair, PublicKeyData};
use tempfile::TempDir;
use x509_parser::pem::parse_x509_pem;

use super::{authorities, home};
use crate::support::base::{Base, document};
use crate::support::doomed::{Doomed, LASTING_LEASES, expire_leases};
use crate::support::hold::Hold;
use crate::support::leader::Leader;
use crate::support::quorate::Launch;
use crate::support::wait::{SOON, eventually, same};

/// An etcd and authorities.
struct Site {
    base: Base,
    ca: String,
    _home: TempDir,
}

impl Deref for Site {
    type Target = Base;

    fn deref(&self) -> &Base {
        &self.base
    }
}

impl Site {
    async fn start() -> Self {
        let home = home();
        Self {
            base: Base::start().await,
            ca: authorities(&home).await,
            _home: home,
        }
    }

    /// A leader that answers requests, and nothing else.
    async fn leader(&self) -> Leader {
        let mut leader = Leader::elect(&self.store, "c1").await;
        let certifier = Certifier {
            store: leader.store.clone(),
            fence: leader.fence().clone(),
            notices: Notices::default(),
            settings: Settings {
                ca_dir: self.ca.clone().into(),
                life: SignedDuration::from_hours(3),
            },
        };
        leader.work(certifier.run());
        leader
    }

    fn launch(&self) -> Launch {
        let launch = Launch::on(&self.etcd);
        launch.flag(format!("--ca-dir={}", self.ca))
    }

    fn authority_key(&self) -> PathBuf {
        Path::new(&self.ca).join("current/node-ca.key")
    }

    /// Creates a node, observed as a worker; its uid.
    async fn add_node(&self, name: &str) -> String {
        self.apply(&document("Node", name, "{desiredRole: worker}")).await;
        self.node(name).await.metadata.unwrap().uid
    }

    async fn observe(&self, name: &str, role: Role) {
        self.change(name, |node| node.status.get_or_insert_default().set_role(role))
            .await;
    }

    async fn stored(&self, uid: &str) -> Option<KeyValue> {
        self.read(&self.store.keys.certificate(uid)).await
    }

    /// Requests a certificate as a replica does for the node of this uid.
    async fn request(&self, node: &str, uid: &str, csr: &[u8]) -> Revision {
        let before = self.stored(uid).await;
        let read = |kv: &KeyValue| NodeCertificate::decode(&*kv.value).unwrap();
        let record = NodeCertificate {
            node: node.to_owned(),
            request: Some(CertificateRequest {
                csr: csr.to_vec(),
                role: Role::Manager.into(),
                at: None,
            }),
            state: State::Pending.into(),
            ..before.as_ref().map(read).unwrap_or_default()
        };
        let found = before.map_or(Revision::ABSENT, |kv| kv.mod_revision);
        let key = self.store.keys.certificate(uid);
        let txn = Txn::new().when_unchanged(&key, found);
        self.commit(txn.put(&key, record.encode_to_vec())).await
    }

    async fn record(&self, uid: &str) -> NodeCertificate {
        let stored = self.stored(uid).await.expect("there is a record");
        NodeCertificate::decode(&*stored.value).unwrap()
    }

    /// The record of a removed node.
    async fn removal(&self, uid: &str) -> RemovedNode {
        let stored = self.read(&self.store.keys.removed(uid)).await;
        RemovedNode::decode(&*stored.expect("the removal is on record").value).unwrap()
    }

    /// Waits until the request has this answer.
    async fn answered(&self, uid: &str, state: State) -> NodeCertificate {
        let what = format!("the request is {state:?}");
        eventually(SOON, &what, async || {
            let record = self.record(uid).await;
            same(record.state(), state).map(|_| record)
        })
        .await
    }
}

/// Seconds.
const WEEK: i64 = 7 * 24 * 3600;

/// The record of a certificate that has ended at this second.
fn ended(node: &str, second: i64) -> Vec<u8> {
    let end = prost_types::Timestamp {
        seconds: second,
        nanos: 0,
    };
    let record = NodeCertificate {
        node: node.to_owned(),
        state: State::Issued.into(),
        not_after: Some(end),
        latest_not_after: Some(end),
        ..NodeCertificate::default()
    };
    record.encode_to_vec()
}

/// A request that asks for more than a node may have, and its key.
fn request() -> (Vec<u8>, KeyPair) {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::default();
    let subject = &mut params.distinguished_name;
    subject.push(DnType::CommonName, "another-node");
    subject.push(DnType::OrganizationalUnitName, "quorate-manager");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let csr = params.serialize_request(&key).unwrap();
    (csr.der().to_vec(), key)
}

/// Subject and public key of the first certificate of a chain.
fn read(chain: &str) -> (String, Vec<u8>) {
    let (_, block) = parse_x509_pem(chain.as_bytes()).unwrap();
    let certificate = block.parse_x509().unwrap();
    assert!(!certificate.is_ca(), "{certificate:?}");
    (
        certificate.subject().to_string(),
        certificate.public_key().raw.to_vec(),
    )
}

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
    assert_eq!(leader.metric("quorate_node_certificates_issued_total"), 2.0);
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
    let pending = async || {
        let series = "quorate_node_certificates{state=\"pending\"}";
        same(leader.metric(series), 1.0)
    };
    eventually(SOON, "the leader counts the request", pending).await;
    fs::write(&key, "no key").unwrap();
    let (broken, other) = (b"no request".as_slice(), site.add_node("n2").await);
    site.request("n2", &other, broken).await;
    fs::write(&key, kept).unwrap();
    // Only once the authority is back.
    let failed = site.answered(&other, State::Failed).await;
    assert_eq!(failed.reason, "BadRequest");
    let refused = site.stored(&other).await.unwrap().mod_revision;
    assert_eq!(site.record(&uid).await.state(), State::Pending);

    let table = site.run(&["get", "node", "n1", "-o", "yaml"]).await.expect_done();
    assert!(table.contains("membership: pending"), "{table}");
    let said = site
        .apply_again("n1", "{desiredRole: worker}")
        .await
        .expect_code(64);
    assert!(
        said.contains("spec.membership: missing: node n1 is pending"),
        "{said}"
    );
    site.run(&["accept", "n1", "n9"]).await.expect_code(3);
    assert_eq!(site.record(&uid).await.state(), State::Pending);
    let done = site.run(&["accept", "n1"]).await.expect_done();
    assert_eq!(done, "node/n1 is accepted\n");
    site.answered(&uid, State::Issued).await;
    let again = site.run(&["accept", "n1"]).await.expect_done();
    assert_eq!(again, "node/n1 is accepted already\n");
    let now = site.stored(&other).await.unwrap().mod_revision;
    assert_eq!(now, refused, "a broken request fails once");
}

impl Site {
    async fn apply_again(&self, name: &str, spec: &str) -> crate::support::quorate::Finished {
        let args = ["apply", "-f", "-"];
        self.run_with(&args, &document("Node", name, spec)).await
    }
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
    assert_eq!(site.record(&absent).await.state(), State::Pending);
    site.put(&key, node).await;
    site.answered(&absent, State::Issued).await;
}

/// INV-13: what is decided for an older state of the node or an older request is not recorded.
#[tokio::test]
async fn nothing_is_signed_for_yesterdays_role_or_for_an_older_request() {
    for point in ["identity.before-sign", "identity.before-store"] {
        let site = Site::start().await;
        let uid = site.add_node("n1").await;
        let hold = Hold::at(point);
        let mut replica = hold.on(site.launch().flag(LASTING_LEASES)).start("r1");
        replica.wait_leading().await;
        site.request("n1", &uid, &request().0).await;
        hold.reached().await;
        site.change("n1", |node| {
            node.spec.get_or_insert_default().set_desired_role(Role::Manager);
            node.status.get_or_insert_default().set_role(Role::Manager);
        })
        .await;
        let (csr, key) = request();
        site.request("n1", &uid, &csr).await;
        hold.release();
        let record = site.answered(&uid, State::Issued).await;
        let (subject, public) = read(&record.chain);
        assert_eq!(record.role(), Role::Manager, "{point}");
        assert!(subject.ends_with("OU=quorate-manager"), "{point}: {subject}");
        assert_eq!(public, key.subject_public_key_info(), "{point}");
    }
}

#[tokio::test]
async fn a_leader_that_is_woken_after_its_term_records_nothing() {
    for point in ["identity.before-sign", "identity.before-store"] {
        let site = Site::start().await;
        let uid = site.add_node("n1").await;
        let hold = Hold::at(point);
        let mut former = hold.on(site.launch().flag(LASTING_LEASES)).start("r1");
        former.wait_leading().await;
        site.request("n1", &uid, &request().0).await;
        hold.reached().await;
        former.pause();
        let mut successor = site.launch().flag(LASTING_LEASES).start("r2");
        expire_leases(&site.store, "r1").await;
        successor.wait_leading().await;
        site.answered(&uid, State::Issued).await;
        let recorded = site.stored(&uid).await;
        hold.release();
        former.resume();
        eventually(SOON, "the former leader leads no more", async || {
            same(former.status_of("/leaderz").await, Some(503))
        })
        .await;
        assert_eq!(site.stored(&uid).await, recorded, "{point}");
    }
}

#[tokio::test]
async fn a_request_outlives_leaders_that_die_at_every_step() {
    for point in [
        "identity.before-sign",
        "identity.before-store",
        "identity.after-store",
    ] {
        let site = Site::start().await;
        let uid = site.add_node("n1").await;
        let mut dying = Doomed::start(&site.launch(), "r1", point, &site.store);
        dying.wait_leading().await;
        let replica = dying
            .aborted_during(async {
                site.request("n1", &uid, &request().0).await;
                let replica = site.launch().start("r2");
                site.answered(&uid, State::Issued).await;
                replica
            })
            .await;
        let record = site.answered(&uid, State::Issued).await;
        assert_eq!(record.role(), Role::Worker, "{point}");
        drop(replica);
    }
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
