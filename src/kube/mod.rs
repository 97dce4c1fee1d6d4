//! The Kubernetes API: client, discovery, server-side apply, watches, events. The only place that names `kube`.
//!
//! Objects are looked at through their metadata alone ([`Meta`]): what is in them is the server's business, which
//! merges and compares them in server-side apply. Nothing here knows the bundle; [`crate::resources`] decides.

mod apply;
mod calls;
mod client;
mod config;
mod discovery;
mod error;
pub mod events;
mod object;
mod operand;
mod refusal;
mod watch;

pub use apply::Precondition;
pub use calls::{Deleted, ObjectList};
pub use client::{KubeClient, Limits};
pub use config::ConnectError;
pub use discovery::{Discovery, Resource};
pub use error::{Cause, Error};
pub use object::{ManagedFields, Meta, ObjectRef};
pub use operand::{Action, Permission};
pub use watch::{ObjectEvent, Watch};

/// The field manager of every write, and half of what makes an object ours.
pub const FIELD_MANAGER: &str = "quorate";

/// A directive for the log that silences the client library: what fails between here and the API server is reported
/// once, by whoever asked, with the object concerned.
pub const QUIET: &str = "kube_client=off";
