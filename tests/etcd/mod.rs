//! The etcd layer against a real etcd that fails in every way that it can.

mod cache;
mod members;
mod outages;
mod volume;
mod watch;
