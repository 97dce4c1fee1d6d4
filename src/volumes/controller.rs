//! Observe, plan, act, under one term.
//!
//! One loop over what happens: records that change, steps that end, plugins that become ready, rests that are over. Each
//! wakes volumes; a volume that is woken is observed and planned anew. Its steps are taken one after the other, those of
//! different volumes side by side, as many at a time as their plugin takes.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, SelectAll, unfold};
use futures::{FutureExt, StreamExt};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tracing::{debug, info, warn};

use super::act::{Ended, Env, Job, Outcome, Task, Trouble, act};
use super::case::Case;
use super::drift;
use super::index::{Change, Index, Part, Seen, State};
use super::line::Line;
use super::plan::{Decision, Observed, Step, Target, plan};
use super::record::{Blocked, blocked};
use super::write::writer;
use crate::csi::{Failure, ListedVolume, NotReady, Plugins, Session};
use crate::etcd::Fence;
use crate::failpoint;
use crate::kube::events::{Notice, Severity};
use crate::metrics::Metrics;
use crate::store::{Follower, Name, Store, Update};

/// Volumes that are looked at between two looks at what happens, when there are many.
const AT_ONCE: usize = 256;

/// Between two questions whether a plugin is ready by now.
const ASK_AGAIN: Duration = Duration::from_millis(200);

/// Between two looks at sessions that ended by themselves, and at the gauges.
const TICK: Duration = Duration::from_secs(1);

/// The waits of the controller.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// Between two comparisons with the list of a plugin that tells where its volumes are.
    pub compare_every: Duration,
}

impl Default for Times {
    fn default() -> Self {
        Self {
            compare_every: Duration::from_secs(600),
        }
    }
}

/// What a leader needs to see to volumes.
pub struct Volumes {
    /// Where the records lie.
    pub store: Store,
    /// The term.
    pub fence: Fence,
    /// Its waits.
    pub times: Times,
    /// To whoever publishes Kubernetes Events. What it has no room for is only logged: nothing here waits for it.
    pub notices: Option<mpsc::Sender<Notice>>,
}

/// Something that happened.
enum Event {
    Ended(Box<Ended>),
    Connected(Name, u64, Result<std::sync::Arc<Session>, NotReady>),
    Listed(Name, u64, u64, Result<Vec<ListedVolume>, Failure>),
    /// The term is over.
    Over,
}

impl Volumes {
    /// Sees to volumes until leadership is lost.
    pub async fn run(self) {
        let (writer, writing) = writer(&self.store.etcd, &self.fence);
        let metrics = self.store.etcd.metrics().clone();
        let work = Work {
            env: Env {
                store: self.store.clone(),
                fence: self.fence.clone(),
                writer,
            },
            index: Index::new(self.store.keys.clone()),
            plugins: Plugins::new(metrics.clone()),
            lines: HashMap::new(),
            cases: HashMap::new(),
            due: BTreeSet::new(),
            woken: Vec::new(),
            under_way: FuturesUnordered::new(),
            gauges: Gauges(metrics),
            volumes: &self,
        };
        tokio::select! {
            () = work.run() => {}
            () = writing => {}
        }
    }
}

/// The state of one term.
struct Work<'v> {
    volumes: &'v Volumes,
    env: Env,
    index: Index,
    plugins: Plugins,
    lines: HashMap<Name, Line>,
    /// The volumes that are not settled.
    cases: HashMap<Name, Case>,
    due: BTreeSet<(Instant, Name)>,
    /// To be looked at.
    woken: Vec<Name>,
    under_way: FuturesUnordered<BoxFuture<'static, Event>>,
    gauges: Gauges,
}

impl Work<'_> {
    async fn run(mut self) {
        let followed = Part::ALL.map(|part| {
            let follower = Follower::new(&self.env.store.etcd, part.range(&self.env.store.keys));
            let updates = unfold(follower, move |mut follower| async move {
                let update = follower.next().await;
                Some(((part, update), follower))
            });
            updates.boxed()
        });
        let mut updates: SelectAll<_> = followed.into_iter().collect();
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
        loop {
            self.look_at_woken();
            self.gauges.set_depth(&self.lines);
            let first_due = self.due.first().map(|(at, _)| *at);
            let rested = async {
                match first_due {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            let more_woken = async {
                match self.woken.is_empty() || !self.index.is_complete() {
                    true => std::future::pending().await,
                    false => tokio::task::yield_now().await,
                }
            };
            tokio::select! {
                Some((part, update)) = updates.next() => self.take_in(part, update),
                Some(event) = self.under_way.next() => {
                    if !self.on(event) {
                        return;
                    }
                }
                () = rested => self.wake_rested(),
                () = more_woken => {}
                _ = tick.tick() => self.tick(),
            }
        }
    }

    fn take_in(&mut self, part: Part, update: Update) {
        let before = self.index.is_complete();
        let changes = self.index.take_in(part, update);
        if !self.index.is_complete() {
            return;
        }
        if !before {
            failpoint::hit("volumes.listed");
            // Whatever was there, and whatever a list that was interrupted left out.
            let drivers: BTreeSet<Name> = self
                .index
                .names()
                .iter()
                .filter_map(|name| self.index.driver(name).cloned())
                .collect();
            for driver in drivers {
                self.configure(&driver);
            }
            let names = self.index.names();
            debug!(volumes = names.len(), "everything is examined");
            names.into_iter().for_each(|name| self.wake(name, None));
            return;
        }
        for change in changes {
            match change {
                Change::Record(name, revision) => self.wake(name, Some(revision)),
                Change::Around(name) => self.wake(name, None),
                Change::Plugin(plugin) => {
                    self.configure(&plugin);
                    for name in self.index.of_plugin(&plugin) {
                        self.wake(name, None);
                    }
                }
            }
        }
    }

    /// Takes over the record of a plugin.
    fn configure(&mut self, plugin: &Name) {
        let compare_at = Instant::now() + self.volumes.times.compare_every;
        let line = self
            .lines
            .entry(plugin.clone())
            .or_insert_with(|| Line::new(compare_at));
        line.configure(plugin, self.index.plugin(plugin), &self.plugins);
        if line.plugin().is_none() {
            self.plugins.retain(|name| name != plugin.as_str());
        }
    }

    /// Something changed: what failed may be tried again at once. During a step the change waits for its end.
    fn wake(&mut self, name: Name, written: Option<crate::etcd::Revision>) {
        if let Some(case) = self.cases.get_mut(&name) {
            if case.is_busy {
                match written {
                    Some(revision) => case.heard(revision),
                    None => case.grow_stale(),
                }
                return;
            }
            if let Some(at) = case.due {
                self.due.remove(&(at, name.clone()));
            }
            case.reset();
        }
        self.woken.push(name);
    }

    fn wake_rested(&mut self) {
        let now = Instant::now();
        while let Some((at, _)) = self.due.first()
            && *at <= now
            && let Some((_, name)) = self.due.pop_first()
        {
            if let Some(case) = self.cases.get_mut(&name) {
                case.begin_pass();
                self.gauges.0.volume_retries.inc();
                self.woken.push(name);
            }
        }
    }

    fn look_at_woken(&mut self) {
        if !self.index.is_complete() {
            return;
        }
        let from = self.woken.len().saturating_sub(AT_ONCE);
        for name in self.woken.split_off(from) {
            self.advance(&name);
        }
    }

    fn decide(&mut self, name: &Name, seen: &Seen) -> Decision {
        let Some(driver) = self.index.driver(name).cloned() else {
            return Decision::default();
        };
        if !self.lines.contains_key(&driver) {
            self.configure(&driver);
        }
        let plugin = self
            .lines
            .get_mut(&driver)
            .map_or(super::plan::Plugin::Missing, Line::known);
        let case = self.cases.get(name);
        let resting = case.map(Case::resting).unwrap_or_default();
        let drift = case.map(|case| case.drift.clone()).unwrap_or_default();
        plan(&Observed {
            volume: &seen.volume,
            publications: &seen.publications,
            unreadable: &seen.unreadable,
            nodes: &seen.nodes,
            plugin,
            resting: &resting,
            drift: &drift,
        })
    }

    /// Looks at a volume and begins its next step, has it wait for its turn, or leaves it.
    fn advance(&mut self, name: &Name) {
        if self
            .cases
            .get(name)
            .is_some_and(|case| case.is_busy || case.is_queued)
        {
            return;
        }
        if self.undo(name) {
            return;
        }
        let Some(seen) = self.index.observe(name) else {
            self.leave(name);
            return;
        };
        let Some(driver) = self.index.driver(name).cloned() else {
            return;
        };
        let decision = self.decide(name, &seen);
        let Some(step) = decision.step.clone() else {
            self.end_pass(name, &driver, seen, &decision);
            return;
        };
        if step == Step::Connect {
            self.park(name, &driver, seen, &decision);
            return;
        }
        self.begin_or_queue(name, &driver, seen, Task::Step(step));
    }

    /// What is left at the backend without a record goes before anything else.
    fn undo(&mut self, name: &Name) -> bool {
        let Some(undo) = self.cases.get(name).and_then(|case| case.undo.first()).cloned() else {
            return false;
        };
        if self
            .cases
            .get(name)
            .is_some_and(|case| case.resting().contains(&Target::Volume))
        {
            self.rest(name);
            return true;
        }
        let driver = crate::store::object::volume::driver(&undo.volume);
        let Ok(driver) = driver.parse::<Name>() else {
            return false;
        };
        if !self.lines.contains_key(&driver) {
            self.configure(&driver);
        }
        let known = self.lines.get_mut(&driver).map(Line::known);
        if !matches!(known, Some(super::plan::Plugin::Offers(_))) {
            if let Some(line) = self.lines.get_mut(&driver) {
                line.parked.insert(name.clone());
            }
            self.connect(&driver);
            return true;
        }
        let seen = Seen {
            volume: undo.volume.clone(),
            revision: crate::etcd::Revision::ABSENT,
            publications: Default::default(),
            revisions: Default::default(),
            unreadable: Default::default(),
            nodes: Default::default(),
        };
        self.begin_or_queue(name, &driver, seen, Task::Undo(undo));
        true
    }

    fn begin_or_queue(&mut self, name: &Name, driver: &Name, seen: Seen, task: Task) {
        let Some(line) = self.lines.get_mut(driver) else {
            return;
        };
        let case = self.cases.entry(name.clone()).or_default();
        // In turn: whoever waits already is first.
        if !line.has_room() {
            case.is_queued = true;
            line.queue.push_back(name.clone());
            return;
        }
        line.running += 1;
        case.is_busy = true;
        match &task {
            Task::Step(step) => debug!(volume = %name, "{step}"),
            Task::Note(_) => {}
            Task::Undo(_) => info!(volume = %name, "a result whose record is gone is undone"),
        }
        let job = Job {
            name: name.clone(),
            driver: driver.clone(),
            seen,
            task,
            session: line.session(),
            permits: line.permits.clone(),
        };
        let acting = act(self.env.clone(), job);
        self.under_way
            .push(acting.map(|ended| Event::Ended(Box::new(ended))).boxed());
    }

    /// Begins what waited for its turn.
    fn serve_queue(&mut self, driver: &Name) {
        while let Some(line) = self.lines.get_mut(driver)
            && line.has_room()
            && let Some(name) = line.queue.pop_front()
        {
            if let Some(case) = self.cases.get_mut(&name) {
                case.is_queued = false;
            }
            self.advance(&name);
        }
    }

    /// It waits until its plugin is ready.
    fn park(&mut self, name: &Name, driver: &Name, seen: Seen, decision: &Decision) {
        if let Some(line) = self.lines.get_mut(driver) {
            line.parked.insert(name.clone());
        }
        self.connect(driver);
        self.end_pass(name, driver, seen, decision);
    }

    /// Has somebody wait for the plugin, unless somebody does.
    fn connect(&mut self, driver: &Name) {
        let Some(line) = self.lines.get_mut(driver) else {
            return;
        };
        let Some(plugin) = line.plugin().filter(|_| !line.connecting) else {
            return;
        };
        line.connecting = true;
        let (driver, generation) = (driver.clone(), line.generation);
        let again = line.not_ready.is_some();
        let connecting = async move {
            if again {
                tokio::time::sleep(ASK_AGAIN).await;
            }
            // It answers from memory where it was asked just now, so that asking often is no load (INV-9).
            Event::Connected(driver, generation, plugin.session().await)
        };
        self.within_window(connecting.boxed());
    }

    /// What talks to a plugin ends with the term (INV-3).
    fn within_window(&self, future: BoxFuture<'static, Event>) {
        let window = self.env.fence.window().clone();
        let guarded = async move {
            tokio::select! {
                biased;
                () = window.closed() => Event::Over,
                event = future => event,
            }
        };
        self.under_way.push(guarded.boxed());
    }

    /// Nothing more can be done now: the conditions say so, and what failed rests.
    fn end_pass(&mut self, name: &Name, driver: &Name, seen: Seen, decision: &Decision) {
        let notes = self.notes(name, driver, &seen, decision);
        let noted = self.cases.get(name).is_some_and(|case| case.is_noted);
        if !notes.is_empty() && !noted {
            self.cases.entry(name.clone()).or_default().is_noted = true;
            self.begin_or_queue(name, driver, seen, Task::Note(notes));
            return;
        }
        // What is wanted and impossible may become possible with the plugin's next session.
        let is_waiting = decision.waits.iter().any(|wait| wait.is_fault);
        if is_waiting || self.cases.contains_key(name) {
            self.cases.entry(name.clone()).or_default().is_waiting = is_waiting;
        }
        self.rest(name);
    }

    fn rest(&mut self, name: &Name) {
        let Some(case) = self.cases.get_mut(name) else {
            return;
        };
        // It rests already; it was only looked at.
        if case.due.is_some() {
            return;
        }
        // What was mended, or is no longer as it was found.
        let resting = case.resting();
        case.drift
            .lost
            .retain(|node| resting.contains(&Target::Node(node.clone())));
        case.drift
            .strays
            .retain(|id| resting.contains(&Target::Stray(id.clone())));
        if let Some(delay) = case.end_pass(random()) {
            let at = Instant::now() + delay;
            case.due = Some(at);
            self.due.insert((at, name.clone()));
        }
        if case.is_closed() {
            self.cases.remove(name);
        }
    }

    fn leave(&mut self, name: &Name) {
        if let Some(case) = self.cases.get(name)
            && !case.is_busy
        {
            if let Some(at) = case.due {
                self.due.remove(&(at, name.clone()));
            }
            self.cases.remove(name);
        }
    }

    /// Where the conditions do not say what is the case.
    fn notes(
        &mut self,
        name: &Name,
        driver: &Name,
        seen: &Seen,
        decision: &Decision,
    ) -> Vec<(Target, Option<Blocked>)> {
        let unready = match &decision.step {
            Some(Step::Connect) => self.lines.get(driver).and_then(Line::blocked),
            _ => None,
        };
        // While it is not known whether it is ready, what stands stays.
        if decision.step == Some(Step::Connect) && unready.is_none() {
            return Vec::new();
        }
        let case = self.cases.get(name);
        let of_volume = seen.volume.status.as_ref().map(|status| &status.conditions);
        let of_nodes = seen.publications.iter().map(|(node, publication)| {
            let conditions = publication.status.as_ref().map(|status| &status.conditions);
            (Target::Node(node.clone()), conditions)
        });
        let all = std::iter::once((Target::Volume, of_volume)).chain(of_nodes);
        let notes = all.filter_map(|(target, conditions)| {
            if case.is_some_and(|case| case.is_quiet(&target)) {
                return None;
            }
            let failed = case.and_then(|case| case.blocked(&target)).cloned();
            let unready = unready.clone().filter(|_| target == Target::Volume);
            let wait = decision
                .waits
                .iter()
                .find(|wait| wait.is_fault && wait.target == target);
            let waits = wait.map(|wait| Blocked {
                reason: wait.reason.to_owned(),
                message: wait.message.clone(),
            });
            let now = failed.or(unready).or(waits);
            let stands = conditions.and_then(|conditions| blocked(conditions));
            let stands = stands.map(|condition| Blocked {
                reason: condition.reason.clone(),
                message: condition.message.clone(),
            });
            (now != stands).then_some((target, now))
        });
        notes.collect()
    }

    /// False if the term is over.
    fn on(&mut self, event: Event) -> bool {
        match event {
            Event::Over => return false,
            Event::Ended(ended) => return self.on_ended(*ended),
            Event::Connected(driver, generation, outcome) => self.on_connected(&driver, generation, outcome),
            Event::Listed(driver, generation, since, outcome) => {
                self.on_listed(&driver, generation, since, outcome);
            }
        }
        true
    }

    fn on_ended(&mut self, ended: Ended) -> bool {
        let Ended {
            name,
            driver,
            task,
            outcome,
            known,
        } = ended;
        for record in &known {
            self.index
                .note(&record.key, record.now.as_ref().map_err(|deleted| *deleted));
        }
        let case = self.cases.entry(name.clone()).or_default();
        let is_news = case.end_step(&known);
        let target = match &task {
            Task::Step(step) => step.target(),
            Task::Note(_) | Task::Undo(_) => Target::Volume,
        };
        match outcome {
            Outcome::Lost => return false,
            Outcome::Done => self.on_done(&name, &task),
            Outcome::Look => {
                let case = self.cases.entry(name.clone()).or_default();
                if !case.look() {
                    case.fail(target, Trouble::restless());
                }
            }
            Outcome::Undo(undo) => case.undo.push(*undo),
            Outcome::Failed(trouble) => self.on_failed(&name, target, trouble),
        }
        if is_news && let Some(case) = self.cases.get_mut(&name) {
            case.reset();
        }
        if let Some(line) = self.lines.get_mut(&driver) {
            line.running = line.running.saturating_sub(1);
        }
        self.advance(&name);
        self.serve_queue(&driver);
        true
    }

    fn on_done(&mut self, name: &Name, task: &Task) {
        let Some(case) = self.cases.get_mut(name) else {
            return;
        };
        match task {
            Task::Note(_) => {}
            Task::Undo(_) => {
                case.undo.remove(0);
            }
            Task::Step(step) => {
                match step {
                    Step::Publish { node, .. } => {
                        case.drift.lost.remove(node);
                    }
                    Step::UnpublishStray { csi_node_id } => {
                        case.drift.strays.remove(csi_node_id);
                    }
                    _ => {}
                }
                info!(volume = %name, "done: {step}");
            }
        }
    }

    fn on_failed(&mut self, name: &Name, target: Target, trouble: Trouble) {
        let place = match &target {
            Target::Volume => String::new(),
            Target::Node(node) => format!(" on node {node}"),
            Target::Stray(id) => format!(" on node id {id}"),
        };
        let note = format!(
            "volume {name}{place}: {}: {}",
            trouble.why.reason, trouble.why.message
        );
        let case = self.cases.entry(name.clone()).or_default();
        // Once; the repetitions are in the metrics.
        if case.fail(target, trouble) {
            warn!("{note}");
            if let Some(notices) = &self.volumes.notices {
                // Full: the log has it.
                let _ = notices.try_send(Notice {
                    severity: Severity::Warning,
                    reason: "VolumeBlocked",
                    action: "Volumes",
                    note,
                });
            }
        } else {
            debug!("{note}");
        }
    }

    fn on_connected(
        &mut self,
        driver: &Name,
        generation: u64,
        outcome: Result<std::sync::Arc<Session>, NotReady>,
    ) {
        let Some(line) = self.lines.get_mut(driver) else {
            return;
        };
        // Of what it was before.
        if line.generation != generation {
            return;
        }
        line.connecting = false;
        match outcome {
            Ok(session) => {
                line.ready(session);
                // What could not be done before may be possible now: it may offer something else.
                let parked = std::mem::take(&mut line.parked);
                let unsettled = self
                    .cases
                    .iter()
                    .filter(|(name, case)| self.index.driver(name) == Some(driver) || !case.undo.is_empty());
                let unsettled: Vec<Name> = unsettled.map(|(name, _)| name.clone()).collect();
                for name in parked.into_iter().chain(unsettled) {
                    self.wake(name, None);
                }
            }
            Err(not_ready) => {
                if line.not_ready.as_ref() != Some(&not_ready) {
                    warn!(plugin = %driver, "{not_ready}");
                    line.not_ready = Some(not_ready);
                    // To say so in their conditions.
                    let parked: Vec<Name> = line.parked.iter().cloned().collect();
                    for name in parked {
                        if let Some(case) = self.cases.get_mut(&name) {
                            case.is_noted = false;
                        }
                        self.woken.push(name);
                    }
                }
                // Somebody may be waiting for it.
                if self.lines.get(driver).is_some_and(|line| !line.parked.is_empty()) {
                    self.connect(driver);
                }
            }
        }
    }

    fn tick(&mut self) {
        self.gauges.set_states(&self.index);
        let now = Instant::now();
        let drivers: Vec<Name> = self.lines.keys().cloned().collect();
        for driver in drivers {
            let Some(line) = self.lines.get_mut(&driver) else {
                continue;
            };
            let ended = line.session().is_none();
            let due = line.compare_at <= now && !line.comparing;
            // One that comes back may offer what it did not.
            if ended && (!line.parked.is_empty() || due) {
                self.connect(&driver);
            }
            if due {
                self.compare(&driver);
            }
            let unused = self.index.of_plugin(&driver).is_empty() && self.index.plugin(&driver).is_none();
            if unused && self.lines.get(&driver).is_some_and(Line::is_idle) {
                self.lines.remove(&driver);
                self.plugins.retain(|name| name != driver.as_str());
            }
        }
    }

    /// Asks the plugin where its volumes are.
    fn compare(&mut self, driver: &Name) {
        let since = self.index.changes();
        let Some(line) = self.lines.get_mut(driver) else {
            return;
        };
        line.compare_at = Instant::now() + self.volumes.times.compare_every;
        let Some(session) = line.comparable() else { return };
        line.comparing = true;
        let (driver, generation, permits) = (driver.clone(), line.generation, line.permits.clone());
        let listing = async move {
            // Never closed.
            let _permit = permits.acquire().await;
            let listed = session.list_volumes().await;
            Event::Listed(driver, generation, since, listed)
        };
        self.within_window(listing.boxed());
    }

    fn on_listed(
        &mut self,
        driver: &Name,
        generation: u64,
        since: u64,
        outcome: Result<Vec<ListedVolume>, Failure>,
    ) {
        let Some(line) = self.lines.get_mut(driver) else {
            return;
        };
        if line.generation != generation {
            return;
        }
        line.comparing = false;
        let listed = match outcome {
            Ok(listed) => drift::by_id(listed),
            Err(failure) => {
                warn!(plugin = %driver, "its volumes cannot be compared: {failure}");
                return;
            }
        };
        for name in self.index.of_plugin(driver) {
            // What changed meanwhile is compared the next time.
            if self.cases.contains_key(&name) || self.index.touched_since(&name, since) {
                continue;
            }
            let Some(seen) = self.index.observe(&name) else {
                continue;
            };
            let Some(found) = drift::compare(&seen, &listed) else {
                continue;
            };
            warn!(volume = %name, "the plugin says otherwise than the record, to be mended: {found:?}");
            self.cases.entry(name.clone()).or_default().drift = found;
            self.woken.push(name);
        }
    }
}

/// From 0 to 1, other every time. A random UUID is at hand, a generator is not.
fn random() -> f64 {
    let (high, _) = uuid::Uuid::new_v4().as_u64_pair();
    // The first 48 bits are random in a UUID of version 4; 32 of them fill an f64 without rounding.
    let bits = u32::try_from(high >> 32).unwrap_or(u32::MAX);
    f64::from(bits) / f64::from(u32::MAX)
}

/// The gauges of this term; zero after it.
struct Gauges(Metrics);

impl Gauges {
    fn set_depth(&self, lines: &HashMap<Name, Line>) {
        let depth: usize = lines.values().map(|line| line.queue.len()).sum();
        self.0
            .volume_queue_depth
            .set(i64::try_from(depth).unwrap_or(i64::MAX));
    }

    fn set_states(&self, index: &Index) {
        for (state, word) in State::ALL {
            let label = crate::metrics::State { state: word };
            self.0.volumes.get_or_create(&label).set(index.count(state));
        }
    }
}

impl Drop for Gauges {
    fn drop(&mut self) {
        self.0.volume_queue_depth.set(0);
        for (_, word) in State::ALL {
            let label = crate::metrics::State { state: word };
            self.0.volumes.get_or_create(&label).set(0);
        }
    }
}
