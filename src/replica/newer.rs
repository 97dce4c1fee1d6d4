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
    // This function alone sets both, so that neither changes while a list or an event is judged.
    let (registered, found) = (
        watch::Sender::new(Registered::default()),
        watch::Sender::new(None),
    );
    loop {
        let known = registered_other_than(None, &mut releases).await;
        found.send_replace(None);
        if known.is_empty() {
            publish(published, Newer::Absent);
            registered_other_than(Some(&known), &mut releases).await;
            continue;
        }
        registered.send_replace(known);
        let wanted = |name: &str| registered.borrow().contains_key(name);
        let on_change = |name: Option<&str>| {
            found.send_replace(name.map(str::to_owned));
            publish(published, of(name, &registered.borrow()));
        };
        let mut later = releases.clone();
        let must_list = async {
            loop {
                let before = registered.borrow().clone();
                let now = registered_other_than(Some(&before), &mut later).await;
                registered.send_replace(now.clone());
                let found = found.borrow().clone();
                if must_list(found.as_deref(), &before, &now) {
                    return;
                }
                if found.is_some() {
                    publish(published, of(found.as_deref(), &now));
                }
            }
        };
        tokio::select! {
            () = must_list => {}
            () = election::observe_any(&store.etcd, &prefix, wanted, on_change) => {}
        }
    }
}

/// Whether a change of the registrations makes a new list of the candidates necessary. One that was found is followed as long
/// as it is registered. While there is none, only a candidate that was not registered before can be among those listed.
fn must_list(found: Option<&str>, before: &Registered, now: &Registered) -> bool {
    match found {
        Some(name) => !now.contains_key(name),
        None => now.is_empty() || now.keys().any(|name| !before.contains_key(name)),
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

#[cfg(test)]
mod tests {
    use super::*;

    fn registered(names: &[&str]) -> Registered {
        let release = Release::new(999, 0, 0);
        Arc::new(names.iter().map(|name| ((*name).to_owned(), release)).collect())
    }

    #[test]
    fn the_candidates_are_listed_again_only_for_a_change_that_can_bring_another_one() {
        for (found, before, now, must) in [
            (Some("a"), &["a"][..], &["a", "b"][..], false),
            (Some("a"), &["a", "b"], &["a"], false),
            (Some("a"), &["a", "b"], &["b"], true),
            (Some("a"), &["a"], &[], true),
            (None, &["a"], &["a", "b"], true),
            (None, &["a", "b"], &["a"], false),
            (None, &["a", "b"], &["a", "c"], true),
            (None, &["a"], &[], true),
        ] {
            let listed = must_list(found, &registered(before), &registered(now));
            assert_eq!(listed, must, "{found:?}: {before:?}, then {now:?}");
        }
    }
}
