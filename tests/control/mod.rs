//! The control API: real replicas, real TLS, a real etcd.

mod certificates;
mod confirmations;
mod connections;
mod forged;
mod joins;
mod judgement;
mod reflection;
mod reports;
pub mod site;
