//! What the certificate of a node says, as it is written at its issue. Pure. Whether it is genuine is for TLS to say, and what it
//! opens for the record of the node (INV-13).

use jiff::Timestamp;
use uuid::Uuid;
use x509_parser::prelude::{AttributeTypeAndValue, FromDer, GeneralName, X509Certificate};

use super::node::NodeRole;
use crate::etcd::ClusterId;
use crate::store::Name;

/// What a certificate says of its node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeCertificateFacts {
    /// The uid of the node.
    pub uid: String,
    /// The cluster of the node.
    pub cluster: ClusterId,
    /// The name of the node.
    pub name: Name,
    /// The role that the node was observed in at the issue.
    pub role: NodeRole,
    /// The key, a SubjectPublicKeyInfo in DER.
    pub public_key: Vec<u8>,
    /// From when it is valid.
    pub not_before: Timestamp,
    /// Until when it is valid.
    pub not_after: Timestamp,
}

/// The bytes are no certificate, or one that no authority here writes for a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it is not the certificate of a node")]
pub struct NotOfNode;

impl NodeCertificateFacts {
    /// Reads a certificate (DER). Each part has one spelling: what says the same in another one, or says more, is refused.
    ///
    /// # Errors
    /// If it is not written as [`node::certificate`](super::node::certificate) writes it.
    pub fn read(der: &[u8]) -> Result<Self, NotOfNode> {
        let (rest, certificate) = X509Certificate::from_der(der).map_err(|_| NotOfNode)?;
        if !rest.is_empty() {
            return Err(NotOfNode);
        }
        facts(&certificate).ok_or(NotOfNode)
    }
}

fn facts(certificate: &X509Certificate<'_>) -> Option<NodeCertificateFacts> {
    let subject = certificate.subject();
    let uid = only(subject.iter_common_name()).filter(|uid| is_uid(uid))?;
    let organization = only(subject.iter_organization())?;
    let cluster = ClusterId(u64::from_str_radix(organization, 16).ok()?);
    let unit = only(subject.iter_organizational_unit())?;
    let role = [NodeRole::Worker, NodeRole::Manager]
        .into_iter()
        .find(|role| role.unit() == unit)?;
    let names = certificate.subject_alternative_name().ok()??;
    let [GeneralName::URI(uri)] = names.value.general_names[..] else {
        return None;
    };
    let name = uri.strip_prefix(&format!("spiffe://{cluster}/node/"))?;
    let validity = certificate.validity();
    let at = |second: i64| Timestamp::from_second(second).ok();
    (cluster.to_string() == organization).then_some(NodeCertificateFacts {
        uid: uid.to_owned(),
        cluster,
        name: name.parse().ok()?,
        role,
        public_key: certificate.public_key().raw.to_vec(),
        not_before: at(validity.not_before.timestamp())?,
        not_after: at(validity.not_after.timestamp())?,
    })
}

/// The text of an attribute that occurs once.
fn only<'c>(mut attributes: impl Iterator<Item = &'c AttributeTypeAndValue<'c>>) -> Option<&'c str> {
    let first = attributes.next()?.as_str().ok()?;
    attributes.next().is_none().then_some(first)
}

/// Whether a text is a uid, in the one spelling that uids have.
pub fn is_uid(text: &str) -> bool {
    Uuid::try_parse(text).is_ok_and(|uid| uid.to_string() == text)
}

#[cfg(test)]
mod tests {
    use rcgen::{
        CertificateParams, DnType, ExtendedKeyUsagePurpose, KeyPair, PKCS_ECDSA_P256_SHA256, PublicKeyData,
        SanType,
    };

    use super::super::node::{LIFE, NodeHolder, certificate};
    use super::super::request::RequestedKey;
    use super::super::request::tests::greedy;
    use super::super::{Authority, AuthorityKind};
    use super::*;

    const UID: &str = "0b3a2f0e-55a6-4a3e-9d0c-2f6f4d1c9b11";

    fn now() -> Timestamp {
        "2026-03-01T12:00:00Z".parse().unwrap()
    }

    fn der(pem: &str) -> Vec<u8> {
        pem::parse(pem).unwrap().into_contents()
    }

    #[test]
    fn what_the_authority_writes_is_read() {
        let (authority, _) = Authority::create(AuthorityKind::Node, now()).unwrap();
        let (request, key) = greedy(&PKCS_ECDSA_P256_SHA256);
        let requested = RequestedKey::read(&request).unwrap();
        let holder = NodeHolder {
            cluster: ClusterId(0xc0_ffee),
            uid: UID,
            name: "n1.example",
            role: NodeRole::Manager,
        };
        let made = certificate(&authority, &requested, holder, LIFE, now()).unwrap();
        let read = NodeCertificateFacts::read(&der(&made.chain_pem)).unwrap();
        assert_eq!((read.uid.as_str(), read.cluster), (UID, ClusterId(0xc0_ffee)));
        assert_eq!((read.name.as_str(), read.role), ("n1.example", NodeRole::Manager));
        assert_eq!(read.public_key, key.subject_public_key_info());
        assert!(read.not_before < now());
        assert_eq!(read.not_after, now() + LIFE);
        let authority = der(authority.certificates_pem());
        assert_eq!(NodeCertificateFacts::read(&authority), Err(NotOfNode));
        let mut longer = der(&made.chain_pem);
        longer.push(0);
        assert_eq!(NodeCertificateFacts::read(&longer), Err(NotOfNode));
        assert_eq!(NodeCertificateFacts::read(b"no certificate"), Err(NotOfNode));
    }

    fn made(subject: &[(DnType, &str)], names: &[&str]) -> Result<NodeCertificateFacts, NotOfNode> {
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        for (part, value) in subject {
            params.distinguished_name.push(part.clone(), *value);
        }
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let uri = |name: &&str| SanType::URI((*name).to_owned().try_into().unwrap());
        params.subject_alt_names = names.iter().map(uri).collect();
        let signed = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
        NodeCertificateFacts::read(signed.der())
    }

    #[test]
    fn each_part_has_one_spelling() {
        let subject = |uid, cluster, unit| {
            [
                (DnType::CommonName, uid),
                (DnType::OrganizationName, cluster),
                (DnType::OrganizationalUnitName, unit),
            ]
        };
        let name = "spiffe://c0ffee/node/n1";
        let worker = "quorate-worker";
        assert!(made(&subject(UID, "c0ffee", worker), &[name]).is_ok());
        let (upper, bare) = (UID.to_uppercase(), UID.replace('-', ""));
        let (braced, urn, longer) = (format!("{{{UID}}}"), format!("urn:uuid:{UID}"), format!("{UID} "));
        for uid in [&*upper, &bare, &braced, &urn, &longer, "", "n1"] {
            assert_eq!(
                made(&subject(uid, "c0ffee", worker), &[name]),
                Err(NotOfNode),
                "{uid}"
            );
        }
        for cluster in ["C0FFEE", "0c0ffee", "+c0ffee", "", "coffee", "c0ffef"] {
            assert_eq!(
                made(&subject(UID, cluster, worker), &[name]),
                Err(NotOfNode),
                "{cluster}"
            );
        }
        for unit in ["quorate-Worker", "quorate-etcd", ""] {
            assert_eq!(
                made(&subject(UID, "c0ffee", unit), &[name]),
                Err(NotOfNode),
                "{unit}"
            );
        }
        for names in [
            &[][..],
            &[name, name],
            &["spiffe://c0ffee/node/N1"],
            &["spiffe://c0ffee/node/"],
            &["spiffe://c0ffee/node/n1/"],
            &["SPIFFE://c0ffee/node/n1"],
        ] {
            assert_eq!(
                made(&subject(UID, "c0ffee", worker), names),
                Err(NotOfNode),
                "{names:?}"
            );
        }
        assert_eq!(
            made(&subject(UID, "c0ffee", worker)[..2], &[name]),
            Err(NotOfNode)
        );
    }
}
