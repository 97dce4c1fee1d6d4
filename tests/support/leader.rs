//! A leader in the test's own process.

use std::ops::{Deref, DerefMut};

use quorate::etcd::Config;
use quorate::store::{Keys, Store};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::client::{LONG_TTL, connect_with, ordinary_config};
use super::etcd::TestEtcd;
use super::metrics;
use super::wait::{SOON, eventually};

/// A leader with the controllers that a test gives it. Dereferences to [`quorate_dev::leader::Leader`].
pub struct Leader {
    leader: quorate_dev::leader::Leader,
    working: JoinSet<()>,
}

impl Leader {
    /// Elects a leader below the prefix of this store. Its term ends when the test ends it.
    pub async fn elect(store: &Store, name: &str) -> Self {
        // While the members elect their own leader, a candidacy ends, and the next one begins, as in a replica.
        let leader = eventually(SOON, &format!("{name} leads"), async || {
            quorate_dev::leader::Leader::elect(store, name, LONG_TTL).await
        })
        .await;
        Self {
            leader,
            working: JoinSet::new(),
        }
    }

    /// Runs a controller until the leader resigns or is dropped.
    pub fn work(&mut self, controller: impl Future<Output = ()> + Send + 'static) {
        self.working.spawn(controller);
    }

    /// Waits until a controller has ended by itself.
    pub async fn work_ended(&mut self) {
        let ended = timeout(SOON, self.working.join_next()).await;
        ended.expect("it ends").expect("a controller runs").unwrap();
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
        self.leader.resign().await;
    }
}

impl Deref for Leader {
    type Target = quorate_dev::leader::Leader;

    fn deref(&self) -> &Self::Target {
        &self.leader
    }
}

impl DerefMut for Leader {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.leader
    }
}

/// The keys below `/quorate`, where the commands look, through these endpoints and no others.
pub async fn store_on(endpoints: &[String]) -> Store {
    store_with(ordinary_config(endpoints.to_vec())).await
}

/// The same through the members of this etcd, whatever it demands.
pub async fn store_of(etcd: &TestEtcd) -> Store {
    let mut config = Config::new(etcd.endpoints());
    etcd.credentials().admit(&mut config);
    store_with(config).await
}

async fn store_with(mut config: Config) -> Store {
    // The member list does not have the endpoints of a proxy.
    config.sync_endpoints = false;
    Store {
        etcd: connect_with(config).await,
        keys: Keys::new("/quorate".parse().unwrap()),
    }
}
