//! Whether this replica may serve, continuously: registered, then judged, and no longer than the registration's
//! window (INV-4).

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::info;

use super::registration::Registered;
use super::wait_ready::{NotReady, Requirements, WaitReady};
use crate::etcd::Window;
use crate::store::Store;

/// What `/readyz` shows.
#[derive(Clone, Debug)]
pub struct Readiness(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    registration: Option<Window>,
    gate: Result<(), NotReady>,
}

impl Default for Readiness {
    fn default() -> Self {
        let gate = Err(NotReady("the reconciler status has not been read yet".to_owned()));
        Self(Arc::new(Mutex::new(State {
            registration: None,
            gate,
        })))
    }
}

impl Readiness {
    /// Whether the registration stands and etcd was reached within its window, at this instant.
    pub fn registered(&self) -> bool {
        self.with(|state| state.registration.as_ref().is_some_and(Window::is_open))
    }

    /// What the gate says, judged after the registration.
    ///
    /// # Errors
    /// Why this replica must not serve.
    pub fn gate(&self) -> Result<(), NotReady> {
        self.with(|state| state.gate.clone())
    }

    fn with<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        // Every assignment leaves a whole state behind, so that a poisoned one is good.
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Judges anew after every registration and at every change of the status, until cancelled. Without
    /// requirements (no Kubernetes) the gate is open.
    pub async fn keep(
        &self,
        store: &Store,
        requirements: Option<Requirements>,
        mut registrations: watch::Receiver<Option<Registered>>,
        stop: CancellationToken,
    ) {
        loop {
            let registered = registrations.borrow_and_update().clone();
            let judging = async {
                let (Some(registered), Some(requirements)) = (&registered, requirements) else {
                    return std::future::pending().await;
                };
                // A fresh one reads linearizably, so at a revision not older than the registration.
                let mut waiting = WaitReady::new(store, requirements);
                let mut told = None;
                loop {
                    let verdict = waiting.next().await;
                    if told.as_ref() != Some(&verdict) {
                        match &verdict {
                            Ok(()) => info!("the reconciled state admits this replica"),
                            Err(reason) => info!("not ready: {reason}"),
                        }
                        told = Some(verdict.clone());
                    }
                    self.with(|state| {
                        state.gate = verdict;
                        state.registration = Some(registered.window.clone());
                    });
                }
            };
            match (&registered, requirements) {
                (Some(registered), None) => self.with(|state| {
                    state.gate = Ok(());
                    state.registration = Some(registered.window.clone());
                }),
                // Registered, but not judged since: unready until the status was read.
                (Some(_), Some(_)) | (None, _) => self.with(|state| *state = State::unjudged()),
            }
            tokio::select! {
                () = stop.cancelled() => return self.with(|state| *state = State::unjudged()),
                changed = registrations.changed() => {
                    if changed.is_err() {
                        return self.with(|state| *state = State::unjudged());
                    }
                }
                () = judging => {}
            }
        }
    }
}

impl State {
    fn unjudged() -> Self {
        let gate = Err(NotReady("not judged since the last registration".to_owned()));
        Self {
            registration: None,
            gate,
        }
    }
}
