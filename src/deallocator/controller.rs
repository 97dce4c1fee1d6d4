//! Observes, plans and acts, under one term.

use std::collections::BTreeMap;
use std::time::Duration;

use tracing::{debug, info, warn};

use super::act::{End, Outcome, act, find_out};
use super::index::{Index, Item};
use super::plan::{Action, Summary, plan};
use super::summary::{DeletionsSummary, deletions};
use crate::etcd::{Fence, Stop};
use crate::failpoint;
use crate::kube::events::{Notice, Severity};
use crate::metrics::{Kind, Metrics};
use crate::span;
use crate::store::writer::{Writer, writer};
use crate::store::{Follower, Store, Update};
use crate::summary::{Latest, Summarizer};
use crate::term::{Acts, Notices, TermGauges, TermOver};

/// Actions under way at once: enough for eight full transactions, so that the writer always has the next one ready.
const UNDER_WAY: usize = 512;

/// How often the gauge of the oldest mark is set.
const GAUGE_EVERY: Duration = Duration::from_secs(1);

/// What a leader needs to deallocate.
pub struct Deallocator {
    /// Where the objects are stored.
    pub store: Store,
    /// The term.
    pub fence: Fence,
    /// Where deletions and hindrances are reported.
    pub notices: Notices,
    /// Gets what is marked, for people.
    pub summaries: Latest<DeletionsSummary>,
}

impl Deallocator {
    /// Deallocates until leadership is lost.
    pub async fn run(self) {
        let (writer, transactions) = writer(&self.store.etcd, &self.fence);
        let state = TermState {
            index: Index::new(self.store.keys.clone()),
            acts: Acts::default(),
            unknown: BTreeMap::new(),
            gauges: Gauges::new(self.store.etcd.metrics()),
            unreadable_reported: 0,
            summarizer: Summarizer::new(&self.summaries),
            writer,
            deallocator: &self,
        };
        tokio::select! {
            TermOver = state.run() => {}
            () = transactions => {}
        }
    }
}

/// The state of one term.
struct TermState<'d> {
    deallocator: &'d Deallocator,
    writer: Writer,
    index: Index,
    acts: Acts<'d, Item, Ended>,
    /// The last attempt at each object whose outcome is not known: it may be done without having been reported.
    unknown: BTreeMap<Item, Action>,
    gauges: Gauges,
    /// How many unreadable services were reported last.
    unreadable_reported: usize,
    summarizer: Summarizer<DeletionsSummary>,
}

type Ended = (Action, Outcome);

impl<'d> TermState<'d> {
    async fn run(mut self) -> TermOver {
        let Store { etcd, keys } = &self.deallocator.store;
        let mut follower = Follower::new(etcd, keys.deallocator_range());
        let mut gauge = tokio::time::interval(GAUGE_EVERY);
        gauge.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
        loop {
            self.begin();
            let is_complete = self.index.synced().is_complete();
            tokio::select! {
                update = follower.next() => self.take_in(update),
                ended = self.acts.next(|item| self.index.is_due(item)) => {
                    if let Err(over) = self.on_ended(ended) {
                        return over;
                    }
                }
                _ = gauge.tick() => self.gauges.set_age(&self.index),
                () = self.summarizer.due(), if is_complete => {
                    self.summarizer.publish(|| deletions(&self.index));
                }
            }
            self.gauges.set_pending(&self.index);
        }
    }

    /// Begins whatever can be done.
    fn begin(&mut self) {
        let synced = self.index.synced();
        self.acts.seen(|revision| synced.shows(revision));
        let is_held = |item: &Item| !self.acts.is_free(item);
        let room = UNDER_WAY.saturating_sub(self.acts.under_way());
        let actions = plan(&self.index, is_held, room);
        if !actions.is_empty() {
            debug!("deallocating {}", Summary(&actions));
        }
        for action in actions {
            let (store, writer) = (&self.deallocator.store, self.writer.clone());
            let (item, does) = (action.item(), action.word());
            let step = span::step("deallocator", does, &item);
            self.acts.begin(item, async move {
                let outcome = span::within(step, act(store, &writer, &action), Stop::outcome).await;
                (action, outcome)
            });
        }
        self.find_out_unknown();
    }

    /// Asks what became of attempts without an answer at what is no longer due: some may be done, and are reported then.
    fn find_out_unknown(&mut self) {
        if !self.index.synced().is_complete() {
            return;
        }
        let (index, acts) = (&self.index, &self.acts);
        let is_over = |item: &Item| !index.is_due(item) && acts.is_free(item);
        let over = self.unknown.iter().filter(|(item, _)| is_over(item));
        let over: Vec<(Item, Action)> = over
            .take(UNDER_WAY.saturating_sub(acts.under_way()))
            .map(|(item, action)| (item.clone(), action.clone()))
            .collect();
        for (item, action) in over {
            let store = &self.deallocator.store;
            self.acts.begin(item, async move {
                let outcome = find_out(store, &action).await;
                (action, outcome)
            });
        }
    }

    fn take_in(&mut self, update: Update) {
        let was_complete = self.index.synced().is_complete();
        self.index.take_in(update);
        self.summarizer.note_change();
        if self.index.synced().is_complete() && !was_complete {
            failpoint::abort_at("deallocator.listed");
            debug!(revision = %self.index.synced().revision(), "listed all services, networks, tasks and nodes");
        }
        self.warn_of_unreadable();
    }

    /// Takes in what became of actions. Those that shared a transaction are reported together.
    fn on_ended(&mut self, ended: Vec<(Item, Ended)>) -> Result<(), TermOver> {
        let (mut deleted, mut orphaned, mut failed) = (Vec::new(), Vec::new(), Vec::new());
        let (mut last_error, mut over) = (None, false);
        for (item, (action, outcome)) in ended {
            match &outcome {
                Ok(End::Done(_) | End::Undone(_)) => _ = self.unknown.remove(&item),
                Err(Stop::Unavailable(error)) if error.outcome_unknown() => {
                    self.unknown.insert(item.clone(), action.clone());
                }
                // What is no longer to do may have been done by an attempt before.
                Ok(End::Unneeded(_)) | Err(_) => {}
            }
            match &outcome {
                Ok(end) => self.acts.done(item, end.revision()),
                Err(stop) => self.acts.failed(item, stop.policy()),
            }
            match outcome {
                Ok(End::Unneeded(_) | End::Undone(_)) => debug!("no longer to do: {}", Summary(&[action])),
                Ok(End::Done(_)) if matches!(action, Action::Orphan(_)) => orphaned.push(action),
                Ok(End::Done(_)) => deleted.push(action),
                Err(Stop::Stale) => {
                    self.gauges.metrics.deallocator_refused_transactions.inc();
                    debug!("refused, as something changed meanwhile: {}", Summary(&[action]));
                }
                Err(Stop::Unavailable(error)) => {
                    failed.push(action);
                    last_error = Some(error);
                }
                Err(Stop::LostLeadership) => over = true,
            }
        }
        self.report_deleted(&deleted);
        self.report_orphaned(&orphaned);
        if let Some(error) = last_error {
            warn!("could not deallocate {}, retrying: {error}", Summary(&failed));
        }
        if over { Err(TermOver) } else { Ok(()) }
    }

    fn report_deleted(&self, deleted: &[Action]) {
        if deleted.is_empty() {
            return;
        }
        let (mut services, mut networks) = (0, 0);
        for action in deleted {
            match action {
                Action::DeleteService {
                    networks: with_it, ..
                } => {
                    services += 1;
                    networks += with_it.len();
                }
                Action::DeleteNetwork { .. } => networks += 1,
                Action::Orphan(_) => {}
            }
        }
        for (kind, count) in [("service", services), ("network", networks)] {
            let deletions = self
                .gauges
                .metrics
                .deallocator_deletions
                .get_or_create(&Kind { kind });
            deletions.inc_by(count as u64);
        }
        let note = format!("deleted {}", Summary(deleted));
        info!("{note}");
        self.notify(Severity::Normal, "Deallocated", note);
    }

    fn report_orphaned(&self, orphaned: &[Action]) {
        if orphaned.is_empty() {
            return;
        }
        self.gauges
            .metrics
            .deallocator_orphaned_tasks
            .inc_by(orphaned.len() as u64);
        let note = format!("orphaned {}", Summary(orphaned));
        info!("{note}");
        self.notify(Severity::Warning, "TasksOrphaned", note);
    }

    fn warn_of_unreadable(&mut self) {
        let unreadable = self.index.unreadable_services();
        let (_, networks) = self.index.pending();
        if !self.index.synced().is_complete() || unreadable == self.unreadable_reported {
            return;
        }
        self.unreadable_reported = unreadable;
        if unreadable > 0 {
            let (plural, they) = if unreadable == 1 {
                ("", "it")
            } else {
                ("s", "they")
            };
            let note = format!(
                "{unreadable} service{plural} cannot be read; {they} may use any network, so no network that is marked \
                 for deletion is deleted ({networks} now); quorate get services shows which"
            );
            warn!("{note}");
            self.notify(Severity::Warning, "ServicesUnreadable", note);
        }
    }

    fn notify(&self, severity: Severity, reason: &'static str, note: String) {
        self.deallocator.notices.send(Notice {
            severity,
            reason,
            action: "Deallocate",
            note,
        });
    }
}

/// The gauges of this term.
struct Gauges {
    metrics: Metrics,
    _end_with_the_term: TermGauges,
}

impl Gauges {
    fn new(metrics: &Metrics) -> Self {
        let pending = |kind| metrics.deallocator_pending.get_or_create(&Kind { kind }).clone();
        let oldest = metrics.deallocator_oldest_pending_seconds.clone();
        Self {
            _end_with_the_term: TermGauges::new([pending("service"), pending("network"), oldest]),
            metrics: metrics.clone(),
        }
    }

    fn set_pending(&self, index: &Index) {
        if index.synced().is_complete() {
            let (services, networks) = index.pending();
            for (kind, pending) in [("service", services), ("network", networks)] {
                let gauge = self.metrics.deallocator_pending.get_or_create(&Kind { kind });
                gauge.set(i64::try_from(pending).unwrap_or(i64::MAX));
            }
        }
    }

    fn set_age(&self, index: &Index) {
        let age = |mark| jiff::Timestamp::now().as_second().saturating_sub(mark).max(0);
        let oldest = index.oldest_mark().map_or(0, age);
        self.metrics.deallocator_oldest_pending_seconds.set(oldest);
    }
}
