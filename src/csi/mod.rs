//! CSI controller plugins: connecting to them, asking what they can do, and the calls that move volumes.
//!
//! The only place that names clients of tonic. It knows nothing of what is stored where: a caller gets a [`Plugin`]
//! from [`Plugins`], a [`Session`] from the plugin, and makes plain requests on the session.
//!
//! - A **session** is one connection that answered everything that must be known: ready, its name, its capabilities. It
//!   never connects again by itself; when its connection ends, it is over, and the next one asks anew. So a plugin that
//!   was restarted with other capabilities is never called with the old ones in mind.
//! - **What follows** from an answer stands in one table, [`class`].
//! - Secret values have a type of their own ([`Secrets`]), and no message of a plugin leaves this module with one.
//! - An empty node id cannot be written down ([`CsiNodeId`], INV-6).
//!
//! Nothing here writes to etcd, and nothing is repeated here but the question whether a plugin is ready: the caller
//! owns order, retries and the window in which calls may be made (INV-3). A call that is dropped is cancelled.

mod caller;
mod capabilities;
pub mod class;
mod connection;
mod convert;
mod endpoint;
mod error;
mod id;
mod plugin;
mod request;
mod secret;
mod session;

pub use capabilities::{Capabilities, Capability};
pub use class::{Class, Effect, Method};
pub use endpoint::{Endpoint, EndpointError};
pub use error::{CallError, NotReady};
pub use id::{CsiNodeId, Empty, VolumeId, VolumeName};
pub use plugin::{Plugin, Plugins};
pub use request::{
    AccessMode, AccessType, CapacityRange, Context, CreateVolume, CreatedVolume, ExpandVolume,
    ExpandedVolume, ListedVolume, PublishVolume, Segments, Topology, VolumeCapability,
};
pub use secret::{SecretValue, Secrets};
pub use session::Session;
pub use tonic::Code;

/// The messages of `proto/csi/v1`, as they travel.
#[allow(
    missing_docs,
    clippy::all,
    reason = "generated; the .proto file holds the documentation"
)]
pub mod wire {
    tonic::include_proto!("csi.v1");
}
