//! Volumes: created, published to nodes, unpublished and deleted through CSI controller plugins.
//!
//! [`index`] holds the records; [`plan`] chooses the next step of one volume from them, purely; an [`operation`] carries
//! it out in one of its plugin's [`lanes`], and [`record`] says what it writes. [`retry_state`] says when what failed is tried again,
//! [`conditions`] what operators read about it, [`comparison`] how a plugin's list differs. Operations on one volume are serial
//! (INV-6); volumes run side by side.

pub mod comparison;
pub mod conditions;
pub mod controller;
pub mod drift;
pub mod history;
pub mod index;
pub mod lanes;
pub mod operation;
pub mod plan;
pub mod plugin_state;
pub mod record;
pub mod request;
pub mod retry_state;
pub mod summary;
