//! Member records and joins, as stored in etcd. Their names are in the keys alone.

use super::{Malformed, message};
use crate::etcd::MemberId;
use crate::proto::join::Progress;
use crate::proto::{Join, Member};

/// Reads a member record.
///
/// # Errors
/// [`Malformed`]; the member then counts as one without a record, and is not touched (INV-8).
pub fn decode_member(value: &[u8]) -> Result<Member, Malformed> {
    message("Member", value)
}

/// Reads a join.
///
/// # Errors
/// [`Malformed`]
pub fn decode_join(value: &[u8]) -> Result<Join, Malformed> {
    message("Join", value)
}

/// The member of a join, once it is known.
pub fn member_of(join: &Join) -> Option<MemberId> {
    (join.member_id != 0).then_some(MemberId(join.member_id))
}

/// Whether the leader's part of the join answers its present request.
pub fn is_answered(join: &Join) -> bool {
    join.request
        .as_ref()
        .is_some_and(|request| !request.id.is_empty() && request.id == join.answers)
}

/// Whether the present request has ended: the leader does nothing more for it.
pub fn is_ended(join: &Join) -> bool {
    let end = matches!(
        join.progress(),
        Progress::Voter | Progress::Refused | Progress::Removed
    );
    end && is_answered(join)
}
