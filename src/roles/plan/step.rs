//! The steps that a plan is made of, and the words for them.

use std::fmt;

use super::Reason;
use crate::etcd::MemberId;
use crate::proto::join::Progress;
use crate::proto::removal::Cause;

/// What a step is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Subject {
    /// A member.
    Member(MemberId),
    /// The join of the node of this name.
    Join(String),
}

/// The next step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// The member is not in etcd's list: its record goes, and its node, if that is what was asked, becomes a worker.
    Forget(MemberId),
    /// Commit the intent to remove it.
    DecideRemoval(MemberId, Cause),
    /// It is the raft leader: another voter is to lead before it goes.
    MoveLeadership {
        /// From here.
        from: MemberId,
        /// To here.
        to: MemberId,
    },
    /// Remove it.
    Remove {
        /// Which.
        member: MemberId,
        /// The voter to ask.
        through: MemberId,
    },
    /// Commit the intent to let it vote.
    DecidePromotion(MemberId),
    /// Let it vote.
    Promote {
        /// Which.
        member: MemberId,
        /// The voter to ask.
        through: MemberId,
    },
    /// Commit the intent to add a learner for the join of this node.
    DecideAdd(String),
    /// Add it.
    Add {
        /// The node.
        node: String,
        /// The voter to ask.
        through: MemberId,
    },
    /// An add that was decided on has been made: the record that says so.
    Record {
        /// The node.
        node: String,
        /// Its member.
        member: MemberId,
    },
    /// The member of the node gets the peer URLs that the join asks for.
    Readdress {
        /// The node.
        node: String,
        /// Its member.
        member: MemberId,
        /// The voter to ask.
        through: MemberId,
    },
    /// How far the join of this node has come.
    Note {
        /// The node.
        node: String,
        /// Its member, where it has one.
        member: Option<MemberId>,
        /// What to note.
        progress: Progress,
        /// Why, where it waits or has ended in vain.
        why: Option<(Reason, String)>,
    },
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Forget(member) => write!(f, "member {member} is not in the list: forget it"),
            Self::DecideRemoval(member, cause) => {
                write!(f, "decide to remove member {member}, {}", cause_words(*cause))
            }
            Self::MoveLeadership { from, to } => {
                write!(f, "member {from} is to go and is the raft leader: let {to} lead")
            }
            Self::Remove { member, through } => write!(f, "remove member {member}, through {through}"),
            Self::DecidePromotion(member) => write!(f, "decide to let learner {member} vote"),
            Self::Promote { member, through } => write!(f, "let learner {member} vote, through {through}"),
            Self::DecideAdd(node) => write!(f, "decide to add a learner for node {node}"),
            Self::Add { node, through } => write!(f, "add a learner for node {node}, through {through}"),
            Self::Record { node, member } => write!(f, "member {member} is that of node {node}: record it"),
            Self::Readdress {
                node,
                member,
                through,
            } => {
                write!(
                    f,
                    "member {member} of node {node} has another address, through {through}"
                )
            }
            Self::Note {
                node, progress, why, ..
            } => {
                write!(f, "the join of node {node}: {}", progress_word(*progress))?;
                why.as_ref()
                    .map_or(Ok(()), |(reason, message)| write!(f, ", {reason}: {message}"))
            }
        }
    }
}

impl Step {
    /// What it is about.
    pub fn subject(&self) -> Subject {
        match self {
            Self::Forget(member)
            | Self::DecideRemoval(member, _)
            | Self::MoveLeadership { from: member, .. }
            | Self::Remove { member, .. }
            | Self::DecidePromotion(member)
            | Self::Promote { member, .. } => Subject::Member(*member),
            Self::DecideAdd(node)
            | Self::Add { node, .. }
            | Self::Record { node, .. }
            | Self::Readdress { node, .. }
            | Self::Note { node, .. } => Subject::Join(node.clone()),
        }
    }
}

/// Why a member goes.
pub fn cause_words(cause: Cause) -> &'static str {
    match cause {
        Cause::Unspecified => "for a reason of a later release",
        Cause::Demoted => "as its node is to be a worker",
        Cause::NodeGone => "as its node does not exist",
        Cause::NeverStarted => "as it was not started in time",
        Cause::Replaced => "as its node asks to join from another address",
    }
}

/// A word for how far a join is.
pub fn progress_word(progress: Progress) -> &'static str {
    match progress {
        Progress::Unspecified => "requested",
        Progress::Waiting => "waiting",
        Progress::Adding => "adding",
        Progress::Learner => "learner",
        Progress::Voter => "voter",
        Progress::Refused => "refused",
        Progress::Removed => "removed",
    }
}
