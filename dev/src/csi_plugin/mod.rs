//! A CSI controller plugin to try things out on, and to test against: a real server on a real socket, whose backend is
//! a directory.
//!
//! It does what the specification says, and on request what plugins do in the field: fail with a code, hang, lose an
//! answer, crash, not be ready, or come back with other capabilities. [`faults`] come over a socket of their own;
//! every call is written down with its time ([`log`]), never with a secret value.

pub mod backend;
pub mod control;
pub mod faults;
pub mod log;
pub mod options;
pub mod order;
pub mod process;
pub mod server;
mod service;

/// The messages and the server's side of `proto/csi/v1`.
#[allow(
    missing_docs,
    clippy::all,
    reason = "generated; the .proto file holds the documentation"
)]
mod wire {
    tonic::include_proto!("csi.v1");
}
