//! Plugins: what comes of connecting to them, and of comparing their volumes with the records.

use std::sync::Arc;

use futures::FutureExt;
use tokio::time::Instant;
use tracing::warn;

use super::{Event, Work};
use crate::csi::{Failure, ListedVolume, NotReady, Session};
use crate::store::Name;
use crate::volumes::case::Case;
use crate::volumes::drift;
use crate::volumes::line::Line;

impl Work<'_> {
    pub(super) fn on_connected(
        &mut self,
        driver: &Name,
        generation: u64,
        outcome: Result<Arc<Session>, NotReady>,
    ) {
        let Some(line) = self.lines.get_mut(driver) else {
            return;
        };
        // Of what it was before.
        if line.generation != generation {
            return;
        }
        line.connecting = false;
        match outcome {
            Ok(session) => {
                let is_another = line.ready(session);
                let mut waiting = std::mem::take(&mut line.parked);
                let unsettled = self
                    .cases
                    .iter_mut()
                    .filter(|(name, case)| self.index.driver(name) == Some(driver) || !case.undo.is_empty());
                for (name, case) in unsettled {
                    if !is_another {
                        case.reconnected();
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
                if line.not_ready.as_ref() != Some(&not_ready) {
                    warn!(plugin = %driver, "{not_ready}");
                    line.not_ready = Some(not_ready);
                    // To say so in their conditions.
                    let parked: Vec<Name> = line.parked.iter().cloned().collect();
                    for name in parked {
                        if let Some(case) = self.cases.get_mut(&name) {
                            case.is_noted = false;
                        }
                        self.woken.push_back(name);
                    }
                }
                // Somebody may be waiting for it.
                if self.lines.get(driver).is_some_and(|line| !line.parked.is_empty()) {
                    self.connect(driver);
                }
            }
        }
    }

    pub(super) fn tick(&mut self) {
        self.gauges.set_states(&self.index);
        let now = Instant::now();
        let drivers: Vec<Name> = self.lines.keys().cloned().collect();
        for driver in drivers {
            let Some(line) = self.lines.get_mut(&driver) else {
                continue;
            };
            let ended = line.session().is_none();
            let due = line.compare_at <= now && !line.comparing;
            let parked = !line.parked.is_empty();
            // One that comes back may offer what it did not.
            let waited_for = || {
                let mut cases = self.cases.iter();
                cases.any(|(name, case)| case.is_waiting && self.index.driver(name) == Some(&driver))
            };
            if ended && (parked || due || waited_for()) {
                self.connect(&driver);
            }
            if due {
                self.compare(&driver);
            }
            let unused = !self.index.is_used(&driver) && self.index.plugin(&driver).is_none();
            if unused && self.lines.get(&driver).is_some_and(Line::is_idle) {
                self.lines.remove(&driver);
                self.plugins.retain(|name| name != driver.as_str());
            }
        }
    }

    /// Asks the plugin where its volumes are.
    pub(super) fn compare(&mut self, driver: &Name) {
        let since = self.index.changes();
        let Some(line) = self.lines.get_mut(driver) else {
            return;
        };
        line.compare_at = Instant::now() + self.volumes.times.compare_every;
        let Some(session) = line.comparable() else { return };
        line.comparing = true;
        let (driver, generation, permits) = (driver.clone(), line.generation, line.permits.clone());
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
        outcome: Result<Vec<ListedVolume>, Failure>,
    ) {
        let Some(line) = self.lines.get_mut(driver) else {
            return;
        };
        if line.generation != generation {
            return;
        }
        line.comparing = false;
        let listed = match outcome {
            Ok(listed) => drift::by_id(listed),
            Err(failure) => {
                warn!(plugin = %driver, "its volumes cannot be compared: {failure}");
                return;
            }
        };
        for name in self.index.of_plugin(driver) {
            // What changed meanwhile, or is being changed, is compared the next time.
            let is_changing = |case: &Case| case.is_busy || case.is_queued;
            if self.cases.get(&name).is_some_and(is_changing) || self.index.touched_since(&name, since) {
                continue;
            }
            let Some(seen) = self.index.observe(&name) else {
                continue;
            };
            let Some(found) = drift::compare(&seen, &listed) else {
                continue;
            };
            warn!(volume = %name, "the plugin says otherwise than the record, to be mended: {found:?}");
            self.cases.entry(name.clone()).or_default().drift = found;
            self.woken.push_back(name);
        }
    }
}
