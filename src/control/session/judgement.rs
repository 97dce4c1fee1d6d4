//! Whether a session goes on, by what the replica has copied of etcd. Pure.

use std::time::{Duration, Instant};

use super::index::{Index, Part};
use crate::etcd::Revision;
use crate::proto::Role;
use crate::store::Name;

/// A copy older than this serves no heartbeat.
pub const OLDEST: Duration = Duration::from_secs(5);

/// A session, as far as it is judged.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The node.
    pub name: Name,
    /// Its uid, which the certificate of the connection says.
    pub uid: String,
    /// The observed role of the node when the session began.
    pub role: Role,
    /// When the node was last written then. An older state of it says nothing.
    pub seen_at: Revision,
    /// The id of the session.
    pub id: String,
    /// When the id was written to `/alive/<name>`.
    pub held_at: Revision,
}

/// Why a session ends, as far as etcd says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The node was removed.
    Removed,
    /// There is no such node, and nothing says that it was removed.
    Gone,
    /// The record of the node cannot be read.
    Unreadable,
    /// The node is not accepted any more.
    NotAccepted,
    /// The observed role of the node is another one.
    RoleChanged,
    /// Another session of the node has begun.
    Superseded,
    /// The lease of the session has ended, for want of heartbeats.
    Lapsed,
}

/// Why the session ends now; `None` if it goes on. What the copy has not come to yet ends none.
pub fn judge(index: &Index, session: &Facts) -> Option<Verdict> {
    if index.is_removed(&session.uid) {
        return Some(Verdict::Removed);
    }
    if index.shows(Part::Records, session.seen_at) {
        match index.node(&session.name) {
            None => return Some(Verdict::Gone),
            Some(None) => return Some(Verdict::Unreadable),
            Some(Some(node)) if node.uid != session.uid => return Some(Verdict::Gone),
            Some(Some(node)) if !node.is_accepted => return Some(Verdict::NotAccepted),
            Some(Some(node)) if node.role != session.role => return Some(Verdict::RoleChanged),
            Some(Some(_)) => {}
        }
    }
    if !index.shows(Part::Alive, session.held_at) {
        return None;
    }
    match index.session_id(&session.name) {
        None => Some(Verdict::Lapsed),
        Some(id) if id != session.id => Some(Verdict::Superseded),
        Some(_) => None,
    }
}

/// Whether a copy that held at `as_of` is too old at `now` to serve a heartbeat.
pub fn is_stale(as_of: Option<Instant>, now: Instant) -> bool {
    as_of.is_none_or(|as_of| now.saturating_duration_since(as_of) > OLDEST)
}

#[cfg(test)]
mod tests;
