//! Real servers for the tests, on free loopback ports, each with a directory of its own. A server ends with the value
//! that holds it.

pub mod access;
pub mod base;
pub mod client;
pub mod clock;
pub mod collector;
pub mod csi;
pub mod directory;
pub mod doomed;
pub mod etcd;
pub mod failures;
pub mod hold;
pub mod kubernetes;
pub mod leader;
pub mod metrics;
pub mod quorate;
pub mod shell;
pub mod traced;
pub mod version;
pub mod wait;
pub mod writer;

pub use quorate_dev::{proxy, seeded_rng};
