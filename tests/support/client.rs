//! The library as a client of a test's etcd.

use std::pin::pin;
use std::time::Duration;

use futures::future::{Either, select};
use quorate::etcd::election::{CampaignError, Leadership, campaign};
use quorate::etcd::members::{ListedMember, latest_raft_leader};
use quorate::etcd::{
    Committed, Config, Etcd, Event, KeyRange, Pulse, Revision, Txn, TxnError, Watched, Watcher, Window,
};
use quorate::grpc_code::Code;
use quorate::metrics::Metrics;
use quorate::store::{Keys, Store};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::access::{Access, Credentials};
use super::etcd::TestEtcd;
use super::metrics;
use super::proxy::{Network, Proxy};
use super::wait::{SOON, eventually, grows, same};

/// The least TTL that one etcd member grants as requested, in every release. For tests of the end of a lease.
pub const TTL: Duration = Duration::from_secs(2);

/// For a lease that is renewed during a test, every 3.3 s. No machine is busy enough for it to expire.
pub const RENEWED_TTL: Duration = Duration::from_secs(20);

/// No machine is busy enough for a lease of this TTL to expire during a test.
pub const LONG_TTL: Duration = Duration::from_secs(60);

/// How long a member may take to say whom it follows.
const SURVEY_LIMIT: Duration = Duration::from_secs(5);

/// Settings of a replica for the etcds of this run.
pub fn ordinary_config(endpoints: Vec<String>) -> Config {
    let mut config = Config::new(endpoints);
    Credentials::of(Access::of_this_run()).admit(&mut config);
    config
}

/// Settings with short limits, for tests of what happens after them.
pub fn config(endpoints: Vec<String>) -> Config {
    let mut config = ordinary_config(endpoints);
    config.request_timeout = Duration::from_secs(2);
    config.connect_timeout = Duration::from_millis(500);
    config.endpoint_interval = Duration::from_millis(300);
    config.watch_silence = Duration::from_millis(500);
    config
}

/// Connects to these endpoints, and ignores the member list.
pub async fn connect_to(endpoints: Vec<String>) -> Etcd {
    let mut config = config(endpoints);
    config.sync_endpoints = false;
    connect_with(config).await
}

/// Connects with these settings, again while the members elect their leader.
pub async fn connect_with(config: Config) -> Etcd {
    eventually(SOON, "etcd answers", async || {
        Etcd::connect(config.clone(), Metrics::new("test")).await
    })
    .await
}

/// Connects to this etcd for tests in which no request is given up, however busy the machine is.
pub async fn connect_patiently(etcd: &TestEtcd) -> Etcd {
    let mut config = config_of(etcd);
    (config.sync_endpoints, config.request_timeout) = (false, SOON);
    connect_with(config).await
}

/// [`config`] for this etcd, whatever it demands.
pub fn config_of(etcd: &TestEtcd) -> Config {
    let mut config = config(etcd.endpoints());
    etcd.credentials().admit(&mut config);
    config
}

/// Connects to all members, and ignores the member list.
pub async fn connect(etcd: &TestEtcd) -> Etcd {
    let mut config = config_of(etcd);
    config.sync_endpoints = false;
    connect_with(config).await
}

/// The keys below `/q`, through this connection.
pub fn store(etcd: &Etcd) -> Store {
    Store {
        etcd: etcd.clone(),
        keys: Keys::new("/q".parse().unwrap()),
    }
}

/// Commits as an operator would.
#[expect(
    clippy::disallowed_methods,
    reason = "a test stands in for operators, nodes and other programs"
)]
pub async fn commit(etcd: &Etcd, txn: Txn) -> Result<Committed, TxnError> {
    etcd.unfenced(txn).await
}

/// Writes one key as an operator would.
pub async fn put(etcd: &Etcd, key: &str, value: impl Into<Vec<u8>>) -> Committed {
    commit(etcd, Txn::new().put(key.as_bytes(), value)).await.unwrap()
}

/// Waits until the lease of this window is renewed once more than now.
pub async fn renewed(window: &Window) {
    grows("the lease is renewed", async || window.remaining()).await;
}

/// A pulse that beats as long as the set lives.
pub fn pulse(tasks: &mut JoinSet<()>) -> Pulse {
    let pulse = Pulse::default();
    tasks.spawn(pulse.clone().beat_forever());
    pulse
}

/// Campaigns below the election prefix of [`store`], on a lease that outlasts the test.
pub async fn lead(etcd: &Etcd, name: &str, pulse: &Pulse) -> Result<Leadership, CampaignError> {
    lead_for(etcd, name, LONG_TTL, pulse).await
}

/// Campaigns below the election prefix of [`store`], on a lease of this TTL.
pub async fn lead_for(
    etcd: &Etcd,
    name: &str,
    ttl: Duration,
    pulse: &Pulse,
) -> Result<Leadership, CampaignError> {
    let election = store(etcd).keys.election();
    campaign(etcd, &election, name, ttl, pulse, &CancellationToken::new()).await
}

/// A series of the connection's metrics ([`metrics::value`]).
#[track_caller]
pub fn metric(etcd: &Etcd, series: &str) -> f64 {
    metrics::value(&etcd.metrics().encode(), series)
}

/// How many requests of an operation ended with this code over this connection ([`metrics::requests`]).
#[track_caller]
pub fn requests(etcd: &Etcd, operation: &str, code: Code) -> f64 {
    metrics::requests(&etcd.metrics().encode(), operation, code)
}

/// The same for an operation that may not have been requested yet ([`metrics::requests_so_far`]).
pub fn requests_so_far(etcd: &Etcd, operation: &str, code: Code) -> f64 {
    metrics::requests_so_far(&etcd.metrics().encode(), operation, code)
}

/// How many requests of an operation failed ([`metrics::failed_so_far`]).
pub fn failed_so_far(etcd: &Etcd, operation: &str) -> f64 {
    metrics::failed_so_far(&etcd.metrics().encode(), operation)
}

/// Runs `ending` while the network resets every connection. It works again once a request of this operation has failed; also
/// if none has, because `ending` was faster than the network.
pub async fn until_a_failure(etcd: &Etcd, operation: &str, proxy: &Proxy, ending: impl Future<Output = ()>) {
    let before = failed_so_far(etcd, operation);
    proxy.set(Network::Resets);
    let failed = eventually(SOON, "a request fails", async || {
        same(failed_so_far(etcd, operation) > before, true)
    });
    match select(pin!(ending), pin!(failed)).await {
        Either::Left(_) => proxy.set(Network::Passes),
        Either::Right((_, ending)) => {
            proxy.set(Network::Passes);
            ending.await;
        }
    }
}

/// Writes each of these keys, a hundred in a transaction.
pub async fn put_all(etcd: &Etcd, pairs: impl Iterator<Item = (String, Vec<u8>)>) {
    let pairs: Vec<_> = pairs.collect();
    for some in pairs.chunks(100) {
        let put = |txn: Txn, (key, value): &(String, Vec<u8>)| txn.put(key.as_bytes(), value.clone());
        commit(etcd, some.iter().fold(Txn::new(), put)).await.unwrap();
    }
}

/// The keys below a prefix that were written or deleted after this revision, once for each write.
pub async fn written_since(etcd: &Etcd, prefix: &str, revision: i64) -> Vec<String> {
    // The last event, which shows that all events before it have arrived.
    let end = format!("{prefix}~end");
    let last = commit(etcd, Txn::new().put(end.as_bytes(), "")).await.unwrap();
    let events = history(
        etcd,
        KeyRange::prefix(prefix),
        Revision(revision + 1),
        last.revision,
    )
    .await;
    let keys = events
        .iter()
        .map(|event| String::from_utf8_lossy(event.key()).into_owned());
    keys.filter(|key| *key != end).collect()
}

/// etcd's own leader.
pub async fn raft_leader(etcd: &Etcd) -> ListedMember {
    eventually(SOON, "a raft leader", async || {
        let list = etcd.list_members().await.map_err(|error| error.to_string())?;
        let surveys = etcd.survey(&list.members, SURVEY_LIMIT).await;
        let leader = latest_raft_leader(&surveys).and_then(|id| list.member(id));
        leader.cloned().ok_or_else(|| "none".to_owned())
    })
    .await
}

/// The changes of a range from one revision to another, at which a key of the range was written. Nothing may be compacted.
pub async fn history(etcd: &Etcd, range: KeyRange, from: Revision, last: Revision) -> Vec<Event> {
    let read = || Watcher::new(etcd, range.clone(), from);
    let mut watcher = read();
    let mut events: Vec<Event> = Vec::new();
    let reading = async {
        while events.last().is_none_or(|event| event.revision() < last) {
            match watcher.next().await {
                Watched::Events(more) => events.extend(more),
                // It was interrupted: a member went, or etcd's members elected.
                Watched::Compacted => {
                    watcher = read();
                    events.clear();
                }
            }
        }
    };
    timeout(SOON, reading).await.expect("the history is read");
    events.retain(|event| event.revision() <= last);
    events
}

/// Keeps the endpoints and the credentials of a client as the members and the files have them, until it is dropped.
pub fn follow(etcd: &Etcd) -> JoinSet<()> {
    let etcd = etcd.clone();
    let mut following = JoinSet::new();
    following.spawn(async move { etcd.follow_endpoints(CancellationToken::new()).await });
    following
}
