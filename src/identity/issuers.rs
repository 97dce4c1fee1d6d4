//! An authority's certificate and those of the authorities above it.

use std::fmt::Display;

use jiff::Timestamp;
use x509_parser::error::X509Error;
use x509_parser::prelude::{FromDer, X509Certificate};

/// Why an authority cannot sign.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unusable {
    /// There is no certificate in the file.
    #[error("it holds no certificate in PEM")]
    NoCertificate,
    /// The file of the certificate, which is handed out, holds a key.
    #[error("it holds a key as well: keep the key in its own file alone")]
    KeyInside,
    /// The certificate cannot be read.
    #[error("its certificate cannot be read: {0}")]
    Certificate(String),
    /// A certificate is not followed by that of the authority above it.
    #[error(
        "its certificates are no chain: each must be followed by that of the authority which has signed it"
    )]
    Chain,
    /// The certificate, or one of those above it, may not sign others.
    #[error(
        "it holds a certificate that is not one of an authority (basicConstraints CA, keyUsage keyCertSign)"
    )]
    NotAnAuthority,
    /// The key cannot be read.
    #[error(
        "its key cannot be read: expected an unencrypted PKCS #8 key in PEM (-----BEGIN PRIVATE KEY-----)"
    )]
    Key,
    /// The key is that of another certificate.
    #[error("its key is not the key of its first certificate")]
    OtherKey,
    /// Its time is over, or nearly.
    #[error("it is valid until {0}, which is too soon to sign anything")]
    EndsSoon(Timestamp),
    /// Its time has not begun.
    #[error("it is not valid before {0}")]
    NotYetValid(Timestamp),
}

/// When all certificates of a chain are valid.
pub(super) struct Life {
    pub(super) not_before: Timestamp,
    pub(super) not_after: Timestamp,
}

/// Whether the first certificate is that of the authority which has signed the second one.
pub(super) type Signs = fn(&X509Certificate<'_>, &X509Certificate<'_>) -> bool;

/// Judges the certificates of an authority, its own first. `signs` says which of them is above which.
///
/// # Errors
/// If one is not that of an authority, or not followed by that of the authority which has signed it.
pub(super) fn judge(chain: &[X509Certificate<'_>], signs: Signs) -> Result<Life, Unusable> {
    let mut life = Life {
        not_before: Timestamp::MIN,
        not_after: Timestamp::MAX,
    };
    for certificate in chain {
        if !is_authority(certificate)? {
            return Err(Unusable::NotAnAuthority);
        }
        let validity = certificate.validity();
        let begins = Timestamp::from_second(validity.not_before.timestamp());
        life.not_before = life.not_before.max(begins.map_err(|error| unreadable(&error))?);
        // RFC 5280 has 99991231235959Z where there is no end, which is later than any timestamp.
        let ends = Timestamp::from_second(validity.not_after.timestamp());
        life.not_after = life.not_after.min(ends.unwrap_or(Timestamp::MAX));
    }
    match chain.windows(2).all(|pair| signs(&pair[1], &pair[0])) {
        true => Ok(life),
        false => Err(Unusable::Chain),
    }
}

fn is_authority(certificate: &X509Certificate<'_>) -> Result<bool, Unusable> {
    let usage = certificate.key_usage().map_err(|error| unreadable(&error))?;
    Ok(certificate.is_ca() && usage.is_none_or(|usage| usage.value.key_cert_sign()))
}

/// Whether one certificate is that of the authority which has signed the other: by its signature. A renewed authority may have the name
/// of the former one and another key. Anyone can make an authority of any name, and choose a key for it by which a signature cannot be
/// verified here: a signature of that kind proves nothing.
pub(super) fn has_signed(above: &X509Certificate<'_>, certificate: &X509Certificate<'_>) -> bool {
    certificate.issuer() == above.subject() && verify(above, certificate).is_ok()
}

/// The same as far as is known here: where the algorithm of the signature is not, the names have to do. For files that an operator has
/// put in place, and where not knowing has to hold something up.
pub(super) fn may_have_signed(above: &X509Certificate<'_>, certificate: &X509Certificate<'_>) -> bool {
    let verified = verify(above, certificate);
    let is_signed = matches!(verified, Ok(()) | Err(X509Error::SignatureUnsupportedAlgorithm));
    certificate.issuer() == above.subject() && is_signed
}

fn verify(above: &X509Certificate<'_>, certificate: &X509Certificate<'_>) -> Result<(), X509Error> {
    certificate.verify_signature(Some(above.public_key()))
}

/// Whether the authority above has signed a certificate, both in DER: by the signature. One that cannot be read has signed nothing, and
/// is signed by nothing.
pub fn is_signed_by(certificate: &[u8], above: &[u8]) -> bool {
    holds_for(above, certificate, has_signed)
}

/// Whether this holds for two certificates in DER that can be read.
pub(super) fn holds_for(above: &[u8], certificate: &[u8], signs: Signs) -> bool {
    let above = X509Certificate::from_der(above);
    let certificate = X509Certificate::from_der(certificate);
    matches!((above, certificate), (Ok((_, above)), Ok((_, one))) if signs(&above, &one))
}

pub(super) fn unreadable(error: &dyn Display) -> Unusable {
    Unusable::Certificate(error.to_string())
}

#[cfg(test)]
pub(super) mod tests {
    use jiff::SignedDuration;
    use rcgen::{
        BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, KeyPair, PKCS_ED25519,
    };

    use super::super::authority::AUTHORITY_LIFE;
    use super::super::validity::at;
    use super::super::{Authority, AuthorityCertificate, AuthorityKind};
    use super::*;

    fn now() -> Timestamp {
        "2026-03-01T12:00:00Z".parse().unwrap()
    }

    /// An authority in the middle, that a root has signed.
    struct Intermediate {
        root: Authority,
        key: KeyPair,
        params: CertificateParams,
    }

    impl Intermediate {
        fn new() -> Self {
            let mut params = CertificateParams::default();
            params.distinguished_name = DistinguishedName::new();
            params.distinguished_name.push(DnType::CommonName, "intermediate");
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            params.not_before = at(now() - SignedDuration::from_hours(1));
            params.not_after = at(now() + AUTHORITY_LIFE * 2);
            Self {
                root: Authority::create(AuthorityKind::Etcd, now()).unwrap().0,
                key: KeyPair::generate().unwrap(),
                params,
            }
        }

        fn own(&self) -> String {
            let signed = self.params.signed_by(&self.key, &self.root.issuer);
            signed.unwrap().pem()
        }

        fn read(&self, certificates: &str) -> Result<Authority, Unusable> {
            let key = self.key.serialize_pem();
            Authority::read(certificates.as_bytes(), key.as_bytes(), now())
        }
    }

    #[test]
    fn those_above_an_authority_follow_it_in_order_and_it_ends_with_the_first_of_them() {
        let made = Intermediate::new();
        let (own, above) = (made.own(), made.root.certificates_pem());
        let chain = made.read(&format!("{own}{above}")).unwrap();
        assert_eq!(
            chain.not_after(),
            made.root.not_after(),
            "the sooner end of the two"
        );
        let own_begin = now() - SignedDuration::from_hours(1);
        assert_eq!(chain.not_before(), made.root.not_before().max(own_begin));
        assert_eq!(chain.subject(), "CN=intermediate");
        assert_eq!(made.read(&own).unwrap().not_after(), now() + AUTHORITY_LIFE * 2);
        for wrong in [format!("{own}{own}"), format!("{above}{own}")] {
            assert_eq!(made.read(&wrong).unwrap_err(), Unusable::Chain);
        }
    }

    #[test]
    fn a_renewed_root_of_the_same_name_with_another_key_is_not_above_what_the_former_one_has_signed() {
        let made = Intermediate::new();
        let (renewed, _) = Authority::create(AuthorityKind::Etcd, now()).unwrap();
        assert_eq!(renewed.subject(), made.root.subject());
        let chain = format!("{}{}", made.own(), renewed.certificates_pem());
        assert_eq!(made.read(&chain).unwrap_err(), Unusable::Chain);
    }

    /// An authority of the same name whose kind of key cannot have made an ECDSA signature: the verifier does not know such a signature,
    /// as it does not know one by P-521.
    pub(crate) fn namesake() -> String {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params
            .distinguished_name
            .push(DnType::CommonName, "quorate etcd authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate_for(&PKCS_ED25519).unwrap();
        params.self_signed(&key).unwrap().pem()
    }

    /// INV-13.
    #[test]
    fn a_signature_that_cannot_be_verified_does_for_an_operators_files_and_proves_nothing_of_others() {
        let made = Intermediate::new();
        let (own, namesake) = (made.own(), namesake());
        let der = |text: &str| pem::parse(text).unwrap().into_contents();
        let (own_der, namesake_der) = (der(&own), der(&namesake));
        let root = made.root.certificate_der();
        assert!(is_signed_by(&own_der, root) && holds_for(root, &own_der, may_have_signed));
        assert!(!is_signed_by(&own_der, &namesake_der));
        assert!(holds_for(&namesake_der, &own_der, may_have_signed));
        let chain = format!("{own}{namesake}");
        made.read(&chain).unwrap();
        let received = |chain: &str| AuthorityCertificate::read_received(chain.as_bytes(), now()).map(drop);
        assert_eq!(received(&chain), Err(Unusable::Chain));
        let genuine = format!("{own}{}", made.root.certificates_pem());
        assert_eq!(received(&genuine), Ok(()));
    }

    #[test]
    fn every_certificate_above_is_that_of_an_authority_and_valid_already() {
        let mut made = Intermediate::new();
        let later = now() + SignedDuration::from_hours(48);
        let (unborn, key) = Authority::create(AuthorityKind::Etcd, later).unwrap();
        let chain = format!("{}{}", made.own(), unborn.certificates_pem());
        assert_eq!(made.read(&chain).unwrap_err(), Unusable::Chain, "another key");
        made.root = unborn;
        let chain = format!("{}{}", made.own(), made.root.certificates_pem());
        let begins = made.root.not_before();
        assert_eq!(made.read(&chain).unwrap_err(), Unusable::NotYetValid(begins));
        // The same name and key, without the right to sign.
        let key = KeyPair::from_pem(&key).unwrap();
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params
            .distinguished_name
            .push(DnType::CommonName, "quorate etcd authority");
        let leaf = params.self_signed(&key).unwrap().pem();
        let chain = format!("{}{leaf}", made.own());
        assert_eq!(made.read(&chain).unwrap_err(), Unusable::NotAnAuthority);
    }
}
