//! Each guard of the plan by itself, where nothing else holds the step back.

use super::*;

const M1: MemberId = MemberId(1);
const M2: MemberId = MemberId(2);
const M3: MemberId = MemberId(3);

fn rest(picture: &mut Picture, subject: Subject) {
    let why = (Reason::EtcdUnavailable, "no answer".to_owned());
    picture.resting.insert(subject, why);
}

/// A join of this voter of [`voter`] at the peer URL of [`asking`].
fn elsewhere(id: u64) -> Asked {
    let mut asked = asking();
    asked.node = format!("n{id}");
    asked.join.request.as_mut().unwrap().node_uid = format!("u{id}");
    asked
}

fn noted(step: Option<Step>) -> Option<(Progress, Option<Reason>)> {
    match step {
        Some(Step::Note { progress, why, .. }) => Some((progress, why.map(|(reason, _)| reason))),
        _ => None,
    }
}

#[test]
fn a_node_that_has_the_name_of_an_earlier_one_has_none_of_its_members() {
    let mut picture = seen(vec![voter(1), voter(2).nodeless()]);
    rest(&mut picture, Subject::Member(M2));
    let mut later = elsewhere(2);
    later.join.request.as_mut().unwrap().node_uid = "of-another".to_owned();
    picture.joins.push(later);
    assert_eq!(step(&picture), Some(Step::DecideAdd("n2".to_owned())));
}

#[test]
fn a_member_that_is_in_the_list_no_more_is_no_member_of_its_node() {
    let mut picture = seen(vec![voter(1), voter(2)]);
    picture.seats[1].listed = None;
    rest(&mut picture, Subject::Member(M2));
    picture.joins.push(elsewhere(2));
    assert_eq!(step(&picture), Some(Step::DecideAdd("n2".to_owned())));
    // Nor does its node show that the nodes are there.
    picture.joins.clear();
    picture.seats.push(voter(3).nodeless());
    picture.seats[0] = voter(1).unmanaged();
    assert_eq!(reasons(&picture), [Reason::EtcdUnavailable, Reason::NodesMissing]);
}

#[test]
fn a_node_that_cannot_be_read_shows_not_that_the_nodes_are_there_and_its_learner_does_not_vote() {
    let unknown = |seat: Seat| seat.tie(|tie| tie.owner = Whose::Unknown);
    let picture = seen(vec![unknown(voter(1)), voter(2).nodeless()]);
    assert_eq!(reasons(&picture), [Reason::NodesMissing]);
    let picture = seen(vec![voter(1), unknown(voter(2).learner())]);
    assert_eq!(next(&picture).step, None);
    assert!(next(&picture).blocked.is_empty());
}

#[test]
fn a_change_is_asked_of_a_healthy_voter_that_stays() {
    let promoted = |seat: Seat| seat.learner().tie(|tie| tie.promotion = true);
    let through = |picture: &Picture| match step(picture) {
        Some(Step::Promote { through, .. } | Step::Remove { through, .. }) => Some(through),
        other => panic!("{other:?}"),
    };
    // The raft leader does not answer in time.
    let slow = seen(vec![voter(1).down(), voter(2), voter(3), promoted(voter(4))]);
    assert_eq!(through(&slow), Some(M2));
    let learner_first = Picture {
        raft_leader: None,
        ..seen(vec![promoted(voter(1)), voter(2)])
    };
    assert_eq!(through(&learner_first), Some(M2));
    let victim_first = Picture {
        raft_leader: Some(M3),
        ..seen(vec![
            voter(1).decided(Cause::Demoted),
            voter(2),
            voter(3).down(),
            voter(4),
            voter(5),
        ])
    };
    assert_eq!(through(&victim_first), Some(M2));
}

#[test]
fn leadership_goes_to_the_one_that_has_come_farthest_and_to_one_that_goes_only_for_want_of_another() {
    let ahead = |seat: Seat| seat.place(|place| place.applied = 999);
    let leaving = || ahead(voter(1).demoted().decided(Cause::Demoted));
    let three = seen(vec![leaving(), ahead(voter(2)), voter(3)]);
    assert_eq!(step(&three), Some(Step::MoveLeadership { from: M1, to: M2 }));
    let mut others_go = seen(vec![
        leaving(),
        voter(2).demoted(),
        voter(3).demoted(),
        voter(4).demoted(),
        voter(5).down(),
    ]);
    let to = MemberId(4);
    assert_eq!(step(&others_go), Some(Step::MoveLeadership { from: M1, to }));
    // The one that stays may still answer.
    others_go.complete = false;
    let plan = next(&others_go);
    assert_eq!(plan.blocked[0].reason, Reason::LeadershipNotMoved);
    assert_ne!(plan.step, Some(Step::MoveLeadership { from: M1, to }));
}

#[test]
fn a_learner_is_removed_whoever_leads_also_as_the_last_manager_and_a_voter_is_not_for_never_having_started() {
    let mut picture = seen(vec![voter(1), voter(2).learner().decided(Cause::NeverStarted)]);
    picture.raft_leader = None;
    assert!(matches!(step(&picture), Some(Step::Remove { member: M2, .. })));
    let only = seen(vec![voter(1).unmanaged(), voter(2).learner().demoted()]);
    assert_eq!(step(&only), Some(Step::DecideRemoval(M2, Cause::Demoted)));
    let unstarted = |seat: Seat| seat.down().place(|place| place.started = false);
    let late = Timestamp::from_second(9999).unwrap();
    let voters = seen(vec![voter(1), voter(2), unstarted(voter(3))]);
    assert_eq!(plan(&voters, late, &Limits::default()).step, None);
    // Since when is not known: it has had its time.
    let undated = unstarted(voter(2).learner()).tie(|tie| tie.joined_at = None);
    let undated = step(&seen(vec![voter(1), undated]));
    assert_eq!(undated, Some(Step::DecideRemoval(M2, Cause::NeverStarted)));
}

#[test]
fn a_learner_is_no_manager_yet_and_one_that_is_to_go_is_not_let_vote() {
    let beside = seen(vec![voter(1).demoted(), voter(2).learner().down()]);
    assert_eq!(reasons(&beside), [Reason::LearnerNotInSync, Reason::LastManager]);
    // Its vote would help.
    let going = voter(3).learner().decided(Cause::Replaced);
    let picture = seen(vec![voter(1), voter(2).down(), going]);
    assert_eq!(reasons(&picture), [Reason::QuorumRisk]);
}

#[test]
fn only_a_learner_without_a_record_at_these_very_addresses_is_what_was_added() {
    let mut picture = seen(vec![voter(1), voter(9).learner().down().unmanaged()]);
    picture.joins.push(adding("n9"));
    assert!(matches!(step(&picture), Some(Step::Record { .. })));
    // Of another node.
    picture.seats[1] = voter(9).learner().down();
    picture.joins[0].node = "n8".to_owned();
    let why = Some((Progress::Refused, Some(Reason::PeerUrlTaken)));
    assert_eq!(noted(step(&picture)), why);
    // Somebody let it vote.
    picture.seats[1] = voter(9).unmanaged();
    assert_eq!(noted(step(&picture)), why);
    // Elsewhere.
    picture.seats[1] = voter(7).learner().down().unmanaged();
    assert_eq!(reasons(&picture), [Reason::LearnerPending]);
}

#[test]
fn a_join_ends_with_its_members_vote_and_not_while_that_is_a_learner_or_on_its_way_out() {
    let of = |seat: Seat| {
        let mut picture = seen(vec![voter(1), seat, voter(3)]);
        let mut asked = elsewhere(2);
        asked.join.progress = Progress::Learner.into();
        asked.join.answers = "r1".to_owned();
        asked.join.member_id = 2;
        picture.joins.push(asked);
        picture
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
    // What was asked for since is looked at first.
    for seat in [voter(2), voter(2).learner().down()] {
        let mut anew = of(seat);
        anew.joins[0].join.answers = "of-an-earlier-request".to_owned();
        let expected = match anew.seats[1].is_learner() {
            true => matches!(step(&anew), Some(Step::DecideRemoval(M2, Cause::Replaced))),
            false => matches!(step(&anew), Some(Step::Readdress { member: M2, .. })),
        };
        assert!(expected, "{:?}", step(&anew));
    }
}

#[test]
fn an_add_goes_on_where_its_address_went_silent_and_waits_where_its_node_is_no_manager_any_more() {
    let mut picture = seen(vec![voter(1)]);
    picture.joins.push(adding("n9"));
    picture.joins[0].dial = Dial::Unreachable("no answer".to_owned());
    assert!(matches!(step(&picture), Some(Step::Add { .. })));
    picture.joins[0].known.as_mut().unwrap().observed = Role::Worker;
    assert_eq!(reasons(&picture), [Reason::Pending]);
    picture.joins[0] = adding("n9");
    picture.joins[0].removed = true;
    assert_eq!(reasons(&picture), [Reason::Pending]);
}

#[test]
fn its_own_earlier_intent_and_ended_adds_of_others_are_no_reason_to_refuse_a_peer_url() {
    let later = Timestamp::from_second(31).unwrap();
    let mut picture = seen(vec![voter(1)]);
    picture.joins.push(adding("n9"));
    let request = picture.joins[0].join.request.as_mut().unwrap();
    request.peer_urls.push("http://10.0.0.10:2380".to_owned());
    let anew = Some(Step::DecideAdd("n9".to_owned()));
    assert_eq!(plan(&picture, later, &Limits::default()).step, anew);
    let mut other = adding("n8");
    other.join.progress = Progress::Waiting.into();
    picture.joins = vec![other, asking()];
    rest(&mut picture, Subject::Join("n8".to_owned()));
    picture.complete = false;
    assert_eq!(step(&picture), anew);
}

#[test]
fn nothing_is_added_to_a_cluster_without_a_healthy_quorum() {
    let mut picture = seen(vec![voter(1), voter(2).down()]);
    picture.joins.push(asking());
    assert_eq!(
        noted(step(&picture)),
        Some((Progress::Waiting, Some(Reason::QuorumRisk)))
    );
}

#[test]
fn a_member_that_is_being_removed_gets_no_other_address_and_none_that_was_not_tried_counts_as_listening() {
    let mut picture = seen(vec![
        voter(1),
        voter(2).decided(Cause::Demoted).down(),
        voter(3).down(),
    ]);
    picture.joins.push(elsewhere(2));
    picture.complete = false;
    assert_eq!(reasons(&picture), [Reason::QuorumRisk, Reason::RemovalPending]);
    let mut picture = seen(vec![voter(1), voter(2)]);
    picture.joins.push(elsewhere(2));
    picture.joins[0].join.request.as_mut().unwrap().no_dial = true;
    picture.joins[0].dial = Dial::Reached { listening: true };
    assert_eq!(
        noted(step(&picture)),
        Some((Progress::Waiting, Some(Reason::QuorumRisk)))
    );
}

#[test]
fn a_wait_is_told_once_and_again_where_anything_of_it_is_another() {
    let mut picture = seen(vec![voter(1), voter(2).down()]);
    picture.joins.push(asking());
    let Some(Step::Note {
        why: Some((reason, message)),
        ..
    }) = step(&picture)
    else {
        panic!("{:?}", step(&picture));
    };
    let told = &mut picture.joins[0].join;
    told.answers = "r1".to_owned();
    told.progress = Progress::Waiting.into();
    (told.reason, told.message) = (reason.to_string(), message);
    assert_eq!(reasons(&picture), [Reason::QuorumRisk]);
    let changes: [fn(&mut Join); 5] = [
        |join| join.answers = "of-an-earlier-request".to_owned(),
        |join| join.progress = Progress::Refused.into(),
        |join| join.member_id = 7,
        |join| join.reason = "LearnerPending".to_owned(),
        |join| join.message.push('!'),
    ];
    for change in changes {
        let mut other = picture.clone();
        change(&mut other.joins[0].join);
        let expected = Some((Progress::Waiting, Some(Reason::QuorumRisk)));
        assert_eq!(noted(step(&other)), expected, "{:?}", other.joins[0].join);
    }
}
