//! What is done to the cluster, and when: all of it follows from the seed before the run begins.
//!
//! Pure.

use std::fmt;
use std::time::Duration;

use quorate_dev::seeded_rng::SeededRng;

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

/// What the network between a replica and members of etcd does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// Nothing passes, either way.
    BlackHole,
    /// Requests arrive, answers do not.
    LosesReplies,
    /// Connections are reset.
    Resets,
    /// Everything arrives this much later.
    Delays(Duration),
}

/// What is done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A replica is killed, and started again at the end.
    KillReplica(usize),
    /// A replica is suspended (SIGSTOP).
    PauseReplica(usize),
    /// A replica is stopped and started again with a wall clock that is off by so many seconds.
    JumpClock {
        /// Which.
        replica: usize,
        /// Ahead; behind if negative.
        seconds: i64,
    },
    /// A replica is stopped and started again with the bundle of another release.
    Roll {
        /// Which.
        replica: usize,
        /// The release.
        release: usize,
    },
    /// The network between a replica and one member, or all of them.
    Network {
        /// Whose network.
        replica: usize,
        /// Towards which member; none: all of them.
        member: Option<usize>,
        /// What it does.
        cut: Cut,
    },
    /// A member is killed, and started again at the end.
    KillMember(usize),
    /// A member is suspended.
    PauseMember(usize),
    /// Etcd forgets old revisions.
    Compact,
    /// A member is defragmented: it answers nothing meanwhile.
    Defragment(usize),
    /// The alarm by which etcd takes no more writes, until the end.
    NoSpace,
    /// Etcd is restored at the end, from a snapshot of the begin.
    Restore {
        /// As the docs demand; replicas that run on have to notice.
        replicas_stopped: bool,
    },
    /// A record that cannot be read, below the prefix, until the end.
    Garbage(&'static str),
    /// The apiserver is killed, and started again at the end.
    KillApiserver,
    /// The apiserver is suspended.
    PauseApiserver,
    /// Calls of the plugin never answer; they take effect or not.
    PluginHangs {
        /// Whether they take effect before.
        after: bool,
    },
    /// Calls of the plugin fail; they take effect or not.
    PluginFails {
        /// Whether they take effect before.
        after: bool,
    },
    /// The plugin dies of its next call, before or after that takes effect, and is started again at the end.
    PluginDies {
        /// Whether they take effect before.
        after: bool,
    },
    /// An agent is killed, and started again at the end.
    KillAgent(usize),
    /// An agent is suspended.
    PauseAgent(usize),
}

impl Kind {
    /// The name of the kind in a history.
    pub fn name(&self) -> &'static str {
        match self {
            Self::KillReplica(_) => "kill-replica",
            Self::PauseReplica(_) => "pause-replica",
            Self::JumpClock { .. } => "clock-jump",
            Self::Roll { .. } => "roll",
            Self::Network { cut, .. } => match cut {
                Cut::BlackHole => "black-hole",
                Cut::LosesReplies => "replies-lost",
                Cut::Resets => "reset",
                Cut::Delays(_) => "delay",
            },
            Self::KillMember(_) => "kill-etcd",
            Self::PauseMember(_) => "pause-etcd",
            Self::Compact => "compact",
            Self::Defragment(_) => "defragment",
            Self::NoSpace => "no-space",
            Self::Restore {
                replicas_stopped: true,
            } => "restore",
            Self::Restore {
                replicas_stopped: false,
            } => "restore-under-replicas",
            Self::Garbage(_) => "garbage",
            Self::KillApiserver => "kill-apiserver",
            Self::PauseApiserver => "pause-apiserver",
            Self::PluginHangs { .. } => "plugin-hangs",
            Self::PluginFails { .. } => "plugin-fails",
            Self::PluginDies { .. } => "plugin-dies",
            Self::KillAgent(_) => "kill-agent",
            Self::PauseAgent(_) => "pause-agent",
        }
    }
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

/// The names of all kinds.
pub const KINDS: [&str; 23] = [
    "black-hole",
    "clock-jump",
    "compact",
    "defragment",
    "delay",
    "garbage",
    "kill-agent",
    "kill-apiserver",
    "kill-etcd",
    "kill-replica",
    "no-space",
    "pause-agent",
    "pause-apiserver",
    "pause-etcd",
    "pause-replica",
    "plugin-dies",
    "plugin-fails",
    "plugin-hangs",
    "replies-lost",
    "reset",
    "restore",
    "restore-under-replicas",
    "roll",
];

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
const UNREADABLE: [&str; 4] = [
    "services/bad",
    "volumes/bad",
    "tasks/svc0/bad",
    "nodes/bad/release",
];

/// After so many faults there is a lull, in which what was begun can be completed.
const BETWEEN_LULLS: u32 = 25;

/// The length of a lull.
const LULL_MS: u64 = 12_000;

/// The schedule of a seed, with faults of these kinds alone, by their names; of all kinds where there is no name.
pub fn schedule(seed: u64, faults: u32, sizes: Sizes, only: &[String]) -> Schedule {
    let mut rng = SeededRng(seed);
    let restores = rng.below(3) == 0 || only.iter().any(|name| RESTORES.contains(&name.as_str()));
    let first_release = index(&mut rng, sizes.releases);
    let last_release = index(&mut rng, sizes.releases);
    let workload_seed = rng.below(u64::MAX);
    let mut planned = Vec::new();
    let mut begins = 0;
    for number in 1..=faults {
        // Two of three follow another at once: only some of the possible overlaps come by chance.
        begins += match rng.below(3) {
            0 => rng.below(GAP_MS * 5),
            _ => rng.below(GAP_MS / 2),
        };
        if number % BETWEEN_LULLS == 0 {
            begins += LULL_MS;
        }
        let (shortest, longest) = LENGTHS_MS[index(&mut rng, LENGTHS_MS.len())];
        let lasts = shortest + rng.below(longest - shortest);
        planned.push(Planned {
            number,
            begins: Duration::from_millis(begins),
            lasts: Duration::from_millis(lasts),
            kind: kind_among(&mut rng, sizes, restores, only),
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
    match rng.below(100) {
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
        31..=54 => Kind::Network {
            replica,
            member: half.then_some(member),
            cut: cut(rng),
        },
        55..=61 => Kind::KillMember(member),
        62..=67 => Kind::PauseMember(member),
        68..=71 => Kind::Compact,
        72..=73 => Kind::Defragment(member),
        74..=76 => Kind::NoSpace,
        77..=78 if restores => Kind::Restore {
            replicas_stopped: rng.below(4) > 0,
        },
        77..=79 => Kind::KillApiserver,
        80..=82 => Kind::PauseApiserver,
        83..=84 => Kind::Garbage(UNREADABLE[index(rng, UNREADABLE.len())]),
        85..=87 => Kind::PluginHangs { after: half },
        88..=90 => Kind::PluginFails { after: half },
        91..=93 => Kind::PluginDies { after: half },
        94..=96 => Kind::KillAgent(agent),
        _ => Kind::PauseAgent(agent),
    }
}

fn cut(rng: &mut SeededRng) -> Cut {
    match rng.below(4) {
        0 => Cut::BlackHole,
        1 => Cut::LosesReplies,
        2 => Cut::Resets,
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

    #[test]
    fn a_seed_decides_the_whole_schedule() {
        assert_eq!(schedule(7, 200, SIZES, &[]), schedule(7, 200, SIZES, &[]));
        assert_ne!(schedule(7, 200, SIZES, &[]), schedule(8, 200, SIZES, &[]));
        let none = schedule(7, 0, SIZES, &[]);
        assert_eq!(none.faults, []);
    }

    #[test]
    fn faults_overlap() {
        let schedule = schedule(1, 200, SIZES, &[]);
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
            let schedule = schedule(seed, 200, SIZES, &[]);
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
        let schedule = schedule(3, 50, SIZES, &only);
        let kinds: BTreeSet<_> = schedule.faults.iter().map(|fault| fault.kind.name()).collect();
        assert_eq!(kinds, BTreeSet::from(["restore", "roll"]));
    }
}
