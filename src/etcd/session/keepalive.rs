//! The keep-alive of one lease, on its own thread and runtime, so that no other work can starve it.
//!
//! It asks one member at a time, and the next one if an answer is late. A balanced channel could choose the same
//! black-holed member again.

use etcd_client::{Client, LeaseKeepAliveStream, LeaseKeeper};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::window::{LeaseTimes, Pulse, Window};
use crate::clock;
use crate::etcd::connect::Etcd;
use crate::etcd::error::{Class, Error};
use crate::etcd::kv::LeaseId;
use crate::own_thread;

/// The keep-alive's thread. Dropping this stops it.
pub(super) struct KeepAlive {
    stop: CancellationToken,
}

impl KeepAlive {
    pub fn start(
        etcd: &Etcd,
        lease: LeaseId,
        times: LeaseTimes,
        window: Window,
        pulse: Pulse,
    ) -> std::io::Result<Self> {
        let stop = CancellationToken::new();
        let renewal = Renewal {
            etcd: etcd.clone(),
            lease,
            times,
            window,
            pulse,
            next_endpoint: first_endpoint(lease),
        };
        let (stopped, etcd) = (stop.clone(), etcd.clone());
        let lost = renewal.window.clone();
        let renewing = async move {
            tokio::select! {
                () = stopped.cancelled() => {}
                () = renewal.run() => {}
                // The lease, if it still exists, is one of another history.
                _ = etcd.store_lost() => lost.close(),
            }
        };
        own_thread::spawn("lease", move || Ok(renewing))?;
        Ok(Self { stop })
    }

    pub fn stop(&self) {
        self.stop.cancel();
    }
}

impl Drop for KeepAlive {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Spreads the sessions of many replicas over the members, by a byte of the lease.
fn first_endpoint(lease: LeaseId) -> usize {
    usize::from(lease.0.to_le_bytes()[0])
}

struct Renewal {
    etcd: Etcd,
    lease: LeaseId,
    times: LeaseTimes,
    window: Window,
    pulse: Pulse,
    next_endpoint: usize,
}

type Streams = (LeaseKeeper, LeaseKeepAliveStream);

impl Renewal {
    /// Renews the lease until it is gone or its window closed. Closes the window for good.
    async fn run(mut self) {
        let mut streams = None;
        let mut retries = self.times.retries();
        while self.window.is_open() {
            // An owner that hangs must not keep the lease: without a pulse the lease ends.
            let pulse_age = self.pulse.age();
            if pulse_age > self.times.margin + Pulse::INTERVAL {
                warn!(lease = %self.lease, "not renewing the lease: the work's runtime has not beaten its pulse for {pulse_age:?}");
                tokio::time::sleep(self.times.retry).await;
                continue;
            }
            let sent = clock::now();
            let limit = self.times.answer_limit;
            match tokio::time::timeout(limit, self.renew(&mut streams)).await {
                Ok(Ok(())) => {
                    self.etcd.0.quorum.answered(sent);
                    if !self.window.extend(clock::now(), self.times.deadline(sent)) {
                        info!(lease = %self.lease, "the lease was renewed after its window had closed");
                        return;
                    }
                    retries.reset();
                    tokio::time::sleep(self.times.interval).await;
                    continue;
                }
                Ok(Err(error)) if error.class == Class::LeaseNotFound => {
                    warn!(lease = %self.lease, "the lease is gone");
                    break;
                }
                Ok(Err(error)) => debug!(lease = %self.lease, "keep-alive failed: {error}"),
                Err(_) => debug!(lease = %self.lease, "keep-alive not answered within {limit:?}"),
            }
            streams = None;
            self.etcd.metrics().keepalive_failures.inc();
            self.etcd.0.recheck.notify_one();
            retries.wait().await;
        }
        self.window.close();
    }

    /// Sends one keep-alive and waits for its answer.
    async fn renew(&mut self, streams: &mut Option<Streams>) -> Result<(), Error> {
        let (keeper, answers) = match streams {
            Some(open) => open,
            // Opening the stream is a keep-alive itself, but its answer does not show which store gave it.
            None => streams.insert(self.open().await?),
        };
        keeper.keep_alive().await.map_err(of_keep_alive)?;
        let answer = answers.message().await.map_err(of_keep_alive)?;
        if let Some(header) = answer.as_ref().and_then(|answer| answer.header()) {
            // It may be older than the revisions that other answers showed.
            self.etcd.check_header(OPERATION, header.into(), None)?;
        }
        match answer {
            Some(answer) if answer.ttl() > 0 => Ok(()),
            Some(_) => Err(Error::new(
                OPERATION,
                "NotFound",
                Class::LeaseNotFound,
                String::new(),
            )),
            None => {
                let text = "the stream ended".to_owned();
                Err(Error::new(OPERATION, "Unavailable", Class::Unavailable, text))
            }
        }
    }

    async fn open(&mut self) -> Result<Streams, Error> {
        let endpoints = self.etcd.live_endpoints();
        let endpoint = endpoints
            .get(self.next_endpoint % endpoints.len().max(1))
            .cloned();
        self.next_endpoint = self.next_endpoint.wrapping_add(1);
        let options = self.etcd.connection().options.clone();
        let opened = async {
            let mut client = Client::connect(endpoint.as_slice(), Some(options)).await?;
            client.lease_keep_alive(self.lease.0).await
        };
        opened.await.map_err(of_keep_alive)
    }
}

const OPERATION: &str = "lease_keep_alive";

fn of_keep_alive(error: etcd_client::Error) -> Error {
    Error::from_client(OPERATION, error)
}
