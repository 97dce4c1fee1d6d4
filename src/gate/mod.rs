//! The gate: no release serves that the reconciled Kubernetes state excludes (INV-4).
//!
//! [`registration`] makes a replica visible, [`watch_nodes`] follows all of them, [`plan`] decides, the [`controller`]
//! carries the plan out during a term, and [`WaitReady`] lets a process wait until the state admits it.

pub mod controller;
pub mod overview;
pub mod plan;
pub mod readiness;
pub mod registration;
pub mod releases;
mod restriction;
pub mod status;
mod status_key;
mod wait_ready;
pub mod watch_nodes;

pub use wait_ready::{NotReady, Requirements, WaitReady, wait_ready};
