//! The gate's controller: from election to DONE and on, under one term.

use std::time::{Duration, Instant};

use tokio::sync::watch;
use tracing::{info, warn};

use super::plan::{self, Own, Plan};
use super::releases::Releases;
use super::status::{Degraded, Legible, Status};
use crate::etcd::{Fence, FencedError, KeyRange, Revision, Txn, Watched, Watcher};
use crate::failpoint;
use crate::metrics::Metrics;
use crate::retry::Delays;
use crate::store::Store;
use crate::store::object::time;

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

/// A status that stood for this long is planned anew at once when someone changes it.
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
    pub own: Own,
    /// From watch-nodes.
    pub releases: watch::Receiver<Option<Releases>>,
    /// Who reconciles.
    pub resources: R,
    /// The waits.
    pub times: Times,
}

/// Why the controller looks at the status anew, or stops.
enum Interrupt {
    /// The status, or what it was decided on, is not what it was.
    Replan,
    /// The term is over.
    LostLeadership,
}

/// The status key as this controller knows it.
struct StatusKey {
    mod_revision: Revision,
    watcher: Watcher,
    /// What `status.json` says, as far as known.
    legible: Option<Legible>,
    degraded: Option<Degraded>,
    status: Option<Status>,
}

impl<R: Reconcile> GateController<R> {
    /// Holds the gate until leadership is lost.
    pub async fn run(mut self) {
        let mut settled = false;
        let mut legible = None;
        let mut delays = Delays::etcd();
        loop {
            let started = Instant::now();
            match self.read(legible.take()).await {
                Ok(mut key) => {
                    match self.hold(&mut key, &mut settled).await {
                        Interrupt::LostLeadership => return,
                        Interrupt::Replan => {}
                    }
                    legible = key.legible;
                }
                Err(error) => warn!("cannot read the reconciler status, to be tried again: {error}"),
            }
            // At once, unless someone keeps writing the status: that must not make this loop hot (INV-9).
            if started.elapsed() > CALM {
                delays.reset()
            } else {
                delays.wait().await
            }
        }
    }

    async fn read(&self, legible: Option<Legible>) -> Result<StatusKey, crate::etcd::Error> {
        let name = self.store.keys.status();
        let (stored, revision) = self.store.etcd.get(&name).await?;
        let mut watcher = Watcher::new(&self.store.etcd, KeyRange::key(name), revision.next());
        watcher.open().await;
        let status = stored.as_ref().and_then(|stored| {
            Status::decode(&stored.value)
                .inspect_err(|error| warn!("the stored status counts as none: {error}"))
                .ok()
        });
        let mod_revision = stored.map_or(Revision::ABSENT, |stored| stored.mod_revision);
        Ok(StatusKey {
            mod_revision,
            watcher,
            legible,
            degraded: None,
            status,
        })
    }

    /// From the stored status to DONE, then passes for ever.
    async fn hold(&mut self, key: &mut StatusKey, settled: &mut bool) -> Interrupt {
        match self.try_hold(key, settled).await {
            Err(interrupt) => interrupt,
            Ok(never) => match never {},
        }
    }

    async fn try_hold(
        &mut self,
        key: &mut StatusKey,
        settled: &mut bool,
    ) -> Result<std::convert::Infallible, Interrupt> {
        let existed = key.mod_revision > Revision::ABSENT;
        let plan = plan::plan(key.status.as_ref(), &self.own);
        info!(term = %self.fence.term(), "{plan}");
        failpoint::hit("gate.planned");
        match &plan {
            Plan::Create | Plan::Leave => self.write_legible(key).await?,
            Plan::Work(to) => {
                let already = key.status.as_ref() == Some(to);
                if already {
                    self.write_legible(key).await?
                } else {
                    self.write_status(key, to, Txn::new()).await?
                }
                failpoint::hit("gate.working");
            }
            Plan::Restrict(to) => {
                self.restrict(key, to).await?;
                failpoint::hit("gate.restricted");
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
        failpoint::hit("gate.reconciled");
        if plan == Plan::Leave {
            self.write_legible(key).await?;
        } else {
            let done = self.own.final_status().replacing(key.status.as_ref());
            self.write_status(key, &done, Txn::new()).await?;
            info!("reconciler status: {done}");
        }
        failpoint::hit("gate.done");
        self.keep_reconciled(key).await
    }

    /// Writes the narrower status, in a transaction that proves that no node changed since the releases were
    /// read (INV-4).
    async fn restrict(&mut self, key: &mut StatusKey, to: &Status) -> Result<(), Interrupt> {
        let nodes = self.store.keys.nodes();
        let blocked = Blocked(self.store.etcd.metrics().clone());
        let mut told = None;
        // Not done with until it is published: a change of any node cuts the waits below short.
        let mut announce = None;
        loop {
            let releases = self.releases.borrow_and_update().clone();
            let blocked_by = match releases
                .as_ref()
                .map(|releases| plan::may_restrict(releases, &self.own))
            {
                Some(Ok(revision)) => {
                    blocked.set(false);
                    key.degraded = None;
                    (told, announce) = (None, None);
                    failpoint::hit("gate.restricting");
                    let proof = Txn::new().when_range_unwritten_since(&nodes, revision);
                    match self.write_status(key, to, proof).await {
                        Ok(()) => {
                            info!("reconciler status restricted: {to}");
                            return Ok(());
                        }
                        Err(Interrupt::LostLeadership) => return Err(Interrupt::LostLeadership),
                        // A node or the status changed in between; the watches say which.
                        Err(Interrupt::Replan) => {
                            info!(
                                "restricting the reconciler status was refused, looking at the nodes again"
                            );
                            None
                        }
                    }
                }
                Some(Err(blockers)) => Some(blockers.to_string()),
                None => Some("waiting for the list of nodes".to_owned()),
            };
            if let Some(message) = blocked_by
                && told.as_ref() != Some(&message)
            {
                warn!("the reconciler status cannot be restricted yet: {message}");
                blocked.set(true);
                key.degraded = degraded(key.degraded.take(), "WaitingForNodes", &message);
                self.write_legible(key).await?;
                announce = Some(message.clone());
                told = Some(message);
            }
            let (resources, announce) = (&mut self.resources, &mut announce);
            let look_again = async {
                // Beside the other waits: an apiserver that hangs must not hold up the way on.
                if let Some(message) = announce.as_ref() {
                    resources.announce_blocked(&self.fence, message).await;
                    *announce = None;
                }
                // A refused transaction whose cause a watch has brought before: look again anyway.
                tokio::time::sleep(LOOK_AGAIN).await;
            };
            tokio::select! {
                changed = self.releases.changed() => {
                    if changed.is_err() {
                        // watch-nodes ends only with the process.
                        return Err(Interrupt::LostLeadership);
                    }
                }
                () = key.changed_by_others() => return Err(Interrupt::Replan),
                () = look_again => {}
            }
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
                key.degraded = None;
                return Ok(());
            };
            if Instant::now() >= log_after {
                log_after = Instant::now() + LOG_EVERY;
                warn!("the first reconciliation still fails: {failed}");
                key.degraded = degraded(key.degraded.take(), failed.reason, &failed.message);
                self.write_legible(key).await?;
            }
            tokio::select! {
                () = delays.wait() => {}
                () = key.changed_by_others() => return Err(Interrupt::Replan),
            }
        }
    }

    async fn keep_reconciled(&mut self, key: &mut StatusKey) -> Result<std::convert::Infallible, Interrupt> {
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
                    if key.degraded.take().is_some() {
                        info!("the resources are in place again");
                    }
                }
                Err(failed) => {
                    if key.degraded.as_ref().map(|degraded| &degraded.message) != Some(&failed.message) {
                        warn!("a pass over the resources failed: {failed}");
                    }
                    key.degraded = degraded(key.degraded.take(), failed.reason, &failed.message);
                }
            }
            self.write_legible(key).await?;
        }
    }

    /// Writes the status and its legible twin, on top of `proof`, if the status is still the one that was read.
    async fn write_status(&self, key: &mut StatusKey, to: &Status, proof: Txn) -> Result<(), Interrupt> {
        let name = self.store.keys.status();
        let legible = self.legible(Some(to), key);
        let txn = proof
            .when_unchanged(&name, key.mod_revision)
            .put(&name, to.encode())
            .put(&self.store.keys.status_json(), legible.to_json());
        let revision = self.commit(txn).await?;
        key.mod_revision = revision;
        key.status = Some(to.clone());
        key.legible = Some(legible);
        Ok(())
    }

    /// Writes `status.json` alone, if it would change.
    async fn write_legible(&self, key: &mut StatusKey) -> Result<(), Interrupt> {
        let legible = self.legible(key.status.as_ref(), key);
        if key.legible.as_ref() == Some(&legible) {
            return Ok(());
        }
        self.commit(Txn::new().put(&self.store.keys.status_json(), legible.to_json()))
            .await?;
        key.legible = Some(legible);
        Ok(())
    }

    fn legible(&self, status: Option<&Status>, key: &StatusKey) -> Legible {
        Legible::new(status, &self.node, self.fence.term(), key.degraded.clone())
    }

    async fn commit(&self, txn: Txn) -> Result<Revision, Interrupt> {
        match self.store.etcd.fenced(&self.fence, txn).await {
            Ok(committed) => Ok(committed.revision),
            Err(FencedError::LostLeadership(_)) => Err(Interrupt::LostLeadership),
            Err(FencedError::Conflict) => Err(Interrupt::Replan),
            Err(error @ (FencedError::Unknown(_) | FencedError::Failed(_))) => {
                warn!("writing the reconciler status failed, reading it again: {error}");
                Err(Interrupt::Replan)
            }
        }
    }
}

/// The metric of the same name. Cleared with the wait, also where the end of the term cancels it.
struct Blocked(Metrics);

impl Blocked {
    fn set(&self, blocked: bool) {
        self.0.gate_blocked.set(blocked.into());
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        self.set(false);
    }
}

impl StatusKey {
    /// Resolves when someone else wrote or deleted the status. Safe to cancel.
    async fn changed_by_others(&mut self) {
        loop {
            match self.watcher.next().await {
                Watched::Compacted => return,
                Watched::Events(events) => {
                    // Up to the own last write everything is known: each of them was conditional.
                    if events.iter().any(|event| event.revision() > self.mod_revision) {
                        warn!("someone else changed the reconciler status: planning anew");
                        return;
                    }
                }
            }
        }
    }
}

/// What is wrong now, and since when: an ongoing trouble keeps its beginning.
fn degraded(before: Option<Degraded>, reason: &str, message: &str) -> Option<Degraded> {
    let since = before.map_or_else(|| time::rfc3339(jiff::Timestamp::now()), |before| before.since);
    Some(Degraded {
        reason: reason.to_owned(),
        message: message.to_owned(),
        since,
    })
}
