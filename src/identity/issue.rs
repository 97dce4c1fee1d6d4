//! Issuing: what is common to every certificate that an authority signs.

use jiff::{SignedDuration, Timestamp};
use rcgen::{
    CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, KeyPair, KeyUsagePurpose, SanType,
};

use super::NotMade;
use super::authority::Authority;
use super::validity::{BACKDATED, at};

/// What a certificate says of its holder.
#[derive(Clone, Debug)]
pub(super) struct Holder<'a> {
    pub common_name: &'a str,
    pub usages: Vec<ExtendedKeyUsagePurpose>,
    pub names: Vec<SanType>,
}

/// A certificate with its key.
#[derive(Clone, Debug)]
pub struct Issued {
    /// The certificate and those of the authorities between it and a self-signed one, in PEM.
    pub chain_pem: String,
    /// The key, in PEM (PKCS #8).
    pub key_pem: String,
    /// Until when it is valid: the end of `life`, or of the authority, if that is sooner.
    pub not_after: Timestamp,
}

/// Makes a key (ECDSA P-256) and signs it for this holder.
pub(super) fn issue(
    authority: &Authority,
    holder: Holder<'_>,
    life: SignedDuration,
    now: Timestamp,
) -> Result<Issued, NotMade> {
    let key = KeyPair::generate()?;
    let not_after = authority
        .not_after()
        .min(now.saturating_add(life).unwrap_or(Timestamp::MAX));
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params
        .distinguished_name
        .push(DnType::CommonName, holder.common_name);
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = holder.usages;
    params.subject_alt_names = holder.names;
    params.use_authority_key_identifier_extension = true;
    params.not_before = at(now - BACKDATED);
    params.not_after = at(not_after);
    let mut chain_pem = params.signed_by(&key, &authority.issuer)?.pem();
    chain_pem.push_str(authority.intermediates_pem());
    Ok(Issued {
        chain_pem,
        key_pem: key.serialize_pem(),
        not_after,
    })
}
