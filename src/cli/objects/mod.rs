//! Objects on the command line: `get`, `describe`, `apply`, `delete`, and the table of kinds.

pub mod apply;
pub mod delete;
pub mod describe;
pub mod description;
pub mod get;
pub mod kinds;
pub mod pending;
pub mod stored;
pub mod view;
