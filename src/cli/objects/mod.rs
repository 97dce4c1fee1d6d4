//! Commands over objects: get, describe, apply, delete. A further kind is one entry in the table of kinds.

pub mod apply;
pub mod delete;
pub mod describe;
pub mod get;
