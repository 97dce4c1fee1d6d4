//! Restricting the status to a narrower one: waits until no node is in the way, and names the nodes that are.

use std::time::Duration;

use tokio::sync::watch;
use tracing::{info, warn};

use super::plan::{self, BundleVersions};
use super::releases::{LastWrite, Releases};
use super::status::Status;
use super::status_key::StatusKey;
use crate::etcd::{Etcd, KeyRange, Stop, Txn};
use crate::failpoint;
use crate::metrics::Metrics;
use crate::mutation::{self, Guard};
use crate::retry::Delays;
use crate::term::{NodeWrites, TermGauges};

/// The longest wait for news, and about the longest delay after an attempt that was refused. A transaction can be refused for a
/// change that the watches brought before it was sent: then no news follows, and only the next attempt shows that nothing is
/// in the way any more.
const RETRY: Duration = Duration::from_secs(1);

/// The first delay after an attempt that was refused. Each attempt has etcd read all nodes, so the delays double up to
/// [`RETRY`] (INV-9).
const FIRST_DELAY: Duration = Duration::from_millis(50);

/// How an attempt to write the status ended.
enum Attempt {
    Written,
    /// A node or the status has changed: the watches bring it.
    Outrun,
    /// etcd did not take it, for a reason that no node is.
    Failed,
}

/// A restriction that is not written yet.
pub(super) struct Restriction<'a> {
    pub key: &'a mut StatusKey,
    /// The narrower status; `None` where the status is gone, which admits no release until it is created.
    pub to: Option<&'a Status>,
    pub etcd: &'a Etcd,
    /// All keys of nodes.
    pub nodes: KeyRange,
    /// The releases that run, from watch-nodes.
    pub releases: &'a mut watch::Receiver<Option<Releases>>,
    pub bundle: &'a BundleVersions,
    pub node_writes: &'a NodeWrites,
    pub blocked: Blocked,
}

impl Restriction<'_> {
    /// Writes the status once no node is in the way.
    pub async fn write(mut self) -> Result<(), Stop> {
        let mut delays = Delays::new(FIRST_DELAY, RETRY);
        let mut held = None;
        loop {
            match self.look() {
                Ok(last_write) => {
                    held.get_or_insert_with(|| self.node_writes.hold());
                    match self.try_write(last_write).await? {
                        Attempt::Written => return Ok(()),
                        Attempt::Outrun => {}
                        // It may take hours until etcd takes it.
                        Attempt::Failed => held = None,
                    }
                    self.rest(&mut delays).await?;
                }
                Err(blockers) => {
                    // It may take hours until nothing is in the way.
                    held = None;
                    delays.reset();
                    self.show(&blockers).await?;
                    self.wait_for_news(RETRY).await?;
                }
            }
        }
    }

    /// Waits after an attempt that was refused. The next one follows a write, if one comes soon: where nodes change all the
    /// time, no other moment is as far from the next change.
    async fn rest(&mut self, delays: &mut Delays) -> Result<(), Stop> {
        tokio::select! {
            () = delays.wait() => {}
            () = self.key.changed_by_others() => return Err(Stop::Stale),
        }
        self.releases.mark_unchanged();
        self.wait_for_news(FIRST_DELAY).await
    }

    /// The last write of a node at which no node was in the way, or which nodes are.
    fn look(&mut self) -> Result<Option<LastWrite>, String> {
        let releases = self.releases.borrow_and_update();
        let releases = releases.as_ref().ok_or("waiting for the list of nodes")?;
        if !mutation::without(Guard::Releases) {
            plan::may_restrict(releases, self.bundle).map_err(|blockers| blockers.to_string())?;
        }
        Ok(releases.last_write.clone())
    }

    /// Writes the status in a transaction that proves that no node was written since `last_write` (INV-4).
    async fn try_write(&mut self, last_write: Option<LastWrite>) -> Result<Attempt, Stop> {
        self.blocked.by(None);
        self.key.clear_blockers();
        if let Some(known) = &last_write
            && !are_known(self.etcd, &self.nodes, known).await
        {
            return Ok(Attempt::Outrun);
        }
        failpoint::pause_at("gate.restricting").await;
        let proof = match last_write {
            _ if mutation::without(Guard::Nodes) => Txn::new(),
            // The write itself, too: in a store that was restored, the same revision is that of another write.
            Some(LastWrite { key, revision, .. }) => Txn::new()
                .when_unchanged(&key, revision)
                .when_range_unwritten_since(&self.nodes, revision),
            None => Txn::new().when_range_empty(&self.nodes),
        };
        let written = match self.to {
            Some(to) => self.key.write(to, proof).await,
            None => self.key.prove(proof).await,
        };
        match written {
            Ok(()) => {
                match self.to {
                    Some(to) => info!("reconciler status restricted: {to}"),
                    None => info!("no node is excluded: reconciling without a status"),
                }
                Ok(Attempt::Written)
            }
            Err(Stop::LostLeadership) => Err(Stop::LostLeadership),
            Err(refused @ Stop::Stale) => {
                info!("restricting the reconciler status was refused, reading the nodes again: {refused}");
                Ok(Attempt::Outrun)
            }
            Err(failed @ Stop::Unavailable(_)) => {
                info!("restricting the reconciler status failed, trying again: {failed}");
                Ok(Attempt::Failed)
            }
        }
    }

    /// Shows what is in the way. Where that is no news, the status beside it may be: someone else may have changed it.
    async fn show(&mut self, blockers: &str) -> Result<(), Stop> {
        if self.blocked.by(Some(blockers)) {
            warn!("the reconciler status cannot be restricted yet: {blockers}");
            self.key.set_blockers(blockers);
        }
        self.key.write_status_json().await
    }

    /// Resolves when the releases changed, and after this time at the latest.
    async fn wait_for_news(&mut self, limit: Duration) -> Result<(), Stop> {
        tokio::select! {
            // watch-nodes ends only with the process.
            changed = self.releases.changed() => changed.map_err(|_| Stop::LostLeadership),
            () = self.key.changed_by_others() => Err(Stop::Stale),
            () = tokio::time::sleep(limit) => Ok(()),
        }
    }
}

/// Whether there are no more keys than `known` counts. A transaction cannot count, and a delete that a restore took back
/// leaves no write in the range. The read is also refused where the store went back.
async fn are_known(etcd: &Etcd, nodes: &KeyRange, known: &LastWrite) -> bool {
    match etcd.count(nodes).await {
        Ok((keys, _)) if keys <= known.keys => true,
        Ok((keys, _)) => {
            info!(
                "{keys} keys of nodes exist, and {} are known: reading the nodes again",
                known.keys
            );
            false
        }
        Err(error) => {
            info!("counting the nodes failed, trying again: {error}");
            false
        }
    }
}

/// What is in the way, for those who announce it, and the metric of the same name. Dropping it clears the metric, also
/// where the end of the term cancels the waiting.
pub(super) struct Blocked {
    message: watch::Sender<Option<String>>,
    metrics: Metrics,
    _ends_with_the_wait: TermGauges,
}

impl Blocked {
    /// Nothing is in the way yet but what an earlier plan of the term has found, which was announced then.
    pub fn new(metrics: &Metrics, announced: Option<&str>) -> Self {
        Self {
            message: watch::Sender::new(announced.map(str::to_owned)),
            metrics: metrics.clone(),
            _ends_with_the_wait: TermGauges::new([metrics.gate_blocked.clone()]),
        }
    }

    /// Follows the message.
    pub fn subscribe(&self) -> watch::Receiver<Option<String>> {
        self.message.subscribe()
    }

    /// Sets the message. Returns whether it is another than before.
    fn by(&self, message: Option<&str>) -> bool {
        self.metrics.gate_blocked.set(message.is_some().into());
        self.message.send_if_modified(|before| {
            let news = before.as_deref() != message;
            *before = message.map(str::to_owned);
            news
        })
    }
}
