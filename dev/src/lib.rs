//! A whole cluster on this machine: etcd, a kube-apiserver and replicas of the controller as child processes, on
//! free loopback ports.
//!
//! The program `quorate-dev` and the tests use the same launchers, so that what a person tries out is what the tests run.
//! The servers are reached over plain HTTP(S) here ([`http`]), not through the etcd and Kubernetes layers: what
//! watches over a server must not depend on the code that is under test against it.

pub mod apiserver;
pub mod cli;
pub mod cluster;
pub mod csi_plugin;
pub mod data_directory;
pub mod error;
pub mod etcd;
pub mod http;
pub mod observe;
pub mod pki;
pub mod ports;
pub mod process;
mod record;
pub mod replica;
pub mod restartable;
pub mod workspace;

pub use error::Error;
