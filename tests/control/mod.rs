//! The control API: real replicas, real TLS, a real etcd.

mod certificates;
mod confirmations;
mod connections;
mod forged;
mod joins;
mod judgement;
mod lies;
mod members;
mod reflection;
mod reports;
pub mod site;
