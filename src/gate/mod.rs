//! The gate: no release serves that the reconciled Kubernetes state excludes (INV-4).
//!
//! [`registration`] makes a replica visible, [`watch_nodes`] sees them all, [`plan`] decides, the [`controller`]
//! carries it out under the term, and [`WaitReady`] lets processes wait until the state admits them.

pub mod controller;
pub mod overview;
pub mod plan;
pub mod readiness;
pub mod registration;
pub mod releases;
pub mod status;
mod status_key;
mod wait_ready;
pub mod watch_nodes;

pub use wait_ready::{NotReady, Requirements, WaitReady, wait_ready};
