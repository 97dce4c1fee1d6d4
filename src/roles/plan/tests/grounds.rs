//! Removals that are decided, while it cannot be seen whether they are still asked for.

use super::*;
use crate::etcd::members::{Evidence, NotAsked};

const M2: MemberId = MemberId(2);

/// A join of this member's node that replaces the member, as `quorate replace` asks for it.
fn replacing(member: MemberId) -> PendingJoin {
    let mut join = new_join();
    join.node = format!("n{}", member.0);
    let request = join.join.request.as_mut().unwrap();
    (request.node_uid, request.replaces) = (format!("u{}", member.0), member.0);
    join
}

/// What is in the way of the removal. At most the join is written meanwhile.
fn obstacle(membership: &Membership) -> Reason {
    let plan = next(membership);
    assert!(matches!(plan.step, None | Some(Step::Note { .. })), "{plan:?}");
    plan.blocked[0].reason
}

/// INV-12
#[test]
fn a_replacement_that_is_decided_waits_while_its_node_cannot_be_read() {
    let of = |member: Member| {
        let mut membership = surveyed(vec![voter(1), member.leaving(Cause::DataLost).quiet(), voter(3)]);
        membership.joins.push(replacing(M2));
        membership
    };
    let unreadable = [
        voter(2).node_missing(),
        voter(2).owned_by(Owner::Unknown),
        voter(2).desiring(Role::Unspecified),
    ];
    for member in unreadable {
        assert_eq!(obstacle(&of(member.clone())), Reason::NodeMissing);
        assert_eq!(obstacle(&of(member.down())), Reason::NodeMissing);
    }
    for member in [voter(2).nodeless(), voter(2).demoted()] {
        assert!(matches!(step(&of(member)), Some(Step::Remove { member: M2, .. })));
    }
    assert_eq!(step(&of(voter(2))), Some(Step::Withdraw(M2)));
}

/// INV-5: a member that gets no requests may have come back with its data.
#[test]
fn a_member_that_is_replaced_is_removed_again_only_once_it_was_asked() {
    let excluded = || {
        let mut member = voter(2).leaving(Cause::DataLost);
        member.evidence = Evidence::not_asked(M2, false, NotAsked::RemovalBegun);
        member
    };
    let of = |member: Member, forced: bool| {
        let mut membership = surveyed(vec![voter(1), member, voter(3)]);
        let mut join = replacing(M2);
        join.join.request.as_mut().unwrap().forced = forced;
        membership.joins.push(join);
        membership
    };
    assert_eq!(obstacle(&of(excluded(), false)), Reason::Pending);
    assert!(matches!(
        step(&of(excluded(), true)),
        Some(Step::Remove { member: M2, .. })
    ));
    let mut corrupt = voter(2).leaving(Cause::DataLost);
    corrupt.corrupt = true;
    assert!(matches!(
        step(&of(corrupt, false)),
        Some(Step::Remove { member: M2, .. })
    ));
    let down = voter(2).leaving(Cause::DataLost).down();
    assert!(matches!(
        step(&of(down, false)),
        Some(Step::Remove { member: M2, .. })
    ));
    // Without the request as well, while a call may be under way.
    let ended = surveyed(vec![voter(1), excluded(), voter(3)]);
    assert_eq!(reasons(&ended), [Reason::Pending]);
}

/// The one place that etcd has for learners is given to others in time.
#[test]
fn a_learner_whose_removal_is_decided_goes_once_it_is_late_although_its_node_cannot_be_read() {
    let of = |member: Member| surveyed(vec![voter(1), member.learner().unstarted().idle(600).quiet()]);
    for cause in [Cause::Demoted, Cause::DataLost] {
        for learner in [voter(2).node_missing(), voter(2).owned_by(Owner::Unknown)] {
            let late = of(learner.leaving(cause));
            assert!(
                matches!(step(&late), Some(Step::Remove { member: M2, .. })),
                "{late:?}"
            );
            let early = surveyed(vec![voter(1), late.members[1].clone().idle(599)]);
            assert_eq!(reasons(&early), [Reason::NodeMissing]);
        }
    }
}
