//! Volumes on an agent's node, with a real plugin and, where this process may mount, real mounts.

mod faults;
mod foreign;
mod life;
mod restarts;
mod secrets;
mod world;
