//! The etcd cluster's own members: which there are, how each of them fares, and changes of the list.
//!
//! Each member is asked over a connection of its own, since through a balanced channel anyone may answer: a status, a
//! proof of health and a change of leadership mean nothing unless that very member gave them.

mod change;
mod contact;
mod list;
mod survey;

pub use change::{ChangeError, ChangeFault};
pub(super) use contact::Contacts;
pub(super) use list::denies_the_key;
pub use list::{ListedMember, MemberList, same_urls};
pub use survey::{Alarm, MemberReport, Status, most_committed, raft_leader};

/// The key of reads whose value is of no interest; it need not exist. Where a user may not read it, that answer comes
/// after the read went through raft, and proves as much. The same key as that of `etcdctl endpoint health`.
pub(super) const ANY_KEY: &str = "health";
