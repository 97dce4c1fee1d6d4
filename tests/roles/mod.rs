//! Node roles on real etcd clusters that grow and shrink: with leaders in this process, and with the real program.

mod addresses;
pub mod crashes;
mod cycles;
mod demotions;
mod events;
mod evictions;
mod intents;
mod joins;
mod leader;
mod leftovers;
mod machines;
mod polled;
mod races;
mod random;
pub mod removals;
mod sequence;
mod world;
