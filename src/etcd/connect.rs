//! The connection: one balanced channel over the endpoints that answer, with a limit and a metric on every call.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use etcd_client::{Client, ConnectOptions};
use tokio::sync::{Notify, watch};

use super::config::{Config, ConfigError, Credentials};
use super::endpoints;
use super::error::{Class, Error};
use super::members::Contacts;
use crate::metrics::{Metrics, Request};
use crate::retry::Delays;

/// The largest message taken from etcd, which itself sends up to 2 GiB: a page of large values, or the events
/// of a large transaction.
pub(super) const LARGEST_MESSAGE: usize = 64 << 20;

/// A connection to an etcd cluster. Cheap to clone; all clones share one channel.
#[derive(Clone)]
pub struct Etcd(pub(super) Arc<Shared>);

pub(super) struct Shared {
    pub config: Config,
    pub metrics: Metrics,
    /// Replaced as a whole when certificates or the password change.
    pub connection: RwLock<Arc<Connection>>,
    /// The endpoints in the balanced channel, for whoever connects to one member at a time.
    pub live: watch::Sender<Vec<String>>,
    /// Rung when a request went unanswered: the endpoints are looked at before their time.
    pub recheck: Notify,
    /// Held while endpoints join and leave the balanced channel, so that `live` says what is in it.
    pub changing: tokio::sync::Mutex<()>,
    /// One client per endpoint, for questions to whoever is there.
    pub per_endpoint: Mutex<BTreeMap<String, Client>>,
    /// One client per member, for questions to that very member.
    pub contacts: Contacts,
}

pub(super) struct Connection {
    pub client: Client,
    pub options: ConnectOptions,
    pub credentials: Credentials,
}

impl std::fmt::Debug for Etcd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Etcd({:?})", self.live_endpoints())
    }
}

/// Why no connection came about.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The settings themselves are wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The settings do not make a client, for example a certificate that is none.
    #[error("the etcd connection cannot be set up: {0}")]
    Setup(Error),
    /// No endpoint gave an answer.
    #[error("no etcd endpoint answers:{}", list(.0))]
    NoneAnswers(Vec<(String, Error)>),
}

impl ConnectError {
    /// Whether trying again may help without anyone changing the settings.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Config(_) | Self::Setup(_) => false,
            // A wrong certificate authority or password does not get better by waiting.
            Self::NoneAnswers(answers) => answers
                .iter()
                .any(|(_, error)| error.is_retryable() && !error.is_about_certificates()),
        }
    }
}

fn list(answers: &[(String, Error)]) -> String {
    answers
        .iter()
        .map(|(endpoint, error)| format!("\n  {endpoint}: {}", error.message()))
        .collect()
}

impl Etcd {
    /// Connects to the endpoints that answer; at least one must.
    ///
    /// # Errors
    /// [`ConnectError`], naming each endpoint and what became of it.
    pub async fn connect(config: Config, metrics: Metrics) -> Result<Self, ConnectError> {
        let credentials = config.load()?;
        let options = config.connect_options(&credentials);
        let configured = endpoints::configured(&config);
        let mut per_endpoint = BTreeMap::new();
        let answers = endpoints::probe(&config, &options, &mut per_endpoint, configured).await;
        let live = endpoints::answering(&answers);
        if live.is_empty() {
            let failed: Vec<_> = answers
                .into_iter()
                .filter_map(|(endpoint, answer)| answer.err().map(|error| (endpoint, error)))
                .collect();
            return Err(
                match failed.iter().find(|(_, error)| error.class == Class::Settings) {
                    Some((_, error)) => ConnectError::Setup(error.clone()),
                    None => ConnectError::NoneAnswers(failed),
                },
            );
        }
        let connection = Connection::open(&live, options, credentials)
            .await
            .map_err(ConnectError::Setup)?;
        Ok(Self(Arc::new(Shared {
            config,
            metrics,
            connection: RwLock::new(Arc::new(connection)),
            live: watch::Sender::new(live),
            recheck: Notify::new(),
            changing: tokio::sync::Mutex::new(()),
            per_endpoint: Mutex::new(per_endpoint),
            contacts: Contacts::default(),
        })))
    }

    /// The limits and endpoints that this connection was made with.
    pub fn config(&self) -> &Config {
        &self.0.config
    }

    /// The metrics that this connection counts into.
    pub fn metrics(&self) -> &Metrics {
        &self.0.metrics
    }

    /// The endpoints in use now.
    pub fn live_endpoints(&self) -> Vec<String> {
        self.0.live.borrow().clone()
    }

    pub(super) fn connection(&self) -> Arc<Connection> {
        // A panic while the lock was held left a whole Connection behind: it is replaced in one assignment.
        self.0
            .connection
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// One request, with the limit of the configuration, counted and timed. A token that went stale is
    /// renewed and the request, which was not applied, sent once more.
    pub(super) async fn call<T, F, Fut>(&self, operation: &'static str, attempt: F) -> Result<T, Error>
    where
        F: Fn(Arc<Connection>) -> Fut,
        Fut: Future<Output = Result<T, etcd_client::Error>>,
    {
        let mut patience = self.patience();
        loop {
            match self.call_once(operation, &attempt).await {
                Err(error) if patience.allows(operation, &error) => patience.wait().await,
                result => return result,
            }
        }
    }

    /// For what may be asked again.
    pub(super) fn patience(&self) -> Patience {
        Patience {
            until: Instant::now() + self.0.config.election_patience,
            delays: Delays::etcd(),
        }
    }

    async fn call_once<T, F, Fut>(&self, operation: &'static str, attempt: &F) -> Result<T, Error>
    where
        F: Fn(Arc<Connection>) -> Fut,
        Fut: Future<Output = Result<T, etcd_client::Error>>,
    {
        let result = self.attempt(operation, attempt).await;
        match result {
            Err(error) if error.class == Class::StaleToken => {
                self.renew_token().await?;
                self.attempt(operation, attempt).await
            }
            result => result,
        }
    }

    async fn attempt<T, F, Fut>(&self, operation: &'static str, attempt: &F) -> Result<T, Error>
    where
        F: Fn(Arc<Connection>) -> Fut,
        Fut: Future<Output = Result<T, etcd_client::Error>>,
    {
        let result = self
            .within(
                operation,
                self.0.config.request_timeout,
                attempt(self.connection()),
            )
            .await;
        if result
            .as_ref()
            .is_err_and(|error| error.class == Class::Unavailable)
        {
            self.0.recheck.notify_one();
        }
        result
    }

    /// What is asked of one client, within this limit, counted and timed.
    pub(super) async fn within<T>(
        &self,
        operation: &'static str,
        limit: Duration,
        ask: impl Future<Output = Result<T, etcd_client::Error>>,
    ) -> Result<T, Error> {
        let started = Instant::now();
        let result = match tokio::time::timeout(limit, ask).await {
            Ok(result) => result.map_err(|error| Error::from_client(operation, error)),
            Err(_) => Err(Error::timed_out(operation, limit)),
        };
        let code = result.as_ref().map_or_else(|error| error.code, |_| "OK");
        let seconds = started.elapsed().as_secs_f64();
        self.0
            .metrics
            .etcd_request_seconds
            .get_or_create(&Request { operation, code })
            .observe(seconds);
        result
    }

    pub(super) async fn renew_token(&self) -> Result<(), Error> {
        let limit = self.0.config.request_timeout;
        let connection = self.connection();
        match tokio::time::timeout(limit, connection.client.refresh_token()).await {
            Ok(result) => result.map_err(|error| Error::from_client("authenticate", error)),
            Err(_) => Err(Error::timed_out("authenticate", limit)),
        }
    }
}

/// What is asked while the members elect their leader, or while one of them goes, is asked again for a moment, if the
/// configuration has patience for that.
pub(super) struct Patience {
    until: Instant,
    delays: Delays,
}

impl Patience {
    /// A read may be repeated whatever became of it, a write only if it was never proposed.
    pub fn allows(&self, operation: &'static str, error: &Error) -> bool {
        let harmless = match operation {
            "range" | "member_list" => error.class == Class::Unavailable,
            "txn" => error.is_refused_for_want_of_a_leader() || error.is_refused_connection(),
            _ => false,
        };
        harmless && Instant::now() < self.until
    }

    pub async fn wait(&mut self) {
        self.delays.wait().await;
    }
}

impl Connection {
    pub async fn open(
        endpoints: &[String],
        options: ConnectOptions,
        credentials: Credentials,
    ) -> Result<Self, Error> {
        let client = Client::connect(endpoints, Some(options.clone()))
            .await
            .map_err(|error| Error::from_client("connect", error))?;
        Ok(Self {
            client,
            options,
            credentials,
        })
    }
}
