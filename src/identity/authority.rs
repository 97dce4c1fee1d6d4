//! An authority: a certificate with the key that signs for it.

use std::fmt;
use std::str::FromStr;

use jiff::{SignedDuration, Timestamp};
use pem::Pem;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    PublicKeyData,
};
use x509_parser::prelude::{FromDer, X509Certificate};

use super::NotMade;
use super::digest::{base32, from_base32, sha256};
use super::issuers::{self, Life, Signs, Unusable, unreadable};
use super::validity::{BACKDATED, at};

/// How long a new authority is valid.
pub const AUTHORITY_LIFE: SignedDuration = SignedDuration::from_hours(10 * 365 * 24);

/// The life that an authority must have left to sign anything.
pub const LEAST_LEFT: SignedDuration = SignedDuration::from_hours(24);

/// Which of the two authorities of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AuthorityKind {
    /// Signs for agents and the control port.
    Node,
    /// Signs for etcd and its clients.
    Etcd,
}

impl AuthorityKind {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Node, Self::Etcd];

    /// The file of its certificate, followed by those of the authorities above it (PEM).
    pub fn certificate_file(self) -> &'static str {
        match self {
            Self::Node => "node-ca.crt",
            Self::Etcd => "etcd-ca.crt",
        }
    }

    /// The file of a new authority's certificate as the former one has signed it (PEM).
    pub fn cross_file(self) -> &'static str {
        match self {
            Self::Node => "node-ca.cross.crt",
            Self::Etcd => "etcd-ca.cross.crt",
        }
    }

    /// The file of its key (PEM, PKCS #8).
    pub fn key_file(self) -> &'static str {
        match self {
            Self::Node => "node-ca.key",
            Self::Etcd => "etcd-ca.key",
        }
    }

    /// What it signs for: `node`, `etcd`.
    pub fn word(self) -> &'static str {
        match self {
            Self::Node => "node",
            Self::Etcd => "etcd",
        }
    }

    fn subject(self) -> &'static str {
        match self {
            Self::Node => "quorate node authority",
            Self::Etcd => "quorate etcd authority",
        }
    }
}

/// SHA-256 of the certificate of an authority (DER): what a join token names. Prints in base32 (RFC 4648, lower case, no
/// padding).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AuthorityDigest(pub [u8; 32]);

impl AuthorityDigest {
    /// The digest of a certificate (DER).
    pub fn of(certificate: &[u8]) -> Self {
        Self(sha256(certificate))
    }
}

impl fmt::Display for AuthorityDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&base32(&self.0))
    }
}

/// A text is not the digest of an authority.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not the digest of an authority: expected 52 letters and digits (a-z, 2-7)")]
pub struct BadDigest;

impl FromStr for AuthorityDigest {
    type Err = BadDigest;

    fn from_str(text: &str) -> Result<Self, BadDigest> {
        from_base32(text).map(Self).ok_or(BadDigest)
    }
}

/// The certificate of an authority, without the key: all of it is public.
#[derive(Debug)]
pub struct AuthorityCertificate {
    own: Pem,
    public_key: Vec<u8>,
    certificates_pem: String,
    intermediates_pem: String,
    digest: AuthorityDigest,
    not_before: Timestamp,
    not_after: Timestamp,
    subject: String,
}

impl AuthorityCertificate {
    /// Reads it from PEM, followed by those above it, from a file that an operator has put in place: where the algorithm of a signature
    /// is not known here, the names say which authority is above which.
    ///
    /// # Errors
    /// The first reason why nothing can be signed with it, whatever its key.
    pub fn read(certificates: &[u8], now: Timestamp) -> Result<Self, Unusable> {
        Self::read_by(certificates, issuers::may_have_signed, LEAST_LEFT, now)
    }

    /// The same from any other source: each certificate above has to have signed the one before it (INV-13).
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn read_received(certificates: &[u8], now: Timestamp) -> Result<Self, Unusable> {
        Self::read_by(certificates, issuers::has_signed, LEAST_LEFT, now)
    }

    fn read_by(
        certificates: &[u8],
        signs: Signs,
        least_left: SignedDuration,
        now: Timestamp,
    ) -> Result<Self, Unusable> {
        let mut blocks = pem::parse_many(certificates)
            // The error may quote a line of the file, which may hold a key.
            .map_err(|_| Unusable::Certificate("it is not in PEM".to_owned()))?;
        if blocks.iter().any(|block| block.tag().ends_with("PRIVATE KEY")) {
            return Err(Unusable::KeyInside);
        }
        blocks.retain(|block| block.tag() == "CERTIFICATE");
        let parsed = blocks
            .iter()
            .map(|block| X509Certificate::from_der(block.contents()));
        let parsed: Result<Vec<_>, _> = parsed
            .map(|read| read.map(|(_, certificate)| certificate))
            .collect();
        let parsed = parsed.map_err(|error| unreadable(&error))?;
        let (Some(own), Some(certificate)) = (blocks.first(), parsed.first()) else {
            return Err(Unusable::NoCertificate);
        };
        let Life {
            not_before,
            not_after,
        } = issuers::judge(&parsed, signs)?;
        if now < not_before {
            return Err(Unusable::NotYetValid(not_before));
        }
        if not_after.duration_since(now) < least_left {
            return Err(Unusable::EndsSoon(not_after));
        }
        Ok(Self {
            public_key: certificate.public_key().subject_public_key.as_ref().to_vec(),
            certificates_pem: blocks.iter().map(pem::encode).collect(),
            intermediates_pem: blocks
                .iter()
                .filter(|block| !is_self_signed(block.contents()))
                .map(pem::encode)
                .collect(),
            digest: AuthorityDigest::of(own.contents()),
            not_before,
            not_after,
            subject: certificate.subject().to_string(),
            own: own.clone(),
        })
    }

    /// What a join token names.
    pub fn digest(&self) -> AuthorityDigest {
        self.digest
    }

    /// The certificate and those above it, in PEM.
    pub fn certificates_pem(&self) -> &str {
        &self.certificates_pem
    }

    /// Whether the other one is a certificate of the same key.
    pub(super) fn has_same_key(&self, other: &Self) -> bool {
        self.public_key == other.public_key
    }

    /// Whether it has signed this certificate (DER): by the signature, which has to be of an algorithm that is known here.
    pub fn has_signed(&self, certificate: &[u8]) -> bool {
        issuers::is_signed_by(certificate, self.own.contents())
    }

    /// The same as far as is known here: where the algorithm of the signature is not, the names have to do.
    pub(super) fn may_have_signed(&self, certificate: &[u8]) -> bool {
        issuers::holds_for(self.own.contents(), certificate, issuers::may_have_signed)
    }

    /// The same for the first certificate of a text in PEM, which may hold a key as well.
    pub fn has_signed_first_of(&self, text: &str) -> bool {
        let blocks = pem::parse_many(text).unwrap_or_default();
        let own = blocks.iter().find(|block| block.tag() == "CERTIFICATE");
        own.is_some_and(|own| self.has_signed(own.contents()))
    }
}

/// An authority that can sign.
pub struct Authority {
    pub(super) issuer: Issuer<'static, KeyPair>,
    certificate: AuthorityCertificate,
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authority")
            .field("subject", &self.certificate.subject)
            .field("not_after", &self.certificate.not_after)
            .finish_non_exhaustive()
    }
}

impl Authority {
    /// Makes a new authority (ECDSA P-256, self-signed) and returns it with its key (PEM, PKCS #8).
    ///
    /// # Errors
    /// If the machine's source of random bits fails.
    pub fn create(kind: AuthorityKind, now: Timestamp) -> Result<(Self, String), NotMade> {
        let params = params(kind.subject(), now);
        let key = KeyPair::generate()?;
        let certificate = params.self_signed(&key)?.pem();
        let key = key.serialize_pem();
        let authority = Self::read(certificate.as_bytes(), key.as_bytes(), now)
            .map_err(|_| rcgen::Error::CouldNotParseCertificate)?;
        Ok((authority, key))
    }

    /// Makes the authority that takes the place of another one. Returns it with its key, and its certificate as the former one has signed
    /// it (PEM): with that among the certificates above a leaf, the leaf leads to either. The name is one of its own, since two
    /// authorities of one name are hard to tell apart.
    ///
    /// # Errors
    /// If the machine's source of random bits fails.
    pub fn create_after(
        kind: AuthorityKind,
        former: &Self,
        now: Timestamp,
    ) -> Result<(Self, String, String), NotMade> {
        let key = KeyPair::generate()?;
        let mark = base32(&sha256(key.der_bytes()));
        let params = params(&format!("{} {}", kind.subject(), &mark[..8]), now);
        let certificate = params.self_signed(&key)?.pem();
        let cross = params.signed_by(&key, &former.issuer)?.pem();
        let key = key.serialize_pem();
        let authority = Self::read(certificate.as_bytes(), key.as_bytes(), now)
            .map_err(|_| rcgen::Error::CouldNotParseCertificate)?;
        Ok((authority, key, cross))
    }

    /// The same authority, whose leaves bring these certificates along as well (PEM): its own, signed by a former one, and those above that.
    #[must_use]
    pub fn crossed(mut self, cross: &str) -> Self {
        self.certificate.intermediates_pem.push_str(cross);
        self
    }

    /// Whether its leaves lead to this authority as well: that one has certified its key, and the certificate goes along.
    pub fn leads_to(&self, former: &AuthorityCertificate) -> bool {
        let above = pem::parse_many(self.intermediates_pem()).unwrap_or_default();
        above.iter().any(|block| {
            let parsed = X509Certificate::from_der(block.contents());
            let is_own = parsed.is_ok_and(|(_, certificate)| {
                certificate.public_key().subject_public_key.as_ref() == self.certificate.public_key
            });
            is_own && former.has_signed(block.contents())
        })
    }

    /// Reads an authority from the PEM of its certificate, followed by those above it, and of its key.
    ///
    /// # Errors
    /// The first reason why it cannot sign.
    pub fn read(certificates: &[u8], key: &[u8], now: Timestamp) -> Result<Self, Unusable> {
        Self::with_key(AuthorityCertificate::read(certificates, now)?, key)
    }

    /// The same of one that may be in its last hours. It is to sign nothing that is meant to last, and what it has signed counts still.
    ///
    /// # Errors
    /// As [`read`](Self::read), but for its end: [`Unusable::EndsSoon`] if that is over.
    pub fn read_ending(certificates: &[u8], key: &[u8], now: Timestamp) -> Result<Self, Unusable> {
        let signs = issuers::may_have_signed;
        let certificate = AuthorityCertificate::read_by(certificates, signs, SignedDuration::ZERO, now)?;
        Self::with_key(certificate, key)
    }

    fn with_key(certificate: AuthorityCertificate, key: &[u8]) -> Result<Self, Unusable> {
        let key = str::from_utf8(key).map_err(|_| Unusable::Key)?;
        let key = KeyPair::from_pem(key).map_err(|_| Unusable::Key)?;
        if key.der_bytes() != certificate.public_key {
            return Err(Unusable::OtherKey);
        }
        let own = pem::encode(&certificate.own);
        let issuer = Issuer::from_ca_cert_pem(&own, key).map_err(|error| unreadable(&error))?;
        Ok(Self { issuer, certificate })
    }

    /// What those who trust it read: its certificate and those above it, in PEM.
    pub fn certificates_pem(&self) -> &str {
        &self.certificate.certificates_pem
    }

    /// The certificates that a leaf brings along: those of the authorities between the leaf and a self-signed one, which a peer
    /// must have already. In PEM.
    pub(super) fn intermediates_pem(&self) -> &str {
        &self.certificate.intermediates_pem
    }

    /// Its own certificate, in DER.
    pub fn certificate_der(&self) -> &[u8] {
        self.certificate.own.contents()
    }

    /// Its certificate, without the key.
    pub fn certificate(&self) -> &AuthorityCertificate {
        &self.certificate
    }

    /// Its subject, as OpenSSL writes it: `CN=quorate node authority`.
    pub fn subject(&self) -> &str {
        &self.certificate.subject
    }

    /// From when it is valid.
    pub fn not_before(&self) -> Timestamp {
        self.certificate.not_before
    }

    /// Until when it is valid, and those above it are.
    pub fn not_after(&self) -> Timestamp {
        self.certificate.not_after
    }

    /// What a join token names.
    pub fn digest(&self) -> AuthorityDigest {
        self.certificate.digest()
    }
}

/// What the certificate of an authority of this name says.
fn params(subject: &str, now: Timestamp) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, subject);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.not_before = at(now - BACKDATED);
    params.not_after = at(now + AUTHORITY_LIFE);
    params
}

fn is_self_signed(certificate: &[u8]) -> bool {
    X509Certificate::from_der(certificate)
        .is_ok_and(|(_, certificate)| certificate.subject() == certificate.issuer())
}

#[cfg(test)]
mod tests;
