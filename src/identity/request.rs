//! Requests for certificates (PKCS #10 in DER). Of a request the public key is taken and nothing else, whatever else it asks
//! for. Pure.

use rcgen::{
    PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P384_SHA384, PKCS_ED25519, PublicKeyData, SubjectPublicKeyInfo,
};
use x509_parser::prelude::{FromDer, X509CertificationRequest};

/// More than a request with any of the keys that are taken needs.
pub const MOST_BYTES: usize = 8 * 1024;

/// The public key of a request, whose sender has shown that it holds the private one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestedKey {
    /// A SubjectPublicKeyInfo in DER.
    pub(super) der: Vec<u8>,
}

/// Why a request is refused, and will be each time.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadRequest {
    /// It is too long.
    #[error("the request has {0} bytes; at most {MOST_BYTES} are taken")]
    Length(usize),
    /// It is no request.
    #[error("not a certificate request (PKCS #10 in DER)")]
    Form,
    /// Its key is of another kind.
    #[error("its key is of a kind that is not taken: expected ECDSA P-256, ECDSA P-384 or Ed25519")]
    Key,
    /// Its sender has not shown that it holds the key.
    #[error("its signature is not one of its key")]
    Signature,
}

impl RequestedKey {
    /// Reads the key of a request.
    ///
    /// # Errors
    /// The first reason to refuse the request.
    pub fn read(request: &[u8]) -> Result<Self, BadRequest> {
        if request.len() > MOST_BYTES {
            return Err(BadRequest::Length(request.len()));
        }
        let (rest, read) = X509CertificationRequest::from_der(request).map_err(|_| BadRequest::Form)?;
        if !rest.is_empty() {
            return Err(BadRequest::Form);
        }
        let der = read.certification_request_info.subject_pki.raw;
        let key = SubjectPublicKeyInfo::from_der(der).map_err(|_| BadRequest::Key)?;
        let taken = [&PKCS_ECDSA_P256_SHA256, &PKCS_ECDSA_P384_SHA384, &PKCS_ED25519];
        if !taken.contains(&key.algorithm()) {
            return Err(BadRequest::Key);
        }
        read.verify_signature().map_err(|_| BadRequest::Signature)?;
        Ok(Self { der: der.to_vec() })
    }

    /// The key as it is signed.
    pub(super) fn info(&self) -> Result<SubjectPublicKeyInfo, rcgen::Error> {
        SubjectPublicKeyInfo::from_der(&self.der)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use rcgen::{
        BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair, SanType,
        SignatureAlgorithm,
    };

    use super::*;

    /// A request, and its key, that asks for everything that a node must not be given.
    pub fn greedy(algorithm: &'static SignatureAlgorithm) -> (Vec<u8>, KeyPair) {
        let key = KeyPair::generate_for(algorithm).unwrap();
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "another-node");
        params
            .distinguished_name
            .push(DnType::OrganizationalUnitName, "quorate-manager");
        params.subject_alt_names = vec![SanType::DnsName(
            "control.c0ffee.quorate".to_owned().try_into().unwrap(),
        )];
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let request = params.serialize_request(&key).unwrap();
        (request.der().to_vec(), key)
    }

    #[test]
    fn each_kind_of_key_that_is_taken_is_read() {
        for algorithm in [&PKCS_ECDSA_P256_SHA256, &PKCS_ECDSA_P384_SHA384, &PKCS_ED25519] {
            let (request, key) = greedy(algorithm);
            let read = RequestedKey::read(&request).unwrap();
            assert_eq!(read.der, key.subject_public_key_info());
        }
    }

    #[test]
    fn what_is_no_request_or_not_signed_by_its_key_is_refused() {
        let (request, _) = greedy(&PKCS_ECDSA_P256_SHA256);
        let refused = |request: &[u8]| RequestedKey::read(request).unwrap_err();
        assert_eq!(refused(&[]), BadRequest::Form);
        assert_eq!(refused(b"-----BEGIN CERTIFICATE REQUEST-----"), BadRequest::Form);
        assert_eq!(refused(&request[..request.len() - 1]), BadRequest::Form);
        assert_eq!(refused(&[&request[..], &[0]].concat()), BadRequest::Form);
        let long = vec![0; MOST_BYTES + 1];
        assert_eq!(refused(&long), BadRequest::Length(MOST_BYTES + 1));
        // Another subject under the same signature.
        let name = b"another-node";
        let at = request.windows(name.len()).position(|part| part == name).unwrap();
        let mut forged = request.clone();
        forged[at] = b'b';
        assert_eq!(refused(&forged), BadRequest::Signature);
        // The key of another request in a request that was signed with one's own.
        let (other, _) = greedy(&PKCS_ECDSA_P256_SHA256);
        let point = |request: &[u8]| RequestedKey::read(request).unwrap().der;
        let (own, stolen) = (point(&request), point(&other));
        let at = request.windows(own.len()).position(|part| part == own).unwrap();
        let mut forged = request;
        forged[at..at + own.len()].copy_from_slice(&stolen);
        assert_eq!(refused(&forged), BadRequest::Signature);
    }

    #[test]
    fn no_cut_and_no_flipped_byte_of_a_request_panics_or_makes_another_key_of_it() {
        let (request, _) = greedy(&PKCS_ED25519);
        let key = RequestedKey::read(&request).unwrap();
        for at in 0..request.len() {
            assert!(RequestedKey::read(&request[..at]).is_err(), "{at}");
            let mut flipped = request.clone();
            flipped[at] ^= 0x55;
            // The byte that counts the unused bits of the signature is not looked at.
            let read = RequestedKey::read(&flipped);
            assert!(read.is_err() || read == Ok(key.clone()), "{at}");
        }
    }
}
