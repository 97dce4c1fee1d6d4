//! One situation each.

use super::*;
use crate::etcd::Revision;

const M1: MemberId = MemberId(1);
const M2: MemberId = MemberId(2);
const M3: MemberId = MemberId(3);

#[test]
fn nothing_is_done_where_nothing_is_wanted() {
    let plan = next(&seen(vec![voter(1), voter(2), voter(3)]));
    assert_eq!((plan.step, plan.blocked), (None, Vec::new()));
}

#[test]
fn a_demotion_is_decided_on_before_anything_else_and_the_leader_hands_over_before_it_goes() {
    let undecided = seen(vec![voter(1).demoted(), voter(2), voter(3)]);
    assert_eq!(step(&undecided), Some(Step::DecideRemoval(M1, Cause::Demoted)));
    let decided = seen(vec![
        voter(1).demoted().decided(Cause::Demoted),
        voter(2),
        voter(3),
    ]);
    // The one that has come farthest.
    assert_eq!(step(&decided), Some(Step::MoveLeadership { from: M1, to: M3 }));
    let moved = Picture {
        raft_leader: Some(M3),
        ..decided
    };
    let remove = Step::Remove {
        member: M1,
        through: M3,
    };
    assert_eq!(step(&moved), Some(remove));
    let gone = Seat {
        listed: None,
        ..voter(1).demoted().decided(Cause::Demoted)
    };
    assert_eq!(
        step(&seen(vec![gone, voter(2), voter(3)])),
        Some(Step::Forget(M1))
    );
}

#[test]
fn leadership_moves_to_a_healthy_voter_that_stays() {
    let seats = vec![
        voter(1).demoted().decided(Cause::Demoted),
        voter(2),
        voter(3).demoted(),
        voter(4).down(),
        voter(5).learner(),
    ];
    assert_eq!(
        step(&seen(seats)),
        Some(Step::MoveLeadership { from: M1, to: M2 })
    );
}

#[test]
fn nothing_is_removed_while_it_is_not_known_who_leads() {
    let unknown = Picture {
        raft_leader: None,
        ..seen(vec![
            voter(1).demoted().decided(Cause::Demoted),
            voter(2),
            voter(3),
        ])
    };
    assert_eq!(reasons(&unknown), [Reason::EtcdUnavailable]);
}

#[test]
fn a_decided_removal_waits_while_it_would_cost_quorum_and_one_withdrawn_before_is_forgotten() {
    let second_died = seen(vec![
        voter(1).demoted().decided(Cause::Demoted),
        voter(2),
        voter(3).down(),
    ]);
    assert_eq!(reasons(&second_died), [Reason::QuorumRisk]);
    let undecided = seen(vec![voter(1).demoted(), voter(2), voter(3).down()]);
    assert_eq!(reasons(&undecided), [Reason::QuorumRisk]);
    let withdrawn = seen(vec![voter(1), voter(2), voter(3).down()]);
    assert_eq!(step(&withdrawn), None);
    // After the intent it is carried out, whatever is wanted by then.
    let too_late = seen(vec![voter(2), voter(1).decided(Cause::Demoted), voter(3)]);
    assert!(matches!(step(&too_late), Some(Step::Remove { member: M1, .. })));
}

#[test]
fn the_one_that_is_down_may_go() {
    let picture = seen(vec![voter(1), voter(2), voter(3).down().demoted()]);
    assert_eq!(step(&picture), Some(Step::DecideRemoval(M3, Cause::Demoted)));
}

#[test]
fn the_last_manager_stays_also_beside_voters_that_are_nobodys() {
    assert_eq!(reasons(&seen(vec![voter(1).demoted()])), [Reason::LastManager]);
    let beside = seen(vec![
        voter(1).demoted(),
        voter(2).unmanaged(),
        voter(3).unmanaged(),
    ]);
    assert_eq!(reasons(&beside), [Reason::LastManager]);
    let all = seen(vec![voter(1).demoted(), voter(2).demoted()]);
    assert_eq!(reasons(&all), [Reason::LastManager, Reason::LastManager]);
}

#[test]
fn a_member_whose_node_cannot_be_read_is_no_other_manager() {
    let unreadable = voter(2).tie(|tie| tie.owner = Whose::Unknown);
    let picture = seen(vec![voter(1).demoted(), unreadable, voter(3).unmanaged()]);
    assert_eq!(reasons(&picture), [Reason::LastManager]);
    let of_a_later_release = voter(2).tie(|tie| tie.owner = whose(Role::Unspecified));
    let picture = seen(vec![voter(1).demoted(), of_a_later_release, voter(3).unmanaged()]);
    assert_eq!(reasons(&picture), [Reason::LastManager]);
    let leaving = voter(2).decided(Cause::Demoted).down();
    let picture = seen(vec![voter(1).demoted(), leaving, voter(3).unmanaged()]);
    assert!(matches!(step(&picture), Some(Step::Remove { member: M2, .. })));
    let stuck = Picture {
        raft_leader: None,
        ..picture
    };
    assert_eq!(reasons(&stuck), [Reason::EtcdUnavailable, Reason::LastManager]);
}

#[test]
fn members_that_are_nobodys_are_left_alone() {
    let picture = seen(vec![
        voter(1),
        voter(2).unmanaged(),
        voter(3).unmanaged().down(),
        voter(4).unmanaged().learner().down(),
    ]);
    assert_eq!(step(&picture), None);
    let unreadable = voter(2).tie(|tie| tie.owner = Whose::Unknown);
    assert_eq!(step(&seen(vec![voter(1), unreadable])), None);
}

#[test]
fn a_member_whose_node_is_gone_is_evicted_unless_no_member_has_its_node() {
    let one = seen(vec![voter(1), voter(2), voter(3).nodeless()]);
    assert_eq!(step(&one), Some(Step::DecideRemoval(M3, Cause::NodeGone)));
    let none = seen(vec![
        voter(1).nodeless(),
        voter(2).nodeless(),
        voter(3).unmanaged(),
    ]);
    assert_eq!(reasons(&none), [Reason::NodesMissing, Reason::NodesMissing]);
}

#[test]
fn a_learner_votes_once_it_has_started_answers_and_quorum_will_hold() {
    let unstarted = seen(vec![
        voter(1),
        voter(2).learner().down().place(|place| place.started = false),
    ]);
    assert_eq!(reasons(&unstarted), [Reason::LearnerNotStarted]);
    let silent = seen(vec![voter(1), voter(2).learner().down()]);
    assert_eq!(reasons(&silent), [Reason::LearnerNotInSync]);
    let ready = seen(vec![voter(1), voter(2).learner()]);
    assert_eq!(step(&ready), Some(Step::DecidePromotion(M2)));
    let decided = seen(vec![voter(1), voter(2).learner().tie(|tie| tie.promotion = true)]);
    let promote = Step::Promote {
        member: M2,
        through: M1,
    };
    assert_eq!(step(&decided), Some(promote));
    // Two voters, one down: the learner's vote would make three, of which two are healthy.
    let helps = seen(vec![voter(1), voter(2).down(), voter(3).learner()]);
    assert_eq!(step(&helps), Some(Step::DecidePromotion(M3)));
    let no_quorum = seen(vec![
        voter(1),
        voter(2).down(),
        voter(3).down(),
        voter(4).learner(),
    ]);
    assert_eq!(reasons(&no_quorum), [Reason::QuorumRisk]);
}

#[test]
fn a_learner_that_never_starts_goes_after_its_time_and_not_before() {
    let picture = seen(vec![
        voter(1),
        voter(2).learner().down().place(|place| place.started = false),
    ]);
    let at = |seconds| Timestamp::from_second(seconds).unwrap();
    let limits = Limits::default();
    assert_eq!(plan(&picture, at(599), &limits).step, None);
    let late = plan(&picture, at(600), &limits).step;
    assert_eq!(late, Some(Step::DecideRemoval(M2, Cause::NeverStarted)));
    // One that has started is not given up.
    let started = seen(vec![voter(1), voter(2).learner().down()]);
    assert_eq!(plan(&started, at(6000), &limits).step, None);
}

#[test]
fn a_join_is_decided_on_then_added_then_recorded() {
    let mut picture = seen(vec![voter(1)]);
    picture.joins.push(asking());
    assert_eq!(step(&picture), Some(Step::DecideAdd("n9".to_owned())));
    picture.joins = vec![adding("n9")];
    let add = Step::Add {
        node: "n9".to_owned(),
        through: M1,
    };
    assert_eq!(step(&picture), Some(add));
    let made = voter(9).learner().down().unmanaged();
    picture.seats.push(made);
    let record = Step::Record {
        node: "n9".to_owned(),
        member: MemberId(9),
    };
    assert_eq!(step(&picture), Some(record));
}

#[test]
fn an_add_that_may_still_be_made_is_looked_for_although_its_node_is_gone() {
    let mut picture = seen(vec![voter(1)]);
    let mut asked = adding("n9");
    asked.known = None;
    picture.joins.push(asked);
    assert_eq!(reasons(&picture), [Reason::Pending]);
    let later = Timestamp::from_second(31).unwrap();
    let refused = plan(&picture, later, &Limits::default()).step;
    assert_eq!(refusal(refused), Some(Reason::NodeNotFound));
    // It was made after all: recorded, so that it is evicted.
    picture.seats.push(voter(9).learner().down().unmanaged());
    assert!(matches!(step(&picture), Some(Step::Record { .. })));
}

fn refusal(step: Option<Step>) -> Option<Reason> {
    match step {
        Some(Step::Note {
            progress: Progress::Refused,
            why,
            ..
        }) => why.map(|(reason, _)| reason),
        _ => None,
    }
}

#[test]
fn an_add_that_may_still_be_made_is_looked_for_although_its_node_is_demoted_or_asks_for_another_address() {
    let later = Timestamp::from_second(31).unwrap();
    let mut picture = seen(vec![voter(1)]);
    picture.joins.push(adding("n9"));
    for role in [Role::Worker, Role::Manager] {
        let known = picture.joins[0].known.as_mut().unwrap();
        (known.desired, known.observed) = (role, role);
        if role == Role::Manager {
            let request = picture.joins[0].join.request.as_mut().unwrap();
            request.peer_urls = vec!["http://10.0.0.10:2380".to_owned()];
        } else {
            known.observed = Role::Manager;
        }
        assert_eq!(reasons(&picture), [Reason::Pending], "{role:?}");
    }
    let anew = plan(&picture, later, &Limits::default()).step;
    assert_eq!(anew, Some(Step::DecideAdd("n9".to_owned())));
    picture.joins[0].known.as_mut().unwrap().desired = Role::Worker;
    let refused = plan(&picture, later, &Limits::default()).step;
    assert_eq!(refusal(refused), Some(Reason::NotAManager));
}

#[test]
fn an_intent_to_add_is_renewed_while_it_is_carried_out() {
    let mut picture = seen(vec![voter(1)]);
    picture.joins.push(adding("n9"));
    let at = |second| {
        let now = Timestamp::from_second(second).unwrap();
        plan(&picture, now, &Limits::default()).step
    };
    assert!(matches!(at(14), Some(Step::Add { .. })));
    assert_eq!(at(15), Some(Step::DecideAdd("n9".to_owned())));
}

#[test]
fn a_peer_url_that_is_being_added_for_one_node_is_refused_to_another() {
    let mut picture = seen(vec![voter(1)]);
    picture.joins = vec![adding("n8"), asking()];
    // The first cannot go on: what was tried for it failed.
    let why = (Reason::EtcdUnavailable, "no answer".to_owned());
    picture.resting.insert(Subject::Join("n8".to_owned()), why);
    assert_eq!(refusal(step(&picture)), Some(Reason::PeerUrlTaken));
    picture.joins[0].join.peer_urls = vec!["http://10.0.0.8:2380".to_owned()];
    assert_eq!(step(&picture), Some(Step::DecideAdd("n9".to_owned())));
    // It is no other node than itself.
    picture.joins = vec![adding("n9")];
    assert!(matches!(step(&picture), Some(Step::Add { .. })));
}

#[test]
fn what_cannot_be_recorded_or_noted_delays_no_other_node() {
    let why = || (Reason::Pending, "something changed meanwhile".to_owned());
    let made = voter(9).learner().down().unmanaged();
    let mut picture = seen(vec![voter(1), voter(2), voter(3).demoted(), made]);
    picture.joins.push(adding("n9"));
    assert!(matches!(step(&picture), Some(Step::Record { .. })));
    picture.resting.insert(Subject::Join("n9".to_owned()), why());
    assert_eq!(step(&picture), Some(Step::DecideRemoval(M3, Cause::Demoted)));
    // Likewise where its member votes, and that cannot be noted.
    picture.seats.pop();
    picture.joins[0].join.progress = Progress::Learner.into();
    picture.joins[0].join.member_id = 1;
    assert_eq!(step(&picture), Some(Step::DecideRemoval(M3, Cause::Demoted)));
    picture.resting.clear();
    assert!(matches!(
        step(&picture),
        Some(Step::Note {
            progress: Progress::Voter,
            ..
        })
    ));
}

#[test]
fn one_learner_at_a_time_and_the_others_are_told_that_they_wait() {
    let mut picture = seen(vec![voter(1), voter(2).learner().down()]);
    picture.joins.push(asking());
    let told = step(&picture).unwrap();
    assert!(
        matches!(
            &told,
            Step::Note {
                progress: Progress::Waiting,
                why: Some((Reason::LearnerPending, _)),
                ..
            }
        ),
        "{told}"
    );
    let Step::Note {
        why: Some((reason, message)),
        ..
    } = told
    else {
        unreachable!()
    };
    let join = &mut picture.joins[0].join;
    join.answers = "r1".to_owned();
    join.progress = Progress::Waiting.into();
    (join.reason, join.message) = (reason.to_string(), message);
    assert_eq!(
        reasons(&picture),
        [Reason::LearnerNotInSync, Reason::LearnerPending]
    );
    // Not before everyone had the time to answer.
    picture.joins[0] = asking();
    picture.complete = false;
    assert_eq!(
        reasons(&picture),
        [Reason::LearnerNotInSync, Reason::LearnerPending]
    );
}

#[test]
fn a_peer_url_is_tried_first_and_one_that_cannot_be_reached_is_refused() {
    let mut picture = seen(vec![voter(1)]);
    picture.joins.push(asking());
    picture.joins[0].dial = Dial::Pending;
    let plan = next(&picture);
    assert_eq!((plan.step, plan.dial), (None, vec!["n9".to_owned()]));
    picture.joins[0].dial = Dial::Unreachable("no answer".to_owned());
    assert_eq!(refusal(step(&picture)), Some(Reason::PeerUnreachable));
    picture.joins[0].join.request.as_mut().unwrap().no_dial = true;
    assert_eq!(step(&picture), Some(Step::DecideAdd("n9".to_owned())));
}

#[test]
fn a_member_that_joins_again_gets_its_new_address_and_keeps_its_place() {
    let known = |observed| Known {
        desired: Role::Manager,
        observed,
        node: Revision(1),
    };
    let mut asked = asking();
    asked.node = "n2".to_owned();
    asked.join.request.as_mut().unwrap().node_uid = "u2".to_owned();
    asked.known = Some(known(Role::Manager));
    let mut picture = seen(vec![voter(1), voter(2), voter(3)]);
    picture.joins.push(asked);
    let readdress = Step::Readdress {
        node: "n2".to_owned(),
        member: M2,
        through: M1,
    };
    assert_eq!(step(&picture), Some(readdress.clone()));
    // Of two, one that nothing listens for could be lost.
    picture.seats.pop();
    let told = step(&picture).unwrap();
    assert!(
        matches!(
            told,
            Step::Note {
                why: Some((Reason::QuorumRisk, _)),
                ..
            }
        ),
        "{told}"
    );
    picture.joins[0].dial = Dial::Reached { listening: true };
    assert_eq!(step(&picture), Some(readdress));
    picture.joins[0].dial = Dial::Unreachable("no answer".to_owned());
    assert_eq!(refusal(step(&picture)), Some(Reason::PeerUnreachable));
    picture.joins[0].dial = Dial::Reached { listening: true };
    picture.seats[1] = voter(2).learner().down();
    assert_eq!(step(&picture), Some(Step::DecideRemoval(M2, Cause::Replaced)));
    picture.seats[1] = voter(2).place(|place| place.peer_urls = vec!["http://10.0.0.9:2380/".to_owned()]);
    let same = step(&picture).unwrap();
    assert!(
        matches!(
            same,
            Step::Note {
                progress: Progress::Voter,
                member: Some(M2),
                ..
            }
        ),
        "{same}"
    );
}

#[test]
fn no_voter_moves_to_where_nothing_listens_while_a_learner_may_become_a_voter_that_is_down() {
    let promoted = voter(4).learner().down().tie(|tie| tie.promotion = true);
    let mut picture = seen(vec![voter(1), voter(2), voter(3), promoted]);
    let mut asked = asking();
    asked.node = "n2".to_owned();
    asked.join.request.as_mut().unwrap().node_uid = "u2".to_owned();
    picture.joins.push(asked);
    picture.complete = false;
    assert_eq!(reasons(&picture), [Reason::LearnerNotInSync, Reason::QuorumRisk]);
    picture.joins[0].dial = Dial::Reached { listening: true };
    assert!(matches!(step(&picture), Some(Step::Readdress { member: M2, .. })));
}

#[test]
fn what_failed_a_short_while_ago_rests_and_delays_nothing_else() {
    let mut picture = seen(vec![voter(1), voter(2).demoted(), voter(3).learner()]);
    assert_eq!(step(&picture), Some(Step::DecidePromotion(M3)));
    let why = (Reason::EtcdRefused, "unhealthy cluster".to_owned());
    picture.resting.insert(Subject::Member(M3), why);
    // Of the two voters that there would be, both are healthy.
    assert_eq!(step(&picture), Some(Step::DecideRemoval(M2, Cause::Demoted)));
}
