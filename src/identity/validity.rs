//! From when and until when certificates are valid.

use jiff::{SignedDuration, Timestamp};
use time::OffsetDateTime;

/// How long before its issue a certificate begins to be valid, so that a clock that is behind accepts it.
pub const BACKDATED: SignedDuration = SignedDuration::from_hours(2);

/// The moment, in the type that rcgen takes, to the second.
pub(super) fn at(moment: Timestamp) -> OffsetDateTime {
    OffsetDateTime::from_unix_timestamp(moment.as_second()).unwrap_or(OffsetDateTime::UNIX_EPOCH)
}
