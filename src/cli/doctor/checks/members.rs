//! The members of etcd: quorum, health, records, alarms. Pure.

use std::collections::BTreeSet;

use super::checklist::Checklist;
use super::subject::subject;
use super::{releases, settings};
use crate::cli::doctor::finding::Finding;
use crate::cli::doctor::reason::Reason;
use crate::cli::doctor::seen::Seen;
use crate::etcd::members::{Alarm, Unproven};
use crate::etcd::{Class, Error};
use crate::roles::membership::{Member, Membership};
use crate::roles::quorum::Quorum;

/// Checks the members.
pub fn check(seen: &Seen, list: &mut Checklist) {
    let Ok(store) = &seen.store else {
        return;
    };
    let without_quorum = store.without_quorum && !are_learners(seen);
    let membership = match &store.membership {
        Ok(membership) => membership,
        Err(why) => {
            list.check(without_quorum.then(|| no_quorum(None)));
            list.check(Some(
                Finding::warning(
                    Reason::NotAnswered,
                    "etcd members",
                    format!("they cannot be checked: {why}"),
                )
                .matters("their health, alarms, releases and sizes are not known")
                .remedy("run doctor again; if it stays so, look at the log of etcd"),
            ));
            return;
        }
    };
    list.check(without_quorum.then(|| no_quorum(Some(membership))));
    if !without_quorum {
        // Else none of them serves, and the finding about the quorum names those that are silent.
        list.check_each(membership.listed(), illness);
    }
    list.check_each(membership.listed(), not_started);
    let has_records = membership.listed().any(|member| member.record.is_some());
    list.check_each(membership.listed(), |member| unmanaged(member, has_records));
    let raised = membership.alarms();
    list.check_each([Alarm::NOSPACE, Alarm::CORRUPT], |kind| {
        alarm(&raised, kind, membership)
    });
    list.check_each(membership.listed(), status_denied);
    releases::check(membership, list);
    settings::check(seen, store, membership, list);
}

/// Whether every endpoint that answers is that of a learner, which serves no linearizable read however healthy its cluster is.
fn are_learners(seen: &Seen) -> bool {
    let endpoints = seen.endpoints.iter().flatten();
    let answered = endpoints.filter_map(|of| of.answer.as_ref().ok());
    let is_learner = answered.map(|answered| answered.linearizable.as_ref().is_err_and(Error::is_of_learner));
    let each: Vec<bool> = is_learner.collect();
    !each.is_empty() && each.iter().all(|is_learner| *is_learner)
}

fn no_quorum(membership: Option<&Membership>) -> Finding {
    let mut what = "it has no quorum: no linearizable read is answered".to_owned();
    if let Some(membership) = membership {
        let quorum = Quorum::of(&membership.votes());
        let (answer, silent): (Vec<_>, Vec<_>) = membership
            .voters()
            .partition(|voter| voter.evidence.status.answer().is_some());
        let why = |voter: &&Member| {
            let why = voter.evidence.status.result().err();
            let why = why.map_or_else(String::new, |why| why.to_string());
            format!("; {} does not: {why}", subject(voter))
        };
        let silent: String = silent.iter().map(why).collect();
        what = format!(
            "{what}. Of {} voters {} answer by themselves, and {} are needed{silent}",
            quorum.voters,
            answer.len(),
            quorum.needed()
        );
    }
    Finding::fault(Reason::NoQuorum, "etcd", what)
        .matters(
            "nothing can be written: no replica leads, no node is ready for long, and what is shown here may be out of date",
        )
        .remedy("start the voters that are down, with their data; quorate recover plan says what to do if they are lost")
}

/// From 3.5.28 to 3.5.30 etcd tells its status to users with the role root alone (etcd issue 21663).
fn status_denied(member: &Member) -> Option<Finding> {
    let Err(Unproven::Failed(error)) = member.evidence.status.result() else {
        return None;
    };
    (error.class == Class::Denied).then(|| {
        Finding::warning(
            Reason::EtcdRights,
            subject(member),
            format!("etcd does not tell this client its status: {}", error.message()),
        )
        .matters(
            "its release, size and alarms and the raft leader are not known, and a leader would not notice that etcd was restored from a \
             snapshot",
        )
        .remedy(
            "give the user etcd's role root (etcdctl user grant-role USER root), or upgrade etcd: only 3.5.28 to 3.5.30, and releases of \
             3.6 of that time, demand it",
        )
    })
}

fn illness(member: &Member) -> Option<Finding> {
    // It has a finding of its own.
    if member.corrupt || !member.has_started() {
        return None;
    }
    let illness = member.illness()?;
    let urls = member
        .listed
        .as_ref()
        .map_or_else(String::new, |listed| listed.client_urls.join(", "));
    let kind = member.kind_word();
    Some(
        Finding::fault(
            Reason::MemberUnreachable,
            subject(member),
            format!("this {kind} does not serve at {urls}: {illness}"),
        )
        .matters(
            "a voter that does not serve is one loss less that the quorum survives, and the leader makes no change of roles that \
             would depend on it",
        )
        .remedy(
            "is its etcd running, and do its own client URLs (--advertise-client-urls) lead to it from the machines of the replicas? \
             If its data is lost: quorate replace NODE",
        ),
    )
}

fn not_started(member: &Member) -> Option<Finding> {
    if member.has_started() {
        return None;
    }
    let kind = member.kind_word();
    Some(
        Finding::warning(
            Reason::MemberNotStarted,
            subject(member),
            format!("this {kind} was added and never started, at {}", member.peer_urls().join(", ")),
        )
        .matters("etcd takes one learner at a time, and a voter that never started is missing in the quorum")
        .remedy(
            "start its etcd on an empty data directory with what quorate join NODE -o env prints; or remove it: quorate demote NODE, \
             or etcdctl member remove for a member without a node",
        ),
    )
}

fn unmanaged(member: &Member, has_records: bool) -> Option<Finding> {
    if member.record.is_some() || !has_records {
        return None;
    }
    Some(
        Finding::warning(
            Reason::MemberUnmanaged,
            subject(member),
            "no record below /members/ ties it to a node, and others have one",
        )
        .matters("roles do not reach it: it is neither removed with its node nor counted among the managers")
        .remedy("quorate adopt MEMBER, with --node NAME where the node has another name"),
    )
}

fn alarm(raised: &BTreeSet<&Alarm>, kind: &str, membership: &Membership) -> Option<Finding> {
    let of = raised.iter().filter(|alarm| alarm.kind == kind);
    let members: Vec<String> = of
        .map(|alarm| {
            let known = membership.member(alarm.member);
            known.map_or_else(|| format!("etcd member {}", alarm.member), subject)
        })
        .collect();
    if members.is_empty() {
        return None;
    }
    let (members, has) = (members.join(", "), "it has raised the alarm");
    Some(match kind {
        Alarm::NOSPACE => Finding::fault(
            Reason::EtcdNoSpace,
            members,
            format!("{has} NOSPACE: the quota of its database is used up"),
        )
        .matters("etcd refuses every write of the whole cluster that takes space")
        .remedy(
            "compact and defragment (etcdctl compact REVISION, etcdctl defrag --cluster), or raise --quota-backend-bytes; then clear \
             the alarm, which does not go by itself: etcdctl alarm disarm",
        ),
        _ => Finding::fault(
            Reason::EtcdCorrupt,
            members,
            format!("{has} {kind}: its data differs from that of the others"),
        )
        .matters("etcd refuses every write, and what this member answers may be wrong")
        .remedy(format!("{}, then quorate replace its node", Alarm::BEFORE_REPLACEMENT)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::etcd::members::Inquiry;
    use crate::roles::membership::tests::fixtures::{surveyed, voter};

    #[test]
    fn without_a_quorum_each_voter_that_does_not_answer_is_named() {
        let membership = surveyed(vec![voter(1), voter(2).down(), voter(3).down()]);
        let found = no_quorum(Some(&membership));
        assert!(
            found
                .what
                .contains("Of 3 voters 1 answer by themselves, and 2 are needed"),
            "{found:?}"
        );
        assert!(found.what.contains("etcd member n2 does not"), "{found:?}");
        assert!(found.what.contains("etcd member n3 does not"), "{found:?}");
        assert!(!found.what.contains("n1 does not"), "{found:?}");
    }

    #[test]
    fn a_status_that_a_user_may_not_ask_for_is_named_and_one_that_was_not_answered_is_not() {
        let answering = |class| {
            let mut member = voter(1);
            member.evidence.status = Inquiry::Asked {
                at: std::time::Instant::now(),
                answer: Err(Error::of_class(class)),
            };
            member
        };
        let found = status_denied(&answering(Class::Denied)).unwrap();
        assert_eq!(found.reason, Reason::EtcdRights);
        assert!(found.what.ends_with("its status: permission denied"), "{found:?}");
        assert!(status_denied(&answering(Class::Unavailable)).is_none());
        assert!(status_denied(&voter(1)).is_none() && status_denied(&voter(1).down()).is_none());
    }

    #[test]
    fn a_member_is_found_by_its_state() {
        assert!(illness(&voter(1)).is_none() && not_started(&voter(1)).is_none());
        assert_eq!(
            illness(&voter(1).down()).unwrap().reason,
            Reason::MemberUnreachable
        );
        let unstarted = voter(1).learner().unstarted();
        assert!(illness(&unstarted).is_none());
        assert!(
            not_started(&unstarted)
                .unwrap()
                .what
                .contains("this learner was added")
        );
        assert!(unmanaged(&voter(1).unmanaged(), true).is_some());
        assert!(
            unmanaged(&voter(1).unmanaged(), false).is_none(),
            "roles are not in use"
        );
    }

    #[test]
    fn each_alarm_has_its_finding() {
        let membership = surveyed(vec![voter(1).with_alarm(Alarm::NOSPACE, 1), voter(2)]);
        let raised = membership.alarms();
        let found = alarm(&raised, Alarm::NOSPACE, &membership).unwrap();
        assert_eq!(
            (found.reason, &*found.subjects[0]),
            (Reason::EtcdNoSpace, "etcd member n1")
        );
        assert!(alarm(&raised, Alarm::CORRUPT, &membership).is_none());
    }
}
