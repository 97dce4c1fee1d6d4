//! A store, and a leader in the benchmark's own process.

use std::time::Duration;

use anyhow::Result;
use quorate::etcd::{Config, Etcd};
use quorate::metrics::Metrics;
use quorate::store::{Keys, Store};
use quorate_dev::leader::Leader;

/// The keys below `/quorate` of the etcd with this endpoint.
pub async fn store(endpoint: &str) -> Result<Store> {
    let etcd = Etcd::connect(Config::new(vec![endpoint.to_owned()]), Metrics::new("0.0.0")).await?;
    Ok(Store {
        etcd,
        keys: Keys::new("/quorate".parse()?),
    })
}

/// Elects a leader through a connection of its own.
pub async fn elect(endpoint: &str) -> Result<Leader> {
    let store = store(endpoint).await?;
    Ok(Leader::elect(&store, "bench", Duration::from_secs(10)).await?)
}
