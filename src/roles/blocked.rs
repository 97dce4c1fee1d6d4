//! A change that cannot be made now: what it is about, and the rule that blocks it. Pure.

use std::fmt;

use super::reason::Reason;
use crate::etcd::MemberId;

/// What a step is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Subject {
    /// A member.
    Member(MemberId),
    /// The join of the node with this name.
    Join(String),
}

/// A change that cannot be made now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocked {
    /// The member or join that the change is about.
    pub subject: Subject,
    /// The name of its node; empty if it has none.
    pub node: String,
    /// The rule that blocks it.
    pub reason: Reason,
    /// The details, for people.
    pub message: String,
}

impl Blocked {
    pub(super) fn new(subject: Subject, node: &str, reason: Reason, message: impl fmt::Display) -> Self {
        Self {
            subject,
            node: node.to_owned(),
            reason,
            message: message.to_string(),
        }
    }
}
