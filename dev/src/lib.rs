//! A Quorate cluster on one machine: etcd, a kube-apiserver and replicas of the controller as child processes, on free
//! loopback ports; and a CSI plugin to test against.
//!
//! The program `quorate-dev` and the tests share these launchers, so that the tests run what a person tries out. The
//! launchers reach their servers over plain HTTP ([`http`]) instead of Quorate's layers for etcd and Kubernetes, since the
//! tests test those layers against these servers.

pub mod admission;
pub mod agent;
pub mod apiserver;
pub mod bundles;
mod cache;
pub mod cli;
pub mod clock;
pub mod cluster;
pub mod command;
pub mod csi_plugin;
pub mod data_directory;
pub mod error;
pub mod etcd;
pub mod http;
pub mod join;
pub mod leader;
pub mod observe;
pub mod pki;
pub mod ports;
pub mod process;
pub mod proxy;
mod record;
pub mod replica;
pub mod restartable;
pub mod seeded_rng;
pub mod workspace;

pub use error::Error;

/// The messages and the service of `proto/otlp/v1`, for a collector of traces.
#[allow(
    missing_docs,
    clippy::all,
    reason = "generated; the .proto file holds the documentation"
)]
pub mod otlp {
    tonic::include_proto!("opentelemetry.proto.collector.trace.v1");
}
