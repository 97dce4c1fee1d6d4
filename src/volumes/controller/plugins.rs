//! Plugins: what comes of connecting to them, and of comparing their volumes with the records.

use std::sync::Arc;

use futures::FutureExt;
use tokio::time::Instant;
use tracing::warn;

use super::{Event, Work};
use crate::csi::{CallError, ListedVolume, NotReady, Session};
use crate::store::Name;
use crate::volumes::drift;
use crate::volumes::plugin_state::PluginState;
use crate::volumes::retry_state::RetryState;

impl Work<'_> {
    pub(super) fn on_connected(
        &mut self,
        driver: &Name,
        generation: u64,
        outcome: Result<Arc<Session>, NotReady>,
    ) {
        let Some(plugin_state) = self.plugins.get_mut(driver) else {
            return;
        };
        // Of what it was before.
        if plugin_state.generation != generation {
            return;
        }
        plugin_state.connecting = false;
        match outcome {
            Ok(session) => {
                let is_another = plugin_state.ready(session);
                let mut waiting = std::mem::take(&mut plugin_state.parked);
                let unsettled = self.unsettled.iter_mut().filter(|(name, retry)| {
                    self.index.driver(name) == Some(driver) || !retry.compensations.is_empty()
                });
                for (name, retry) in unsettled {
                    if !is_another {
                        retry.reconnected();
                    }
                    waiting.insert(name.clone());
                }
                for name in waiting {
                    match is_another {
                        // It may do what it did not.
                        true => self.wake(name, None),
                        false => self.woken.push_back(name),
                    }
                }
            }
            Err(not_ready) => {
                if plugin_state.not_ready.as_ref() != Some(&not_ready) {
                    warn!(plugin = %driver, "{not_ready}");
                    plugin_state.not_ready = Some(not_ready);
                    // To say so in their conditions.
                    let parked: Vec<Name> = plugin_state.parked.iter().cloned().collect();
                    for name in parked {
                        if let Some(retry) = self.unsettled.get_mut(&name) {
                            retry.conditions_written = false;
                        }
                        self.woken.push_back(name);
                    }
                }
                // Somebody may be waiting for it.
                if self
                    .plugins
                    .get(driver)
                    .is_some_and(|plugin_state| !plugin_state.parked.is_empty())
                {
                    self.connect(driver);
                }
            }
        }
    }

    pub(super) fn tick(&mut self) {
        self.gauges.set_states(&self.index);
        let now = Instant::now();
        let drivers: Vec<Name> = self.plugins.keys().cloned().collect();
        for driver in drivers {
            let Some(plugin_state) = self.plugins.get_mut(&driver) else {
                continue;
            };
            let ended = plugin_state.session().is_none();
            let due = plugin_state.compare_at <= now && !plugin_state.comparing;
            let parked = !plugin_state.parked.is_empty();
            // One that comes back may offer what it did not.
            let waited_for = || {
                let mut unsettled = self.unsettled.iter();
                unsettled.any(|(name, retry)| retry.is_waiting && self.index.driver(name) == Some(&driver))
            };
            if ended && (parked || due || waited_for()) {
                self.connect(&driver);
            }
            if due {
                self.compare(&driver);
            }
            let unused = !self.index.is_used(&driver) && self.index.plugin(&driver).is_none();
            if unused && self.plugins.get(&driver).is_some_and(PluginState::is_idle) {
                self.plugins.remove(&driver);
                self.csi_plugins.retain(|name| name != driver.as_str());
            }
        }
    }

    /// Asks the plugin where its volumes are.
    pub(super) fn compare(&mut self, driver: &Name) {
        let since = self.index.changes();
        let Some(plugin_state) = self.plugins.get_mut(driver) else {
            return;
        };
        plugin_state.compare_at = Instant::now() + self.volumes.times.compare_every;
        let Some(session) = plugin_state.comparable() else {
            return;
        };
        plugin_state.comparing = true;
        let (driver, generation, permits) = (
            driver.clone(),
            plugin_state.generation,
            plugin_state.permits.clone(),
        );
        let listing = async move {
            // Never closed.
            let _permit = permits.acquire().await;
            let listed = session.list_volumes().await;
            Event::Listed(driver, generation, since, listed)
        };
        self.within_window(listing.boxed());
    }

    pub(super) fn on_listed(
        &mut self,
        driver: &Name,
        generation: u64,
        since: u64,
        outcome: Result<Vec<ListedVolume>, CallError>,
    ) {
        let Some(plugin_state) = self.plugins.get_mut(driver) else {
            return;
        };
        if plugin_state.generation != generation {
            return;
        }
        plugin_state.comparing = false;
        let listed = match outcome {
            Ok(listed) => drift::by_id(listed),
            Err(error) => {
                warn!(plugin = %driver, "its volumes cannot be compared: {error}");
                return;
            }
        };
        for name in self.index.of_plugin(driver) {
            // What changed meanwhile, or is being changed, is compared the next time.
            let is_changing = |retry: &RetryState| retry.is_busy || retry.is_queued;
            if self.unsettled.get(&name).is_some_and(is_changing) || self.index.touched_since(&name, since) {
                continue;
            }
            let Some(seen) = self.index.observe(&name) else {
                continue;
            };
            let Some(found) = drift::compare(&seen, &listed) else {
                continue;
            };
            warn!(volume = %name, "the plugin says otherwise than the record, to be mended: {found:?}");
            self.unsettled.entry(name.clone()).or_default().drift = found;
            self.woken.push_back(name);
        }
    }
}
