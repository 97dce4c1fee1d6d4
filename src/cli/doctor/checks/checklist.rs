//! The checks that were made, and what they found. Pure.

use crate::cli::doctor::finding::Finding;

/// The checks that were made, and what they found.
#[derive(Debug, Default)]
pub struct Checklist {
    /// What was found, in any order.
    pub findings: Vec<Finding>,
    /// How many checks were made.
    pub made: usize,
}

impl Checklist {
    /// A check was made, with this result.
    pub fn check(&mut self, found: Option<Finding>) {
        self.made += 1;
        self.findings.extend(found);
    }

    /// These checks were made, one for each of these.
    pub fn check_each<T>(
        &mut self,
        of: impl IntoIterator<Item = T>,
        mut judge: impl FnMut(T) -> Option<Finding>,
    ) {
        for one in of {
            self.check(judge(one));
        }
    }
}
