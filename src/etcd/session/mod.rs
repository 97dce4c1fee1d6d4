//! A session: a lease with a keep-alive on its own thread, and the window in which the owner may act.

mod keepalive;
mod window;

use std::pin::pin;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use tracing::{info, warn};

pub use window::{LeaseTimes, Pulse, TimesError, Window};

use super::connect::Etcd;
use super::error::{Class, Error};
use super::kv::LeaseId;
use crate::clock;
use crate::retry::Delays;
use keepalive::KeepAlive;

/// A lease with its keep-alive. If it is dropped without [`Session::close`], the lease ends with its TTL.
pub struct Session {
    etcd: Etcd,
    lease: LeaseId,
    window: Window,
    keep_alive: KeepAlive,
}

/// Why there is no session.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// etcd did not grant a lease.
    #[error("no lease was granted")]
    Grant(#[from] Error),
    /// The granted TTL is too short to act in.
    #[error(transparent)]
    Times(#[from] TimesError),
    /// The keep-alive's thread could not be started.
    #[error("the keep-alive's thread could not be started")]
    Thread(#[source] std::io::Error),
}

impl Session {
    /// The limit on revoking a lease. A lease that is not revoked ends with its TTL. Members of etcd that have lost their raft
    /// leader revoke nothing before they have elected another: 1 to 2 s with etcd's own settings, most often less than 1.5 s.
    pub(super) const CLOSE_LIMIT: Duration = Duration::from_secs(2);

    /// Obtains a lease of about `ttl` and keeps it alive. The lease is renewed only while `pulse` beats, so that another
    /// process can take over from an owner whose runtime hangs.
    ///
    /// # Errors
    /// [`SessionError`]. A lease that etcd may have granted ends with its TTL.
    pub async fn open(etcd: &Etcd, ttl: Duration, pulse: &Pulse) -> Result<Self, SessionError> {
        // Taken before sending: etcd counts the TTL from a later instant.
        let sent = clock::now();
        let (lease, granted_ttl) = etcd.grant_lease(ttl).await?;
        let times = LeaseTimes::for_granted(granted_ttl)?;
        let window = Window::open_until(times.deadline(sent));
        let keep_alive = KeepAlive::start(etcd, lease, times, window.clone(), pulse.clone())
            .map_err(SessionError::Thread)?;
        Ok(Self {
            etcd: etcd.clone(),
            lease,
            window,
            keep_alive,
        })
    }

    pub(super) fn etcd(&self) -> &Etcd {
        &self.etcd
    }

    /// The lease, for keys that its end deletes.
    pub fn lease(&self) -> LeaseId {
        self.lease
    }

    /// The window in which the owner may act.
    pub fn window(&self) -> &Window {
        &self.window
    }

    /// Ends the session within two seconds: closes the window, stops the keep-alive, revokes the lease. Nothing may be done in
    /// the session's name afterwards (INV-10).
    pub async fn close(self) {
        self.window.close();
        self.keep_alive.stop();
        let (lease, limit) = (self.lease, Self::CLOSE_LIMIT);
        match tokio::time::timeout(limit, self.revoke()).await {
            Ok(Ok(())) => info!(%lease, "lease revoked"),
            Ok(Err(error)) if error.class == Class::LeaseNotFound => {}
            Ok(Err(error)) => warn!(%lease, "lease not revoked, it ends with its TTL: {error}"),
            Err(_) => warn!(%lease, "lease not revoked within {limit:?}, it ends with its TTL"),
        }
    }

    /// Asks all endpoints at once, and again until one of them answers: an endpoint may have gone at the same moment as its
    /// client. What was asked before is still awaited. A member that does not know yet that the raft leader is gone sends the
    /// request to that, so only a later request may be answered. A lease that is revoked twice is revoked.
    async fn revoke(&self) -> Result<(), Error> {
        let mut delays = Delays::new(Self::CLOSE_LIMIT / 20, Self::CLOSE_LIMIT / 8);
        let lease = self.lease.0;
        let mut asked = FuturesUnordered::new();
        loop {
            let revoked = self
                .etcd
                .through_any("lease_revoke", Self::CLOSE_LIMIT, |client| async move {
                    client.lease_client().revoke(lease).await
                });
            asked.push(revoked);
            let mut again = pin!(delays.wait());
            loop {
                tokio::select! {
                    biased;
                    Some(answer) = asked.next() => match answer {
                        Err(error) if error.is_retryable() => {}
                        answer => return answer.map(drop),
                    },
                    () = &mut again => break,
                }
            }
        }
    }
}
