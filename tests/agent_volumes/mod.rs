//! Volumes on an agent's node, with a real plugin and, where this process may mount, real mounts: the agent's part alone, and the whole
//! way from `quorate apply` to a file on the node.

mod cluster;
mod faults;
mod foreign;
mod hung;
mod left;
mod life;
mod mounted;
mod process;
mod restarts;
mod secrets;
mod suspended;
mod whole_way;
mod world;
