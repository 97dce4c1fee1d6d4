//! What is wrong with a bundle: everything, each with its place.

use std::fmt;

/// A document of a file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// Relative to the bundle's directory.
    pub file: String,
    /// Which document of it, from 1; `None` for the file as a whole.
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

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fault {
    /// Where.
    pub place: Place,
    /// Path of the field; empty for the document as a whole.
    pub field: String,
    /// What.
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

/// A bundle that cannot be used, with everything that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the bundle {name} cannot be used:{}", listed(faults))]
pub struct BadBundle {
    /// Its directory.
    pub name: String,
    /// At least one.
    pub faults: Vec<Fault>,
}

fn listed(faults: &[Fault]) -> String {
    faults.iter().map(|fault| format!("\n  {fault}")).collect()
}
