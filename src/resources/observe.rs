//! The cluster as the term knows it: each kind is listed once, and then followed by its watch.
//!
//! A pass compares what is known with the bundle, and asks only for what is not known: a kind that it has not listed, one
//! whose watch failed or missed changes, and each kind again after [`RELIST`]. What the server has not answered in time is
//! unknown, and delays only the objects of that kind (INV-8).

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::time::{Duration, Instant};

mod ask;
mod known;
mod look_up;

use ask::{Answer, Question};
use known::Known;
pub(super) use look_up::LookupError;

use super::bundle::Manifest;
use super::jobs::{Ended, Jobs};
use crate::kube::{Action, Cause, Discovery, Error as ApiError, KubeClient, Meta, ObjectRef, Resource};

/// The watch of a kind may be broken without a word. A list shows what it missed.
pub(super) const RELIST: Duration = Duration::from_secs(5 * 60);

/// An obsolete object outside the listed namespaces, which no watch follows, is read no more often than this.
const READ_AGAIN: Duration = Duration::from_secs(5);

/// Group and kind. The inventory and ownership are independent of the API version.
pub(super) type GroupKind = (String, String);

/// An object to observe, and the API version to read it through.
#[derive(Clone, Debug)]
pub(super) struct Target {
    pub(super) object: ObjectRef,
    pub(super) version: String,
}

impl Target {
    pub(super) fn kind(&self) -> GroupKind {
        (self.object.group.clone(), self.object.kind.clone())
    }
}

impl From<&Manifest> for Target {
    fn from(manifest: &Manifest) -> Self {
        Self {
            object: manifest.object.clone(),
            version: manifest.version.clone(),
        }
    }
}

/// What is known of one kind.
#[derive(Debug)]
pub(super) enum KindState {
    /// The server does not serve the kind.
    NotServed,
    /// The server has not answered yet: nothing is known.
    Unanswered,
    /// Discovery or the list failed: nothing is known.
    Unknown(ApiError),
    /// The kind is served. It was not listed, because the inventory holds nothing of it: an object is created on condition
    /// that it does not exist.
    Unlisted,
    /// The objects with the bundle label.
    Listed(Box<Known>),
}

/// The objects that a pass has to know.
#[derive(Clone, Copy, Default)]
pub(super) struct Targets<'a> {
    /// The objects of the bundle.
    pub(super) wanted: &'a [Target],
    /// The objects that the inventory holds and the bundle does not.
    pub(super) obsolete: &'a [Target],
}

impl<'a> Targets<'a> {
    fn all(self) -> impl Iterator<Item = &'a Target> {
        self.wanted.iter().chain(self.obsolete)
    }
}

/// An object that was read alone.
struct Read {
    at: Instant,
    /// What it was read through.
    resource: Resource,
    result: Result<Option<Meta>, ApiError>,
}

/// The cluster as the term knows it.
pub(super) struct Cluster {
    kube: KubeClient,
    discovery: Discovery,
    kinds: BTreeMap<GroupKind, KindState>,
    /// Obsolete objects that no list covers.
    read: HashMap<ObjectRef, Read>,
    /// Why the server did not say which kinds a version of a group serves. Stays until it does.
    undiscovered: HashMap<(String, String), ApiError>,
    /// The versions of groups, as far as this pass asked for them. An error stays until the next answer.
    versions: HashMap<String, Result<Vec<String>, ApiError>>,
    questions: Jobs<Question, Answer>,
    /// The questions whose answer was an error in this pass, which does not ask them again (INV-9).
    failed: HashSet<Question>,
    /// Answers that came between two passes.
    early: Vec<Ended<Question, Answer>>,
    /// Whether the server itself has accepted our credentials in this pass, after another API rejected them.
    accepts_us: bool,
    /// Questions at a time.
    in_flight: usize,
    lingers_after: Duration,
}

impl Cluster {
    /// Knows nothing yet. A pass goes on without an answer that takes longer than `lingers_after`.
    pub(super) fn new(kube: KubeClient, in_flight: usize, lingers_after: Duration) -> Self {
        Self {
            kube,
            discovery: Discovery::default(),
            kinds: BTreeMap::new(),
            read: HashMap::new(),
            undiscovered: HashMap::new(),
            versions: HashMap::new(),
            questions: Jobs::new(lingers_after),
            failed: HashSet::new(),
            early: Vec::new(),
            accepts_us: false,
            in_flight,
            lingers_after,
        }
    }

    /// Begins a pass: what the server said of our credentials in the one before may be over.
    pub(super) fn begin(&mut self) {
        self.accepts_us = false;
    }

    /// Observes these objects: forgets other kinds, and learns what is not known of theirs. A kind of which the
    /// inventory `has` nothing is listed only by the pass after the one that creates its objects.
    ///
    /// # Errors
    /// [`ApiError`] if the server as a whole is unusable. An error that concerns one kind is kept as
    /// [`KindState::Unknown`].
    pub(super) async fn observe(
        &mut self,
        targets: Targets<'_>,
        has: impl Fn(&GroupKind) -> bool,
    ) -> Result<(), ApiError> {
        self.discovery.read_doubted();
        self.failed.clear();
        let kinds: BTreeSet<GroupKind> = targets.all().map(Target::kind).collect();
        let is_needed = |group: &String| kinds.iter().any(|(needed, _)| needed == group);
        self.undiscovered.retain(|(group, _), _| is_needed(group));
        self.versions
            .retain(|group, versions| versions.is_err() && is_needed(group));
        self.kinds.retain(|kind, _| kinds.contains(kind));
        let obsolete: BTreeSet<&ObjectRef> = targets.obsolete.iter().map(|target| &target.object).collect();
        self.read.retain(|object, _| obsolete.contains(object));
        for ended in std::mem::take(&mut self.early) {
            self.take(ended).await?;
        }
        self.look(targets, has).await?;
        self.server_error().map_or(Ok(()), Err)
    }

    /// Learns what is not known of the kinds of these objects. If all wanted objects of a kind are in one namespace, only
    /// that namespace is listed, so that a permission for it is enough. Obsolete objects elsewhere are read one by one.
    /// Unlike [`Cluster::observe`], this does not conclude that the server is unusable if none of the kinds can be read:
    /// other kinds could.
    ///
    /// # Errors
    /// [`ApiError`] if the server as a whole is unusable.
    pub(super) async fn look(
        &mut self,
        targets: Targets<'_>,
        has: impl Fn(&GroupKind) -> bool,
    ) -> Result<(), ApiError> {
        self.discover(targets).await?;
        let mut kinds: BTreeMap<GroupKind, (Vec<&Target>, Vec<&Target>)> = BTreeMap::new();
        for target in targets.wanted {
            kinds.entry(target.kind()).or_default().0.push(target);
        }
        for target in targets.obsolete {
            kinds.entry(target.kind()).or_default().1.push(target);
        }
        let mut asked = Vec::new();
        for (kind, (wanted, obsolete)) in kinds {
            let all: Vec<&Target> = wanted.iter().chain(&obsolete).copied().collect();
            let Some(resource) = self.resource(&kind, &all) else {
                let state = self.without_resource(&kind, &all);
                self.kinds.insert(kind, state);
                continue;
            };
            let namespace = only_namespace(if wanted.is_empty() { &obsolete } else { &wanted });
            let is_first = match self.kinds.get(&kind) {
                Some(KindState::Listed(known)) if known.is_current(&resource, namespace.as_ref()) => continue,
                state => !matches!(state, Some(KindState::Listed(_) | KindState::Unlisted)),
            };
            if is_first && obsolete.is_empty() && !has(&kind) {
                self.kinds.insert(kind, KindState::Unlisted);
                continue;
            }
            let asked_at = match self.kinds.get(&kind) {
                Some(KindState::Listed(known)) => Some(known.latest().to_owned()),
                _ => None,
            };
            let list = ask::list(self.kube.clone(), resource, namespace, asked_at);
            self.ask(Question::List(kind.clone()), list);
            asked.push((kind, obsolete.is_empty()));
        }
        self.answers().await?;
        for (kind, only_wanted) in asked {
            let unanswered = self.questions.is_busy(&Question::List(kind.clone()));
            let known = match self.kinds.get(&kind) {
                // The error of the list before says more than that this one takes long.
                Some(KindState::Listed(_) | KindState::Unknown(_)) => true,
                // What this term has put in place is in place, as far as it knows.
                Some(KindState::Unlisted) => only_wanted,
                _ => false,
            };
            if unanswered && !known {
                self.kinds.insert(kind, KindState::Unanswered);
            }
        }
        self.read_uncovered(targets).await
    }

    /// Reads every group version of the targets, and every one that a kind is listed through, that is not known yet or in
    /// doubt.
    async fn discover(&mut self, targets: Targets<'_>) -> Result<(), ApiError> {
        let named = targets
            .all()
            .map(|target| (target.object.group.clone(), target.version.clone()));
        let listed = targets
            .all()
            .filter_map(|target| match self.kinds.get(&target.kind()) {
                Some(KindState::Listed(known)) => {
                    Some((known.resource.group.clone(), known.resource.version.clone()))
                }
                _ => None,
            });
        let unknown: BTreeSet<(String, String)> = named
            .chain(listed)
            .filter(|(group, version)| self.discovery.has_to_read(group, version))
            .collect();
        for (group, version) in unknown {
            let served = ask::served(self.kube.clone(), group.clone(), version.clone());
            self.ask(Question::Served(group, version), served);
        }
        self.answers().await
    }

    /// The resource to list a kind through: that of a version of these objects, or the one that it is listed through.
    fn resource(&self, kind: &GroupKind, targets: &[&Target]) -> Option<Resource> {
        let served = |version: &str| self.discovery.known(&kind.0, version, &kind.1).flatten();
        let found = targets.iter().find_map(|target| served(&target.version));
        let listed = || match self.kinds.get(kind) {
            Some(KindState::Listed(known)) => served(&known.resource.version),
            _ => None,
        };
        found.or_else(listed).cloned()
    }

    /// What is known of a kind that no version of these objects shows to be served.
    fn without_resource(&mut self, kind: &GroupKind, targets: &[&Target]) -> KindState {
        let versions = || {
            let versions = targets.iter().map(|target| target.version.clone());
            versions.map(|version| (kind.0.clone(), version))
        };
        if let Some(error) = versions().find_map(|version| self.undiscovered.get(&version)) {
            return KindState::Unknown(error.clone());
        }
        if versions().any(|(group, version)| self.questions.is_busy(&Question::Served(group, version))) {
            // What the last answer said stays until this one.
            return match self.kinds.get(kind) {
                Some(KindState::NotServed) => KindState::NotServed,
                _ => KindState::Unanswered,
            };
        }
        // The next pass reads the group again: a definition of the kind may have come.
        self.discovery.doubt(&kind.0);
        KindState::NotServed
    }

    /// Reads the obsolete objects that the list of their kind does not cover, or that may be read though their kind may
    /// not be listed: the permissions for a later bundle name what an earlier one left behind.
    async fn read_uncovered(&mut self, targets: Targets<'_>) -> Result<(), ApiError> {
        for target in targets.obsolete {
            let object = &target.object;
            let recent = self
                .read
                .get(object)
                .filter(|read| read.at.elapsed() < READ_AGAIN);
            if self.is_covered(object) || recent.is_some() {
                continue;
            }
            // The version of the last apply may not be served by now.
            let resource = match self.kinds.get(&target.kind()) {
                Some(KindState::Listed(known)) => Some(known.resource.clone()),
                _ => {
                    let others = targets.all().filter(|other| other.kind() == target.kind());
                    let all: Vec<&Target> = std::iter::once(target).chain(others).collect();
                    self.resource(&target.kind(), &all)
                }
            };
            let Some(resource) =
                resource.filter(|resource| resource.namespaced == object.namespace.is_some())
            else {
                continue;
            };
            let read = ask::object(self.kube.clone(), resource, object.clone());
            self.ask(Question::Object(object.clone()), read);
        }
        self.answers().await
    }

    /// Whether the state of the object's kind says all that can be known of the object.
    fn is_covered(&self, object: &ObjectRef) -> bool {
        match self.kinds.get(&(object.group.clone(), object.kind.clone())) {
            Some(KindState::Listed(known)) => known.covers(object),
            Some(KindState::Unknown(error)) => !matches!(error.cause, Cause::Forbidden { .. }),
            _ => true,
        }
    }

    /// Lists the kinds of obsolete objects whose API version is no longer served through any version that is, and sets
    /// the version of each object to the one that its kind was listed through.
    ///
    /// # Errors
    /// [`ApiError`] if the server as a whole is unusable.
    pub(super) async fn look_through_other_versions(
        &mut self,
        obsolete: &mut [Target],
    ) -> Result<(), ApiError> {
        let not_served: Vec<Target> = obsolete
            .iter()
            .filter(|target| matches!(self.kinds.get(&target.kind()), Some(KindState::NotServed)))
            .cloned()
            .collect();
        for target in &not_served {
            let group = &target.object.group;
            if !matches!(self.versions.get(group), Some(Ok(_))) {
                let versions = ask::versions(self.kube.clone(), group.clone());
                self.ask(Question::Versions(group.clone()), versions);
            }
        }
        self.answers().await?;
        let mut others = Vec::new();
        for target in not_served {
            match self.versions.get(&target.object.group) {
                Some(Ok(versions)) => others.extend(versions.iter().map(|version| Target {
                    object: target.object.clone(),
                    version: version.clone(),
                })),
                // A failed request does not prove that the kind is gone: the object stays in the inventory.
                Some(Err(error)) => {
                    let error = error.clone();
                    self.kinds.insert(target.kind(), KindState::Unknown(error));
                }
                None => {
                    self.kinds.insert(target.kind(), KindState::Unanswered);
                }
            }
        }
        if !others.is_empty() {
            let targets = Targets {
                obsolete: &others,
                ..Targets::default()
            };
            self.look(targets, |_| true).await?;
        }
        for target in obsolete {
            if let Some(KindState::Listed(known)) = self.kinds.get(&target.kind()) {
                target.version.clone_from(&known.resource.version);
            }
        }
        Ok(())
    }

    /// Resolves when the server answered what a pass did not wait for. The next pass takes it in. Safe to cancel.
    pub(super) async fn answered(&mut self) {
        let ended = self.questions.ended(self.in_flight).await;
        self.early.push(ended);
    }

    /// An error, if every kind failed with one that may be the server's.
    fn server_error(&self) -> Option<ApiError> {
        let mut first = None;
        for seen in self.kinds.values() {
            match seen {
                KindState::Unknown(error) if error.cause.may_be_the_server() => {
                    first.get_or_insert_with(|| error.clone());
                }
                KindState::Unanswered => {}
                _ => return None,
            }
        }
        let unanswered = || ApiError {
            action: Action::List,
            operand: "all kinds".to_owned(),
            cause: Cause::TimedOut {
                server: self.kube.server().to_owned(),
                limit: self.lingers_after,
            },
        };
        (!self.kinds.is_empty()).then(|| first.unwrap_or_else(unanswered))
    }
}

fn only_namespace(targets: &[&Target]) -> Option<String> {
    let mut namespaces = targets.iter().map(|target| target.object.namespace.as_ref());
    let first = namespaces.next().flatten()?;
    namespaces
        .all(|other| other == Some(first))
        .then(|| first.clone())
}
