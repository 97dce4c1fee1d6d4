//! Keeps in the balanced channel the endpoints that answer, out of the configured ones and the voters of the member
//! list.
//!
//! An endpoint that refuses connections makes calls fail at random when it shares a balanced channel, so each endpoint is
//! probed by itself first. The configured ones always stay candidates, as the way back.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use etcd_client::Client;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::connect::{Etcd, Shared};
use super::connection::Connection;
use super::kv::{MemberId, Revision};
use super::probe::{Answer, configured, headers, probe};
use super::store_identity::StoreLost;
use crate::causes;

/// The least pause between two checks, however many requests go unanswered.
const RECHECK_PAUSE: Duration = Duration::from_secs(1);

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

    /// Checks the endpoints at every interval and after unanswered requests. Does not keep the connection alive, and ends
    /// with it.
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

    async fn check_endpoints(&self) {
        let config = &self.0.config;
        let connection = self.connection();
        let credentials = match config.load() {
            Ok(credentials) => credentials,
            Err(error) => {
                warn!("keeping the etcd credentials in use: {}", causes::chain(&error));
                connection.credentials.clone()
            }
        };
        let renewed = credentials != connection.credentials;
        if renewed {
            self.endpoint_clients().clear();
        }
        let mut candidates = configured(config);
        if config.sync_endpoints {
            // Without a member list the endpoints in use stay candidates.
            candidates.extend(self.voters().await.unwrap_or_else(|| self.live_endpoints()));
        }
        let excluded = self.0.contacts.excluded_urls();
        candidates.retain(|endpoint| !excluded.contains(endpoint));
        let Ok(highest) = self.before_request("range") else {
            return;
        };
        let asked = candidates.len();
        let mut clients = self.endpoint_clients().clone();
        let answers = probe(config, &credentials, &mut clients, candidates).await;
        *self.endpoint_clients() = clients;
        let mut live = self.of_this_store(&answers, asked, highest);
        // A removal may have begun during the probe.
        let excluded = self.0.contacts.excluded_urls();
        live.retain(|endpoint| !excluded.contains(endpoint));
        if live.is_empty() {
            // The channel keeps its endpoints and reconnects by itself.
            if renewed && let Some((endpoint, Err(error))) = answers.first() {
                warn!(
                    "keeping the etcd credentials in use: they changed on disk, but no endpoint answers with them \
                     ({endpoint}: {})",
                    error.message()
                );
            }
            return;
        }
        if !renewed {
            return self.use_endpoints(live).await;
        }
        let _changing = self.0.changing.lock().await;
        match Connection::open(config, &live, credentials).await {
            Ok(fresh) => {
                *self.0.connection.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(fresh);
                info!("etcd credentials changed on disk: reconnected");
                self.0.live.send_replace(live);
            }
            Err(error) => warn!("etcd credentials changed on disk, but do not work: {error}"),
        }
    }

    /// The endpoints that serve the store of this process. Names those that serve another, once each.
    fn of_this_store(&self, answers: &[Answer], asked: usize, floor: Revision) -> Vec<String> {
        let headers = headers(answers);
        let mut refused = BTreeMap::new();
        for (endpoint, header) in &headers {
            if let Err(error) = self.check_probe("range", *header, Some(floor)) {
                refused.insert(endpoint.clone(), error);
            }
        }
        self.judge_clusters(asked, headers.iter().filter_map(|(_, header)| header.cluster));
        let names: BTreeSet<String> = refused.keys().cloned().collect();
        let before = {
            let mut known = self.0.refused.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::replace(&mut *known, names)
        };
        for (endpoint, error) in &refused {
            if !before.contains(endpoint) {
                warn!("the endpoint {endpoint} is refused: {}", error.message());
            }
        }
        let serving = answers.iter().filter(|(_, answer)| answer.is_ok());
        let serving = serving.map(|(endpoint, _)| endpoint);
        serving
            .filter(|endpoint| !refused.contains_key(*endpoint))
            .cloned()
            .collect()
    }

    /// Makes these the endpoints of the balanced channel.
    pub(super) async fn use_endpoints(&self, live: Vec<String>) {
        let _changing = self.0.changing.lock().await;
        let (connection, before) = (self.connection(), self.live_endpoints());
        if live == before {
            return;
        }
        for gone in before.iter().filter(|endpoint| !live.contains(endpoint)) {
            let _ = connection.client.remove_endpoint(gone).await;
        }
        for fresh in live.iter().filter(|endpoint| !before.contains(endpoint)) {
            let _ = connection.client.add_endpoint(fresh).await;
        }
        info!(endpoints = ?live, "etcd endpoints changed");
        self.0.live.send_replace(live);
    }

    /// A client of one endpoint, kept for as long as the endpoint is a candidate.
    pub(super) async fn endpoint_client(&self, endpoint: &str) -> Result<Client, etcd_client::Error> {
        if let Some(known) = self.endpoint_clients().get(endpoint) {
            return Ok(known.clone());
        }
        let client = Client::connect([endpoint], Some(self.connection().options.clone())).await?;
        self.endpoint_clients()
            .insert(endpoint.to_owned(), client.clone());
        Ok(client)
    }

    /// Client URLs of the started voters; `None` if etcd does not list them. The list is not read linearizably: it serves
    /// to find endpoints, not to decide on a change.
    async fn voters(&self) -> Option<Vec<String>> {
        let listed = self
            .call("member_list", |connection| async move {
                connection.client.cluster_client().member_list().await
            })
            .await
            .ok()?;
        let ids = listed.members().iter().map(|member| MemberId(member.id()));
        self.0.contacts.keep_only(&ids.collect());
        let voters = listed.members().iter().filter(|member| !member.is_learner());
        let urls = voters.flat_map(|member| member.client_urls());
        Some(urls.filter_map(|url| self.0.config.normalize(url)).collect())
    }

    fn endpoint_clients(&self) -> MutexGuard<'_, BTreeMap<String, Client>> {
        // The map is a cache: it is valid even if a panic poisoned the lock.
        self.0.per_endpoint.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn follow(connection: Weak<Shared>, interval: Duration, recheck: Arc<Notify>) {
    loop {
        tokio::select! {
            () = tokio::time::sleep(interval) => {}
            () = recheck.notified() => {}
        }
        let Some(shared) = connection.upgrade() else {
            return;
        };
        Etcd(shared).check_endpoints().await;
        tokio::time::sleep(RECHECK_PAUSE).await;
    }
}
