//! Whether this replica may serve, at every instant: registered first, then admitted by the status, and no longer than
//! the registration's window is open (INV-4).

use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::info;

use super::registration::Registered;
use super::status::{Status, StatusError};
use super::wait_ready::{NotReady, Requirements, WaitReady};
use crate::etcd::Window;
use crate::mutation::{self, Guard};
use crate::store::Store;

/// What `/readyz` shows. All clones share one state.
#[derive(Clone, Debug)]
pub struct Readiness(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    /// The window of the registration under which the gate was read.
    registration: Option<Window>,
    gate: Result<(), NotReady>,
    /// The status as it was read last, also under an earlier registration: for people.
    status: SeenStatus,
}

/// The status as a replica has read it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum SeenStatus {
    /// Not read yet, or never: a replica without Kubernetes reads none.
    #[default]
    Unread,
    /// There is none.
    Absent,
    /// There is one.
    Stored(Result<Status, StatusError>),
}

impl Default for Readiness {
    fn default() -> Self {
        let state = State {
            registration: None,
            gate: Err(NotReady("the reconciler status has not been read yet".to_owned())),
            status: SeenStatus::default(),
        };
        Self(Arc::new(Mutex::new(state)))
    }
}

impl Readiness {
    /// Whether the registration stands and etcd was reached within its window, at this instant.
    pub fn registered(&self) -> bool {
        let serves = |window: &Window| mutation::without(Guard::Registration) || window.is_open();
        self.with(|state| state.registration.as_ref().is_some_and(serves))
    }

    /// Whether the status admits this replica, as read after its registration.
    ///
    /// # Errors
    /// Why this replica must not serve.
    pub fn gate(&self) -> Result<(), NotReady> {
        self.with(|state| state.gate.clone())
    }

    /// The status as it was read last. No decision reads it.
    pub fn status(&self) -> SeenStatus {
        self.with(|state| state.status.clone())
    }

    fn with<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        // Every assignment leaves a whole state, so a poisoned one is valid.
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn set(&self, registration: Option<Window>, gate: Result<(), NotReady>) {
        self.with(|state| (state.registration, state.gate) = (registration, gate));
    }

    /// Reads the status after every registration and follows its changes, until stopped. Without requirements (no
    /// Kubernetes) a registration is enough.
    pub async fn keep(
        &self,
        store: &Store,
        requirements: Option<Requirements>,
        mut registrations: watch::Receiver<Option<Registered>>,
        stop: CancellationToken,
    ) {
        let unread = || {
            Err(NotReady(
                "the status was not read since the last registration".to_owned(),
            ))
        };
        loop {
            let registered = registrations.borrow_and_update().clone();
            if !mutation::without(Guard::Registration) {
                self.set(None, unread());
            }
            tokio::select! {
                () = stop.cancelled() => break,
                changed = registrations.changed() => if changed.is_err() { break },
                never = self.follow(store, requirements, registered) => match never {},
            }
        }
        self.set(None, unread());
    }

    /// Follows the status under one registration.
    async fn follow(
        &self,
        store: &Store,
        requirements: Option<Requirements>,
        registered: Option<Registered>,
    ) -> Infallible {
        let Some(Registered { window }) = registered else {
            return std::future::pending().await;
        };
        let set = |gate| self.set(Some(window.clone()), gate);
        let Some(requirements) = requirements else {
            set(Ok(()));
            return std::future::pending().await;
        };
        // Its first read is linearizable, so at a revision not older than the registration.
        let mut waiting = WaitReady::new(store, requirements);
        let mut logged = None;
        loop {
            let gate = waiting.next().await;
            if logged.as_ref() != Some(&gate) {
                match &gate {
                    Ok(()) => info!("the reconciled state admits this replica"),
                    Err(reason) => info!("not ready: {reason}"),
                }
                logged = Some(gate.clone());
            }
            let status = match waiting.stored() {
                None => SeenStatus::Absent,
                Some(stored) => SeenStatus::Stored(stored.clone()),
            };
            self.with(|state| state.status = status);
            set(gate);
        }
    }
}
