//! Managers with joins and members on record, which no etcd has: what the certificates of their members depend on.

use prost::Message;
use quorate::etcd::{KeyValue, MemberId, Txn};
use quorate::identity::AuthorityKind;
use quorate::proto::join::Progress;
use quorate::proto::node_certificate::State;
use quorate::proto::{Join, JoinRequest, Member, NodeCertificate, RevocationList, Role};
use x509_parser::pem::parse_x509_pem;
use x509_parser::prelude::GeneralName;

use super::site::Site;
use crate::support::base::parsed;
use crate::support::wait::{SOON, eventually, same};

impl Site {
    /// Creates a node that is observed as a manager, with a member of this id at this host; its uid.
    pub async fn add_manager(&self, name: &str, member: u64, host: &str) -> String {
        let uid = self.add_node(name).await;
        self.observe(name, Role::Manager).await;
        self.join(name, &uid, member, host).await;
        uid
    }

    /// Writes the join of a node and the record of its member, as the leader does.
    pub async fn join(&self, name: &str, uid: &str, member: u64, host: &str) {
        let (peer, client) = (format!("https://{host}:2380"), format!("https://{host}:2379"));
        let join = Join {
            request: Some(JoinRequest {
                id: "r".to_owned(),
                node_uid: uid.to_owned(),
                peer_urls: vec![peer.clone()],
                client_urls: vec![client],
                ..JoinRequest::default()
            }),
            answers: "r".to_owned(),
            progress: Progress::Voter.into(),
            member_id: member,
            ..Join::default()
        };
        let record = Member {
            node: name.to_owned(),
            node_uid: uid.to_owned(),
            peer_urls: vec![peer],
            ..Member::default()
        };
        let keys = &self.store.keys;
        let txn = Txn::new()
            .put(&keys.join(&parsed(name)), join.encode_to_vec())
            .put(&keys.member(MemberId(member)), record.encode_to_vec());
        self.commit(txn).await;
    }

    pub async fn stored_of_etcd(&self, uid: &str) -> Option<KeyValue> {
        self.stored_by(AuthorityKind::Etcd, uid).await
    }

    /// Requests a certificate of etcd as a replica does for the node of this uid.
    pub async fn request_of_etcd(&self, node: &str, uid: &str, csr: &[u8]) {
        self.request_to(AuthorityKind::Etcd, node, uid, csr).await;
    }

    pub async fn record_of_etcd(&self, uid: &str) -> NodeCertificate {
        self.record_by(AuthorityKind::Etcd, uid).await
    }

    /// Waits until the request for a certificate of etcd has this answer.
    pub async fn answered_of_etcd(&self, uid: &str, state: State) -> NodeCertificate {
        self.answered_by(AuthorityKind::Etcd, uid, state).await
    }

    /// The list of revoked certificates, if there is one.
    pub async fn revocation_list(&self) -> Option<RevocationList> {
        let stored = self.read(&self.store.keys.revocation_list()).await?;
        Some(RevocationList::decode(&*stored.value).unwrap())
    }

    /// Waits until exactly these serial numbers are revoked, in any order.
    pub async fn revoked(&self, serials: &[Vec<u8>]) -> RevocationList {
        let mut wanted = serials.to_vec();
        wanted.sort();
        eventually(SOON, "these certificates are revoked", async || {
            let list = self.revocation_list().await.ok_or("there is no list")?;
            let mut found: Vec<Vec<u8>> = list.revoked.iter().map(|of| of.serial.clone()).collect();
            found.sort();
            same(&found, &wanted)?;
            Ok::<_, String>(list)
        })
        .await
    }
}

/// The serial numbers that a record lists.
pub fn serials(record: &NodeCertificate) -> Vec<Vec<u8>> {
    let issued = record.issued.iter();
    issued.map(|issued| issued.serial.clone()).collect()
}

/// The names of the first certificate of a chain: DNS names and URIs as they are, addresses by their bytes.
pub fn names(chain: &str) -> Vec<String> {
    let (_, block) = parse_x509_pem(chain.as_bytes()).unwrap();
    let certificate = block.parse_x509().unwrap();
    let names = certificate.subject_alternative_name().unwrap().unwrap();
    let names = names.value.general_names.iter();
    names
        .map(|name| match name {
            GeneralName::DNSName(name) | GeneralName::URI(name) => (*name).to_owned(),
            GeneralName::IPAddress(bytes) => format!("{bytes:?}"),
            other => panic!("{other}"),
        })
        .collect()
}
