//! A session that is on record, and the lease that its heartbeats renew.

use std::future::pending;
use std::time::Duration;

use futures::future::BoxFuture;
use tokio::time::Instant;
use tracing::debug;

use crate::control::session::Sessions;
use crate::control::session::ending::Ending;
use crate::control::session::judgement::{Facts, Verdict};
use crate::control::session::place::Place;
use crate::etcd::{Class, Error, LeaseId};
use crate::retry::spread;

/// A session that is older ends, up to a quarter earlier, so that the agents spread over the replicas again after a rollout.
const OLDEST_SESSION: Duration = Duration::from_secs(3600);

/// A heartbeat that comes before this part of a lease has passed since the last renewal renews nothing.
const LEAST_PART: u32 = 10;

/// A session that is on record.
pub(super) struct Open {
    pub facts: Facts,
    pub place: Place,
    pub lease: LeaseId,
    pub ttl: Duration,
    pub since: Instant,
    pub until: Instant,
    pub heard: Instant,
    /// When the last renewal of the lease began, and that renewal.
    pub renewed: Instant,
    pub renewing: Option<BoxFuture<'static, Result<(), Error>>>,
    pub sent: Option<Sent>,
    /// When secrets are read again.
    pub secrets_at: Option<Instant>,
}

impl Open {
    pub fn now(facts: Facts, place: Place, lease: LeaseId, ttl: Duration) -> Self {
        let now = Instant::now();
        Self {
            facts,
            place,
            lease,
            ttl,
            since: now,
            until: now + OLDEST_SESSION - spread(OLDEST_SESSION / 4),
            heard: now,
            renewed: now,
            renewing: None,
            sent: None,
            secrets_at: None,
        }
    }

    /// Judges a heartbeat, and renews the lease with it.
    pub fn on_heartbeat(&mut self, sessions: &Sessions) -> Result<(), Ending> {
        if let Some(verdict) = sessions.judge(&self.facts) {
            return Err(verdict.into());
        }
        if sessions.is_stale() {
            return Err(Ending::Stale);
        }
        let now = Instant::now();
        self.heard = now;
        sessions.store.etcd.metrics().session_heartbeats.inc();
        if now - self.since > Sessions::calm_after(sessions.lease) {
            sessions.calm(&self.facts);
        }
        let is_early = now - self.renewed < self.ttl / LEAST_PART;
        if self.renewing.is_none() && !is_early {
            let (etcd, lease) = (sessions.store.etcd.clone(), self.lease);
            self.renewed = now;
            self.renewing = Some(Box::pin(async move { etcd.renew_lease(lease).await }));
        }
        Ok(())
    }

    pub fn on_renewed(&self, renewed: Result<(), Error>) -> Result<(), Ending> {
        match renewed {
            Err(error) if error.class == Class::LeaseNotFound => Err(Verdict::Lapsed.into()),
            // The next heartbeat tries again.
            Err(error) => {
                debug!(
                    "node {}: the lease of its session is not renewed: {error}",
                    self.facts.name
                );
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }
}

/// The last view that was sent.
pub(super) struct Sent {
    /// Its digest, without secrets.
    pub view: u64,
    /// Which publications lacked a secret in it.
    pub lacks: Vec<usize>,
    /// Why secrets could not be read for it.
    pub unread: Vec<String>,
    /// The digest of the secrets.
    pub secrets: u64,
}

impl Sent {
    /// Whether it is as good as the same view with these secrets. A secret that cannot be read any more is not taken from the node.
    pub fn serves(&self, secrets: u64, lacks: &[usize]) -> bool {
        let is_same = self.secrets == secrets && self.lacks == lacks;
        is_same || self.lacks.len() < lacks.len()
    }
}

/// Resolves once the renewal that is under way has ended.
pub(super) async fn ended(renewing: &mut Option<BoxFuture<'static, Result<(), Error>>>) -> Result<(), Error> {
    match renewing {
        Some(renewing) => renewing.await,
        None => pending().await,
    }
}
