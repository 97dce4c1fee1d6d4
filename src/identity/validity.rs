//! From when and until when certificates are valid.

use jiff::{SignedDuration, Timestamp};
use time::OffsetDateTime;
use x509_parser::prelude::{FromDer, X509Certificate};

/// How long before its issue a certificate begins to be valid, so that a clock that is behind accepts it.
pub const BACKDATED: SignedDuration = SignedDuration::from_hours(2);

/// The moment, in the type that rcgen takes, to the second.
pub(super) fn at(moment: Timestamp) -> OffsetDateTime {
    OffsetDateTime::from_unix_timestamp(moment.as_second()).unwrap_or(OffsetDateTime::UNIX_EPOCH)
}

/// Whether a certificate (DER) begins to be valid later than now.
pub fn begins_after(certificate: &[u8], now: Timestamp) -> bool {
    X509Certificate::from_der(certificate)
        .is_ok_and(|(_, certificate)| certificate.validity().not_before.timestamp() > now.as_second())
}

/// Whether a certificate (DER) is valid now, as far as its own time goes.
pub fn is_valid_at(certificate: &[u8], now: Timestamp) -> bool {
    X509Certificate::from_der(certificate).is_ok_and(|(_, certificate)| {
        let validity = certificate.validity();
        (validity.not_before.timestamp()..=validity.not_after.timestamp()).contains(&now.as_second())
    })
}
