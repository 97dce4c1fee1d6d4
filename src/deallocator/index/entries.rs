//! What the index keeps of each object.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::etcd::Revision;

/// When an object was marked, in seconds since 1970; 0 for a mark without a usable time.
pub type MarkedAt = i64;

/// A name as it is in a key, valid or not.
pub type RawName = Box<[u8]>;

#[derive(Debug, Default)]
pub struct ServiceEntry {
    /// `None` while only tasks of this service exist.
    pub object: Option<ServiceObject>,
    /// Every key below the service's tasks. Each holds the service, also one that cannot be read.
    pub tasks: BTreeMap<RawName, TaskEntry>,
}

#[derive(Debug)]
pub struct ServiceObject {
    pub mod_revision: Revision,
    pub content: Content,
}

#[derive(Debug)]
pub enum Content {
    /// The service may use any network, so it holds every marked one.
    Unreadable,
    Readable {
        marked: Option<MarkedAt>,
        /// The networks in force, each once.
        networks: Box<[Arc<str>]>,
    },
}

#[derive(Debug)]
pub struct TaskEntry {
    /// The node of an unfinished task that can be read.
    pub node: Option<Arc<str>>,
}

#[derive(Debug, Default)]
pub struct NetworkEntry {
    /// How many readable services use it.
    pub users: usize,
    /// `None` if the network does not exist or cannot be read. Then it is not deleted.
    pub object: Option<NetworkObject>,
}

#[derive(Debug)]
pub struct NetworkObject {
    pub mod_revision: Revision,
    pub marked: Option<MarkedAt>,
}
