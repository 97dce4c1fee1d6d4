//! The state of one term, and what follows from everything that happens in it.

use std::time::Instant;

use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use jiff::Timestamp;
use tracing::{debug, warn};

use super::RoleController;
use super::act::{Outcome, act};
use super::dial::Dials;
use super::look::Look;
use super::nodes::{Ended, Transitions};
use super::pace::{LATER, Pace};
use super::phase::{Ahead, Event, Phase};
use super::prepare::{points, prepare};
use super::report::{self, Reporter};
use super::upkeep::{self, Upkeep};
use crate::causes;
use crate::etcd::members::ListedMember;
use crate::etcd::{FencedError, MemberId, Revision};
use crate::failpoint;
use crate::kube::events::Severity;
use crate::roles::index::Index;
use crate::roles::plan::{Picture, Plan, Step, picture, plan};
use crate::roles::reason::Reason;
use crate::store::Update;

/// The term is over.
pub struct End;

/// What can happen but for news from the store.
pub enum Happened {
    RolesChanged(Option<Ended>),
    Membership(Event),
    Dialed,
    Answered,
    Written(Result<Revision, FencedError>),
    Due,
}

/// The state of one term.
pub struct Work<'c> {
    controller: &'c RoleController,
    index: Index,
    transitions: Transitions,
    reporter: Reporter,
    phase: Phase,
    /// Of the last look.
    list: Vec<ListedMember>,
    /// When to look next.
    wake: Option<Instant>,
    /// Of the last own write about members: until the index shows it, nothing is decided.
    at_least: Revision,
    pace: Pace,
    dials: Dials,
    upkeep: Upkeep,
    /// Looks that are of no use any more.
    unanswered: FuturesUnordered<BoxFuture<'static, ()>>,
    /// The store has not been read since then, and nobody was told.
    unread_since: Option<Instant>,
}

impl<'c> Work<'c> {
    pub fn new(controller: &'c RoleController) -> Self {
        let RoleController {
            store,
            notices,
            settings,
            ..
        } = controller;
        Self {
            controller,
            index: Index::new(store.keys.clone()),
            transitions: Transitions::new(),
            reporter: Reporter::new(store.etcd.metrics().clone(), notices.clone()),
            phase: Phase::Idle,
            list: Vec::new(),
            wake: Some(Instant::now()),
            at_least: Revision::ABSENT,
            pace: Pace::new(settings.retry),
            dials: Dials::new(),
            upkeep: Upkeep::new(),
            unanswered: FuturesUnordered::new(),
            unread_since: Some(Instant::now()),
        }
    }

    /// Takes in what the store told.
    pub fn take_in(&mut self, update: Update) {
        if self.index.take_in(update) {
            self.changed();
        }
    }

    /// Something changed that membership depends on.
    fn changed(&mut self) {
        self.pace.try_again();
        if matches!(self.phase, Phase::Idle) {
            self.wake = Some(Instant::now());
        }
    }

    /// What happens next. Safe to cancel.
    pub async fn next(&mut self) -> Happened {
        let timer = self.timer();
        tokio::select! {
            ended = self.transitions.next() => Happened::RolesChanged(ended),
            event = self.phase.next() => Happened::Membership(event),
            () = self.dials.next() => Happened::Dialed,
            written = self.upkeep.next() => Happened::Written(written),
            Some(()) = self.unanswered.next() => Happened::Answered,
            () = sleep_until(timer) => Happened::Due,
        }
    }

    fn timer(&self) -> Option<Instant> {
        let wake = self
            .wake
            .filter(|_| matches!(self.phase, Phase::Idle) && self.index.is_complete());
        let expiry = self.upkeep.due(&self.index, Timestamp::now());
        let unread = self
            .unread_since
            .map(|since| since + self.controller.settings.patience);
        wake.into_iter().chain(expiry).chain(unread).min()
    }

    /// Takes note of what happened.
    pub fn came(&mut self, happened: Happened) -> Result<(), End> {
        match happened {
            Happened::RolesChanged(None) | Happened::Answered | Happened::Due => {}
            Happened::RolesChanged(Some(Ended::Made(batch))) => self.reporter.changed_roles(&batch),
            Happened::RolesChanged(Some(Ended::NotMade(batch, error))) => {
                end_of_term(&error)?;
                debug!(
                    "roles of {} nodes to be decided again: {}",
                    batch.len(),
                    causes::chain(&error)
                );
            }
            Happened::Membership(event) => self.heard(event)?,
            Happened::Dialed => self.changed(),
            Happened::Written(written) => {
                self.upkeep.ended(&written);
                if let Err(error) = written {
                    end_of_term(&error)?;
                    debug!("not written, to be decided again: {}", causes::chain(&error));
                }
            }
        }
        Ok(())
    }

    /// Begins whatever can be begun.
    pub fn advance(&mut self) {
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
        if self.upkeep.is_free(&self.index) {
            let expired = upkeep::expired_nodes(&self.index, &store.keys, Timestamp::now());
            self.upkeep.begin(store, fence, expired);
        }
        if matches!(self.phase, Phase::Idle) && self.wake.is_some_and(|wake| wake <= Instant::now()) {
            self.look();
        }
        self.decide();
    }

    fn look(&mut self) {
        let store = &self.controller.store;
        self.wake = None;
        // Behind a proxy or a port forward the members' own addresses may lead nowhere: not without need.
        let managed = self.index.records().next().is_some() || self.index.joins().next().is_some();
        self.phase = match managed || store.etcd.config().sync_endpoints {
            true => Phase::Looking {
                look: self.begin_look(None),
                complete: false,
            },
            false => Phase::Idle,
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
        let mut seen = picture(&self.index, &self.list, &look.answers(), complete);
        seen.resting = self.pace.resting();
        for asked in &mut seen.joins {
            asked.dial = self.dials.of(&asked.join);
        }
        let now = Timestamp::now();
        let settings = &self.controller.settings;
        let next = plan(&seen, now, &settings.limits);
        self.dials.begin(&next.dial, &self.index, settings.dial_timeout);
        match next.step {
            Some(step) => self.take(step, seen, now),
            None if complete => self.settle(&seen, &next, now),
            None => {}
        }
    }

    fn take(&mut self, step: Step, seen: Picture, now: Timestamp) {
        let RoleController { store, fence, .. } = self.controller;
        let deed = prepare(
            &step,
            &self.index,
            &seen,
            &self.list,
            &store.keys,
            fence.term(),
            now,
        );
        let Some(deed) = deed else {
            let message = "it cannot be done any more".to_owned();
            return self.not_taken(&step, message);
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
            failpoint::pause_at(before).await;
            let outcome = act(&store, &fence, deed).await;
            failpoint::abort_at(after);
            outcome
        };
        let acting = Phase::Acting {
            step,
            picture: Box::new(seen),
            acting: Box::pin(acting),
            ahead,
        };
        if let Phase::Looking { look, .. } = std::mem::replace(&mut self.phase, acting) {
            self.unanswered.push(Box::pin(look.let_answer()));
        }
    }

    /// Nothing can be done now: says why, and decides when to look again.
    fn settle(&mut self, seen: &Picture, next: &Plan, now: Timestamp) {
        let RoleController {
            store,
            fence,
            settings,
            ..
        } = self.controller;
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
        let mut next_look = self
            .pace
            .next_look()
            .unwrap_or(settings.resync)
            .min(settings.resync);
        if self.upkeep.is_free(&self.index) {
            let keys = &store.keys;
            let conditions = report::conditions(&self.index, keys, seen, &lasting, now);
            let joins = upkeep::ended_joins(&self.index, keys, now, settings.keep_joins);
            self.upkeep
                .begin(store, fence, conditions.into_iter().chain(joins));
        } else {
            // They are written with a later look, but not much later.
            next_look = next_look.min(LATER);
        }
        self.wake = Some(Instant::now() + next_look);
        self.phase = Phase::Idle;
    }

    fn heard(&mut self, event: Event) -> Result<(), End> {
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
            Event::Acted(outcome) => self.acted(outcome)?,
        }
        Ok(())
    }

    fn acted(&mut self, outcome: Outcome) -> Result<(), End> {
        let phase = std::mem::replace(&mut self.phase, Phase::Idle);
        let Phase::Acting {
            step, picture, ahead, ..
        } = phase
        else {
            return Ok(());
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
                self.not_taken(&step, "something changed meanwhile".to_owned());
            }
            Outcome::Failed(reason, message) => {
                self.reporter.failed(&step, reason, &message);
                let soon = reason == Reason::LearnerNotInSync;
                self.pace.failed(&step, reason, message, soon);
                // Looked at again at once: it may have been done all the same, and other things can be.
                self.look();
            }
            Outcome::LostLeadership => return Err(End),
        }
        Ok(())
    }

    /// Nothing was done: it is decided anew in an instant, and later where that happens again and again.
    fn not_taken(&mut self, step: &Step, message: String) {
        self.pace.failed(step, Reason::Pending, message, true);
        self.phase = Phase::Idle;
        let delay = self.pace.next_look().unwrap_or_default();
        self.wake = Some(Instant::now() + delay);
    }
}

fn end_of_term(error: &FencedError) -> Result<(), End> {
    match error {
        FencedError::LostLeadership(_) => Err(End),
        FencedError::Conflict | FencedError::Unknown(_) | FencedError::Failed(_) => Ok(()),
    }
}

async fn sleep_until(instant: Option<Instant>) {
    match instant {
        Some(instant) => tokio::time::sleep_until(instant.into()).await,
        None => std::future::pending().await,
    }
}
