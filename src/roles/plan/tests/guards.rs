//! Each guard of the plan by itself, in a situation where no other guard blocks the step.

use super::*;

const M1: MemberId = MemberId(1);
const M2: MemberId = MemberId(2);
const M3: MemberId = MemberId(3);

fn rest(membership: &mut Membership, subject: Subject) {
    let why = (Reason::EtcdUnavailable, "no answer".to_owned());
    membership.resting.insert(subject, why);
}

/// A join of the node of this [`voter`], at the peer URL of [`new_join`].
fn elsewhere(id: u64) -> PendingJoin {
    let mut pending = new_join();
    pending.node = format!("n{id}");
    pending.join.request.as_mut().unwrap().node_uid = format!("u{id}");
    pending
}

#[test]
fn a_node_has_none_of_the_members_of_an_earlier_node_with_its_name() {
    let mut membership = surveyed(vec![voter(1), voter(2).nodeless()]);
    rest(&mut membership, Subject::Member(M2));
    let mut later = elsewhere(2);
    later.join.request.as_mut().unwrap().node_uid = "of-another".to_owned();
    membership.joins.push(later);
    assert_eq!(step(&membership), Some(Step::DecideAdd("n2".to_owned())));
}

/// INV-12: the key of the earlier node may have been deleted by mistake, so its member stays where it is.
#[test]
fn a_node_does_not_join_at_the_peer_url_of_the_member_of_an_earlier_node_with_its_name() {
    let mut membership = surveyed(vec![voter(1), voter(2).node_missing()]);
    let mut later = elsewhere(2);
    let request = later.join.request.as_mut().unwrap();
    request.node_uid = "of-another".to_owned();
    request.peer_urls = vec!["http://10.0.0.2:2380".to_owned()];
    membership.joins.push(later);
    let refused = Some((Progress::Refused, Some(Reason::PeerUrlTaken)));
    assert_eq!(noted(step(&membership)), refused);
}

#[test]
fn a_member_that_is_no_longer_listed_is_no_member_of_its_node() {
    let mut membership = surveyed(vec![voter(1), voter(2)]);
    membership.members[1] = voter(2).unlisted();
    rest(&mut membership, Subject::Member(M2));
    membership.joins.push(elsewhere(2));
    assert_eq!(step(&membership), Some(Step::DecideAdd("n2".to_owned())));
    // Nor does its node prove that the nodes exist.
    membership.joins.clear();
    membership.members.push(voter(3).nodeless());
    membership.members[0] = voter(1).unmanaged();
    assert_eq!(
        reasons(&membership),
        [Reason::EtcdUnavailable, Reason::NodesMissing]
    );
}

#[test]
fn an_unreadable_node_does_not_prove_that_the_nodes_exist_and_its_learner_is_not_promoted() {
    let unknown = |member: Member| member.owned_by(Owner::Unknown);
    let membership = surveyed(vec![unknown(voter(1)), voter(2).nodeless()]);
    assert_eq!(reasons(&membership), [Reason::NodesMissing]);
    let membership = surveyed(vec![voter(1), unknown(voter(2).learner())]);
    assert_eq!(next(&membership).step, None);
    assert!(next(&membership).blocked.is_empty());
}

#[test]
fn a_change_goes_through_a_healthy_voter_that_stays() {
    let promoted = |member: Member| member.learner().rising();
    let through = |membership: &Membership| match step(membership) {
        Some(Step::Promote { through, .. } | Step::Remove { through, .. }) => Some(through),
        other => panic!("{other:?}"),
    };
    // The raft leader has not answered in time.
    let slow = surveyed(vec![voter(1).down(), voter(2), voter(3), promoted(voter(4))]);
    assert_eq!(through(&slow), Some(M2));
    let learner_first = Membership {
        raft_leader: None,
        ..surveyed(vec![promoted(voter(1)), voter(2)])
    };
    assert_eq!(through(&learner_first), Some(M2));
    let victim_first = Membership {
        raft_leader: Some(M3),
        ..surveyed(vec![
            voter(1).demoted().leaving(Cause::Demoted),
            voter(2),
            voter(3).down(),
            voter(4),
            voter(5),
        ])
    };
    assert_eq!(through(&victim_first), Some(M2));
}

#[test]
fn leadership_moves_to_the_voter_that_has_applied_the_most_and_to_a_leaving_one_only_for_lack_of_others() {
    let next_survey = |member: Member| member.applied(999);
    let leaving = || next_survey(voter(1).demoted().leaving(Cause::Demoted));
    let three = surveyed(vec![leaving(), next_survey(voter(2)), voter(3)]);
    assert_eq!(step(&three), Some(Step::MoveLeadership { from: M1, to: M2 }));
    let mut others_go = surveyed(vec![
        leaving(),
        voter(2).demoted(),
        voter(3).demoted(),
        voter(4).demoted(),
        voter(5).down(),
    ]);
    let to = MemberId(4);
    assert_eq!(step(&others_go), Some(Step::MoveLeadership { from: M1, to }));
    // The voter that stays may still answer.
    others_go.complete = false;
    let plan = next(&others_go);
    assert_eq!(plan.blocked[0].reason, Reason::LeadershipNotMoved);
    assert_ne!(plan.step, Some(Step::MoveLeadership { from: M1, to }));
}

#[test]
fn a_learner_is_removed_without_a_known_leader_and_as_the_last_manager_but_no_unstarted_voter_is() {
    let mut membership = surveyed(vec![voter(1), voter(2).learner().leaving(Cause::NeverStarted)]);
    membership.raft_leader = None;
    assert!(matches!(step(&membership), Some(Step::Remove { member: M2, .. })));
    let only = surveyed(vec![voter(1).unmanaged(), voter(2).learner().demoted()]);
    assert_eq!(step(&only), Some(Step::DecideRemoval(M2, Cause::Demoted)));
    let unstarted = |member: Member| member.unstarted();
    let voters = surveyed(vec![voter(1), voter(2), unstarted(voter(3)).idle(9999)]);
    assert_eq!(step(&voters), None);
}

#[test]
fn a_learner_does_not_count_as_a_manager_and_is_not_promoted_once_its_removal_is_decided() {
    let beside = surveyed(vec![voter(1).demoted(), voter(2).learner().down()]);
    assert_eq!(reasons(&beside), [Reason::LearnerNotInSync, Reason::LastManager]);
    // Although its vote would help.
    let going = voter(3).learner().leaving(Cause::Replaced);
    let membership = surveyed(vec![voter(1), voter(2).down(), going]);
    assert_eq!(reasons(&membership), [Reason::QuorumRisk]);
}

#[test]
fn only_a_learner_without_a_record_at_exactly_these_addresses_is_taken_for_the_added_one() {
    let mut membership = surveyed(vec![voter(1), voter(9).learner().down().unmanaged()]);
    membership.joins.push(adding("n9"));
    assert!(matches!(step(&membership), Some(Step::Record { .. })));
    // The member of another node.
    membership.members[1] = voter(9).learner().down();
    membership.joins[0].node = "n8".to_owned();
    let why = Some((Progress::Refused, Some(Reason::PeerUrlTaken)));
    assert_eq!(noted(step(&membership)), why);
    // It was promoted by someone else.
    membership.members[1] = voter(9).unmanaged();
    assert_eq!(noted(step(&membership)), why);
    // A member at another address.
    membership.members[1] = voter(7).learner().down().unmanaged();
    assert_eq!(reasons(&membership), [Reason::LearnerPending]);
}

#[test]
fn a_join_ends_once_its_member_votes_and_not_while_it_is_a_learner_or_leaving() {
    let of = |member: Member| {
        let mut membership = surveyed(vec![voter(1), member, voter(3)]);
        let mut pending = elsewhere(2);
        pending.join.progress = Progress::Learner.into();
        pending.join.answers = "r1".to_owned();
        pending.join.member_id = 2;
        membership.joins.push(pending);
        membership
    };
    assert_eq!(noted(step(&of(voter(2)))), Some((Progress::Voter, None)));
    assert_eq!(
        reasons(&of(voter(2).learner().down())),
        [Reason::LearnerNotInSync]
    );
    let demoted = step(&of(voter(2).demoted()));
    assert_eq!(demoted, Some(Step::DecideRemoval(M2, Cause::Demoted)));
    let removed = Some((Progress::Removed, Some(Reason::Overtaken)));
    assert_eq!(noted(step(&of(voter(4)))), removed);
    // A later request comes first.
    for member in [voter(2), voter(2).learner().down()] {
        let mut later = of(member);
        later.joins[0].join.answers = "of-an-earlier-request".to_owned();
        let expected = match later.members[1].is_learner() {
            true => matches!(step(&later), Some(Step::DecideRemoval(M2, Cause::Replaced))),
            false => matches!(step(&later), Some(Step::DecideReaddress { member: M2, .. })),
        };
        assert!(expected, "{:?}", step(&later));
    }
}

#[test]
fn a_decided_add_goes_on_although_its_address_is_unreachable_and_waits_if_its_node_is_no_longer_a_manager() {
    let mut membership = surveyed(vec![voter(1)]);
    membership.joins.push(adding("n9"));
    membership.joins[0].reachability = Reachability::Unreachable("no answer".to_owned());
    assert!(matches!(step(&membership), Some(Step::Add { .. })));
    membership.joins[0].roles.as_mut().unwrap().observed = Role::Worker;
    assert_eq!(reasons(&membership), [Reason::Pending]);
    membership.joins[0] = adding("n9");
    membership.joins[0].removed = true;
    assert_eq!(reasons(&membership), [Reason::Pending]);
}

#[test]
fn a_peer_url_is_not_refused_for_the_nodes_own_earlier_intent_or_for_ended_adds_of_others() {
    let mut membership = surveyed(vec![voter(1)]);
    membership.joins.push(adding("n9"));
    let request = membership.joins[0].join.request.as_mut().unwrap();
    request.peer_urls.push("http://10.0.0.10:2380".to_owned());
    let decide = Some(Step::DecideAdd("n9".to_owned()));
    assert_eq!(step_at(31, &membership), decide);
    let mut other = adding("n8");
    other.join.progress = Progress::Waiting.into();
    membership.joins = vec![other, new_join()];
    rest(&mut membership, Subject::Join("n8".to_owned()));
    membership.complete = false;
    assert_eq!(step(&membership), decide);
}

#[test]
fn no_learner_is_added_to_a_cluster_without_a_healthy_quorum() {
    let mut membership = surveyed(vec![voter(1), voter(2).down()]);
    membership.joins.push(new_join());
    assert_eq!(
        noted(step(&membership)),
        Some((Progress::Waiting, Some(Reason::QuorumRisk)))
    );
}

#[test]
fn a_member_being_removed_is_not_moved_and_an_untested_address_counts_as_without_a_listener() {
    let mut membership = surveyed(vec![
        voter(1),
        voter(2).demoted().leaving(Cause::Demoted).down(),
        voter(3).down(),
    ]);
    membership.joins.push(elsewhere(2));
    membership.complete = false;
    assert_eq!(reasons(&membership), [Reason::QuorumRisk, Reason::RemovalPending]);
    let mut membership = surveyed(vec![voter(1), voter(2)]);
    membership.joins.push(elsewhere(2));
    membership.joins[0].join.request.as_mut().unwrap().no_dial = true;
    membership.joins[0].reachability = Reachability::Reached(Listener::Expected);
    assert_eq!(
        noted(step(&membership)),
        Some((Progress::Waiting, Some(Reason::QuorumRisk)))
    );
}

#[test]
fn a_wait_is_noted_once_and_again_whenever_it_differs() {
    let mut membership = surveyed(vec![voter(1), voter(2).down()]);
    membership.joins.push(new_join());
    let Some(Step::Note {
        why: Some((reason, message)),
        ..
    }) = step(&membership)
    else {
        panic!("{:?}", step(&membership));
    };
    let join = &mut membership.joins[0].join;
    join.answers = "r1".to_owned();
    join.progress = Progress::Waiting.into();
    (join.reason, join.message) = (reason.to_string(), message);
    assert_eq!(reasons(&membership), [Reason::QuorumRisk]);
    let changes: [fn(&mut Join); 5] = [
        |join| join.answers = "of-an-earlier-request".to_owned(),
        |join| join.progress = Progress::Refused.into(),
        |join| join.member_id = 7,
        |join| join.reason = "LearnerPending".to_owned(),
        |join| join.message.push('!'),
    ];
    for change in changes {
        let mut other = membership.clone();
        change(&mut other.joins[0].join);
        let expected = Some((Progress::Waiting, Some(Reason::QuorumRisk)));
        assert_eq!(noted(step(&other)), expected, "{:?}", other.joins[0].join);
    }
}
