//! A leader in the test's own process.

use std::time::Duration;

use quorate::etcd::election::{Leadership, campaign};
use quorate::etcd::{Config, Fence};
use quorate::store::{Keys, Store};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::client::{connect_with, pulse};
use super::metrics;
use super::wait::{SOON, eventually};

/// However busy the machine is: terms end here when the test says so.
const TTL: Duration = Duration::from_secs(60);

/// Leads, and does only what it is given to do.
pub struct Leader {
    pub store: Store,
    leadership: Leadership,
    working: JoinSet<()>,
    _beating: JoinSet<()>,
}

impl Leader {
    /// Elects one below the prefix of this store.
    pub async fn elect(store: &Store, name: &str) -> Self {
        let mut beating = JoinSet::new();
        let pulse = pulse(&mut beating);
        let (election, never) = (store.keys.election(), CancellationToken::new());
        // The members may be electing: then a candidacy ends, and the next one begins, as in a replica.
        let leadership = eventually(SOON, &format!("{name} leads"), async || {
            campaign(&store.etcd, &election, name, TTL, &pulse, &never).await
        })
        .await;
        Self {
            store: store.clone(),
            leadership,
            working: JoinSet::new(),
            _beating: beating,
        }
    }

    pub fn fence(&self) -> &Fence {
        self.leadership.fence()
    }

    /// Does this until it resigns, or is dropped.
    pub fn work(&mut self, controller: impl Future<Output = ()> + Send + 'static) {
        self.working.spawn(controller);
    }

    /// Waits until what it was given has ended by itself.
    pub async fn work_ended(&mut self) {
        let ended = timeout(SOON, self.working.join_next()).await;
        ended.expect("it ends").expect("it was given something").unwrap();
    }

    /// A series of its metrics ([`metrics::value`]).
    #[track_caller]
    pub fn metric(&self, series: &str) -> f64 {
        metrics::value(&self.metrics(), series)
    }

    pub fn metrics(&self) -> String {
        self.store.etcd.metrics().encode()
    }

    pub async fn resign(mut self) {
        self.working.shutdown().await;
        self.leadership.resign().await;
    }
}

/// What lies below `/quorate`, where the commands look, through these endpoints and no others.
pub async fn store_on(endpoints: &[String]) -> Store {
    let mut config = Config::new(endpoints.to_vec());
    // The endpoints of a proxy are not those of the member list.
    config.sync_endpoints = false;
    Store {
        etcd: connect_with(config).await,
        keys: Keys::new("/quorate".parse().unwrap()),
    }
}
