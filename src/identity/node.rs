//! Certificates of nodes: what an agent shows at the control port.

use jiff::{SignedDuration, Timestamp};
use rcgen::{DnType, ExtendedKeyUsagePurpose, SanType};

use super::NotMade;
use super::authority::Authority;
use super::issue::{Holder, Signed, sign};
use super::request::RequestedKey;
use crate::etcd::ClusterId;
use crate::proto::Role;

/// How long a certificate is valid unless `--node-cert-ttl` says otherwise.
pub const LIFE: SignedDuration = SignedDuration::from_hours(90 * 24);

/// The role that a certificate says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeRole {
    /// A worker.
    Worker,
    /// A manager, which may join etcd.
    Manager,
}

impl NodeRole {
    /// The role of a node that has one.
    pub fn of(observed: Role) -> Option<Self> {
        match observed {
            Role::Worker => Some(Self::Worker),
            Role::Manager => Some(Self::Manager),
            Role::Unspecified => None,
        }
    }

    /// As it is stored.
    pub fn to_proto(self) -> Role {
        match self {
            Self::Worker => Role::Worker,
            Self::Manager => Role::Manager,
        }
    }

    /// The organizational unit of the subject.
    pub fn unit(self) -> &'static str {
        match self {
            Self::Worker => "quorate-worker",
            Self::Manager => "quorate-manager",
        }
    }
}

/// Whom a certificate is for.
#[derive(Clone, Copy, Debug)]
pub struct NodeHolder<'a> {
    /// The cluster.
    pub cluster: ClusterId,
    /// The uid of the node.
    pub uid: &'a str,
    /// Its name.
    pub name: &'a str,
    /// Its observed role.
    pub role: NodeRole,
}

/// Signs the key of a request for this node.
///
/// # Errors
/// If the name does not fit into a certificate.
pub fn certificate(
    authority: &Authority,
    key: &RequestedKey,
    node: NodeHolder<'_>,
    life: SignedDuration,
    now: Timestamp,
) -> Result<Signed, NotMade> {
    let cluster = node.cluster.to_string();
    let name = format!("spiffe://{cluster}/node/{}", node.name);
    let holder = Holder {
        subject: vec![
            (DnType::CommonName, node.uid),
            (DnType::OrganizationName, &cluster),
            (DnType::OrganizationalUnitName, node.role.unit()),
        ],
        usages: vec![ExtendedKeyUsagePurpose::ClientAuth],
        names: vec![SanType::URI(name.try_into()?)],
    };
    sign(authority, holder, &key.info()?, life, now)
}

#[cfg(test)]
mod tests {
    use rcgen::{PKCS_ECDSA_P384_SHA384, PublicKeyData};
    use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

    use super::super::AuthorityKind;
    use super::super::request::tests::greedy;
    use super::*;

    fn now() -> Timestamp {
        "2026-03-01T12:00:00Z".parse().unwrap()
    }

    #[test]
    fn a_certificate_says_who_the_node_is_and_nothing_that_the_request_asked_for() {
        let (authority, _) = Authority::create(AuthorityKind::Node, now()).unwrap();
        let (request, key) = greedy(&PKCS_ECDSA_P384_SHA384);
        let requested = RequestedKey::read(&request).unwrap();
        let node = NodeHolder {
            cluster: ClusterId(0xc0_ffee),
            uid: "5d0b",
            name: "n1.example",
            role: NodeRole::Worker,
        };
        let made = certificate(&authority, &requested, node, LIFE, now()).unwrap();
        let again = certificate(&authority, &requested, node, LIFE, now()).unwrap();
        assert_eq!(made.not_after, now() + LIFE);
        let (block, other) = (
            pem::parse(&made.chain_pem).unwrap(),
            pem::parse(&again.chain_pem).unwrap(),
        );
        let (_, read) = X509Certificate::from_der(block.contents()).unwrap();
        let (_, other) = X509Certificate::from_der(other.contents()).unwrap();
        assert_ne!(read.serial, other.serial);
        assert_eq!(read.subject().to_string(), "CN=5d0b, O=c0ffee, OU=quorate-worker");
        assert_eq!(read.public_key().raw, key.subject_public_key_info());
        assert!(!read.is_ca());
        let usage = read.extended_key_usage().unwrap().unwrap().value;
        assert!(usage.client_auth && !usage.server_auth);
        let names = read.subject_alternative_name().unwrap().unwrap();
        assert_eq!(
            names.value.general_names,
            [GeneralName::URI("spiffe://c0ffee/node/n1.example")]
        );
        let from = read.validity().not_before.timestamp();
        assert!(from < now().as_second(), "a clock that is behind accepts it");
    }
}
