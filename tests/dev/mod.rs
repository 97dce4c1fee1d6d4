//! `quorate dev`, and the launchers that it shares with the tests.

mod agents;
mod command;
mod csi;
mod launchers;
mod partitions;
mod programs;
mod proxy;
mod roles;
pub mod started;
