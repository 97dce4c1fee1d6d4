//! What is known of a member's health: what it was asked, when, and what it answered. Pure.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Instant;

use crate::etcd::error::Error;
use crate::etcd::kv::MemberId;

/// What a member was asked, and what it answered.
#[derive(Clone, Debug)]
pub struct Evidence {
    /// The member.
    pub member: MemberId,
    /// Whether it was asked as a learner.
    pub learner: bool,
    /// A read through this very member: linearizable, or serializable for a learner, which serves no other.
    pub read: Inquiry<()>,
    /// Its status, as it reports it.
    pub status: Inquiry<Status>,
}

/// One question to a member.
#[derive(Clone, Debug)]
pub enum Inquiry<T> {
    /// There is no answer and no error, for this reason.
    NotAsked(NotAsked),
    /// The question was answered, or failed.
    Asked {
        /// When it was sent: the answer is no older.
        at: Instant,
        /// The answer.
        answer: Result<T, Error>,
    },
}

/// Why a member has not been asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotAsked {
    /// The question is yet to be sent, or under way.
    NotYet,
    /// Nothing is decided by the answer.
    NotNeeded,
    /// The member is not in etcd's list.
    NotListed,
    /// The removal of the member is decided. A request for the status in the second after it can end the member in a panic.
    Leaving,
    /// A call for its removal was made and may be under way: see [`Etcd::remove_member`](crate::etcd::Etcd::remove_member).
    RemovalBegun,
}

/// Why a member does not count as healthy.
#[derive(Clone, Copy, Debug)]
pub enum Unproven<'e> {
    /// It was not asked.
    NotAsked(NotAsked),
    /// The question that failed, by its error.
    Failed(&'e Error),
}

impl<T> Inquiry<T> {
    /// The answer, if there is one.
    pub fn answer(&self) -> Option<&T> {
        self.result().ok()
    }

    /// The answer.
    ///
    /// # Errors
    /// Why there is none.
    pub fn result(&self) -> Result<&T, Unproven<'_>> {
        match self {
            Self::NotAsked(why) => Err(Unproven::NotAsked(*why)),
            Self::Asked { answer, .. } => answer.as_ref().map_err(Unproven::Failed),
        }
    }
}

impl Evidence {
    /// What is known of a member that has not been asked.
    pub fn not_asked(member: MemberId, learner: bool, why: NotAsked) -> Self {
        Self {
            member,
            learner,
            read: Inquiry::NotAsked(why),
            status: Inquiry::NotAsked(why),
        }
    }

    /// Whether the member counts towards a quorum. A status proves no health of a voter, which also answers it without a
    /// quorum, out of space, and however far behind. A learner must answer both.
    ///
    /// # Errors
    /// Why it does not count.
    pub fn health(&self) -> Result<(), Unproven<'_>> {
        self.read.result()?;
        match self.learner {
            true => self.status.result().map(drop),
            false => Ok(()),
        }
    }

    /// Whether the member counts towards a quorum.
    pub fn is_healthy(&self) -> bool {
        self.health().is_ok()
    }
}

impl fmt::Display for NotAsked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotYet => "it has not answered yet",
            Self::NotNeeded => "it was not asked",
            Self::NotListed => "it is not in etcd's member list",
            Self::Leaving => "it is not asked for its status any more, because its removal is decided",
            Self::RemovalBegun => "its removal was begun, so it gets no requests",
        })
    }
}

impl fmt::Display for Unproven<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotAsked(why) => why.fmt(f),
            Self::Failed(error) => f.write_str(error.message()),
        }
    }
}

/// The status that a member reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// The version of etcd, such as `3.5.28`.
    pub version: String,
    /// The size of its database file, in bytes.
    pub db_size: u64,
    /// The bytes of the file that are in use. A defragmentation frees the rest.
    pub db_in_use: u64,
    /// The member that it follows as the raft leader.
    pub raft_leader: Option<MemberId>,
    /// The raft term, which grows with every election among the members.
    pub raft_term: u64,
    /// The index of the last log entry that it knows to be committed.
    pub committed: u64,
    /// The index of the last log entry that it has applied.
    pub applied: u64,
    /// Whether it reports itself as a learner.
    pub learner: bool,
    /// The alarms of the whole cluster that this member knows.
    pub alarms: Vec<Alarm>,
}

/// An alarm, which etcd raises by itself and a person has to clear (`etcdctl alarm disarm`).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Alarm {
    /// The member that raised it.
    pub member: MemberId,
    /// `NOSPACE` or `CORRUPT`.
    pub kind: String,
}

impl Alarm {
    /// The database of the member is full.
    pub const NOSPACE: &str = "NOSPACE";
    /// The data of the member differs from that of the others.
    pub const CORRUPT: &str = "CORRUPT";

    /// What comes before the replacement of a member with corrupt data. While the alarm is raised, etcd takes no request to
    /// replace it; once it is cleared, nothing but its silence keeps the member from counting again.
    pub const BEFORE_REPLACEMENT: &str =
        "stop its etcd, set its data directory aside, and clear the alarm (etcdctl alarm disarm)";

    /// Whether etcd refuses writes until it is cleared: for want of space those that need some, else all.
    pub fn stops_writes(&self) -> bool {
        [Self::NOSPACE, Self::CORRUPT].contains(&self.kind.as_str())
    }
}

fn statuses<'e>(of: impl IntoIterator<Item = &'e Evidence>) -> impl Iterator<Item = &'e Status> {
    of.into_iter().filter_map(|evidence| evidence.status.answer())
}

/// The raft leader, by the member that has seen the latest election.
pub fn latest_raft_leader<'e>(of: impl IntoIterator<Item = &'e Evidence>) -> Option<MemberId> {
    let following = statuses(of).filter(|status| status.raft_leader.is_some());
    following.max_by_key(|status| status.raft_term)?.raft_leader
}

/// The alarms that are raised, by the status of each voter that has served a read: it had applied what was committed then, alarms
/// and their ends included. The others may go on to say what was so when they were cut off; they are believed only where no
/// such voter gives its status.
///
/// So the word of a corrupt member about itself may be left out where that one alone serves no read. It counts for nothing then
/// either, since it is not healthy; and etcd raises the alarm by consensus, so that those which serve know of it.
pub fn alarms<'e>(of: impl IntoIterator<Item = &'e Evidence>) -> BTreeSet<&'e Alarm> {
    // A learner reads from its own data.
    let is_current = |evidence: &&Evidence| !evidence.learner && evidence.read.answer().is_some();
    let (current, others): (Vec<&Evidence>, Vec<&Evidence>) = of.into_iter().partition(is_current);
    let is_known = current.iter().any(|evidence| evidence.status.answer().is_some());
    let said = if is_known { current } else { others };
    statuses(said).flat_map(|status| &status.alarms).collect()
}

/// The members whose data is corrupt, by their [`alarms`].
pub fn corrupt<'e>(of: impl IntoIterator<Item = &'e Evidence>) -> BTreeSet<MemberId> {
    let alarms = alarms(of).into_iter();
    let corrupt = alarms.filter(|alarm| alarm.kind == Alarm::CORRUPT);
    corrupt.map(|alarm| alarm.member).collect()
}

/// The highest log index that a member knows to be committed: the lag of the others is measured against it.
pub fn most_committed<'e>(of: impl IntoIterator<Item = &'e Evidence>) -> u64 {
    statuses(of).map(|status| status.committed).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::etcd::error::Class;

    fn status(leader: Option<MemberId>, term: u64) -> Status {
        Status {
            version: "3.4.23".to_owned(),
            db_size: 0,
            db_in_use: 0,
            raft_leader: leader,
            raft_term: term,
            committed: term,
            applied: 0,
            learner: false,
            alarms: Vec::new(),
        }
    }

    fn asked<T>(answer: Result<T, Error>) -> Inquiry<T> {
        Inquiry::Asked {
            at: Instant::now(),
            answer,
        }
    }

    fn failed<T>(why: &str) -> Inquiry<T> {
        asked(Err(Error::new(
            "range",
            "Unavailable",
            Class::Unavailable,
            why.to_owned(),
        )))
    }

    #[test]
    fn a_read_proves_a_voter_and_a_learner_must_give_its_status_too() {
        let evidence = |learner, read: &Inquiry<()>, status: &Inquiry<Status>| {
            let evidence = Evidence {
                member: MemberId(1),
                learner,
                read: read.clone(),
                status: status.clone(),
            };
            let health = evidence.health().map_err(|why| why.to_string());
            assert_eq!(health.is_ok(), evidence.is_healthy());
            health.err()
        };
        let (read, answered) = (asked(Ok(())), asked(Ok(status(None, 1))));
        let (no_read, no_status) = (failed("no quorum"), failed("no answer"));
        for learner in [false, true] {
            assert_eq!(evidence(learner, &read, &answered), None);
            assert_eq!(
                evidence(learner, &no_read, &answered).as_deref(),
                Some("no quorum")
            );
            assert_eq!(
                evidence(learner, &no_read, &no_status).as_deref(),
                Some("no quorum")
            );
        }
        assert_eq!(evidence(false, &read, &no_status), None);
        assert_eq!(evidence(true, &read, &no_status).as_deref(), Some("no answer"));
        let unproven = Evidence::not_asked(MemberId(1), false, NotAsked::Leaving);
        let why = unproven.health().unwrap_err().to_string();
        assert!(why.contains("its removal is decided"), "{why}");
    }

    #[test]
    fn the_member_with_the_latest_term_names_the_raft_leader() {
        let evidence = |id, leader, term| Evidence {
            member: MemberId(id),
            learner: false,
            read: asked(Ok(())),
            status: asked(Ok(status(leader, term))),
        };
        let cut_off = evidence(1, Some(MemberId(1)), 2);
        let electing = evidence(2, None, 4);
        let following = evidence(3, Some(MemberId(3)), 3);
        let all = [cut_off, electing, following];
        assert_eq!(latest_raft_leader(&all), Some(MemberId(3)));
        assert_eq!(most_committed(&all), 4);
        assert_eq!(latest_raft_leader(&[]), None);
    }
}
