//! Alarms of etcd: what is not done while they are raised, and what a member with corrupt data no longer counts for.

use super::*;
use crate::etcd::members::{Alarm, Inquiry, NotAsked};

const M1: MemberId = MemberId(1);
const M2: MemberId = MemberId(2);
const M3: MemberId = MemberId(3);

#[test]
fn nothing_is_decided_and_nothing_is_added_while_etcd_takes_no_writes() {
    for kind in [Alarm::NOSPACE, Alarm::CORRUPT] {
        // Of a member that is long gone, too: etcd keeps the alarm until a person clears it.
        for member in [2, 99] {
            let full = |id| voter(id).with_alarm(kind, member);
            let mut membership = surveyed(vec![full(1), full(2), full(3).demoted()]);
            membership.joins.push(new_join());
            let plan = next(&membership);
            assert_eq!(plan.step, None, "{kind}");
            let reasons: Vec<_> = plan.blocked.iter().map(|blocked| blocked.reason).collect();
            assert_eq!(reasons, [Reason::EtcdAlarm, Reason::EtcdAlarm]);
            let said = &plan.blocked[1].message;
            assert!(
                said.contains(&format!("the alarm {kind} of member {}", MemberId(member))),
                "{said}"
            );
            // An add that is decided waits: its result could not be recorded.
            membership.members[2] = full(3);
            membership.joins = vec![adding("n9")];
            assert_eq!(next(&membership).step, None);
            membership.members[2] = full(3).learner();
            membership.joins.clear();
            assert_eq!(super::reasons(&membership), [Reason::EtcdAlarm]);
        }
    }
}

#[test]
fn what_is_decided_is_carried_out_under_an_alarm() {
    let full = |id| voter(id).with_alarm(Alarm::NOSPACE, 3);
    let leaving = surveyed(vec![full(1), full(2), full(3).leaving(Cause::DataLost).demoted()]);
    let remove = Step::Remove {
        member: M3,
        through: M1,
    };
    assert_eq!(step(&leaving), Some(remove));
}

/// It goes on to say what was so when it was cut off.
#[test]
fn an_alarm_counts_only_where_a_voter_that_serves_reads_says_so() {
    for kind in [Alarm::NOSPACE, Alarm::CORRUPT] {
        let cut_off = || voter(3).unread().with_alarm(kind, 1);
        let membership = surveyed(vec![voter(1), voter(2), cut_off().demoted()]);
        assert_eq!(
            step(&membership),
            Some(Step::DecideRemoval(M3, Cause::Demoted)),
            "{kind}"
        );
        // A learner reads from its own data, which may be as old.
        let learner = voter(4).learner().with_alarm(kind, 1);
        let membership = surveyed(vec![voter(1), voter(2), voter(3).demoted(), learner]);
        assert!(membership.alarms().is_empty(), "{kind}");
        // Where no such voter says anything about alarms, every word counts.
        let silent = |mut member: Member| {
            member.evidence.status = Inquiry::NotAsked(NotAsked::Leaving);
            member
        };
        for others in [
            [voter(1).unread(), voter(2).down()],
            [silent(voter(1)), silent(voter(2))],
        ] {
            let [first, second] = others;
            let membership = surveyed(vec![first, second, cut_off()]);
            assert!(membership.refuses_writes().is_some(), "{kind}");
        }
    }
}

#[test]
fn a_corrupt_member_counts_for_no_quorum_although_it_answers() {
    let leaving = |member: Member| member.demoted().leaving(Cause::Demoted);
    let membership = surveyed(vec![voter(1), leaving(voter(2)), voter(3).corrupt()]);
    assert_eq!(reasons(&membership), [Reason::QuorumRisk]);
    let membership = surveyed(vec![voter(1), voter(2), leaving(voter(3).corrupt())]);
    let remove = |member| Step::Remove { member, through: M1 };
    assert_eq!(step(&membership), Some(remove(M3)));
    // It is as good as lost where it is replaced.
    let mut replaced = surveyed(vec![
        voter(1),
        voter(2).corrupt().leaving(Cause::DataLost),
        voter(3),
    ]);
    let mut pending = new_join();
    pending.node = "n2".to_owned();
    let request = pending.join.request.as_mut().unwrap();
    (request.node_uid, request.replaces) = ("u2".to_owned(), 2);
    replaced.joins.push(pending);
    assert_eq!(step(&replaced), Some(remove(M2)));
}

#[test]
fn a_corrupt_member_goes_before_a_healthy_one() {
    let leaving = |member: Member| member.demoted().leaving(Cause::Demoted);
    let corrupt = leaving(voter(5).corrupt());
    let all = vec![voter(1), leaving(voter(2)), voter(3), voter(4), corrupt];
    let first = step(&surveyed(all));
    assert!(
        matches!(
            first,
            Some(Step::Remove {
                member: MemberId(5),
                ..
            })
        ),
        "{first:?}"
    );
}

#[test]
fn a_corrupt_member_neither_leads_nor_is_asked_for_changes() {
    let of_other = |id| voter(id).with_alarm(Alarm::CORRUPT, 1);
    let membership = surveyed(vec![voter(1).corrupt(), of_other(2), of_other(3)]);
    let step = step(&membership);
    let moved = matches!(
        step,
        Some(Step::MoveLeadership {
            from: M1,
            to: M2 | M3
        })
    );
    assert!(moved, "{step:?}");
    // Not to another one of its kind.
    let alone = surveyed(vec![voter(1).corrupt(), voter(2).corrupt(), voter(3).down()]);
    assert_eq!(reasons(&alone), [Reason::LeadershipNotMoved]);
    let leaving = surveyed(vec![
        voter(2).corrupt(),
        voter(1),
        voter(4),
        voter(3).leaving(Cause::Demoted).demoted(),
    ]);
    let mut leaving = leaving;
    leaving.raft_leader = Some(M3);
    let step = super::step(&leaving);
    assert!(
        matches!(step, Some(Step::MoveLeadership { from: M3, to }) if to == M1 || to == MemberId(4)),
        "{step:?}"
    );
}

#[test]
fn a_corrupt_learner_is_not_promoted_although_that_is_decided() {
    let corrupt = voter(4).learner().rising().corrupt();
    let plan = next(&surveyed(vec![voter(1), voter(2), voter(3), corrupt]));
    assert_eq!(plan.step, None);
    let said = &plan.blocked[0];
    assert_eq!(said.reason, Reason::EtcdAlarm);
    assert!(
        said.message.contains("is corrupt: stop its etcd"),
        "{}",
        said.message
    );
}
