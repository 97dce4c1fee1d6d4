//! A plugin by name and endpoint. It is connected to when a session is wanted, and again after a failure.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use tracing::{debug, info};

use super::caller::{Caller, Settings};
use super::endpoint::Endpoint;
use super::error::NotReady;
use super::link::Opened;
use super::node_session::NodeSession;
use super::session::Session;
use crate::metrics::Metrics;
use crate::retry::Delays;

/// The delays after a failed handshake. They are short at first, since a plugin that starts is ready in a moment, and never
/// so long that a plugin that came back stays unused.
const FIRST_DELAY: Duration = Duration::from_millis(200);
const MOST_DELAY: Duration = Duration::from_secs(10);

/// A connection that ends sooner was of no use. After two of them in a row the next one waits, as after a handshake that
/// failed (INV-9).
const STEADY: Duration = Duration::from_secs(1);

/// A plugin at one endpoint: its Controller service, or with [`NodeSession`] its Node service. Cheap to clone; all clones share
/// one session.
#[derive(Debug)]
pub struct Plugin<S = Session>(Arc<Shared<S>>);

impl<S> Clone for Plugin<S> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

#[derive(Debug)]
struct Shared<S> {
    caller: Caller,
    /// Locked during a handshake, so that other callers wait for its outcome instead of making their own.
    state: tokio::sync::Mutex<State<S>>,
}

#[derive(Debug)]
struct State<S> {
    session: Option<Arc<S>>,
    /// When the session began.
    began: Instant,
    /// Whether the session before ended at once.
    is_shaky: bool,
    /// The last handshake, if it failed, and when the next one may be made (INV-9).
    failed: Option<(NotReady, Instant)>,
    delays: Delays,
}

impl Plugin {
    /// The Controller service of a plugin, without a connection.
    pub fn new(driver: &str, endpoint: Endpoint, settings: impl Into<Settings>, metrics: Metrics) -> Self {
        Self::unconnected(driver, endpoint, settings.into(), metrics)
    }
}

impl Plugin<NodeSession> {
    /// The Node service of a plugin, without a connection.
    pub fn on_node(
        driver: &str,
        endpoint: Endpoint,
        settings: impl Into<Settings>,
        metrics: Metrics,
    ) -> Self {
        Self::unconnected(driver, endpoint, settings.into(), metrics)
    }
}

impl<S: Opened> Plugin<S> {
    fn unconnected(driver: &str, endpoint: Endpoint, settings: Settings, metrics: Metrics) -> Self {
        Self(Arc::new(Shared {
            caller: Caller {
                driver: driver.into(),
                endpoint,
                settings,
                metrics,
            },
            state: tokio::sync::Mutex::new(State {
                session: None,
                began: Instant::now(),
                is_shaky: false,
                failed: None,
                delays: Delays::new(FIRST_DELAY, MOST_DELAY),
            }),
        }))
    }

    /// The current session. Without one, or after its connection has ended, connects and makes a handshake, which
    /// concurrent callers share. Soon after a failed handshake, returns its error again without asking the plugin.
    ///
    /// Cancel safe: a handshake that is dropped did not happen, and the next caller begins another.
    ///
    /// # Errors
    /// [`NotReady`]: the plugin cannot be called now.
    pub async fn session(&self) -> Result<Arc<S>, NotReady> {
        let mut state = self.0.state.lock().await;
        let Caller { driver, endpoint, .. } = &self.0.caller;
        if let Some(session) = &state.session {
            if !session.has_ended() {
                return Ok(session.clone());
            }
            info!(%driver, %endpoint, "the connection to the CSI plugin has ended");
            state.session = None;
            let lasted = state.began.elapsed();
            if let Some(rest) = state.ended_after(lasted) {
                let message = "its connections end as soon as they are made".to_owned();
                let endpoint = endpoint.clone();
                state.failed = Some((NotReady::Unreachable { endpoint, message }, Instant::now() + rest));
            }
        }
        if let Some((error, again)) = &state.failed
            && Instant::now() < *again
        {
            return Err(error.clone());
        }
        match S::open(self.0.caller.clone()).await {
            Ok(session) => {
                let (version, capabilities) = (session.version(), session.offered());
                info!(%driver, %endpoint, version, ?capabilities, "the CSI plugin is ready");
                let session = Arc::new(session);
                state.session = Some(session.clone());
                state.began = Instant::now();
                state.failed = None;
                Ok(session)
            }
            Err(error) => {
                // Each error once. Its repetitions are logged at debug level only.
                if state.failed.as_ref().is_some_and(|(before, _)| *before == error) {
                    debug!(%driver, %error, "the CSI plugin is still not ready");
                } else {
                    info!(%driver, %error, "the CSI plugin is not ready");
                }
                let again = Instant::now() + state.delays.next_delay();
                state.failed = Some((error.clone(), again));
                Err(error)
            }
        }
    }
}

impl<S> State<S> {
    /// A connection ended after `lasted`. Returns the delay before the next one, if there is any.
    fn ended_after(&mut self, lasted: Duration) -> Option<Duration> {
        if lasted >= STEADY {
            self.is_shaky = false;
            self.delays.reset();
            return None;
        }
        std::mem::replace(&mut self.is_shaky, true).then(|| self.delays.next_delay())
    }
}

/// The plugins in use, by name.
#[derive(Debug)]
pub struct Plugins {
    metrics: Metrics,
    known: Mutex<BTreeMap<String, Plugin>>,
}

impl Plugins {
    /// No plugins yet. Their calls are counted in these metrics.
    pub fn new(metrics: Metrics) -> Self {
        Self {
            metrics,
            known: Mutex::default(),
        }
    }

    /// The plugin with this name at this endpoint. If the name had another endpoint or other settings before, calls on the old
    /// session finish, and new ones go to the new endpoint after a handshake.
    pub fn plugin(&self, driver: &str, endpoint: &Endpoint, settings: impl Into<Settings>) -> Plugin {
        let settings = settings.into();
        // A panic while the lock was held left the map whole: every change of it is one call.
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(plugin) = known.get(driver)
            && plugin.0.caller.endpoint == *endpoint
            && plugin.0.caller.settings == settings
        {
            return plugin.clone();
        }
        let plugin = Plugin::new(driver, endpoint.clone(), settings, self.metrics.clone());
        known.insert(driver.to_owned(), plugin.clone());
        plugin
    }

    /// Forgets every plugin whose name `keep` rejects. Its connection ends with its last call.
    pub fn retain(&self, keep: impl Fn(&str) -> bool) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|driver, _| keep(driver));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// INV-9: the handshake succeeds each time, and the connection ends right after it.
    #[tokio::test]
    async fn connections_that_end_at_once_are_made_again_after_growing_delays() {
        let endpoint = "unix:///nowhere.sock".parse().unwrap();
        let plugin = Plugin::new("p", endpoint, STEADY, Metrics::new("test"));
        let mut state = plugin.0.state.lock().await;
        let mut rests = |millis: &[u64]| -> Vec<Option<Duration>> {
            let lasted = millis.iter().copied().map(Duration::from_millis);
            lasted.map(|lasted| state.ended_after(lasted)).collect()
        };
        assert_eq!(rests(&[5000, 3]), [None, None], "once may be a restart");
        let shaky = rests(&[3; 20]);
        let longest = shaky.last().copied().flatten().unwrap();
        assert!(
            shaky
                .iter()
                .all(|rest| rest.is_some_and(|rest| rest <= MOST_DELAY * 2))
        );
        assert!(
            longest >= MOST_DELAY / 2 && shaky[0].unwrap() < longest / 4,
            "{shaky:?}"
        );
        assert_eq!(
            rests(&[1000, 3]),
            [None, None],
            "the connection before was steady"
        );
        assert!(rests(&[3])[0].unwrap() < longest / 4);
    }
}
