//! The Kubernetes API: client, discovery, server-side apply, watches, events. The only place that names `kube`.
//!
//! Objects are read by metadata alone ([`Meta`]); the server merges and compares their contents in server-side apply.
//! Nothing here knows the bundle: [`crate::resources`] decides.

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
mod review;
mod secret;
mod transport;
mod watch;

pub use apply::Precondition;
pub use calls::{Deleted, Dependants, ObjectList};
pub use client::{KubeClient, Limits};
pub use config::ConnectError;
pub use discovery::{Discovery, Resource};
pub use error::{Cause, Error};
pub use object::{ManagedFields, Meta, ObjectRef};
pub use operand::{Action, Permission};
pub use watch::{ObjectEvent, Watch};

/// The field manager of every write. An object is ours if this manager owns fields of it and it has the bundle's label.
pub const FIELD_MANAGER: &str = "quorate";

/// A log directive that silences the client library. The caller reports a failed request once, with the object.
pub const QUIET: &str = "kube_client=off";
