//! A session: a lease, kept alive on a thread of its own, and the window in which its owner may act.

mod keepalive;
mod window;

use std::time::{Duration, Instant};

use tracing::{info, warn};

pub use window::{LeaseTimes, Pulse, TimesError, Window};

use super::connect::Etcd;
use super::error::Error;
use super::kv::LeaseId;
use keepalive::KeepAlive;

/// How long a lease's revocation may take; after that it ends by itself.
const REVOKE_LIMIT: Duration = Duration::from_secs(1);

/// A lease that is being kept alive. Dropped without [`Session::close`], it ends when its TTL is over.
pub struct Session {
    etcd: Etcd,
    lease: LeaseId,
    window: Window,
    keep_alive: KeepAlive,
}

/// Why there is no session.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// The lease could not be had.
    #[error("no lease: {0}")]
    Grant(#[from] Error),
    /// The granted TTL leaves no time to act in.
    #[error(transparent)]
    Times(#[from] TimesError),
    /// The keep-alive thread could not be started.
    #[error("no thread for the keep-alive: {0}")]
    Thread(std::io::Error),
}

impl Session {
    /// Takes a lease of about `ttl` and keeps it alive. `pulse` says that the work runtime is alive: a session
    /// whose owner is wedged is not renewed, so that another can take over.
    ///
    /// # Errors
    /// [`SessionError`]; a lease that was granted all the same ends by itself.
    pub async fn open(etcd: &Etcd, ttl: Duration, pulse: &Pulse) -> Result<Self, SessionError> {
        // The instant of sending: etcd counts the TTL from some later one.
        let sent = Instant::now();
        let seconds = i64::try_from(ttl.as_secs()).unwrap_or(i64::MAX).max(1);
        let granted = etcd
            .call("lease_grant", |connection| async move {
                connection.client.lease_client().grant(seconds, None).await
            })
            .await?;
        let lease = LeaseId(granted.id());
        // etcd may grant more than was asked for (at least 1.5 election timeouts): what it granted counts.
        let granted_ttl = Duration::from_secs(u64::try_from(granted.ttl()).unwrap_or(0));
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

    /// The lease, for keys that are to end with it.
    pub fn lease(&self) -> LeaseId {
        self.lease
    }

    /// When the owner may act.
    pub fn window(&self) -> &Window {
        &self.window
    }

    /// Ends the session: closes the window, stops the keep-alive, revokes the lease, within a second. After
    /// that nothing may be done in its name (INV-10).
    pub async fn close(self) {
        self.window.close();
        self.keep_alive.stop();
        let lease = self.lease;
        let revoked = tokio::time::timeout(
            REVOKE_LIMIT,
            self.etcd.call("lease_revoke", |connection| async move {
                connection.client.lease_client().revoke(lease.0).await
            }),
        )
        .await;
        match revoked {
            Ok(Ok(_)) => info!(%lease, "lease revoked"),
            Ok(Err(error)) if error.class == super::Class::LeaseNotFound => {}
            Ok(Err(error)) => warn!(%lease, "lease not revoked, it ends by itself: {error}"),
            Err(_) => warn!(%lease, "lease not revoked within {REVOKE_LIMIT:?}, it ends by itself"),
        }
    }
}
