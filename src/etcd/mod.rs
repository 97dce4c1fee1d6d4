//! Everything that talks to etcd, and the only place that names `etcd_client`.
//!
//! [`Etcd`] is the connection: limits on every call, endpoints that follow the member list. On it stand the
//! [`Session`] (a lease and its keep-alive), the [`election`] that makes a [`Fence`], and the [`Watcher`].

mod config;
mod connect;
pub mod election;
mod endpoints;
mod error;
mod fence;
mod kv;
pub mod members;
pub mod session;
mod txn;
mod watch;

pub use config::{Config, ConfigError, Password, TlsFiles};
pub use connect::{ConnectError, Etcd};
pub use error::{Class, Error};
pub use fence::{Fence, FencedError, Stop};
pub use kv::{KeyRange, KeyValue, LeaseId, MemberId, Pages, Revision};
pub use session::{LeaseTimes, Pulse, Session, Window};
pub use txn::{Committed, Txn, TxnError};
pub use watch::{Event, Watched, Watcher};
