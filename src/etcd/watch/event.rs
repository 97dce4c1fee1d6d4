//! A change of one key, as a watch returns it.

use crate::etcd::kv::{KeyValue, Revision};

/// A change of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The key was written.
    Put(KeyValue),
    /// The key was deleted, or its lease ended.
    Delete {
        /// The whole key.
        key: Vec<u8>,
        /// The revision of the deletion.
        revision: Revision,
    },
}

impl Event {
    /// The revision of the change.
    pub fn revision(&self) -> Revision {
        match self {
            Self::Put(kv) => kv.mod_revision,
            Self::Delete { revision, .. } => *revision,
        }
    }

    /// The key that changed.
    pub fn key(&self) -> &[u8] {
        match self {
            Self::Put(kv) => &kv.key,
            Self::Delete { key, .. } => key,
        }
    }
}

/// `None` for a change that names no key.
pub(super) fn event_of(event: &etcd_client::Event) -> Option<Event> {
    let kv = event.kv()?;
    // A deleted key has version 0, a written one at least 1. The client's `event_type()` is not used: it panics on an
    // unknown kind.
    Some(if kv.version() == 0 {
        Event::Delete {
            key: kv.key().to_vec(),
            revision: Revision(kv.mod_revision()),
        }
    } else {
        Event::Put(KeyValue::take(kv.clone()))
    })
}
