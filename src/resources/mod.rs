//! The base set of Kubernetes resources: bundle, plan, reconciliation.
//!
//! A pass observes (each kind is listed once a term, then followed by a watch), plans (`plan` and `deletion`, pure, one
//! object at a time) and acts (server-side apply, deletion with preconditions). A request that is not answered goes on
//! beside later passes (`jobs`). The inventory in etcd names every object ever written, and how the last pass left it. The
//! memory of earlier passes ends with the term.

mod act;
pub mod bundle;
pub mod controller;
mod definitions;
pub mod deletion;
pub mod difference;
mod digest;
pub mod inventory;
mod jobs;
pub mod kinds;
mod memory;
mod observe;
mod ownership;
pub mod permissions;
pub mod plan;
pub mod preview;
mod pruning;
mod recreate;
pub mod report;
mod results;
mod settle;
pub mod summary;
mod term_reconciler;
pub mod upgrade;
mod watches;

pub use bundle::{BadBundle, Bundle};
pub use controller::{Reconciler, Settings};
pub use inventory::Inventory;
pub use report::{DELETING, Outcome, Report};
pub use term_reconciler::{Config, TermReconciler};
