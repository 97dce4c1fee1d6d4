//! A CSI plugin to test against, with a Controller and a Node service: a real server on a real socket, whose backend is a directory.
//!
//! It follows the specification, and by [`order`] it fails as plugins in the field do: it returns an error, hangs, loses an
//! answer, crashes, is not ready, or restarts with other capabilities. Its [`log`] has every call with its time, and never the
//! value of a secret.

pub mod backend;
pub mod control;
pub mod faults;
pub mod log;
mod node;
pub mod options;
pub mod order;
pub mod process;
pub mod server;
mod service;

/// The messages and services of `proto/csi/v1`, for a server.
#[allow(
    missing_docs,
    clippy::all,
    reason = "generated; the .proto file holds the documentation"
)]
mod wire {
    tonic::include_proto!("csi.v1");
}
