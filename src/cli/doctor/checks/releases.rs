//! The releases of etcd that the members run: too old, with known faults, and differing. Pure.

use std::collections::BTreeSet;

use super::checklist::Checklist;
use super::subject::subject;
use crate::cli::doctor::finding::Finding;
use crate::cli::doctor::reason::Reason;
use crate::etcd::members::Status;
use crate::etcd::members::known_faults::{LEAST, Release, faults, parse};
use crate::roles::membership::{Member, Membership};

/// Checks the release of each member, and that they do not differ for long.
pub fn check(membership: &Membership, list: &mut Checklist) {
    let count = membership.listed().count();
    let release = |member: &Member| parse(&member.evidence.status.answer()?.version);
    for member in membership.listed() {
        let (Some(status), Some(parsed)) = (member.evidence.status.answer(), release(member)) else {
            continue;
        };
        list.check(too_old(member, status, parsed));
        for found in faults(parsed, count) {
            let (fault, remedy) = (found.fault, found.remedy());
            let what = format!(
                "etcd {} has a known fault: {} ({})",
                status.version, fault.what, fault.source
            );
            let found = match fault.endangers_data {
                true => Finding::fault(Reason::EtcdRelease, subject(member), what)
                    .matters("everything that Quorate knows lies there, and no alarm need be raised"),
                false => Finding::warning(Reason::EtcdRelease, subject(member), what)
                    .matters("the leader, the registrations and the nodes that are ready depend on leases"),
            };
            list.check(Some(found.remedy(remedy)));
        }
    }
    let minors: BTreeSet<(u64, u64)> = membership
        .listed()
        .filter_map(release)
        .map(|(major, minor, _)| (major, minor))
        .collect();
    list.check((minors.len() > 1).then(|| {
        let minors: Vec<String> = minors
            .iter()
            .map(|(major, minor)| format!("{major}.{minor}"))
            .collect();
        Finding::warning(
            Reason::EtcdReleasesDiffer,
            "etcd members",
            format!("they run releases of {}", minors.join(" and ")),
        )
        .matters(
            "the cluster behaves as the oldest of them, and members should not be added or removed meanwhile",
        )
        .remedy("complete the upgrade of etcd, one member at a time")
    }));
}

fn too_old(member: &Member, status: &Status, release: Release) -> Option<Finding> {
    let (major, minor, _) = LEAST;
    (release < LEAST).then(|| {
        Finding::fault(
            Reason::EtcdRelease,
            subject(member),
            format!("etcd {} is older than {major}.{minor}", status.version),
        )
        .matters("it has no learners, and Quorate is not tested with it")
        .remedy("upgrade etcd to 3.5.28, 3.6.9 or newer, one minor release at a time")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::roles::membership::tests::fixtures::{surveyed, voter};

    #[test]
    fn a_release_before_the_oldest_that_works_is_a_fault() {
        let member = voter(1);
        let status = member.evidence.status.answer().unwrap();
        let is_found = |release| too_old(&member, status, release).is_some();
        assert!(is_found((3, 3, 27)) && !is_found((3, 4, 0)));
    }

    #[test]
    fn the_releases_of_members_are_checked_and_compared() {
        let mut list = Checklist::default();
        check(&surveyed(vec![voter(1), voter(2)]), &mut list);
        // 3.4.23, of both.
        let reasons: Vec<_> = list.findings.iter().map(|found| found.reason).collect();
        assert_eq!(reasons, [Reason::EtcdRelease; 2]);
    }
}
