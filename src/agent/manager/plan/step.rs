//! The steps of a plan, with their reasons.

use std::fmt;
use std::time::Duration;

use super::{Data, Noted, OwnMember};
use crate::etcd::MemberId;

/// Why to request a certificate for etcd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renewal {
    /// There is none.
    First,
    /// It has this much of its life left.
    Age {
        /// The rest of its life.
        left: Duration,
    },
    /// An earlier request was not answered.
    Unanswered,
    /// Another one is wanted.
    Rotate,
    /// A person has put the present one in place.
    ByHand,
    /// It does not name every host of the member's URLs.
    Hosts,
}

/// Kinds of steps that may fail. Each is tried again after a delay of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Task {
    /// To call JoinMember.
    Join,
    /// To call EtcdCertificate.
    Certify,
    /// To write or move files.
    Files,
    /// To start etcd.
    Start,
    /// To stop etcd.
    Stop,
}

/// What to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Ask a replica that etcd becomes a member.
    Join,
    /// Request a certificate for etcd.
    Certify(Renewal),
    /// Write the list of revoked certificates that the session shows.
    WriteList,
    /// Note this.
    Note(Noted),
    /// Start etcd.
    Start,
    /// Stop etcd: this member of it is out of the cluster for good.
    Stop(MemberId),
    /// Have etcd trust what the leader says, and stop it, so that it starts again: the leader permits that under this number.
    Restart(u64),
    /// Set the data of this member aside.
    SetAside(MemberId),
    /// Drop the certificate of etcd and the note.
    Forget(MemberId),
    /// Nothing, until something changes.
    Rest(Rest),
}

/// Why nothing is done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rest {
    /// Etcd runs as it should.
    Runs,
    /// The node is no manager.
    NotAManager,
    /// No session has shown the role of the node yet.
    NoSession,
    /// The node is observed as a manager, and its certificate does not say so yet.
    NotCertified,
    /// The member is noted, and is leaving.
    Leaving,
    /// There is no list of revoked certificates yet. Etcd refuses everyone where the file is missing.
    NoList,
    /// Whether etcd runs is unknown.
    ProcessUnknown(String),
    /// Etcd runs, and no note says as which member.
    RunsUnnoted,
    /// The data directory holds something of another one, and the member has never started.
    InTheWay(Found),
    /// The member has started before, and this is no data of it.
    Lost {
        /// The member.
        own: OwnMember,
        /// What is there.
        found: Found,
    },
    /// The step is one that has failed, and is tried again later.
    After(Task),
}

/// What is found where the data of a member should be, or where nothing should.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// No data.
    Nothing,
    /// Data of another member.
    Of(OwnMember),
    /// A database without a log.
    Unowned,
    /// Something that cannot be read, and why.
    Unreadable(String),
}

impl Found {
    /// What this is to a member whose data it is not.
    pub fn of(data: &Data) -> Self {
        match data {
            Data::Missing | Data::NoLog => Self::Nothing,
            Data::Of(own) => Self::Of(*own),
            Data::Unowned => Self::Unowned,
            Data::Unreadable(why) => Self::Unreadable(why.clone()),
        }
    }
}

impl Step {
    /// What fails where the step fails; `None` for one that cannot.
    pub fn task(&self) -> Option<Task> {
        Some(match self {
            Self::Join => Task::Join,
            Self::Certify(_) => Task::Certify,
            Self::WriteList | Self::Note(_) | Self::SetAside(_) | Self::Forget(_) => Task::Files,
            Self::Start => Task::Start,
            Self::Stop(_) | Self::Restart(_) => Task::Stop,
            Self::Rest(_) => return None,
        })
    }

    /// What it does, in the imperative, for traces.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Join => "join",
            Self::Certify(_) => "request a certificate",
            Self::WriteList => "write the revocation list",
            Self::Note(_) => "note the member",
            Self::Start => "start etcd",
            Self::Stop(_) => "stop etcd",
            Self::Restart(_) => "have etcd start again",
            Self::SetAside(_) => "set the data aside",
            Self::Forget(_) => "forget the member",
            Self::Rest(_) => "rest",
        }
    }
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => f.write_str("holds no data of etcd"),
            Self::Of(own) => write!(f, "holds the data of {own}"),
            Self::Unowned => f.write_str("holds a database of etcd and no log that says whose"),
            Self::Unreadable(why) => write!(f, "cannot be read: {why}"),
        }
    }
}

impl fmt::Display for Renewal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::First => f.write_str("it has none"),
            Self::Age { left } => write!(f, "it ends in {} s", left.as_secs()),
            Self::Unanswered => f.write_str("an earlier request was not answered"),
            Self::Rotate => f.write_str("another one is wanted"),
            Self::ByHand => f.write_str("it was put in place by hand"),
            Self::Hosts => f.write_str("it does not name every host of the URLs of etcd"),
        }
    }
}
