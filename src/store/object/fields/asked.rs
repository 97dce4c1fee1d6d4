//! Which fields a reader asks for, so that what is explained is what is read.

use std::sync::LazyLock;

use serde_json::{Map, Value};

/// A field that a reader asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// Its path: `spec.desiredRole`, `status.csi[].plugin`.
    pub path: String,
    /// What its value must be: `a string`, `one of worker, manager`; empty where the reader looks at the value by itself.
    pub expected: String,
    /// Whether a document without it is faulty.
    pub required: bool,
}

/// The document in which a reader finds nothing.
pub(super) static EMPTY: LazyLock<Value> = LazyLock::new(|| Value::Object(Map::new()));

/// Records a field, once. What is said of it first is the most precise.
pub(super) fn ask(asked: &mut Vec<Asked>, path: String, expected: &str) {
    match asked.iter_mut().find(|known| known.path == path) {
        Some(known) if known.expected.is_empty() => known.expected = expected.to_owned(),
        Some(_) => {}
        None => asked.push(Asked {
            path,
            expected: expected.to_owned(),
            required: false,
        }),
    }
}
