//! Releases of etcd with known faults. Pure.
//!
//! The table holds faults that ordinary work can meet and that etcd's maintainers have warned all users of, and those that a lease
//! can meet. A stale read (mended in 3.5.28 and 3.6.9) is not among them: each write of Quorate compares what it read.

/// A release by its three numbers.
pub type Release = (u64, u64, u64);

/// A fault of some releases.
#[derive(Debug, PartialEq, Eq)]
pub struct KnownFault {
    /// In each line of releases that has it: the first release that does, and the first after that without it.
    releases: &'static [(Release, Release)],
    /// Whether members can come to hold different data, or data that was acknowledged can be lost.
    pub endangers_data: bool,
    /// Whether only a cluster of one member has it.
    alone: bool,
    /// What happens.
    pub what: &'static str,
    /// Where it is described.
    pub source: &'static str,
}

/// The oldest release that Quorate works with.
pub const LEAST: Release = (3, 4, 0);

/// The faults. The releases that mended them are those of etcd's CHANGELOG-3.4.md and CHANGELOG-3.5.md.
const KNOWN: &[KnownFault] = &[
    // https://github.com/etcd-io/etcd/issues/11651, mended by #11652.
    KnownFault {
        releases: &[((3, 4, 0), (3, 4, 8))],
        endangers_data: true,
        alone: false,
        what: "with authentication enabled, members come to hold different data after a restart",
        source: "etcd issue 11651",
    },
    // https://github.com/etcd-io/etcd/blob/main/Documentation/postmortems/v3.5-data-inconsistency.md, mended by #13908.
    KnownFault {
        releases: &[((3, 5, 0), (3, 5, 3))],
        endangers_data: true,
        alone: false,
        what: "a member that is killed under load can lose committed writes, and nothing says so",
        source: "etcd issue 13766 and its post-mortem \"v3.5 data inconsistency\"",
    },
    // https://github.com/etcd-io/etcd/issues/14571, a regression of #14409 and #14410, mended by #14648 and #14649.
    KnownFault {
        releases: &[((3, 4, 21), (3, 4, 22)), ((3, 5, 5), (3, 5, 6))],
        endangers_data: true,
        alone: false,
        what: "with authentication enabled, a member that gets a snapshot comes to hold different data",
        source: "etcd issue 14571",
    },
    // https://github.com/etcd-io/etcd/issues/14370, mended by #14423 and #14424.
    KnownFault {
        releases: &[((3, 4, 0), (3, 4, 21)), ((3, 5, 0), (3, 5, 5))],
        endangers_data: true,
        alone: true,
        what: "a cluster of one member acknowledges writes that it can lose in a crash",
        source: "etcd issue 14370",
    },
    // https://github.com/etcd-io/etcd/pull/14730, backported by #14733; 3.4 does not have it.
    KnownFault {
        releases: &[((3, 5, 0), (3, 5, 6))],
        endangers_data: true,
        alone: false,
        what: "a member that crashes while it is defragmented can apply writes twice, and then holds different data",
        source: "etcd pull request 14730",
    },
    // https://github.com/etcd-io/etcd/issues/15247, mended by #17425 and #17465.
    KnownFault {
        releases: &[((3, 4, 0), (3, 4, 31)), ((3, 5, 0), (3, 5, 13))],
        endangers_data: false,
        alone: false,
        what: "under load, leases that are renewed can be ended, and leases that have ended can stay: no failover may follow",
        source: "etcd issue 15247",
    },
];

/// The numbers of a version such as `3.5.16` or `3.6.0-rc.1`; `None` for another text.
pub fn parse(version: &str) -> Option<Release> {
    let release = version.split(['-', '+']).next()?;
    let mut numbers = release.split('.').map(|number| number.parse().ok());
    let parsed = (numbers.next()??, numbers.next()??, numbers.next()??);
    numbers.next().is_none().then_some(parsed)
}

/// A fault of a release that runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaultFound {
    /// The fault.
    pub fault: &'static KnownFault,
    /// The first release of the same line without it.
    pub fixed: Release,
}

impl FaultFound {
    /// What to do about it.
    pub fn remedy(&self) -> String {
        let (major, minor, patch) = self.fixed;
        format!("upgrade to {major}.{minor}.{patch} or newer, one member at a time")
    }
}

/// The faults of this release in a cluster of `members`.
pub fn faults(release: Release, members: usize) -> impl Iterator<Item = FaultFound> {
    let found = move |fault: &'static KnownFault| {
        let mut lines = fault.releases.iter();
        let (_, fixed) = lines.find(|(from, fixed)| (from..fixed).contains(&&release))?;
        (members == 1 || !fault.alone).then_some(FaultFound { fault, fixed: *fixed })
    };
    KNOWN.iter().filter_map(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sources(version: &str, members: usize) -> Vec<&'static str> {
        let faults = faults(parse(version).unwrap(), members);
        faults.map(|found| found.fault.source).collect()
    }

    #[test]
    fn each_release_has_its_known_faults() {
        let post_mortem = "etcd issue 13766 and its post-mortem \"v3.5 data inconsistency\"";
        for (version, members, expected) in [
            ("3.4.7", 3, vec!["etcd issue 11651", "etcd issue 15247"]),
            ("3.4.20", 3, vec!["etcd issue 15247"]),
            ("3.4.20", 1, vec!["etcd issue 14370", "etcd issue 15247"]),
            ("3.4.21", 3, vec!["etcd issue 14571", "etcd issue 15247"]),
            ("3.4.23", 3, vec!["etcd issue 15247"]),
            ("3.4.31", 1, vec![]),
            (
                "3.5.0",
                3,
                vec![post_mortem, "etcd pull request 14730", "etcd issue 15247"],
            ),
            (
                "3.5.2",
                3,
                vec![post_mortem, "etcd pull request 14730", "etcd issue 15247"],
            ),
            ("3.5.3", 3, vec!["etcd pull request 14730", "etcd issue 15247"]),
            (
                "3.5.5",
                1,
                vec!["etcd issue 14571", "etcd pull request 14730", "etcd issue 15247"],
            ),
            ("3.5.12", 3, vec!["etcd issue 15247"]),
            ("3.5.16", 1, vec![]),
            ("3.6.9", 3, vec![]),
        ] {
            assert_eq!(
                sources(version, members),
                expected,
                "{version}, {members} members"
            );
        }
    }

    #[test]
    fn a_version_is_three_numbers_with_or_without_a_suffix() {
        assert_eq!(parse("3.6.0-rc.1"), Some((3, 6, 0)));
        assert_eq!(parse("3.5.16+git"), Some((3, 5, 16)));
        for wrong in ["", "3.5", "3.5.1.2", "three"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn the_remedy_is_the_first_release_of_the_line_without_the_fault() {
        let remedies: Vec<String> = faults((3, 5, 12), 3).map(|found| found.remedy()).collect();
        assert_eq!(remedies, ["upgrade to 3.5.13 or newer, one member at a time"]);
    }
}
