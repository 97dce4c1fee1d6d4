//! etcd: what it stored, what each process asked of it, and its members.

use serde::{Deserialize, Serialize};

use super::{At, Bytes, Process};

/// A revision of one of the store's histories. A restore begins a new history, whose revisions go on from the snapshot's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Revision {
    /// How many restores were before.
    pub epoch: u32,
    /// As etcd counts it.
    pub revision: i64,
}

/// A change of one key, as the watch of the harness has it. [`Event::at`](super::Event::at) is when the harness got it: at
/// that instant it had happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Changed {
    /// The store's id, in each epoch perhaps another.
    pub cluster: u64,
    /// When it happened, as etcd counts it: the mod revision of a put.
    pub revision: Revision,
    /// The key.
    pub key: Bytes,
    /// What became of it.
    pub change: Change,
}

/// What became of a key.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Change {
    /// It was written.
    Put {
        /// Its value.
        value: Bytes,
        /// Its create revision.
        created: i64,
        /// The lease that it hangs on; 0: none.
        lease: i64,
    },
    /// It was deleted, by a transaction or by the end of its lease.
    Deleted,
}

/// A transaction, a put or a deletion of a process. A plain put or deletion is a transaction without a compare.
/// [`Event::at`](super::Event::at) is when the proxy beside the process got it, before any delay.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StoreCall {
    /// Who sent it.
    pub by: Process,
    /// The compares, in their order.
    pub compares: Vec<Compare>,
    /// What is done if all of them hold.
    pub then: Vec<Op>,
    /// What is done if one does not.
    pub otherwise: Vec<Op>,
    /// When the process got the answer; none: it never got one.
    pub answered: Option<At>,
    /// What etcd made of it.
    pub outcome: Outcome<Applied>,
}

/// What became of a request to etcd, as far as the proxy beside its sender knows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome<T> {
    /// etcd answered. The sender need not have got the answer.
    Done(T),
    /// etcd answered with an error.
    Failed {
        /// Its gRPC code.
        code: i32,
        /// Its message.
        message: String,
    },
    /// No answer came to the proxy: it may have been carried out.
    Unknown,
}

impl<T> Outcome<T> {
    /// The answer, if there is one.
    pub fn done(&self) -> Option<&T> {
        match self {
            Self::Done(answer) => Some(answer),
            Self::Failed { .. } | Self::Unknown => None,
        }
    }
}

/// The answer to a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Applied {
    /// Whether the compares held.
    pub succeeded: bool,
    /// The store's revision after it: that of its writes, if it wrote.
    pub revision: Revision,
    /// raft's term, as the answer's header has it.
    pub raft_term: u64,
}

/// A compare. A range instead of a key compares every key of it, and holds if there is none.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Compare {
    /// The key, or the begin of the range.
    pub key: Bytes,
    /// The end of the range, as etcd has it; empty: only the key.
    #[serde(default)]
    pub end: Bytes,
    /// What is compared with it.
    pub target: Target,
    /// How.
    pub is: Is,
}

/// What a compare compares.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Target {
    /// The number of writes since its creation.
    Version(i64),
    /// The revision of its creation; 0: it does not exist.
    Created(i64),
    /// The revision of its last write; 0: it does not exist.
    Modified(i64),
    /// Its value.
    Value(Bytes),
    /// The id of its lease.
    Lease(i64),
}

/// How a key has to compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Is {
    /// Equal.
    Equal,
    /// Greater than what is given.
    Greater,
    /// Less than what is given.
    Less,
    /// Unequal.
    NotEqual,
}

/// One operation of a transaction.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Op {
    /// A read.
    Get {
        /// The key, or the begin of the range.
        key: Bytes,
        /// The end of the range; empty: only the key.
        #[serde(default)]
        end: Bytes,
    },
    /// A write.
    Put {
        /// The key.
        key: Bytes,
        /// Its value.
        value: Bytes,
        /// The lease that it hangs on; 0: none, unless it stays on that which it has.
        #[serde(default)]
        lease: i64,
        /// Whether the key stays on the lease that it has.
        #[serde(default)]
        keep_lease: bool,
    },
    /// A deletion.
    Delete {
        /// The key, or the begin of the range.
        key: Bytes,
        /// The end of the range; empty: only the key.
        #[serde(default)]
        end: Bytes,
    },
}

/// A request about a lease.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LeaseCall {
    /// Who sent it.
    pub by: Process,
    /// The lease; of a grant that was not answered, 0.
    pub lease: i64,
    /// What was asked for.
    pub op: LeaseOp,
    /// When the process got the answer.
    pub answered: Option<At>,
    /// The TTL of the answer in seconds. A lease that is renewed and has ended has 0.
    pub outcome: Outcome<i64>,
}

/// What is done with a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LeaseOp {
    /// It is granted.
    Grant,
    /// It is renewed: one message of a stream of these.
    KeepAlive,
    /// It is revoked, with all keys that hang on it.
    Revoke,
}

/// A request to change etcd's members.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MemberCall {
    /// Who sent it; none where the harness cannot tell.
    pub by: Option<Process>,
    /// What was asked for.
    pub change: MemberChange,
    /// When the process got the answer.
    pub answered: Option<At>,
    /// When a call without an answer was over: the process gave it up, or its connection ended.
    #[serde(default)]
    pub given_up: Option<At>,
    /// The id of the member in question.
    pub outcome: Outcome<u64>,
}

/// A change of etcd's members.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MemberChange {
    /// A new member.
    Add {
        /// Whether it is a learner.
        learner: bool,
        /// Its peer URLs.
        peer_urls: Vec<String>,
    },
    /// The learner becomes a voter.
    Promote(u64),
    /// The member is removed.
    Remove(u64),
    /// The member gets other peer URLs.
    Update {
        /// The member.
        id: u64,
        /// The URLs.
        peer_urls: Vec<String>,
    },
}

/// etcd's members, as a linearizable list has them, and which of them answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Members {
    /// The store's history in which this holds.
    pub epoch: u32,
    /// The store's id.
    pub cluster: u64,
    /// All of them.
    pub members: Vec<Listed>,
}

/// A member in a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listed {
    /// Its id.
    pub id: u64,
    /// Its name; empty if it never started.
    pub name: String,
    /// Whether it is a learner.
    pub learner: bool,
    /// Whether it answered a linearizable read (a learner: a serializable one) that was sent after the list and before
    /// the next one.
    pub healthy: bool,
}
