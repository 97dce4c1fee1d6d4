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

    /// How many voters must be healthy.
    pub fn needed(self) -> usize {
        self.voters / 2 + 1
    }

    /// Whether enough are.
    pub fn holds(self) -> bool {
        self.healthy >= self.needed()
    }
}

/// A change of the voters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The member is gone.
    Remove(MemberId),
    /// The learner votes.
    Promote(MemberId),
    /// The voter gets another address, and if nothing listens there the others may not reach it any more.
    Readdress {
        /// Which.
        member: MemberId,
        /// Whether something listens there.
        listening: bool,
    },
}

impl Change {
    fn apply(self, members: &[Standing]) -> Vec<Standing> {
        // A single voter needs nobody to reach it.
        let alone = Quorum::of(members).voters == 1;
        let members = members.iter().copied();
        match self {
            Self::Remove(gone) => members.filter(|member| member.id != gone).collect(),
            Self::Promote(id) => members
                .map(|member| Standing {
                    learner: member.learner && member.id != id,
                    ..member
                })
                .collect(),
            Self::Readdress {
                member: id,
                listening,
            } => members
                .map(|member| Standing {
                    healthy: member.healthy && (listening || alone || member.id != id),
                    ..member
                })
                .collect(),
        }
    }
}

/// Whether the cluster that `change` leads to has a healthy quorum (INV-5), whatever becomes of the changes `in_doubt`:
/// those that were decided on, and of which nobody knows whether etcd makes them yet. They are counted both ways.
///
/// # Errors
/// The first cluster it may lead to that would have no healthy quorum.
pub fn check(members: &[Standing], change: Change, in_doubt: &[Change]) -> Result<(), Quorum> {
    let mut may_be = vec![members.to_vec()];
    for doubt in in_doubt {
        let made: Vec<_> = may_be.iter().map(|members| doubt.apply(members)).collect();
        may_be.extend(made);
    }
    may_be
        .iter()
        .map(|members| Quorum::of(&change.apply(members)))
        .find(|quorum| !quorum.holds())
        .map_or(Ok(()), Err)
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
        assert_eq!(check(&members, Change::Promote(MemberId(2)), &[]), Ok(()));
        let unhealthy = check(&members, Change::Promote(MemberId(3)), &[]).unwrap_err();
        assert_eq!(unhealthy.to_string(), "1 of 2 voters healthy, 2 needed");
    }

    #[test]
    fn no_voter_is_no_quorum() {
        assert!(!Quorum::of(&[]).holds());
        assert!(!Quorum::without(&[standing(1, false, true)], &[MemberId(1)]).holds());
    }

    #[test]
    fn a_change_that_may_still_come_counts_both_ways() {
        let members = [
            standing(1, false, true),
            standing(2, false, true),
            standing(3, false, true),
            standing(4, false, false),
        ];
        let (first, second) = (Change::Remove(MemberId(1)), Change::Remove(MemberId(2)));
        assert_eq!(check(&members, second, &[]), Ok(()));
        // Without 1 and 2, 3 would be one of two.
        assert!(check(&members, second, &[first]).is_err());
        assert_eq!(check(&members, first, &[first]), Ok(()), "itself is no doubt");
        let learner = [&members[..2], &[standing(5, true, false)]].concat();
        assert_eq!(check(&learner, second, &[]), Ok(()));
        assert!(check(&learner, second, &[Change::Promote(MemberId(5))]).is_err());
    }

    #[test]
    fn a_voter_at_an_address_where_nothing_listens_counts_as_lost_unless_it_is_alone() {
        let to = |id, listening| Change::Readdress {
            member: MemberId(id),
            listening,
        };
        let voters = [
            standing(1, false, true),
            standing(2, false, true),
            standing(3, false, true),
        ];
        assert_eq!(check(&voters, to(3, false), &[]), Ok(()));
        assert_eq!(check(&voters[..2], to(2, true), &[]), Ok(()));
        assert!(check(&voters[..2], to(2, false), &[]).is_err());
        assert_eq!(check(&voters[..1], to(1, false), &[]), Ok(()));
        // A learner that may vote any moment needs to reach the others, and they it.
        let joining = [&voters[..], &[standing(4, true, false)]].concat();
        let doubt = [Change::Promote(MemberId(4))];
        assert!(check(&joining, to(3, false), &doubt).is_err());
        assert_eq!(check(&joining, to(3, true), &doubt), Ok(()));
        let second = [voters[0], standing(4, true, true)];
        assert!(check(&second, to(1, false), &doubt).is_err());
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
