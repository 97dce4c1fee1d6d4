//! Which replica of a newer release stands for election.
//!
//! Older replicas make way for a newer candidate, not for a newer registration. So a newer release that ends again and again
//! before it can lead, or hangs before that, takes the lead from no other.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::watch;
use tracing::info;

use crate::etcd::election;
use crate::gate::releases::Releases;
use crate::release::Release;
use crate::store::Store;

/// What is known of newer replicas.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Newer {
    /// Nothing yet.
    #[default]
    Unknown,
    /// None of them stands for election.
    Absent,
    /// One stands: who it is, in words.
    Stands(String),
}

/// Publishes whether a registered replica with a newer release stands for election. While none is registered it reads
/// nothing. Never ends.
pub(super) async fn follow(
    store: &Store,
    mut releases: watch::Receiver<Option<Releases>>,
    published: &watch::Sender<Newer>,
) {
    let prefix = store.keys.election();
    loop {
        let registered = registered_other_than(None, &mut releases).await;
        let mut later = releases.clone();
        let changed = registered_other_than(Some(&registered), &mut later);
        if registered.is_empty() {
            publish(published, Newer::Absent);
            changed.await;
            continue;
        }
        let wanted = |name: &str| registered.contains_key(name);
        let on_change = |name: Option<&str>| publish(published, of(name, &registered));
        tokio::select! {
            _ = changed => {}
            () = election::observe_any(&store.etcd, &prefix, wanted, on_change) => {}
        }
    }
}

type Registered = Arc<BTreeMap<String, Release>>;

/// The registered replicas with a newer release, once they are known and other ones than these.
async fn registered_other_than(
    these: Option<&Registered>,
    releases: &mut watch::Receiver<Option<Releases>>,
) -> Registered {
    let other = |seen: &Option<Releases>| seen.as_ref().is_some_and(|seen| Some(&seen.newer) != these);
    let found = releases.wait_for(other).await.ok();
    let found = found.and_then(|known| known.as_ref().map(|known| known.newer.clone()));
    match found {
        Some(registered) => registered,
        // watch-nodes ended, which ends the replica.
        None => std::future::pending().await,
    }
}

fn of(name: Option<&str>, registered: &Registered) -> Newer {
    match name.and_then(|name| registered.get_key_value(name)) {
        Some((name, release)) => {
            Newer::Stands(format!("replica {name} runs release {release}, which is newer"))
        }
        None => Newer::Absent,
    }
}

/// Each news of a newer candidate is logged once.
fn publish(published: &watch::Sender<Newer>, newer: Newer) {
    published.send_if_modified(|before| {
        let is_news = *before != newer;
        if let (true, Newer::Stands(which)) = (is_news, &newer) {
            info!("{which}: this one does not stand for election");
        }
        *before = newer;
        is_news
    });
}
