//! Counting voters.

use std::fmt;

use crate::etcd::MemberId;

/// A member of etcd's list, and whether it was found healthy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Which.
    pub id: MemberId,
    /// Learners do not vote.
    pub learner: bool,
    /// A voter: answered a linearizable read through itself in time. A learner: gave its status and answered a
    /// serializable read.
    pub healthy: bool,
}

/// The voters of a cluster, as it is or as it would be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quorum {
    /// How many there are.
    pub voters: usize,
    /// How many of them are healthy.
    pub healthy: usize,
}

impl Quorum {
    /// Of this list.
    pub fn of<'a>(members: impl IntoIterator<Item = &'a Standing>) -> Self {
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

    /// Of this list without some of its members.
    pub fn without<'a>(members: impl IntoIterator<Item = &'a Standing>, gone: &[MemberId]) -> Self {
        Self::of(members.into_iter().filter(|member| !gone.contains(&member.id)))
    }

    /// Of this list once one of its learners votes.
    pub fn with_promoted(members: &[Standing], promoted: MemberId) -> Self {
        let voting: Vec<Standing> = members
            .iter()
            .map(|member| Standing {
                learner: member.learner && member.id != promoted,
                ..*member
            })
            .collect();
        Self::of(&voting)
    }

    /// How many voters must be healthy.
    pub fn needed(self) -> usize {
        self.voters / 2 + 1
    }

    /// Whether enough are.
    pub fn holds(self) -> bool {
        self.healthy >= self.needed()
    }
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

    fn standing(id: u64, learner: bool, healthy: bool) -> Standing {
        Standing {
            id: MemberId(id),
            learner,
            healthy,
        }
    }

    #[test]
    fn a_learner_counts_only_once_it_votes() {
        let members = [
            standing(1, false, true),
            standing(2, true, true),
            standing(3, true, false),
        ];
        assert_eq!(Quorum::of(&members).to_string(), "1 of 1 voter healthy, 1 needed");
        assert!(Quorum::with_promoted(&members, MemberId(2)).holds());
        let unhealthy = Quorum::with_promoted(&members, MemberId(3));
        assert_eq!(unhealthy.to_string(), "1 of 2 voters healthy, 2 needed");
        assert!(!unhealthy.holds());
    }

    #[test]
    fn no_voter_is_no_quorum() {
        assert!(!Quorum::of(&[]).holds());
        assert!(!Quorum::without(&[standing(1, false, true)], &[MemberId(1)]).holds());
    }

    #[test]
    fn removing_the_one_that_is_down_is_safe_and_removing_another_is_not() {
        let members = [
            standing(1, false, true),
            standing(2, false, true),
            standing(3, false, false),
        ];
        assert!(Quorum::without(&members, &[MemberId(3)]).holds());
        assert!(!Quorum::without(&members, &[MemberId(2)]).holds());
    }
}
