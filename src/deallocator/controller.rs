//! Observe, plan, act, under one term.

use std::time::Duration;

use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use tokio::sync::mpsc;
use tracing::{debug, info, warn};

use super::act::{Outcome, act};
use super::desk::Desk;
use super::index::Index;
use super::plan::{Step, plan};
use crate::etcd::Fence;
use crate::failpoint;
use crate::kube::events::{Events, Notice, Severity};
use crate::metrics::{Kind, Metrics};
use crate::store::{Follower, Store};

/// Transactions under way at once: enough to keep etcd busy over a network round trip, few enough that batches fill up
/// while they are.
const IN_FLIGHT: usize = 8;

/// Between two looks at how old the oldest mark is.
const GAUGE_EVERY: Duration = Duration::from_secs(1);

/// Notices that wait to be published. Each is in the log as well, so what comes on top is not missed.
pub const NOTICES: usize = 64;

/// Publishes notices as Kubernetes Events, one after the other and within the window of the term (INV-3). Never ends by
/// itself.
pub async fn publish(mut events: Events, fence: Fence, mut notices: mpsc::Receiver<Notice>) {
    while let Some(notice) = notices.recv().await {
        tokio::select! {
            biased;
            () = fence.window().closed() => break,
            () = events.publish(&notice) => {}
        }
    }
    std::future::pending().await
}

/// What a leader needs to deallocate.
pub struct Deallocator {
    /// Where the objects lie.
    pub store: Store,
    /// The term.
    pub fence: Fence,
    /// To whoever publishes Kubernetes Events. What it has no room for is only logged: nothing here waits for it.
    pub notices: Option<mpsc::Sender<Notice>>,
}

impl Deallocator {
    /// Deallocates until leadership is lost.
    pub async fn run(self) {
        let mut work = Work {
            index: Index::new(self.store.keys.clone()),
            desk: Desk::default(),
            under_way: FuturesUnordered::new(),
            gauges: Gauges(self.store.etcd.metrics().clone()),
            warned: 0,
            deallocator: &self,
        };
        let mut follower = Follower::new(&self.store.etcd, self.store.keys.in_use());
        let mut gauge = tokio::time::interval(GAUGE_EVERY);
        gauge.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
        loop {
            work.begin_what_can_be_done();
            tokio::select! {
                update = follower.next() => {
                    let before = work.index.is_complete();
                    work.index.take_in(update);
                    if work.index.is_complete() && !before {
                        failpoint::abort_at("deallocator.listed");
                        debug!(revision = %work.index.revision(), "everything is examined");
                    }
                    work.warn_of_unreadable();
                }
                Some((step, outcome)) = work.under_way.next() => {
                    if matches!(outcome, Outcome::LostLeadership) {
                        return;
                    }
                    work.finish(step, outcome);
                }
                () = work.desk.rested(&work.index) => {}
                _ = gauge.tick() => work.gauges.set_age(&work.index),
            }
            work.gauges.set_pending(&work.index);
        }
    }

    fn tell(&self, severity: Severity, reason: &'static str, note: String) {
        if let Some(notices) = &self.notices {
            // Full: the log has it.
            let _ = notices.try_send(Notice {
                severity,
                reason,
                action: "Deallocate",
                note,
            });
        }
    }
}

/// The state of one term.
struct Work<'d> {
    deallocator: &'d Deallocator,
    index: Index,
    desk: Desk,
    under_way: FuturesUnordered<BoxFuture<'d, (Step, Outcome)>>,
    gauges: Gauges,
    /// How many unreadable services were told last.
    warned: usize,
}

impl Work<'_> {
    fn begin_what_can_be_done(&mut self) {
        self.desk.forget_done(&self.index);
        while self.under_way.len() < IN_FLIGHT
            && let Some(step) = plan(&self.index, self.desk.busy())
        {
            debug!("{step}");
            self.desk.take(&step);
            let Deallocator { store, fence, .. } = self.deallocator;
            self.under_way.push(Box::pin(async move {
                let outcome = act(store, fence, &step).await;
                (step, outcome)
            }));
        }
    }

    fn finish(&mut self, step: Step, outcome: Outcome) {
        let metrics = &self.gauges.0;
        let count = |kind: &'static str, by: usize| {
            let deletions = metrics.deallocator_deletions.get_or_create(&Kind { kind });
            deletions.inc_by(by as u64);
        };
        match outcome {
            Outcome::Done {
                services,
                networks,
                orphaned,
            } => {
                count("service", services);
                count("network", networks);
                metrics.deallocator_orphaned_tasks.inc_by(orphaned as u64);
                let (verb, reason, severity) = match &step {
                    Step::Delete(_) => ("deleted", "Deallocated", Severity::Normal),
                    Step::Orphan(_) => ("orphaned", "TasksOrphaned", Severity::Warning),
                };
                info!("{verb}, as {step}");
                self.deallocator
                    .tell(severity, reason, format!("{verb}, as {step}"));
                self.desk.done(step);
            }
            Outcome::Refused => {
                metrics.deallocator_refused_transactions.inc();
                debug!("refused, to be decided anew ({step})");
                self.desk.refused(&step);
            }
            Outcome::Failed(error) => {
                warn!("failed, to be decided anew ({step}): {error}");
                self.desk.failed(&step, error.is_retryable());
            }
            // The caller ends then.
            Outcome::LostLeadership => {}
        }
    }

    fn warn_of_unreadable(&mut self) {
        let unreadable = self.index.unreadable_services();
        let (_, networks) = self.index.pending();
        if !self.index.is_complete() || unreadable == self.warned {
            return;
        }
        self.warned = unreadable;
        if unreadable > 0 {
            let (plural, they) = if unreadable == 1 {
                ("", "it")
            } else {
                ("s", "they")
            };
            let note = format!(
                "{unreadable} service{plural} cannot be read; {they} may use any network, so none that is marked for \
                 deletion goes ({networks} now): quorate get services shows which"
            );
            warn!("{note}");
            self.deallocator
                .tell(Severity::Warning, "ServicesUnreadable", note);
        }
    }
}

/// The gauges of this term; zero after it.
struct Gauges(Metrics);

impl Gauges {
    fn set_pending(&self, index: &Index) {
        if index.is_complete() {
            let (services, networks) = index.pending();
            for (kind, pending) in [("service", services), ("network", networks)] {
                let gauge = self.0.deallocator_pending.get_or_create(&Kind { kind });
                gauge.set(i64::try_from(pending).unwrap_or(i64::MAX));
            }
        }
    }

    fn set_age(&self, index: &Index) {
        let age = |mark| jiff::Timestamp::now().as_second().saturating_sub(mark).max(0);
        let oldest = index.oldest_mark().map_or(0, age);
        self.0.deallocator_oldest_pending_seconds.set(oldest);
    }
}

impl Drop for Gauges {
    fn drop(&mut self) {
        for kind in ["service", "network"] {
            self.0.deallocator_pending.get_or_create(&Kind { kind }).set(0);
        }
        self.0.deallocator_oldest_pending_seconds.set(0);
    }
}
