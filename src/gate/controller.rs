//! The gate's controller: brings the status from election to DONE under one term, then keeps the resources reconciled.

use std::convert::Infallible;
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tracing::{info, warn};

use super::plan::{self, BundleVersions, Plan};
use super::releases::Releases;
use super::restriction::{Blocked, Restriction};
use super::status::{Status, StatusJson};
use super::status_key::{Known, StatusKey};
use crate::etcd::{Fence, Stop, Txn};
use crate::failpoint;
use crate::retry::Delays;
use crate::span;
use crate::store::Store;
use crate::summary::Latest;
use crate::term::NodeWrites;

/// Keeps the resources in place. The gate calls it only while it allows reconciling, inside the fence's window.
pub trait Reconcile: Send {
    /// Makes one pass over all resources.
    fn pass(&mut self, fence: &Fence) -> impl Future<Output = Result<(), PassFailed>> + Send;
    /// Resolves when a managed object changed.
    fn changed(&mut self) -> impl Future<Output = ()> + Send;
    /// Reports to operators, beside the log, what the gate waits for.
    fn announce_blocked(&mut self, fence: &Fence, message: &str) -> impl Future<Output = ()> + Send;
}

/// Why a pass over the resources failed, for people.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct PassFailed {
    /// One CamelCase word, shown in `degraded`.
    pub reason: &'static str,
    /// Which objects failed, and why.
    pub message: String,
}

/// The waits of the gate.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// Before the first pass over an existing status, for outstanding requests of the previous leader to arrive.
    pub settle: Duration,
    /// Between passes while nothing changes.
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

/// Failures of the first pass are logged after this: an API server that just starts is no news.
const LOG_AFTER: Duration = Duration::from_secs(2);
/// How often failures of the first pass are logged from then on.
const LOG_EVERY: Duration = Duration::from_secs(10);

/// The longest delay before the status is planned again. A status that stood for longer than this is planned again at
/// once when someone else changes it. For one that is changed again and again the delay grows up to this: short enough
/// that a mistaken write does not stand for long, long enough to be no load (INV-9).
const REPLAN_DELAY: Duration = Duration::from_secs(1);

/// The least time between passes that changes of managed objects trigger: many changes at once cost one pass.
const COALESCE: Duration = Duration::from_millis(100);

/// Holds the gate during one term.
pub struct GateController<R> {
    /// Where the status is stored.
    pub store: Store,
    /// The term.
    pub fence: Fence,
    /// Node id of this replica, shown in `status.json`.
    pub node: String,
    /// The versions of this replica's bundle.
    pub bundle: BundleVersions,
    /// The releases that run, from watch-nodes; `None` until its first list is complete.
    pub releases: watch::Receiver<Option<Releases>>,
    /// Held back while a restriction is attempted.
    pub node_writes: NodeWrites,
    /// Reconciles the resources.
    pub resources: R,
    /// The waits.
    pub times: Times,
    /// Gets what `status.json` says.
    pub summaries: Latest<StatusJson>,
}

impl<R: Reconcile> GateController<R> {
    /// Holds the gate until leadership is lost. Plans again whenever the status is not what the plan was made from.
    pub async fn run(mut self) {
        let _ends = self.summaries.ends();
        let settled = Instant::now() + self.times.settle;
        let mut preceded = None;
        let mut known = Known::default();
        let mut delays = Delays::new(REPLAN_DELAY / 10, REPLAN_DELAY);
        loop {
            let began = Instant::now();
            match StatusKey::read(&self.store, &self.fence, &self.node, &self.summaries, &mut known).await {
                Ok(mut key) => {
                    let Err(stop) = self.carry_out_plan(&mut key, settled, &mut preceded).await;
                    match stop {
                        Stop::LostLeadership => return,
                        Stop::Stale => {}
                        Stop::Unavailable(error) => {
                            warn!("writing the reconciler status failed, reading it again: {error}");
                        }
                    }
                    known = key.into_known();
                }
                Err(error) => warn!("cannot read the reconciler status, trying again: {error}"),
            }
            delays.rest_after(began.elapsed(), REPLAN_DELAY).await;
        }
    }

    /// From the stored status to DONE, then passes for ever. `known` says whether there was a leader before, once that is
    /// known; then the first pass is not before `settled`.
    async fn carry_out_plan(
        &mut self,
        key: &mut StatusKey,
        settled: Instant,
        known: &mut Option<bool>,
    ) -> Result<Infallible, Stop> {
        let preceded = match *known {
            Some(preceded) => preceded || key.exists(),
            None => key.is_preceded().await?,
        };
        *known = Some(preceded);
        let plan = plan::plan(key.status(), preceded, &self.bundle);
        info!(term = %self.fence.term(), "{plan}");
        failpoint::pause_at("gate.planned").await;
        if !matches!(plan, Plan::CreateAgain | Plan::Restrict(_)) {
            key.clear_blockers();
        }
        match &plan {
            Plan::Create | Plan::Leave => key.write_status_json().await?,
            Plan::Work(to) => {
                if key.status() == Some(to) {
                    key.write_status_json().await?;
                } else {
                    key.write(to, Txn::new()).await?;
                }
                failpoint::abort_at("gate.working");
            }
            Plan::CreateAgain => self.restrict(key, None).await?,
            Plan::Restrict(to) => {
                self.restrict(key, Some(to)).await?;
                failpoint::abort_at("gate.restricted");
            }
        }
        if preceded {
            // Kubernetes requests of the previous leader cannot be fenced. Most have arrived by then; later passes
            // correct what arrives after that. Counted from the beginning of the term: a status that is
            // rewritten again and again does not put the pass off.
            tokio::select! {
                () = tokio::time::sleep_until(settled.into()) => {}
                () = key.changed_by_others() => return Err(Stop::Stale),
            }
        }
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
        *known = Some(true);
        self.keep_reconciled(key).await
    }

    /// Writes the narrower status, if any, once no node is in the way. Meanwhile each change of what is in the way is announced:
    /// beside the waiting, which an API server that hangs must not hold up, and to its end, which no change of a node
    /// cuts short.
    async fn restrict(&mut self, key: &mut StatusKey, to: Option<&Status>) -> Result<(), Stop> {
        let blocked = Blocked::new(self.store.etcd.metrics(), key.blockers());
        let mut message = blocked.subscribe();
        let (resources, fence) = (&mut self.resources, &self.fence);
        let announcing = async {
            // Only the last of several messages that come up during an announcement is announced.
            while message.changed().await.is_ok() {
                let latest = message.borrow_and_update().clone();
                if let Some(latest) = latest {
                    resources.announce_blocked(fence, &latest).await;
                }
            }
        };
        let restriction = Restriction {
            key,
            to,
            etcd: &self.store.etcd,
            nodes: self.store.keys.nodes(),
            releases: &mut self.releases,
            bundle: &self.bundle,
            node_writes: &self.node_writes,
            blocked,
        };
        let step = span::step("gate", "restrict the status", "status");
        tokio::select! {
            restricted = span::within(step, restriction.write(), Stop::outcome) => restricted,
            // Never: the messages end with the restriction.
            () = announcing => Err(Stop::Stale),
        }
    }

    /// Makes passes until one succeeds.
    async fn reconcile_until_done(&mut self, key: &mut StatusKey) -> Result<(), Stop> {
        let mut delays = Delays::new(Duration::from_millis(100), self.times.pass_interval);
        let mut log_after = Instant::now() + LOG_AFTER;
        loop {
            let Err(failed) = self.pass(key).await? else {
                key.clear_degraded();
                return Ok(());
            };
            if Instant::now() >= log_after {
                log_after = Instant::now() + LOG_EVERY;
                warn!("the first reconciliation still fails: {failed}");
                key.set_degraded(failed.reason, &failed.message);
                key.write_status_json().await?;
            }
            let last_pass = Instant::now();
            tokio::select! {
                () = delays.wait() => {}
                () = self.change_of_resources(last_pass) => {}
                () = key.changed_by_others() => return Err(Stop::Stale),
            }
        }
    }

    /// Resolves when a managed object changed, and not sooner than [`COALESCE`] after the last pass.
    async fn change_of_resources(&mut self, last_pass: Instant) {
        self.resources.changed().await;
        tokio::time::sleep(COALESCE.saturating_sub(last_pass.elapsed())).await;
    }

    /// Makes a pass at every interval and after every change of a managed object.
    async fn keep_reconciled(&mut self, key: &mut StatusKey) -> Result<Infallible, Stop> {
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
                () = self.change_of_resources(last_pass) => {}
                () = key.changed_by_others() => return Err(Stop::Stale),
            }
            let passed = self.pass(key).await?;
            failing = passed.is_err();
            last_pass = Instant::now();
            match passed {
                Ok(()) => {
                    delays.reset();
                    if key.clear_degraded() {
                        info!("the resources are in place again");
                    }
                }
                Err(failed) => {
                    if key.set_degraded(failed.reason, &failed.message) {
                        warn!("a pass over the resources failed: {failed}");
                    }
                }
            }
            key.write_status_json().await?;
        }
    }

    /// Makes one pass; a change of the status by others cuts it short.
    async fn pass(&mut self, key: &mut StatusKey) -> Result<Result<(), PassFailed>, Stop> {
        let outcome = |passed: &Result<(), PassFailed>| match passed {
            Ok(()) => "OK",
            Err(failed) => failed.reason,
        };
        let pass = span::within(span::pass("resources"), self.resources.pass(&self.fence), outcome);
        tokio::select! {
            passed = pass => Ok(passed),
            () = key.changed_by_others() => Err(Stop::Stale),
        }
    }
}
