//! Overlapping faults against a whole Quorate cluster, and a checker of what it did meanwhile.
//!
//! A run records its [`history`]: what etcd stored, what each process asked of etcd, Kubernetes and a CSI plugin, and
//! what was done to them. [`check`] reads such a history and finds where it breaks an invariant. It does no I/O, so that
//! a recorded history is checked again as often as one likes.
//!
//! [`run`] starts the cluster ([`world`]), follows the [`schedule`] of a seed ([`faults`]), works on the cluster meanwhile
//! ([`workload`]), and waits until everything is settled ([`settle`]).

mod admin;
pub mod check;
mod error;
pub mod faults;
pub mod history;
pub mod logs;
pub mod mutations;
pub mod operator;
pub mod polls;
pub mod recorder;
pub mod report;
pub mod run;
pub mod schedule;
pub mod settle;
pub mod tap;
pub mod target;
pub mod watch;
pub mod workload;
pub mod world;

pub use error::Error;
