//! The integration tests, against real servers: one binary, so that its modules share one build and one link.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a failed expectation fails the test, which is its purpose"
)]

mod agent;
mod agent_volumes;
mod control;
mod csi;
mod deallocation;
mod deploy;
mod dev;
mod docs;
mod doctor;
mod election;
mod etcd;
mod fuzz;
mod gate;
mod identity;
mod layers;
mod library;
mod log_levels;
mod managers;
mod matrix;
mod members;
mod monitoring;
mod objects;
mod page;
mod resources;
mod roles;
mod secrets;
mod sessions;
mod store;
mod streams;
mod support;
mod traces;
mod upgrade;
mod volumes;
