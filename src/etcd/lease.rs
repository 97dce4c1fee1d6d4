//! Leases, one request at a time. A [`Session`](super::Session) keeps its own lease by itself.

use std::time::Duration;

use super::connect::Etcd;
use super::error::Error;
use super::kv::LeaseId;
use super::store_identity::Header;

impl Etcd {
    /// Obtains a lease of about `ttl`. Returns the lease and the TTL that etcd granted, which counts and may be longer (at least
    /// 1.5 election timeouts).
    ///
    /// # Errors
    /// [`Error`] if etcd did not answer. A lease that it may have granted ends with its TTL.
    pub async fn grant_lease(&self, ttl: Duration) -> Result<(LeaseId, Duration), Error> {
        let seconds = i64::try_from(ttl.as_secs()).unwrap_or(i64::MAX).max(1);
        let granted = self
            .call("lease_grant", |connection| async move {
                connection.client.lease_client().grant(seconds, None).await
            })
            .await?;
        let ttl = Duration::from_secs(u64::try_from(granted.ttl()).unwrap_or(0));
        Ok((LeaseId(granted.id()), ttl))
    }

    /// The TTL that etcd granted a lease.
    ///
    /// # Errors
    /// [`Error`] if etcd did not answer. A lease that is gone has a TTL of zero.
    pub async fn granted_ttl(&self, lease: LeaseId) -> Result<Duration, Error> {
        let asked = self.call("lease_time_to_live", |connection| async move {
            let asked = connection.client.lease_client().time_to_live(lease.0, None).await;
            asked.map(|answer| (answer.header().map(Header::from), answer.granted_ttl()))
        });
        let (_, seconds) = asked.await?;
        Ok(Duration::from_secs(u64::try_from(seconds).unwrap_or(0)))
    }

    /// The time that a lease has left.
    ///
    /// # Errors
    /// [`Error`] if etcd did not answer. A lease that is gone has none left.
    pub async fn time_left(&self, lease: LeaseId) -> Result<Duration, Error> {
        let asked = self.call("lease_time_to_live", |connection| async move {
            let asked = connection.client.lease_client().time_to_live(lease.0, None).await;
            asked.map(|answer| (answer.header().map(Header::from), answer.ttl()))
        });
        let (_, seconds) = asked.await?;
        Ok(Duration::from_secs(u64::try_from(seconds).unwrap_or(0)))
    }

    /// Renews a lease once, for the whole of its TTL from now on.
    ///
    /// # Errors
    /// [`Error`]; of class [`Class::LeaseNotFound`](super::Class::LeaseNotFound) if the lease is gone.
    pub async fn renew_lease(&self, lease: LeaseId) -> Result<(), Error> {
        let renewed = self.call("lease_keep_alive", |connection| async move {
            // Opening the stream renews the lease. Its answer does not show which store gave it.
            let opened = connection.client.lease_client().keep_alive(lease.0).await;
            opened.map(|_streams| (None, ()))
        });
        renewed.await.map(|(_, ())| ())
    }
}
