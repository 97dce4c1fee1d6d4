//! Keeps in the balanced channel the endpoints that answer, out of the configured ones and the voters of the member
//! list.
//!
//! An endpoint that refuses connections makes calls fail at random when it shares a balanced channel, and one that hangs
//! makes them wait, so each endpoint is probed by itself first. The configured ones always stay candidates, as the way
//! back.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::sync::{Arc, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use etcd_client::Client;
use futures::future::{Either, select};
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::answer::Answer;
use super::config::{Config, Credentials};
use super::connect::{Etcd, STRAGGLERS, Shared};
use super::connection::Connection;
use super::error::{Class, Error};
use super::kv::Revision;
use super::probe::{Pending, Probe, Probed, clusters, configured, judged};
use super::silence;
use super::store_identity::StoreLost;
use crate::causes;
use crate::retry::Policy;

/// The least pause between two checks, however many requests go unanswered.
const RECHECK_PAUSE: Policy = Policy::new(Duration::from_secs(1), Duration::from_secs(1));

/// An endpoint that answers this much later than the first one leaves the channel, and comes back with a check at which it
/// answers in time: one that came back with its late answer would leave and come back at every check.
const LATE: Duration = Duration::from_secs(1);

/// What a check of the endpoints asks.
struct Check {
    begun: Instant,
    candidates: BTreeSet<String>,
    /// The highest revision that was seen before it.
    floor: Revision,
}

impl Check {
    fn probe(
        &self,
        config: &Config,
        credentials: &Credentials,
        known: &BTreeMap<String, Client>,
        earlier: Pending,
    ) -> Probe {
        Probe::begin(config, credentials, known, &self.candidates, self.floor, earlier)
    }
}

impl Etcd {
    /// Keeps the endpoints, the certificates and the password current until cancelled.
    pub async fn follow_endpoints(&self, stop: CancellationToken) {
        tokio::select! {
            biased;
            () = stop.cancelled() => {}
            () = self.follow() => {}
        }
    }

    /// Keeps the endpoints, the certificates and the password current on a task of this runtime, until the last clone of
    /// this connection is dropped.
    pub(super) fn follow_in_background(&self) {
        let mut background = JoinSet::new();
        background.spawn(self.follow());
        // A set that is there already follows them; this one ends as it is dropped.
        let _ = self.0.background.set(background);
    }

    /// Checks the endpoints at every interval, after unanswered requests, and when one of them has fallen silent. Does not keep
    /// the connection alive, and ends with it.
    fn follow(&self) -> impl Future<Output = ()> + Send + use<> {
        let (interval, recheck) = (self.0.config.endpoint_interval, self.0.recheck.clone());
        follow(Arc::downgrade(&self.0), interval, recheck)
    }

    /// Runs work that may outlive members and credentials, and keeps both current meanwhile.
    ///
    /// # Errors
    /// [`StoreLost`] if etcd is restored or replaced meanwhile.
    pub async fn following<T>(&self, work: impl Future<Output = T>) -> Result<T, StoreLost> {
        tokio::select! {
            // First: what the work has read by then is void.
            biased;
            lost = self.store_lost() => Err(lost),
            done = work => Ok(done),
            // Its token is never cancelled, so it never ends.
            never = async {
                self.follow_endpoints(CancellationToken::new()).await;
                std::future::pending().await
            } => never,
        }
    }

    /// Checks the endpoints once, with the credentials in use. Where others are on disk, those are tried beside it: the endpoints
    /// are followed whether they work or not, and a leader that etcd refuses for its old password waits for the new one.
    async fn check_endpoints(&self, pending: &mut Pending) {
        let begun = Instant::now();
        let config = &self.0.config;
        let connection = self.connection();
        let credentials = match config.load() {
            Ok(credentials) => credentials,
            Err(error) => {
                warn!("keeping the etcd credentials in use: {}", causes::chain(&error));
                connection.credentials.clone()
            }
        };
        let mut candidates = configured(config);
        if config.sync_endpoints {
            candidates.extend(self.voters().await);
        }
        let excluded = self.0.contacts.excluded_urls();
        candidates.retain(|endpoint| !excluded.contains(endpoint));
        let Ok(floor) = self.before_request("range") else {
            return;
        };
        let check = Check {
            begun,
            candidates,
            floor,
        };
        if credentials == connection.credentials {
            self.check_with(&credentials, &check, pending).await;
            return;
        }
        let renewed = {
            let renewing = pin!(self.renew(credentials, &check));
            let checking = pin!(self.check_with(&connection.credentials, &check, pending));
            match select(renewing, checking).await {
                Either::Left((None, checking)) => {
                    checking.await;
                    None
                }
                Either::Left((renewed, _)) => renewed,
                Either::Right(((), renewing)) => renewing.await,
            }
        };
        // What the check has left answers with the credentials of before.
        if let Some((clients, awaited)) = renewed {
            *self.endpoint_clients() = clients;
            *pending = awaited;
        }
    }

    /// Checks the endpoints with the credentials in use. One that is late is awaited no longer than [`LATE`], so that another
    /// that hangs meanwhile is found by the next check; `pending` asks it on, from check to check.
    async fn check_with(&self, credentials: &Credentials, check: &Check, pending: &mut Pending) {
        let (known, earlier) = (self.endpoint_clients().clone(), std::mem::take(pending));
        let late = earlier.endpoints().clone();
        let mut probe = check.probe(&self.0.config, credentials, &known, earlier);
        let in_time = self.collect_in_time(&mut probe, &late, LATE).await;
        let (answers, clients, awaited) = probe.end();
        *self.endpoint_clients() = clients;
        *pending = awaited;
        let (live, refused) = self.of_this_store(&answers);
        self.note_quorum(check.begun, &live, &answers);
        self.note_answers(check, &answers, refused);
        let live = if in_time.is_empty() { live } else { in_time };
        self.use_serving(live).await;
    }

    /// Waits until an endpoint of this store has answered, and for this long for the others; for all of them where none has.
    /// Returns those that have, without the `late` ones.
    async fn collect_in_time(
        &self,
        probe: &mut Probe,
        late: &BTreeSet<String>,
        patience: Duration,
    ) -> Vec<String> {
        probe
            .collect(patience, |answers, _| {
                answers.iter().any(|probed| probed.answer.is_ok())
            })
            .await;
        let mut in_time = self.of_this_store(&probe.answers).0;
        in_time.retain(|endpoint| !late.contains(endpoint));
        if in_time.is_empty() {
            probe.collect(Duration::MAX, |_, _| false).await;
        }
        in_time
    }

    /// Takes note of the stores that the endpoints serve.
    fn note_answers(&self, check: &Check, answers: &[Probed], refused: BTreeMap<String, Error>) {
        self.note_refused(refused);
        let mut known = configured(&self.0.config);
        known.extend(self.live_endpoints());
        let clusters = clusters(answers).into_iter().map(|(_, cluster)| cluster);
        self.judge_clusters(judged(&check.candidates, &known, answers), clusters);
    }

    /// Connects with credentials that have changed on disk to the endpoints that answer with them. Returns the clients of those, and
    /// what is still asked with these credentials; `None` if the ones in use stay in use.
    async fn renew(
        &self,
        credentials: Credentials,
        check: &Check,
    ) -> Option<(BTreeMap<String, Client>, Pending)> {
        let mut probe = check.probe(&self.0.config, &credentials, &BTreeMap::new(), Pending::default());
        self.collect_in_time(&mut probe, &BTreeSet::new(), STRAGGLERS)
            .await;
        let (answers, clients, awaited) = probe.end();
        let (mut live, refused) = self.of_this_store(&answers);
        let _changing = self.0.changing.lock().await;
        self.leave_out_excluded(&mut live);
        if live.is_empty() {
            if let Some(Probed {
                endpoint,
                answer: Err(error),
                ..
            }) = answers.first()
            {
                warn!(
                    "keeping the etcd credentials in use: they changed on disk, but no endpoint answers with them \
                     ({endpoint}: {})",
                    error.message()
                );
            }
            return None;
        }
        match Connection::open(&self.0.config, &live, credentials).await {
            Ok(fresh) => {
                *self.0.connection.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(fresh);
                info!("etcd credentials changed on disk: reconnected");
                self.set_live(live);
                self.note_answers(check, &answers, refused);
                Some((clients, awaited))
            }
            Err(error) => {
                warn!("etcd credentials changed on disk, but do not work: {error}");
                None
            }
        }
    }

    /// The endpoints that serve the store of this process, and those that serve another.
    pub(super) fn of_this_store(&self, answers: &[Probed]) -> (Vec<String>, BTreeMap<String, Error>) {
        let (mut serving, mut refused) = (Vec::new(), BTreeMap::new());
        for probed in answers.iter().filter(|probed| probed.answer.is_ok()) {
            let endpoint = probed.endpoint.clone();
            let check = |header| self.check_probe("range", header, Some(probed.floor));
            match probed.header().map_or(Ok(()), check) {
                Ok(()) => serving.push(endpoint),
                Err(error) => drop(refused.insert(endpoint, error)),
            }
        }
        (serving, refused)
    }

    /// Counts the endpoints that serve another store, and names each of them once.
    pub(super) fn note_refused(&self, refused: BTreeMap<String, Error>) {
        let count = i64::try_from(refused.len()).unwrap_or(i64::MAX);
        self.metrics().etcd_endpoints_refused.set(count);
        let mut known = self.0.refused.lock().unwrap_or_else(PoisonError::into_inner);
        for (endpoint, error) in &refused {
            if !known.contains(endpoint) {
                warn!("the endpoint {endpoint} is refused: {}", error.message());
            }
        }
        *known = refused.into_keys().collect();
    }

    /// Makes these the endpoints of the balanced channel, as the result of a check. Without any, the channel keeps its own
    /// and reconnects by itself, and this returns false.
    async fn use_serving(&self, live: Vec<String>) -> bool {
        if !self.use_endpoints(live).await {
            return false;
        }
        let live = self.live_endpoints();
        let mut logged = self.0.logged.lock().unwrap_or_else(PoisonError::into_inner);
        if *logged != live {
            info!(endpoints = ?live, "etcd endpoints changed");
            *logged = live;
        }
        true
    }

    /// A removal may begin during a probe. Its endpoints leave the channel under the lock of its changes, so this is asked
    /// under that lock.
    fn leave_out_excluded(&self, live: &mut Vec<String>) {
        let excluded = self.0.contacts.excluded_urls();
        live.retain(|endpoint| !excluded.contains(endpoint));
    }

    /// Makes these the endpoints of the balanced channel, without those of members that are being removed. False if none
    /// remains: then the channel keeps its own.
    pub(super) async fn use_endpoints(&self, mut live: Vec<String>) -> bool {
        let _changing = self.0.changing.lock().await;
        self.leave_out_excluded(&mut live);
        if live.is_empty() {
            return false;
        }
        let (connection, before) = (self.connection(), self.live_endpoints());
        if live == before {
            return true;
        }
        for fresh in live.iter().filter(|endpoint| !before.contains(endpoint)) {
            let _ = connection.client.add_endpoint(fresh).await;
        }
        let gone: Vec<&String> = before
            .iter()
            .filter(|endpoint| !live.contains(endpoint))
            .collect();
        for endpoint in &gone {
            let _ = connection.client.remove_endpoint(endpoint).await;
        }
        self.set_live(live);
        true
    }

    /// The endpoints that are in the balanced channel from now on. What waits for one that is no longer among them is notified.
    fn set_live(&self, live: Vec<String>) {
        let before = self.0.live.send_replace(live);
        let live = self.0.live.borrow();
        if before.iter().any(|endpoint| !live.contains(endpoint)) {
            self.0.left.send_replace(());
        }
    }

    /// Makes one request through every endpoint in use at once, each within `limit`, and returns the first answer that etcd
    /// gives, also where that is a refusal.
    pub(super) async fn through_any<T: Answer + Send, Fut>(
        &self,
        operation: &'static str,
        limit: Duration,
        request: impl Fn(Client) -> Fut + Sync,
    ) -> Result<T, Error>
    where
        Fut: Future<Output = Result<T, etcd_client::Error>> + Send,
    {
        let request = &request;
        let ask = |endpoint: String| async move {
            let ask = async { request(self.endpoint_client(&endpoint).await?).await };
            let answer = self.within(operation, limit, Instant::now(), ask).await;
            if answer.as_ref().is_err_and(Error::is_retryable) {
                // The connection may be black-holed, or its token too old.
                self.endpoint_clients().remove(&endpoint);
            }
            answer
        };
        let mut asked: FuturesUnordered<_> = self
            .live_endpoints()
            .into_iter()
            .map(|endpoint| ask(endpoint).boxed())
            .collect();
        let mut failed = None;
        while let Some(answer) = asked.next().await {
            match answer {
                Err(error) if error.is_retryable() => failed = Some(error),
                answer => return answer,
            }
        }
        self.0.recheck.notify_one();
        Err(failed.unwrap_or_else(|| {
            let text = "no endpoint is known".to_owned();
            Error::new(operation, "Unavailable", Class::Unavailable, text)
        }))
    }

    /// A client of one endpoint, kept for as long as the endpoint is a candidate.
    async fn endpoint_client(&self, endpoint: &str) -> Result<Client, etcd_client::Error> {
        if let Some(known) = self.endpoint_clients().get(endpoint) {
            return Ok(known.clone());
        }
        let client = Client::connect([endpoint], Some(self.connection().options.clone())).await?;
        self.endpoint_clients()
            .insert(endpoint.to_owned(), client.clone());
        Ok(client)
    }

    /// Client URLs of the started voters. If no endpoint in use lists them: those of the last list, and the endpoints in use, all of
    /// which may be gone by now.
    async fn voters(&self) -> Vec<String> {
        let last = || self.0.voters.lock().unwrap_or_else(PoisonError::into_inner);
        let Ok(listed) = self.any_list(LATE).await else {
            return [&last()[..], &self.live_endpoints()[..]].concat();
        };
        let ids = listed.members.iter().map(|member| member.id);
        self.0.contacts.keep_only(&ids.collect(), Instant::now());
        let urls = listed.voters().flat_map(|member| &member.client_urls);
        let urls: Vec<String> = urls.filter_map(|url| self.0.config.normalize(url)).collect();
        last().clone_from(&urls);
        urls
    }

    fn endpoint_clients(&self) -> MutexGuard<'_, BTreeMap<String, Client>> {
        // The map is a cache: it is valid even if a panic poisoned the lock.
        self.0.per_endpoint.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn follow(connection: Weak<Shared>, interval: Duration, recheck: Arc<Notify>) {
    let watching = silence::watch_for(connection.clone(), Arc::clone(&recheck));
    tokio::join!(keep_checking(connection, interval, recheck), watching);
}

async fn keep_checking(connection: Weak<Shared>, interval: Duration, recheck: Arc<Notify>) {
    let mut pending = Pending::default();
    loop {
        let quorum = connection.upgrade();
        let wait = quorum.map_or(interval, |shared| shared.quorum.check_after(interval));
        let due = async {
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = recheck.notified() => {}
            }
        };
        take_late_answers(&connection, &mut pending, due).await;
        let Some(shared) = connection.upgrade() else {
            return;
        };
        Etcd(shared).check_endpoints(&mut pending).await;
        let pause = tokio::time::sleep(RECHECK_PAUSE.delay(1));
        take_late_answers(&connection, &mut pending, pause).await;
    }
}

/// Keeps the answers that come too late, and their clients, for the next check, until it is time for something else.
async fn take_late_answers(
    connection: &Weak<Shared>,
    pending: &mut Pending,
    until: impl Future<Output = ()>,
) {
    let mut until = pin!(until);
    loop {
        tokio::select! {
            () = &mut until => return,
            Some((endpoint, client)) = pending.keep_next() => {
                if let (Some(client), Some(shared)) = (client, connection.upgrade()) {
                    Etcd(shared).endpoint_clients().insert(endpoint, client);
                }
            }
        }
    }
}
