//! What a certificate says of its key, its time and its hosts, whatever it is for. Pure.

use std::net::IpAddr;

use jiff::{SignedDuration, Timestamp};
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

use super::etcd::Host;
use super::validity::BACKDATED;

/// The first certificate of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leaf {
    /// The key, a SubjectPublicKeyInfo in DER.
    pub public_key: Vec<u8>,
    /// From when it is valid.
    pub not_before: Timestamp,
    /// Until when it is valid.
    pub not_after: Timestamp,
    /// The hosts that it names.
    pub hosts: Vec<Host>,
    /// Whether it names a node, as what the leader signs for an agent does, and what a person issues does not.
    pub names_node: bool,
}

impl Leaf {
    /// Reads the first certificate of a text in PEM, which may hold a key, too. `None` if there is none that can be read.
    pub fn of_pem(text: &str) -> Option<Self> {
        let blocks = pem::parse_many(text).ok()?;
        let block = blocks.iter().find(|block| block.tag() == "CERTIFICATE")?;
        let (_, certificate) = X509Certificate::from_der(block.contents()).ok()?;
        let names = certificate.subject_alternative_name().ok()?;
        let names = names.map_or(&[][..], |names| names.value.general_names.as_slice());
        let validity = certificate.validity();
        Some(Self {
            public_key: certificate.public_key().raw.to_vec(),
            not_before: Timestamp::from_second(validity.not_before.timestamp()).ok()?,
            not_after: Timestamp::from_second(validity.not_after.timestamp()).ok()?,
            hosts: names.iter().filter_map(host).collect(),
            names_node: names.iter().any(is_node),
        })
    }

    /// When it was issued by an authority of a cluster.
    pub fn issued(&self) -> Timestamp {
        self.not_before
            .saturating_add(BACKDATED)
            .unwrap_or(Timestamp::MAX)
    }

    /// From its issue to its end.
    pub fn life(&self) -> SignedDuration {
        self.not_after.duration_since(self.issued())
    }
}

fn is_node(name: &GeneralName<'_>) -> bool {
    matches!(name, GeneralName::URI(uri) if uri.starts_with("spiffe://"))
}

fn host(name: &GeneralName<'_>) -> Option<Host> {
    match name {
        GeneralName::DNSName(name) => Host::parse(name).ok(),
        GeneralName::IPAddress(bytes) => {
            let four = <[u8; 4]>::try_from(*bytes).map(IpAddr::from);
            let address = four.or_else(|_| <[u8; 16]>::try_from(*bytes).map(IpAddr::from));
            address.ok().map(|address| Host::Address(address.to_canonical()))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::etcd::{LIFE, member};
    use super::super::{Authority, AuthorityKind};
    use super::*;

    #[test]
    fn the_first_certificate_of_a_text_is_read_with_its_hosts_and_its_life() {
        let now: Timestamp = "2026-03-01T12:00:00Z".parse().unwrap();
        let (authority, key) = Authority::create(AuthorityKind::Etcd, now).unwrap();
        let hosts = ["etcd-1.example", "10.0.0.1", "[2001:db8::1]"].map(|host| Host::parse(host).unwrap());
        let issued = member(&authority, hosts.clone(), LIFE, now).unwrap();
        let text = format!("{key}{}{}", issued.chain_pem, authority.certificates_pem());
        let leaf = Leaf::of_pem(&text).unwrap();
        assert_eq!((leaf.issued(), leaf.life()), (now, LIFE));
        assert!(
            hosts.iter().all(|host| leaf.hosts.contains(host)),
            "{:?}",
            leaf.hosts
        );
        assert!(!leaf.hosts.contains(&Host::parse("etcd-2.example").unwrap()));
        assert!(!leaf.names_node);
        for nothing in [
            "",
            &key,
            "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
        ] {
            assert_eq!(Leaf::of_pem(nothing), None);
        }
    }
}
