//! Notices endpoints that have fallen silent, for a process that makes no requests.
//!
//! A request that goes without an answer has the endpoints checked. A process that only watches makes none: the next check may be
//! ten seconds away, and a connection whose other side is silent is given up after nine. So each endpoint in use is read through
//! now and then. Its member answers such a read by itself, without the others. The answer says only that the endpoint does not hang:
//! whether the member can serve is for the check to find out.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use etcd_client::{Client, GetOptions};
use futures::future::join_all;
use tokio::sync::Notify;
use tokio::time::timeout;

use super::connect::{Etcd, Shared};
use super::probe::{ANY_KEY, denies_the_key};
use super::store_identity::Header;
use crate::retry::Delays;

/// From one look at the endpoints to the next.
///
/// A watch behind an endpoint that hangs goes on within 5 s: this time, [`ANSWER_LIMIT`], a second in which the check waits for
/// the endpoint, a second in which the watch is asked whether it is alive, and the delay before it is opened again.
const EVERY: Duration = Duration::from_millis(1500);

/// The time grows to this while the same endpoint is silent at every look, and the checks leave it in use (INV-9): it is slow,
/// and so may all of etcd be, which the checks of all processes would slow down further. The regular check comes as often.
const AT_LEAST_EVERY: Duration = Duration::from_secs(10);

/// An endpoint that takes longer has the endpoints checked. A mere check is all that it costs if the endpoint was only slow.
const ANSWER_LIMIT: Duration = Duration::from_millis(500);

/// The request by which an endpoint is looked at.
const OPERATION: &str = "range";

/// What a look at an endpoint shows.
enum Sign {
    /// With what it says about its store, if it says that.
    Answers(Option<Header>),
    /// Its errors end requests and watches by themselves.
    Fails,
    Silent,
}

/// Asks for a check whenever an endpoint in use is silent. Does not keep the connection alive, and ends with it.
pub(super) async fn watch_for(connection: Weak<Shared>, recheck: Arc<Notify>) {
    let mut pauses = Delays::new(EVERY, AT_LEAST_EVERY);
    let mut silent_before = BTreeSet::new();
    loop {
        pauses.wait().await;
        let Some(etcd) = connection.upgrade().map(Etcd) else {
            return;
        };
        // Of a store that is lost nothing is asked any more.
        if etcd.before_request(OPERATION).is_err() {
            return;
        }
        let clients = clients_in_use(&etcd.0);
        drop(etcd);
        let signs = join_all(clients.into_iter().map(look_at)).await;
        let Some(etcd) = connection.upgrade().map(Etcd) else {
            return;
        };
        let mut silent = BTreeSet::new();
        for (endpoint, sign) in signs {
            match sign {
                // Asks for a check itself. The member may lag behind what others have shown.
                Sign::Answers(Some(header)) => _ = etcd.check_header(OPERATION, header, None),
                Sign::Answers(None) => {}
                // Without a client it is not looked at until the next check has brought one: a client whose password is refused
                // would authenticate at each look, which costs etcd much.
                Sign::Fails => _ = clients_of(&etcd.0).remove(&endpoint),
                Sign::Silent => _ = silent.insert(endpoint),
            }
        }
        if !silent.is_empty() {
            recheck.notify_one();
        }
        if silent.is_disjoint(&silent_before) {
            pauses.reset();
        }
        silent_before = silent;
    }
}

/// The endpoints in use with their clients, as far as a check has connected to them; none if there is only one endpoint, since
/// there is no other to turn to.
fn clients_in_use(shared: &Shared) -> Vec<(String, Client)> {
    let live = shared.live.borrow().clone();
    if live.len() < 2 {
        return Vec::new();
    }
    let clients = clients_of(shared);
    let client = |endpoint: String| {
        let client = clients.get(&endpoint)?.clone();
        Some((endpoint, client))
    };
    live.into_iter().filter_map(client).collect()
}

fn clients_of(shared: &Shared) -> MutexGuard<'_, BTreeMap<String, Client>> {
    // The map is a cache: it is valid even if a panic poisoned the lock.
    shared.per_endpoint.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn look_at((endpoint, mut client): (String, Client)) -> (String, Sign) {
    let read = GetOptions::new().with_count_only().with_serializable();
    let sign = match timeout(ANSWER_LIMIT, client.get(ANY_KEY, Some(read))).await {
        Ok(Ok(read)) => Sign::Answers(read.header().map(Header::from)),
        Ok(Err(error)) if denies_the_key(&error) => Sign::Answers(None),
        Ok(Err(_)) => Sign::Fails,
        Err(_) => Sign::Silent,
    };
    (endpoint, sign)
}
