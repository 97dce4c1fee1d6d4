//! Releases of etcd with known faults that members run, for people. Pure.

use std::collections::BTreeMap;
use std::fmt;

use super::membership::{Member, Membership};
use crate::etcd::Class;
use crate::etcd::members::Inquiry;
use crate::etcd::members::known_faults::{FaultFound, faults, parse};

/// A known fault of a release that members run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FaultyRelease {
    /// The release, as the members say it.
    pub version: String,
    /// The members that run it, by the names that etcd has for them, else by their ids.
    pub members: Vec<String>,
    /// The fault.
    pub found: FaultFound,
}

/// Every known fault of the releases that the members say they run. A member that has not answered has none.
pub fn faulty_releases(membership: &Membership) -> Vec<FaultyRelease> {
    let mut running: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for member in membership.listed() {
        let name = member.listed.as_ref().map_or("", |listed| &listed.name);
        if let Some(status) = member.evidence.status.answer() {
            let name = match name {
                "" => member.id.to_string(),
                name => name.to_owned(),
            };
            running.entry(&status.version).or_default().push(name);
        }
    }
    let count = membership.listed().count();
    let releases = running.into_iter();
    let found = releases.flat_map(|(version, members)| {
        let found = parse(version)
            .into_iter()
            .flat_map(move |release| faults(release, count));
        found.map(move |found| FaultyRelease {
            version: version.to_owned(),
            members: members.clone(),
            found,
        })
    });
    found.collect()
}

/// Whether to ask the member again brings no news of its release: it has said it, or etcd refuses it to this user.
pub fn is_settled(member: &Member) -> bool {
    match &member.evidence.status {
        Inquiry::Asked { answer: Ok(_), .. } => true,
        Inquiry::Asked {
            answer: Err(error), ..
        } => error.class == Class::Denied,
        Inquiry::NotAsked(_) => false,
    }
}

impl fmt::Display for FaultyRelease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            version,
            members,
            found,
        } = self;
        let (members, remedy) = (members.join(", "), found.remedy());
        let (what, source) = (found.fault.what, found.fault.source);
        write!(f, "etcd {version} of {members}: {what} ({source}): {remedy}")
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::etcd::Error;
    use crate::roles::membership::tests::fixtures::{surveyed, voter};

    fn running(id: u64, release: &str) -> Member {
        let mut member = voter(id);
        if let Inquiry::Asked {
            answer: Ok(status), ..
        } = &mut member.evidence.status
        {
            status.version = release.to_owned();
        }
        member
    }

    #[test]
    fn each_fault_names_its_release_the_members_that_run_it_and_the_remedy() {
        let mixed = surveyed(vec![
            running(1, "3.4.23"),
            running(2, "3.5.16"),
            running(3, "3.4.23"),
        ]);
        let shown: Vec<String> = faulty_releases(&mixed).iter().map(ToString::to_string).collect();
        assert_eq!(
            shown,
            [
                "etcd 3.4.23 of n1, n3: under load, leases that are renewed can be ended, and leases that have ended can stay: \
                 no failover may follow (etcd issue 15247): upgrade to 3.4.31 or newer, one member at a time"
            ]
        );
    }

    #[test]
    fn a_member_that_has_not_answered_and_a_version_of_another_form_are_passed_over() {
        let unknown = surveyed(vec![voter(1).down(), running(2, "main")]);
        assert_eq!(faulty_releases(&unknown), []);
    }

    #[test]
    fn a_member_is_asked_until_it_has_said_its_release_or_etcd_has_refused_it() {
        let failing = |class| {
            let mut member = voter(1);
            member.evidence.status = Inquiry::Asked {
                at: Instant::now(),
                answer: Err(Error::of_class(class)),
            };
            member
        };
        assert!(is_settled(&running(1, "3.4.23")));
        assert!(is_settled(&failing(Class::Denied)));
        assert!(!is_settled(&failing(Class::Unavailable)));
        assert!(!is_settled(&voter(1).unstarted()));
    }

    #[test]
    fn what_only_a_cluster_of_one_has_is_found_there_alone() {
        let found = |members: Vec<Member>| faulty_releases(&surveyed(members)).len();
        assert_eq!(found(vec![running(1, "3.4.20")]), 2);
        assert_eq!(found(vec![running(1, "3.4.20"), running(2, "3.4.20")]), 1);
    }
}
