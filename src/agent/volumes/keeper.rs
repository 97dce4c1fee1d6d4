//! Observe, plan, act: one loop over everything that happens to the volumes of a node.
//!
//! Views, sessions of plugins, operations that end, rests that are over and a look at what is mounted every few seconds: each leads
//! to a plan of the volumes that it concerns, from what is seen then.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, SelectAll};
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::{debug, info, warn};

use super::files::{self, Files};
use super::mounts::{At, Mounts};
use super::operation::{After, Ended, Failure, Named, Operation, secrets, volume_on_node};
use super::paths::Paths;
use super::plan::{CONFIRMED_FOR, Decision, Done, FOREIGN, GONE, Observed, Ready, Seen, Step, Wait, plan};
use super::plugins::{self, Plugin, Session};
use super::states::{self, State};
use super::{SessionReceiver, Settings};
use crate::agent::ViewReceiver;
use crate::agent::confirm::Confirm;
use crate::csi::Secrets;
use crate::metrics::Metrics;
use crate::proto::node_publication::Instruction;
use crate::proto::{CsiNode, NodePublication, NodeView};
use crate::retry::Backoff;
use crate::volumes::operation::QUICK;

/// A mount that goes sooner is made again after growing delays (INV-9).
const STEADY: Duration = Duration::from_secs(60);

/// The volumes of a node.
pub(super) struct Keeper<C> {
    settings: Settings,
    files: Files,
    control: C,
    csi: watch::Sender<Option<Vec<CsiNode>>>,
    session: SessionReceiver,
    /// When a session was last seen.
    seen_open: Option<Instant>,
    metrics: Metrics,
    view: Option<Arc<NodeView>>,
    plugins: BTreeMap<String, Plugin>,
    /// Counts the sessions of all plugins.
    sessions: u64,
    /// What each plugin last said of the node.
    nodes: BTreeMap<String, CsiNode>,
    /// The plugins of which that cannot be read: nothing is reported before they have said it again (INV-12).
    unread: BTreeSet<String>,
    /// The publications that were confirmed to be over, and when. A view that is older than the confirmation shows them once more.
    confirmed: BTreeMap<String, Instant>,
    volumes: BTreeMap<String, Volume>,
    operations: FuturesUnordered<BoxFuture<'static, Ended>>,
    /// The volumes with an operation, also those that the view has no more. Never two of one volume (INV-6).
    running: BTreeSet<String>,
    backoff: Backoff<String>,
    /// What is mounted; `None` if the last look failed.
    mounts: Option<Mounts>,
    strays: BTreeSet<PathBuf>,
}

/// A volume that the view has.
struct Volume {
    /// Its place in the view.
    at: usize,
    publication: Named,
    paths: Paths,
    done: Done,
    /// When it was last published.
    published_at: Option<Instant>,
    /// Whether it has rested since its mount was gone.
    has_rested: bool,
    state: State,
    /// What was last logged about it.
    problem: Option<Wait>,
}

impl<C: Confirm> Keeper<C> {
    pub fn new(
        settings: Settings,
        files: Files,
        control: C,
        csi: watch::Sender<Option<Vec<CsiNode>>>,
        session: SessionReceiver,
        metrics: Metrics,
    ) -> Self {
        let names = || settings.plugins.iter().map(|plugin| plugin.name.clone());
        let (mut nodes, mut unread) = (BTreeMap::new(), BTreeSet::new());
        for name in names() {
            match files.known_node(&name) {
                Ok(Some(node)) => _ = nodes.insert(name, node),
                Ok(None) => {}
                Err(error) => {
                    warn!(plugin = name, %error, "what the plugin last said of the node cannot be read");
                    unread.insert(name);
                }
            }
        }
        let plugins = names().map(|name| (name, Plugin::new())).collect();
        Self {
            plugins,
            nodes,
            unread,
            confirmed: BTreeMap::new(),
            settings,
            files,
            control,
            csi,
            session,
            seen_open: None,
            metrics,
            view: None,
            sessions: 0,
            volumes: BTreeMap::new(),
            operations: FuturesUnordered::new(),
            running: BTreeSet::new(),
            backoff: Backoff::default(),
            mounts: None,
            strays: BTreeSet::new(),
        }
    }

    pub async fn run(mut self, mut views: ViewReceiver) {
        let times = self.settings.times.clone();
        let follow = |plugin| plugins::follow(plugin, &times, &self.metrics);
        let mut events: SelectAll<_> = self.settings.plugins.iter().map(follow).collect();
        let mut looks = tokio::time::interval(times.look_every);
        looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        self.show_nodes();
        views.mark_changed();
        let mut is_open = true;
        loop {
            tokio::select! {
                changed = views.changed(), if is_open => match changed {
                    Ok(()) => {
                        let view = views.borrow_and_update().clone();
                        self.take_view(view);
                    }
                    // No other view comes: what the last one says holds until the process ends.
                    Err(_) => is_open = false,
                },
                Some(event) = events.next() => self.take_event(event),
                Some(ended) = self.operations.next() => self.take_ended(ended),
                due = self.backoff.next_due() => {
                    self.look();
                    for volume in due {
                        self.advance(&volume);
                    }
                }
                _ = looks.tick() => {
                    self.look();
                    self.advance_all();
                }
            }
            let states = self.volumes.values().map(|volume| volume.state);
            let strays = self.strays.iter().map(|_| State::Stray);
            states::show(states.chain(strays), &self.metrics);
        }
    }

    /// Takes over a view. What changed about a volume ends its rest.
    fn take_view(&mut self, view: Option<Arc<NodeView>>) {
        let Some(view) = view else { return };
        let before = self.view.replace(view.clone());
        let before = before.iter().flat_map(|view| &view.publications);
        let before: BTreeMap<&str, &NodePublication> = before
            .map(|publication| (publication.volume.as_str(), publication))
            .collect();
        let mut known = std::mem::take(&mut self.volumes);
        for (at, publication) in view.publications.iter().enumerate() {
            if publication.instruction() == Instruction::None {
                continue;
            }
            let Some(paths) = self.files.layout().paths(publication) else {
                warn!(volume = ?publication.volume, "the session shows a volume whose name or uid is malformed");
                continue;
            };
            let name = publication.volume.clone();
            let named = Named::of(publication);
            let is_unknown = publication.instruction() == Instruction::Unspecified;
            let kept = known.remove(&name).filter(|volume| {
                let Named { uid, instruction, .. } = &volume.publication;
                *uid == named.uid && (*instruction == named.instruction || is_unknown)
            });
            let mut volume = kept.unwrap_or_else(|| Volume {
                at,
                publication: named.clone(),
                paths,
                done: Done::default(),
                published_at: None,
                has_rested: false,
                state: State::Publishing,
                problem: None,
            });
            volume.at = at;
            // What the view does not show whole stays as it was.
            if !is_unknown {
                if before.get(name.as_str()).copied() != Some(publication) {
                    self.backoff.succeeded(&name);
                }
                if volume.publication.usage != named.usage {
                    // The plugin may do something else with it now.
                    (volume.done.staged, volume.done.published) = (None, None);
                }
                volume.publication = named;
            }
            self.volumes.insert(name, volume);
        }
        let shown: HashSet<&str> = self
            .volumes
            .values()
            .map(|volume| volume.publication.uid.as_str())
            .collect();
        self.confirmed.retain(|uid, _| shown.contains(uid.as_str()));
        for name in known.keys() {
            self.backoff.succeeded(name);
        }
        self.look();
        if let Some(mounts) = &self.mounts {
            let used = self.volumes.values().map(|volume| volume.paths.home.as_path());
            let used: HashSet<&Path> = used.collect();
            self.files.tidy_unused(|home| used.contains(home), mounts);
        }
        self.advance_all();
    }

    fn take_event(&mut self, (name, event): plugins::Event) {
        let Some(plugin) = self.plugins.get_mut(&name) else {
            return;
        };
        plugin.was_tried = true;
        plugin.state = event.map(|session| {
            self.sessions += 1;
            let ready = Ready {
                session: self.sessions,
                offers: session.capabilities(),
            };
            Session { ready, session }
        });
        if let Ok(Session { session, .. }) = &plugin.state {
            let node = CsiNode {
                plugin: name.clone(),
                node_id: session.info().id.as_str().to_owned(),
                topology: session.info().topology.clone(),
            };
            if let Err(error) = self.files.keep_node(&node) {
                warn!(%error, "what a plugin says of the node is not kept for the next start");
            }
            self.unread.remove(&name);
            self.nodes.insert(name.clone(), node);
        }
        self.show_nodes();
        self.look();
        self.advance_all();
    }

    /// Reports what the plugins name the node by, once each was asked.
    fn show_nodes(&self) {
        if !self.unread.is_empty() || !self.plugins.values().all(|plugin| plugin.was_tried) {
            return;
        }
        let nodes = Some(self.nodes.values().cloned().collect());
        self.csi.send_if_modified(|shown| {
            let is_news = *shown != nodes;
            *shown = nodes;
            is_news
        });
    }

    /// Looks what is mounted, and which mounts no publication has.
    fn look(&mut self) {
        self.mounts = match files::look() {
            Ok(mounts) => Some(mounts),
            Err(error) => {
                warn!(%error, "what is mounted cannot be read");
                None
            }
        };
        // Before the first view, nothing is known of any publication.
        let (Some(mounts), Some(_)) = (&self.mounts, &self.view) else {
            return;
        };
        let used = self
            .volumes
            .values()
            .flat_map(|volume| [&volume.paths.staging, &volume.paths.target]);
        let used: HashSet<&Path> = used.map(PathBuf::as_path).collect();
        let directory = self.files.layout().mounts();
        let found = mounts.below(&directory).map(|mount| &mount.path);
        let strays = found.filter(|path| !path.ancestors().any(|above| used.contains(above)));
        let strays: BTreeSet<PathBuf> = strays.cloned().collect();
        for path in strays.difference(&self.strays) {
            // INV-12: the publication may be back in the next view.
            warn!(path = %path.display(), "a mount has no publication; it is left there");
        }
        self.strays = strays;
    }

    fn advance_all(&mut self) {
        let names: Vec<String> = self.volumes.keys().cloned().collect();
        for name in names {
            self.advance(&name);
        }
    }

    /// Whether the view is that of a session, or of one that ended a moment ago.
    fn is_view_current(&mut self) -> bool {
        let is_open = self.session.borrow().is_none();
        if is_open {
            self.seen_open = Some(Instant::now());
        }
        let counts = self.settings.times.view_counts;
        is_open || self.seen_open.is_some_and(|at| at.elapsed() < counts)
    }

    /// Plans the next step of one volume, and begins it.
    fn advance(&mut self, name: &str) {
        let key = name.to_owned();
        let is_current = self.is_view_current();
        let (Some(view), Some(volume)) = (&self.view, self.volumes.get_mut(name)) else {
            return;
        };
        if self.running.contains(name) || self.backoff.is_resting(&key) {
            return;
        }
        let publication = &view.publications[volume.at];
        let plugin = self.plugins.get(&publication.plugin);
        if plugin.is_some_and(|plugin| !plugin.was_tried) {
            return;
        }
        let confirmed = self.confirmed.get(&publication.publication_uid);
        let is_over = confirmed.is_some_and(|at| at.elapsed() < CONFIRMED_FOR);
        if is_over && publication.instruction() == Instruction::Publish {
            volume.state = State::Blocked;
            blocked(name, volume, just_confirmed());
            return;
        }
        let missing = missing(&publication.plugin);
        let session = plugin.map_or(Err(&missing), |plugin| plugin.state.as_ref());
        let seen = self
            .mounts
            .as_ref()
            .map(|mounts| seen(mounts, &self.files, &volume.paths));
        let is_mounted = seen.as_ref().is_some_and(|seen| seen.target != At::Nothing);
        volume.done.was_mounted |= volume.done.published.is_some() && is_mounted;
        let observed = Observed {
            publication,
            plugin: session.map(|session| session.ready),
            seen: seen.as_ref(),
            done: &volume.done,
        };
        match plan(&observed, Instant::now().into_std()) {
            Decision::Settled => {
                // A mount that does not stay is a failure, however often it is made.
                if volume.published_at.is_none_or(|at| at.elapsed() >= STEADY) {
                    self.backoff.succeeded(&key);
                }
                volume.problem = None;
                volume.state = match publication.instruction() {
                    Instruction::Publish => State::Published,
                    Instruction::Unpublish => State::Unpublishing,
                    Instruction::Unspecified | Instruction::None => volume.state,
                };
            }
            Decision::Wait(wait) => {
                volume.state = match wait.reason {
                    FOREIGN => State::Foreign,
                    _ => State::Blocked,
                };
                blocked(name, volume, wait);
            }
            Decision::Do(Step::Stage | Step::Publish, _) if !is_current => {
                volume.state = State::Blocked;
                blocked(name, volume, no_session());
            }
            Decision::Do(_, GONE) if !volume.has_rested => {
                volume.has_rested = true;
                volume.state = State::Blocked;
                self.backoff.failed(key, QUICK);
                let (reason, message) = ("MountGone", GONE.to_owned());
                blocked(name, volume, Wait { reason, message });
            }
            Decision::Do(step, because) => {
                debug!(volume = name, because, "{step}");
                self.begin(name, step);
            }
        }
    }

    /// Begins a step of one volume.
    fn begin(&mut self, name: &str, step: Step) {
        let key = name.to_owned();
        let (Some(view), Some(volume)) = (&self.view, self.volumes.get_mut(name)) else {
            return;
        };
        let publication = &view.publications[volume.at];
        volume.state = state_during(step, self.backoff.failures(&key) > 0);
        let plugin = self.plugins.get(&publication.plugin).and_then(|plugin| {
            let session = plugin.state.as_ref().ok()?;
            let permits = match step {
                Step::Unpublish | Step::Unstage => &plugin.back,
                _ => &plugin.permits,
            };
            Some((session.clone(), permits.clone()))
        });
        let offers = plugin.as_ref().map(|(session, _)| session.ready.offers);
        let operation = Operation {
            step,
            volume: volume_on_node(publication, &volume.paths, offers.unwrap_or_default()),
            // A confirmation may wait for long, and needs none.
            secrets: match step {
                Step::Stage | Step::Publish | Step::Expand { .. } => secrets(&publication.secrets),
                _ => Ok(Secrets::none()),
            },
            publication: volume.publication.clone(),
            driver: publication.plugin.clone(),
            paths: volume.paths.clone(),
            files: self.files.clone(),
            plugin,
            control: self.control.clone(),
        };
        self.running.insert(key);
        self.operations.push(Box::pin(operation.run()));
    }

    fn take_ended(&mut self, ended: Ended) {
        let name = ended.publication.volume.clone();
        self.running.remove(&name);
        self.look();
        if ended.step == Step::ConfirmUnpublished && ended.result.is_ok() {
            let uid = ended.publication.uid.clone();
            self.confirmed.insert(uid, Instant::now());
        }
        let volume = self.volumes.get_mut(&name);
        // Another publication, or another instruction, begins with what is seen.
        if let Some(volume) = volume.filter(|volume| volume.publication == ended.publication) {
            match ended.result {
                Ok(after) => {
                    info!(volume = name, "{}", ended.step.done_text());
                    note(&mut volume.done, ended.step, ended.session, after);
                    if ended.step == Step::Publish {
                        (volume.published_at, volume.has_rested) = (Some(Instant::now()), false);
                        if after.is_bare {
                            warn!(
                                volume = name,
                                "the plugin has published the volume, and nothing is mounted at its path: does it mount \
                                 where the agent sees it (mountPropagation: Bidirectional)?"
                            );
                        }
                    }
                }
                Err(failure) => {
                    if ended.step == Step::Publish {
                        // The plugin may have lost what it staged.
                        volume.done.staged = None;
                    }
                    self.backoff.failed(name.clone(), failure.retry);
                    volume.state = State::Blocked;
                    let Failure { reason, message, .. } = failure;
                    blocked(&name, volume, Wait { reason, message });
                }
            }
        }
        self.advance(&name);
    }
}

/// The state of a volume during a step.
fn state_during(step: Step, has_failed: bool) -> State {
    match step {
        _ if has_failed => State::Blocked,
        Step::Stage | Step::Publish | Step::Link => State::Publishing,
        // It is used while it grows.
        Step::Expand { .. } | Step::ConfirmExpanded { .. } => State::Published,
        Step::Unlink | Step::Unpublish | Step::Unstage | Step::ConfirmUnpublished => State::Unpublishing,
    }
}

/// What a step has done.
fn note(done: &mut Done, step: Step, session: Option<u64>, after: After) {
    let now = Instant::now().into_std();
    match step {
        Step::Stage => (done.staged, done.published, done.was_mounted) = (session, None, false),
        Step::Publish => (done.published, done.was_mounted) = (session, after.is_mounted),
        Step::Expand { bytes } => done.expanded = bytes,
        Step::ConfirmExpanded { bytes } => done.expansion_confirmed = Some((bytes, now)),
        Step::Unpublish => (done.unpublished, done.unstaged) = (true, after.is_unstaged),
        Step::Unstage => done.unstaged = true,
        Step::ConfirmUnpublished => done.confirmed = Some(now),
        Step::Link | Step::Unlink => {}
    }
}

/// Logs why a volume does not get on, once.
fn blocked(name: &str, volume: &mut Volume, why: Wait) {
    let Wait { reason, message } = &why;
    if volume
        .problem
        .as_ref()
        .is_some_and(|before| before.reason == *reason)
    {
        debug!(volume = name, "{reason}: {message}");
    } else {
        warn!(volume = name, "{reason}: {message}");
    }
    volume.problem = Some(why);
}

fn no_session() -> Wait {
    Wait {
        reason: "NoSession",
        message: "there is no session, and the volume may be another node's by now".to_owned(),
    }
}

fn just_confirmed() -> Wait {
    Wait {
        reason: "JustConfirmed",
        message:
            "the node has just confirmed that it does not use the volume; the view may be older than that"
                .to_owned(),
    }
}

fn missing(plugin: &str) -> Wait {
    Wait {
        reason: "PluginMissing",
        message: format!("the agent has no --csi-node {plugin}=…"),
    }
}

fn seen(mounts: &Mounts, files: &Files, paths: &Paths) -> Seen {
    let others = mounts.below(&paths.home).map(|mount| &mount.path);
    let mut others = others.filter(|path| **path != paths.target && **path != paths.staging);
    Seen {
        target: mounts.at(&paths.target),
        staging: mounts.at(&paths.staging),
        other: others.next().cloned(),
        link: files.link(paths),
        asked: files.has_asked(&paths.record),
        asked_to_stage: files.has_asked_to_stage(paths),
    }
}
