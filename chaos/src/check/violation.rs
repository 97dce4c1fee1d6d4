//! What a check finds.

use std::fmt::{self, Write};

use crate::history::History;

/// What is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rule {
    /// The invariant with this number.
    Inv(u8),
    /// Once faults and changes end, everything becomes as desired.
    Settled,
    /// The history has what the checks are about.
    Judged,
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Inv(number) => write!(f, "INV-{number}"),
            Self::Settled => f.write_str("settled"),
            Self::Judged => f.write_str("judged"),
        }
    }
}

/// One place at which a history breaks a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The rule.
    pub rule: Rule,
    /// What the check demands that found it.
    pub check: &'static str,
    /// What is wrong, in one sentence.
    pub sentence: String,
    /// The indexes of the events that show it, as few as can be, in their order.
    pub events: Vec<usize>,
}

impl Violation {
    pub(super) fn new(rule: Rule, sentence: String, events: impl IntoIterator<Item = usize>) -> Self {
        let mut events: Vec<usize> = events.into_iter().collect();
        events.sort_unstable();
        events.dedup();
        Self {
            rule,
            check: "",
            sentence,
            events,
        }
    }

    pub(super) fn found_by(self, check: &'static str) -> Self {
        Self { check, ..self }
    }

    /// The sentence and the events that show it, for people.
    pub fn render(&self, history: &History) -> String {
        let mut text = format!("{}: {}\n", self.rule, self.sentence);
        for event in self.events.iter().filter_map(|index| history.events.get(*index)) {
            let what = serde_json::to_string(&event.what).unwrap_or_else(|error| error.to_string());
            // A string takes every write.
            let _ = writeln!(text, "  {}  {what}", event.at);
        }
        text
    }
}
