//! Observe, plan, act: one loop over everything that happens to the volumes of a node.
//!
//! Views, sessions of plugins, operations that end, rests that are over and a look at what is mounted every few seconds: each leads
//! to a plan of the volumes that it concerns, from what is seen then.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant as StdInstant;

use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, SelectAll};
use tokio::time::Instant;
use tracing::{debug, info, warn};

use super::Settings;
use super::files::{self, Files};
use super::mounts::Mounts;
use super::nodes::Nodes;
use super::operation::{Ended, Failure, Named, Operation, secrets, volume_on_node};
use super::places::{Lane, Place, Places};
use super::plan::{Decision, Observed, Ready, Step, Wait, plan};
use super::plugins::{self, Plugin, Session};
use super::states::{self, State};
use super::volume::Volume;
use crate::agent::ViewReceiver;
use crate::agent::confirm::Confirm;
use crate::agent::freshness::{Freshness, SessionReceiver};
use crate::metrics::Metrics;
use crate::proto::node_publication::Instruction;
use crate::proto::{CsiNode, NodePublication, NodeView};
use crate::retry::Backoff;
use crate::volumes::operation::QUICK;

/// The volumes of a node.
pub(super) struct Keeper<C> {
    settings: Settings,
    files: Files,
    control: C,
    nodes: Nodes,
    views: ViewReceiver,
    session: SessionReceiver,
    freshness: Freshness,
    metrics: Metrics,
    view: Option<Arc<NodeView>>,
    plugins: BTreeMap<String, Plugin>,
    /// Counts the sessions of all plugins.
    sessions: u64,
    /// The publications that were confirmed to be over, and when. A view that is older than the confirmation shows them once more.
    confirmed: BTreeMap<String, StdInstant>,
    volumes: BTreeMap<String, Volume>,
    operations: FuturesUnordered<BoxFuture<'static, Ended>>,
    /// The volumes with an operation, with their directories. Also those that the view has no more. Never two operations of one volume
    /// (INV-6).
    running: BTreeMap<String, PathBuf>,
    places: Places,
    backoff: Backoff<String>,
    /// What is mounted; `None` if the last look failed.
    mounts: Option<Mounts>,
    /// Why the last look failed.
    unseen: Option<String>,
    strays: BTreeSet<PathBuf>,
}

impl<C: Confirm> Keeper<C> {
    pub fn new(
        settings: Settings,
        files: Files,
        control: C,
        nodes: Nodes,
        views: ViewReceiver,
        session: SessionReceiver,
        metrics: Metrics,
    ) -> Self {
        let names = settings.plugins.iter().map(|plugin| plugin.name.clone());
        Self {
            plugins: names.map(|name| (name, Plugin::new())).collect(),
            freshness: Freshness::default(),
            settings,
            files,
            control,
            nodes,
            views,
            session,
            metrics,
            view: None,
            sessions: 0,
            confirmed: BTreeMap::new(),
            volumes: BTreeMap::new(),
            operations: FuturesUnordered::new(),
            running: BTreeMap::new(),
            places: Places::default(),
            backoff: Backoff::default(),
            mounts: None,
            unseen: None,
            strays: BTreeSet::new(),
        }
    }

    pub async fn run(mut self) {
        let times = self.settings.times.clone();
        let follow = |plugin| plugins::follow(plugin, &times, &self.metrics);
        let mut events: SelectAll<_> = self.settings.plugins.iter().map(follow).collect();
        let mut looks = tokio::time::interval(times.look_every);
        looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        self.show_nodes();
        self.views.mark_changed();
        let mut is_open = true;
        let mut sessions = self.session.clone();
        let mut has_sessions = true;
        loop {
            tokio::select! {
                changed = self.views.changed(), if is_open => match changed {
                    Ok(()) => {
                        let view = self.views.borrow_and_update().clone();
                        self.take_view(view);
                    }
                    // No other view comes: what the last one says holds until the process ends.
                    Err(_) => is_open = false,
                },
                // A session opens after its view has come, which may have been planned as one without a session.
                changed = sessions.changed(), if has_sessions => match changed {
                    Ok(()) => {
                        self.look();
                        self.advance_all();
                    }
                    Err(_) => has_sessions = false,
                },
                Some(event) = events.next() => self.take_event(event),
                Some(ended) = self.operations.next() => self.take_ended(ended),
                Some((volume, place)) = self.places.next() => {
                    self.look();
                    self.advance_with(&volume, Some(place));
                }
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
            self.freshness.is_current(&self.session, &self.views);
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
            let kept = known.remove(&name);
            let kept = kept.filter(|volume| volume.is_for(&named, is_unknown));
            let mut volume = kept.unwrap_or_else(|| Volume::new(at, named.clone(), paths));
            volume.at = at;
            // What the view does not show whole stays as it was.
            if !is_unknown {
                if before.get(name.as_str()).copied() != Some(publication) {
                    self.backoff.succeeded(&name);
                }
                volume.update(named);
            }
            self.volumes.insert(name, volume);
        }
        let uids = self.volumes.values().map(|volume| &*volume.publication.uid);
        let uids: HashSet<&str> = uids.collect();
        self.confirmed.retain(|uid, _| uids.contains(uid.as_str()));
        for name in known.keys() {
            self.backoff.succeeded(name);
        }
        self.look();
        if let Some(mounts) = &self.mounts {
            let used = self.volumes.values().map(|volume| &volume.paths.home);
            // What a plugin is mounting is not in the table yet, and its record says whose mount it will be.
            let used: HashSet<&Path> = used.chain(self.running.values()).map(PathBuf::as_path).collect();
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
            self.nodes.take(&self.files, node);
        }
        self.show_nodes();
        self.look();
        self.advance_all();
    }

    /// Reports what the plugins name the node by, once each was asked.
    fn show_nodes(&self) {
        if self.plugins.values().all(|plugin| plugin.was_tried) {
            self.nodes.show();
        }
    }

    /// Looks what is mounted, and which mounts no publication has.
    fn look(&mut self) {
        let looked = files::look();
        let unseen = looked.as_ref().err().map(ToString::to_string);
        if let Some(error) = &unseen
            && self.unseen != unseen
        {
            warn!(error, "what is mounted cannot be read");
        }
        (self.mounts, self.unseen) = (looked.ok(), unseen);
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

    /// Plans the next step of one volume, and begins it.
    fn advance(&mut self, name: &str) {
        self.advance_with(name, None);
    }

    /// The same where a place has come for its call.
    fn advance_with(&mut self, name: &str, place: Option<Place>) {
        let key = name.to_owned();
        let is_current = self.freshness.is_current(&self.session, &self.views);
        let (Some(view), Some(volume)) = (&self.view, self.volumes.get_mut(name)) else {
            return;
        };
        if self.running.contains_key(name) || self.backoff.is_resting(&key) {
            return;
        }
        let publication = &view.publications[volume.at];
        let plugin = self.plugins.get(&publication.plugin);
        if plugin.is_some_and(|plugin| !plugin.was_tried) {
            return;
        }
        let missing = plugins::missing(&publication.plugin);
        let session = plugin.map_or(Err(&missing), |plugin| plugin.state.as_ref());
        let seen = self.mounts.as_ref();
        let seen = seen.map(|mounts| volume.look(mounts, &self.files));
        let observed = Observed {
            publication,
            plugin: session.map(|session| session.ready),
            seen: seen.as_ref(),
            done: &volume.done,
            is_current,
            was_confirmed: self.confirmed.get(&publication.publication_uid).copied(),
        };
        match plan(&observed, Instant::now().into_std()) {
            Decision::Settled => {
                if volume.is_steady() {
                    self.backoff.succeeded(&key);
                }
                volume.settled(publication.instruction());
            }
            Decision::Wait(why) => volume.blocked(why),
            Decision::Rest(why) => {
                volume.done.has_rested = true;
                self.backoff.failed(key, QUICK);
                volume.blocked(why);
            }
            Decision::Do(step, because) => {
                let Some(lane) = Lane::of(step) else {
                    return self.begin(name, step, because, None);
                };
                let place = place.filter(|place| place.is_of(&publication.plugin, lane));
                match place.or_else(|| self.places.take(name, &publication.plugin, lane)) {
                    None => volume.began(step, self.backoff.failures(&key) > 0),
                    place => self.begin(name, step, because, place),
                }
            }
        }
    }

    /// Begins a step of one volume.
    fn begin(&mut self, name: &str, step: Step, because: &str, place: Option<Place>) {
        debug!(volume = name, because, "{step}");
        let key = name.to_owned();
        let (Some(view), Some(volume)) = (&self.view, self.volumes.get_mut(name)) else {
            return;
        };
        let publication = &view.publications[volume.at];
        volume.began(step, self.backoff.failures(&key) > 0);
        let plugin = self.plugins.get(&publication.plugin);
        let plugin = plugin.and_then(|plugin| plugin.state.as_ref().ok()).cloned();
        let offers = plugin.as_ref().map(|session| session.ready.offers);
        let operation = Operation {
            step,
            volume: volume_on_node(publication, &volume.paths, offers.unwrap_or_default()),
            secrets: secrets(publication, step),
            publication: volume.publication.clone(),
            driver: publication.plugin.clone(),
            paths: volume.paths.clone(),
            files: self.files.clone(),
            plugin,
            place,
            control: self.control.clone(),
        };
        self.running.insert(key, volume.paths.home.clone());
        self.operations.push(Box::pin(operation.run()));
    }

    fn take_ended(&mut self, ended: Ended) {
        let Ended {
            publication,
            step,
            session,
            result,
        } = ended;
        let name = publication.volume.clone();
        self.running.remove(&name);
        self.look();
        if step == Step::ConfirmUnpublished && result.is_ok() {
            let now = Instant::now().into_std();
            self.confirmed.insert(publication.uid.clone(), now);
        }
        let volume = self.volumes.get_mut(&name);
        // Another publication, or another instruction, begins with what is seen.
        if let Some(volume) = volume.filter(|volume| volume.publication == publication) {
            match result {
                Ok(after) => {
                    info!(volume = name, "{}", step.done_text());
                    volume.succeeded(step, session, after);
                }
                Err(Failure {
                    reason,
                    message,
                    retry,
                }) => {
                    self.backoff.failed(name.clone(), retry);
                    volume.failed(step, Wait { reason, message });
                }
            }
        }
        self.advance(&name);
    }
}
