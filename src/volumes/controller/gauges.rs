//! The gauges of volumes and plugins, which end with the term.

use std::collections::HashMap;

use crate::metrics::Metrics;
use crate::store::Name;
use crate::term::TermGauges;
use crate::volumes::index::{Index, State};
use crate::volumes::plugin_state::PluginState;

pub(super) struct Gauges {
    pub(super) metrics: Metrics,
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
        Self {
            _end_with_the_term: TermGauges::new(states.chain([metrics.volume_queue_depth.clone()])),
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
}

/// Nothing of the term's plugins is reported after it.
impl Drop for Gauges {
    fn drop(&mut self) {
        self.metrics.forget_csi_plugins();
    }
}
