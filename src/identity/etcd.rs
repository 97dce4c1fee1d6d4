//! Certificates of etcd's members and of its clients.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use jiff::{SignedDuration, Timestamp};
use rcgen::{DnType, ExtendedKeyUsagePurpose, SanType};

use super::NotMade;
use super::authority::Authority;
use super::issue::{Holder, Issued, issue};

/// How long a certificate is valid unless the caller says otherwise: nothing renews it for members and clients that are set up by
/// hand.
pub const LIFE: SignedDuration = SignedDuration::from_hours(365 * 24);

/// The common name of every member: etcd is started with `--peer-cert-allowed-cn=quorate-etcd`, since otherwise any
/// certificate of its authority passes at its peer port.
pub const MEMBER: &str = "quorate-etcd";

/// A host that a member is reached at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Host {
    /// A DNS name; its first label may be `*`.
    Name(String),
    /// An address.
    Address(IpAddr),
}

impl Host {
    /// Reads a host as it stands in a URL: an IPv6 address may be in brackets.
    ///
    /// # Errors
    /// A sentence that says what is expected.
    pub fn parse(text: &str) -> Result<Self, String> {
        let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        if let Ok(address) = bare.unwrap_or(text).parse() {
            return Ok(Self::Address(address));
        }
        let label = |label: &str| {
            let inner = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
            !label.is_empty()
                && label.len() <= 63
                && label.chars().all(inner)
                && !label.starts_with('-')
                && !label.ends_with('-')
        };
        let labels = text.strip_prefix("*.").unwrap_or(text);
        // All digits and dots: an address with a fault, not a name.
        let is_number = labels.chars().all(|c| c.is_ascii_digit() || c == '.');
        match labels.len() <= 253 && !is_number && labels.split('.').all(label) {
            true => Ok(Self::Name(text.to_ascii_lowercase())),
            false => Err(format!(
                "\"{text}\" is not a host: expected a DNS name or an IP address, without a port"
            )),
        }
    }

    fn san(self) -> Result<SanType, rcgen::Error> {
        Ok(match self {
            Self::Name(name) => SanType::DnsName(name.try_into()?),
            Self::Address(address) => SanType::IpAddress(address),
        })
    }
}

/// Issues the certificate of a member, for its clients and its peers. It holds these hosts, and always localhost, 127.0.0.1
/// and ::1.
///
/// # Errors
/// If the machine's source of random bits fails.
pub fn member(
    authority: &Authority,
    hosts: impl IntoIterator<Item = Host>,
    life: SignedDuration,
    now: Timestamp,
) -> Result<Issued, NotMade> {
    let local = [
        Host::Name("localhost".to_owned()),
        Host::Address(Ipv4Addr::LOCALHOST.into()),
        Host::Address(Ipv6Addr::LOCALHOST.into()),
    ];
    let mut all: Vec<Host> = Vec::new();
    for host in hosts.into_iter().chain(local) {
        if !all.contains(&host) {
            all.push(host);
        }
    }
    let holder = Holder {
        subject: vec![(DnType::CommonName, MEMBER)],
        usages: vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ],
        names: all.into_iter().map(Host::san).collect::<Result<_, _>>()?,
    };
    issue(authority, holder, life, now)
}

/// Issues the certificate of a client. etcd takes the common name for the user, where authentication is on.
///
/// # Errors
/// If the machine's source of random bits fails.
pub fn client(
    authority: &Authority,
    common_name: &str,
    life: SignedDuration,
    now: Timestamp,
) -> Result<Issued, NotMade> {
    let holder = Holder {
        subject: vec![(DnType::CommonName, common_name)],
        usages: vec![ExtendedKeyUsagePurpose::ClientAuth],
        names: Vec::new(),
    };
    issue(authority, holder, life, now)
}

#[cfg(test)]
mod tests {
    use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

    use super::super::AuthorityKind;
    use super::*;

    fn now() -> Timestamp {
        "2026-03-01T12:00:00Z".parse().unwrap()
    }

    fn with_certificate<R>(issued: &Issued, look: impl FnOnce(&X509Certificate<'_>) -> R) -> R {
        let block = pem::parse(&issued.chain_pem).unwrap();
        look(&X509Certificate::from_der(block.contents()).unwrap().1)
    }

    #[test]
    fn a_member_has_its_hosts_and_the_local_ones_once_each_and_serves_and_asks() {
        let (authority, _) = Authority::create(AuthorityKind::Etcd, now()).unwrap();
        let hosts = [
            "etcd-1.example",
            "10.0.0.1",
            "[2001:db8::1]",
            "LOCALHOST",
            "10.0.0.1",
        ];
        let hosts = hosts.map(|host| Host::parse(host).unwrap());
        let issued = member(&authority, hosts, LIFE, now()).unwrap();
        assert_eq!(issued.not_after, now() + LIFE);
        with_certificate(&issued, |certificate| {
            let names = certificate.subject_alternative_name().unwrap().unwrap();
            let names: Vec<String> = names
                .value
                .general_names
                .iter()
                .map(|name| match name {
                    GeneralName::DNSName(name) => (*name).to_owned(),
                    GeneralName::IPAddress(bytes) => format!("{} bytes", bytes.len()),
                    other => panic!("{other}"),
                })
                .collect();
            assert_eq!(
                names,
                [
                    "etcd-1.example",
                    "4 bytes",
                    "16 bytes",
                    "localhost",
                    "4 bytes",
                    "16 bytes"
                ]
            );
            let usage = certificate.extended_key_usage().unwrap().unwrap().value;
            assert!(usage.server_auth && usage.client_auth);
            assert_eq!(certificate.subject().to_string(), "CN=quorate-etcd");
            assert!(!certificate.is_ca());
            let from = certificate.validity().not_before.timestamp();
            assert!(from < now().as_second(), "a clock that is behind accepts it");
        });
    }

    #[test]
    fn a_client_asks_and_never_serves() {
        let (authority, _) = Authority::create(AuthorityKind::Etcd, now()).unwrap();
        let issued = client(&authority, "quorate", LIFE, now()).unwrap();
        with_certificate(&issued, |certificate| {
            let usage = certificate.extended_key_usage().unwrap().unwrap().value;
            assert!(usage.client_auth && !usage.server_auth);
            assert_eq!(certificate.subject().to_string(), "CN=quorate");
            assert_eq!(certificate.subject_alternative_name().unwrap(), None);
        });
    }

    #[test]
    fn no_certificate_outlives_its_authority() {
        let (authority, _) = Authority::create(AuthorityKind::Etcd, now()).unwrap();
        let issued = client(&authority, "quorate", SignedDuration::MAX, now()).unwrap();
        assert_eq!(issued.not_after, authority.not_after());
    }

    #[test]
    fn the_end_is_that_of_the_certificate_to_the_second() {
        let (authority, _) = Authority::create(AuthorityKind::Etcd, now()).unwrap();
        let later = now() + SignedDuration::from_millis(700);
        let issued = client(&authority, "quorate", LIFE, later).unwrap();
        assert_eq!(issued.not_after, now() + LIFE);
    }

    #[test]
    fn a_host_is_a_name_or_an_address_without_a_port() {
        assert_eq!(
            Host::parse("*.etcd.example"),
            Ok(Host::Name("*.etcd.example".to_owned()))
        );
        assert_eq!(Host::parse("::1"), Ok(Host::Address(Ipv6Addr::LOCALHOST.into())));
        for bad in [
            "",
            "a b",
            "10.0.0",
            "10.0.0.1:2379",
            "https://a",
            "a..b",
            "-a",
            "*",
            "a.*.b",
        ] {
            let error = Host::parse(bad).unwrap_err();
            assert!(error.contains(&format!("\"{bad}\" is not a host")), "{error}");
        }
    }
}
