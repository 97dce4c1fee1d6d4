//! What is kept of each object.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::etcd::Revision;

/// The seconds since 1970 of a mark; 0 for one whose time says nothing.
pub type Since = i64;

/// A name as it stands in a key, good or not.
pub type Raw = Box<[u8]>;

/// The number of the list, or of the watch after it, that last showed a key.
pub type Seen = u32;

#[derive(Debug, Default)]
pub struct ServiceEntry {
    pub object: Option<ServiceObject>,
    /// Also those that cannot be read, under whatever name: each holds the service.
    pub tasks: BTreeMap<Raw, TaskEntry>,
}

#[derive(Debug)]
pub struct ServiceObject {
    pub mod_revision: Revision,
    pub seen: Seen,
    pub content: Content,
}

#[derive(Debug)]
pub enum Content {
    /// What it uses is unknown, so it holds every marked network.
    Unreadable,
    Readable {
        marked: Option<Since>,
        /// In force, each once.
        networks: Box<[Arc<str>]>,
    },
}

#[derive(Debug)]
pub struct TaskEntry {
    pub seen: Seen,
    /// Of an unfinished task that can be read.
    pub node: Option<Arc<str>>,
}

#[derive(Debug, Default)]
pub struct NetworkEntry {
    /// How many readable services use it.
    pub users: usize,
    /// `None` if it is not there or cannot be read: it does not go then.
    pub object: Option<NetworkObject>,
}

#[derive(Debug)]
pub struct NetworkObject {
    pub mod_revision: Revision,
    pub seen: Seen,
    pub marked: Option<Since>,
}
