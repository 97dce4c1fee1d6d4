//! Watches on the managed kinds: they say that something changed, the next pass sees what.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio::task::{AbortHandle, JoinSet};
use tracing::debug;

use super::bundle::LABEL;
use super::observe::{ClusterState, GroupKind, KindState};
use super::plan::ObjectVersion;
use crate::kube::{KubeClient, ObjectEvent, ObjectRef, Watch};
use crate::retry::Delays;

/// The last that was seen of an object since somebody asked.
#[derive(Clone, Debug)]
pub(super) struct Change {
    pub(super) now: ObjectVersion,
    pub(super) deleted: bool,
}

/// What was seen since somebody asked.
#[derive(Debug, Default)]
pub(super) struct Changes {
    /// By object: a thousand changes of one object are one.
    pub(super) objects: HashMap<ObjectRef, Change>,
    /// A watch missed changes: only a list says what is there.
    pub(super) lost_track: bool,
}

#[derive(Debug, Default)]
struct Shared {
    changes: Mutex<Changes>,
    notify: Notify,
}

impl Shared {
    fn note(&self, note: impl FnOnce(&mut Changes)) {
        // A panic while the lock was held cannot leave it half changed: each note is one assignment.
        note(&mut self.changes.lock().unwrap_or_else(PoisonError::into_inner));
        self.notify.notify_one();
    }
}

struct Running {
    namespace: Option<String>,
    task: AbortHandle,
}

/// One watch a kind, of the objects that carry the label. They end with this value.
#[derive(Default)]
pub(super) struct Watches {
    tasks: JoinSet<(GroupKind, Delays)>,
    running: HashMap<GroupKind, Running>,
    shared: Arc<Shared>,
}

impl Watches {
    /// Watches the kinds that were listed, from where the list was, unless they are watched already; and no others.
    pub(super) fn follow(&mut self, kube: &KubeClient, cluster: &ClusterState) {
        // Those that lost track: should the next ones do so as well, their delays grow on.
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
            let goes_on = self
                .running
                .get(kind)
                .is_some_and(|running| running.namespace == *namespace && !running.task.is_finished());
            if goes_on {
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

    /// What changed since the last call.
    pub(super) fn take(&self) -> Changes {
        let mut changes = self.shared.changes.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *changes)
    }

    /// Resolves when there is something to take. Safe to cancel.
    pub(super) async fn noted(&self) {
        self.shared.notify.notified().await;
    }
}

/// Before a watch that ended with an error is opened again.
const FIRST_DELAY: Duration = Duration::from_millis(100);
const LONGEST_DELAY: Duration = Duration::from_secs(10);

/// Notes what a watch brings, until it has lost track of changes.
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
            // It was open all that time, with nothing to tell.
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
                let change = Change {
                    now: ObjectVersion::of(&meta),
                    deleted,
                };
                shared.note(|changes| {
                    changes.objects.insert(object, change);
                });
            }
            Err(error) if error.lost_track() => {
                debug!(%error, "listing anew");
                // The next pass lists, and watches from there. Not at once, should every watch end so (INV-9).
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
