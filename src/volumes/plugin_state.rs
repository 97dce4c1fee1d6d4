//! One plugin as the controller holds it: its session, the calls that it takes at a time, and the volumes that wait for
//! it.

use std::collections::HashSet;
use std::sync::Arc;

use tokio::time::Instant;

use super::lanes::Lanes;
use super::plan;
use super::request::{self, offers};
use crate::csi::{self, Capabilities, Capability, Endpoint, NotReady, Plugins, Session};
use crate::proto::{self, Backend, PluginStatus};
use crate::store::Name;
use crate::store::object::{Malformed, Object, plugin};

/// After that many calls in a row without an answer, a plugin is asked whether it still answers.
const MOST_TIMEOUTS: u32 = 3;

/// Why a plugin cannot be connected to.
enum Unusable {
    /// The Plugin object does not exist.
    Missing,
    /// It exists and cannot be read.
    Malformed(String),
}

/// What a plugin reported of itself in a session.
#[derive(Clone, Debug, Default, PartialEq)]
struct Reported {
    version: String,
    capabilities: Option<Capabilities>,
    backend: Option<Backend>,
}

/// What the controller holds of a plugin.
pub struct PluginState {
    plugin: Result<csi::Plugin, Unusable>,
    /// Its record, if it can be read.
    record: proto::Plugin,
    session: Option<Arc<Session>>,
    /// What it reported in the last session.
    reported: Option<Reported>,
    /// The backend of the last session in any term.
    backend: Option<Backend>,
    /// See [`PluginStatus::creator`].
    creator: String,
    /// Incremented when the Plugin record changes; results of older connection attempts and lists are ignored.
    pub generation: u64,
    /// A connection attempt is under way.
    pub is_connecting: bool,
    /// Why the last connection attempt failed, if it did.
    pub not_ready: Option<NotReady>,
    /// The operations on its volumes.
    pub lanes: Lanes,
    /// Volumes that wait for a session.
    pub parked: HashSet<Name>,
    /// When the plugin's list of volumes is next compared with the records.
    pub compare_at: Instant,
    /// The list is being read.
    pub is_comparing: bool,
    /// Calls in a row that got no answer within their limit.
    timeouts: u32,
    /// When its status was last written in this term.
    pub status_written: Option<Instant>,
    /// A write of its status is under way.
    pub is_writing_status: bool,
}

impl PluginState {
    /// A plugin whose record was not read yet.
    pub fn new(compare_at: Instant) -> Self {
        Self {
            plugin: Err(Unusable::Missing),
            record: proto::Plugin::default(),
            session: None,
            reported: None,
            backend: None,
            creator: String::new(),
            generation: 0,
            is_connecting: false,
            not_ready: None,
            lanes: Lanes::default(),
            parked: HashSet::new(),
            compare_at,
            is_comparing: false,
            timeouts: 0,
            status_written: None,
            is_writing_status: false,
        }
    }

    /// Takes over the plugin's record, `None` if there is none, and what its status says of earlier sessions. Operations in
    /// flight end with what they began with.
    pub fn configure(
        &mut self,
        name: &Name,
        record: Option<&Result<proto::Plugin, Malformed>>,
        status: Option<&PluginStatus>,
        plugins: &Plugins,
    ) {
        let last = status.and_then(|status| status.backend.as_ref());
        self.backend = self.backend.take().or_else(|| last.cloned());
        if let Some(status) = status.filter(|_| self.creator.is_empty()) {
            self.creator.clone_from(&status.creator);
            let create = Capability::CreateDeleteVolume.name();
            // An earlier release wrote no creator.
            if let Some(Ok(record)) = record
                && self.creator.is_empty()
                && status.capabilities.iter().any(|capability| capability == create)
            {
                record.uid().clone_into(&mut self.creator);
            }
        }
        self.generation += 1;
        self.session = None;
        self.reported = None;
        self.is_connecting = false;
        self.not_ready = None;
        self.is_comparing = false;
        // The change of the record wakes all volumes of the plugin.
        self.parked.clear();
        if let Some(Ok(record)) = record {
            let concurrency = usize::try_from(plugin::concurrency(record)).unwrap_or(1);
            self.lanes.limit(concurrency, plugin::per_node(record));
            self.record = record.clone();
        }
        self.plugin = match record {
            None => Err(Unusable::Missing),
            Some(Err(malformed)) => {
                let message = format!("plugin {name} cannot be read: {malformed}");
                Err(Unusable::Malformed(message))
            }
            Some(Ok(record)) => match plugin::endpoint(record).parse::<Endpoint>() {
                Ok(endpoint) => Ok(plugins.plugin(name.as_str(), &endpoint, plugin::settings(record))),
                Err(error) => {
                    let message = format!("the endpoint of plugin {name} cannot be read: {error}");
                    Err(Unusable::Malformed(message))
                }
            },
        };
    }

    /// The plugin to connect to, if its record says where it is.
    pub fn plugin(&self) -> Option<csi::Plugin> {
        self.plugin.as_ref().ok().cloned()
    }

    /// The current session. None once its connection has ended: the plugin may offer something else in the next one.
    pub fn session(&mut self) -> Option<Arc<Session>> {
        if self.session.as_ref().is_some_and(|session| session.has_ended()) {
            self.session = None;
        }
        self.session.clone()
    }

    /// Takes over a new session. True if the plugin tells something else of itself than in the last one.
    pub fn connected(&mut self, session: Arc<Session>) -> bool {
        let reported = Reported {
            version: session.version().to_owned(),
            capabilities: Some(session.capabilities().clone()),
            backend: Some(request::backend(&session)),
        };
        if offers(session.capabilities()).create {
            self.record.uid().clone_into(&mut self.creator);
        }
        self.session = Some(session);
        self.not_ready = None;
        self.backend.clone_from(&reported.backend);
        let is_changed = self.reported.as_ref() != Some(&reported);
        self.reported = Some(reported);
        is_changed
    }

    /// A call has ended. Returns the session if the plugin seems to answer nothing any more, so that it is asked whether it
    /// does.
    pub fn called(&mut self, timed_out: bool) -> Option<Arc<Session>> {
        self.timeouts = if timed_out { self.timeouts + 1 } else { 0 };
        let is_silent = self.timeouts >= MOST_TIMEOUTS;
        if is_silent {
            self.timeouts = 0;
        }
        self.session().filter(|_| is_silent)
    }

    /// What the plan of a volume at this backend needs to know of the plugin. `has_created` says whether a record has a volume that it
    /// has created: its status is written later than those.
    pub fn observe(&mut self, made_at: Option<&Backend>, has_created: bool) -> plan::Plugin {
        let session = self.session();
        match (&self.plugin, session) {
            (Err(Unusable::Missing), _) => plan::Plugin::Missing,
            // The object exists and may be mended: nothing follows from what it says now.
            (Err(Unusable::Malformed(_)), _) | (Ok(_), None) => plan::Plugin::Unknown,
            (Ok(_), Some(session)) if !self.is_backend_of(&session, made_at) => plan::Plugin::OtherBackend,
            (Ok(_), Some(session)) => plan::Plugin::Offers(plan::Offers {
                created_before: has_created
                    || (!self.creator.is_empty() && self.creator == self.record.uid()),
                ..offers(session.capabilities())
            }),
        }
    }

    /// Whether a session is one with the backend that a volume was made at.
    fn is_backend_of(&self, session: &Session, made_at: Option<&Backend>) -> bool {
        plugin::is_backend_of(&self.record, session.backend(), made_at)
    }

    /// Whether it may be sent secrets that can be read on their way.
    pub fn allows_plaintext_secrets(&self) -> bool {
        let spec = self.record.spec.as_ref();
        spec.is_some_and(|spec| spec.allow_plaintext_secrets)
    }

    /// Whether it is asked for its capacity before a creation.
    pub fn checks_capacity(&self) -> bool {
        self.record.spec.as_ref().is_some_and(|spec| spec.check_capacity)
    }

    /// The part of its status that does not count anything.
    pub fn readiness(&mut self) -> PluginStatus {
        let session = self.session();
        let (state, message) = match (&self.plugin, &session, &self.not_ready) {
            (Err(Unusable::Missing), ..) => ("PluginMissing", "the plugin does not exist".to_owned()),
            (Err(Unusable::Malformed(message)), ..) => ("PluginMalformed", message.clone()),
            (Ok(_), Some(_), _) => (plugin::READY, String::new()),
            (Ok(_), None, Some(not_ready)) => (not_ready.reason(), not_ready.to_string()),
            (Ok(_), None, None) if self.is_connecting => (plugin::CONNECTING, String::new()),
            (Ok(_), None, None) => (plugin::IDLE, "no volume needs a connection to it now".to_owned()),
        };
        let reported = self.reported.clone().unwrap_or_default();
        let capabilities = reported.capabilities.iter().flat_map(Capabilities::iter);
        PluginStatus {
            state: state.to_owned(),
            message,
            version: reported.version,
            capabilities: capabilities.map(|one| one.name().to_owned()).collect(),
            backend: self.known_backend(),
            creator: self.creator.clone(),
            ..PluginStatus::default()
        }
    }

    /// What is known of its backend. Before its first session that is its endpoint alone, which an operator may change; without its
    /// record, the status is all that is left.
    fn known_backend(&self) -> Option<Backend> {
        let endpoint = plugin::endpoint(&self.record);
        let is_its_own = |backend: &&Backend| {
            let is_of_record = endpoint.is_empty() || backend.endpoint == endpoint;
            self.reported.is_some() || !backend.id.is_empty() || is_of_record
        };
        let before = || Backend {
            endpoint: endpoint.to_owned(),
            ..Backend::default()
        };
        let own = self.backend.as_ref().filter(is_its_own).cloned();
        own.or_else(|| (!endpoint.is_empty()).then(before))
    }

    /// Whether the plugin's list is due to be compared with the records.
    pub fn is_comparison_due(&self) -> bool {
        self.compare_at <= Instant::now() && !self.is_comparing
    }

    /// The session, if the plugin lists its volumes with the nodes that they are published to.
    pub fn listing_session(&mut self) -> Option<Arc<Session>> {
        let lists = |session: &Arc<Session>| {
            let offers = |capability| session.offers(capability);
            offers(Capability::ListVolumes) && offers(Capability::ListPublishedNodes)
        };
        self.session().filter(lists)
    }

    /// Volumes that wait for a session or for room.
    pub fn waiting(&self) -> usize {
        self.lanes.queued() + self.parked.len()
    }

    /// Whether no operation, volume or list depends on this state.
    pub fn is_idle(&self) -> bool {
        self.lanes.running() == 0 && self.waiting() == 0 && !self.is_comparing
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
                ..proto::PluginSpec::default()
            }),
        })
    }

    #[tokio::test]
    async fn a_missing_plugin_an_unreadable_one_and_one_without_a_session_are_three_things() {
        let plugins = Plugins::new(Metrics::new("test"));
        let mut state = PluginState::new(Instant::now());
        state.configure(&name(), None, None, &plugins);
        assert_eq!(state.observe(None, false), plan::Plugin::Missing);
        assert_eq!(state.readiness().state, "PluginMissing");
        state.configure(&name(), Some(&record("nowhere", 1)), None, &plugins);
        assert_eq!(
            state.observe(None, false),
            plan::Plugin::Unknown,
            "the object exists"
        );
        assert_eq!(state.readiness().state, "PluginMalformed");
        assert!(state.plugin().is_none());
        state.configure(&name(), Some(&record("unix:///s", 1)), None, &plugins);
        assert_eq!(state.observe(None, false), plan::Plugin::Unknown);
        assert!(state.readiness().state == "Idle" && state.plugin().is_some());
        let backend = state.readiness().backend.unwrap();
        assert_eq!(backend.endpoint, "unix:///s", "it had no session yet");
        let endpoint = "unix:///s".parse().unwrap();
        state.not_ready = Some(NotReady::Starting { endpoint });
        assert_eq!(state.readiness().state, "PluginStarting");
    }

    /// A status that names no identity says nothing of a session: the endpoint in it was that of the Plugin.
    #[tokio::test]
    async fn a_plugin_that_never_answered_is_at_the_endpoint_of_its_object_whatever_its_status_said() {
        let plugins = Plugins::new(Metrics::new("test"));
        let configured = |status: &PluginStatus, endpoint: &str| {
            let mut state = PluginState::new(Instant::now());
            let record = record(endpoint, 1);
            state.configure(&name(), Some(&record), Some(status), &plugins);
            state
        };
        let first = configured(&PluginStatus::default(), "unix:///typo").readiness();
        let mut state = configured(&first, "unix:///s");
        let second = state.readiness();
        assert_eq!(second.backend.as_ref().unwrap().endpoint, "unix:///s");
        state.configure(&name(), None, Some(&second), &plugins);
        assert_eq!(
            state.readiness().backend,
            second.backend,
            "without its object, the status stays"
        );
        let mut identified = second.clone();
        identified.backend.as_mut().unwrap().id = "b-1".to_owned();
        assert_eq!(
            configured(&identified, "unix:///other").readiness().backend,
            identified.backend
        );
    }

    #[tokio::test]
    async fn a_changed_record_is_another_generation_for_which_nothing_waits_yet() {
        let plugins = Plugins::new(Metrics::new("test"));
        let mut state = PluginState::new(Instant::now());
        state.configure(&name(), Some(&record("unix:///s", 2)), None, &plugins);
        assert!(state.is_idle());
        state.parked.insert(name());
        assert!(!state.is_idle() && state.waiting() == 1);
        let before = state.generation;
        state.configure(&name(), Some(&record("unix:///other", 2)), None, &plugins);
        assert!(state.generation > before && state.parked.is_empty());
    }
}
