//! Tests whether peer URLs can be reached, before their node is added: a member that the others cannot reach must not be
//! added.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::time::Duration;

use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use tokio::net::TcpStream;

use crate::proto::Join;
use crate::roles::index::Index;
use crate::roles::membership::Reachability;

/// The outcome of each test, by the id of the request. A request is tested once a term, and again after a pause.
pub struct Probes {
    known: BTreeMap<String, Reachability>,
    under_way: FuturesUnordered<BoxFuture<'static, (String, Reachability)>>,
}

impl Probes {
    pub fn new() -> Self {
        Self {
            known: BTreeMap::new(),
            under_way: FuturesUnordered::new(),
        }
    }

    /// The outcome for the request of this join.
    pub fn of(&self, join: &Join) -> Reachability {
        let request = join.request.as_ref();
        let known = request.and_then(|request| self.known.get(&request.id));
        known.cloned().unwrap_or(Reachability::Pending)
    }

    /// Begins to test the peer URLs that these nodes request, if that has not begun yet.
    pub fn begin(&mut self, nodes: &[String], index: &Index, limit: Duration) {
        for node in nodes {
            let (join, _) = index.join(node);
            let Some(request) = join.and_then(|join| join.request.clone()) else {
                continue;
            };
            if self.known.contains_key(&request.id) {
                continue;
            }
            // Outcomes of earlier requests are dropped.
            self.known.retain(|id, _| {
                let mut requests = index.joins().filter_map(|(_, join, _)| join.request.as_ref());
                requests.any(|request| request.id == *id)
            });
            self.known.insert(request.id.clone(), Reachability::Pending);
            self.under_way.push(Box::pin(async move {
                (request.id, probe(request.peer_urls, limit).await)
            }));
        }
    }

    /// Resolves when a test has ended; never while there is none. Safe to cancel.
    pub async fn next(&mut self) {
        match self.under_way.next().await {
            Some((request, outcome)) => _ = self.known.insert(request, outcome),
            None => std::future::pending().await,
        }
    }
}

/// Connects to all URLs at once. A refused connection counts as reached: etcd cannot start before it is added.
async fn probe(urls: Vec<String>, limit: Duration) -> Reachability {
    let connections = urls.iter().map(|url| async move {
        match tokio::time::timeout(limit, TcpStream::connect(address(url))).await {
            Ok(Ok(_)) => Ok(true),
            Ok(Err(error)) if error.kind() == ErrorKind::ConnectionRefused => Ok(false),
            Ok(Err(error)) => Err(format!("peer URL {url} cannot be reached: {error}")),
            Err(_) => Err(format!(
                "peer URL {url} cannot be reached: no answer within {limit:?}"
            )),
        }
    });
    match futures::future::try_join_all(connections).await {
        Ok(listening) => Reachability::Reached {
            listening: listening.into_iter().all(|listening| listening),
        },
        Err(why) => Reachability::Unreachable(why),
    }
}

fn address(url: &str) -> &str {
    url.split_once("://").map_or(url, |(_, address)| address)
}
