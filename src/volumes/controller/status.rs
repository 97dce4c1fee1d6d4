//! The status of each plugin: one record, to which the volumes that wait for the plugin refer.

use std::time::Duration;

use futures::FutureExt;
use jiff::Timestamp;
use prost::Message;
use tokio::time::Instant;

use super::TermState;
use super::plugins::PluginEvent;
use crate::proto::PluginStatus;
use crate::store::Name;
use crate::store::object::time;
use crate::store::writer::Unit;

/// Between two writes of one status in which only counts differ.
const COUNT_AGAIN: Duration = Duration::from_secs(10);

impl TermState {
    /// Once a second: writes what has changed in the status of a plugin, and deletes those of plugins that are gone.
    pub(super) fn report_plugins(&mut self) {
        if !self.index.is_complete() {
            return;
        }
        let left: Vec<_> = self.index.statuses_left_over().collect();
        let left: Vec<Unit> = left
            .into_iter()
            .map(|(plugin, at)| Unit::new().delete(self.env.store.keys.plugin_status(plugin), at))
            .collect();
        for unit in left {
            self.write_status(unit, None);
        }
        let plugins: Vec<Name> = self.index.plugins().cloned().collect();
        for plugin in plugins {
            self.report_plugin(&plugin);
        }
    }

    fn report_plugin(&mut self, name: &Name) {
        let Some(plugin) = self.plugins.get_mut(name) else {
            return;
        };
        let count = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
        let mut now = PluginStatus {
            volumes: count(self.index.count_of_plugin(name)),
            waiting: count(plugin.waiting()),
            in_flight: count(plugin.lanes.running()),
            ..plugin.readiness()
        };
        let stored = self.index.plugin_status(name);
        let same_state = stored.filter(|(stored, _)| stored.state == now.state);
        now.since = same_state.and_then(|(stored, _)| stored.since);
        now.since.get_or_insert_with(|| time::to_proto(Timestamp::now()));
        let (before, revision) = stored.cloned().unwrap_or_default();
        let is_recent = plugin
            .status_written
            .is_some_and(|written| written.elapsed() < COUNT_AGAIN);
        let only_counts = PluginStatus {
            volumes: before.volumes,
            waiting: before.waiting,
            in_flight: before.in_flight,
            ..now.clone()
        } == before;
        if now == before || (only_counts && is_recent) || plugin.is_writing_status {
            return;
        }
        plugin.status_written = Some(Instant::now());
        plugin.is_writing_status = true;
        let unit = Unit::new().put(
            self.env.store.keys.plugin_status(name),
            revision,
            now.encode_to_vec(),
        );
        self.write_status(unit, Some(name.clone()));
    }

    /// Writes in the background. A write that is refused or fails is decided on again a second later.
    fn write_status(&mut self, unit: Unit, plugin: Option<Name>) {
        let writer = self.env.writer.clone();
        let writing = async move {
            _ = writer.write(unit).await;
            PluginEvent::StatusWritten(plugin)
        };
        self.plugin_events.push(writing.boxed());
    }
}
