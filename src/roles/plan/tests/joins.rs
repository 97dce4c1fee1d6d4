//! Nodes that join, one situation a test.

use super::*;

const M1: MemberId = MemberId(1);
const M2: MemberId = MemberId(2);
const M3: MemberId = MemberId(3);

#[test]
fn a_join_is_decided_then_added_then_recorded() {
    let mut membership = surveyed(vec![voter(1)]);
    membership.joins.push(new_join());
    assert_eq!(step(&membership), Some(Step::DecideAdd("n9".to_owned())));
    membership.joins = vec![adding("n9")];
    let add = Step::Add {
        node: "n9".to_owned(),
        through: M1,
    };
    assert_eq!(step(&membership), Some(add));
    let made = voter(9).learner().down().unmanaged();
    membership.members.push(made);
    let record = Step::Record {
        node: "n9".to_owned(),
        member: MemberId(9),
    };
    assert_eq!(step(&membership), Some(record));
}

#[test]
fn an_add_in_doubt_is_awaited_although_its_node_is_gone() {
    let mut membership = surveyed(vec![voter(1)]);
    let mut pending = adding("n9");
    pending.roles = None;
    membership.joins.push(pending);
    assert_eq!(reasons(&membership), [Reason::Pending]);
    assert_eq!(refusal(step_at(31, &membership)), Some(Reason::NodeNotFound));
    // If it was made after all, it is recorded, so that it can be evicted.
    membership.members.push(voter(9).learner().down().unmanaged());
    assert!(matches!(step(&membership), Some(Step::Record { .. })));
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
fn an_add_in_doubt_is_awaited_although_its_node_is_demoted_or_requests_another_address() {
    let mut membership = surveyed(vec![voter(1)]);
    membership.joins.push(adding("n9"));
    for role in [Role::Worker, Role::Manager] {
        let roles = membership.joins[0].roles.as_mut().unwrap();
        (roles.desired, roles.observed) = (role, role);
        if role == Role::Manager {
            let request = membership.joins[0].join.request.as_mut().unwrap();
            request.peer_urls = vec!["http://10.0.0.10:2380".to_owned()];
        } else {
            roles.observed = Role::Manager;
        }
        assert_eq!(reasons(&membership), [Reason::Pending], "{role:?}");
    }
    let again = step_at(31, &membership);
    assert_eq!(again, Some(Step::DecideAdd("n9".to_owned())));
    membership.joins[0].roles.as_mut().unwrap().desired = Role::Worker;
    assert_eq!(refusal(step_at(31, &membership)), Some(Reason::NotAManager));
}

#[test]
fn an_intent_to_add_is_renewed_before_it_is_too_old() {
    let mut membership = surveyed(vec![voter(1)]);
    membership.joins.push(adding("n9"));
    let add = step_at(14, &membership);
    assert!(matches!(add, Some(Step::Add { .. })));
    assert_eq!(step_at(15, &membership), Some(Step::DecideAdd("n9".to_owned())));
}

/// A join of node `n2` that gives up member 2 for it.
fn replacement() -> PendingJoin {
    let mut pending = new_join();
    pending.node = "n2".to_owned();
    let request = pending.join.request.as_mut().unwrap();
    request.node_uid = "u2".to_owned();
    request.peer_urls = vec!["http://10.0.0.2:2380".to_owned()];
    request.replaces = 2;
    pending
}

#[test]
fn a_member_whose_data_is_lost_is_removed_for_its_join_and_its_node_joins_again() {
    let mut membership = surveyed(vec![voter(1), voter(2).down(), voter(3)]);
    membership.joins.push(replacement());
    assert_eq!(step(&membership), Some(Step::DecideRemoval(M2, Cause::DataLost)));
    // An address that cannot be reached is refused before the member is given up.
    let mut unreachable = membership.clone();
    unreachable.joins[0].reachability = Reachability::Unreachable("no answer".to_owned());
    assert_eq!(refusal(step(&unreachable)), Some(Reason::PeerUnreachable));
    membership.members[1] = voter(2).down().leaving(Cause::DataLost).quiet();
    let remove = Step::Remove {
        member: M2,
        through: M1,
    };
    assert_eq!(step(&membership), Some(remove));
    // The request was replaced by another.
    let mut withdrawn = membership.clone();
    withdrawn.joins.clear();
    assert_eq!(step(&withdrawn), Some(Step::Withdraw(M2)));
    membership.members.remove(1);
    assert_eq!(step(&membership), Some(Step::DecideAdd("n2".to_owned())));
}

/// The command saw the member down, but the leader may come to it much later.
#[test]
fn a_member_that_answers_again_is_not_given_up_unless_its_replacement_is_forced() {
    let mut membership = surveyed(vec![voter(1), voter(2), voter(3)]);
    membership.joins.push(replacement());
    assert_eq!(refusal(step(&membership)), Some(Reason::MemberHealthy));
    let with = |membership: &Membership, member: Member, complete| {
        let mut other = membership.clone();
        other.members[1] = member;
        other.complete = complete;
        other
    };
    // Neither before the intent nor after it, as long as it may still answer.
    let undecided = with(&membership, voter(2).down(), false);
    assert_eq!(reasons(&undecided), [Reason::Pending]);
    let leaving = || voter(2).leaving(Cause::DataLost);
    let silent = with(&membership, leaving().down(), false);
    assert_eq!(reasons(&silent)[0], Reason::Pending);
    // Once decided, a call may be under way for some time.
    let back = with(&membership, leaving(), true);
    let step_back = step(&back);
    assert!(!matches!(step_back, Some(Step::Remove { .. })), "{step_back:?}");
    let quiet = with(&membership, leaving().quiet(), true);
    assert_eq!(step(&quiet), Some(Step::Withdraw(M2)));
    let request = membership.joins[0].join.request.as_mut().unwrap();
    request.forced = true;
    assert_eq!(step(&membership), Some(Step::DecideRemoval(M2, Cause::DataLost)));
    let forced = with(&membership, leaving().quiet(), false);
    assert!(matches!(step(&forced), Some(Step::Remove { member: M2, .. })));
}

#[test]
fn a_member_is_given_up_only_where_the_new_one_can_be_added() {
    let mut many = surveyed((1..9).map(voter).collect());
    many.members[1] = voter(2).down();
    many.joins.push(replacement());
    assert_eq!(step(&many), Some(Step::DecideRemoval(M2, Cause::DataLost)));
    // It takes the place of the member that it replaces, however many there are.
    many.members.remove(1);
    many.joins[0].join.request.as_mut().unwrap().voters = 8;
    assert_eq!(step(&many), Some(Step::DecideAdd("n2".to_owned())));
    // A learner that is stuck would hold the new one up, unless it is the very one that is replaced.
    let stuck = voter(4).learner().down().unmanaged();
    let mut queued = surveyed(vec![voter(1), voter(2).down(), voter(3), stuck]);
    queued.joins.push(replacement());
    let Some(Step::Note {
        why: Some((reason, _)),
        ..
    }) = step(&queued)
    else {
        panic!("{:?}", step(&queued));
    };
    assert_eq!(reason, Reason::LearnerPending);
    let mut own = surveyed(vec![voter(1), voter(2).learner().down(), voter(3)]);
    own.joins.push(replacement());
    assert_eq!(step(&own), Some(Step::DecideRemoval(M2, Cause::DataLost)));
}

#[test]
fn there_are_no_more_voters_than_allowed_and_a_join_waits_for_the_address_of_a_member_that_leaves() {
    let mut membership = surveyed((1..8).map(voter).collect());
    membership.joins.push(new_join());
    let limit = |membership: &Membership| match step(membership) {
        Some(Step::Note {
            progress: Progress::Waiting,
            why,
            ..
        }) => why.map(|(reason, _)| reason),
        other => panic!("{other:?}"),
    };
    assert_eq!(limit(&membership), Some(Reason::VoterLimit));
    // A replacement may have the place of the voter that it was requested for, but not one more.
    let replaces = |voters| {
        let mut membership = membership.clone();
        let request = membership.joins[0].join.request.as_mut().unwrap();
        (request.replaces, request.voters) = (99, voters);
        membership
    };
    assert_eq!(step(&replaces(8)), Some(Step::DecideAdd("n9".to_owned())));
    assert_eq!(limit(&replaces(7)), Some(Reason::VoterLimit));
    let mut membership = surveyed(vec![
        voter(1),
        voter(2),
        voter(9).demoted().leaving(Cause::Demoted),
    ]);
    membership.raft_leader = None;
    membership.joins.push(new_join());
    assert_eq!(limit(&membership), Some(Reason::RemovalPending));
}

#[test]
fn a_peer_url_that_is_being_added_for_one_node_is_refused_to_another() {
    let mut membership = surveyed(vec![voter(1)]);
    membership.joins = vec![adding("n8"), new_join()];
    // The first join cannot go on, because its step failed.
    let why = (Reason::EtcdUnavailable, "no answer".to_owned());
    membership.resting.insert(Subject::Join("n8".to_owned()), why);
    assert_eq!(refusal(step(&membership)), Some(Reason::PeerUrlTaken));
    membership.joins[0].join.peer_urls = vec!["http://10.0.0.8:2380".to_owned()];
    assert_eq!(step(&membership), Some(Step::DecideAdd("n9".to_owned())));
    // A node does not conflict with itself.
    membership.joins = vec![adding("n9")];
    assert!(matches!(step(&membership), Some(Step::Add { .. })));
}

#[test]
fn a_join_that_cannot_be_written_delays_no_other_step() {
    let why = || (Reason::Pending, "something changed meanwhile".to_owned());
    let made = voter(9).learner().down().unmanaged();
    let mut membership = surveyed(vec![voter(1), voter(2), voter(3).demoted(), made]);
    membership.joins.push(adding("n9"));
    assert!(matches!(step(&membership), Some(Step::Record { .. })));
    membership.resting.insert(Subject::Join("n9".to_owned()), why());
    assert_eq!(step(&membership), Some(Step::DecideRemoval(M3, Cause::Demoted)));
    // The same holds if its member votes and the join cannot say so.
    membership.members.pop();
    membership.joins[0].join.progress = Progress::Learner.into();
    membership.joins[0].join.member_id = 1;
    assert_eq!(step(&membership), Some(Step::DecideRemoval(M3, Cause::Demoted)));
    membership.resting.clear();
    assert!(matches!(
        step(&membership),
        Some(Step::Note {
            progress: Progress::Voter,
            ..
        })
    ));
}

/// INV-9: it would fail again and again, each time at once.
#[test]
fn why_a_join_waits_is_not_noted_soon_after_that_could_not_be_written() {
    let mut membership = surveyed(vec![voter(1), voter(2)]);
    membership.joins.push(new_join());
    let subject = || Subject::Join("n9".to_owned());
    let why = (Reason::EtcdUnavailable, "no room".to_owned());
    membership.resting.insert(subject(), why);
    assert!(matches!(step(&membership), Some(Step::Note { .. })));
    membership.unnoted.insert(subject());
    assert_eq!(step(&membership), None);
    membership.resting.clear();
    membership.unnoted.clear();
    assert_eq!(step(&membership), Some(Step::DecideAdd("n9".to_owned())));
}

#[test]
fn there_is_one_learner_at_a_time_and_the_other_joins_say_that_they_wait() {
    let mut membership = surveyed(vec![voter(1), voter(2).learner().down()]);
    membership.joins.push(new_join());
    let noted = step(&membership).unwrap();
    assert!(
        matches!(
            &noted,
            Step::Note {
                progress: Progress::Waiting,
                why: Some((Reason::LearnerPending, _)),
                ..
            }
        ),
        "{noted}"
    );
    let Step::Note {
        why: Some((reason, message)),
        ..
    } = noted
    else {
        unreachable!()
    };
    let join = &mut membership.joins[0].join;
    join.answers = "r1".to_owned();
    join.progress = Progress::Waiting.into();
    (join.reason, join.message) = (reason.to_string(), message);
    assert_eq!(
        reasons(&membership),
        [Reason::LearnerNotInSync, Reason::LearnerPending]
    );
    // Not before every member had its time to answer.
    membership.joins[0] = new_join();
    membership.complete = false;
    assert_eq!(
        reasons(&membership),
        [Reason::LearnerNotInSync, Reason::LearnerPending]
    );
}

#[test]
fn a_peer_url_is_tested_first_and_refused_if_it_is_unreachable() {
    let mut membership = surveyed(vec![voter(1)]);
    membership.joins.push(new_join());
    membership.joins[0].reachability = Reachability::Pending;
    let plan = next(&membership);
    let probe = vec![Subject::Join("n9".to_owned())];
    assert_eq!((plan.step, plan.probe), (None, probe));
    membership.joins[0].reachability = Reachability::Unreachable("no answer".to_owned());
    assert_eq!(refusal(step(&membership)), Some(Reason::PeerUnreachable));
    membership.joins[0].join.request.as_mut().unwrap().no_dial = true;
    assert_eq!(step(&membership), Some(Step::DecideAdd("n9".to_owned())));
}

#[test]
fn a_member_that_joins_again_gets_its_new_address_and_keeps_its_vote() {
    let mut pending = new_join();
    pending.node = "n2".to_owned();
    pending.join.request.as_mut().unwrap().node_uid = "u2".to_owned();
    pending.roles = Some(manager());
    let mut membership = surveyed(vec![voter(1), voter(2), voter(3)]);
    membership.joins.push(pending);
    let readdress = Step::DecideReaddress {
        node: "n2".to_owned(),
        member: M2,
    };
    assert_eq!(step(&membership), Some(readdress.clone()));
    // Of two voters, one at an address without a listener could be lost.
    membership.members.pop();
    let noted = step(&membership).unwrap();
    assert!(
        matches!(
            noted,
            Step::Note {
                why: Some((Reason::QuorumRisk, _)),
                ..
            }
        ),
        "{noted}"
    );
    membership.joins[0].reachability = Reachability::Reached(Listener::Expected);
    assert_eq!(step(&membership), Some(readdress));
    membership.joins[0].reachability = Reachability::Unreachable("no answer".to_owned());
    assert_eq!(refusal(step(&membership)), Some(Reason::PeerUnreachable));
    membership.joins[0].reachability = Reachability::Reached(Listener::Expected);
    membership.members[1] = voter(2).learner().down();
    assert_eq!(step(&membership), Some(Step::DecideRemoval(M2, Cause::Replaced)));
    membership.members[1] = voter(2).at("http://10.0.0.9:2380/");
    let same = step(&membership).unwrap();
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
fn no_voter_moves_to_an_address_without_a_listener_while_a_learner_that_is_down_may_become_a_voter() {
    let promoted = voter(4).learner().down().rising();
    let mut membership = surveyed(vec![voter(1), voter(2), voter(3), promoted]);
    let mut pending = new_join();
    pending.node = "n2".to_owned();
    pending.join.request.as_mut().unwrap().node_uid = "u2".to_owned();
    membership.joins.push(pending);
    membership.complete = false;
    assert_eq!(
        reasons(&membership),
        [Reason::LearnerNotInSync, Reason::QuorumRisk]
    );
    membership.joins[0].reachability = Reachability::Reached(Listener::Expected);
    assert!(matches!(
        step(&membership),
        Some(Step::DecideReaddress { member: M2, .. })
    ));
}
