//! When the certificates of a file end, whatever they are for. Pure.

use jiff::Timestamp;
use x509_parser::prelude::{FromDer, X509Certificate};

/// A certificate of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateEnd {
    /// Whom it is for, such as `CN=controller`.
    pub subject: String,
    /// Until when it is valid.
    pub not_after: Timestamp,
}

/// The certificates of a text in PEM, in its order. What is no certificate, or cannot be read, is left out.
pub fn of_pem(text: &[u8]) -> Vec<CertificateEnd> {
    let blocks = pem::parse_many(text).unwrap_or_default();
    let certificates = blocks.iter().filter(|block| block.tag() == "CERTIFICATE");
    let end = |block: &pem::Pem| {
        let (_, certificate) = X509Certificate::from_der(block.contents()).ok()?;
        let not_after = certificate.validity().not_after.timestamp();
        Some(CertificateEnd {
            subject: certificate.subject().to_string(),
            // RFC 5280 has 99991231235959Z where there is no end, which is later than any timestamp.
            not_after: Timestamp::from_second(not_after).unwrap_or(Timestamp::MAX),
        })
    };
    certificates.filter_map(end).collect()
}

#[cfg(test)]
mod tests {
    use super::super::{Authority, AuthorityKind};
    use super::*;

    #[test]
    fn each_certificate_of_a_file_is_read_with_its_end() {
        let now = "2026-03-01T12:00:00Z".parse().unwrap();
        let (authority, key) = Authority::create(AuthorityKind::Etcd, now).unwrap();
        let file = format!("{key}{}", authority.certificates_pem());
        let read = of_pem(file.as_bytes());
        assert_eq!(read.len(), 1, "{read:?}");
        assert_eq!(read[0].subject, authority.subject());
        assert_eq!(read[0].not_after, authority.not_after());
        assert!(of_pem(b"nothing").is_empty());
    }
}
