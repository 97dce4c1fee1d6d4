//! Issuing: what is common to every certificate that an authority signs.

use jiff::{SignedDuration, Timestamp};
use rcgen::{
    CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, KeyPair, KeyUsagePurpose,
    PublicKeyData, SanType, SerialNumber,
};

use super::NotMade;
use super::authority::{Authority, AuthorityDigest};
use super::validity::{BACKDATED, at};

/// What a certificate says of its holder.
#[derive(Clone, Debug)]
pub(super) struct Holder<'a> {
    pub subject: Vec<(DnType, &'a str)>,
    pub usages: Vec<ExtendedKeyUsagePurpose>,
    pub names: Vec<SanType>,
}

/// A certificate.
#[derive(Clone, Debug)]
pub struct Signed {
    /// The certificate and those of the authorities between it and a self-signed one, in PEM.
    pub chain_pem: String,
    /// Until when it is valid: the end of its life, or of the authority, if that is sooner.
    pub not_after: Timestamp,
    /// Its serial number: the bytes of a positive integer, the most significant one first.
    pub serial: Vec<u8>,
    /// The authority that has signed it.
    pub authority: AuthorityDigest,
}

/// A certificate with its key. It has no `Debug`: that would print the key.
#[derive(Clone)]
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
    let Signed {
        chain_pem, not_after, ..
    } = sign(authority, holder, &key, life, now)?;
    Ok(Issued {
        chain_pem,
        key_pem: key.serialize_pem(),
        not_after,
    })
}

/// Signs a public key for this holder.
pub(super) fn sign(
    authority: &Authority,
    holder: Holder<'_>,
    key: &impl PublicKeyData,
    life: SignedDuration,
    now: Timestamp,
) -> Result<Signed, NotMade> {
    let not_after = authority
        .not_after()
        .min(now.saturating_add(life).unwrap_or(Timestamp::MAX));
    // Certificates have whole seconds.
    let not_after = Timestamp::from_second(not_after.as_second()).unwrap_or(not_after);
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    for (part, value) in holder.subject {
        params.distinguished_name.push(part, value);
    }
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = holder.usages;
    params.subject_alt_names = holder.names;
    params.use_authority_key_identifier_extension = true;
    params.not_before = at(now - BACKDATED);
    params.not_after = at(not_after);
    // Random: without a number of its own, a certificate would have that of the last one for the same key.
    let serial = uuid::Uuid::new_v4().as_bytes().to_vec();
    params.serial_number = Some(SerialNumber::from_slice(&serial));
    let mut chain_pem = params.signed_by(key, &authority.issuer)?.pem();
    chain_pem.push_str(authority.intermediates_pem());
    Ok(Signed {
        chain_pem,
        not_after,
        serial,
        authority: authority.digest(),
    })
}
