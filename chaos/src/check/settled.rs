//! Once faults and changes end, everything becomes as desired.

use super::past::Past;
use super::{Rule, Violation};
use crate::history::What;

/// What the harness still waited for at the end.
pub fn unsettled(past: &Past<'_>) -> Vec<Violation> {
    let mut found = Vec::new();
    for (index, event) in past.events() {
        if let What::End { unsettled, .. } = &event.what {
            found.extend(
                unsettled
                    .iter()
                    .map(|sentence| Violation::new(Rule::Settled, sentence.clone(), [index])),
            );
        }
    }
    found
}
