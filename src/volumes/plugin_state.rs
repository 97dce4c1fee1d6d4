//! One plugin as the controller holds it: its session, how many calls it takes, and which volumes wait for it.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::plan;
use super::record::Blocked;
use super::request::offers;
use crate::csi::{self, Capabilities, Capability, Endpoint, NotReady, Plugins, Session};
use crate::proto;
use crate::store::Name;
use crate::store::object::{Malformed, plugin};

/// Steps under way at once, besides those that are in a call: they write what comes before and after it, so that the
/// plugin is never idle for etcd's sake.
const BESIDE_CALLS: usize = 48;

/// What is known of a plugin.
pub struct PluginState {
    plugin: Result<csi::Plugin, Blocked>,
    concurrency: usize,
    session: Option<Arc<Session>>,
    /// What the last session said of it.
    said: Option<(String, Capabilities)>,
    /// Tells the outcome of connecting to what the plugin was from that to what it is.
    pub generation: u64,
    /// Whether somebody waits for it to be ready.
    pub connecting: bool,
    /// Why it is not.
    pub not_ready: Option<NotReady>,
    /// Calls at a time.
    pub permits: Arc<Semaphore>,
    /// Volumes with a step to take, the longest waiting first.
    pub queue: VecDeque<Name>,
    /// Steps under way.
    pub running: usize,
    /// Volumes that wait for it to be ready.
    pub parked: HashSet<Name>,
    /// When its volumes are compared with its own list.
    pub compare_at: Instant,
    /// Whether that is under way.
    pub comparing: bool,
}

impl PluginState {
    /// Of a plugin that nothing is known of yet.
    pub fn new(compare_at: Instant) -> Self {
        Self {
            plugin: Err(missing()),
            concurrency: 0,
            session: None,
            said: None,
            generation: 0,
            connecting: false,
            not_ready: None,
            permits: Arc::new(Semaphore::new(1)),
            queue: VecDeque::new(),
            running: 0,
            parked: HashSet::new(),
            compare_at,
            comparing: false,
        }
    }

    /// Takes over its record. Steps that are under way end with what they began with.
    pub fn configure(
        &mut self,
        name: &Name,
        record: Option<&Result<proto::Plugin, Malformed>>,
        plugins: &Plugins,
    ) {
        self.generation += 1;
        self.session = None;
        self.said = None;
        self.connecting = false;
        self.not_ready = None;
        self.comparing = false;
        // All of its volumes are looked at anew.
        self.parked.clear();
        self.plugin = match record {
            None => Err(missing()),
            Some(Err(malformed)) => Err(Blocked {
                reason: "PluginMalformed".to_owned(),
                message: format!("plugin {name} cannot be read: {malformed}"),
            }),
            Some(Ok(record)) => {
                let concurrency = usize::try_from(plugin::concurrency(record)).unwrap_or(1);
                // Calls that are under way go on counting.
                if concurrency != self.concurrency {
                    self.concurrency = concurrency;
                    self.permits = Arc::new(Semaphore::new(concurrency));
                }
                match plugin::endpoint(record).parse::<Endpoint>() {
                    Ok(endpoint) => Ok(plugins.plugin(name.as_str(), &endpoint, plugin::timeout(record))),
                    Err(why) => Err(Blocked {
                        reason: "PluginMalformed".to_owned(),
                        message: format!("the endpoint of plugin {name} cannot be read: {why}"),
                    }),
                }
            }
        };
    }

    /// How to connect to it, where that is possible.
    pub fn plugin(&self) -> Option<csi::Plugin> {
        self.plugin.as_ref().ok().cloned()
    }

    /// The session in use, unless its connection has ended: what it offered then says nothing about what it offers
    /// after.
    pub fn session(&mut self) -> Option<Arc<Session>> {
        if self.session.as_ref().is_some_and(|session| session.has_ended()) {
            self.session = None;
        }
        self.session.clone()
    }

    /// It is ready. Whether it is another than on the session before, as far as it says.
    pub fn ready(&mut self, session: Arc<Session>) -> bool {
        let said = (session.version().to_owned(), session.capabilities().clone());
        self.session = Some(session);
        self.not_ready = None;
        let is_another = self.said.as_ref() != Some(&said);
        self.said = Some(said);
        is_another
    }

    /// What a plan needs to know of it.
    pub fn known(&mut self) -> plan::Plugin {
        let session = self.session();
        match (&self.plugin, session) {
            // One that cannot be read is there, and may be mended: nothing follows from it.
            (Err(blocked), _) if blocked.reason != MISSING => plan::Plugin::Unknown,
            (Err(_), _) => plan::Plugin::Missing,
            (Ok(_), None) => plan::Plugin::Unknown,
            (Ok(_), Some(session)) => plan::Plugin::Offers(offers(session.capabilities())),
        }
    }

    /// Why a volume that waits for it does.
    pub fn blocked(&self) -> Option<Blocked> {
        if let Err(blocked) = &self.plugin {
            return Some(blocked.clone());
        }
        let not_ready = self.not_ready.as_ref()?;
        Some(Blocked {
            reason: not_ready.reason().to_owned(),
            message: not_ready.to_string(),
        })
    }

    /// Whether one more step may be begun.
    pub fn has_room(&self) -> bool {
        self.running < self.concurrency + BESIDE_CALLS
    }

    /// The session, where the plugin tells which nodes its volumes are published to.
    pub fn comparable(&mut self) -> Option<Arc<Session>> {
        let lists = |session: &Arc<Session>| {
            let offers = |capability| session.offers(capability);
            offers(Capability::ListVolumes) && offers(Capability::ListPublishedNodes)
        };
        self.session().filter(lists)
    }

    /// Whether anything hangs on it.
    pub fn is_idle(&self) -> bool {
        self.running == 0 && self.queue.is_empty() && self.parked.is_empty() && !self.comparing
    }
}

const MISSING: &str = "PluginMissing";

fn missing() -> Blocked {
    Blocked {
        reason: MISSING.to_owned(),
        message: "the plugin does not exist".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Metrics;

    fn name() -> Name {
        "p".parse().unwrap()
    }

    fn record(endpoint: &str, concurrency: u32) -> Result<proto::Plugin, Malformed> {
        Ok(proto::Plugin {
            metadata: None,
            spec: Some(proto::PluginSpec {
                endpoint: endpoint.to_owned(),
                concurrency,
                timeout_millis: 0,
            }),
        })
    }

    #[tokio::test]
    async fn a_plugin_that_is_missing_is_told_from_one_that_cannot_be_read_and_one_that_was_not_asked() {
        let plugins = Plugins::new(Metrics::new("test"));
        let mut state = PluginState::new(Instant::now());
        state.configure(&name(), None, &plugins);
        assert_eq!(state.known(), plan::Plugin::Missing);
        assert_eq!(state.blocked().unwrap().reason, "PluginMissing");
        state.configure(&name(), Some(&record("nowhere", 1)), &plugins);
        assert_eq!(state.known(), plan::Plugin::Unknown, "it is there");
        assert_eq!(state.blocked().unwrap().reason, "PluginMalformed");
        assert!(state.plugin().is_none());
        state.configure(&name(), Some(&record("unix:///s", 1)), &plugins);
        assert_eq!(state.known(), plan::Plugin::Unknown);
        assert!(state.blocked().is_none() && state.plugin().is_some());
        let endpoint = "unix:///s".parse().unwrap();
        state.not_ready = Some(NotReady::Starting { endpoint });
        assert_eq!(state.blocked().unwrap().reason, "PluginStarting");
    }

    /// INV-6: as many calls at a time as its record says, also while that is written again.
    #[tokio::test]
    async fn calls_under_way_go_on_counting_when_the_record_changes_in_something_else() {
        let plugins = Plugins::new(Metrics::new("test"));
        let mut state = PluginState::new(Instant::now());
        state.configure(&name(), Some(&record("unix:///s", 2)), &plugins);
        let _under_way = state.permits.clone().acquire_owned().await.unwrap();
        state.parked.insert(name());
        let before = state.generation;
        state.configure(&name(), Some(&record("unix:///other", 2)), &plugins);
        assert_eq!(state.permits.available_permits(), 1);
        assert!(state.generation > before && state.parked.is_empty());
        state.configure(&name(), Some(&record("unix:///other", 5)), &plugins);
        assert_eq!(state.permits.available_permits(), 5);
    }

    #[tokio::test]
    async fn there_is_room_for_the_calls_and_for_what_is_written_beside_them() {
        let plugins = Plugins::new(Metrics::new("test"));
        let mut state = PluginState::new(Instant::now());
        state.configure(&name(), Some(&record("unix:///s", 3)), &plugins);
        assert!(state.is_idle());
        state.running = 3 + BESIDE_CALLS - 1;
        assert!(state.has_room() && !state.is_idle());
        state.running += 1;
        assert!(!state.has_room());
        state.running = 0;
        state.queue.push_back(name());
        assert!(!state.is_idle(), "somebody waits");
    }
}
