//! Reason words for why a role does not change, as used in conditions, Events and metrics. They are stable: others match on
//! them.

use std::fmt;

/// The condition of a node whose desired role cannot take effect now.
pub const ROLE_CHANGE_BLOCKED: &str = "RoleChangeBlocked";

/// The condition of a member record whose node does not exist while the member is not removed.
pub const EVICTION_BLOCKED: &str = "EvictionBlocked";

/// The condition of a member that has no record. It is not stored, but computed when members are shown.
pub const UNMANAGED_MEMBER: &str = "UnmanagedMember";

/// The condition of every recorded member while etcd has no quorum. Then it is computed when members are shown, since nothing
/// can be written; the leader stores it as `False` with the time of the outage, once the quorum has returned.
pub const QUORUM_LOST: &str = "QuorumLost";

/// Why a change is blocked or refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reason {
    /// After the change, etcd would have no healthy quorum.
    QuorumRisk,
    /// The node is the only desired manager that is a voter.
    LastManager,
    /// The member is the only voter.
    LastVoter,
    /// The node has no member in etcd's list.
    NotAMember,
    /// The member to be replaced answers.
    MemberHealthy,
    /// The node is a desired manager and has a member in etcd's list.
    MemberOfEtcd,
    /// The node is not an observed manager.
    NotAManager,
    /// The node does not exist.
    NodeNotFound,
    /// The node was removed for good.
    NodeRemoved,
    /// The peer URL belongs to another member, or another join requested it first.
    PeerUrlTaken,
    /// The peer URL is malformed.
    BadPeerUrl,
    /// The peer URL does not answer within the limit, or its host name is unknown.
    PeerUnreachable,
    /// Another server listens at the peer URL than the member that moves there.
    PeerMismatch,
    /// The member has not been found at its new peer URLs.
    AddressUnproven,
    /// A wait that is usually over in an instant.
    Pending,
    /// The node's earlier member is being removed.
    RemovalPending,
    /// Another learner is in the list, and etcd takes one at a time.
    LearnerPending,
    /// The learner's etcd has not been started.
    LearnerNotStarted,
    /// The learner has not caught up with the raft leader.
    LearnerNotInSync,
    /// The member is etcd's raft leader, and leadership has not moved to another voter.
    LeadershipNotMoved,
    /// etcd refused the change; the message says why.
    EtcdRefused,
    /// etcd's user lacks the permission to change members.
    EtcdDenied,
    /// etcd has raised an alarm: it refuses writes, or the data of the member is corrupt.
    EtcdAlarm,
    /// etcd did not answer.
    EtcdUnavailable,
    /// The member list could not be read, or not linearizably.
    MemberListUnreadable,
    /// The member's node does not exist, and nothing says that it was removed.
    NodeMissing,
    /// No recorded member has an existing node, so the nodes are missing rather than removed.
    NodesMissing,
    /// The learner was removed because it was not started in time.
    NeverStarted,
    /// The learner was removed because it has stopped and made no progress.
    Stalled,
    /// etcd has as many voters as the leader allows.
    VoterLimit,
    /// The node was demoted, removed or replaced before its join ended.
    Overtaken,
}

impl Reason {
    /// The word, as in the `reason` of a condition.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::QuorumRisk => "QuorumRisk",
            Self::LastManager => "LastManager",
            Self::LastVoter => "LastVoter",
            Self::NotAMember => "NotAMember",
            Self::MemberHealthy => "MemberHealthy",
            Self::MemberOfEtcd => "MemberOfEtcd",
            Self::NotAManager => "NotAManager",
            Self::NodeNotFound => "NodeNotFound",
            Self::NodeRemoved => "NodeRemoved",
            Self::PeerUrlTaken => "PeerUrlTaken",
            Self::BadPeerUrl => "BadPeerUrl",
            Self::PeerUnreachable => "PeerUnreachable",
            Self::PeerMismatch => "PeerMismatch",
            Self::AddressUnproven => "AddressUnproven",
            Self::Pending => "Pending",
            Self::RemovalPending => "RemovalPending",
            Self::LearnerPending => "LearnerPending",
            Self::LearnerNotStarted => "LearnerNotStarted",
            Self::LearnerNotInSync => "LearnerNotInSync",
            Self::LeadershipNotMoved => "LeadershipNotMoved",
            Self::EtcdRefused => "EtcdRefused",
            Self::EtcdDenied => "EtcdDenied",
            Self::EtcdAlarm => "EtcdAlarm",
            Self::EtcdUnavailable => "EtcdUnavailable",
            Self::MemberListUnreadable => "MemberListUnreadable",
            Self::NodeMissing => "NodeMissing",
            Self::NodesMissing => "NodesMissing",
            Self::NeverStarted => "NeverStarted",
            Self::Stalled => "Stalled",
            Self::VoterLimit => "VoterLimit",
            Self::Overtaken => "Overtaken",
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
