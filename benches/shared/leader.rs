//! A leader within the benchmark's own process.

use std::time::Duration;

use anyhow::Result;
use quorate::etcd::election::{Leadership, campaign};
use quorate::etcd::{Config, Etcd, Pulse};
use quorate::metrics::Metrics;
use quorate::store::{Keys, Store};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

pub async fn store(endpoint: &str) -> Result<Store> {
    let etcd = Etcd::connect(Config::new(vec![endpoint.to_owned()]), Metrics::new("0.0.0")).await?;
    Ok(Store {
        etcd,
        keys: Keys::new("/quorate".parse()?),
    })
}

pub struct Leader {
    pub store: Store,
    pub leadership: Leadership,
    _pulse: JoinSet<()>,
}

impl Leader {
    pub async fn elect(endpoint: &str) -> Result<Self> {
        let store = store(endpoint).await?;
        let pulse = Pulse::default();
        pulse.beat();
        let mut beating = JoinSet::new();
        beating.spawn(pulse.clone().beat_forever());
        let never = CancellationToken::new();
        let election = store.keys.election();
        let ttl = Duration::from_secs(10);
        let leadership = campaign(&store.etcd, &election, "bench", ttl, &pulse, &never).await?;
        Ok(Self {
            store,
            leadership,
            _pulse: beating,
        })
    }
}
