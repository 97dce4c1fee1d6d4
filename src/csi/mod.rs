//! CSI plugins: connections, capabilities, and the calls about volumes, of the controller and on a node.
//!
//! It is independent of what is stored where: a caller gets a [`Plugin`] from
//! [`Plugins`], a [`Session`] from the plugin, and makes plain requests in the session.
//!
//! - A **session** is one connection after its handshake: the plugin is ready, and its name and capabilities are known. It
//!   ends with its connection and never connects again; the next session begins with a handshake. So a plugin that was
//!   restarted with other capabilities is never called on the old ones. A [`Session`] is with the Controller service of a
//!   plugin, a [`NodeSession`] with the Node service of one on this machine.
//! - **What follows** from an answer is in one table, [`class`].
//! - Secret values have their own type ([`Secrets`]), and no message of a plugin leaves this module with one in it.
//! - An empty node id cannot be expressed ([`CsiNodeId`], INV-6).
//!
//! Nothing here writes to etcd, and only handshakes are repeated here: the caller owns the order of calls, their retries
//! and the window in which they may be made (INV-3). Dropping a call cancels it.

mod caller;
mod capabilities;
pub mod class;
mod connection;
pub mod convert;
mod endpoint;
mod error;
mod handshake;
mod id;
mod link;
mod node_session;
mod plugin;
mod request;
mod secret;
mod session;
mod tls;

pub use caller::{Limits, Settings};
pub use capabilities::{Capabilities, Capability, NodeCapabilities};
pub use class::{Class, Effect, Method};
pub use endpoint::{Endpoint, EndpointError};
pub use error::{CallError, NotReady};
pub use id::{CsiNodeId, Empty, VolumeId, VolumeName};
pub use node_session::NodeSession;
pub use plugin::{Plugin, Plugins};
pub use request::{
    Context, CreateVolume, CreatedVolume, ExpandVolume, ExpandedVolume, ListedVolume, NodeInfo,
    PublishVolume, Segments, ValidateVolume, VolumeOnNode,
};
pub use secret::{SecretValue, Secrets};
pub use session::Session;
pub use tls::Tls;
pub use tonic::Code;

/// The messages of `proto/csi/v1`, as they travel.
#[allow(
    missing_docs,
    clippy::all,
    rustdoc::all,
    reason = "generated; the .proto file holds the documentation"
)]
pub mod wire {
    tonic::include_proto!("csi.v1");
}
