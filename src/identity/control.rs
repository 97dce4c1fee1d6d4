//! The certificate that a replica shows at its control port, and the name in it.

use jiff::{SignedDuration, Timestamp};
use pem::Pem;
use rcgen::{DnType, ExtendedKeyUsagePurpose, SanType};
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

use super::NotMade;
use super::authority::Authority;
use super::issue::{Holder, issue};
use crate::etcd::ClusterId;

/// How long it is valid: a replica makes its own, and replaces it under way.
pub const LIFE: SignedDuration = SignedDuration::from_hours(24);

/// The name that agents check, whatever host they dialled: a Service, NAT or a bare address all work. No certificate of a node has a
/// DNS name, so none can pass for a server.
pub fn server_name(cluster: ClusterId) -> String {
    format!("control.{cluster}.quorate")
}

/// The cluster whose servers have this name; `None` for any other name.
pub fn cluster_of(name: &str) -> Option<ClusterId> {
    let id = name.strip_prefix("control.")?.strip_suffix(".quorate")?;
    let cluster = ClusterId(u64::from_str_radix(id, 16).ok()?);
    (server_name(cluster) == name).then_some(cluster)
}

/// The cluster of a server, by the only name of its certificate (DER). That the certificate is genuine, it does not say.
pub fn cluster_of_server(certificate: &[u8]) -> Option<ClusterId> {
    let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
    let names = certificate.subject_alternative_name().ok()??;
    match names.value.general_names[..] {
        [GeneralName::DNSName(name)] => cluster_of(name),
        _ => None,
    }
}

/// A certificate with its key, as TLS takes them.
pub struct ServerCertificate {
    /// The certificate and those of all authorities above it, a self-signed one included, in DER: who joins knows one of them by
    /// its digest, and has none yet.
    pub chain: Vec<Vec<u8>>,
    /// The key, in DER (PKCS #8).
    pub key: Vec<u8>,
    /// Until when it is valid: the end of [`LIFE`], or of the authority, if that is sooner.
    pub not_after: Timestamp,
}

/// Issues a certificate for a control port of this cluster.
///
/// # Errors
/// If the machine's source of random bits fails.
pub fn certificate(
    authority: &Authority,
    cluster: ClusterId,
    now: Timestamp,
) -> Result<ServerCertificate, NotMade> {
    certificate_beside(authority, None, cluster, now)
}

/// The same while this authority takes the place of a former one: its certificate as the former one has signed it goes along, and the
/// former one's. So the server passes with who knows the new one by its digest, and with who knows the former one alone.
///
/// # Errors
/// As [`certificate`].
pub fn certificate_beside(
    authority: &Authority,
    former: Option<&Authority>,
    cluster: ClusterId,
    now: Timestamp,
) -> Result<ServerCertificate, NotMade> {
    let name = server_name(cluster);
    let holder = Holder {
        subject: vec![(DnType::CommonName, &name)],
        usages: vec![ExtendedKeyUsagePurpose::ServerAuth],
        names: vec![SanType::DnsName(name.clone().try_into()?)],
    };
    let issued = issue(authority, holder, LIFE, now)?;
    let parse = |text: &str| {
        let blocks = pem::parse_many(text).map_err(|_| rcgen::Error::CouldNotParseCertificate)?;
        Ok::<_, NotMade>(blocks.into_iter().map(Pem::into_contents).collect::<Vec<_>>())
    };
    let leaf = pem::parse(&issued.chain_pem).map_err(|_| rcgen::Error::CouldNotParseCertificate)?;
    let key = pem::parse(&issued.key_pem).map_err(|_| rcgen::Error::CouldNotParseCertificate)?;
    let mut chain = vec![leaf.into_contents()];
    chain.extend(parse(authority.certificates_pem())?);
    if let Some(former) = former {
        let crossed = parse(authority.intermediates_pem())?;
        for more in crossed.into_iter().chain(parse(former.certificates_pem())?) {
            if !chain.contains(&more) {
                chain.push(more);
            }
        }
    }
    Ok(ServerCertificate {
        chain,
        key: key.into_contents(),
        not_after: issued.not_after,
    })
}

#[cfg(test)]
mod tests {
    use super::super::{AuthorityDigest, AuthorityKind};
    use super::*;

    #[test]
    fn the_name_has_one_spelling() {
        let cluster = ClusterId(0xc0_ffee);
        assert_eq!(server_name(cluster), "control.c0ffee.quorate");
        assert_eq!(cluster_of("control.c0ffee.quorate"), Some(cluster));
        for other in [
            "control.C0FFEE.quorate",
            "control.0c0ffee.quorate",
            "control.+c0ffee.quorate",
            "control..quorate",
            "control.c0ffee.quorate.example",
            "a.control.c0ffee.quorate",
            "control.c0ffee",
        ] {
            assert_eq!(cluster_of(other), None, "{other}");
        }
    }

    #[test]
    fn a_server_serves_alone_and_brings_its_authority_along() {
        let now: Timestamp = "2026-03-01T12:00:00Z".parse().unwrap();
        let (authority, _) = Authority::create(AuthorityKind::Node, now).unwrap();
        let made = certificate(&authority, ClusterId(0xc0_ffee), now).unwrap();
        let [leaf, above] = &made.chain[..] else {
            panic!("{} certificates", made.chain.len());
        };
        assert_eq!(AuthorityDigest::of(above), authority.digest());
        assert_eq!(cluster_of_server(leaf), Some(ClusterId(0xc0_ffee)));
        assert_eq!(cluster_of_server(above), None);
        assert_eq!(cluster_of_server(b"torn"), None);
        let (_, leaf) = X509Certificate::from_der(leaf).unwrap();
        let usage = leaf.extended_key_usage().unwrap().unwrap().value;
        assert!(usage.server_auth && !usage.client_auth);
        let names = leaf.subject_alternative_name().unwrap().unwrap();
        assert_eq!(
            names.value.general_names,
            [GeneralName::DNSName("control.c0ffee.quorate")]
        );
        let ends = leaf.validity().not_after.timestamp();
        assert_eq!(ends, (now + LIFE).as_second());
    }
}
