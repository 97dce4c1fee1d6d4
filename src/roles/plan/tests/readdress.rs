//! Voters that move to other peer URLs, one situation a test.

use super::*;
use crate::proto::Readdress;

const M1: MemberId = MemberId(1);
const M2: MemberId = MemberId(2);

fn found() -> Reachability {
    Reachability::Reached(Listener::Expected)
}

fn another() -> Listener {
    Listener::Another("is the address of another member of etcd".to_owned())
}

/// Three voters, of which the second asks to move to the peer URL of [`new_join`].
fn asked(second: Member) -> Membership {
    let mut pending = new_join();
    pending.node = "n2".to_owned();
    pending.join.request.as_mut().unwrap().node_uid = "u2".to_owned();
    pending.reachability = found();
    let mut membership = surveyed(vec![voter(1), second, voter(3)]);
    membership.joins.push(pending);
    membership
}

fn with(membership: &Membership, second: Member) -> Membership {
    let mut other = membership.clone();
    other.members[1] = second;
    other
}

#[test]
fn a_move_is_decided_then_made_then_proven() {
    let membership = asked(voter(2));
    let decide = Step::DecideReaddress {
        node: "n2".to_owned(),
        member: M2,
    };
    // The proof of the intent, that roles are not paused, is one for the call that it intends.
    let readdress = Step::Readdress {
        member: M2,
        through: M1,
    };
    assert_eq!(decide.intends(), Some(readdress.subject()));
    assert_eq!(step(&membership), Some(decide));
    // The member is looked for again after the intent, and after the change.
    for second in [
        voter(2).moving(Listener::Expected),
        voter(2).moved(Listener::Expected),
    ] {
        let mut membership = with(&membership, second);
        let joined = membership.members[1].is_at(membership.joins[0].peer_urls());
        membership.members[1].moved = Reachability::Pending;
        let plan = next(&membership);
        assert_eq!(plan.probe, [Subject::Member(M2)]);
        assert_eq!(plan.blocked[0].reason, Reason::Pending);
        // The join is answered at once: its etcd may be started at the new address only then.
        assert_eq!(
            matches!(plan.step, Some(Step::Note { .. })),
            joined,
            "{:?}",
            plan.step
        );
    }
    let moving = with(&membership, voter(2).moving(Listener::Expected));
    assert_eq!(step(&moving), Some(readdress));
    let moved = with(&membership, voter(2).moved(Listener::Expected));
    assert_eq!(step(&moved), Some(Step::EndReaddress(M2)));
}

#[test]
fn a_voter_does_not_move_to_where_another_server_listens() {
    let mut membership = asked(voter(2));
    membership.joins[0].reachability = Reachability::Reached(another());
    let Some(Step::Note {
        progress: Progress::Refused,
        why: Some((Reason::PeerMismatch, message)),
        ..
    }) = step(&membership)
    else {
        panic!("{:?}", step(&membership));
    };
    assert!(message.contains("another member of etcd"), "{message}");
    // It was there when the move was decided.
    let decided = with(&membership, voter(2).moving(another()));
    assert_eq!(next(&decided).blocked[0].reason, Reason::PeerMismatch);
    let quiet = with(&membership, voter(2).moving(another()).quiet());
    assert_eq!(step(&quiet), Some(Step::Withdraw(M2)));
}

#[test]
fn a_move_that_may_be_made_at_any_moment_counts_both_ways_in_every_other_decision() {
    let third_goes = |second: Member| {
        let mut membership = surveyed(vec![voter(1), second, voter(3).demoted()]);
        membership.complete = false;
        membership
    };
    let decide = Some(Step::DecideRemoval(MemberId(3), Cause::Demoted));
    assert_eq!(step(&third_goes(voter(2))), decide);
    // Without the third, the first would be alone where the second is not reached.
    let lost = third_goes(voter(2).moving(Listener::Absent));
    assert_eq!(reasons(&lost), [Reason::Pending, Reason::QuorumRisk]);
    let made = third_goes(voter(2).moved(Listener::Absent).quiet());
    assert_eq!(reasons(&made), [Reason::AddressUnproven, Reason::QuorumRisk]);
    let found = third_goes(voter(2).moving(Listener::Expected));
    assert_eq!(step(&found), decide);
    let over = third_goes(voter(2).moving(Listener::Absent).quiet());
    assert_eq!(step(&over), decide);
}

#[test]
fn a_move_is_withdrawn_once_it_is_not_asked_for_or_not_safe_and_no_call_of_it_can_be_under_way() {
    let quorum_risk = |second: Member| {
        let mut membership = asked(second);
        membership.members[2] = voter(3).down();
        membership
    };
    let unasked = |second: Member| {
        let mut membership = asked(second);
        membership.joins.clear();
        membership
    };
    let demoted = |second: Member| asked(second.demoted());
    let elsewhere = |second: Member| {
        let mut membership = asked(second);
        let request = membership.joins[0].join.request.as_mut().unwrap();
        request.peer_urls = vec!["http://10.0.0.10:2380".to_owned()];
        membership
    };
    let moving = || voter(2).moving(Listener::Absent);
    let situations: [(&dyn Fn(Member) -> Membership, Reason); 3] = [
        (&quorum_risk, Reason::QuorumRisk),
        (&unasked, Reason::Pending),
        (&elsewhere, Reason::Pending),
    ];
    for (situation, reason) in situations {
        let waits = situation(moving());
        assert_eq!(next(&waits).blocked[0].reason, reason);
        let call = next(&waits).step;
        assert!(!matches!(call, Some(Step::Readdress { .. })), "{call:?}");
        assert_eq!(step(&situation(moving().quiet())), Some(Step::Withdraw(M2)));
    }
    assert_eq!(step(&demoted(moving().quiet())), Some(Step::Withdraw(M2)));
}

#[test]
fn a_voter_that_is_not_found_where_it_moved_says_so_until_it_is_or_moves_on() {
    let mut membership = surveyed(vec![voter(1), voter(2).moved(Listener::Absent), voter(3)]);
    let plan = next(&membership);
    assert_eq!(plan.step, None);
    let message = &plan.blocked[0].message;
    assert!(message.contains("http://10.0.0.9:2380"), "{message}");
    // A server that does not say who it is proves what can be proven, if the member answers; so does one that is not asked.
    let unproven = || Listener::Unproven("certificate required".to_owned());
    membership.members[1] = voter(2).moved(unproven());
    assert_eq!(step(&membership), Some(Step::EndReaddress(M2)));
    membership.members[1] = voter(2).moved(unproven()).down();
    assert_eq!(reasons(&membership), [Reason::AddressUnproven]);
    membership.members[1] = voter(2).moved(Listener::Absent);
    let untested = &mut membership.members[1].record.as_mut().unwrap().readdress;
    untested.as_mut().unwrap().no_dial = true;
    assert_eq!(step(&membership), Some(Step::EndReaddress(M2)));
    // Back to where it was.
    let mut back = asked(voter(2).moved(Listener::Absent));
    let urls = vec!["http://10.0.0.2:2380".to_owned()];
    back.joins[0]
        .join
        .request
        .as_mut()
        .unwrap()
        .peer_urls
        .clone_from(&urls);
    assert!(
        matches!(step(&back), Some(Step::DecideReaddress { .. })),
        "{:?}",
        step(&back)
    );
    // Also where the quorum needs it: its last move is over.
    let mut needed = back.clone();
    needed.members[1] = needed.members[1].clone().quiet();
    needed.members[2] = voter(3).down();
    assert!(
        matches!(step(&needed), Some(Step::DecideReaddress { .. })),
        "{:?}",
        step(&needed)
    );
    needed.joins[0].reachability = Reachability::Reached(Listener::Absent);
    assert!(!matches!(step(&needed), Some(Step::DecideReaddress { .. })));
    back.members[1].record.as_mut().unwrap().readdress = Some(Readdress {
        peer_urls: urls,
        ..Readdress::default()
    });
    back.members[1].moved = found();
    assert!(
        matches!(step(&back), Some(Step::Readdress { .. })),
        "{:?}",
        step(&back)
    );
}

#[test]
fn a_join_at_the_present_address_waits_for_a_move_that_may_still_be_made() {
    let mut membership = asked(voter(2).moving(Listener::Expected));
    let request = membership.joins[0].join.request.as_mut().unwrap();
    request.peer_urls = vec!["http://10.0.0.2:2380".to_owned()];
    assert_eq!(reasons(&membership), [Reason::Pending, Reason::Pending]);
}
