//! The status page: what a replica knows, as a document for people and as JSON.
//!
//! [`sources`] reads what the parts of the replica have published, and asks nothing of etcd: a viewer costs etcd no request.
//! `compose` makes a [`state`] of it, and `render` a document, both purely. `serve` has the server.

mod compose;
mod html;
mod render;
pub mod sources;
pub mod state;

pub use render::{Section, document, sections};
pub use sources::{About, Sources};
pub use state::State;

/// The style sheet of the document.
pub const STYLE: &str = include_str!("style.css");

/// The script of the document, which keeps it up to date.
pub const SCRIPT: &str = include_str!("script.js");
