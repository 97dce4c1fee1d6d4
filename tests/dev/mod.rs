//! The launchers that `quorate dev` and the tests share, and the command itself.

mod command;
mod csi;
mod launchers;
mod programs;
mod proxy;
mod roles;
pub mod started;
