//! The agent of a node, as a process: joins, certificates, sessions, removals.

mod ended;
mod impostor;
mod join;
mod removed;
mod renewal;
mod restored;
mod sessions;
pub mod site;
