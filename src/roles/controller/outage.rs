//! What the leader stores and reports of a time without a quorum, once that is over: nothing can be written before. Pure.

use std::time::Duration;

use jiff::{Timestamp, Unit};

use crate::etcd::Outage;
use crate::proto::{Condition, Member};
use crate::roles::index::Index;
use crate::roles::reason::QUORUM_LOST;
use crate::store::object::{condition, time};

/// The reason of the stored condition, and of the Event.
pub const REASON: &str = "QuorumReturned";

/// How long an outage is reported after its end.
pub const NEWS: Duration = Duration::from_secs(300);

/// The outage in words.
pub fn words(outage: &Outage) -> String {
    let second = |at| {
        let at = Timestamp::try_from(at).ok()?;
        at.round(Unit::Second).ok()
    };
    let word = |at| second(at).map_or_else(|| "an unknown time".to_owned(), |at: Timestamp| at.to_string());
    format!(
        "etcd had no quorum from {} to {}: {}",
        word(outage.since),
        word(outage.until),
        outage.seen
    )
}

/// Whether the conditions of a record tell of this outage, or of a later one. Another replica may have seen it as well, and
/// by its own clock; nothing but a report depends on it.
fn is_stored(conditions: &[Condition], outage: &Outage) -> bool {
    let stored = condition::find(conditions, QUORUM_LOST);
    let at = stored.and_then(|stored| time::from_proto(stored.last_transition_time.as_ref()));
    let since = Timestamp::try_from(outage.since).ok();
    at.zip(since).is_some_and(|(at, since)| at >= since)
}

/// Whether an earlier leader has reported this outage.
pub fn is_reported(index: &Index, outage: &Outage) -> bool {
    index
        .records()
        .any(|(_, record, _)| is_stored(&record.conditions, outage))
}

/// Stores the outage in the conditions of a record, unless the member came later. Returns whether anything changed.
pub fn store(member: &mut Member, outage: &Outage) -> bool {
    let Ok(until) = Timestamp::try_from(outage.until) else {
        return false;
    };
    let joined = time::from_proto(member.joined_at.as_ref());
    let is_new = joined.is_none_or(|joined| joined < until) && !is_stored(&member.conditions, outage);
    if is_new {
        condition::set_false(
            &mut member.conditions,
            QUORUM_LOST,
            (REASON, &words(outage)),
            until,
        );
    }
    is_new
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;

    fn outage(since: u64, until: u64) -> Outage {
        let at = |second| UNIX_EPOCH + Duration::from_secs(1_772_366_400 + second);
        Outage {
            since: at(since),
            until: at(until),
            seen: "of 3 voters 1 answered this replica, and 2 are needed".to_owned(),
        }
    }

    #[test]
    fn an_outage_is_stored_once_and_a_later_one_takes_its_place() {
        let mut member = Member::default();
        assert!(store(&mut member, &outage(0, 60)));
        let stored = condition::find(&member.conditions, QUORUM_LOST).unwrap();
        assert_eq!(
            (condition::status_word(stored), &*stored.reason),
            ("False", REASON)
        );
        assert_eq!(
            stored.message,
            "etcd had no quorum from 2026-03-01T12:00:00Z to 2026-03-01T12:01:00Z: of 3 voters 1 answered this replica, and 2 \
             are needed"
        );
        assert!(!store(&mut member, &outage(0, 60)));
        assert!(
            !store(&mut member, &outage(5, 58)),
            "another replica saw the same one"
        );
        assert!(store(&mut member, &outage(100, 130)));
        assert_eq!(member.conditions.len(), 1);
    }

    #[test]
    fn an_outage_from_before_a_member_came_is_not_stored_in_its_record() {
        let joined = Timestamp::try_from(outage(0, 90).until).unwrap();
        let mut member = Member {
            joined_at: Some(time::to_proto(joined)),
            ..Member::default()
        };
        assert!(!store(&mut member, &outage(0, 60)));
        assert!(store(&mut member, &outage(60, 120)), "it came meanwhile");
    }
}
