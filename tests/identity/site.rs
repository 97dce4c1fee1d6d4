//! A cluster whose leader answers requests for certificates, which the tests write as replicas do.

use std::ops::Deref;
use std::path::{Path, PathBuf};

use jiff::SignedDuration;
use prost::Message;
use quorate::etcd::{KeyValue, Revision, Txn};
use quorate::identity::AuthorityKind;
use quorate::identity::controller::{Certifier, Settings};
use quorate::proto::node_certificate::State;
use quorate::proto::{CertificateRequest, NodeCertificate, RemovedNode, Role};
use quorate::store::Store;
use quorate::term::Notices;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, KeyPair};
use tempfile::TempDir;
use x509_parser::pem::parse_x509_pem;

use super::{authorities, home};
use crate::support::base::{Base, document};
use crate::support::leader::Leader;
use crate::support::quorate::Launch;
use crate::support::wait::{SOON, eventually, same};

/// An etcd and authorities.
pub struct Site {
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
    pub async fn start() -> Self {
        let home = home();
        Self {
            base: Base::start().await,
            ca: authorities(&home).await,
            _home: home,
        }
    }

    /// A leader that answers requests, and nothing else.
    pub async fn leader(&self) -> Leader {
        self.leader_that_notifies(Notices::default()).await
    }

    /// The same, with these notices.
    pub async fn leader_that_notifies(&self, notices: Notices) -> Leader {
        certifying_leader(&self.store, &self.ca, notices).await
    }

    pub fn launch(&self) -> Launch {
        let launch = Launch::on(&self.etcd);
        launch
            .flag(format!("--ca-dir={}", self.ca))
            .flag("--control-listen=127.0.0.1:0")
    }

    /// The directory of the authorities.
    pub fn ca_dir(&self) -> &Path {
        Path::new(&self.ca)
    }

    pub fn authority_key(&self) -> PathBuf {
        Path::new(&self.ca).join("current/node-ca.key")
    }

    pub fn etcd_authority_key(&self) -> PathBuf {
        Path::new(&self.ca).join("current/etcd-ca.key")
    }

    /// Creates a node, observed as a worker; its uid.
    pub async fn add_node(&self, name: &str) -> String {
        self.apply(&document("Node", name, "{desiredRole: worker}")).await;
        self.node(name).await.metadata.unwrap().uid
    }

    pub async fn observe(&self, name: &str, role: Role) {
        self.change(name, |node| node.status.get_or_insert_default().set_role(role))
            .await;
    }

    /// The key of the record of what this authority has signed for a node.
    fn record_key(&self, kind: AuthorityKind, uid: &str) -> Vec<u8> {
        match kind {
            AuthorityKind::Node => self.store.keys.certificate(uid),
            AuthorityKind::Etcd => self.store.keys.etcd_certificate(uid),
        }
    }

    pub async fn stored(&self, uid: &str) -> Option<KeyValue> {
        self.stored_by(AuthorityKind::Node, uid).await
    }

    pub async fn stored_by(&self, kind: AuthorityKind, uid: &str) -> Option<KeyValue> {
        self.read(&self.record_key(kind, uid)).await
    }

    /// Requests a certificate as a replica does for the node of this uid.
    pub async fn request(&self, node: &str, uid: &str, csr: &[u8]) -> Revision {
        self.request_to(AuthorityKind::Node, node, uid, csr).await
    }

    /// The same to this authority.
    pub async fn request_to(&self, kind: AuthorityKind, node: &str, uid: &str, csr: &[u8]) -> Revision {
        let before = self.stored_by(kind, uid).await;
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
        let key = self.record_key(kind, uid);
        let txn = Txn::new().when_unchanged(&key, found);
        self.commit(txn.put(&key, record.encode_to_vec())).await
    }

    pub async fn record(&self, uid: &str) -> NodeCertificate {
        self.record_by(AuthorityKind::Node, uid).await
    }

    pub async fn record_by(&self, kind: AuthorityKind, uid: &str) -> NodeCertificate {
        let stored = self.stored_by(kind, uid).await.expect("there is a record");
        NodeCertificate::decode(&*stored.value).unwrap()
    }

    /// The record of a removed node.
    pub async fn removal(&self, uid: &str) -> RemovedNode {
        let stored = self.read(&self.store.keys.removed(uid)).await;
        RemovedNode::decode(&*stored.expect("the removal is on record").value).unwrap()
    }

    /// Waits until the request has this answer.
    pub async fn answered(&self, uid: &str, state: State) -> NodeCertificate {
        self.answered_by(AuthorityKind::Node, uid, state).await
    }

    /// The same of the request to this authority.
    pub async fn answered_by(&self, kind: AuthorityKind, uid: &str, state: State) -> NodeCertificate {
        let what = format!("the request to the authority of {kind:?} is {state:?}");
        eventually(SOON, &what, async || {
            let record = self.record_by(kind, uid).await;
            same(record.state(), state).map(|_| record)
        })
        .await
    }
}

/// A leader that answers requests with the authority in this directory, and nothing else.
pub async fn certifying_leader(store: &Store, ca: &str, notices: Notices) -> Leader {
    let mut leader = Leader::elect(store, "c1").await;
    let certifier = Certifier {
        store: leader.store.clone(),
        fence: leader.fence().clone(),
        notices,
        settings: Settings {
            ca_dir: ca.into(),
            life: SignedDuration::from_hours(3),
            etcd_life: SignedDuration::from_hours(30),
        },
    };
    leader.work(certifier.run());
    leader
}

/// Seconds.
pub const WEEK: i64 = 7 * 24 * 3600;

/// The record of a certificate that has ended at this second.
pub fn ended(node: &str, second: i64) -> Vec<u8> {
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
pub fn request() -> (Vec<u8>, KeyPair) {
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
pub fn read(chain: &str) -> (String, Vec<u8>) {
    let (_, block) = parse_x509_pem(chain.as_bytes()).unwrap();
    let certificate = block.parse_x509().unwrap();
    assert!(!certificate.is_ca(), "{certificate:?}");
    (
        certificate.subject().to_string(),
        certificate.public_key().raw.to_vec(),
    )
}
