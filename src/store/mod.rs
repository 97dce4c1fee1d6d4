//! What lies in etcd: keys, objects, copies that follow a range, and the leader's writes.

mod cache;
mod follow;
pub mod index;
pub mod keys;
pub mod object;
pub mod writer;

pub use cache::{Cache, Change};
pub use follow::{Follower, Update};
pub use keys::{Id, Keys, Name, Prefix};

use crate::etcd::Etcd;

/// The connection and the keys below one prefix.
#[derive(Clone, Debug)]
pub struct Store {
    /// Where it lies.
    pub etcd: Etcd,
    /// How its keys are called.
    pub keys: Keys,
}
