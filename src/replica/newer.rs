//! Which replica of a newer release stands for election.
//!
//! Older replicas make way for a newer candidate, not for a newer registration. So a newer release that ends again and again
//! before it can lead, or hangs before that, never takes the lead from another. One that ends as soon as it leads takes it more
//! and more seldom: each candidacy that did not last doubles the trial of the next.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tracing::info;

use super::trial::{Trials, Verdict};
use crate::etcd::Revision;
use crate::etcd::election::{self, Standing};
use crate::gate::releases::Releases;
use crate::release::Release;
use crate::retry::sleep_until;
use crate::store::Store;

/// What is known of newer replicas.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Newer {
    /// Nothing yet.
    #[default]
    Unknown,
    /// None of them stands for election.
    Absent,
    /// One stands, named here in words and by the revision at which it entered, but not for long enough yet: older ones lead on and
    /// keep their places.
    OnTrial(String, Revision),
    /// One stands: who it is, in words.
    Stands(String),
}

/// Publishes whether a registered replica with a newer release stands for election, and has done so for long enough: `first`,
/// and longer after others that did not last. While none is registered it reads nothing. Never ends.
pub(super) async fn follow(
    store: &Store,
    releases: watch::Receiver<Option<Releases>>,
    first: Duration,
    published: &watch::Sender<Newer>,
) {
    let (finding, found) = watch::channel(Found::Unknown);
    tokio::join!(find(store, releases, &finding), judge(found, first, published));
}

/// Publishes the verdict on the newer candidate that was found, whenever one is found and when its trial ends.
async fn judge(mut found: watch::Receiver<Found>, first: Duration, published: &watch::Sender<Newer>) {
    let mut trials = Trials::new(first);
    loop {
        let now = Instant::now();
        let (newer, due) = match &*found.borrow_and_update() {
            Found::Unknown => (Newer::Unknown, None),
            Found::None => {
                trials.none_stands(now);
                (Newer::Absent, None)
            }
            Found::Candidate {
                which,
                entered,
                leads,
            } => match trials.stands(*entered, *leads, now) {
                Verdict::OnTrial { until } => (Newer::OnTrial(which.clone(), *entered), Some(until)),
                Verdict::Lasting => (Newer::Stands(which.clone()), None),
            },
        };
        publish(published, newer);
        tokio::select! {
            changed = found.changed() => if changed.is_err() {
                // What finds them ended, which ends the replica.
                std::future::pending().await
            },
            () = sleep_until(due) => {}
        }
    }
}

/// The newer candidate that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Found {
    Unknown,
    None,
    Candidate {
        /// In words.
        which: String,
        entered: Revision,
        leads: bool,
    },
}

/// Finds registered replicas with a newer release that stand for election.
async fn find(
    store: &Store,
    mut releases: watch::Receiver<Option<Releases>>,
    finding: &watch::Sender<Found>,
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
            finding.send_replace(Found::None);
            registered_other_than(Some(&known), &mut releases).await;
            continue;
        }
        registered.send_replace(known);
        let wanted = |name: &str| registered.borrow().contains_key(name);
        let on_change = |standing: Option<Standing<'_>>| {
            found.send_replace(standing.map(|standing| standing.name.to_owned()));
            finding.send_replace(of(standing, &registered.borrow()));
        };
        let mut later = releases.clone();
        let must_list = async {
            loop {
                let before = registered.borrow().clone();
                let now = registered_other_than(Some(&before), &mut later).await;
                registered.send_replace(now.clone());
                if must_list(found.borrow().as_deref(), &before, &now) {
                    return;
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

fn of(standing: Option<Standing<'_>>, registered: &Registered) -> Found {
    let found = standing.and_then(|standing| Some((standing, registered.get_key_value(standing.name)?)));
    match found {
        Some((Standing { entered, leads, .. }, (name, release))) => Found::Candidate {
            which: format!("replica {name} runs release {release}, which is newer"),
            entered,
            leads,
        },
        None => Found::None,
    }
}

/// Each news of a newer candidate is logged once.
fn publish(published: &watch::Sender<Newer>, newer: Newer) {
    published.send_if_modified(|before| {
        let is_news = *before != newer;
        match &newer {
            Newer::Stands(which) if is_news => info!("{which}: this one does not stand for election"),
            Newer::OnTrial(which, _) if is_news => {
                info!("{which}: this one stands for election until the other has proved lasting");
            }
            _ => {}
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
