//! Watches of the managed kinds. Each carries on from a list, and wakes the reconciler where a pass is needed.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio::task::{AbortHandle, JoinSet};
use tracing::{debug, warn};

use super::bundle::LABEL;
use super::observe::{Cluster, GroupKind, KindState};
use crate::kube::{Cause, KubeClient, Meta, ObjectEvent, ObjectRef, Watch};
use crate::retry::Delays;

/// The latest version of an object that a watch delivered.
#[derive(Clone, Debug)]
pub(super) struct Latest {
    pub(super) meta: Meta,
    pub(super) deleted: bool,
}

/// The changes since the last [`Watches::take`].
#[derive(Debug, Default)]
pub(super) struct Changes {
    /// By object: a thousand changes of one object are one entry.
    pub(super) objects: HashMap<ObjectRef, Latest>,
    /// Kinds whose watch missed changes: only a list shows them.
    pub(super) lost_track: HashSet<GroupKind>,
    /// Kinds whose watch failed and goes on: a list shows whether the server can be reached.
    pub(super) failed: HashSet<GroupKind>,
}

#[derive(Debug, Default)]
struct Shared {
    changes: Mutex<Changes>,
    notify: Notify,
}

impl Shared {
    fn note(&self, note: impl FnOnce(&mut Changes)) {
        // A poisoned lock holds consistent data: each note is one assignment.
        note(&mut self.changes.lock().unwrap_or_else(PoisonError::into_inner));
        self.notify.notify_one();
    }
}

/// When the watch of a kind may be opened next. Outlives the watch, so that the waits keep growing for the one that follows
/// it: a server that refuses every watch is not asked more often because the kind is listed more often (INV-9).
#[derive(Debug)]
struct Pace {
    delays: Delays,
    next: Instant,
    /// Whether the permission to watch is missing, which was said.
    is_forbidden: bool,
}

impl Pace {
    fn new() -> Self {
        Self {
            delays: Delays::new(FIRST_DELAY, LONGEST_DELAY),
            next: Instant::now(),
            is_forbidden: false,
        }
    }

    fn succeeded(&mut self) {
        self.delays.reset();
        self.is_forbidden = false;
    }

    fn failed(&mut self) {
        self.next = Instant::now() + self.delays.next_delay();
    }
}

/// One watch per kind, of the objects with the bundle label. Dropping this value ends them.
#[derive(Default)]
pub(super) struct Watches {
    tasks: JoinSet<()>,
    running: HashMap<GroupKind, (AbortHandle, Arc<Mutex<Pace>>)>,
    shared: Arc<Shared>,
}

impl Watches {
    /// Watches the kinds that were listed, each from its last list.
    pub(super) fn follow(&mut self, kube: &KubeClient, cluster: &mut Cluster) {
        while self.tasks.try_join_next().is_some() {}
        let mut kept = HashSet::new();
        for (kind, state) in cluster.kinds() {
            kept.insert(kind.clone());
            let KindState::Listed(known) = state else { continue };
            let Some(version) = known.watch_from.take() else {
                continue;
            };
            let watch = kube.watch(&known.resource, known.namespace.as_deref(), LABEL, &version);
            let pace = match self.running.remove(kind) {
                Some((before, pace)) => {
                    before.abort();
                    pace
                }
                None => Arc::new(Mutex::new(Pace::new())),
            };
            let following = follow_one(kind.clone(), watch, pace.clone(), self.shared.clone());
            let task = self.tasks.spawn(following);
            self.running.insert(kind.clone(), (task, pace));
        }
        self.running.retain(|kind, (task, _)| {
            let keep = kept.contains(kind);
            if !keep {
                task.abort();
            }
            keep
        });
    }

    /// The changes since the last call.
    pub(super) fn take(&self) -> Changes {
        let mut changes = self.shared.changes.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *changes)
    }

    /// Whether one of the changes since the last [`Watches::take`] is of this sort.
    pub(super) fn have(&self, sort: impl Fn(&ObjectRef, &Latest) -> bool) -> bool {
        let changes = self.shared.changes.lock().unwrap_or_else(PoisonError::into_inner);
        changes
            .objects
            .iter()
            .any(|(object, latest)| sort(object, latest))
    }

    /// Resolves when there is something to take. Safe to cancel.
    pub(super) async fn noted(&self) {
        self.shared.notify.notified().await;
    }
}

/// The first and the longest wait before a failed watch is opened again.
const FIRST_DELAY: Duration = Duration::from_millis(100);
const LONGEST_DELAY: Duration = Duration::from_secs(10);

/// Notes the changes that a watch delivers, until the watch has missed some.
async fn follow_one(kind: GroupKind, mut watch: Watch, pace: Arc<Mutex<Pace>>, shared: Arc<Shared>) {
    // A poisoned lock holds a pace all the same.
    let paced = || pace.lock().unwrap_or_else(PoisonError::into_inner);
    let rest = async || {
        let next = paced().next;
        tokio::time::sleep_until(next.into()).await;
    };
    loop {
        rest().await;
        let asked = Instant::now();
        let seen = watch.next().await;
        if asked.elapsed() > LONGEST_DELAY {
            // The watch was open all that time, without a change.
            paced().succeeded();
        }
        match seen {
            Ok(ObjectEvent { meta, deleted }) => {
                paced().succeeded();
                let object = ObjectRef {
                    group: kind.0.clone(),
                    kind: kind.1.clone(),
                    namespace: meta.namespace.clone(),
                    name: meta.name.clone(),
                };
                let latest = Latest { meta, deleted };
                shared.note(|changes| {
                    changes.objects.insert(object, latest);
                });
            }
            Err(error) if error.lost_track() => {
                debug!(%error, "listing again");
                paced().failed();
                // The next pass lists, and watches from there. The wait is for a server that ends every watch so (INV-9).
                rest().await;
                shared.note(|changes| _ = changes.lost_track.insert(kind));
                return;
            }
            Err(error) => {
                match &error.cause {
                    // Without watches, what others change is noticed by the next pass, and not at once.
                    Cause::Forbidden { .. } if !std::mem::replace(&mut paced().is_forbidden, true) => {
                        warn!("a kind is not watched, so that changes are noticed late: {error}");
                    }
                    _ => debug!(%error, "watching again later"),
                }
                paced().failed();
                shared.note(|changes| _ = changes.failed.insert(kind.clone()));
            }
        }
    }
}
