//! The plugin itself: it logs every call, and answers it under the faults in force.

use std::collections::{BTreeMap, BTreeSet};
use std::future::pending;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use tokio::time::sleep;
use tonic::transport::server::UdsConnectInfo;
use tonic::{Code, Request, Response, Status};

use super::backend::{Backend, Published};
use super::faults::{About, Faults, Happening, Strike};
use super::log::{Begun, Log};
use super::options::Options;
use super::order::Order;
use quorate::csi::Method;

mod checks;
mod controller;
mod identity;
mod node;
mod publications;
mod volumes;

type Keyed = BTreeMap<String, String>;

/// A running plugin.
#[derive(Debug)]
pub(super) struct Plugin {
    options: Options,
    backend: Backend,
    log: Log,
    faults: Faults,
    ready: AtomicBool,
    expected: Mutex<Keyed>,
    /// Volumes with a call in flight. A second call for one of them is refused, as real plugins do.
    busy: Mutex<BTreeSet<String>>,
}

impl Plugin {
    pub fn open(options: Options) -> io::Result<Self> {
        Ok(Self {
            backend: match options.offers.controller {
                true => Backend::open(&options.backend)?,
                // The volumes, the unfinished ones among them, are another process's.
                false => Backend::at(&options.backend),
            },
            log: Log::open(&options.log)?,
            faults: Faults::default(),
            ready: AtomicBool::new(!options.not_ready),
            expected: Mutex::default(),
            busy: Mutex::default(),
            options,
        })
    }

    /// Carries out an order.
    pub fn carry_out(&self, order: Order) -> Result<(), String> {
        match order {
            Order::Fault(fault) => {
                fault.check()?;
                self.faults.add(fault);
            }
            Order::Clear => self.faults.clear(),
            Order::Release => self.faults.release(),
            Order::Ready(ready) => self.ready.store(ready, Ordering::Relaxed),
            Order::ExpectSecrets(secrets) => {
                *self.expected.lock().unwrap_or_else(PoisonError::into_inner) = secrets;
            }
            Order::Attach { volume, node } => {
                let published = Published { read_only: false };
                let done = self.backend.publish(&volume, &node, published);
                done.map_err(|error| error.to_string())?;
            }
            Order::Detach { volume, node } => {
                let done = self.backend.unpublish(&volume, &node);
                done.map_err(|error| error.to_string())?;
            }
        }
        Ok(())
    }

    /// Answers a call by `act`: logs it, and applies the faults in force.
    async fn serve<T: Default>(
        &self,
        method: Method,
        volume: &str,
        node: Option<&str>,
        secrets: Option<&Keyed>,
        act: impl FnOnce() -> Result<T, Status>,
    ) -> Result<Response<T>, Status> {
        self.serve_for(None, method, volume, node, secrets, act).await
    }

    /// The same for the process with this id.
    async fn serve_for<T: Default>(
        &self,
        caller: Option<i32>,
        method: Method,
        volume: &str,
        node: Option<&str>,
        secrets: Option<&Keyed>,
        act: impl FnOnce() -> Result<T, Status>,
    ) -> Result<Response<T>, Status> {
        let no_secrets = Keyed::new();
        let keys = secrets.unwrap_or(&no_secrets).keys().cloned().collect();
        let about = About {
            method: method.name(),
            volume,
            node,
        };
        // The faults are taken before the call is in the log. A fault that is ordered after that is for later calls.
        let taken = self.take(volume).map(|busy| (busy, self.faults.strike(about)));
        let entry = self.log.begin(Begun {
            method: method.name().to_owned(),
            volume: volume.to_owned(),
            node: node.map(str::to_owned),
            secrets: keys,
            caller,
        });
        let result = match taken {
            Ok((_busy, strike)) => self.under_faults(strike, volume, secrets, act).await,
            Err(in_flight) => Err(in_flight),
        };
        entry.end(result.as_ref().map_or_else(Status::code, |_| Code::Ok));
        result.map(Response::new)
    }

    async fn under_faults<T: Default>(
        &self,
        strike: Strike,
        volume: &str,
        secrets: Option<&Keyed>,
        act: impl FnOnce() -> Result<T, Status>,
    ) -> Result<T, Status> {
        let no_secrets = Keyed::new();
        let given = secrets.unwrap_or(&no_secrets);
        let Strike {
            delay,
            waits_since,
            happens,
        } = strike;
        if !volume.is_empty() {
            sleep(self.options.latency).await;
        }
        sleep(delay).await;
        if let Some(releases) = waits_since {
            self.faults.released_since(releases).await;
        }
        match &happens {
            Some(Happening::Fails(answer)) => return Err(answer.status(given)),
            Some(Happening::Hangs) => pending().await,
            Some(Happening::Pretends) => return Ok(T::default()),
            Some(Happening::Crashes) => std::process::abort(),
            _ => {}
        }
        if secrets.is_some() {
            self.check_secrets(given)?;
        }
        let result = act();
        match &happens {
            Some(Happening::FailsAfter(answer)) => Err(answer.status(given)),
            Some(Happening::LosesReply) => pending().await,
            Some(Happening::CrashesAfter) => std::process::abort(),
            _ => result,
        }
    }

    fn take<'a>(&'a self, volume: &'a str) -> Result<Option<Busy<'a>>, Status> {
        if volume.is_empty() {
            return Ok(None);
        }
        let mut busy = self.busy.lock().unwrap_or_else(PoisonError::into_inner);
        if busy.insert(volume.to_owned()) {
            Ok(Some(Busy { plugin: self, volume }))
        } else {
            Err(Status::aborted("another call for this volume is in flight"))
        }
    }

    /// Fails unless the call has the expected secrets. The error quotes a wrong value, as careless plugins do.
    fn check_secrets(&self, given: &Keyed) -> Result<(), Status> {
        let expected = self.expected.lock().unwrap_or_else(PoisonError::into_inner);
        for (key, value) in expected.iter() {
            match given.get(key) {
                None => return Err(Status::unauthenticated(format!("the secret {key} is missing"))),
                Some(other) if other != value => {
                    return Err(Status::unauthenticated(format!(
                        "the backend refused {key} {other:?}"
                    )));
                }
                Some(_) => {}
            }
        }
        Ok(())
    }
}

/// The id of the process that sent a request over a unix socket, as the kernel says.
fn caller<T>(request: &Request<T>) -> Option<i32> {
    let connection = request.extensions().get::<UdsConnectInfo>()?;
    connection.peer_cred.as_ref()?.pid()
}

/// Marks a volume with a call in flight, until it is dropped.
struct Busy<'a> {
    plugin: &'a Plugin,
    volume: &'a str,
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        let mut busy = self.plugin.busy.lock().unwrap_or_else(PoisonError::into_inner);
        busy.remove(self.volume);
    }
}
