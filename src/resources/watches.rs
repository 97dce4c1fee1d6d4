//! Watches of the managed kinds. Each carries on from a list, and wakes the reconciler where a pass is needed.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio::task::{AbortHandle, JoinSet};
use tracing::debug;

use super::bundle::LABEL;
use super::observe::{Cluster, GroupKind, KindState};
use crate::kube::{KubeClient, Meta, ObjectEvent, ObjectRef, Watch};
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

/// One watch per kind, of the objects with the bundle label. Dropping this value ends them.
#[derive(Default)]
pub(super) struct Watches {
    tasks: JoinSet<(GroupKind, Delays)>,
    running: HashMap<GroupKind, AbortHandle>,
    /// A watch that lost track hands its delays to the next one, so that they keep growing.
    delays: HashMap<GroupKind, Delays>,
    shared: Arc<Shared>,
}

impl Watches {
    /// Watches the kinds that were listed, each from its last list.
    pub(super) fn follow(&mut self, kube: &KubeClient, cluster: &mut Cluster) {
        while let Some(ended) = self.tasks.try_join_next() {
            self.delays.extend(ended);
        }
        let mut kept = HashSet::new();
        for (kind, state) in cluster.kinds() {
            kept.insert(kind.clone());
            let KindState::Listed(known) = state else { continue };
            let Some(version) = known.watch_from.take() else {
                continue;
            };
            let watch = kube.watch(&known.resource, known.namespace.as_deref(), LABEL, &version);
            let delays = self
                .delays
                .remove(kind)
                .unwrap_or_else(|| Delays::new(FIRST_DELAY, LONGEST_DELAY));
            let task = self
                .tasks
                .spawn(follow_one(kind.clone(), watch, delays, self.shared.clone()));
            if let Some(before) = self.running.insert(kind.clone(), task) {
                before.abort();
            }
        }
        self.running.retain(|kind, task| {
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

    /// Resolves when there is something to take. Cancel safe.
    pub(super) async fn noted(&self) {
        self.shared.notify.notified().await;
    }
}

/// The first and the longest wait before a failed watch is opened again.
const FIRST_DELAY: Duration = Duration::from_millis(100);
const LONGEST_DELAY: Duration = Duration::from_secs(10);

/// Notes the changes that a watch delivers, until the watch has missed some.
async fn follow_one(
    kind: GroupKind,
    mut watch: Watch,
    mut delays: Delays,
    shared: Arc<Shared>,
) -> (GroupKind, Delays) {
    loop {
        let asked = Instant::now();
        let seen = watch.next().await;
        if asked.elapsed() > LONGEST_DELAY {
            // The watch was open all that time, without a change.
            delays.reset();
        }
        match seen {
            Ok(ObjectEvent { meta, deleted }) => {
                delays.reset();
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
                // The next pass lists, and watches from there. The wait is for a server that ends every watch so (INV-9).
                delays.wait().await;
                shared.note(|changes| _ = changes.lost_track.insert(kind.clone()));
                return (kind, delays);
            }
            Err(error) => {
                debug!(%error, "watching again later");
                shared.note(|changes| _ = changes.failed.insert(kind.clone()));
                delays.wait().await;
            }
        }
    }
}
