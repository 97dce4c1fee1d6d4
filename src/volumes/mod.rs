//! Volumes: created, published to nodes, unpublished and deleted through CSI controller plugins.
//!
//! [`plan`] chooses the next step of one volume from what was seen of it, purely; [`record`] says what a step writes;
//! [`retry`] how long a failure rests. Calls for one volume are serial (INV-6), volumes run side by side.

pub mod conditions;
pub mod controller;
pub mod drift;
pub mod index;
pub mod operation;
pub mod plan;
pub mod plugin_state;
pub mod record;
pub mod request;
pub mod retry;
pub mod retry_state;
