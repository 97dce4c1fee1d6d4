//! Members that stay, are promoted and are removed, one situation a test.

use super::*;
use crate::etcd::members::{Inquiry, NotAsked};

const M1: MemberId = MemberId(1);
const M2: MemberId = MemberId(2);
const M3: MemberId = MemberId(3);

#[test]
fn no_step_is_taken_while_the_roles_are_as_desired() {
    let plan = next(&surveyed(vec![voter(1), voter(2), voter(3)]));
    assert_eq!((plan.step, plan.blocked), (None, Vec::new()));
}

#[test]
fn a_demoted_raft_leader_is_removed_by_intent_transfer_removal_and_forgetting() {
    let undecided = surveyed(vec![voter(1).demoted(), voter(2), voter(3)]);
    assert_eq!(step(&undecided), Some(Step::DecideRemoval(M1, Cause::Demoted)));
    let decided = surveyed(vec![
        voter(1).demoted().leaving(Cause::Demoted),
        voter(2),
        voter(3),
    ]);
    // To the voter that has applied the most.
    assert_eq!(step(&decided), Some(Step::MoveLeadership { from: M1, to: M3 }));
    let moved = Membership {
        raft_leader: Some(M3),
        ..decided
    };
    let remove = Step::Remove {
        member: M1,
        through: M3,
    };
    assert_eq!(step(&moved), Some(remove));
    let gone = voter(1).demoted().leaving(Cause::Demoted).unlisted();
    assert_eq!(
        step(&surveyed(vec![gone, voter(2), voter(3)])),
        Some(Step::Forget(M1))
    );
}

#[test]
fn leadership_moves_to_a_healthy_voter_that_stays() {
    let members = vec![
        voter(1).demoted().leaving(Cause::Demoted),
        voter(2),
        voter(3).demoted(),
        voter(4).down(),
        voter(5).learner(),
    ];
    assert_eq!(
        step(&surveyed(members)),
        Some(Step::MoveLeadership { from: M1, to: M2 })
    );
}

#[test]
fn no_voter_is_removed_while_the_raft_leader_is_unknown() {
    let unknown = Membership {
        raft_leader: None,
        ..surveyed(vec![
            voter(1).demoted().leaving(Cause::Demoted),
            voter(2),
            voter(3),
        ])
    };
    assert_eq!(reasons(&unknown), [Reason::EtcdUnavailable]);
}

#[test]
fn a_removal_that_would_cost_quorum_waits_and_one_withdrawn_before_its_intent_is_dropped() {
    let second_died = surveyed(vec![
        voter(1).demoted().leaving(Cause::Demoted),
        voter(2),
        voter(3).down(),
    ]);
    assert_eq!(reasons(&second_died), [Reason::QuorumRisk]);
    let undecided = surveyed(vec![voter(1).demoted(), voter(2), voter(3).down()]);
    assert_eq!(reasons(&undecided), [Reason::QuorumRisk]);
    let withdrawn = surveyed(vec![voter(1), voter(2), voter(3).down()]);
    assert_eq!(step(&withdrawn), None);
    // After the intent it waits, while a call of it may be under way; every member that its node wants is kept.
    let kept = |member: Member| {
        let leaving = member.leaving(Cause::Demoted);
        let membership = surveyed(vec![leaving.clone(), voter(2), voter(3)]);
        assert_eq!(reasons(&membership), [Reason::Pending], "{leaving:?}");
        let quiet = surveyed(vec![leaving.quiet(), voter(2), voter(3)]);
        assert_eq!(step(&quiet), Some(Step::Withdraw(M1)));
    };
    kept(voter(1));
    kept(voter(1).down());
    kept(voter(1).learner());
}

#[test]
fn a_member_that_is_down_may_be_removed() {
    let membership = surveyed(vec![voter(1), voter(2), voter(3).down().demoted()]);
    assert_eq!(step(&membership), Some(Step::DecideRemoval(M3, Cause::Demoted)));
}

#[test]
fn the_last_manager_stays_although_unmanaged_members_vote() {
    assert_eq!(
        reasons(&surveyed(vec![voter(1).demoted()])),
        [Reason::LastManager]
    );
    let beside = surveyed(vec![
        voter(1).demoted(),
        voter(2).unmanaged(),
        voter(3).unmanaged(),
    ]);
    assert_eq!(reasons(&beside), [Reason::LastManager]);
    let all = surveyed(vec![voter(1).demoted(), voter(2).demoted()]);
    assert_eq!(reasons(&all), [Reason::LastManager, Reason::LastManager]);
}

#[test]
fn only_a_readable_desired_manager_that_stays_counts_as_another_manager() {
    let unreadable = voter(2).owned_by(Owner::Unknown);
    let membership = surveyed(vec![voter(1).demoted(), unreadable, voter(3).unmanaged()]);
    assert_eq!(reasons(&membership), [Reason::LastManager]);
    let of_a_later_release = voter(2).desiring(Role::Unspecified);
    let membership = surveyed(vec![voter(1).demoted(), of_a_later_release, voter(3).unmanaged()]);
    assert_eq!(reasons(&membership), [Reason::LastManager]);
    let leaving = voter(2).leaving(Cause::Replaced).down();
    let membership = surveyed(vec![voter(1).demoted(), leaving, voter(3).unmanaged()]);
    assert!(matches!(step(&membership), Some(Step::Remove { member: M2, .. })));
    let stuck = Membership {
        raft_leader: None,
        ..membership
    };
    assert_eq!(reasons(&stuck), [Reason::EtcdUnavailable, Reason::LastManager]);
}

#[test]
fn members_without_a_readable_record_or_node_are_left_alone() {
    let membership = surveyed(vec![
        voter(1),
        voter(2).unmanaged(),
        voter(3).unmanaged().down(),
        voter(4).unmanaged().learner().down(),
    ]);
    assert_eq!(step(&membership), None);
    let unreadable = voter(2).owned_by(Owner::Unknown);
    assert_eq!(step(&surveyed(vec![voter(1), unreadable])), None);
}

#[test]
fn a_member_whose_node_is_gone_is_evicted_unless_no_member_has_a_node() {
    let one = surveyed(vec![voter(1), voter(2), voter(3).nodeless()]);
    assert_eq!(step(&one), Some(Step::DecideRemoval(M3, Cause::NodeGone)));
    let none = surveyed(vec![
        voter(1).nodeless(),
        voter(2).nodeless(),
        voter(3).unmanaged(),
    ]);
    assert_eq!(reasons(&none), [Reason::NodesMissing, Reason::NodesMissing]);
}

/// INV-12
#[test]
fn a_member_whose_node_has_no_record_of_removal_stays_and_holds_up_no_other() {
    let missing = surveyed(vec![voter(1), voter(2).node_missing(), voter(3)]);
    assert_eq!(step(&missing), None);
    assert_eq!(reasons(&missing), [Reason::NodeMissing]);
    let beside = surveyed(vec![voter(1), voter(2).node_missing(), voter(3).nodeless()]);
    assert_eq!(step(&beside), Some(Step::DecideRemoval(M3, Cause::NodeGone)));
    // What was decided before is carried out, and a learner that never started goes as any other.
    let decided = surveyed(vec![
        voter(1),
        voter(2).node_missing().leaving(Cause::NodeGone),
        voter(3),
    ]);
    assert!(matches!(step(&decided), Some(Step::Remove { member: M2, .. })));
    let learner = voter(2).node_missing().learner().unstarted().idle(600);
    let late = surveyed(vec![voter(1), learner]);
    assert_eq!(step(&late), Some(Step::DecideRemoval(M2, Cause::NeverStarted)));
}

#[test]
fn a_learner_is_promoted_once_it_has_started_answers_and_quorum_holds_with_it() {
    let unstarted = surveyed(vec![voter(1), voter(2).learner().unstarted()]);
    assert_eq!(reasons(&unstarted), [Reason::LearnerNotStarted]);
    let silent = surveyed(vec![voter(1), voter(2).learner().down()]);
    assert_eq!(reasons(&silent), [Reason::LearnerNotInSync]);
    let ready = surveyed(vec![voter(1), voter(2).learner()]);
    assert_eq!(step(&ready), Some(Step::DecidePromotion(M2)));
    let decided = surveyed(vec![voter(1), voter(2).learner().rising()]);
    let promote = Step::Promote {
        member: M2,
        through: M1,
    };
    assert_eq!(step(&decided), Some(promote));
    // Of two voters one is down. With the learner there are three, of which two are healthy.
    let helps = surveyed(vec![voter(1), voter(2).down(), voter(3).learner()]);
    assert_eq!(step(&helps), Some(Step::DecidePromotion(M3)));
    let no_quorum = surveyed(vec![
        voter(1),
        voter(2).down(),
        voter(3).down(),
        voter(4).learner(),
    ]);
    assert_eq!(reasons(&no_quorum), [Reason::QuorumRisk]);
}

#[test]
fn a_learner_that_never_starts_is_removed_after_the_timeout_and_not_before() {
    let idle = |member: Member, seconds| step(&surveyed(vec![voter(1), member.idle(seconds)]));
    let unstarted = || voter(2).learner().unstarted();
    assert_eq!(idle(unstarted(), 599), None);
    let never = Some(Step::DecideRemoval(M2, Cause::NeverStarted));
    assert_eq!(idle(unstarted(), 600), never);
    // One that was started and then stopped takes the one place of learners as well.
    let stopped = || voter(2).learner().down();
    assert_eq!(idle(stopped(), 599), None);
    let stalled = Some(Step::DecideRemoval(M2, Cause::Stalled));
    assert_eq!(idle(stopped(), 600), stalled);
    // Nothing depends on a learner, so it goes although no member has a node.
    let gone = surveyed(vec![voter(1).unmanaged(), voter(2).learner().nodeless()]);
    assert_eq!(step(&gone), Some(Step::DecideRemoval(M2, Cause::NodeGone)));
}

/// Until a snapshot is complete, a learner has applied nothing of it.
#[test]
fn a_learner_that_was_started_has_the_time_that_a_snapshot_of_the_data_takes_as_well() {
    let idle = |member: Member, seconds| {
        let mut membership = surveyed(vec![voter(1), member.idle(seconds)]);
        membership.members[0].evidence.db_size(8_000_000_000);
        step(&membership)
    };
    let receiving = || voter(2).learner().down();
    assert_eq!(idle(receiving(), 600 + 1599), None);
    let stalled = Some(Step::DecideRemoval(M2, Cause::Stalled));
    assert_eq!(idle(receiving(), 600 + 1600), stalled);
    let never = Some(Step::DecideRemoval(M2, Cause::NeverStarted));
    assert_eq!(
        idle(voter(2).learner().unstarted(), 600),
        never,
        "it receives nothing"
    );
}

/// A voter whose removal is decided is not asked how much data it has; the learner takes the one place of learners all the same.
#[test]
fn a_learner_has_the_time_for_the_most_data_where_no_voter_says_how_much_it_has() {
    let idle = |seconds| {
        let mut leaving = voter(1).node_missing().leaving(Cause::Demoted).quiet();
        leaving.evidence.status = Inquiry::NotAsked(NotAsked::Leaving);
        step(&surveyed(vec![leaving, voter(2).learner().down().idle(seconds)]))
    };
    assert_eq!(idle(600 + 1716), None);
    let stalled = Some(Step::DecideRemoval(M2, Cause::Stalled));
    assert_eq!(idle(600 + 1717), stalled);
}

/// INV-12
#[test]
fn a_demotion_that_is_decided_waits_while_its_node_cannot_be_read() {
    let of = |member: Member| surveyed(vec![voter(1), member.leaving(Cause::Demoted), voter(3)]);
    assert_eq!(
        reasons(&of(voter(2).owned_by(Owner::Unknown))),
        [Reason::NodeMissing]
    );
    assert_eq!(
        reasons(&of(voter(2).node_missing().quiet())),
        [Reason::NodeMissing]
    );
    assert_eq!(
        reasons(&of(voter(2).desiring(Role::Unspecified))),
        [Reason::NodeMissing]
    );
    let removed = of(voter(2).nodeless());
    assert!(matches!(step(&removed), Some(Step::Remove { member: M2, .. })));
}

/// INV-5: every intent ends.
#[test]
fn an_intent_without_grounds_is_withdrawn_once_no_call_of_it_can_be_under_way() {
    let demoted = || voter(2).leaving(Cause::Demoted);
    let of = |member: Member| step(&surveyed(vec![voter(1), member, voter(3)]));
    assert_eq!(of(demoted()), None);
    assert_eq!(of(demoted().quiet()), Some(Step::Withdraw(M2)));
    let still = of(demoted().demoted().quiet());
    assert!(matches!(still, Some(Step::Remove { member: M2, .. })));
    // A promotion that cannot be carried out counts as a voter that is down in every other check.
    let rising = || voter(2).learner().down().rising();
    assert_eq!(of(rising()), None);
    assert_eq!(of(rising().quiet()), Some(Step::Withdraw(M2)));
    let ready = of(voter(2).learner().rising().quiet());
    assert!(matches!(ready, Some(Step::Promote { member: M2, .. })));
}

#[test]
fn a_raft_leader_that_cannot_be_asked_goes_without_a_transfer_where_the_others_can_elect() {
    let leader = || voter(1).demoted().leaving(Cause::Demoted).down();
    let three = surveyed(vec![leader(), voter(2), voter(3)]);
    assert!(matches!(step(&three), Some(Step::Remove { member: M1, .. })));
    let incomplete = Membership {
        complete: false,
        ..three
    };
    assert_eq!(
        reasons(&incomplete),
        [Reason::LeadershipNotMoved],
        "it may still answer"
    );
    // Of two voters the other cannot elect: it may not have learnt of the removal.
    let two = surveyed(vec![leader(), voter(2)]);
    assert!(matches!(step(&two), Some(Step::MoveLeadership { from: M1, .. })));
}

#[test]
fn what_etcd_refuses_while_a_voter_is_down_names_it() {
    let mut membership = surveyed(vec![voter(1), voter(2), voter(3).down()]);
    membership.joins.push(adding("n9"));
    let why = (Reason::EtcdRefused, "unhealthy cluster".to_owned());
    membership.resting.insert(Subject::Join("n9".to_owned()), why);
    let Some(Step::Note {
        progress: Progress::Adding,
        why: Some((Reason::EtcdRefused, message)),
        ..
    }) = step(&membership)
    else {
        panic!("{:?}", step(&membership));
    };
    assert!(
        message.contains("misses member 0000000000000003 of node n3"),
        "{message}"
    );
    let join = &mut membership.joins[0].join;
    (join.reason, join.message) = ("EtcdRefused".to_owned(), message);
    assert_eq!(reasons(&membership), [Reason::EtcdRefused], "it says so already");
    // What may pass in a moment is not written beside the intent.
    membership.members[2] = voter(3);
    assert_eq!(reasons(&membership), [Reason::EtcdRefused]);
}

/// All voters are healthy: nothing passes by itself.
#[test]
fn a_join_that_etcd_denies_says_so_beside_its_intent() {
    let mut membership = surveyed(vec![voter(1), voter(2), voter(3)]);
    membership.joins.push(adding("n9"));
    let why = (Reason::EtcdDenied, "permission denied".to_owned());
    membership
        .resting
        .insert(Subject::Join("n9".to_owned()), why.clone());
    let note = Step::Note {
        node: "n9".to_owned(),
        member: None,
        progress: Progress::Adding,
        why: Some(why.clone()),
    };
    assert_eq!(
        note.to_string(),
        "set the join of node n9 to adding (EtcdDenied: permission denied)"
    );
    let in_traces = format!("{note:#}");
    assert_eq!(in_traces, "set the join of node n9 to adding (EtcdDenied)");
    assert_eq!(step(&membership), Some(note));
    let join = &mut membership.joins[0].join;
    (join.reason, join.message) = (why.0.to_string(), why.1);
    assert_eq!(reasons(&membership), [Reason::EtcdDenied], "it says so already");
}

#[test]
fn while_roles_are_paused_no_step_is_taken_and_every_obstacle_stays_reported() {
    let mut paused = surveyed(vec![voter(1), voter(2).node_missing(), voter(3).learner()]);
    paused.joins.push(new_join());
    assert_eq!(step(&paused), Some(Step::DecidePromotion(M3)));
    paused.paused = true;
    let pending = [Reason::Pending, Reason::NodeMissing, Reason::LearnerPending];
    assert_eq!(reasons(&paused), pending);
    paused.joins[0].reachability = Reachability::Pending;
    assert!(next(&paused).probe.is_empty());
}

#[test]
fn a_step_that_failed_a_short_while_ago_rests_and_delays_no_other() {
    let mut membership = surveyed(vec![voter(1), voter(2).demoted(), voter(3).learner()]);
    assert_eq!(step(&membership), Some(Step::DecidePromotion(M3)));
    let why = (Reason::EtcdRefused, "unhealthy cluster".to_owned());
    membership.resting.insert(Subject::Member(M3), why);
    // Of the two voters that may be left, both are healthy.
    assert_eq!(step(&membership), Some(Step::DecideRemoval(M2, Cause::Demoted)));
}
