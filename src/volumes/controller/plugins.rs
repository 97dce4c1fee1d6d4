//! Plugins: connecting to them, and comparing their lists of volumes with the records.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use jiff::Timestamp;
use tokio::time::Instant;
use tracing::{Instrument as _, warn};

use super::TermState;
use crate::csi::{CallError, ListedVolume, NotReady, Session};
use crate::span;
use crate::store::Name;
use crate::volumes::comparison::{AT_ONCE, Listed};
use crate::volumes::drift;
use crate::volumes::plugin_state::PluginState;
use crate::volumes::retry_state::RetryState;

/// Between two attempts to connect to a plugin for volumes that wait. The plugin's own backoff decides which of them makes
/// a handshake; the others are answered from memory (INV-9).
const CONNECT_AGAIN: Duration = Duration::from_millis(200);

/// What was begun for a plugin has ended.
pub(super) enum PluginEvent {
    /// The plugin was asked something.
    Answered {
        driver: Name,
        /// The generation of the plugin's state when the plugin was asked.
        generation: u64,
        answer: Answer,
    },
    /// The status of a plugin was written, or that of one that is gone (`None`) deleted.
    StatusWritten(Option<Name>),
    /// A plugin that seemed to answer nothing any more was asked whether it does.
    Probed,
}

pub(super) enum Answer {
    Connected(Result<Arc<Session>, NotReady>),
    Listed {
        /// How many changes the index had taken in when the list was asked for.
        since: u64,
        volumes: Result<Listed, CallError>,
    },
}

impl TermState {
    pub(super) fn on_plugin_event(&mut self, event: PluginEvent) {
        let (driver, generation, answer) = match event {
            PluginEvent::Answered {
                driver,
                generation,
                answer,
            } => (driver, generation, answer),
            PluginEvent::Probed => return,
            PluginEvent::StatusWritten(plugin) => {
                let plugin = plugin.and_then(|name| self.plugins.get_mut(&name));
                if let Some(plugin) = plugin {
                    plugin.is_writing_status = false;
                }
                return;
            }
        };
        let Some(plugin) = self
            .plugins
            .get_mut(&driver)
            .filter(|plugin| plugin.generation == generation)
        else {
            return;
        };
        match answer {
            Answer::Connected(outcome) => {
                plugin.is_connecting = false;
                match outcome {
                    Ok(session) => self.on_connected(&driver, session),
                    Err(not_ready) => self.on_not_ready(&driver, not_ready),
                }
            }
            Answer::Listed { since, volumes } => match volumes {
                Ok(listed) => self.begin_comparison(driver, since, listed),
                Err(error) => {
                    plugin.is_comparing = false;
                    warn!(plugin = %driver, "cannot compare its volumes with the records: {error}");
                }
            },
        }
    }

    fn on_connected(&mut self, driver: &Name, session: Arc<Session>) {
        let Some(plugin) = self.plugins.get_mut(driver) else {
            return;
        };
        let is_changed = plugin.connected(session);
        let is_due = plugin.is_comparison_due();
        let mut waiting = std::mem::take(&mut plugin.parked);
        let concerns = |name: &Name, state: &RetryState| {
            self.index.driver(name) == Some(driver) || !state.compensations.is_empty()
        };
        let unsettled = self
            .unsettled
            .iter()
            .filter(|(name, state)| concerns(name, state));
        waiting.extend(unsettled.map(|(name, _)| name.clone()));
        if is_changed {
            // Also the settled ones: what was published without a call may need one by now.
            waiting.extend(self.index.of_plugin(driver));
        }
        for name in waiting {
            if is_changed {
                // The plugin may offer what it did not offer before.
                self.wake(name, None);
            } else {
                self.unsettled.reconnected(&name);
                self.woken.push_back(name);
            }
        }
        // The limits of its record may have been raised.
        self.serve_queue(driver, None);
        if is_due {
            self.list(driver);
        }
    }

    fn on_not_ready(&mut self, driver: &Name, not_ready: NotReady) {
        let Some(plugin) = self.plugins.get_mut(driver) else {
            return;
        };
        // Once a change, not once an attempt.
        if plugin.not_ready.as_ref().map(NotReady::reason) != Some(not_ready.reason()) {
            warn!(plugin = %driver, "{not_ready}");
        }
        plugin.not_ready = Some(not_ready);
        if !plugin.parked.is_empty() {
            self.connect(driver);
        }
    }

    /// An operation on a volume of the plugin has ended; `timed_out` says whether its call got no answer, if it made one.
    pub(super) fn on_called(&mut self, driver: &Name, timed_out: Option<bool>) {
        let plugin = timed_out.and_then(|_| self.plugins.get_mut(driver));
        let Some(session) = plugin.and_then(|plugin| plugin.called(timed_out == Some(true))) else {
            return;
        };
        let probing = async move {
            session.probe().await;
            PluginEvent::Probed
        };
        self.plugin_events.push(probing.boxed());
    }

    /// Begins to connect to the plugin, unless an attempt is under way.
    pub(super) fn connect(&mut self, driver: &Name) {
        let Some(state) = self.plugins.get_mut(driver) else {
            return;
        };
        let Some(plugin) = state.plugin().filter(|_| !state.is_connecting) else {
            return;
        };
        state.is_connecting = true;
        let (driver, generation) = (driver.clone(), state.generation);
        let is_again = state.not_ready.is_some();
        let connecting = async move {
            if is_again {
                tokio::time::sleep(CONNECT_AGAIN).await;
            }
            PluginEvent::Answered {
                driver,
                generation,
                answer: Answer::Connected(plugin.session().await),
            }
        };
        self.plugin_events.push(connecting.boxed());
    }

    /// Once a second: connects again where a session is needed and has ended, begins the comparisons that are due, and
    /// forgets plugins that nothing uses.
    pub(super) fn tick(&mut self) {
        self.gauges.set_states(&self.index);
        self.gauges.set_troubles(self.index.troubles(), Timestamp::now());
        self.gauges.set_plugins(&mut self.plugins);
        self.report_plugins();
        let drivers: Vec<Name> = self.plugins.keys().cloned().collect();
        for driver in drivers {
            self.tick_plugin(&driver);
        }
    }

    fn tick_plugin(&mut self, driver: &Name) {
        let Some(plugin) = self.plugins.get_mut(driver) else {
            return;
        };
        let has_ended = plugin.session().is_none();
        let is_due = plugin.is_comparison_due() && self.index.is_used(driver);
        let is_needed = is_due || !plugin.parked.is_empty();
        if has_ended && (is_needed || self.is_waited_for(driver)) {
            self.connect(driver);
        } else if has_ended && let Some(plugin) = self.plugins.get_mut(driver) {
            // Nothing waits for it: why the last attempt failed concerns nothing any more.
            plugin.not_ready = None;
        }
        if is_due && !has_ended {
            self.list(driver);
        }
        let is_unused = !self.index.is_used(driver) && self.index.plugin(driver).is_none();
        if is_unused && self.plugins.get(driver).is_some_and(PluginState::is_idle) {
            self.plugins.remove(driver);
            self.gauges.metrics.forget_csi_plugin(driver.as_str());
            self.csi_plugins.retain(|name| name != driver.as_str());
        }
    }

    /// Whether a volume waits for something that the plugin may offer in its next session.
    fn is_waited_for(&self, driver: &Name) -> bool {
        let mut unsettled = self.unsettled.iter();
        unsettled.any(|(name, state)| state.waits_for_offer && self.index.driver(name) == Some(driver))
    }

    /// Begins to read the plugin's list of volumes.
    fn list(&mut self, driver: &Name) {
        let since = self.index.changes();
        let Some(plugin) = self.plugins.get_mut(driver) else {
            return;
        };
        plugin.compare_at = Instant::now() + self.times.compare_every;
        plugin.is_comparing = true;
        let Some(session) = plugin.listing_session() else {
            // It lists no nodes, or no longer.
            self.begin_comparison(driver.clone(), since, Listed::new());
            return;
        };
        // One list at a time: it needs no permit, and no other call waits for it.
        let (driver, generation) = (driver.clone(), plugin.generation);
        let listing = async move {
            let volumes = match session.list_volumes().await {
                Ok(volumes) => Ok(by_id(volumes).await),
                Err(error) => Err(error),
            };
            PluginEvent::Answered {
                driver,
                generation,
                answer: Answer::Listed { since, volumes },
            }
        };
        self.plugin_events
            .push(listing.instrument(span::pass("volumes")).boxed());
    }
}

/// The list by the ids of its volumes, without keeping anything else from its turn for long.
async fn by_id(volumes: Vec<ListedVolume>) -> Listed {
    let (mut listed, mut volumes) = (Listed::new(), volumes.into_iter());
    loop {
        let some: Vec<ListedVolume> = volumes.by_ref().take(AT_ONCE).collect();
        if some.is_empty() {
            return listed;
        }
        listed.extend(drift::by_id(some));
        tokio::task::yield_now().await;
    }
}
