//! Gauges of the records of certificates.

use super::index::Index;
use crate::metrics::{Metrics, State as StateLabel};
use crate::proto::node_certificate::State;
use crate::term::TermGauges;

/// The gauges of this term.
pub struct Gauges {
    /// The metrics of the process.
    pub metrics: Metrics,
    _end_with_the_term: TermGauges,
}

/// The states of records, as metrics name them.
const STATES: [(&str, Option<State>); 5] = [
    ("pending", Some(State::Pending)),
    ("issued", Some(State::Issued)),
    ("failed", Some(State::Failed)),
    ("rotate", Some(State::Rotate)),
    ("malformed", None),
];

impl Gauges {
    /// Gauges that read 0 until they are set.
    pub fn new(metrics: &Metrics) -> Self {
        let gauges = STATES.map(|(state, _)| {
            metrics
                .node_certificates
                .get_or_create(&StateLabel { state })
                .clone()
        });
        Self {
            _end_with_the_term: TermGauges::new(gauges),
            metrics: metrics.clone(),
        }
    }

    /// Counts the records, once all are known.
    pub fn set(&self, index: &Index) {
        if !index.synced().is_complete() {
            return;
        }
        for (state, of) in STATES {
            let count = index.states().filter(|found| *found == of).count();
            let gauge = self
                .metrics
                .node_certificates
                .get_or_create(&StateLabel { state });
            gauge.set(i64::try_from(count).unwrap_or(i64::MAX));
        }
    }
}
