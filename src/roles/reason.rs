//! The words for why a role does not change: in conditions, in Events and as labels of metrics. Stable, as others match
//! on them.

use std::fmt;

/// The condition of a node whose desired role cannot be brought about now.
pub const ROLE_CHANGE_BLOCKED: &str = "RoleChangeBlocked";

/// The condition of a member record whose node is gone, while the member cannot be removed.
pub const EVICTION_BLOCKED: &str = "EvictionBlocked";

/// The condition of a member that has no record. Not stored: whoever shows members finds it by looking.
pub const UNMANAGED_MEMBER: &str = "UnmanagedMember";

/// Why something does not go on, or was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reason {
    /// The cluster that the change leads to would have no healthy quorum.
    QuorumRisk,
    /// It is the only desired manager that is a voter.
    LastManager,
    /// It is the only voter.
    LastVoter,
    /// It has no member in the list.
    NotAMember,
    /// It is a desired manager and in the member list.
    MemberOfEtcd,
    /// It is no observed manager.
    NotAManager,
    /// There is no such node.
    NodeNotFound,
    /// The node was removed, for good.
    NodeRemoved,
    /// Another member has that peer URL, or another join asked for it first.
    PeerUrlTaken,
    /// A peer URL that is none.
    BadPeerUrl,
    /// No answer from the peer URL within the limit, or its name is unknown.
    PeerUnreachable,
    /// Something that is over in an instant, as a rule: it is asked for, and not there yet.
    Pending,
    /// The member that the node had before is being removed.
    RemovalPending,
    /// Another learner is there, and etcd takes one at a time.
    LearnerPending,
    /// The learner has not been started.
    LearnerNotStarted,
    /// The learner has not caught up with the raft leader.
    LearnerNotInSync,
    /// The member is etcd's raft leader, and leadership has not moved to another voter.
    LeadershipNotMoved,
    /// etcd said no for a reason of its own; the message has it.
    EtcdRefused,
    /// etcd did not answer.
    EtcdUnavailable,
    /// The member list could not be read, or not linearizably.
    MemberListUnreadable,
    /// Not one recorded member has its node: rather the records of nodes are missing than all nodes gone.
    NodesMissing,
    /// The learner was not started in time, and removed.
    NeverStarted,
    /// Demoted, removed or replaced before it ended.
    Overtaken,
}

impl Reason {
    /// As in a condition's `reason`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::QuorumRisk => "QuorumRisk",
            Self::LastManager => "LastManager",
            Self::LastVoter => "LastVoter",
            Self::NotAMember => "NotAMember",
            Self::MemberOfEtcd => "MemberOfEtcd",
            Self::NotAManager => "NotAManager",
            Self::NodeNotFound => "NodeNotFound",
            Self::NodeRemoved => "NodeRemoved",
            Self::PeerUrlTaken => "PeerUrlTaken",
            Self::BadPeerUrl => "BadPeerUrl",
            Self::PeerUnreachable => "PeerUnreachable",
            Self::Pending => "Pending",
            Self::RemovalPending => "RemovalPending",
            Self::LearnerPending => "LearnerPending",
            Self::LearnerNotStarted => "LearnerNotStarted",
            Self::LearnerNotInSync => "LearnerNotInSync",
            Self::LeadershipNotMoved => "LeadershipNotMoved",
            Self::EtcdRefused => "EtcdRefused",
            Self::EtcdUnavailable => "EtcdUnavailable",
            Self::MemberListUnreadable => "MemberListUnreadable",
            Self::NodesMissing => "NodesMissing",
            Self::NeverStarted => "NeverStarted",
            Self::Overtaken => "Overtaken",
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
