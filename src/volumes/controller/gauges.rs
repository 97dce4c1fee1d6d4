//! The gauges of volumes and plugins, which end with the term.

use std::collections::{BTreeMap, HashMap};

use jiff::Timestamp;

use crate::metrics::{Blocked, Kind, Metrics, Reason};
use crate::store::Name;
use crate::term::TermGauges;
use crate::volumes::drift::{NOT_PUBLISHED, NOT_RECORDED};
use crate::volumes::index::{Index, State, Trouble, Troubles};
use crate::volumes::plugin_state::PluginState;

/// What can be blocked, as the label says it.
const BLOCKED: [(Trouble, &str); 2] = [
    (Trouble::BlockedVolume, "volume"),
    (Trouble::BlockedPublication, "publication"),
];

pub(super) struct Gauges {
    pub(super) metrics: Metrics,
    /// The reasons that have a series now.
    blocked: Vec<Blocked>,
    _end_with_the_term: TermGauges,
}

impl Gauges {
    pub(super) fn new(metrics: Metrics) -> Self {
        let state = |(_, state)| {
            metrics
                .volumes
                .get_or_create(&crate::metrics::State { state })
                .clone()
        };
        let states = State::ALL.into_iter().map(state);
        let oldest = BLOCKED.map(|(_, kind)| {
            let gauge = metrics
                .volumes_blocked_oldest_seconds
                .get_or_create(&Kind { kind });
            gauge.clone()
        });
        let drifted = [NOT_PUBLISHED, NOT_RECORDED].map(|reason| {
            let gauge = metrics.volumes_drifted.get_or_create(&Reason { reason });
            gauge.clone()
        });
        let others = [metrics.volume_queue_depth.clone()];
        Self {
            _end_with_the_term: TermGauges::new(states.chain(oldest).chain(drifted).chain(others)),
            blocked: Vec::new(),
            metrics,
        }
    }

    pub(super) fn set_depth(&self, plugins: &HashMap<Name, PluginState>) {
        let depth: usize = plugins.values().map(|plugin| plugin.lanes.queued()).sum();
        let depth = i64::try_from(depth).unwrap_or(i64::MAX);
        self.metrics.volume_queue_depth.set(depth);
    }

    pub(super) fn set_plugins(&self, plugins: &mut HashMap<Name, PluginState>) {
        for (name, plugin) in plugins {
            let is_ready = plugin.session().is_some();
            let (waiting, running) = (plugin.waiting(), plugin.lanes.running());
            self.metrics
                .set_csi_plugin(name.as_str(), is_ready, waiting, running);
        }
    }

    pub(super) fn set_states(&self, index: &Index) {
        for (state, word) in State::ALL {
            let label = crate::metrics::State { state: word };
            self.metrics.volumes.get_or_create(&label).set(index.count(state));
        }
    }

    /// What the conditions of the records say. A reason that no record has any more has no series.
    pub(super) fn set_troubles(&mut self, troubles: &Troubles, now: Timestamp) {
        let of = |wanted: Trouble| {
            let counts = troubles.counts();
            let of_trouble = counts.filter(move |(trouble, ..)| *trouble == wanted);
            of_trouble.map(|(_, reason, count)| (reason, i64::try_from(count).unwrap_or(i64::MAX)))
        };
        let drifted: BTreeMap<&str, i64> = of(Trouble::DriftedVolume).collect();
        for reason in [NOT_PUBLISHED, NOT_RECORDED] {
            let count = drifted.get(reason).copied().unwrap_or(0);
            let gauge = self.metrics.volumes_drifted.get_or_create(&Reason { reason });
            gauge.set(count);
        }
        let before = std::mem::take(&mut self.blocked);
        for (trouble, kind) in BLOCKED {
            for (reason, count) in of(trouble) {
                let label = Blocked {
                    kind,
                    reason: reason.to_owned(),
                };
                self.metrics.volumes_blocked.get_or_create(&label).set(count);
                self.blocked.push(label);
            }
            // The clock of the leader that wrote the condition may be ahead.
            let oldest = troubles.oldest(trouble);
            let seconds = oldest.map_or(0, |since| now.as_second().saturating_sub(since).max(0));
            let gauge = self
                .metrics
                .volumes_blocked_oldest_seconds
                .get_or_create(&Kind { kind });
            gauge.set(seconds);
        }
        for gone in before.iter().filter(|label| !self.blocked.contains(label)) {
            self.metrics.volumes_blocked.remove(gone);
        }
    }
}

/// Nothing of the term's plugins and volumes is reported after it.
impl Drop for Gauges {
    fn drop(&mut self) {
        self.metrics.volumes_blocked.clear();
        self.metrics.forget_csi_plugins();
    }
}
