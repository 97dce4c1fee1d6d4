//! The connection: one balanced channel over the endpoints that answer, with a limit and a metric on every call.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant};

use etcd_client::Client;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;

use super::answer::{Answer, KnownStore};
use super::config::{Config, ConfigError};
use super::connection::Connection;
use super::error::{Class, Error};
use super::kv::Revision;
use super::members::Contacts;
use super::probe::{self, Pending, Probe};
use super::quorum::KnownQuorum;
use super::store_identity::{ClusterId, Header, prevailing};
use crate::clock;
use crate::metrics::{Metrics, Request};
use crate::retry::Delays;
use crate::span::Call;

/// The largest message taken from etcd, in bytes. etcd itself sends up to 2 GiB: a page of large values, or the events
/// of a large transaction.
pub(super) const LARGEST_MESSAGE: usize = 64 << 20;

/// How long a connection waits for further endpoints once it is decided what it connects to.
pub(super) const STRAGGLERS: Duration = Duration::from_millis(300);

/// How often a connection is made over endpoints that answer, before its failure is reported: the endpoints are asked again each
/// time, so that a member that stopped or was removed in between is no longer among them.
const ATTEMPTS: usize = 3;

/// A request without an answer for this long has the endpoints checked, and is given up if one of them leaves the channel.
pub(super) const SLOW: Duration = Duration::from_secs(1);

/// A connection to an etcd cluster. Cheap to clone; all clones share one channel.
#[derive(Clone)]
pub struct Etcd(pub(super) Arc<Shared>);

pub(super) struct Shared {
    pub config: Config,
    pub metrics: Metrics,
    /// Replaced as a whole when certificates or the password change.
    pub connection: RwLock<Arc<Connection>>,
    /// The endpoints in the balanced channel, for the keep-alive, which connects to one member at a time.
    pub live: watch::Sender<Vec<String>>,
    /// The client URLs of the voters, by the last member list. While no endpoint in use lists them, one of these may.
    pub voters: Mutex<Vec<String>>,
    /// The endpoints that were logged last. While a member is removed its endpoints leave the channel without a word.
    pub logged: Mutex<Vec<String>>,
    /// Notified when an endpoint leaves the channel: whatever waits for that endpoint may wait in vain.
    pub left: watch::Sender<()>,
    /// The store that this process has read.
    pub store: KnownStore,
    /// Since when no request was answered; `None` after an answer.
    pub unanswered: watch::Sender<Option<Instant>>,
    /// Whether etcd has a quorum.
    pub quorum: KnownQuorum,
    /// The endpoints that are refused, since they belong to another cluster.
    pub refused: Mutex<BTreeSet<String>>,
    /// Notified when a request went unanswered: the endpoints are checked ahead of time.
    pub recheck: Arc<Notify>,
    /// Notified when etcd refused a write of the leader for missing rights.
    pub denied: Notify,
    /// Held while endpoints join and leave the balanced channel, so that `live` lists what is in it.
    pub changing: tokio::sync::Mutex<()>,
    /// When a new token was last asked for, and with what result.
    pub renewed: tokio::sync::Mutex<Option<(Instant, Result<(), Error>)>>,
    /// One client per endpoint, for requests that go to whichever member is behind it.
    pub per_endpoint: Mutex<BTreeMap<String, Client>>,
    /// One client per member, for requests that only this member may answer.
    pub contacts: Contacts,
    /// Follows the endpoints of a connection that keeps itself current. Ends with the connection.
    pub background: OnceLock<JoinSet<()>>,
}

impl std::fmt::Debug for Etcd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Etcd({:?})", self.live_endpoints())
    }
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The settings are invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// No client can be made from the settings: a certificate file holds no certificate, for example.
    #[error("the etcd connection cannot be set up")]
    Setup(#[source] Error),
    /// No endpoint answered. The message lists each of them with its error.
    #[error("no etcd endpoint answers:{}", list(.0.iter().map(|(endpoint, error)| (endpoint, error.message()))))]
    NoneAnswers(Vec<(String, Error)>),
    /// Endpoints answered, and the connection over them failed right after, as where the member that checks the log-in stops or is
    /// removed in between.
    #[error("etcd answers, but the connection to it cannot be opened")]
    Unopened(#[source] Error),
    /// The endpoints belong to several clusters, and none of these has the most. The message lists each endpoint.
    #[error("the etcd endpoints belong to several clusters:{}", list(.0.iter().map(|(endpoint, id)| (endpoint, id))))]
    SeveralClusters(Vec<(String, ClusterId)>),
}

impl ConnectError {
    /// Why there is no connection to endpoints that have just answered.
    fn of_connection(error: Error) -> Self {
        match error.class {
            Class::Settings => Self::Setup(error),
            _ => Self::Unopened(error),
        }
    }

    /// Whether another attempt may succeed although the settings stay the same.
    pub fn is_retryable(&self) -> bool {
        // Waiting corrects neither a wrong certificate authority nor a wrong password.
        let may_pass = |error: &Error| error.is_retryable() && !error.is_about_certificates();
        match self {
            Self::Config(_) | Self::Setup(_) | Self::SeveralClusters(_) => false,
            Self::NoneAnswers(answers) => answers.iter().any(|(_, error)| may_pass(error)),
            Self::Unopened(error) => may_pass(error),
        }
    }
}

fn list<'a, T: Display>(answers: impl Iterator<Item = (&'a String, T)>) -> String {
    answers
        .map(|(endpoint, answer)| format!("\n  {endpoint}: {answer}"))
        .collect()
}

/// Makes a connection. Makes it again, from the questions to the endpoints on, where only what follows their answers failed and may
/// pass: at most [`ATTEMPTS`] times.
async fn while_unopened<T, Fut>(
    mut delays: Delays,
    mut connect: impl FnMut() -> Fut,
) -> Result<T, ConnectError>
where
    Fut: Future<Output = Result<T, ConnectError>>,
{
    for _ in 1..ATTEMPTS {
        match connect().await {
            Err(error @ ConnectError::Unopened(_)) if error.is_retryable() => delays.wait().await,
            connected => return connected,
        }
    }
    connect().await
}

impl Etcd {
    /// Connects to the configured endpoints that answer; at least one must. The cluster to which most of them belong is that
    /// of this process from now on (INV-11). Endpoints that have not answered yet are awaited only while they could change
    /// which one that is.
    ///
    /// # Errors
    /// [`ConnectError`], with the error of each endpoint where none answers.
    pub async fn connect(config: Config, metrics: Metrics) -> Result<Self, ConnectError> {
        let connect = || Self::connect_once(config.clone(), metrics.clone());
        while_unopened(Delays::etcd(), connect).await
    }

    async fn connect_once(config: Config, metrics: Metrics) -> Result<Self, ConnectError> {
        let begun = clock::now();
        let credentials = config.load()?;
        let candidates = probe::configured(&config);
        let mut probe = Probe::begin(
            &config,
            &credentials,
            &BTreeMap::new(),
            &candidates,
            Revision::ABSENT,
            Pending::default(),
        );
        probe.collect(STRAGGLERS, probe::is_decided).await;
        let (answers, clients, _) = probe.end();
        let clusters = probe::clusters(&answers);
        let Ok(cluster) = prevailing(clusters.iter().map(|(_, cluster)| *cluster)) else {
            return Err(ConnectError::SeveralClusters(clusters));
        };
        let live = probe::answering(&answers, cluster);
        if live.is_empty() {
            let failed: Vec<_> = answers
                .into_iter()
                .filter_map(|probed| Some((probed.endpoint, probed.answer.err()?)))
                .collect();
            return Err(
                match failed.iter().find(|(_, error)| error.class == Class::Settings) {
                    Some((_, error)) => ConnectError::Setup(error.clone()),
                    None => ConnectError::NoneAnswers(failed),
                },
            );
        }
        let opened = Connection::open(&config, &live, credentials).await;
        let connection = opened.map_err(ConnectError::of_connection)?;
        let etcd = Self(Arc::new(Shared {
            config,
            metrics,
            connection: RwLock::new(Arc::new(connection)),
            voters: Mutex::default(),
            logged: Mutex::new(live.clone()),
            live: watch::Sender::new(live),
            left: watch::Sender::default(),
            store: KnownStore::of(cluster),
            unanswered: watch::Sender::default(),
            quorum: KnownQuorum::default(),
            refused: Mutex::default(),
            recheck: Arc::default(),
            denied: Notify::default(),
            changing: tokio::sync::Mutex::default(),
            renewed: tokio::sync::Mutex::default(),
            per_endpoint: Mutex::new(clients),
            contacts: Contacts::default(),
            background: OnceLock::new(),
        }));
        etcd.0.quorum.answered(begun);
        let (_, refused) = etcd.of_this_store(&answers);
        etcd.note_refused(refused);
        Ok(etcd)
    }

    /// The settings that this connection was made with.
    pub fn config(&self) -> &Config {
        &self.0.config
    }

    /// The metrics that this connection counts into.
    pub fn metrics(&self) -> &Metrics {
        &self.0.metrics
    }

    /// The endpoints in the balanced channel now.
    pub fn live_endpoints(&self) -> Vec<String> {
        self.0.live.borrow().clone()
    }

    /// Since when etcd answers no request of this connection; `None` while it answers. An idle connection makes none.
    pub fn unanswered(&self) -> watch::Receiver<Option<Instant>> {
        self.0.unanswered.subscribe()
    }

    fn note_answer(&self, answered: bool) {
        self.0.unanswered.send_if_modified(|since| {
            let changed = since.is_some() == answered;
            match answered {
                true => *since = None,
                false => _ = since.get_or_insert_with(Instant::now),
            }
            changed
        });
    }

    pub(super) fn connection(&self) -> Arc<Connection> {
        // The connection is replaced in one assignment, so it is whole even if a panic poisoned the lock.
        self.0
            .connection
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Makes one request within the configured limit, counts and times it. A request that etcd refused for a stale token
    /// was not applied: it is sent once more with a new token. One that reached no member goes to another at once: an endpoint
    /// that has just gone is in the channel until the next check.
    pub(super) async fn call<T, F, Fut>(&self, operation: &'static str, attempt: F) -> Result<T, Error>
    where
        T: Answer,
        F: Fn(Arc<Connection>) -> Fut,
        Fut: Future<Output = Result<T, etcd_client::Error>>,
    {
        let mut patience = self.patience();
        let mut others = match self.0.live.borrow().len() {
            0 | 1 => 0,
            // The channel chooses at random, so that it may choose the same one again.
            endpoints => 2 * endpoints,
        };
        loop {
            match self.call_once(operation, &attempt).await {
                Err(error) if error.is_refused_connection() && others > 0 => others -= 1,
                Err(error) if patience.allows(operation, &error) => patience.wait().await,
                result => return result,
            }
        }
    }

    /// The configured patience, counted from now.
    pub(super) fn patience(&self) -> Patience {
        Patience {
            until: Instant::now() + self.0.config.election_patience,
            delays: Delays::etcd(),
        }
    }

    async fn call_once<T, F, Fut>(&self, operation: &'static str, attempt: &F) -> Result<T, Error>
    where
        T: Answer,
        F: Fn(Arc<Connection>) -> Fut,
        Fut: Future<Output = Result<T, etcd_client::Error>>,
    {
        let sent = Instant::now();
        let result = self.attempt(operation, attempt).await;
        match result {
            Err(error) if error.class == Class::StaleToken => {
                self.renew_token(sent).await?;
                self.attempt(operation, attempt).await
            }
            result => result,
        }
    }

    async fn attempt<T, F, Fut>(&self, operation: &'static str, attempt: &F) -> Result<T, Error>
    where
        T: Answer,
        F: Fn(Arc<Connection>) -> Fut,
        Fut: Future<Output = Result<T, etcd_client::Error>>,
    {
        let request = pin!(attempt(self.connection()));
        let given_up = self.given_up(operation);
        let result = self.until(operation, given_up, request).await;
        if result
            .as_ref()
            .is_err_and(|error| error.class == Class::Unavailable)
        {
            self.0.recheck.notify_one();
        }
        result
    }

    /// Resolves with the error of a request over the balanced channel that begins now, once it goes without an answer for
    /// too long: for its whole limit, or for a moment if an endpoint has left the channel since, which may be the one that
    /// was asked.
    async fn given_up(&self, operation: &'static str) -> Error {
        let (limit, mut left) = (self.0.config.request_timeout, self.0.left.subscribe());
        let abandoned = async {
            tokio::time::sleep(SLOW).await;
            self.0.recheck.notify_one();
            if left.changed().await.is_err() {
                // The sender lives as long as this connection.
                std::future::pending().await
            }
        };
        match tokio::time::timeout(limit, abandoned).await {
            Ok(()) => {
                let text = "no answer, and an endpoint has stopped answering".to_owned();
                Error::new(operation, "DeadlineExceeded", Class::Unavailable, text)
            }
            Err(_) => Error::timed_out(operation, limit),
        }
    }

    /// Makes one request over any client until `limit` has passed since `begun`, counts and times it, and checks which store answered.
    ///
    /// Its error names the whole limit rather than what was left of it, which differs each time: such texts are stored, and a text
    /// that changes is written again and again.
    pub(super) async fn within<T: Answer>(
        &self,
        operation: &'static str,
        limit: Duration,
        begun: Instant,
        request: impl Future<Output = Result<T, etcd_client::Error>>,
    ) -> Result<T, Error> {
        let given_up = async {
            tokio::time::sleep(limit.saturating_sub(begun.elapsed())).await;
            Error::timed_out(operation, limit)
        };
        self.until(operation, given_up, pin!(request)).await
    }

    /// Makes one request until it is given up, counts, times and traces it, and checks which store answered.
    async fn until<T: Answer>(
        &self,
        operation: &'static str,
        given_up: impl Future<Output = Error>,
        request: Pin<&mut impl Future<Output = Result<T, etcd_client::Error>>>,
    ) -> Result<T, Error> {
        let highest = self.before_request(operation)?;
        let (started, call) = (Instant::now(), Call::begin("etcd", operation, None));
        let result = tokio::select! {
            biased;
            result = request => result.map_err(|error| Error::from_client(operation, error)),
            error = given_up => Err(error),
        };
        let result = result.and_then(|answer| {
            let linearizable = T::LINEARIZABLE && !self.0.config.serializable;
            let floor = linearizable.then_some(highest);
            let header: Option<Header> = answer.header();
            header.map_or(Ok(()), |header| self.check_header(operation, header, floor))?;
            Ok(answer)
        });
        let unanswered = |error: &Error| error.class == Class::Unavailable;
        self.note_answer(!result.as_ref().is_err_and(unanswered));
        let code = result.as_ref().map_or_else(|error| error.code, |_| "OK");
        call.ended(code);
        let seconds = started.elapsed().as_secs_f64();
        self.0
            .metrics
            .etcd_request_seconds
            .get_or_create(&Request { operation, code })
            .observe(seconds);
        result
    }

    /// Obtains a new token, for a request that was sent at this time and refused. Of requests that were refused together one
    /// authenticates: each check of a password costs etcd much.
    pub(super) async fn renew_token(&self, sent: Instant) -> Result<(), Error> {
        let mut last = self.0.renewed.lock().await;
        if let Some((at, outcome)) = &*last
            && *at > sent
        {
            return outcome.clone();
        }
        let connection = self.connection();
        let outcome = tokio::select! {
            biased;
            result = connection.client.refresh_token() => {
                result.map_err(|error| Error::from_client("authenticate", error))
            }
            error = self.given_up("authenticate") => Err(error),
        };
        *last = Some((Instant::now(), outcome.clone()));
        outcome
    }
}

/// Repeats requests for a moment while the members elect their raft leader or one of them ends, if the configuration has
/// patience for that.
pub(super) struct Patience {
    until: Instant,
    delays: Delays,
}

impl Patience {
    /// Whether the request may be repeated now: a read after any failure, a write only if it was never proposed.
    pub fn allows(&self, operation: &'static str, error: &Error) -> bool {
        let harmless = match operation {
            "range" | "member_list" => error.class == Class::Unavailable,
            "txn" => error.is_refused_without_a_leader() || error.is_refused_connection(),
            _ => false,
        };
        harmless && Instant::now() < self.until
    }

    pub async fn wait(&mut self) {
        self.delays.wait().await;
    }
}

#[cfg(test)]
mod tests;
