//! The state of one term, and what follows from each event in it.

use std::time::{Duration, Instant};

use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use jiff::Timestamp;
use tokio::sync::watch;
use tracing::{debug, warn};

use super::RoleController;
use super::actions::{Context, failpoints};
use super::conditions::conditions;
use super::execute::{NotDone, Outcome, Unpaused, execute};
use super::outage;
use super::phase::{Event, Phase};
use super::probes::Probes;
use super::report::Reporter;
use super::schedule::{LATER, Schedule};
use super::shown::Shown;
use super::sightings::Sightings;
use super::survey::Survey;
use super::unread::Unread;
use super::upkeep::{self, Upkeep};
use crate::causes;
use crate::clock;
use crate::etcd::members::ListedMember;
use crate::etcd::{FencedError, MemberId, Outage, Revision};
use crate::failpoint;
use crate::retry::sleep_until;
use crate::roles::blocked::{Blocked, Subject};
use crate::roles::index::Index;
use crate::roles::membership::{Membership, membership};
use crate::roles::plan::{Plan, Step, plan};
use crate::roles::reason::Reason;
use crate::span;
use crate::store::Update;
use crate::store::writer::Writer;
use crate::term::TermOver;

/// Whether a step that succeeds makes the next failure of its subject a new one. An intent that is renewed, and a note on
/// why a join waits, come between two calls that fail for one reason.
fn ends_failures(step: &Step) -> bool {
    use crate::proto::join::Progress;
    match step {
        Step::DecideAdd(_) => false,
        Step::Note { progress, .. } => !matches!(progress, Progress::Adding | Progress::Waiting),
        _ => true,
    }
}

/// What a step is about, in traces.
fn shown(subject: &Subject) -> String {
    match subject {
        Subject::Member(id) => format!("member/{id}"),
        Subject::Join(node) => format!("join/{node}"),
    }
}

/// The state of one term.
pub struct TermState<'c> {
    controller: &'c RoleController,
    index: Index,
    phase: Phase,
    /// The member list of the last survey.
    list: Vec<ListedMember>,
    /// The revision of the last own write about members. Nothing is decided until the index shows it.
    written: Revision,
    schedule: Schedule,
    probes: Probes,
    upkeep: Upkeep,
    reporter: Reporter,
    sightings: Sightings,
    /// The resumptions of roles that the surveys know of.
    resumptions: u64,
    /// The call of the intent that was committed last, and when that was sent, with the proof that roles were not paused.
    proven: Option<(Subject, Instant)>,
    /// Superseded surveys, polled to completion so that no request for a status is pending when a member is removed.
    superseded: FuturesUnordered<BoxFuture<'static, ()>>,
    outages: watch::Receiver<Option<Outage>>,
    /// The last of them that this term has taken note of.
    outage: Option<Outage>,
    unread: Unread,
    shown: Shown,
}

impl<'c> TermState<'c> {
    pub fn new(controller: &'c RoleController, writer: Writer) -> Self {
        let RoleController {
            store,
            notices,
            node_writes,
            settings,
            ..
        } = controller;
        Self {
            controller,
            index: Index::new(store.keys.clone()),
            phase: Phase::Idle,
            list: Vec::new(),
            written: Revision::ABSENT,
            schedule: Schedule::new(settings.retry, settings.resync),
            probes: Probes::new(),
            upkeep: Upkeep::new(writer, node_writes.clone(), &store.keys),
            reporter: Reporter::new(store.etcd.metrics().clone(), notices.clone()),
            sightings: Sightings::new(Instant::now()),
            resumptions: 0,
            proven: None,
            superseded: FuturesUnordered::new(),
            outages: store.etcd.last_outage(),
            outage: None,
            unread: Unread::since(Instant::now()),
            shown: Shown::new(&controller.summaries),
        }
    }

    /// Takes in news of the store.
    pub fn take_in(&mut self, update: Update) {
        if self.index.take_in(update) {
            self.schedule.wake();
        }
        self.shown.note_change();
        self.unread.show(self.index.is_complete(), Instant::now());
    }

    /// What happens next. Safe to cancel.
    pub async fn next(&mut self) -> Event {
        let timer = self.timer();
        let (idle, complete) = (self.is_idle(), self.index.is_complete());
        tokio::select! {
            event = self.phase.next() => event,
            ended = self.upkeep.next() => Event::Written(ended),
            () = self.probes.next() => Event::Probed,
            () = self.schedule.due(idle) => Event::Due,
            Some(()) = self.superseded.next() => Event::Due,
            Ok(()) = self.outages.changed() => Event::Due,
            () = sleep_until(timer) => Event::Due,
            () = self.shown.due(), if complete => Event::SummaryDue,
        }
    }

    fn is_idle(&self) -> bool {
        matches!(self.phase, Phase::Idle) && self.index.is_complete()
    }

    fn timer(&self) -> Option<Instant> {
        let RoleController { store, settings, .. } = self.controller;
        if !self.index.is_complete() {
            return self.unread.due(settings.patience);
        }
        let expiry = self
            .upkeep
            .next_expiry(&self.index, &store.keys, Timestamp::now());
        expiry.map(|left| Instant::now() + left)
    }

    /// Takes note of an event.
    ///
    /// # Errors
    /// The term is over.
    pub fn on_event(&mut self, event: Event) -> Result<(), TermOver> {
        match event {
            Event::Surveyed(Ok(())) | Event::Due => {}
            Event::Surveyed(Err(error)) => {
                warn!("etcd's member list cannot be read, so nothing is decided about members: {error}");
                self.phase = Phase::Idle;
                self.schedule.list_unreadable();
            }
            Event::Executed(outcome) => self.on_executed(outcome)?,
            Event::Written(ended) => self.on_written(ended)?,
            Event::Probed => self.schedule.wake(),
            Event::SummaryDue => self.shown.publish(&self.index),
        }
        Ok(())
    }

    fn on_written(&self, ended: Vec<upkeep::Ended>) -> Result<(), TermOver> {
        let mut made = Vec::new();
        let mut leads = Ok(());
        for one in ended {
            match one.result {
                Ok(_) => made.extend(one.transition),
                Err(FencedError::LostLeadership(_)) => leads = Err(TermOver),
                Err(error) => debug!("a write failed and will be repeated: {}", causes::chain(&error)),
            }
        }
        self.reporter.roles_changed(&made);
        leads
    }

    fn on_executed(&mut self, outcome: Outcome) -> Result<(), TermOver> {
        let phase = std::mem::replace(&mut self.phase, Phase::Idle);
        let Phase::Acting {
            step,
            begun,
            membership,
            next_survey,
            ..
        } = phase
        else {
            return Ok(());
        };
        if let Err(why) = &outcome {
            self.sightings.failed(&step, why, Instant::now());
        }
        if let Step::DecideReaddress { member, .. } | Step::Readdress { member, .. } = step {
            self.probes.forget(member);
        }
        match outcome {
            Ok(revision) => {
                self.written = self.written.max(revision.unwrap_or_default());
                if let Some(call) = step.intends() {
                    self.proven = Some((call, begun));
                }
                self.schedule.unreadable_no_more();
                if ends_failures(&step) {
                    self.schedule.succeeded(&step.subject());
                }
                self.reporter.step_taken(&step, &membership);
                // What follows is decided from new answers. If the intent took long to be written, the answers that came
                // meanwhile are too old: a member that gave one may have died since.
                let fresh = self.controller.settings.member_timeout;
                match next_survey.filter(|survey| survey.age() < fresh) {
                    Some(survey) => self.phase = Phase::Surveying(survey),
                    None => self.survey(),
                }
            }
            Err(NotDone::Stale) => {
                debug!("refused, because something changed: {step}");
                self.not_taken(&step, "something changed meanwhile".to_owned());
            }
            Err(NotDone::Failed(reason, message) | NotDone::NotCalled(reason, message)) => {
                self.reporter.step_failed(&step, &membership, reason, &message);
                self.schedule.failed(&step, reason, message);
                // At once: the step may have been done all the same, and other steps may be possible.
                self.survey();
            }
            Err(NotDone::LostLeadership) => return Err(TermOver),
        }
        Ok(())
    }

    /// The step was not taken. It is decided again in an instant, and later if that happens again and again.
    fn not_taken(&mut self, step: &Step, message: String) {
        self.schedule.failed(step, Reason::Pending, message);
        self.schedule.survey_within(self.controller.settings.resync);
        self.phase = Phase::Idle;
    }

    /// Begins everything that can be begun.
    pub fn advance(&mut self) {
        if !self.index.is_complete() {
            return self.report_unread();
        }
        let keys = &self.controller.store.keys;
        self.upkeep.seen(self.index.revision());
        self.reporter.paused(self.index.is_paused());
        self.take_note_of_outage();
        let known = std::mem::replace(&mut self.resumptions, self.index.resumptions());
        if known != self.resumptions {
            self.begin_again();
        }
        if !self.index.is_paused() {
            self.upkeep.begin_transitions(&self.index, keys);
        }
        let expired = upkeep::expired_nodes(&self.index, keys, Timestamp::now());
        self.upkeep.begin_all(expired);
        if self.is_idle() && self.schedule.take_due() {
            self.survey();
        }
        self.decide();
    }

    /// A time without a quorum is over, which the replica that leads now has seen.
    fn take_note_of_outage(&mut self) {
        let is_news = |last: &Outage| last.until.elapsed().is_ok_and(|passed| passed < outage::NEWS);
        // A later term of the same process finds it again.
        let last = self.outages.borrow_and_update().clone().filter(is_news);
        if last == self.outage {
            return;
        }
        if let Some(last) = &last
            && !outage::is_reported(&self.index, last)
            && self.controller.store.etcd.is_first_report(last)
        {
            self.reporter.quorum_returned(outage::REASON, outage::words(last));
        }
        self.outage = last;
        self.schedule.wake();
    }

    /// Roles were resumed. Meanwhile an operator may have changed etcd's members, so an answer that was requested before
    /// proves nothing, that of a listener included (INV-5).
    fn begin_again(&mut self) {
        self.sightings.resumed(Instant::now());
        self.probes = Probes::new();
        self.proven = None;
        let survey = match &mut self.phase {
            Phase::Idle => None,
            Phase::Acting { next_survey, .. } => next_survey.take(),
            Phase::Surveying(_) => match std::mem::replace(&mut self.phase, Phase::Idle) {
                Phase::Surveying(survey) => Some(survey),
                _ => None,
            },
        };
        if let Some(survey) = survey {
            self.superseded.push(Box::pin(survey.drain()));
        }
        self.schedule.wake();
    }

    fn report_unread(&mut self) {
        let RoleController { store, settings, .. } = self.controller;
        if self.unread.take_due(settings.patience, Instant::now()) {
            self.reporter.unread(store.keys.prefix());
        }
    }

    fn survey(&mut self) {
        let store = &self.controller.store;
        // Behind a proxy or a port forward, the members' own addresses may lead nowhere: they are not used needlessly.
        let managed = self.index.records().next().is_some() || self.index.joins().next().is_some();
        self.phase = match managed || store.etcd.config().sync_endpoints {
            true => Phase::Surveying(self.begin_survey(None)),
            false => Phase::Idle,
        };
    }

    /// Asks every member; those whose removal is decided, and `also`, only whether they serve.
    fn begin_survey(&self, also: Option<MemberId>) -> Box<Survey> {
        let RoleController { store, settings, .. } = self.controller;
        let leaving = self.index.records();
        let leaving = leaving.filter(|(_, record, _)| record.removal.is_some());
        let leaving = leaving.map(|(id, ..)| id).chain(also).collect();
        Box::new(Survey::begin(
            &store.etcd,
            settings.member_timeout,
            &self.list,
            leaving,
        ))
    }

    /// Plans from the answers so far, and takes the step that they allow, if any.
    fn decide(&mut self) {
        let Phase::Surveying(survey) = &self.phase else {
            return;
        };
        let Some(list) = survey.list() else { return };
        // Until the index shows the last write, it would be decided once more.
        if self.index.revision() < self.written {
            return;
        }
        // If that took long, a member that gave an answer may have died since.
        if survey.is_older_than(self.controller.settings.member_timeout) {
            return self.survey();
        }
        self.list = list.to_vec();
        let mut membership = membership(&self.index, &self.list, survey.answers(), survey.is_complete());
        membership.resting = self.schedule.resting();
        membership.unnoted = self.schedule.unnoted();
        self.probes.show(&mut membership);
        let settings = &self.controller.settings;
        let doubt = settings.limits.add_doubt;
        self.sightings.date(&mut membership, doubt, Instant::now());
        // A call that can no longer be under way did not remove it.
        for member in membership.listed().filter(|member| member.quiet) {
            self.controller.store.etcd.readmit_member(member.id);
        }
        let now = Timestamp::now();
        let next = plan(&membership, &settings.limits);
        if membership.complete {
            self.shown.surveyed(&membership, &next.blocked, now);
        }
        // While roles are paused nothing would be done about what a test finds.
        if !self.index.is_paused() {
            let etcd = &self.controller.store.etcd;
            self.probes
                .begin(&next.probe, &membership, etcd, settings.dial_timeout);
        }
        match next.step {
            Some(step) => self.take(step, membership, now),
            None if membership.complete => self.settle(&membership, &next, now),
            None => {}
        }
    }

    fn take(&mut self, step: Step, membership: Membership, now: Timestamp) {
        let RoleController { store, fence, .. } = self.controller;
        let context = Context {
            index: &self.index,
            membership: &membership,
            keys: &store.keys,
            term: fence.term(),
            now,
        };
        let Some(action) = context.to_action(&step) else {
            return self.not_taken(&step, "it is no longer possible".to_owned());
        };
        debug!("{step}");
        // The call that follows an intent is decided from answers that were requested no earlier than the intent.
        let removed = match &step {
            Step::DecideRemoval(id, _) => Some(*id),
            _ => None,
        };
        let next_survey = step.intends().map(|_| self.begin_survey(removed));
        let own = self.proven.as_ref().filter(|(call, _)| *call == step.subject());
        let decided = Unpaused {
            last_pause: self.index.last_pause(),
            proven: own.map(|(_, sent)| *sent),
        };
        let traced = || span::step("roles", format_args!("{step:#}"), shown(&step.subject()));
        let traced = match &self.phase {
            Phase::Surveying(survey) => survey.trace(traced),
            Phase::Idle | Phase::Acting { .. } => traced(),
        };
        let (before, after) = failpoints(&step);
        let (store, fence) = (store.clone(), fence.clone());
        let executing = async move {
            failpoint::pause_at(before).await;
            // The largest of the futures here: in a box, since a thread has 2 MiB for all that are within each other.
            let executed = Box::pin(execute(&store, &fence, action, decided));
            let outcome = span::within(traced, executed, NotDone::outcome).await;
            failpoint::abort_at(after);
            outcome
        };
        let acting = Phase::Acting {
            step,
            begun: clock::now(),
            membership: Box::new(membership),
            executing: Box::pin(executing),
            next_survey,
        };
        if let Phase::Surveying(survey) = std::mem::replace(&mut self.phase, acting) {
            self.superseded.push(Box::pin(survey.drain()));
        }
    }

    /// Nothing can be done now: reports why, and schedules the next survey.
    fn settle(&mut self, membership: &Membership, plan: &Plan, now: Timestamp) {
        let RoleController { store, settings, .. } = self.controller;
        self.phase = Phase::Idle;
        self.schedule.settled(&plan.blocked);
        self.reporter.observe(&self.index, membership, &plan.blocked);
        let lasting: Vec<Blocked> = plan
            .blocked
            .iter()
            .filter(|blocked| self.schedule.waited(&blocked.subject) >= self.patience(blocked.reason))
            .cloned()
            .collect();
        self.reporter.blocked(membership, &lasting);
        let keys = &store.keys;
        let conditions = conditions(&self.index, keys, membership, &lasting, self.outage.as_ref(), now);
        let ended_joins = upkeep::ended_joins(&self.index, keys, now, settings.keep_joins);
        // What cannot be written now is written after a later survey, but not much later.
        let longest = match self.upkeep.begin_all(conditions.into_iter().chain(ended_joins)) {
            true => settings.resync,
            false => settings.resync.min(LATER),
        };
        self.schedule.survey_within(longest);
    }

    /// How long something may be blocked for this reason before that is reported.
    fn patience(&self, reason: Reason) -> Duration {
        match reason {
            Reason::Pending => Duration::MAX,
            // A learner takes its time, and etcd refuses for 5 s what it accepts then.
            Reason::LearnerNotStarted
            | Reason::LearnerNotInSync
            | Reason::AddressUnproven
            | Reason::EtcdRefused => self.controller.settings.patience,
            _ => Duration::ZERO,
        }
    }
}
