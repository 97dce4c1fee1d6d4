//! What the plan of a rotation is made from. Pure.

use crate::etcd::MemberId;
use crate::identity::authority::{AuthorityDigest, AuthorityKind};

use super::record::{Phase, Roots};

/// The record of a certificate of a node that exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certified {
    /// The authority that it is of.
    pub kind: AuthorityKind,
    /// The name of the node.
    pub node: Box<str>,
    /// Its uid.
    pub uid: Box<str>,
    /// The authority that has signed the last certificate, as far as the record says it.
    pub signer: Option<AuthorityDigest>,
    /// Another certificate was asked for already, and not received yet.
    pub is_asked: bool,
}

/// The session of a node that is ready.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Session {
    /// The uid of the node.
    pub uid: Box<str>,
    /// The authority by which its connection has proven itself.
    pub authority: Option<AuthorityDigest>,
}

/// A replica that is registered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replica {
    /// Its name.
    pub name: Box<str>,
    /// What it has reported; `None` if nothing that can be read.
    pub report: Option<Report>,
}

/// What a replica has reported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The rotation that it speaks of.
    pub after: Roots,
    /// The last phase that it has carried out; `None` if it has carried out none.
    pub phase: Option<Phase>,
    /// Why it has not carried out the next one.
    pub hindrance: String,
}

/// A member in etcd's list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its id.
    pub id: MemberId,
    /// Its name in etcd's list; empty before its first start.
    pub name: Box<str>,
    /// Name and uid of its node, as its record says; `None` without one.
    pub node: Option<(Box<str>, Box<str>)>,
    /// An agent keeps its etcd: a certificate of its etcd is on record.
    pub has_agent: bool,
    /// It votes.
    pub votes: bool,
    /// A change of it is decided, and not over as far as is known: its removal, its promotion to a voter, or other peer URLs.
    pub changes: bool,
    /// What it shows and takes.
    pub seen: Looked,
}

/// A look at a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Looked {
    /// It takes clients in clear text.
    InClearText {
        /// It answers a read.
        serves: bool,
    },
    /// Another authority has signed its certificate, which is none of those that are rotated.
    Foreign {
        /// It answers a read.
        serves: bool,
    },
    /// It could not be looked at, and why.
    Unreachable(String),
    /// This.
    Seen(Seen),
}

/// What a member shows and takes at its client URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// It says that it is healthy.
    pub is_healthy: bool,
    /// The new authority has signed its certificate.
    pub shows_new: bool,
    /// It takes a certificate of the former authority.
    pub takes_old: bool,
    /// It takes a certificate of the new one, without any other that leads to the former one.
    pub takes_new: bool,
}

impl Member {
    /// What people call it.
    pub fn title(&self) -> String {
        match &self.node {
            Some((name, _)) => name.to_string(),
            None if self.name.is_empty() => self.id.to_string(),
            None => self.name.to_string(),
        }
    }

    /// Whether it is healthy, as far as is known.
    pub fn is_healthy(&self) -> bool {
        match &self.seen {
            Looked::InClearText { serves } | Looked::Foreign { serves } => *serves,
            Looked::Unreachable(_) => false,
            Looked::Seen(seen) => seen.is_healthy,
        }
    }
}

/// Everything that a plan is made from.
#[derive(Clone, Debug)]
pub struct Facts<'a> {
    /// Certificates of nodes and of their members.
    pub certified: &'a [Certified],
    /// The uids whose records of certificates cannot be read: nothing says what they have (INV-12).
    pub unreadable: &'a [Box<str>],
    /// Sessions of nodes. Only the end of a reissue asks for them.
    pub sessions: &'a [Session],
    /// Replicas.
    pub replicas: &'a [Replica],
    /// Members; `None` if etcd's list could not be read.
    pub members: Option<&'a [Member]>,
    /// An operator says that the former authorities may be dropped.
    pub may_drop: bool,
}
