//! The kinds of faults, and their names.

use std::time::Duration;

/// What the network between a replica or an agent and its servers does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// Nothing passes, either way.
    BlackHole,
    /// Requests arrive, answers do not.
    LosesReplies,
    /// Answers arrive, requests do not.
    LosesRequests,
    /// Connections are reset.
    Resets,
    /// Everything arrives this much later.
    Delays(Duration),
}

/// What is lost between a member of etcd and others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lost {
    /// All that they send each other.
    Both,
    /// What the member sends.
    Sent,
    /// What the others send to it.
    Received,
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
    /// The network between an agent and one replica, or all of them.
    AgentNetwork {
        /// Whose network.
        agent: usize,
        /// Towards which replica; none: all of them.
        replica: Option<usize>,
        /// What it does.
        cut: Cut,
    },
    /// The network between a member and another one, or all others.
    Peers {
        /// Which.
        member: usize,
        /// The other one; none: all others, those of agents included.
        other: Option<usize>,
        /// What it loses.
        lost: Lost,
    },
    /// A member is killed, and started again at the end.
    KillMember(usize),
    /// All members but this one are killed. Those of agents stay: with them, a quorum may be left.
    KillMembersBut(usize),
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
    /// The apiserver refuses every write with this status.
    RefuseWrites(u16),
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
    /// An agent is killed and the data of its etcd is gone, if it keeps one; the agent is started again at the end.
    LoseData(usize),
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
                Cut::LosesRequests => "requests-lost",
                Cut::Resets => "reset",
                Cut::Delays(_) => "delay",
            },
            Self::AgentNetwork { .. } => "agent-network",
            Self::Peers { lost, .. } => match lost {
                Lost::Both => "partition",
                Lost::Sent | Lost::Received => "partition-one-way",
            },
            Self::KillMember(_) => "kill-etcd",
            Self::KillMembersBut(_) => "kill-most-etcd",
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
            Self::RefuseWrites(_) => "apiserver-refuses",
            Self::PluginHangs { .. } => "plugin-hangs",
            Self::PluginFails { .. } => "plugin-fails",
            Self::PluginDies { .. } => "plugin-dies",
            Self::KillAgent(_) => "kill-agent",
            Self::PauseAgent(_) => "pause-agent",
            Self::LoseData(_) => "lose-data",
        }
    }
}

/// The names of all kinds.
pub const KINDS: [&str; 30] = [
    "agent-network",
    "apiserver-refuses",
    "black-hole",
    "clock-jump",
    "compact",
    "defragment",
    "delay",
    "garbage",
    "kill-agent",
    "kill-apiserver",
    "kill-etcd",
    "kill-most-etcd",
    "kill-replica",
    "lose-data",
    "no-space",
    "partition",
    "partition-one-way",
    "pause-agent",
    "pause-apiserver",
    "pause-etcd",
    "pause-replica",
    "plugin-dies",
    "plugin-fails",
    "plugin-hangs",
    "replies-lost",
    "requests-lost",
    "reset",
    "restore",
    "restore-under-replicas",
    "roll",
];
