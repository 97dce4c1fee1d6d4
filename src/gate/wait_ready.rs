//! WaitReady: whether the reconciled state admits a release, checked again at every change of the status.

use crate::etcd::{Event, KeyRange, KeyValue, StoreLost};
use crate::gate::plan::admits;
use crate::gate::status::{Status, StatusError};
use crate::release::Release;
use crate::store::{Follower, Store, Update};

/// What must hold of the reconciled state before a process may serve.
#[derive(Clone, Copy, Debug)]
pub struct Requirements {
    /// The release of the process: the state must admit it.
    pub release: Release,
    /// The least release that must have reconciled the state.
    pub min_reconciler: Release,
}

/// Why a process must not serve yet, for people.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NotReady(pub String);

/// Follows the status key. Survives disconnects and compactions, and never fails. Waits on where the store is lost: see
/// [`Etcd::store_lost`](crate::etcd::Etcd::store_lost).
pub struct WaitReady {
    follower: Follower,
    requirements: Requirements,
    /// The status in the list that is being read.
    listed: Option<KeyValue>,
    stored: Option<Result<Status, StatusError>>,
}

impl WaitReady {
    /// Follows the status for these requirements. The first answer is from a linearizable read made after this call.
    pub fn new(store: &Store, requirements: Requirements) -> Self {
        let follower = Follower::new(&store.etcd, KeyRange::key(store.keys.status()));
        Self {
            follower,
            requirements,
            listed: None,
            stored: None,
        }
    }

    /// The status from which the last answer followed; `None` if there is none, and before the first answer.
    pub fn stored(&self) -> Option<&Result<Status, StatusError>> {
        self.stored.as_ref()
    }

    /// Whether the state meets the requirements: at once, then at every change. Safe to cancel.
    ///
    /// # Errors
    /// [`NotReady`], which is not final: call again.
    pub async fn next(&mut self) -> Result<(), NotReady> {
        loop {
            match self.follower.next().await {
                Update::Page { first, keys } => {
                    if first {
                        self.listed = None;
                    }
                    self.listed = keys.into_iter().next().or(self.listed.take());
                }
                Update::Listed(_) => {
                    let listed = self.listed.take();
                    return self.check(listed.as_ref());
                }
                Update::Events(events) => match events.last() {
                    Some(Event::Put(kv)) => return self.check(Some(kv)),
                    Some(Event::Delete { .. }) => return self.check(None),
                    None => {}
                },
            }
        }
    }

    fn check(&mut self, stored: Option<&KeyValue>) -> Result<(), NotReady> {
        self.stored = stored.map(|stored| Status::decode(&stored.value));
        let Requirements {
            release,
            min_reconciler,
        } = self.requirements;
        match &self.stored {
            None => Err(NotReady("there is no reconciler status yet".to_owned())),
            Some(Err(error)) => Err(NotReady(error.to_string())),
            Some(Ok(status)) => admits(status, release, min_reconciler).map_err(NotReady),
        }
    }
}

/// Returns once the reconciled state meets the requirements. Calls `on_reason` once for each new reason to wait.
///
/// # Errors
/// [`StoreLost`] if etcd is restored or replaced meanwhile.
pub async fn wait_ready(
    store: &Store,
    requirements: Requirements,
    mut on_reason: impl FnMut(&NotReady),
) -> Result<(), StoreLost> {
    let mut waiting = WaitReady::new(store, requirements);
    let mut reported = None;
    loop {
        let state = tokio::select! {
            // First: what was read by then is void.
            biased;
            lost = store.etcd.store_lost() => return Err(lost),
            state = waiting.next() => state,
        };
        match state {
            Ok(()) => return Ok(()),
            Err(reason) if reported.as_ref() == Some(&reason) => {}
            Err(reason) => {
                on_reason(&reason);
                reported = Some(reason);
            }
        }
    }
}
