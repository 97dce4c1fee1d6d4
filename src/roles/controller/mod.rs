//! Observe, plan, act, under one term.
//!
//! Two kinds of work run beside each other. Nodes without a member change their roles in batches ([`nodes`]). Membership
//! changes one step at a time: a [`look`] asks every member at once, the plan is asked with each answer that comes in,
//! and the first step that it allows is taken; then everything is looked at anew. Nothing is asked while nothing is
//! pending, but for a look now and then, so that the metrics say how the members fare.

mod act;
mod dial;
mod look;
mod nodes;
mod pace;
mod phase;
mod prepare;
mod report;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use jiff::Timestamp;
use tokio::sync::mpsc;
use tracing::{debug, warn};

use self::act::{Outcome, act};
use self::look::Look;
use self::nodes::{Ended, Transitions};
use self::pace::Pace;
use self::phase::{Ahead, Event, Phase};
use self::prepare::{points, prepare};
use self::report::Reporter;
use super::index::Index;
use super::plan::{Dial, Limits, Picture, Plan, Step, picture, plan};
use super::reason::Reason;
use crate::etcd::members::Listed;
use crate::etcd::{Fence, FencedError, MemberId, Revision, Txn};
use crate::failpoint;
use crate::kube::events::{Notice, Severity};
use crate::proto::Role;
use crate::store::{Follower, Store};

/// Waits and limits.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// What the plan goes by.
    pub limits: Limits,
    /// For a member to prove that it is healthy.
    pub member_timeout: Duration,
    /// For a peer URL to be reached.
    pub dial_timeout: Duration,
    /// The longest between two tries while something is pending.
    pub retry: Duration,
    /// Between looks while nothing is.
    pub resync: Duration,
    /// How long a learner may take to start and to catch up before that is called a hindrance.
    pub patience: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            limits: Limits::default(),
            member_timeout: Duration::from_secs(2),
            dial_timeout: Duration::from_secs(2),
            retry: Duration::from_secs(5),
            resync: Duration::from_secs(30),
            patience: Duration::from_secs(5),
        }
    }
}

/// Expired records of removed nodes in one transaction; each takes a compare and a write of the 128.
const EXPIRED: usize = 100;

/// What a leader needs to follow the desired roles.
pub struct RoleController {
    /// Where the objects lie.
    pub store: Store,
    /// The term.
    pub fence: Fence,
    /// To whoever publishes Kubernetes Events.
    pub notices: Option<mpsc::Sender<Notice>>,
    /// Waits and limits.
    pub settings: Settings,
}

impl RoleController {
    /// Follows the desired roles until leadership is lost.
    pub async fn run(self) {
        let mut follower = Follower::new(&self.store.etcd, self.store.keys.roles());
        let mut work = Work {
            index: Index::new(self.store.keys.clone()),
            transitions: Transitions::new(),
            reporter: Reporter::new(self.store.etcd.metrics().clone(), self.notices.clone()),
            phase: Phase::Idle,
            list: Vec::new(),
            wake: Some(Instant::now()),
            at_least: Revision::ABSENT,
            pace: Pace::new(self.settings.retry),
            dials: BTreeMap::new(),
            dialing: FuturesUnordered::new(),
            writing: FuturesUnordered::new(),
            expire_after: Instant::now(),
            unread_since: Some(Instant::now()),
            controller: &self,
        };
        loop {
            work.advance();
            let timer = work.timer();
            let end = tokio::select! {
                update = follower.next() => {
                    if work.index.take_in(update) {
                        work.changed();
                    }
                    None
                }
                ended = work.transitions.next() => work.ended(ended),
                event = work.phase.next() => work.came(event),
                Some((request, dial)) = work.dialing.next() => {
                    work.dials.insert(request, dial);
                    work.changed();
                    None
                }
                Some(written) = work.writing.next() => match written {
                    Err(FencedError::LostLeadership(_)) => Some(End),
                    // Whatever was to be written is compared with what is there at the next look.
                    _ => None,
                },
                () = sleep_until(timer) => None,
            };
            if end.is_some() {
                return;
            }
        }
    }
}

async fn sleep_until(instant: Option<Instant>) {
    match instant {
        Some(instant) => tokio::time::sleep_until(instant.into()).await,
        None => std::future::pending().await,
    }
}

/// The term is over.
struct End;

/// The state of one term.
struct Work<'c> {
    controller: &'c RoleController,
    index: Index,
    transitions: Transitions,
    reporter: Reporter,
    phase: Phase,
    /// Of the last look.
    list: Vec<Listed>,
    /// When to look next.
    wake: Option<Instant>,
    /// Of the last own write: until the index shows it, nothing is decided.
    at_least: Revision,
    pace: Pace,
    /// By the id of the request.
    dials: BTreeMap<String, Dial>,
    dialing: FuturesUnordered<BoxFuture<'static, (String, Dial)>>,
    /// Conditions and expired records: nothing else depends on them.
    writing: FuturesUnordered<BoxFuture<'static, Result<(), FencedError>>>,
    expire_after: Instant,
    /// The store has not been read since then, and nobody was told.
    unread_since: Option<Instant>,
}

impl Work<'_> {
    /// Something changed that membership depends on.
    fn changed(&mut self) {
        self.pace.try_again();
        if matches!(self.phase, Phase::Idle) {
            self.wake = Some(Instant::now());
        }
    }

    fn timer(&self) -> Option<Instant> {
        let wake = self
            .wake
            .filter(|_| matches!(self.phase, Phase::Idle) && self.index.is_complete());
        let expiry = self.index.next_expiry().map(|expiry| {
            let left = Duration::try_from(expiry.duration_since(Timestamp::now())).unwrap_or_default();
            (Instant::now() + left).max(self.expire_after)
        });
        let unread = self
            .unread_since
            .map(|since| since + self.controller.settings.patience);
        wake.into_iter().chain(expiry).chain(unread).min()
    }

    /// Begins whatever can be begun.
    fn advance(&mut self) {
        if !self.index.is_complete() {
            let limit = self.controller.settings.patience;
            if self.unread_since.is_some_and(|since| since.elapsed() >= limit) {
                self.unread_since = None;
                let range = self.controller.store.keys.prefix();
                let note = format!(
                    "nodes and members below {range} cannot be read, so no role changes and no member is removed: the \
                     log has what etcd says"
                );
                self.reporter.tell(Severity::Warning, "NodesUnreadable", note);
            }
            return;
        }
        let RoleController { store, fence, .. } = self.controller;
        self.unread_since = None;
        self.transitions.begin(&self.index, store, fence);
        self.expire();
        if matches!(self.phase, Phase::Idle) && self.wake.is_some_and(|wake| wake <= Instant::now()) {
            self.look();
        }
        self.decide();
    }

    fn look(&mut self) {
        let store = &self.controller.store;
        // Behind a proxy or a port forward the members' own addresses may lead nowhere: not without need.
        let managed = self.index.records().next().is_some() || self.index.joins().next().is_some();
        if !managed && !store.etcd.config().sync_endpoints {
            self.wake = None;
            return;
        }
        self.wake = None;
        self.phase = Phase::Looking {
            look: self.begin_look(None),
            complete: false,
        };
    }

    /// Asks everyone but those whose removal was decided on, and this one.
    fn begin_look(&self, except: Option<MemberId>) -> Look {
        let RoleController { store, settings, .. } = self.controller;
        let going = self.index.records();
        let going = going.filter(|(_, record, _)| record.member.removal.is_some());
        let not_asked = going.map(|(id, ..)| id).chain(except).collect();
        Look::begin(&store.etcd, settings.member_timeout, &self.list, not_asked)
    }

    /// Plans from what has come in so far, and takes the step that this allows, if any.
    fn decide(&mut self) {
        let Phase::Looking { look, complete } = &self.phase else {
            return;
        };
        let Some(list) = look.list() else { return };
        // What was written last is not seen yet: it would be decided on once more.
        if self.index.revision() < self.at_least {
            return;
        }
        let complete = *complete;
        self.list = list.to_vec();
        let mut seen = picture(&self.index, &self.list, &look.answers());
        seen.complete = complete;
        seen.resting = self.pace.resting();
        for asked in &mut seen.joins {
            let request = asked.join.request.as_ref();
            let dial = request.and_then(|request| self.dials.get(&request.id));
            asked.dial = dial.cloned().unwrap_or(Dial::Pending);
        }
        let now = Timestamp::now();
        let next = plan(&seen, now, &self.controller.settings.limits);
        self.dial(&next);
        match next.step {
            Some(step) => self.take(step, seen, now),
            None if complete => self.settle(&seen, &next, now),
            None => {}
        }
    }

    fn take(&mut self, step: Step, seen: Picture, now: Timestamp) {
        let RoleController { store, fence, .. } = self.controller;
        let Some(deed) = prepare(&step, &self.index, &self.list, &store.keys, fence.term(), now) else {
            self.pace.failed(
                &step,
                Reason::Pending,
                "it cannot be done any more".to_owned(),
                true,
            );
            self.finish_look();
            return;
        };
        debug!("{step}");
        let (store, fence) = (store.clone(), fence.clone());
        // The call that follows an intent is decided on from answers that were asked for no earlier than the intent.
        let ahead = match &step {
            Step::DecideRemoval(id, _) => Some(Some(*id)),
            Step::DecidePromotion(_) | Step::DecideAdd(_) => Some(None),
            _ => None,
        };
        let ahead = ahead.map(|except| Ahead {
            look: self.begin_look(except),
            complete: false,
            begun: Instant::now(),
        });
        let (before, after) = points(&step);
        let acting = async move {
            failpoint::hold(before).await;
            let outcome = act(&store, &fence, deed).await;
            failpoint::hit(after);
            outcome
        };
        self.phase = Phase::Acting {
            step,
            picture: Box::new(seen),
            acting: Box::pin(acting),
            ahead,
        };
    }

    /// Nothing can be done now: says why, and decides when to look again.
    fn settle(&mut self, seen: &Picture, next: &Plan, now: Timestamp) {
        let settings = &self.controller.settings;
        self.pace.blocked(&next.blocked);
        self.reporter.observe(&self.index, seen, &next.blocked);
        // A learner takes its time, and so may etcd; that is told once it takes long.
        let lasting: Vec<_> = next
            .blocked
            .iter()
            .filter(|blocked| match blocked.reason {
                Reason::Pending => false,
                // etcd refuses for 5 s what it takes then.
                Reason::LearnerNotStarted | Reason::LearnerNotInSync | Reason::EtcdRefused => {
                    self.pace.since(&blocked.subject) >= settings.patience
                }
                _ => true,
            })
            .cloned()
            .collect();
        self.reporter.tell_blocked(&lasting);
        if self.writing.is_empty() {
            let keys = &self.controller.store.keys;
            for txn in report::conditions(&self.index, keys, seen, &lasting, now) {
                self.write(txn);
            }
        }
        let next_look = self.pace.next_look().unwrap_or(settings.resync);
        self.wake = Some(Instant::now() + next_look.min(settings.resync));
        self.phase = Phase::Idle;
    }

    fn finish_look(&mut self) {
        self.phase = Phase::Idle;
        let delay = self.pace.next_look().unwrap_or_default();
        self.wake = Some(Instant::now() + delay);
    }

    fn came(&mut self, event: Event) -> Option<End> {
        match event {
            Event::Seen(Some(Ok(()))) => {}
            Event::Seen(Some(Err(error))) => {
                warn!("etcd's member list cannot be read, so nothing is decided about members: {error}");
                self.phase = Phase::Idle;
                self.wake = Some(Instant::now() + self.pace.unreadable());
            }
            Event::Seen(None) => {
                if let Phase::Looking { complete, .. } = &mut self.phase {
                    *complete = true;
                }
            }
            Event::Acted(outcome) => return self.acted(outcome),
        }
        None
    }

    fn acted(&mut self, outcome: Outcome) -> Option<End> {
        let phase = std::mem::replace(&mut self.phase, Phase::Idle);
        let Phase::Acting {
            step, picture, ahead, ..
        } = phase
        else {
            return None;
        };
        match outcome {
            Outcome::Done(revision) => {
                self.at_least = self.at_least.max(revision.unwrap_or_default());
                self.pace.done(&step.subject());
                self.reporter.taken(&step, &picture);
                // At once: what follows is decided on new answers. Those that came while an intent took long to be
                // written are not: who answered then may have died since.
                match ahead {
                    Some(Ahead {
                        look,
                        complete,
                        begun,
                    }) if begun.elapsed() < self.controller.settings.member_timeout => {
                        self.phase = Phase::Looking { look, complete };
                    }
                    _ => self.look(),
                }
            }
            Outcome::Refused => {
                debug!("refused, to be decided anew ({step})");
                let message = "something changed meanwhile".to_owned();
                self.pace.failed(&step, Reason::Pending, message, true);
                self.finish_look();
            }
            Outcome::Failed(reason, message) => {
                self.reporter.failed(&step, reason, &message);
                let soon = reason == Reason::LearnerNotInSync;
                self.pace.failed(&step, reason, message, soon);
                // Looked at again at once: it may have been done all the same, and other things can be.
                self.look();
            }
            Outcome::LostLeadership => return Some(End),
        }
        None
    }

    fn ended(&mut self, ended: Option<Ended>) -> Option<End> {
        match ended {
            None => {}
            Some(Ended::Made(batch)) => {
                let words = |role: Role| match role {
                    Role::Manager => "manager",
                    Role::Worker => "worker",
                    Role::Unspecified => "none",
                };
                let mut counts: BTreeMap<(&str, &str), Vec<&str>> = BTreeMap::new();
                for one in &batch {
                    let names = counts.entry((words(one.from), words(one.to))).or_default();
                    names.push(one.node.as_str());
                }
                for ((from, to), names) in counts {
                    self.reporter.count(from, to, "done", names.len());
                    let (shown, more) = names.split_at(names.len().min(3));
                    let more = match more.len() {
                        0 => String::new(),
                        more => format!(" and {more} more"),
                    };
                    let note = format!("{to} now: {}{more}", shown.join(", "));
                    self.reporter.tell(Severity::Normal, "RoleChanged", note);
                }
            }
            Some(Ended::NotMade(_, FencedError::LostLeadership(_))) => return Some(End),
            Some(Ended::NotMade(batch, error)) => {
                debug!("roles of {} nodes to be decided anew: {error}", batch.len());
            }
        }
        None
    }

    fn dial(&mut self, next: &Plan) {
        for node in &next.dial {
            let (join, _) = self.index.join(node);
            let Some(request) = join.and_then(|join| join.request.clone()) else {
                continue;
            };
            if self.dials.contains_key(&request.id) {
                continue;
            }
            // Of requests that are gone nothing is kept.
            let index = &self.index;
            self.dials.retain(|id, _| {
                let mut requests = index.joins().filter_map(|(_, join, _)| join.request.as_ref());
                requests.any(|request| request.id == *id)
            });
            self.dials.insert(request.id.clone(), Dial::Pending);
            let limit = self.controller.settings.dial_timeout;
            self.dialing.push(Box::pin(async move {
                (request.id, dial::dial(request.peer_urls, limit).await)
            }));
        }
    }

    fn write(&self, txn: Txn) {
        let RoleController { store, fence, .. } = self.controller;
        let (etcd, fence) = (store.etcd.clone(), fence.clone());
        self.writing
            .push(Box::pin(async move { etcd.fenced(&fence, txn).await.map(drop) }));
    }

    /// Deletes records of removed nodes that have expired.
    fn expire(&mut self) {
        if self.expire_after > Instant::now() || !self.writing.is_empty() {
            return;
        }
        let mut txn = Txn::new();
        for (uid, revision) in self.index.expired(Timestamp::now()).take(EXPIRED) {
            let key = self.controller.store.keys.removed(uid);
            txn = txn.when_unchanged(&key, revision).delete(&key);
        }
        if !txn.is_empty() {
            // Time for the watch to bring it; and nobody waits for it.
            self.expire_after = Instant::now() + Duration::from_millis(250);
            self.write(txn);
        }
    }
}
