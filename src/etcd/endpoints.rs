//! Which endpoints are in the balanced channel: those that answer, out of the configured ones and the voters of
//! the member list.
//!
//! An endpoint that refuses connections makes calls fail at random when it shares a balanced channel, so each is
//! asked by itself first. The configured ones stay candidates for ever, as the way back.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use etcd_client::{Client, ConnectOptions, GetOptions};
use futures::future::join_all;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::config::Config;
use super::connect::{Connection, Etcd};
use super::error::Error;
use super::kv::MemberId;
use super::members::{ANY_KEY, denies_the_key};

/// Between two looks that unanswered requests asked for.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// An endpoint, and whether the member behind it can serve.
pub(super) type Answer = (String, Result<(), Error>);

pub(super) fn configured(config: &Config) -> BTreeSet<String> {
    config
        .endpoints
        .iter()
        .filter_map(|endpoint| config.normalize(endpoint))
        .collect()
}

pub(super) fn answering(answers: &[Answer]) -> Vec<String> {
    let serving = answers.iter().filter(|(_, answer)| answer.is_ok());
    serving.map(|(endpoint, _)| endpoint.clone()).collect()
}

/// Asks every candidate for a linearizable read, all at once, each within the connect and request limits. A learner
/// refuses such a read, and a member that is cut off from its cluster does not answer it. The status would say the same,
/// but a member that is being removed dies of being asked for that (REQ-M-7), and here any endpoint may be asked at any
/// time.
pub(super) async fn probe(
    config: &Config,
    options: &ConnectOptions,
    clients: &mut BTreeMap<String, Client>,
    candidates: BTreeSet<String>,
) -> Vec<Answer> {
    clients.retain(|endpoint, _| candidates.contains(endpoint));
    let limit = config.connect_timeout + config.request_timeout / 2;
    let asked = candidates.into_iter().map(|endpoint| {
        let known = clients.get(&endpoint).cloned();
        async move {
            let ask = async {
                let mut answer = ask_read(&endpoint, options, known).await;
                // Under TLS 1.3 a server refuses a client's certificate after the handshake, by an alert that
                // races the end of the connection: only the alert tells why.
                for _ in 0..TLS_ATTEMPTS {
                    if !answer.as_ref().is_err_and(Error::is_hangup) {
                        break;
                    }
                    answer = ask_read(&endpoint, options, None).await;
                }
                answer
            };
            let answer = match tokio::time::timeout(limit, ask).await {
                Ok(answer) => answer,
                Err(_) => Err(Error::timed_out("range", limit)),
            };
            (endpoint, answer)
        }
    });
    join_all(asked)
        .await
        .into_iter()
        .map(|(endpoint, answer)| match answer {
            Ok(client) => {
                clients.insert(endpoint.clone(), client);
                (endpoint, Ok(()))
            }
            Err(error) => {
                // Its next question goes over a fresh connection, not one that may be black-holed.
                clients.remove(&endpoint);
                (endpoint, Err(error))
            }
        })
        .collect()
}

/// How often an endpoint that ends the connection instead of answering is asked again. On an idle machine every second
/// of these meets the alert, on a loaded one fewer; the limit of the probe bounds them all.
const TLS_ATTEMPTS: usize = 32;

async fn ask_read(endpoint: &str, options: &ConnectOptions, known: Option<Client>) -> Result<Client, Error> {
    let ask = async {
        let mut client = match known {
            Some(client) => client,
            None => Client::connect([endpoint], Some(options.clone())).await?,
        };
        match client
            .get(ANY_KEY, Some(GetOptions::new().with_count_only()))
            .await
        {
            Err(error) if !denies_the_key(&error) => Err(error),
            _ => Ok(client),
        }
    };
    ask.await.map_err(|error| Error::from_client("range", error))
}

impl Etcd {
    /// Keeps the endpoints, the certificates and the password current until cancelled.
    pub async fn follow_endpoints(&self, stop: CancellationToken) {
        let shared = &self.0;
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(shared.config.endpoint_interval) => {}
                () = shared.recheck.notified() => {}
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = self.look_at_endpoints() => {}
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(LOOK_AGAIN) => {}
            }
        }
    }

    /// Does something that may outlive members and credentials, which are kept current meanwhile.
    pub async fn following<T>(&self, work: impl Future<Output = T>) -> T {
        tokio::select! {
            done = work => done,
            // Nobody cancels it: it never ends.
            never = async {
                self.follow_endpoints(CancellationToken::new()).await;
                std::future::pending().await
            } => never,
        }
    }

    async fn look_at_endpoints(&self) {
        let config = &self.0.config;
        let connection = self.connection();
        let credentials = match config.load() {
            Ok(credentials) => credentials,
            Err(error) => {
                warn!("keeping the etcd credentials in use: {error}");
                connection.credentials.clone()
            }
        };
        let renewed = credentials != connection.credentials;
        let options = if renewed {
            self.endpoint_clients().clear();
            config.connect_options(&credentials)
        } else {
            connection.options.clone()
        };
        let mut candidates = configured(config);
        if config.sync_endpoints {
            // While the list cannot be had, those in use are not given up for that.
            candidates.extend(self.voters().await.unwrap_or_else(|| self.live_endpoints()));
        }
        let mut clients = self.endpoint_clients().clone();
        let parted = self.0.contacts.parted_urls();
        candidates.retain(|endpoint| !parted.contains(endpoint));
        let answers = probe(config, &options, &mut clients, candidates).await;
        *self.endpoint_clients() = clients;
        let mut live = answering(&answers);
        // A removal may have begun while they were asked.
        let parted = self.0.contacts.parted_urls();
        live.retain(|endpoint| !parted.contains(endpoint));
        if live.is_empty() {
            // Nothing better is known: the channel keeps what it has and reconnects by itself.
            if renewed && let Some((endpoint, Err(error))) = answers.first() {
                warn!(
                    "keeping the etcd credentials in use: they changed on disk, but no endpoint answers with them \
                     ({endpoint}: {})",
                    error.message()
                );
            }
            return;
        }
        if renewed {
            let _changing = self.0.changing.lock().await;
            match Connection::open(&live, options, credentials).await {
                Ok(fresh) => {
                    *self.0.connection.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(fresh);
                    info!("etcd credentials changed on disk: connected anew");
                    self.0.live.send_replace(live);
                }
                Err(error) => warn!("etcd credentials changed on disk, but do not work: {error}"),
            }
        } else {
            self.use_endpoints(live).await;
        }
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

    /// Client URLs of the started voters, if the list can be had. Good enough for where to connect, not for what to
    /// change: the list is not read linearizably.
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

    fn endpoint_clients(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Client>> {
        // Any state of the map is a good one: it is a cache.
        self.0.per_endpoint.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
