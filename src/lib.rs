//! Quorate, an etcd-backed, leader-elected cluster controller.
//!
//! Programs that embed it start at the [`prelude`]. Everything else serves the `quorate` program and may change at any
//! time. ARCHITECTURE.md lists its layers: a lower one never names a higher one.

// `println!` and `eprintln!` panic when their stream is closed or full, and wait while it is not read: `lines` and
// `cli::output::print` do not.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

#[cfg(feature = "controller")]
#[doc(hidden)]
pub mod agent;
#[doc(hidden)]
pub mod causes;
#[cfg(feature = "controller")]
#[doc(hidden)]
pub mod check;
#[cfg(feature = "controller")]
#[doc(hidden)]
pub mod cli;
#[doc(hidden)]
pub mod clock;
#[cfg(feature = "controller")]
#[doc(hidden)]
pub mod control;
#[cfg(feature = "controller")]
#[doc(hidden)]
pub mod csi;
#[cfg(feature = "controller")]
#[doc(hidden)]
pub mod deallocator;
#[doc(hidden)]
pub mod etcd;
#[cfg(feature = "controller")]
#[doc(hidden)]
pub mod failpoint;
#[doc(hidden)]
pub mod gate;
#[doc(hidden)]
pub mod grpc_code;
#[cfg(feature = "controller")]
#[doc(hidden)]
pub mod grpc_status;
#[cfg(feature = "controller")]
#[doc(hidden)]
pub mod identity;
#[cfg(feature = "controller")]
#[doc(hidden)]
pub mod kube;
#[cfg(feature = "controller")]
#[doc(hidden)]
pub mod limit;
#[cfg(feature = "controller")]
#[doc(hidden)]
pub mod lines;
#[doc(hidden)]
pub mod metrics;
#[cfg(test)]
mod model_checking;
#[doc(hidden)]
pub mod mutation;
#[cfg(feature = "controller")]
#[doc(hidden)]
pub mod one_stream;
#[doc(hidden)]
pub mod own_thread;
#[cfg(feature = "controller")]
#[doc(hidden)]
pub mod page;
pub mod prelude;
#[doc(hidden)]
pub mod release;
#[cfg(feature = "controller")]
#[doc(hidden)]
pub mod replica;
#[cfg(feature = "controller")]
#[doc(hidden)]
pub mod resources;
#[doc(hidden)]
pub mod retry;
#[cfg(feature = "controller")]
#[doc(hidden)]
pub mod roles;
#[cfg(feature = "controller")]
#[doc(hidden)]
pub mod secrets;
#[cfg(feature = "controller")]
#[doc(hidden)]
pub mod serve;
#[doc(hidden)]
pub mod span;
#[doc(hidden)]
pub mod store;
#[cfg(feature = "controller")]
#[doc(hidden)]
pub mod summary;
#[cfg(feature = "controller")]
#[doc(hidden)]
pub mod term;
#[cfg(feature = "controller")]
#[doc(hidden)]
pub mod traces;
#[cfg(feature = "controller")]
#[doc(hidden)]
pub mod volumes;
#[cfg(feature = "controller")]
#[doc(hidden)]
pub mod wipe;
#[doc(hidden)]
pub mod wire;

/// The messages of `proto/quorate/v1`, as etcd stores them.
#[allow(
    missing_docs,
    clippy::all,
    rustdoc::all,
    reason = "generated; the .proto files hold the documentation"
)]
#[doc(hidden)]
pub mod proto {
    include!(concat!(env!("OUT_DIR"), "/quorate.v1.rs"));
}
