//! What lies in etcd: keys, objects, copies that follow a range, and the leader's writes.

mod cache;
mod follow;
pub mod index;
pub mod keys;
#[cfg(feature = "controller")]
pub mod object;
#[cfg(feature = "controller")]
pub mod writer;

pub use cache::{Cache, Change};
pub use follow::{Follower, Update};
pub use keys::{Id, Keys, Name, Prefix};

use crate::etcd::Etcd;

/// Everything that Quorate stores below one prefix.
#[derive(Clone, Debug)]
pub struct Store {
    /// The connection to etcd.
    pub etcd: Etcd,
    /// The keys below the prefix.
    pub keys: Keys,
}

impl Store {
    /// The keys below `prefix`, through this connection.
    pub fn new(etcd: Etcd, prefix: Prefix) -> Self {
        let keys = Keys::new(prefix);
        Self { etcd, keys }
    }
}
