//! Certificates of etcd's members and of its clients.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use jiff::{SignedDuration, Timestamp};
use rcgen::{DnType, ExtendedKeyUsagePurpose, SanType};

use super::NotMade;
use super::authority::Authority;
use super::issue::{Holder, Issued, Signed, issue, sign};
use super::request::RequestedKey;
use crate::etcd::ClusterId;

/// How long a certificate is valid unless the caller says otherwise: nothing renews it for members and clients that are set up by
/// hand.
pub const LIFE: SignedDuration = SignedDuration::from_hours(365 * 24);

/// How long the certificate of an agent's member is valid unless `--etcd-cert-ttl` says otherwise. Its agent replaces it. What it opens
/// at a connection that is open already ends no sooner than this.
pub const AGENT_LIFE: SignedDuration = SignedDuration::from_hours(30 * 24);

/// The common name of every member: etcd is started with `--peer-cert-allowed-cn=quorate-etcd`, since otherwise any
/// certificate of its authority passes at its peer port.
pub const MEMBER: &str = "quorate-etcd";

/// A host that a member is reached at.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
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
        if let Ok(address) = bare.unwrap_or(text).parse::<IpAddr>() {
            // Of the two forms that an IPv4 address has, since etcd takes a certificate with one for the other.
            return Ok(Self::Address(address.to_canonical()));
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

    /// The host of a URL of etcd, such as `https://10.0.0.1:2380`; `None` if it has none that a certificate can say. A name with `*` is
    /// no host of a URL: it would name the hosts of other members, too.
    pub fn of_url(url: &str) -> Option<Self> {
        let (_, authority) = url.split_once("://")?;
        let (host, _) = authority.rsplit_once(':')?;
        Self::parse(host).ok().filter(|_| !host.contains('*'))
    }

    /// Whether it is one of those that every member is reached at on its own machine, and that no member has for itself.
    pub fn is_local(&self) -> bool {
        local().contains(self)
    }

    fn san(self) -> Result<SanType, rcgen::Error> {
        Ok(match self {
            Self::Name(name) => SanType::DnsName(name.try_into()?),
            Self::Address(address) => SanType::IpAddress(address),
        })
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => f.write_str(name),
            Self::Address(address) => address.fmt(f),
        }
    }
}

/// The hosts that every certificate of a member holds.
fn local() -> [Host; 3] {
    [
        Host::Name("localhost".to_owned()),
        Host::Address(Ipv4Addr::LOCALHOST.into()),
        Host::Address(Ipv6Addr::LOCALHOST.into()),
    ]
}

/// The member of a node that an agent runs.
#[derive(Clone, Copy, Debug)]
pub struct MemberHolder<'a> {
    /// The cluster.
    pub cluster: ClusterId,
    /// The uid of the node.
    pub uid: &'a str,
    /// The hosts that the member is reached at.
    pub hosts: &'a [Host],
}

/// Signs the key of a request for the member of a node. The certificate holds the uid of the node beside the hosts.
///
/// # Errors
/// If a host does not fit into a certificate.
pub fn of_agent(
    authority: &Authority,
    key: &RequestedKey,
    member: MemberHolder<'_>,
    life: SignedDuration,
    now: Timestamp,
) -> Result<Signed, NotMade> {
    let mut holder = member_holder(member.hosts.iter().cloned())?;
    let node = format!("spiffe://{}/etcd/{}", member.cluster, member.uid);
    holder.names.push(SanType::URI(node.try_into()?));
    sign(authority, holder, &key.info()?, life, now)
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
    issue(authority, member_holder(hosts)?, life, now)
}

/// Any member: these hosts and the local ones, once each.
fn member_holder(hosts: impl IntoIterator<Item = Host>) -> Result<Holder<'static>, rcgen::Error> {
    let mut all: Vec<Host> = Vec::new();
    for host in hosts.into_iter().chain(local()) {
        if !all.contains(&host) {
            all.push(host);
        }
    }
    Ok(Holder {
        subject: vec![(DnType::CommonName, MEMBER)],
        usages: vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ],
        names: all.into_iter().map(Host::san).collect::<Result<_, _>>()?,
    })
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

/// The first certificate of a chain, both in PEM.
///
/// # Errors
/// If there is none.
pub fn first_of(chain_pem: &str) -> Result<String, NotMade> {
    let first = pem::parse(chain_pem).map_err(|_| rcgen::Error::CouldNotParseCertificate)?;
    Ok(pem::encode(&first))
}

#[cfg(test)]
mod tests {
    use rcgen::{PKCS_ECDSA_P256_SHA256, PublicKeyData};
    use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

    use super::super::AuthorityKind;
    use super::super::request::tests::greedy;
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
    fn the_member_of_an_agent_has_the_uid_of_its_node_and_nothing_that_the_request_asked_for() {
        let (authority, _) = Authority::create(AuthorityKind::Etcd, now()).unwrap();
        let (request, key) = greedy(&PKCS_ECDSA_P256_SHA256);
        let requested = RequestedKey::read(&request).unwrap();
        let member = MemberHolder {
            cluster: ClusterId(0xc0_ffee),
            uid: "5d0b",
            hosts: &[Host::parse("n1").unwrap()],
        };
        let signed = of_agent(&authority, &requested, member, AGENT_LIFE, now()).unwrap();
        assert_eq!(signed.not_after, now() + AGENT_LIFE);
        let block = pem::parse(&signed.chain_pem).unwrap();
        let (_, read) = X509Certificate::from_der(block.contents()).unwrap();
        let serial = read.serial.to_bytes_be();
        assert!(signed.serial.ends_with(&serial), "{serial:x?}");
        assert_eq!(read.subject().to_string(), "CN=quorate-etcd");
        assert_eq!(read.public_key().raw, key.subject_public_key_info());
        assert!(!read.is_ca());
        let usage = read.extended_key_usage().unwrap().unwrap().value;
        assert!(usage.server_auth && usage.client_auth);
        let names = read.subject_alternative_name().unwrap().unwrap();
        let names: Vec<String> = names
            .value
            .general_names
            .iter()
            .filter_map(|name| match name {
                GeneralName::DNSName(name) | GeneralName::URI(name) => Some((*name).to_owned()),
                _ => None,
            })
            .collect();
        assert_eq!(names, ["n1", "localhost", "spiffe://c0ffee/etcd/5d0b"]);
    }

    #[test]
    fn the_host_of_a_url_is_read_without_its_port() {
        let of = |url: &str| Host::of_url(url).map(|host| host.to_string());
        assert_eq!(of("https://N1.example:2380").as_deref(), Some("n1.example"));
        assert_eq!(of("https://[2001:db8::1]:2380").as_deref(), Some("2001:db8::1"));
        assert_eq!(of("http://10.0.0.1:2379").as_deref(), Some("10.0.0.1"));
        assert_eq!(of("https://[::ffff:10.0.0.1]:2379").as_deref(), Some("10.0.0.1"));
        assert_eq!(of("https://*.example:2379"), None);
        assert_eq!(of("https://a b:1"), None);
        assert_eq!(of("10.0.0.1"), None);
        assert!(Host::parse("LOCALHOST").unwrap().is_local());
        assert!(!Host::parse("127.0.0.2").unwrap().is_local());
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
