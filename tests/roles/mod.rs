//! Node roles on real etcd clusters that grow and shrink: with leaders in this process, and with the real program.

mod cycles;
mod world;
