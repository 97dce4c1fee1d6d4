//! Comparing the lists of plugins with the records, a part of each list at a time.

use tracing::warn;

use super::TermState;
use crate::proto::Volume;
use crate::store::Name;
use crate::store::object::volume::made_at;
use crate::volumes::comparison::{Comparison, Found, Listed};
use crate::volumes::plan::Plugin;

/// The comparison of one plugin's list.
pub(super) struct Comparing {
    driver: Name,
    /// The generation of the plugin's state when the list was asked for. With the next one, the comparison is void.
    generation: u64,
    comparison: Comparison,
}

impl TermState {
    /// Begins to compare a list, which was asked for after that many changes of the index. The plugin says so meanwhile
    /// (`is_comparing`).
    pub(super) fn begin_comparison(&mut self, driver: Name, since: u64, listed: Listed) {
        let Some(plugin) = self.plugins.get(&driver) else {
            return;
        };
        let volumes = self.index.of_plugin(&driver);
        self.comparing.push_back(Comparing {
            generation: plugin.generation,
            comparison: Comparison::new(since, listed, volumes),
            driver,
        });
    }

    /// Goes on with the comparison that has waited longest for its turn, if any is under way.
    pub(super) fn compare_some(&mut self) {
        let Some(mut comparing) = self.comparing.pop_front() else {
            return;
        };
        let Comparing {
            driver,
            generation,
            comparison,
        } = &mut comparing;
        let driver = &*driver;
        let plugin = self.plugins.get_mut(driver);
        let Some(plugin) = plugin.filter(|plugin| plugin.generation == *generation) else {
            return;
        };
        if comparison.is_compared() {
            let Some(found) = comparison.take_some(&self.index, &self.unsettled) else {
                plugin.is_comparing = false;
                return;
            };
            for one in found {
                self.take_over(one);
            }
        } else {
            let has_created = self.index.has_created(driver);
            let is_elsewhere =
                |volume: &Volume| plugin.observe(made_at(volume), has_created) == Plugin::OtherBackend;
            comparison.compare_some(&self.index, &self.unsettled, is_elsewhere);
            if comparison.is_compared()
                && let Some((differ, all)) = comparison.too_many()
            {
                warn!(plugin = %driver, "{differ} of {all} volumes differ from the plugin's list; nothing is done");
            }
        }
        self.comparing.push_back(comparing);
    }

    /// Takes over what a list says of a volume, and plans the volume.
    fn take_over(&mut self, found: Found) {
        let Found {
            name,
            is_stored,
            drift,
        } = found;
        let why = drift.why(name.as_str());
        let state = self.unsettled.get(&name);
        if why.is_none() && !is_stored && state.is_none() {
            return;
        }
        let known = state.and_then(|state| state.drift.as_ref());
        if known != Some(&drift)
            && let Some(why) = why
        {
            self.report_drift(&name, &why);
        }
        let state = self.unsettled.state(&name);
        state.conditions_written = false;
        state.drift = Some(drift);
        self.woken.push_back(name);
    }
}
