//! What holds a phase of a rotation up, in words.

use std::fmt;

use crate::proto;

/// What holds a phase up.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Hold {
    /// What kind of thing it is.
    pub kind: Kind,
    /// Its name.
    pub name: String,
    /// Why.
    pub why: Why,
}

/// A kind of thing that holds a phase up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A running controller.
    Replica,
    /// A node.
    Node,
    /// A member of etcd.
    Member,
    /// The person who runs the cluster.
    Operator,
}

impl Kind {
    /// The word for it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Replica => "replica",
            Self::Node => "node",
            Self::Member => "member",
            Self::Operator => "operator",
        }
    }
}

/// Why something holds a phase up.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Why {
    /// The replica has reported nothing of this rotation.
    Silent,
    /// The replica is hindered.
    Hindered(String),
    /// The replica has yet to carry out the phase.
    Behind,
    /// The former node authority has signed the certificate of the node.
    OldCertificate,
    /// The same of the etcd authority and the certificate of its member.
    OldEtcdCertificate,
    /// The node is down, so that nothing says that it has its new certificate.
    Down,
    /// The session of the node shows the former certificate.
    ShowsOld,
    /// The record of the node's certificate cannot be read.
    Unreadable,
    /// The member list could not be read.
    ListUnknown,
    /// The member could not be looked at.
    Unreachable(String),
    /// The member shows a certificate of the former authority. The flag says that an agent keeps it.
    MemberShowsOld(bool),
    /// Its etcd is started again.
    Restarts,
    /// Its etcd was started by hand, and has to be started again by hand.
    RestartByHand,
    /// Its etcd is not started again before these are healthy.
    Unhealthy(String),
    /// Its etcd is not started again before the changes of these are over.
    Changing(String),
    /// It takes no certificate of the new authority.
    RefusesNew,
    /// The operator has yet to say that the former authorities may be dropped.
    Unconfirmed,
}

impl Why {
    /// One of a fixed set of words.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Silent => "NoReport",
            Self::Hindered(_) => "Hindered",
            Self::Behind => "Behind",
            Self::OldCertificate => "OldCertificate",
            Self::OldEtcdCertificate => "OldEtcdCertificate",
            Self::Down => "Down",
            Self::ShowsOld => "ShowsOldCertificate",
            Self::Unreadable => "Unreadable",
            Self::ListUnknown => "MembersUnknown",
            Self::Unreachable(_) => "Unreachable",
            Self::MemberShowsOld(_) => "MemberShowsOldCertificate",
            Self::Restarts => "Restarts",
            Self::RestartByHand => "RestartByHand",
            Self::Unhealthy(_) => "QuorumAtRisk",
            Self::Changing(_) => "MembersChange",
            Self::RefusesNew => "RefusesNew",
            Self::Unconfirmed => "DropUnconfirmed",
        }
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Silent => f.write_str(
                "it has reported nothing of this rotation: it has no --ca-dir, is of an earlier release, or cannot write to etcd",
            ),
            Self::Hindered(why) | Self::Unreachable(why) => f.write_str(why),
            Self::Behind => f.write_str("it has yet to carry out this phase"),
            Self::OldCertificate => f.write_str("the former authority has signed its certificate"),
            Self::OldEtcdCertificate => {
                f.write_str("the former authority has signed the certificate of its etcd")
            }
            Self::Down => f.write_str("it is down, and nothing says that it has its new certificate"),
            Self::ShowsOld => f.write_str("its session shows a certificate of the former authority"),
            Self::Unreadable => f.write_str("the record of its certificate cannot be read: quorate doctor names it"),
            Self::ListUnknown => f.write_str(
                "the members were not looked at: their list could not be read, or the leader's --ca-dir lacks an authority",
            ),
            Self::MemberShowsOld(true) => f.write_str("it shows a certificate of the former authority"),
            Self::MemberShowsOld(false) => f.write_str(
                "it shows a certificate of the former authority, and no agent keeps it: quorate ca issue etcd-member, and put the \
                 files in place",
            ),
            Self::Restarts => f.write_str("its agent starts its etcd again"),
            Self::RestartByHand => f.write_str(
                "no agent keeps it: have its etcd trust the new authority alone (--trusted-ca-file, --peer-trusted-ca-file) and \
                 start it again",
            ),
            Self::Unhealthy(others) => {
                write!(f, "its etcd is not started again before the others are healthy: {others}")
            }
            Self::Changing(members) => {
                write!(f, "its etcd is not started again while the members of the cluster change: {members}")
            }
            Self::RefusesNew => f.write_str("it takes no certificate of the new authority"),
            Self::Unconfirmed => f.write_str(
                "clients of etcd that Quorate does not know may show certificates of the former authority: once none does, quorate \
                 ca rotate --drop-old",
            ),
        }
    }
}

impl Hold {
    pub(super) fn new(kind: Kind, name: impl Into<String>, why: Why) -> Self {
        Self {
            kind,
            name: name.into(),
            why,
        }
    }

    pub(super) fn to_proto(&self) -> proto::HeldUp {
        proto::HeldUp {
            kind: self.kind.word().to_owned(),
            name: self.name.clone(),
            reason: self.why.word().to_owned(),
            message: self.why.to_string(),
        }
    }
}
