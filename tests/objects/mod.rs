//! `get`, `describe`, `explain`, `apply`, `diff`, `edit`, `wait`, `delete` and `version` with the real program on a real etcd.

mod apply;
mod at_once;
mod commit;
mod completion;
mod conflicts;
mod delete;
mod diff;
mod edit;
mod explain;
mod get;
mod later;
mod removals;
mod version;
mod wait;
mod watch;

use quorate::store::Keys;

use crate::support::base::document;

fn keys() -> Keys {
    Keys::new("/quorate".parse().unwrap())
}

/// The document of a node, `spec` in flow style.
fn node(name: &str, spec: &str) -> String {
    document("Node", name, spec)
}
