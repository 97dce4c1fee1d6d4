//! What is done to the cluster, and when: all of it follows from the seed before the run begins.
//!
//! Pure.

use std::fmt;
use std::time::Duration;

use quorate_dev::seeded_rng::SeededRng;

mod kind;

pub use kind::{Cut, KINDS, Kind, Lost};

/// Numbers of what there is to break. Each is counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Members of etcd.
    pub members: usize,
    /// Replicas of the controller.
    pub replicas: usize,
    /// Agents, each with a plugin on its node.
    pub agents: usize,
    /// Releases of bundles.
    pub releases: usize,
}

/// One fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Planned {
    /// From 1 on, in the order of their begins.
    pub number: u32,
    /// When it begins, since the begin of the faults.
    pub begins: Duration,
    /// How long it lasts.
    pub lasts: Duration,
    /// What it is.
    pub kind: Kind,
}

impl fmt::Display for Planned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (begins, lasts) = (self.begins.as_secs_f64(), self.lasts.as_secs_f64());
        write!(
            f,
            "{:4}  {begins:8.1} s  {lasts:5.1} s  {:?}",
            self.number, self.kind
        )
    }
}

/// A whole run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// In the order of their begins.
    pub faults: Vec<Planned>,
    /// Whether etcd is restored in this run. Then agents keep no members of etcd: a member of the former cluster must not
    /// meet the restored one, and setting its data aside is work for a person.
    pub restores: bool,
    /// The release of all replicas at the begin.
    pub first_release: usize,
    /// The release of all replicas at the end.
    pub last_release: usize,
    /// From which the workload follows.
    pub workload_seed: u64,
}

/// Those that restore etcd.
const RESTORES: [&str; 2] = ["restore", "restore-under-replicas"];

/// Between the begins of two faults, on average. They last for four times as long, so that some overlap at any time.
const GAP_MS: u64 = 1_200;

/// How long faults last, in milliseconds. The longest outlast the leases of the replicas.
const LENGTHS_MS: [(u64, u64); 3] = [(300, 2_000), (2_000, 6_000), (6_000, 15_000)];

/// How far a wall clock is off, in seconds. A certificate is valid from two hours before its issue: one that is issued by a clock
/// that is further ahead would be good for nothing long after the run.
const CLOCKS: [i64; 4] = [-86_400, -3_600, 600, 5_400];

/// Keys below the prefix of what cannot be read: each holds something up, and nothing else.
pub const UNREADABLE: [&str; 8] = [
    "services/bad",
    "networks/bad",
    "tasks/svc0/bad",
    "volumes/bad",
    "publications/v1/bad",
    "nodes/bad/release",
    "joins/bad",
    "identity/certificates/bad",
];

/// The statuses with which an apiserver refuses that has too much to do, or fails.
const REFUSALS: [u16; 2] = [429, 500];

/// After so many faults there is a lull, in which what was begun can be completed.
const BETWEEN_LULLS: u32 = 25;

/// The length of a lull.
const LULL_MS: u64 = 12_000;

/// Which faults are wanted.
#[derive(Clone, Copy, Debug)]
pub struct Choice<'a> {
    /// How many.
    pub faults: u32,
    /// The names of their kinds; empty: all.
    pub only: &'a [String],
    /// How many times as long it takes from one to the next.
    pub pace: u64,
}

/// The schedule of a seed.
pub fn schedule(seed: u64, sizes: Sizes, choice: Choice<'_>) -> Schedule {
    let Choice { faults, only, pace } = choice;
    let mut rng = SeededRng(seed);
    let by_chance = rng.below(3) == 0;
    let restores = match only {
        [] => by_chance,
        only => only.iter().any(|name| RESTORES.contains(&name.as_str())),
    };
    let first_release = index(&mut rng, sizes.releases);
    let last_release = index(&mut rng, sizes.releases);
    let workload_seed = rng.below(u64::MAX);
    let mut planned = Vec::new();
    let mut releases = vec![first_release; sizes.replicas];
    let mut begins = 0;
    for number in 1..=faults {
        // Two of three follow another at once: only some of the possible overlaps come by chance.
        begins += match rng.below(3) {
            0 => rng.below(GAP_MS * 5 * pace),
            _ => rng.below(GAP_MS / 2 * pace),
        };
        if number % BETWEEN_LULLS == 0 {
            begins += LULL_MS;
        }
        let (shortest, longest) = LENGTHS_MS[index(&mut rng, LENGTHS_MS.len())];
        let mut lasts = shortest + rng.below(longest - shortest);
        let mut kind = kind_among(&mut rng, sizes, restores, only);
        if let Kind::Roll { replica, release } = &mut kind {
            // Another one than it has.
            if releases[*replica] == *release {
                *release = (*release + 1) % sizes.releases;
            }
            releases[*replica] = *release;
        }
        if matches!(kind, Kind::KillMembersBut(_)) {
            // Long enough for others to notice, and to go on with what is left.
            lasts += LENGTHS_MS[2].0;
        }
        planned.push(Planned {
            number,
            begins: Duration::from_millis(begins),
            lasts: Duration::from_millis(lasts),
            kind,
        });
    }
    Schedule {
        faults: planned,
        restores,
        first_release,
        last_release,
        workload_seed,
    }
}

fn kind_among(rng: &mut SeededRng, sizes: Sizes, restores: bool, only: &[String]) -> Kind {
    loop {
        let kind = kind(rng, sizes, restores);
        if only.is_empty() || only.iter().any(|name| name == kind.name()) {
            return kind;
        }
    }
}

fn kind(rng: &mut SeededRng, sizes: Sizes, restores: bool) -> Kind {
    let replica = index(rng, sizes.replicas);
    let member = index(rng, sizes.members);
    let agent = index(rng, sizes.agents);
    let half = rng.below(2) == 0;
    match rng.below(120) {
        0..=9 => Kind::KillReplica(replica),
        10..=19 => Kind::PauseReplica(replica),
        20..=22 => Kind::JumpClock {
            replica,
            seconds: CLOCKS[index(rng, CLOCKS.len())],
        },
        23..=30 => Kind::Roll {
            replica,
            release: index(rng, sizes.releases),
        },
        31..=53 => Kind::Network {
            replica,
            member: half.then_some(member),
            cut: cut(rng),
        },
        54..=59 => Kind::KillMember(member),
        60..=64 => Kind::PauseMember(member),
        65..=74 => Kind::Peers {
            member,
            other: half.then_some((member + 1) % sizes.members),
            lost: [Lost::Both, Lost::Sent, Lost::Received][index(rng, 3)],
        },
        75..=76 => Kind::KillMembersBut(member),
        77..=80 => Kind::Compact,
        81..=82 => Kind::Defragment(member),
        83..=85 => Kind::NoSpace,
        86..=87 if restores => Kind::Restore {
            replicas_stopped: rng.below(4) > 0,
        },
        86..=88 => Kind::KillApiserver,
        89..=91 => Kind::PauseApiserver,
        92..=95 => Kind::RefuseWrites(REFUSALS[index(rng, REFUSALS.len())]),
        96..=98 => Kind::Garbage(UNREADABLE[index(rng, UNREADABLE.len())]),
        99..=101 => Kind::PluginHangs { after: half },
        102..=104 => Kind::PluginFails { after: half },
        105..=107 => Kind::PluginDies { after: half },
        108..=110 => Kind::KillAgent(agent),
        111..=112 => Kind::PauseAgent(agent),
        113 => Kind::LoseData(agent),
        _ => Kind::AgentNetwork {
            agent,
            replica: half.then_some(replica),
            cut: cut(rng),
        },
    }
}

fn cut(rng: &mut SeededRng) -> Cut {
    match rng.below(5) {
        0 => Cut::BlackHole,
        1 => Cut::LosesReplies,
        2 => Cut::LosesRequests,
        3 => Cut::Resets,
        _ => Cut::Delays(Duration::from_millis(20 + rng.below(1_500))),
    }
}

/// One of so many; 0 where there is none.
pub fn index(rng: &mut SeededRng, length: usize) -> usize {
    // Below a length, so that it fits.
    usize::try_from(rng.below(length.max(1) as u64)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const SIZES: Sizes = Sizes {
        members: 3,
        replicas: 3,
        agents: 2,
        releases: 3,
    };

    fn plan(seed: u64, faults: u32, only: &[String]) -> Schedule {
        let choice = Choice {
            faults,
            only,
            pace: 1,
        };
        schedule(seed, SIZES, choice)
    }

    #[test]
    fn a_seed_decides_the_whole_schedule() {
        assert_eq!(plan(7, 200, &[]), plan(7, 200, &[]));
        assert_ne!(plan(7, 200, &[]), plan(8, 200, &[]));
        let none = plan(7, 0, &[]);
        assert_eq!(none.faults, []);
    }

    #[test]
    fn faults_overlap() {
        let schedule = plan(1, 200, &[]);
        let overlap = |fault: &Planned| {
            let begun = schedule
                .faults
                .iter()
                .filter(|other| other.begins <= fault.begins && fault.begins < other.begins + other.lasts);
            begun.count() > 1
        };
        let overlapping = schedule.faults.iter().filter(|fault| overlap(fault)).count();
        assert!(overlapping > 100, "{overlapping} of 200");
    }

    #[test]
    fn every_kind_comes_within_some_seeds_and_a_restore_only_where_it_is_allowed() {
        let mut kinds = BTreeSet::new();
        for seed in 0..30 {
            let schedule = plan(seed, 200, &[]);
            let restored = schedule
                .faults
                .iter()
                .any(|fault| matches!(fault.kind, Kind::Restore { .. }));
            assert!(schedule.restores || !restored, "seed {seed}");
            kinds.extend(schedule.faults.iter().map(|fault| fault.kind.name()));
        }
        assert_eq!(kinds, BTreeSet::from(KINDS));
    }

    #[test]
    fn only_the_kinds_that_are_named_come() {
        let only = ["restore".to_owned(), "roll".to_owned()];
        let schedule = plan(3, 50, &only);
        let kinds: BTreeSet<_> = schedule.faults.iter().map(|fault| fault.kind.name()).collect();
        assert_eq!(kinds, BTreeSet::from(["restore", "roll"]));
    }
    #[test]
    fn a_replica_rolls_to_another_release_than_it_has() {
        let schedule = plan(4, 400, &["roll".to_owned()]);
        let mut releases = [schedule.first_release; 3];
        for fault in &schedule.faults {
            if let Kind::Roll { replica, release } = fault.kind {
                assert_ne!(releases[replica], release, "{fault}");
                releases[replica] = release;
            }
        }
    }

    #[test]
    fn a_slower_pace_spreads_the_faults() {
        let last = |pace| {
            let choice = Choice {
                faults: 20,
                only: &[],
                pace,
            };
            schedule(5, SIZES, choice).faults[19].begins
        };
        assert!(last(6) > 3 * last(1), "{:?} and {:?}", last(6), last(1));
    }

    #[test]
    fn faults_of_chosen_kinds_restore_etcd_only_where_that_is_chosen() {
        for seed in 0..20 {
            assert!(!plan(seed, 5, &["roll".to_owned()]).restores, "seed {seed}");
            assert!(plan(seed, 5, &["restore".to_owned()]).restores, "seed {seed}");
        }
    }
}
