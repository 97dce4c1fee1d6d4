//! Node roles on real etcd clusters that grow and shrink: with leaders in this process, and with the real program.

mod crashes;
mod cycles;
mod demotions;
mod evictions;
mod joins;
mod leftovers;
mod random;
mod world;
