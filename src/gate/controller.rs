//! The gate's controller: from election to DONE and on, under one term.

use std::convert::Infallible;
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tracing::{info, warn};

use super::plan::{self, BundleVersions, Plan};
use super::releases::Releases;
use super::status::Status;
use super::status_key::{Interrupt, StatusKey};
use crate::etcd::{Fence, KeyRange, Txn};
use crate::failpoint;
use crate::metrics::Metrics;
use crate::retry::Delays;
use crate::store::Store;

/// Whoever keeps the resources in place. Called only while the gate allows it, inside the fence's window.
pub trait Reconcile: Send + Sync {
    /// One pass over everything.
    fn pass(&mut self, fence: &Fence) -> impl Future<Output = Result<(), PassFailed>> + Send;
    /// Resolves when something that is managed changed.
    fn changed(&mut self) -> impl Future<Output = ()> + Send;
    /// Tells operators, beside the log, what the gate waits for.
    fn announce_blocked(&mut self, fence: &Fence, message: &str) -> impl Future<Output = ()> + Send;
}

/// What kept a pass from succeeding, for people.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct PassFailed {
    /// One word.
    pub reason: &'static str,
    /// Which objects, and why.
    pub message: String,
}

/// The waits of the gate.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// Before reconciling over an existing status, for requests of the leader before to arrive.
    pub settle: Duration,
    /// Between passes when nothing changes.
    pub pass_interval: Duration,
}

impl Default for Times {
    fn default() -> Self {
        Self {
            settle: Duration::from_secs(5),
            pass_interval: Duration::from_secs(30),
        }
    }
}

/// Of failed passes before the first success: quiet while an apiserver starts, then now and then.
const QUIET: Duration = Duration::from_secs(2);
const LOG_EVERY: Duration = Duration::from_secs(10);

/// A status that stood for longer is planned anew at once when someone changes it. One that is changed again and again
/// is planned anew after a delay that grows up to this long: often enough that what a careless hand wrote does not stand
/// for long, seldom enough to be no load (INV-9).
const CALM: Duration = Duration::from_secs(1);

/// Between looks at the releases while the status cannot be restricted.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Between passes that changes of managed objects ask for: many changes at once cost one pass.
const COALESCE: Duration = Duration::from_millis(100);

/// What a leader needs to hold the gate.
pub struct GateController<R> {
    /// Where the status lies.
    pub store: Store,
    /// The term.
    pub fence: Fence,
    /// Node id, shown in `status.json`.
    pub node: String,
    /// What this replica runs.
    pub bundle: BundleVersions,
    /// From watch-nodes.
    pub releases: watch::Receiver<Option<Releases>>,
    /// Who reconciles.
    pub resources: R,
    /// The waits.
    pub times: Times,
}

impl<R: Reconcile> GateController<R> {
    /// Holds the gate until leadership is lost.
    pub async fn run(mut self) {
        let mut settled = false;
        let mut status_json = None;
        let mut delays = Delays::new(CALM / 10, CALM);
        loop {
            let began = Instant::now();
            match StatusKey::read(&self.store, &self.fence, &self.node, status_json.take()).await {
                Ok(mut key) => {
                    let Err(interrupt) = self.hold(&mut key, &mut settled).await;
                    if interrupt == Interrupt::LostLeadership {
                        return;
                    }
                    status_json = key.into_status_json();
                }
                Err(error) => warn!("cannot read the reconciler status, to be tried again: {error}"),
            }
            delays.rest_after(began.elapsed(), CALM).await;
        }
    }

    /// From the stored status to DONE, then passes for ever.
    async fn hold(&mut self, key: &mut StatusKey, settled: &mut bool) -> Result<Infallible, Interrupt> {
        let existed = key.exists();
        let plan = plan::plan(key.status(), &self.bundle);
        info!(term = %self.fence.term(), "{plan}");
        failpoint::pause_at("gate.planned").await;
        match &plan {
            Plan::Create | Plan::Leave => key.write_status_json().await?,
            Plan::Work(to) => {
                let already = key.status() == Some(to);
                if already {
                    key.write_status_json().await?
                } else {
                    key.write(to, Txn::new()).await?
                }
                failpoint::abort_at("gate.working");
            }
            Plan::Restrict(to) => {
                self.restrict(key, to).await?;
                failpoint::abort_at("gate.restricted");
            }
        }
        if existed && !*settled {
            // Kubernetes requests of the leader before cannot be fenced; most have arrived by then. The passes
            // afterwards mend what came later.
            tokio::select! {
                () = tokio::time::sleep(self.times.settle) => {}
                () = key.changed_by_others() => return Err(Interrupt::Replan),
            }
        }
        *settled = true;
        self.reconcile_until_done(key).await?;
        failpoint::pause_at("gate.reconciled").await;
        if plan == Plan::Leave {
            key.write_status_json().await?;
        } else {
            let done = self.bundle.final_status().replacing(key.status());
            key.write(&done, Txn::new()).await?;
            info!("reconciler status: {done}");
        }
        failpoint::abort_at("gate.done");
        self.keep_reconciled(key).await
    }

    /// Writes the narrower status, as soon as nobody is in the way of that. Until then Events say who is: beside the
    /// way on, which an apiserver that hangs must not hold up, and each to its end, which no change of a node cuts
    /// short.
    async fn restrict(&mut self, key: &mut StatusKey, to: &Status) -> Result<(), Interrupt> {
        let blocked = Blocked::new(self.store.etcd.metrics());
        let mut message = blocked.message.subscribe();
        let (resources, fence) = (&mut self.resources, &self.fence);
        let announcing = async {
            // Only the latest one, should several come up meanwhile. Never ends by itself: the other end is right here.
            while message.changed().await.is_ok() {
                let latest = message.borrow_and_update().clone();
                if let Some(latest) = latest {
                    resources.announce_blocked(fence, &latest).await;
                }
            }
        };
        let nodes = self.store.keys.nodes();
        let restricting = write_narrower(key, to, &nodes, &mut self.releases, &self.bundle, &blocked);
        tokio::select! {
            restricted = restricting => restricted,
            () = announcing => Err(Interrupt::Replan),
        }
    }

    async fn reconcile_until_done(&mut self, key: &mut StatusKey) -> Result<(), Interrupt> {
        let mut delays = Delays::new(Duration::from_millis(100), self.times.pass_interval);
        let mut log_after = Instant::now() + QUIET;
        loop {
            let passed = tokio::select! {
                passed = self.resources.pass(&self.fence) => passed,
                () = key.changed_by_others() => return Err(Interrupt::Replan),
            };
            let Err(failed) = passed else {
                key.mend();
                return Ok(());
            };
            if Instant::now() >= log_after {
                log_after = Instant::now() + LOG_EVERY;
                warn!("the first reconciliation still fails: {failed}");
                key.degrade(failed.reason, &failed.message);
                key.write_status_json().await?;
            }
            tokio::select! {
                () = delays.wait() => {}
                () = key.changed_by_others() => return Err(Interrupt::Replan),
            }
        }
    }

    async fn keep_reconciled(&mut self, key: &mut StatusKey) -> Result<Infallible, Interrupt> {
        // A pass that fails is repeated with growing delays, up to the interval (INV-9).
        let mut delays = Delays::new(Duration::from_millis(200), self.times.pass_interval);
        let mut failing = false;
        let mut last_pass = Instant::now();
        loop {
            let pause = if failing {
                delays.next_delay()
            } else {
                self.times.pass_interval
            };
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = async {
                    self.resources.changed().await;
                    tokio::time::sleep(COALESCE.saturating_sub(last_pass.elapsed())).await;
                } => {}
                () = key.changed_by_others() => return Err(Interrupt::Replan),
            }
            let passed = tokio::select! {
                passed = self.resources.pass(&self.fence) => passed,
                () = key.changed_by_others() => return Err(Interrupt::Replan),
            };
            failing = passed.is_err();
            last_pass = Instant::now();
            match passed {
                Ok(()) => {
                    delays.reset();
                    if key.mend() {
                        info!("the resources are in place again");
                    }
                }
                Err(failed) => {
                    if key.degrade(failed.reason, &failed.message) {
                        warn!("a pass over the resources failed: {failed}");
                    }
                }
            }
            key.write_status_json().await?;
        }
    }
}

/// Writes the narrower status, in a transaction that proves that no node changed since the releases were read (INV-4).
async fn write_narrower(
    key: &mut StatusKey,
    to: &Status,
    nodes: &KeyRange,
    releases: &mut watch::Receiver<Option<Releases>>,
    bundle: &BundleVersions,
    blocked: &Blocked,
) -> Result<(), Interrupt> {
    loop {
        let seen = releases.borrow_and_update().clone();
        let message = match seen.map(|seen| plan::may_restrict(&seen, bundle)) {
            Some(Ok(revision)) => {
                blocked.by(None);
                key.mend();
                failpoint::pause_at("gate.restricting").await;
                let proof = Txn::new().when_range_unwritten_since(nodes, revision);
                match key.write(to, proof).await {
                    Ok(()) => {
                        info!("reconciler status restricted: {to}");
                        return Ok(());
                    }
                    Err(Interrupt::LostLeadership) => return Err(Interrupt::LostLeadership),
                    // A node or the status changed in between; the watches say which.
                    Err(Interrupt::Replan) => {
                        info!("restricting the reconciler status was refused, looking at the nodes again");
                        None
                    }
                }
            }
            Some(Err(blockers)) => Some(blockers.to_string()),
            None => Some("waiting for the list of nodes".to_owned()),
        };
        if let Some(message) = message
            && blocked.by(Some(&message))
        {
            warn!("the reconciler status cannot be restricted yet: {message}");
            key.degrade("WaitingForNodes", &message);
            key.write_status_json().await?;
        }
        tokio::select! {
            changed = releases.changed() => {
                if changed.is_err() {
                    // watch-nodes ends only with the process.
                    return Err(Interrupt::LostLeadership);
                }
            }
            () = key.changed_by_others() => return Err(Interrupt::Replan),
            // A refused transaction whose cause a watch has brought before: look again anyway.
            () = tokio::time::sleep(LOOK_AGAIN) => {}
        }
    }
}

/// Who is in the way, for whoever tells of it; and the metric of the same name, cleared with the wait, also where the
/// end of the term cancels it.
struct Blocked {
    message: watch::Sender<Option<String>>,
    metrics: Metrics,
}

impl Blocked {
    fn new(metrics: &Metrics) -> Self {
        Self {
            message: watch::Sender::new(None),
            metrics: metrics.clone(),
        }
    }

    /// Whether that is news.
    fn by(&self, message: Option<&str>) -> bool {
        self.metrics.gate_blocked.set(message.is_some().into());
        self.message.send_if_modified(|before| {
            let news = before.as_deref() != message;
            *before = message.map(str::to_owned);
            news
        })
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        self.metrics.gate_blocked.set(0);
    }
}
