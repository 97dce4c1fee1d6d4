//! The gate: no release serves that the reconciled state excludes (INV-4).

mod bad_input;
mod blocked;
mod disturbed;
mod plans;
mod scale;
mod serving;
pub mod term;
mod wait_ready;
