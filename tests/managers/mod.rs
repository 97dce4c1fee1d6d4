//! Nodes that are promoted, whose agents keep their etcd: with real agents, real etcds and a real replica.

mod crashes;
mod expired;
mod gap;
mod life;
mod lost;
mod outlives;
mod quick;
mod records;
mod removed;
mod replicas;
mod replies;
mod rotation;
mod running;
pub mod site;
mod tls;
