//! Everything that talks to etcd. Only these files name `etcd_client`.
//!
//! [`Etcd`] is the connection, with a limit on every call and endpoints that follow the member list. Built on it are the
//! [`Session`] (a lease with its keep-alive), the [`election`], which makes a [`Fence`], and the [`Watcher`].

mod alert;
mod answer;
mod builder;
pub mod checkup;
mod config;
mod connect;
mod connection;
pub mod election;
mod endpoints;
mod error;
mod fence;
pub mod handshake;
mod kv;
mod lease;
pub mod member_http;
pub mod members;
mod one_store;
mod outage;
mod probe;
mod quorum;
mod range;
mod rights;
pub mod session;
mod silence;
mod store_identity;
mod txn;
mod watch;

pub use builder::Builder;
pub use config::{Config, ConfigError, Password, TlsFiles};
pub use connect::{ConnectError, Etcd};
pub use error::{Class, Error};
pub use fence::{Fence, FencedError, Stop};
pub use kv::{KeyRange, KeyValue, LeaseId, MemberId, Revision};
pub use members::Position;
pub use quorum::{LastAnswer, Outage};
pub use range::Pages;
pub use session::{LeaseTimes, Pulse, Session, Window};
pub use store_identity::{ClusterId, StoreLost, Witness};
pub use txn::{Committed, Txn, TxnError};
pub(crate) use watch::delay_after;
pub use watch::{Event, Progress, Watched, Watcher};
