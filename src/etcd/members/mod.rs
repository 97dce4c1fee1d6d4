//! The members of the etcd cluster: their list, the health of each, and changes of the list.
//!
//! Each member has a client of its own. Through the balanced channel any member could answer, and a status, a proof of
//! health or a move of leadership counts only from the member that it concerns.

mod ask;
mod change;
mod contacts;
mod evidence;
pub mod known_faults;
mod list;
mod listener;
mod position;
mod survey;

pub use change::{ChangeError, ChangeFault};
pub(super) use contacts::Contacts;
pub use evidence::{
    Alarm, Evidence, Inquiry, NotAsked, Status, Unproven, alarms, corrupt, latest_raft_leader, most_committed,
};
pub use list::{ListedMember, MemberList, same_urls};
pub use listener::Listener;
pub use position::Position;
