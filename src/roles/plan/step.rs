//! The steps that a plan consists of, and the words for them.

use std::fmt;

use crate::etcd::MemberId;
use crate::proto::join::Progress;
use crate::proto::removal::Cause;
use crate::roles::blocked::Subject;
use crate::roles::reason::Reason;

/// One step towards the desired roles.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Deletes the record of a member that is not in etcd's list. Its node becomes a worker, if that is its desired role.
    Forget(MemberId),
    /// Commits the intent to remove the member.
    DecideRemoval(MemberId, Cause),
    /// Withdraws the intents to remove, to promote and to readdress the member.
    Withdraw(MemberId),
    /// Transfers raft leadership from a member that is about to be removed, or whose data is corrupt.
    MoveLeadership {
        /// The member that leads.
        from: MemberId,
        /// The voter that leads next.
        to: MemberId,
    },
    /// Removes the member from etcd's list.
    Remove {
        /// The member to remove.
        member: MemberId,
        /// The voter to ask.
        through: MemberId,
    },
    /// Commits the intent to promote the learner.
    DecidePromotion(MemberId),
    /// Promotes the learner to a voter.
    Promote {
        /// The learner.
        member: MemberId,
        /// The voter to ask.
        through: MemberId,
    },
    /// Commits the intent to add a learner for the join of this node.
    DecideAdd(String),
    /// Adds the learner.
    Add {
        /// The node that joins.
        node: String,
        /// The voter to ask.
        through: MemberId,
    },
    /// Creates the record of a learner that an earlier add has put in the list.
    Record {
        /// The node that joins.
        node: String,
        /// The member that was added for it.
        member: MemberId,
    },
    /// Commits the intent to give the node's member the peer URLs that its join requests.
    DecideReaddress {
        /// The node that joins again.
        node: String,
        /// Its member.
        member: MemberId,
    },
    /// Gives the member the peer URLs of the intent.
    Readdress {
        /// The member.
        member: MemberId,
        /// The voter to ask.
        through: MemberId,
    },
    /// Ends the intent to readdress the member, which has the new peer URLs.
    EndReaddress(MemberId),
    /// Writes the progress of the node's join.
    Note {
        /// The node that joins.
        node: String,
        /// Its member, if it has one.
        member: Option<MemberId>,
        /// How far the join is.
        progress: Progress,
        /// Why it waits, or why it ended without a voter.
        why: Option<(Reason, String)>,
    },
}

/// In short (`{:#}`) without a message, which may be that of another program: for traces.
impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Forget(member) => write!(
                f,
                "delete the record of member {member}, which is not in etcd's list"
            ),
            Self::DecideRemoval(member, cause) => {
                write!(f, "decide to remove member {member}: {}", cause_words(*cause))
            }
            Self::Withdraw(member) => write!(f, "withdraw the intent to change member {member}"),
            Self::MoveLeadership { from, to } => {
                write!(f, "transfer raft leadership from member {from} to {to}")
            }
            Self::Remove { member, through } => write!(f, "remove member {member} through {through}"),
            Self::DecidePromotion(member) => write!(f, "decide to promote learner {member}"),
            Self::Promote { member, through } => write!(f, "promote learner {member} through {through}"),
            Self::DecideAdd(node) => write!(f, "decide to add a learner for node {node}"),
            Self::Add { node, through } => write!(f, "add a learner for node {node} through {through}"),
            Self::Record { node, member } => {
                write!(f, "record member {member}, which was added for node {node}")
            }
            Self::DecideReaddress { node, member } => {
                write!(
                    f,
                    "decide to change the peer URLs of member {member} of node {node}"
                )
            }
            Self::Readdress { member, through } => {
                write!(f, "change the peer URLs of member {member} through {through}")
            }
            Self::EndReaddress(member) => write!(f, "record member {member} at its new peer URLs"),
            Self::Note {
                node, progress, why, ..
            } => {
                write!(f, "set the join of node {node} to {}", progress_word(*progress))?;
                match why {
                    None => Ok(()),
                    Some((reason, _)) if f.alternate() => write!(f, " ({reason})"),
                    Some((reason, message)) => write!(f, " ({reason}: {message})"),
                }
            }
        }
    }
}

impl Step {
    /// Whether the step puts something into the store, or makes a call whose result must be put there: nothing is added that
    /// could not be recorded (INV-3). A removal that is decided is carried out, since it may be what ends the alarm.
    pub fn is_written(&self) -> bool {
        !matches!(
            self,
            Self::Forget(_)
                | Self::MoveLeadership { .. }
                | Self::Remove { .. }
                | Self::Promote { .. }
                | Self::Readdress { .. }
        )
    }

    /// What the call is about that follows the step, if that commits an intent (INV-3).
    pub fn intends(&self) -> Option<Subject> {
        match self {
            Self::DecideReaddress { member, .. } => Some(Subject::Member(*member)),
            Self::DecideRemoval(..) | Self::DecidePromotion(_) | Self::DecideAdd(_) => Some(self.subject()),
            _ => None,
        }
    }

    /// The member or join that the step is about.
    pub fn subject(&self) -> Subject {
        match self {
            Self::Forget(member)
            | Self::DecideRemoval(member, _)
            | Self::Withdraw(member)
            | Self::MoveLeadership { from: member, .. }
            | Self::Remove { member, .. }
            | Self::DecidePromotion(member)
            | Self::Promote { member, .. }
            | Self::Readdress { member, .. }
            | Self::EndReaddress(member) => Subject::Member(*member),
            Self::DecideAdd(node)
            | Self::Add { node, .. }
            | Self::Record { node, .. }
            | Self::DecideReaddress { node, .. }
            | Self::Note { node, .. } => Subject::Join(node.clone()),
        }
    }
}

/// Why a member is removed, as a clause about "it" or "its node".
pub fn cause_words(cause: Cause) -> &'static str {
    match cause {
        Cause::Unspecified => "a cause that this release does not know",
        Cause::Demoted => "its node is demoted",
        Cause::NodeGone => "its node was removed",
        Cause::NeverStarted => "it was not started in time",
        Cause::Replaced => "its node asks to join from another address",
        Cause::DataLost => "its data is lost, and its node joins again",
        Cause::Stalled => "it has stopped and made no progress",
    }
}

/// A word for the progress of a join.
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
