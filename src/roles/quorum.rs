//! Counts voters, and says whether a change leaves a healthy quorum (INV-5). Pure.

use std::fmt;

use crate::etcd::MemberId;
use crate::mutation::{self, Guard};

/// A listed member, as a quorum counts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vote {
    /// etcd's id of the member.
    pub id: MemberId,
    /// Learners do not vote.
    pub learner: bool,
    /// For a voter: a linearizable read through this very member was answered in time. For a learner: its status and a
    /// serializable read were.
    pub healthy: bool,
}

/// The voters of a cluster, as it is or as it would be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quorum {
    /// The number of voters.
    pub voters: usize,
    /// How many of them are healthy.
    pub healthy: usize,
}

impl Quorum {
    /// Counts the voters among these members.
    pub fn of<'a>(members: impl IntoIterator<Item = &'a Vote>) -> Self {
        let mut counted = Self {
            voters: 0,
            healthy: 0,
        };
        for member in members.into_iter().filter(|member| !member.learner) {
            counted.voters += 1;
            counted.healthy += usize::from(member.healthy);
        }
        counted
    }

    /// Counts the voters among these members without those that are `gone`.
    pub fn without<'a>(members: impl IntoIterator<Item = &'a Vote>, gone: &[MemberId]) -> Self {
        Self::of(members.into_iter().filter(|member| !gone.contains(&member.id)))
    }

    /// How many voters must be healthy.
    pub fn needed(self) -> usize {
        self.voters / 2 + 1
    }

    /// Says that this quorum, which does not hold, follows from a change: `without member 1f`.
    pub fn lost(self, change: impl fmt::Display) -> String {
        format!("{change} etcd would have no healthy quorum: {self}")
    }

    /// Whether enough voters are healthy.
    pub fn holds(self) -> bool {
        self.healthy >= self.needed()
    }
}

/// A change of the voters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The member is removed.
    Remove(MemberId),
    /// The learner becomes a voter.
    Promote(MemberId),
    /// The voter gets other peer URLs. Unless it was found there, the other members may not reach it.
    Readdress {
        /// The voter.
        member: MemberId,
        /// Whether that very member was found at the URLs.
        found: bool,
    },
}

impl Change {
    fn apply(self, members: &[Vote]) -> Vec<Vote> {
        // A single voter need not be reached by others.
        let alone = Quorum::of(members).voters == 1;
        let members = members.iter().copied();
        match self {
            Self::Remove(gone) => members.filter(|member| member.id != gone).collect(),
            Self::Promote(id) => members
                .map(|member| Vote {
                    learner: member.learner && member.id != id,
                    ..member
                })
                .collect(),
            Self::Readdress { member: id, found } => members
                .map(|member| Vote {
                    healthy: member.healthy && (found || alone || member.id != id),
                    ..member
                })
                .collect(),
        }
    }
}

/// Whether the cluster has a healthy quorum after `change` (INV-5), for every outcome of the changes `in_doubt`: those
/// that are decided, and that etcd may make at any moment or may have made. Each of them is counted both ways.
///
/// # Errors
/// The first cluster without a healthy quorum that the change may lead to.
pub fn check(members: &[Vote], change: Change, in_doubt: &[Change]) -> Result<(), Quorum> {
    if mutation::without(Guard::Quorum) {
        return Ok(());
    }
    let mut outcomes = vec![members.to_vec()];
    // Moves come last: whether a voter needs to be reached depends on the voters that there are in the end.
    for moves in [false, true] {
        let is_now = |change: &&Change| matches!(change, Change::Readdress { .. }) == moves;
        for doubt in in_doubt.iter().filter(is_now) {
            let made: Vec<_> = outcomes.iter().map(|members| doubt.apply(members)).collect();
            outcomes.extend(made);
        }
        if is_now(&&change) {
            outcomes = outcomes.iter().map(|members| change.apply(members)).collect();
        }
    }
    let mut quorums = outcomes.iter().map(Quorum::of);
    quorums.find(|quorum| !quorum.holds()).map_or(Ok(()), Err)
}

impl fmt::Display for Quorum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { voters, healthy } = self;
        let plural = if *voters == 1 { "" } else { "s" };
        write!(
            f,
            "{healthy} of {voters} voter{plural} healthy, {} needed",
            self.needed()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vote(id: u64, learner: bool, healthy: bool) -> Vote {
        Vote {
            id: MemberId(id),
            learner,
            healthy,
        }
    }

    #[test]
    fn a_learner_counts_only_once_it_votes() {
        let members = [vote(1, false, true), vote(2, true, true), vote(3, true, false)];
        assert_eq!(Quorum::of(&members).to_string(), "1 of 1 voter healthy, 1 needed");
        assert_eq!(check(&members, Change::Promote(MemberId(2)), &[]), Ok(()));
        let unhealthy = check(&members, Change::Promote(MemberId(3)), &[]).unwrap_err();
        assert_eq!(unhealthy.to_string(), "1 of 2 voters healthy, 2 needed");
    }

    #[test]
    fn a_cluster_without_voters_has_no_quorum() {
        assert!(!Quorum::of(&[]).holds());
        assert!(!Quorum::without(&[vote(1, false, true)], &[MemberId(1)]).holds());
    }

    #[test]
    fn a_change_in_doubt_counts_both_ways() {
        let members = [
            vote(1, false, true),
            vote(2, false, true),
            vote(3, false, true),
            vote(4, false, false),
        ];
        let (first, second) = (Change::Remove(MemberId(1)), Change::Remove(MemberId(2)));
        assert_eq!(check(&members, second, &[]), Ok(()));
        // Without 1 and 2, 3 would be one of two voters.
        assert!(check(&members, second, &[first]).is_err());
        assert_eq!(
            check(&members, first, &[first]),
            Ok(()),
            "a change in doubt does not count against itself"
        );
        let learner = [&members[..2], &[vote(5, true, false)]].concat();
        assert_eq!(check(&learner, second, &[]), Ok(()));
        assert!(check(&learner, second, &[Change::Promote(MemberId(5))]).is_err());
    }

    #[test]
    fn a_voter_that_is_not_found_at_its_address_counts_as_lost_unless_it_is_alone() {
        let to = |id, found| Change::Readdress {
            member: MemberId(id),
            found,
        };
        let voters = [vote(1, false, true), vote(2, false, true), vote(3, false, true)];
        assert_eq!(check(&voters, to(3, false), &[]), Ok(()));
        assert_eq!(check(&voters[..2], to(2, true), &[]), Ok(()));
        assert!(check(&voters[..2], to(2, false), &[]).is_err());
        assert_eq!(check(&voters[..1], to(1, false), &[]), Ok(()));
        // A learner that may become a voter at any moment must reach the others, and be reached by them.
        let joining = [&voters[..], &[vote(4, true, false)]].concat();
        let doubt = [Change::Promote(MemberId(4))];
        assert!(check(&joining, to(3, false), &doubt).is_err());
        assert_eq!(check(&joining, to(3, true), &doubt), Ok(()));
        let second = [voters[0], vote(4, true, true)];
        assert!(check(&second, to(1, false), &doubt).is_err());
        let promote = Change::Promote(MemberId(4));
        assert!(check(&second, promote, &[to(1, false)]).is_err());
        assert_eq!(check(&second, promote, &[to(1, true)]), Ok(()));
    }

    #[test]
    fn removing_the_member_that_is_down_is_safe_and_removing_another_is_not() {
        let members = [vote(1, false, true), vote(2, false, true), vote(3, false, false)];
        assert!(Quorum::without(&members, &[MemberId(3)]).holds());
        assert!(!Quorum::without(&members, &[MemberId(2)]).holds());
    }
}
