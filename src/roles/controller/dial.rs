//! Whether a peer URL can be reached: before its node is added, so that no learner is added that cannot be.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::time::Duration;

use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use tokio::net::TcpStream;

use crate::proto::Join;
use crate::roles::index::Index;
use crate::roles::plan::Dial;

/// What came of each request that was tried, by its id.
pub struct Dials {
    known: BTreeMap<String, Dial>,
    under_way: FuturesUnordered<BoxFuture<'static, (String, Dial)>>,
}

impl Dials {
    pub fn new() -> Self {
        Self {
            known: BTreeMap::new(),
            under_way: FuturesUnordered::new(),
        }
    }

    /// What came of this one's request.
    pub fn of(&self, join: &Join) -> Dial {
        let request = join.request.as_ref();
        let known = request.and_then(|request| self.known.get(&request.id));
        known.cloned().unwrap_or(Dial::Pending)
    }

    /// Tries the peer URLs that these nodes ask for, unless that was begun before.
    pub fn begin(&mut self, nodes: &[String], index: &Index, limit: Duration) {
        for node in nodes {
            let (join, _) = index.join(node);
            let Some(request) = join.and_then(|join| join.request.clone()) else {
                continue;
            };
            if self.known.contains_key(&request.id) {
                continue;
            }
            // Of requests that are gone nothing is kept.
            self.known.retain(|id, _| {
                let mut requests = index.joins().filter_map(|(_, join, _)| join.request.as_ref());
                requests.any(|request| request.id == *id)
            });
            self.known.insert(request.id.clone(), Dial::Pending);
            self.under_way.push(Box::pin(async move {
                (request.id, dial(request.peer_urls, limit).await)
            }));
        }
    }

    /// Resolves when something came of one; never while none is being tried. Safe to cancel.
    pub async fn next(&mut self) {
        match self.under_way.next().await {
            Some((request, dial)) => _ = self.known.insert(request, dial),
            None => std::future::pending().await,
        }
    }
}

/// Tries all of them at once. A connection that is refused is one that was reached: etcd cannot start before it is
/// added.
async fn dial(urls: Vec<String>, limit: Duration) -> Dial {
    let tried = urls.iter().map(|url| async move {
        match tokio::time::timeout(limit, TcpStream::connect(address(url))).await {
            Ok(Ok(_)) => Ok(true),
            Ok(Err(error)) if error.kind() == ErrorKind::ConnectionRefused => Ok(false),
            Ok(Err(error)) => Err(format!("peer URL {url} cannot be reached: {error}")),
            Err(_) => Err(format!(
                "peer URL {url} cannot be reached: no answer within {limit:?}"
            )),
        }
    });
    match futures::future::try_join_all(tried).await {
        Ok(listening) => Dial::Reached {
            listening: listening.into_iter().all(|listening| listening),
        },
        Err(why) => Dial::Unreachable(why),
    }
}

fn address(url: &str) -> &str {
    url.split_once("://").map_or(url, |(_, address)| address)
}
