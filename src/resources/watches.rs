//! Watches of the managed kinds. They only wake the reconciler: the next pass lists again and decides.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio::task::{AbortHandle, JoinSet};
use tracing::debug;

use super::bundle::LABEL;
use super::observe::{ClusterState, GroupKind, KindState};
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
    /// A watch missed changes: only a list shows them.
    pub(super) lost_track: bool,
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

struct Running {
    namespace: Option<String>,
    task: AbortHandle,
}

/// One watch per kind, of the objects with the bundle label. Dropping this value ends them.
#[derive(Default)]
pub(super) struct Watches {
    tasks: JoinSet<(GroupKind, Delays)>,
    running: HashMap<GroupKind, Running>,
    shared: Arc<Shared>,
}

impl Watches {
    /// Watches exactly the kinds that were listed. A new watch starts from the list; a running one continues.
    pub(super) fn follow(&mut self, kube: &KubeClient, cluster: &ClusterState) {
        // A watch that lost track hands its delays to the next one, so that they keep growing.
        let mut delays = HashMap::new();
        while let Some(ended) = self.tasks.try_join_next() {
            delays.extend(ended);
        }
        let mut listed = HashSet::new();
        for (kind, seen) in cluster.kinds() {
            let KindState::Listed {
                resource,
                namespace,
                resource_version,
                ..
            } = seen
            else {
                continue;
            };
            listed.insert(kind.clone());
            let continues = self
                .running
                .get(kind)
                .is_some_and(|running| running.namespace == *namespace && !running.task.is_finished());
            if continues {
                continue;
            }
            let watch = kube.watch(resource, namespace.as_deref(), LABEL, resource_version);
            let delays = delays
                .remove(kind)
                .unwrap_or_else(|| Delays::new(FIRST_DELAY, LONGEST_DELAY));
            let task = self
                .tasks
                .spawn(follow_one(kind.clone(), watch, delays, self.shared.clone()));
            let running = Running {
                namespace: namespace.clone(),
                task,
            };
            if let Some(before) = self.running.insert(kind.clone(), running) {
                before.task.abort();
            }
        }
        self.running.retain(|kind, running| {
            let keep = listed.contains(kind);
            if !keep {
                running.task.abort();
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
                shared.note(|changes| changes.lost_track = true);
                return (kind, delays);
            }
            Err(error) => {
                debug!(%error, "watching again later");
                delays.wait().await;
            }
        }
    }
}
