//! Secrets at rest: their values are encrypted in etcd, or stay in a Secret of Kubernetes.
//!
//! The key is a pair. Replicas have the private half, from files; the leader publishes the public half, with which a command encrypts what
//! it writes, so that no command needs the key. Values are opened where they are used: by the leader for a call, and by a replica for
//! the session of a node.

mod keeper;
mod key;
mod publisher;
mod record;
mod seal;
mod source;

pub use keeper::{Keeper, few};
pub use key::{BadKeyFile, Key, KeyId, Keyring, Recipient};
pub use record::{NotEncrypted, encrypted};
pub use seal::{CannotSeal, Closed, open, seal};
pub use source::{Reader, Unavailable};
