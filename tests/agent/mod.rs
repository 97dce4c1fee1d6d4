//! The agent of a node, as a process: joins, certificates, sessions, removals.

mod impostor;
mod join;
mod renewal;
mod sessions;
pub mod site;
