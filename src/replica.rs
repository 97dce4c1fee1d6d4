//! One replica: the task tree of `quorate run`.
//!
//! ```text
//! replica
//! ├── pulse            says that this runtime is alive (livez, lease renewal)
//! ├── endpoints        keeps etcd's endpoints and credentials current
//! ├── registration     keeps this process's release under /nodes/<id>/release
//! ├── watch-nodes      sums up the releases that run
//! ├── watch-leader     follows the election keys
//! ├── readiness        judges the status after every registration
//! └── campaign         while this is the highest release
//!     └── term         while elected: the gate's controller, the deallocator, node roles, volumes
//! ```

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::deallocator::controller::{self as deallocator, Deallocator};
use crate::etcd::election::{CampaignError, campaign, range_of};
use crate::etcd::{Fence, LeaseTimes, Pulse, Revision};
use crate::gate::Requirements;
use crate::gate::controller::{GateController, Reconcile, Times};
use crate::gate::plan::BundleVersions;
use crate::gate::readiness::Readiness;
use crate::gate::registration::{Registrant, keep_registered};
use crate::gate::releases::Releases;
use crate::gate::watch_nodes::watch_nodes;
use crate::kube::events::Events;
use crate::retry::Delays;
use crate::roles::controller::{self as roles, RoleController};
use crate::store::{Cache, Name, Store};
use crate::term;
use crate::volumes::controller::{self as volumes, Volumes};

mod eligibility;

use eligibility::Eligibility;

/// For all tasks to end after a stop; what is left then ends with the process.
const STOP_LIMIT: Duration = Duration::from_millis(2500);

/// What a replica is told.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Unique among the replicas.
    pub node: Name,
    /// What it runs.
    pub bundle: BundleVersions,
    /// TTL of the election's and the registration's lease.
    pub lease_ttl: Duration,
    /// The waits of the gate.
    pub times: Times,
    /// The waits and limits of node roles.
    pub roles: roles::Settings,
    /// The waits of what sees to volumes.
    pub volumes: volumes::Times,
}

/// What the probes ask. All clones see the same replica.
#[derive(Clone, Debug, Default)]
pub struct ReplicaStatus {
    /// Whether the work runtime lives.
    pub pulse: Pulse,
    /// Whether it may serve.
    pub readiness: Readiness,
    leading: Arc<watch::Sender<Option<Fence>>>,
    leader: Arc<watch::Sender<Option<String>>>,
}

impl ReplicaStatus {
    /// Whether this replica leads at this instant.
    pub fn leads(&self) -> bool {
        self.leading
            .borrow()
            .as_ref()
            .is_some_and(|fence| fence.window().is_open())
    }

    /// Until the local deadline of the term; zero without one.
    pub fn lease_margin(&self) -> Duration {
        self.leading
            .borrow()
            .as_ref()
            .map_or(Duration::ZERO, |fence| fence.window().remaining())
    }

    /// Node id of who leads, as far as is known here.
    pub fn leader(&self) -> Option<String> {
        self.leader.borrow().clone()
    }
}

/// A part of the replica ended that never should.
#[derive(Debug, thiserror::Error)]
#[error("{0} ended unexpectedly")]
pub struct PartFailed(String);

/// Makes what publishes Kubernetes Events during one term.
pub type MakeEvents = Box<dyn Fn() -> Events + Send + Sync>;

/// Runs a replica until stopped. `resources` makes what reconciles during one term; `None` without Kubernetes, where
/// no status is written or waited for.
///
/// # Errors
/// [`PartFailed`] if a task panicked; everything else is retried inside.
pub async fn run<R, M>(
    store: Store,
    settings: Settings,
    resources: Option<M>,
    events: Option<MakeEvents>,
    status: ReplicaStatus,
    stop: CancellationToken,
) -> Result<(), PartFailed>
where
    R: Reconcile + 'static,
    M: Fn(&Fence) -> R + Send + Sync + 'static,
{
    let mut parts: JoinSet<&'static str> = JoinSet::new();
    let (registered_sender, registered) = watch::channel(None);
    let (releases_sender, releases) = watch::channel(None);

    let (beating, metrics, stopped) = (status.clone(), store.etcd.metrics().clone(), stop.clone());
    parts.spawn(async move {
        while !stopped.is_cancelled() {
            beating.pulse.beat();
            metrics
                .lease_margin_seconds
                .set(beating.lease_margin().as_secs_f64());
            tokio::select! {
                () = stopped.cancelled() => {}
                () = tokio::time::sleep(Pulse::INTERVAL) => {}
            }
        }
        "pulse"
    });

    let (etcd, stopped) = (store.etcd.clone(), stop.clone());
    parts.spawn(async move {
        etcd.follow_endpoints(stopped).await;
        "endpoints"
    });

    let registrant = Registrant {
        node: settings.node.clone(),
        version: settings.bundle.version.clone(),
        process: uuid::Uuid::new_v4().to_string(),
        ttl: settings.lease_ttl,
    };
    let (registering, pulse, stopped) = (store.clone(), status.pulse.clone(), stop.clone());
    parts.spawn(async move {
        keep_registered(&registering, &registrant, &pulse, &registered_sender, stopped).await;
        "registration"
    });

    let (watching, bundle, stopped) = (store.clone(), settings.bundle.clone(), stop.clone());
    parts.spawn(async move {
        watch_nodes(&watching, &bundle, releases_sender, stopped).await;
        "watch-nodes"
    });

    let (watching, leader, stopped) = (store.clone(), status.leader.clone(), stop.clone());
    parts.spawn(async move {
        watch_leader(&watching, &leader, stopped).await;
        "watch-leader"
    });

    let requirements = resources.is_some().then_some(Requirements {
        release: settings.bundle.version.release,
        min_reconciler: settings.bundle.min_reconciler,
    });
    let (judging, readiness) = (store.clone(), status.readiness.clone());
    let (registrations, stopped) = (registered.clone(), stop.clone());
    parts.spawn(async move {
        readiness
            .keep(&judging, requirements, registrations, stopped)
            .await;
        "readiness"
    });

    let candidate = Candidate {
        store,
        settings,
        resources,
        events,
        status,
        releases: releases.clone(),
        stop: stop.clone(),
    };
    parts.spawn(async move {
        let eligibility = Eligibility::new(candidate.settings.bundle.version.release, registered, releases);
        candidate.stand(eligibility).await;
        "campaign"
    });

    let failed = tokio::select! {
        // First: a part that ends because it was asked to has not failed.
        biased;
        () = stop.cancelled() => None,
        ended = parts.join_next() => Some(match ended {
            Some(Ok(part)) => part.to_owned(),
            Some(Err(panicked)) => panicked.to_string(),
            None => "everything".to_owned(),
        }),
    };
    stop.cancel();
    let drained = async { while parts.join_next().await.is_some() {} };
    if tokio::time::timeout(STOP_LIMIT, drained).await.is_err() {
        warn!("not everything ended within {STOP_LIMIT:?}");
    }
    failed.map_or(Ok(()), |part| Err(PartFailed(part)))
}

/// Follows the election keys: the oldest one is the leader's.
async fn watch_leader(store: &Store, leader: &watch::Sender<Option<String>>, stop: CancellationToken) {
    let range = range_of(&store.keys.election());
    let mut cache: Cache<(Revision, String)> = Cache::new(&store.etcd, range, |kv| {
        (
            kv.create_revision,
            String::from_utf8_lossy(&kv.value).into_owned(),
        )
    });
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = cache.next(|_| {}) => {}
        }
        if cache.is_complete() {
            let oldest = cache
                .iter()
                .map(|(_, candidate)| candidate)
                .min_by_key(|(entered, _)| *entered);
            let name = oldest.map(|(_, name)| name.clone());
            leader.send_if_modified(|current| std::mem::replace(current, name.clone()) != name);
        }
    }
}

struct Candidate<M> {
    store: Store,
    settings: Settings,
    resources: Option<M>,
    events: Option<MakeEvents>,
    status: ReplicaStatus,
    releases: watch::Receiver<Option<Releases>>,
    stop: CancellationToken,
}

impl<R, M> Candidate<M>
where
    R: Reconcile + 'static,
    M: Fn(&Fence) -> R + Send + Sync + 'static,
{
    /// Stands for election while it is entitled to, until stopped.
    async fn stand(self, mut eligibility: Eligibility) {
        let mut delays = Delays::etcd();
        loop {
            tokio::select! {
                // First, so that nothing begins anew on the way out (INV-10).
                biased;
                () = self.stop.cancelled() => return,
                () = eligibility.granted() => {}
            }
            let began = Instant::now();
            // Ends the candidacy, and the term.
            let withdraw = self.stop.child_token();
            let ended = tokio::select! {
                ended = self.stand_once(&withdraw) => ended,
                never = async {
                    eligibility.revoked().await;
                    withdraw.cancel();
                    std::future::pending().await
                } => never,
            };
            match ended {
                Ok(term::End::Stopped) | Err(CampaignError::Withdrawn) => continue,
                Ok(term::End::Lost) => {}
                Err(error) => warn!("the candidacy ended, standing again: {error}"),
            }
            tokio::select! {
                () = self.stop.cancelled() => return,
                () = delays.rest_after(began.elapsed(), self.settings.lease_ttl) => {}
            }
        }
    }

    async fn stand_once(&self, withdraw: &CancellationToken) -> Result<term::End, CampaignError> {
        let Settings { node, lease_ttl, .. } = &self.settings;
        let pulse = &self.status.pulse;
        let etcd = &self.store.etcd;
        let election = self.store.keys.election();
        let leadership = campaign(etcd, &election, node.as_str(), *lease_ttl, pulse, withdraw).await?;
        let fence = leadership.fence().clone();
        let metrics = etcd.metrics();
        metrics.leader_transitions.inc();
        metrics.leader.set(1);
        self.status.leading.send_replace(Some(fence));
        // The margin of the TTL asked for: never more than that of the one granted.
        let margin = LeaseTimes::for_granted(*lease_ttl).map_or(Duration::from_secs(1), |times| times.margin);
        let end = term::run(leadership, margin, withdraw, |fence, tasks| {
            self.start_term(fence, tasks)
        })
        .await;
        metrics.leader.set(0);
        self.status.leading.send_replace(None);
        Ok(end)
    }

    fn start_term(&self, fence: &Fence, tasks: &mut JoinSet<()>) {
        // Without Kubernetes the gate has nothing to hold.
        if let Some(resources) = &self.resources {
            let controller = GateController {
                store: self.store.clone(),
                fence: fence.clone(),
                node: self.settings.node.to_string(),
                bundle: self.settings.bundle.clone(),
                releases: self.releases.clone(),
                resources: resources(fence),
                times: self.settings.times,
            };
            tasks.spawn(controller.run());
        }
        let notices = self.events.as_ref().map(|events| {
            let (sender, receiver) = mpsc::channel(deallocator::NOTICES);
            tasks.spawn(deallocator::publish(events(), fence.clone(), receiver));
            sender
        });
        let deallocator = Deallocator {
            store: self.store.clone(),
            fence: fence.clone(),
            notices: notices.clone(),
        };
        tasks.spawn(deallocator.run());
        let roles = RoleController {
            store: self.store.clone(),
            fence: fence.clone(),
            notices: notices.clone(),
            settings: self.settings.roles,
        };
        tasks.spawn(roles.run());
        let volumes = Volumes {
            store: self.store.clone(),
            fence: fence.clone(),
            times: self.settings.volumes,
            notices,
        };
        tasks.spawn(volumes.run());
    }
}
