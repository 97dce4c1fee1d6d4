//! Health, metrics and the status page over HTTP.
//!
//! The server has a thread and a runtime of its own: a work runtime that hangs does not take the probes with it, and
//! `/livez` reports that it hangs.
//!
//! | page | 200 | 503 |
//! | --- | --- | --- |
//! | `/livez` | the process makes progress | the kubelet should restart it |
//! | `/readyz` | this replica may serve | it must not, for the reasons in the body |
//! | `/leaderz` | this replica leads | another one leads, or none; an agent has no such page |
//! | `/metrics` | always, in OpenMetrics text format | |
//! | `/` | the status page of a replica; `/api/v1/state` is the same as JSON; 403 under a foreign name (`hosts`) | |

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::oneshot;

use crate::check::Check;
use crate::metrics::Metrics;
use crate::own_thread;
use crate::page::Sources;
use connections::OfConnection;
use screen::Screen;

mod answer;
mod connections;
mod hosts;
mod pages;
mod places;
mod screen;
mod stalled;
mod viewers;

/// How long [`Server::stop`] lets requests under way finish. A probe is answered from memory, in well under a
/// millisecond: only a client that stopped reading or writing takes longer. A replica has 3 s to exit.
const DRAIN: Duration = Duration::from_millis(200);

/// The answer of a probe.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The checks, in the order of the page.
    pub checks: Vec<Check>,
}

impl Report {
    /// Whether every check passed; true without checks.
    pub fn ok(&self) -> bool {
        self.checks.iter().all(|check| check.ok)
    }
}

/// The answer of `/leaderz`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeaderReport {
    /// Whether this replica leads.
    pub leading: bool,
    /// Node id of the leader, as far as this replica knows.
    pub leader: Option<String>,
    /// Whether `leader` is only the last one that was seen, because this replica is not registered or cannot reach etcd.
    pub is_last_known: bool,
    /// Which newer replica stands for election, so that this one does not, in words.
    pub yields_to: Option<String>,
    /// Why etcd refuses the writes of this replica, so that it does not stand for election, in words.
    pub refused: Option<String>,
}

/// What the pages show. Each is called once a request, on the server's thread, and must not block.
pub struct Probes {
    /// `/livez`. Neither etcd nor leadership belong here: a restart would help neither.
    pub live: Box<dyn Fn() -> Report + Send + Sync>,
    /// `/readyz`.
    pub ready: Box<dyn Fn() -> Report + Send + Sync>,
    /// `/leaderz`; `None` for a process that never leads.
    pub leader: Option<Box<dyn Fn() -> LeaderReport + Send + Sync>>,
    /// The status page; `None` for a process without one.
    pub page: Option<Page>,
}

/// The status page of a process.
pub struct Page {
    /// What it shows.
    pub sources: Sources,
    /// Names of the public DNS by which a browser may ask for it over a loopback address.
    pub hosts: Vec<String>,
}

/// Why the server did not start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The address is in use, not of this machine, or not allowed.
    #[error("cannot listen on {address} for health and metrics: {reason}")]
    Listen {
        /// The requested address.
        address: SocketAddr,
        /// The system's answer.
        reason: std::io::Error,
    },
    /// The system has no thread or no event queue left.
    #[error("cannot start the thread for health and metrics: {reason}")]
    Thread {
        /// The system's answer.
        reason: std::io::Error,
    },
}

/// A running server. Dropping it stops it too, without waiting.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    stop: oneshot::Sender<()>,
    thread: JoinHandle<()>,
}

/// Binds `listen` (port 0: a free port) and serves until [`Server::stop`].
///
/// # Errors
/// [`Error::Listen`] if the address cannot be bound, [`Error::Thread`] if the server cannot start. From an `Ok` on,
/// connections are accepted.
pub fn start(listen: SocketAddr, mut probes: Probes, metrics: Metrics) -> Result<Server, Error> {
    let refused = |reason| Error::Listen {
        address: listen,
        reason,
    };
    let listener = TcpListener::bind(listen).map_err(refused)?;
    listener.set_nonblocking(true).map_err(refused)?;
    let address = listener.local_addr().map_err(refused)?;

    let (stop, stopped) = oneshot::channel();
    let (screen, hosts) = match probes.page.take() {
        Some(page) => (Some(Arc::new(Screen::new(page.sources))), page.hosts),
        None => (None, Vec::new()),
    };
    let router = pages::router(Arc::new(probes), metrics, screen.clone(), hosts);
    let begin = move || {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        Ok(serve(listener, router, screen, stopped))
    };
    let thread = own_thread::spawn("health", begin).map_err(|reason| Error::Thread { reason })?;
    Ok(Server {
        address,
        stop,
        thread,
    })
}

async fn serve(
    listener: tokio::net::TcpListener,
    router: axum::Router,
    screen: Option<Arc<Screen>>,
    stopped: oneshot::Receiver<()>,
) {
    let (drain, draining) = oneshot::channel();
    let connections = connections::Connections::new(listener);
    let service = router.into_make_service_with_connect_info::<OfConnection>();
    let viewers = screen.clone();
    let server = axum::serve(connections, service).with_graceful_shutdown(async move {
        // An error means that the `Server` was dropped, which stops it too.
        let _ = stopped.await;
        if let Some(viewers) = viewers {
            viewers.stop();
        }
        let _ = drain.send(());
    });
    let drawing = async {
        if let Some(screen) = screen {
            screen.keep().await;
        }
        std::future::pending().await
    };
    let limit = async {
        let _ = draining.await;
        tokio::time::sleep(DRAIN).await;
    };
    tokio::select! {
        // axum itself retries when it fails to accept, and returns only after the shutdown.
        _ = server => {}
        () = limit => {}
        () = drawing => {}
    }
}

impl Server {
    /// The address that it listens on, with the port that the system chose for port 0.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Accepts nothing more, lets requests under way finish for at most [`DRAIN`], and joins the thread.
    pub fn stop(self) {
        let _ = self.stop.send(());
        if self.thread.join().is_err() {
            tracing::error!("the thread for health and metrics had panicked");
        }
    }
}

#[cfg(test)]
mod tests;
