//! One replica: the task tree of `quorate run`, which ARCHITECTURE.md draws.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::FutureExt as _;
use futures::future::BoxFuture;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::causes;
use crate::control::ControlPort;
use crate::deallocator::controller::Deallocator;
use crate::etcd::election::{CampaignError, campaign, observe};
use crate::etcd::{Fence, LeaseTimes, Pulse};
use crate::gate::Requirements;
use crate::gate::controller::{GateController, Reconcile, Times};
use crate::gate::plan::BundleVersions;
use crate::gate::registration::{Registered, Registrant, keep_registered};
use crate::gate::releases::Releases;
use crate::gate::watch_nodes::watch_nodes;
use crate::identity::controller::{self as identity, Certifier};
use crate::kube::events::Events;
use crate::retry::Delays;
use crate::roles::controller::{self as roles, RoleController};
use crate::secrets::{Keeper, Reader};
use crate::span;
use crate::store::{Name, Store};
use crate::term::{self, LeaderNotices, NodeWrites, Notices};
use crate::volumes::controller::{self as volumes, VolumeController};

mod eligibility;
mod log_levels;
mod newer;
mod rights;
mod status;
mod summaries;
mod trial;

use eligibility::Eligibility;
pub use log_levels::{Level, LogLevels, NoLevel, is_module, read as read_log_level};
pub use rights::INTERVAL as RIGHTS_INTERVAL;
use rights::Rights;
pub use status::ReplicaStatus;
pub use summaries::Summaries;
pub use trial::first_trial;

/// How long all parts together may take to end after a stop. What is left then ends with the process.
const STOP_LIMIT: Duration = Duration::from_millis(2500);

/// The settings of a replica.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Its node id, unique among the replicas.
    pub node: Name,
    /// The versions of its bundle.
    pub bundle: BundleVersions,
    /// TTL of the election's and the registration's lease.
    pub lease_ttl: Duration,
    /// How long a newer candidate must have stood for election before this replica yields to it. See [`first_trial`].
    pub trial: Duration,
    /// How often a leader that is refused nothing asks whether etcd accepts its writes.
    pub rights_interval: Duration,
    /// The waits of the gate.
    pub times: Times,
    /// The waits and limits of node roles.
    pub roles: roles::Settings,
    /// The waits of the volumes.
    pub volumes: volumes::Times,
    /// How nodes get certificates; `None` if they get none.
    pub certificates: Option<identity::Settings>,
    /// The keys of Secrets, and where Kubernetes has their values.
    pub secrets: Reader,
    /// The address of its status page, which it registers; `None` without one.
    pub page: Option<String>,
}

/// A part of the replica ended, which none should before the stop.
#[derive(Debug, thiserror::Error)]
#[error("{0} ended unexpectedly")]
pub struct PartFailed(String);

/// Makes the publisher of Kubernetes Events of one term.
pub type MakeEvents = Box<dyn Fn() -> Events + Send + Sync>;

/// Runs a replica until stopped. `resources` makes the reconciler of one term; without Kubernetes it is `None`, and no
/// status is written or waited for. Agents call at the control port, if there is one.
///
/// # Errors
/// [`PartFailed`] if a task panicked; everything else is retried inside.
pub async fn run<R, M>(
    store: Store,
    settings: Settings,
    resources: Option<M>,
    events: Option<MakeEvents>,
    control: Option<ControlPort>,
    status: ReplicaStatus,
    stop: CancellationToken,
) -> Result<(), PartFailed>
where
    R: Reconcile + 'static,
    M: Fn(Notices) -> R + Send + Sync + 'static,
{
    let (registering, registered) = watch::channel(None);
    let (publishing, releases) = watch::channel(None);
    let notices = LeaderNotices::default();
    // Another run with the same status is on the same connection.
    let _ = status.etcd.set(store.etcd.clone());
    let control = match control {
        Some(port) => {
            let (nodes, secrets) = (status.summaries.nodes.clone(), settings.secrets.clone());
            port.serve(store.clone(), secrets, notices.clone(), nodes, stop.clone())
                .boxed()
        }
        None => stop.clone().cancelled_owned().boxed(),
    };
    let replica = Arc::new(Replica {
        store,
        settings,
        resources,
        events,
        notices,
        status,
        registered,
        releases,
        stop: stop.clone(),
    });
    let part = || Arc::clone(&replica);
    let parts = [
        ("pulse", part().beat().boxed()),
        ("endpoints", part().follow_endpoints().boxed()),
        ("quorum", part().follow_quorum().boxed()),
        ("registration", part().keep_registered(registering).boxed()),
        ("watch-nodes", part().watch_nodes(publishing).boxed()),
        ("watch-leader", part().watch_leader().boxed()),
        ("watch-newer", part().watch_newer().boxed()),
        ("readiness", part().keep_readiness().boxed()),
        ("log-levels", part().follow_log_levels().boxed()),
        ("control", control),
        ("campaign", part().campaign().boxed()),
    ];
    run_parts(parts, &stop).await
}

/// Runs the parts until `stop`, or until one of them ends; then stops all of them.
async fn run_parts<const N: usize>(
    parts: [(&'static str, BoxFuture<'static, ()>); N],
    stop: &CancellationToken,
) -> Result<(), PartFailed> {
    let mut running = JoinSet::new();
    for (name, part) in parts {
        running.spawn(part.map(move |()| name));
    }
    let failed = tokio::select! {
        // First: a part that ends because of the stop has not failed.
        biased;
        () = stop.cancelled() => None,
        ended = running.join_next() => Some(match ended {
            Some(Ok(part)) => part.to_owned(),
            Some(Err(panicked)) => panicked.to_string(),
            None => "everything".to_owned(),
        }),
    };
    stop.cancel();
    let drained = async { while running.join_next().await.is_some() {} };
    if tokio::time::timeout(STOP_LIMIT, drained).await.is_err() {
        warn!("not everything ended within {STOP_LIMIT:?}");
    }
    failed.map_or(Ok(()), |part| Err(PartFailed(part)))
}

/// What the parts share.
struct Replica<M> {
    store: Store,
    settings: Settings,
    resources: Option<M>,
    events: Option<MakeEvents>,
    /// Of the control port, which outlives terms.
    notices: LeaderNotices,
    status: ReplicaStatus,
    /// The registration of this process, while it stands.
    registered: watch::Receiver<Option<Registered>>,
    /// The releases that run; `None` until the first list is complete.
    releases: watch::Receiver<Option<Releases>>,
    stop: CancellationToken,
}

impl<R, M> Replica<M>
where
    R: Reconcile + 'static,
    M: Fn(Notices) -> R + Send + Sync + 'static,
{
    /// Beats the pulse, and keeps the metric of the lease current.
    async fn beat(self: Arc<Self>) {
        let metrics = self.store.etcd.metrics();
        while !self.stop.is_cancelled() {
            self.status.pulse.beat();
            let margin = self.status.lease_margin();
            metrics.lease_margin_seconds.set(margin.as_secs_f64());
            tokio::select! {
                () = self.stop.cancelled() => {}
                () = tokio::time::sleep(Pulse::INTERVAL) => {}
            }
        }
    }

    async fn follow_endpoints(self: Arc<Self>) {
        self.store.etcd.follow_endpoints(self.stop.clone()).await;
    }

    async fn follow_quorum(self: Arc<Self>) {
        tokio::select! {
            () = self.stop.cancelled() => {}
            () = self.store.etcd.follow_quorum() => {}
        }
    }

    async fn keep_registered(self: Arc<Self>, registered: watch::Sender<Option<Registered>>) {
        let registrant = Registrant {
            node: self.settings.node.clone(),
            version: self.settings.bundle.version.clone(),
            process: uuid::Uuid::new_v4().to_string(),
            ttl: self.settings.lease_ttl,
            page: self.settings.page.clone().unwrap_or_default(),
        };
        let pulse = &self.status.pulse;
        keep_registered(&self.store, &registrant, pulse, &registered, self.stop.clone()).await;
    }

    async fn watch_nodes(self: Arc<Self>, releases: watch::Sender<Option<Releases>>) {
        let summaries = &self.status.summaries.releases;
        let bundle = &self.settings.bundle;
        watch_nodes(&self.store, bundle, releases, summaries, self.stop.clone()).await;
    }

    /// Follows who leads.
    async fn watch_leader(self: Arc<Self>) {
        let election = self.store.keys.election();
        let leader = &self.status.leader;
        tokio::select! {
            () = self.stop.cancelled() => {}
            () = observe(&self.store.etcd, &election, |found| { leader.send_replace(found); }) => {}
        }
    }

    /// Follows whether a replica with a newer release stands for election.
    async fn watch_newer(self: Arc<Self>) {
        tokio::select! {
            () = self.stop.cancelled() => {}
            () = newer::follow(&self.store, self.releases.clone(), self.settings.trial, &self.status.newer) => {}
        }
    }

    /// Follows which levels of the log operators have set.
    async fn follow_log_levels(self: Arc<Self>) {
        tokio::select! {
            () = self.stop.cancelled() => {}
            () = log_levels::follow(&self.store, &self.status.log_levels) => {}
        }
    }

    fn rights(&self) -> Rights {
        Rights {
            store: self.store.clone(),
            refusal: self.status.refusal.clone(),
            interval: self.settings.rights_interval,
        }
    }

    async fn keep_readiness(self: Arc<Self>) {
        // Without Kubernetes no status is written that could be required.
        let requirements = self.resources.is_some().then_some(Requirements {
            release: self.settings.bundle.version.release,
            min_reconciler: self.settings.bundle.min_reconciler,
        });
        let (registered, stop) = (self.registered.clone(), self.stop.clone());
        let readiness = &self.status.readiness;
        readiness.keep(&self.store, requirements, registered, stop).await;
    }

    /// Stands for election while this replica is eligible, until stopped.
    async fn campaign(self: Arc<Self>) {
        let mut eligibility = Eligibility {
            registered: self.registered.clone(),
            newer: self.status.newer.subscribe(),
        };
        let rights = self.rights();
        let mut delays = Delays::etcd();
        loop {
            tokio::select! {
                // First, so that no candidacy begins after the stop (INV-10).
                biased;
                () = self.stop.cancelled() => return,
                () = may_stand(&mut eligibility, &rights) => {}
            }
            let began = Instant::now();
            // Ends the candidacy, and the term.
            let withdraw = self.stop.child_token();
            let ended = tokio::select! {
                ended = self.stand(&withdraw) => ended,
                never = async {
                    eligibility.revoked().await;
                    withdraw.cancel();
                    std::future::pending().await
                } => never,
            };
            match ended {
                Ok(term::End::Stopped) | Err(CampaignError::Withdrawn) => continue,
                Ok(term::End::Lost) => {}
                Err(error) => warn!("the candidacy ended, standing again: {}", causes::chain(&error)),
            }
            tokio::select! {
                () = self.stop.cancelled() => return,
                () = delays.rest_after(began.elapsed(), self.settings.lease_ttl) => {}
            }
        }
    }

    /// Stands for election once, and leads if elected.
    async fn stand(&self, withdraw: &CancellationToken) -> Result<term::End, CampaignError> {
        let Settings { node, lease_ttl, .. } = &self.settings;
        let pulse = &self.status.pulse;
        let etcd = &self.store.etcd;
        let election = self.store.keys.election();
        let leadership = campaign(etcd, &election, node.as_str(), *lease_ttl, pulse, withdraw).await?;
        etcd.metrics().leader_transitions.inc();
        let fence = leadership.fence().clone();
        self.status.leading.send_replace(Some(fence));
        // The margin of the requested TTL: never more than that of the granted one.
        let margin = LeaseTimes::for_granted(*lease_ttl).map_or(Duration::from_secs(1), |times| times.margin);
        let end = term::run(leadership, margin, withdraw, |fence, tasks| {
            self.start_term(fence, tasks)
        })
        .await;
        self.status.leading.send_replace(None);
        Ok(end)
    }

    /// Starts the tasks of a term.
    fn start_term(&self, fence: &Fence, tasks: &mut JoinSet<()>) {
        let term = fence.term().0;
        let mut notices = Notices::default();
        if let Some(events) = &self.events {
            let publishing;
            (notices, publishing) = Notices::publishing(events(), fence.clone());
            tasks.spawn(span::in_term(term, publishing));
        }
        self.notices.term_began(notices.clone());
        let node_writes = NodeWrites::default();
        let summaries = &self.status.summaries;
        // Without Kubernetes there is nothing for the gate to hold back.
        if let Some(resources) = &self.resources {
            let controller = GateController {
                store: self.store.clone(),
                fence: fence.clone(),
                node: self.settings.node.to_string(),
                bundle: self.settings.bundle.clone(),
                releases: self.releases.clone(),
                node_writes: node_writes.clone(),
                resources: resources(notices.clone()),
                times: self.settings.times,
                summaries: summaries.gate.clone(),
            };
            tasks.spawn(span::in_term(term, controller.run()));
        }
        let deallocator = Deallocator {
            store: self.store.clone(),
            fence: fence.clone(),
            notices: notices.clone(),
            summaries: summaries.deletions.clone(),
        };
        tasks.spawn(span::in_term(term, deallocator.run()));
        let roles = RoleController {
            store: self.store.clone(),
            fence: fence.clone(),
            notices: notices.clone(),
            node_writes,
            settings: self.settings.roles,
            summaries: summaries.roles.clone(),
        };
        tasks.spawn(span::in_term(term, roles.run()));
        let volumes = VolumeController {
            store: self.store.clone(),
            fence: fence.clone(),
            times: self.settings.volumes,
            secrets: self.settings.secrets.clone(),
            notices: notices.clone(),
            summaries: summaries.volumes.clone(),
        };
        tasks.spawn(span::in_term(term, volumes.run()));
        let secrets = Keeper {
            store: self.store.clone(),
            fence: fence.clone(),
            keyring: Arc::clone(&self.settings.secrets.keyring),
            notices: notices.clone(),
        };
        tasks.spawn(span::in_term(term, secrets.run()));
        if let Some(settings) = &self.settings.certificates {
            let certifier = Certifier {
                store: self.store.clone(),
                fence: fence.clone(),
                notices,
                settings: settings.clone(),
            };
            tasks.spawn(span::in_term(term, certifier.run()));
        }
        // Ends the term, as the end of any of its tasks does.
        let rights = self.rights();
        tasks.spawn(async move { rights.revoked().await });
    }
}

/// After this long a replica that is about to stand asks again whether etcd accepts its writes.
const RECENT: Duration = Duration::from_secs(1);

/// Resolves once this replica is eligible and etcd accepts its writes. The one may be lost while the other is awaited.
async fn may_stand(eligibility: &mut Eligibility, rights: &Rights) {
    loop {
        // At the same time: a replica that etcd refuses cannot register either, and shows why. What is shown stays current while
        // a newer replica stands.
        let asked = Instant::now();
        tokio::join!(eligibility.granted(), rights.granted());
        if asked.elapsed() > RECENT {
            rights.granted().await;
        }
        if eligibility.is_granted() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::ready;

    use super::*;

    async fn ended(part: BoxFuture<'static, ()>, stop: &CancellationToken) -> Result<(), String> {
        let parts = [("other", stop.clone().cancelled_owned().boxed()), ("part", part)];
        run_parts(parts, stop).await.map_err(|error| error.to_string())
    }

    #[tokio::test]
    async fn a_part_that_ends_before_the_stop_fails_the_replica_and_stops_the_others() {
        let stop = CancellationToken::new();
        let failed = ended(ready(()).boxed(), &stop).await;
        assert_eq!(failed, Err("part ended unexpectedly".to_owned()));
        assert!(stop.is_cancelled());
    }

    #[tokio::test]
    async fn a_part_that_panics_fails_the_replica() {
        let stop = CancellationToken::new();
        let failed = ended(async { panic!("on purpose") }.boxed(), &stop).await;
        assert!(failed.unwrap_err().contains("panicked"));
    }
}
