//! The faults of a bundle, each with its place.

use std::fmt;

/// A document of a file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// Relative to the bundle's directory.
    pub file: String,
    /// The number of the document, from 1; `None` for the file as a whole.
    pub document: Option<usize>,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        match self.document {
            Some(document) => write!(f, ", document {document}"),
            None => Ok(()),
        }
    }
}

/// One fault.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fault {
    /// The document.
    pub place: Place,
    /// Path of the field; empty for the document as a whole.
    pub field: String,
    /// The fault in words that follow the path of the field.
    pub what: String,
}

impl Fault {
    pub(super) fn new(place: Place, field: &str, what: impl Into<String>) -> Self {
        Self {
            place,
            field: field.to_owned(),
            what: what.into(),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.place)?;
        if !self.field.is_empty() {
            write!(f, "{} ", self.field)?;
        }
        f.write_str(&self.what)
    }
}

/// A bundle with faults.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid bundle {name}:{}", listed(faults))]
pub struct BadBundle {
    /// The directory of the bundle.
    pub name: String,
    /// All faults, at least one.
    pub faults: Vec<Fault>,
}

fn listed(faults: &[Fault]) -> String {
    faults.iter().map(|fault| format!("\n  {fault}")).collect()
}
