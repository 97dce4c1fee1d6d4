//! Whether etcd was restored from a snapshot since a leader first looked at it. Pure.
//!
//! A restore takes the records of volumes back, also those of what nodes had confirmed: a node may use a volume again since. In one
//! history, each revision of the store takes an entry of raft's log of its own, so that the revision never grows by more than the
//! index of the log. A restore begins a new log, and keeps the revisions: from then on, the revision is further ahead than it ever was.
//! No process has to remember anything for that, and the ids of the cluster may be the same. A member names the index of its log a moment
//! after it has applied an entry, so that its revision may be one ahead of that.

use crate::etcd::{Position, Revision};
use crate::proto::StoreHistory;

/// What a look at etcd shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// No leader has looked before.
    First,
    /// The history that an earlier leader has seen.
    Same,
    /// Another one: etcd was restored.
    Restored,
    /// The member that answered has yet to come to what an earlier leader has seen.
    Lagging,
}

/// Compares what an earlier leader has seen, and wrote at a revision, with where a member is now.
pub fn compare(known: Option<(&StoreHistory, Revision)>, now: Position) -> Seen {
    let Some((known, written)) = known else {
        return Seen::First;
    };
    if now.revision < written {
        return Seen::Lagging;
    }
    let revisions = i128::from(now.revision.0) - i128::from(known.revision);
    let entries = i128::from(now.applied_index) - i128::from(known.applied_index);
    match revisions > entries + 1 {
        true => Seen::Restored,
        false => Seen::Same,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WRITTEN: Revision = Revision(101);

    fn seen(revision: i64, applied_index: u64) -> Seen {
        let known = StoreHistory {
            revision: 100,
            applied_index: 130,
            restored_at: None,
        };
        let now = Position {
            revision: Revision(revision),
            applied_index,
        };
        compare(Some((&known, WRITTEN)), now)
    }

    #[test]
    fn the_revision_never_grows_by_more_than_the_log_unless_etcd_was_restored() {
        assert_eq!(seen(101, 131), Seen::Same, "one write");
        assert_eq!(
            seen(101, 900),
            Seen::Same,
            "leases take entries, and no revisions"
        );
        assert_eq!(seen(5000, 5030), Seen::Same);
        assert_eq!(seen(5000, 5029), Seen::Same, "the last entry is not counted yet");
        // The log of a restored cluster begins with its members.
        assert_eq!(seen(101, 3), Seen::Restored);
        assert_eq!(seen(5000, 3), Seen::Restored);
        assert_eq!(seen(9000, 4003), Seen::Restored, "it was used since");
    }

    #[test]
    fn a_member_that_lags_proves_nothing_and_the_first_look_neither() {
        assert_eq!(seen(100, 3), Seen::Lagging);
        let now = Position {
            revision: Revision(9),
            applied_index: 1,
        };
        assert_eq!(compare(None, now), Seen::First);
    }
}
