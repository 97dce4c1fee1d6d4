//! What is wrong with a document, and where, in words.

use std::fmt;

use serde_json::Value;

use crate::store::keys::Name;

/// Something that is wrong with a document, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The path of the field: `spec.desiredRole`, `status.csi[0].plugin`; empty for the document itself.
    pub path: String,
    /// What is wrong with the field.
    pub message: String,
}

impl Fault {
    /// A fault of the field at `path`.
    pub fn new(path: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            path: path.into(),
            message: message.into(),
        }
    }

    /// Checks that the field at `path` is a name.
    ///
    /// # Errors
    /// The fault that it is none.
    pub fn check_name(path: impl Into<String>, text: &str) -> Result<(), Self> {
        Name::check(text).map_err(|bad| Self::new(path, bad.to_string()))
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.path.is_empty() {
            f.write_str(&self.message)
        } else {
            write!(f, "{}: {}", self.path, self.message)
        }
    }
}

/// `path.name`; a name with dots or slashes (a label's) in brackets, so that the path stays readable.
pub fn join(path: &str, name: &str) -> String {
    let plain = name
        .chars()
        .all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_');
    match (path.is_empty(), plain) {
        (true, true) => name.to_owned(),
        (_, true) => format!("{path}.{name}"),
        (_, false) => format!("{path}[\"{}\"]", name.escape_debug()),
    }
}

pub(super) fn expected_found(expected: &str, value: &Value) -> String {
    let quotes = if expected == "a string" && (value.is_number() || value.is_boolean()) {
        " (put it in quotes)"
    } else {
        ""
    };
    format!("expected {expected}, found {}{quotes}", found(value))
}

pub(super) fn found(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(value) => value.to_string(),
        Value::Number(number) => format!("the number {number}"),
        Value::String(text) => format!("the string \"{}\"", text.escape_debug()),
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "an object".to_owned(),
    }
}
