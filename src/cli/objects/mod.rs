//! Objects on the command line: the commands `get`, `describe`, `apply`, `delete` and `wait`, above the table of kinds.

pub mod apply;
pub mod delete;
pub mod describe;
pub mod description;
pub mod explain;
pub mod get;
pub mod kinds;
pub mod pending;
pub mod stored;
pub mod view;
pub mod wait;
