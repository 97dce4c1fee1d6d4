//! The gate: no release serves that the reconciled Kubernetes state excludes (INV-4).
//!
//! [`registration`] makes a replica visible, [`watch_nodes`] sees them all, [`plan`] decides, the [`controller`]
//! carries it out under the term, and [`judge`] tells whoever must wait.

pub mod controller;
pub mod judge;
pub mod overview;
pub mod plan;
pub mod readiness;
pub mod registration;
pub mod releases;
pub mod status;
mod status_key;
pub mod watch_nodes;
