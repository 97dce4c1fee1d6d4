//! The gate: no release serves that the reconciled Kubernetes state excludes (INV-4).
//!
//! [`registration`] makes a replica visible, [`watch_nodes`] follows all of them, [`plan`] decides, the [`controller`]
//! carries the plan out during a term, and [`WaitReady`] lets a process wait until the state admits it.

#[cfg(feature = "controller")]
pub mod controller;
#[cfg(feature = "controller")]
mod degraded;
#[cfg(test)]
mod model;
#[cfg(feature = "controller")]
pub mod overview;
pub mod plan;
#[cfg(feature = "controller")]
pub mod readiness;
#[cfg(feature = "controller")]
pub mod registration;
pub mod releases;
#[cfg(feature = "controller")]
mod restriction;
pub mod status;
#[cfg(feature = "controller")]
mod status_key;
#[cfg(feature = "controller")]
pub mod summary;
mod wait_ready;
#[cfg(feature = "controller")]
pub mod watch_nodes;

pub use wait_ready::{NotReady, Requirements, WaitReady, wait_ready};
