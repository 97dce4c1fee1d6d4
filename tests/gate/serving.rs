//! The order of serving: a replica registers, then reads the status, and is never ready while the status excludes it
//! (INV-4).

use std::time::Duration;

use quorate::gate::Requirements;
use quorate::gate::readiness::Readiness;
use quorate::gate::registration::{Registrant, keep_registered};
use quorate::gate::status::State;
use quorate::release::Release;
use quorate::store::Store;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::term::{Cluster, TIMES, bundle, only, registration, release, status};
use crate::support::client::{LONG_TTL, TTL, connect_to, store};
use crate::support::proxy::{Network, Proxy};
use crate::support::wait::{SOON, eventually, same};

/// The parts of a replica that bear on serving: registration and readiness.
struct Serving {
    readiness: Readiness,
    stop: CancellationToken,
    tasks: JoinSet<()>,
}

impl Serving {
    /// On a registration that outlasts the test.
    fn start(cluster: &Cluster, store: &Store, node: &str, release: Release) -> Self {
        Self::start_for(cluster, store, node, release, LONG_TTL)
    }

    fn start_for(cluster: &Cluster, store: &Store, node: &str, release: Release, ttl: Duration) -> Self {
        let readiness = Readiness::default();
        let stop = CancellationToken::new();
        let mut tasks = JoinSet::new();
        let (published, registered) = watch::channel(None);
        let who = Registrant {
            node: node.parse().unwrap(),
            version: release.into(),
            process: format!("process of {node}"),
            ttl,
            page: String::new(),
        };
        let (registering, pulse, stopped) = (store.clone(), cluster.pulse().clone(), stop.clone());
        tasks.spawn(async move {
            keep_registered(&registering, &who, &pulse, &published, stopped).await;
        });
        let requirements = Requirements {
            release,
            min_reconciler: Release::default(),
        };
        let (judging, keeping, stopped) = (store.clone(), readiness.clone(), stop.clone());
        tasks.spawn(async move {
            keeping
                .keep(&judging, Some(requirements), registered, stopped)
                .await;
        });
        Self {
            readiness,
            stop,
            tasks,
        }
    }

    fn ready(&self) -> bool {
        self.readiness.registered() && self.readiness.gate().is_ok()
    }

    async fn wait_ready(&self) {
        eventually(SOON, "it is ready", async || match self.ready() {
            true => Ok(()),
            false => Err(format!("{:?}", self.readiness)),
        })
        .await;
    }

    /// Waits until it is registered, and not ready for this reason.
    async fn wait_refused(&self, reason: &str) {
        eventually(SOON, "it is refused", async || {
            match (self.readiness.registered(), self.readiness.gate()) {
                (true, Err(refused)) if refused.to_string().contains(reason) => Ok(()),
                seen => Err(format!("{seen:?}")),
            }
        })
        .await;
    }

    /// The same. Panics if it is ready at any moment before that.
    async fn wait_refused_unready(&self, reason: &str) {
        eventually(SOON, "it is refused", async || {
            let (registered, gate) = (self.readiness.registered(), self.readiness.gate());
            assert!(!(registered && gate.is_ok()), "ready before that (INV-4)");
            match gate {
                Err(refused) if registered && refused.to_string().contains(reason) => Ok(()),
                gate => Err(format!("registered: {registered}, {gate:?}")),
            }
        })
        .await;
    }

    async fn stop(mut self) {
        self.stop.cancel();
        while let Some(ended) = self.tasks.join_next().await {
            ended.unwrap();
        }
    }
}

#[tokio::test]
async fn a_replica_that_registers_before_the_restriction_has_it_refused_and_serves() {
    let cluster = Cluster::start().await;
    cluster.put_status(status(State::Done, 4, 1).encode()).await;
    let bundle = bundle(5, 3);
    let read_at = cluster.register("leader", release(5)).await;
    // After the leader read the releases, before its transaction.
    let old = Serving::start(&cluster, &cluster.store, "old", release(1));
    old.wait_ready().await;
    let (published, releases) = watch::channel(Some(only("leader", read_at)));
    let term = cluster.term_refused_twice(&bundle, releases).await;
    assert_eq!(cluster.status().await.unwrap(), status(State::Done, 4, 1));
    assert!(old.ready() && term.recorder.passes().is_empty());
    old.stop().await;
    let again = cluster.register("leader", release(5)).await;
    published.send_replace(Some(only("leader", again)));
    cluster.wait_for_status(&status(State::Done, 5, 3)).await;
}

#[tokio::test]
async fn a_replica_that_registers_after_the_restriction_never_becomes_ready() {
    let cluster = Cluster::start().await;
    cluster.put_status(status(State::Done, 4, 1).encode()).await;
    let bundle = bundle(5, 3);
    let recorder = cluster.recorder();
    recorder.let_passes_end(false);
    let read_at = cluster.register("leader", release(5)).await;
    let (_published, releases) = watch::channel(Some(only("leader", read_at)));
    let term = cluster.term_of(&bundle, TIMES, releases, recorder).await;
    term.recorder.pass(1).await;
    let old = Serving::start(&cluster, &cluster.store, "old", release(1));
    let refused = "release 0.1.0 is below the minimum compatible release 0.3.0";
    old.wait_refused_unready(refused).await;
    term.recorder.let_passes_end(true);
    cluster.wait_for_status(&status(State::Done, 5, 3)).await;
    old.wait_refused_unready(refused).await;
    old.stop().await;
}

#[tokio::test]
async fn no_interleaving_of_a_start_and_a_restriction_leaves_an_excluded_replica_ready() {
    let cluster = Cluster::start().await;
    let bundle = bundle(5, 3);
    let leader = cluster.register("leader", release(5)).await;
    for round in 0..12_u64 {
        cluster.put_status(status(State::Done, 4, 1).encode()).await;
        let recorder = cluster.recorder();
        recorder.let_passes_end(false);
        let (published, releases) = watch::channel(None);
        let old = Serving::start(&cluster, &cluster.store, "old", release(1));
        // The interleaving of this round: from before its registration to long after it read the status.
        tokio::time::sleep(Duration::from_millis(round)).await;
        let term = cluster.term_of(&bundle, TIMES, releases, recorder).await;
        published.send_replace(Some(only("leader", leader)));
        let restricted = eventually(SOON, "one or the other", async || {
            let restricted = cluster.status().await.unwrap() == status(State::Working, 4, 3);
            match restricted || old.ready() {
                true => Ok(restricted),
                false => Err("neither"),
            }
        })
        .await;
        if restricted {
            old.wait_refused_unready("below the minimum").await;
        }
        // Whichever came first, it stays so: the transaction sees the registration, or WaitReady sees the status. Both
        // sides go on during this time, and must not change that.
        tokio::time::sleep(Duration::from_millis(50)).await;
        let restricted = cluster.status().await.unwrap() == status(State::Working, 4, 3);
        assert!(!(restricted && old.ready()), "round {round}");
        old.stop().await;
        term.die(&cluster.etcd).await;
    }
}

#[tokio::test]
async fn a_replica_that_the_status_comes_to_exclude_is_no_longer_ready() {
    let cluster = Cluster::start().await;
    cluster.put_status(status(State::Done, 5, 3).encode()).await;
    let serving = Serving::start(&cluster, &cluster.store, "a", release(4));
    serving.wait_ready().await;
    // As an operator does by force: a leader would wait.
    cluster.put_status(status(State::Done, 6, 5).encode()).await;
    serving.wait_refused("below the minimum").await;
    cluster.put_status(status(State::Done, 5, 3).encode()).await;
    serving.wait_ready().await;
    cluster.put_status("garbage").await;
    serving.wait_refused("").await;
    serving.stop().await;
}

#[tokio::test]
async fn a_replica_whose_registration_is_deleted_registers_again() {
    let cluster = Cluster::start().await;
    cluster.put_status(status(State::Done, 5, 3).encode()).await;
    let serving = Serving::start(&cluster, &cluster.store, "a", release(4));
    serving.wait_ready().await;
    let key = registration("a");
    let record = async || cluster.client.get(key.as_bytes()).await.unwrap().0;
    let first = record().await.unwrap();
    cluster.unregister("a").await;
    eventually(SOON, "another record", async || {
        let created = record().await.map(|kv| kv.create_revision);
        same(
            created.is_some_and(|created| created > first.create_revision),
            true,
        )
    })
    .await;
    serving.wait_ready().await;
    serving.stop().await;
    assert!(record().await.is_none(), "it deletes its record when it stops");
}

#[tokio::test]
async fn a_replica_that_is_excluded_while_cut_off_does_not_come_back_ready() {
    let cluster = Cluster::start().await;
    cluster.put_status(status(State::Done, 4, 1).encode()).await;
    let proxy = Proxy::in_front_of(&cluster.etcd.endpoints()[0]);
    let cut_off = store(&connect_to(vec![proxy.url()]).await);
    let old = Serving::start_for(&cluster, &cut_off, "old", release(1), TTL);
    old.wait_ready().await;
    proxy.set(Network::BlackHole);
    let term = cluster.term(&bundle(5, 3)).await;
    // The record expires after the window closed, and only then the status is restricted.
    term.recorder.pass(1).await;
    assert!(!old.ready(), "INV-4");
    cluster.wait_for_status(&status(State::Done, 5, 3)).await;
    proxy.set(Network::Passes);
    old.wait_refused_unready("below the minimum").await;
    old.stop().await;
}
