//! What etcd stores, as a watch of the whole store has it: every change, in order.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use etcd_client::{Client, ConnectOptions, EventType, GetOptions, KeyValue, WatchOptions};
use futures::future::select_ok;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::history::{Change, Changed, Revision, What};
use crate::recorder::Recorder;

/// A member that says nothing for so long is left for the next one.
const SILENCE: Duration = Duration::from_secs(3);

/// How often a member is asked for its revision while nothing changes.
const ASK: Duration = Duration::from_secs(1);

/// How long a stream may lack what the cluster has.
const LAG: Duration = Duration::from_secs(1);

/// Follows the store until it is stopped.
pub struct Watch {
    task: JoinSet<()>,
    reached: Arc<Reached>,
}

/// How far the history goes.
#[derive(Default)]
struct Reached {
    /// The revision of the last change that came. A stream goes on after it.
    came: AtomicI64,
    /// The revision up to which no change is missing, as a member says. Some releases say so too early, so that no stream may begin there.
    complete: AtomicI64,
}

impl Reached {
    fn seen(&self) -> i64 {
        let Self { came, complete } = self;
        came.load(Ordering::SeqCst).max(complete.load(Ordering::SeqCst))
    }
}

impl Watch {
    /// Follows the store from this revision on.
    pub fn start(endpoints: Vec<String>, recorder: Arc<Recorder>, from: i64) -> Self {
        let reached = Arc::new(Reached::default());
        reached.came.store(from - 1, Ordering::SeqCst);
        let moving = reached.clone();
        let mut task = JoinSet::new();
        task.spawn(async move {
            let mut member = 0;
            loop {
                tokio::select! {
                    // A member that is broken is no news.
                    _ = follow(&endpoints[member], &recorder, &moving) => {
                        let answering = answering(&endpoints).await;
                        member = answering.map_or((member + 1) % endpoints.len(), |(index, _)| index);
                    }
                    other = lags(&endpoints, &moving) => member = other,
                }
                sleep(Duration::from_millis(200)).await;
            }
        });
        Self { task, reached }
    }

    /// The revision up to which everything is recorded.
    pub fn seen(&self) -> i64 {
        self.reached.seen()
    }

    /// Records nothing more.
    pub async fn stop(&mut self) {
        self.task.shutdown().await;
    }
}

/// A client of one member.
///
/// # Errors
/// The member cannot be reached.
pub async fn client(endpoint: &str) -> Result<Client, etcd_client::Error> {
    let options = ConnectOptions::new()
        .with_connect_timeout(Duration::from_secs(1))
        .with_timeout(Duration::from_secs(3));
    Client::connect([endpoint], Some(options)).await
}

/// Resolves once the stream lacks what the cluster has had for a while, with a member that has it. A member that is parted from the
/// others goes on to answer, with what it had before.
async fn lags(endpoints: &[String], reached: &Reached) -> usize {
    loop {
        sleep(ASK).await;
        if let Some((index, revision)) = answering(endpoints).await {
            sleep(LAG).await;
            if reached.seen() < revision {
                return index;
            }
        }
    }
}

/// The first member that answers a linearizable read, and the revision of the store.
async fn answering(endpoints: &[String]) -> Option<(usize, i64)> {
    let reads = endpoints.iter().enumerate().map(|(index, endpoint)| {
        let read = async move {
            let options = GetOptions::new().with_count_only();
            let read = client(endpoint).await?.get("/", Some(options)).await?;
            let revision = read.header().map_or(0, |header| header.revision());
            Ok::<_, etcd_client::Error>((index, revision))
        };
        Box::pin(read)
    });
    let first = timeout(SILENCE, select_ok(reads)).await.ok()?;
    first.ok().map(|(first, _)| first)
}

async fn follow(endpoint: &str, recorder: &Recorder, reached: &Reached) -> Result<(), etcd_client::Error> {
    // Without the limit on requests, which would end the watch.
    let options = ConnectOptions::new().with_connect_timeout(Duration::from_secs(1));
    let mut client = Client::connect([endpoint], Some(options)).await?;
    let from = reached.came.load(Ordering::SeqCst) + 1;
    let options = WatchOptions::new().with_prefix().with_start_revision(from);
    let opening = timeout(SILENCE, client.watch("/", Some(options)));
    let Ok(opened) = opening.await else {
        return Ok(());
    };
    let mut stream = opened?;
    let mut silent = Duration::ZERO;
    loop {
        let Ok(message) = timeout(ASK, stream.message()).await else {
            silent += ASK;
            if silent >= SILENCE {
                return Ok(());
            }
            stream.request_progress().await?;
            continue;
        };
        let Some(response) = message? else {
            return Ok(());
        };
        silent = Duration::ZERO;
        if response.compact_revision() > 0 {
            return catch_up(&mut client, recorder, &reached.came, response.compact_revision()).await;
        }
        let (at, epoch) = (recorder.now(), recorder.epoch());
        let header = response
            .header()
            .map(|header| (header.cluster_id(), header.revision()));
        let (cluster, revision) = header.unwrap_or_default();
        for event in response.events() {
            let Some(kv) = event.kv() else { continue };
            reached.came.fetch_max(kv.mod_revision(), Ordering::SeqCst);
            if !is_recorded(kv.key()) {
                continue;
            }
            let change = match event.event_type() {
                EventType::Put => put(kv),
                EventType::Delete => Change::Deleted,
            };
            recorder.record(at, changed(cluster, epoch, kv, change));
        }
        // A progress notification: nothing happened up to this revision that did not come.
        if response.events().is_empty() && !response.created() {
            reached.complete.fetch_max(revision, Ordering::SeqCst);
        }
    }
}

/// What is there at a revision, where etcd has forgotten how it came about: after a restore of a store that was compacted.
async fn catch_up(
    client: &mut Client,
    recorder: &Recorder,
    came: &AtomicI64,
    compacted: i64,
) -> Result<(), etcd_client::Error> {
    let options = GetOptions::new().with_prefix().with_revision(compacted);
    let there = client.get("/", Some(options)).await?;
    let cluster = there.header().map_or(0, |header| header.cluster_id());
    let (at, epoch, before) = (recorder.now(), recorder.epoch(), came.load(Ordering::SeqCst));
    for kv in there.kvs() {
        if kv.mod_revision() > before && is_recorded(kv.key()) {
            recorder.record(at, changed(cluster, epoch, kv, put(kv)));
        }
    }
    came.fetch_max(compacted, Ordering::SeqCst);
    Ok(())
}

fn put(kv: &KeyValue) -> Change {
    Change::Put {
        value: kv.value().into(),
        created: kv.create_revision(),
        lease: kv.lease(),
    }
}

fn changed(cluster: u64, epoch: u32, kv: &KeyValue, change: Change) -> What {
    What::Changed(Changed {
        cluster,
        revision: Revision {
            epoch,
            revision: kv.mod_revision(),
        },
        key: kv.key().into(),
        change,
    })
}

/// Of Kubernetes only the objects of bundles: an apiserver writes much that has nothing to do with Quorate.
fn is_recorded(key: &[u8]) -> bool {
    key.starts_with(b"/quorate/") || key.starts_with(b"/kubernetes/configmaps/default/")
}
