//! The list of revoked certificates, as etcd reads it.

use jiff::Timestamp;
use rcgen::{
    CertificateRevocationListParams, KeyIdMethod, RevocationReason, RevokedCertParams, SerialNumber,
};
use x509_parser::prelude::{CertificateRevocationList, FromDer, ParsedExtension, X509Certificate};

use super::NotMade;
use super::authority::Authority;
use super::revocation::LIFE;
use super::validity::{BACKDATED, at};
use crate::proto::{RevocationList, RevokedCertificate};
use crate::store::object::time;

/// Signs the list of these certificates.
///
/// # Errors
/// If the authority may not sign lists (keyUsage cRLSign).
pub fn sign(
    authority: &Authority,
    revoked: Vec<RevokedCertificate>,
    number: u64,
    now: Timestamp,
) -> Result<RevocationList, NotMade> {
    // A reader whose clock is behind takes it, as it takes certificates.
    let (this_update, next_update) = (now - BACKDATED, now + LIFE);
    let made = CertificateRevocationListParams {
        this_update: at(this_update),
        next_update: at(next_update),
        crl_number: SerialNumber::from(number),
        issuing_distribution_point: None,
        revoked_certs: revoked.iter().map(entry).collect(),
        key_identifier_method: key_identifier(authority),
    };
    let crl = made.signed_by(&authority.issuer)?;
    Ok(RevocationList {
        crl: crl.der().to_vec(),
        number,
        revoked,
        this_update: Some(time::to_proto(now)),
        next_update: Some(time::to_proto(next_update)),
        authority_sha256: authority.digest().0.to_vec(),
    })
}

/// The number of a list (DER), which is greater than that of each before it; `None` if it is no list.
pub fn number(list: &[u8]) -> Option<u64> {
    let (_, list) = CertificateRevocationList::from_der(list).ok()?;
    u64::try_from(list.crl_number()?).ok()
}

/// A list (DER) as text.
pub fn to_pem(list: Vec<u8>) -> String {
    pem::encode(&pem::Pem::new("X509 CRL", list))
}

fn entry(revoked: &RevokedCertificate) -> RevokedCertParams {
    let since = time::from_proto(revoked.revoked_at.as_ref());
    RevokedCertParams {
        serial_number: SerialNumber::from_slice(&revoked.serial),
        revocation_time: at(since.unwrap_or(Timestamp::UNIX_EPOCH)),
        reason_code: Some(RevocationReason::PrivilegeWithdrawn),
        invalidity_date: None,
    }
}

/// The identifier that the certificate of the authority says of its key: a list with another one is taken for that of another
/// authority.
fn key_identifier(authority: &Authority) -> KeyIdMethod {
    let certificate = X509Certificate::from_der(authority.certificate_der());
    let said = certificate.ok().and_then(|(_, certificate)| {
        let mut extensions = certificate.extensions().iter();
        extensions.find_map(|extension| match extension.parsed_extension() {
            ParsedExtension::SubjectKeyIdentifier(key) => Some(key.0.to_vec()),
            _ => None,
        })
    });
    said.map_or(KeyIdMethod::Sha256, KeyIdMethod::PreSpecified)
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;
    use rcgen::{
        BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, KeyPair, KeyUsagePurpose,
    };

    use super::super::AuthorityKind;
    use super::super::etcd::{LIFE as MEMBER_LIFE, client};
    use super::*;

    fn now() -> Timestamp {
        "2026-03-01T12:00:00Z".parse().unwrap()
    }

    fn revoked(serial: &[u8]) -> RevokedCertificate {
        RevokedCertificate {
            serial: serial.to_vec(),
            revoked_at: Some(time::to_proto(now())),
            ..RevokedCertificate::default()
        }
    }

    #[test]
    fn a_list_holds_the_serials_as_certificates_have_them_and_is_signed_by_the_authority() {
        let (authority, _) = Authority::create(AuthorityKind::Etcd, now()).unwrap();
        let leaf = client(&authority, "quorate", MEMBER_LIFE, now()).unwrap();
        let block = pem::parse(&leaf.chain_pem).unwrap();
        let (_, leaf) = X509Certificate::from_der(block.contents()).unwrap();
        let own = leaf.serial.to_bytes_be();
        // The first bit of the second one is set, and the third begins with zeros.
        let all = vec![revoked(&own), revoked(&[0xf0, 1]), revoked(&[0, 0, 5])];
        let list = sign(&authority, all, 77, now()).unwrap();
        let (rest, read) = CertificateRevocationList::from_der(&list.crl).unwrap();
        assert!(rest.is_empty());
        let (_, issuer) = X509Certificate::from_der(authority.certificate_der()).unwrap();
        read.verify_signature(issuer.public_key()).unwrap();
        assert_eq!(read.issuer(), issuer.subject());
        let said = read.iter_revoked_certificates();
        let said: Vec<Vec<u8>> = said.map(|of| of.serial().to_bytes_be()).collect();
        assert_eq!(said, [own, vec![0xf0, 1], vec![5]]);
        assert_eq!(number(&list.crl), Some(77));
        assert_eq!(number(b"none"), None);
        assert!(read.last_update().timestamp() < now().as_second());
        let next = read.next_update().unwrap().timestamp();
        assert_eq!(next, (now() + LIFE).as_second());
        assert_eq!(list.authority_sha256, authority.digest().0);
    }

    #[test]
    fn an_authority_that_may_not_sign_lists_signs_none() {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, "own");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        params.not_before = at(now() - SignedDuration::from_hours(1));
        params.not_after = at(now() + LIFE);
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap().pem();
        let authority =
            Authority::read(certificate.as_bytes(), key.serialize_pem().as_bytes(), now()).unwrap();
        let refused = sign(&authority, Vec::new(), 1, now()).unwrap_err();
        assert!(refused.to_string().contains("CRL"), "{refused}");
    }
}
