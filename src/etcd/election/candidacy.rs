//! A candidate's key, from its entry until no older key is left.
//!
//! A candidate watches its own key and the one created before it, nothing else. So a change among many candidates costs one
//! of them a read, and the others nothing.

use std::future::Future;
use std::time::Duration;

use tracing::{debug, info};

use super::{CampaignError, range_of};
use crate::etcd::connect::Etcd;
use crate::etcd::error::Error;
use crate::etcd::kv::{KeyRange, KeyValue, LeaseId, Revision};
use crate::etcd::txn::{Txn, TxnError};
use crate::etcd::watch::Watcher;
use crate::retry::{Delays, Policy};

/// A candidate looks again after about this time, in case a watch ever misses a change.
const LOOK_AGAIN: Policy = Policy::new(Duration::from_secs(60), Duration::from_secs(60));

/// The key of a candidate.
pub(super) struct Candidacy<'a> {
    etcd: &'a Etcd,
    election: KeyRange,
    key: &'a [u8],
    lease: LeaseId,
    /// The create revision of the key.
    pub term: Revision,
}

impl<'a> Candidacy<'a> {
    /// Writes the candidate's key.
    pub async fn enter(
        etcd: &'a Etcd,
        prefix: &str,
        key: &'a [u8],
        name: &str,
        lease: LeaseId,
    ) -> Result<Self, CampaignError> {
        let entry = Txn::new().when_absent(key).put_leased(key, name, lease);
        let term = match etcd.unfenced_entry(entry).await {
            Ok(term) => term,
            // No other process writes this key, so the key itself shows whether the write was applied.
            Err(error @ (TxnError::Unknown(_) | TxnError::Conflict { .. })) => {
                let (own, _) = answered(|| etcd.get(key)).await?;
                let lost = || match error {
                    TxnError::Unknown(full) if full.is_out_of_space() => TxnError::Failed(full).into(),
                    _ => CampaignError::CandidacyLost,
                };
                own.filter(|own| own.lease == Some(lease))
                    .ok_or_else(lost)?
                    .create_revision
            }
            Err(error) => return Err(error.into()),
        };
        debug!(%lease, %term, "entered the election");
        Ok(Self {
            etcd,
            election: range_of(prefix),
            key,
            lease,
            term,
        })
    }

    /// Waits until no older key is left. The read that shows this also confirms the own key: it is linearizable and shows
    /// the key with its create revision and lease at the same revision (INV-2), which this returns.
    pub async fn wait_until_first(&self) -> Result<Revision, CampaignError> {
        let mut own = Watcher::new(self.etcd, KeyRange::key(self.key), self.term.next());
        own.open().await;
        let mut ahead: Option<(Revision, Watcher)> = None;
        loop {
            let place = answered(|| self.etcd.place(self.key, &self.election, self.term)).await?;
            if !place.own.is_some_and(|own| is_held(&own, self.term, self.lease)) {
                return Err(CampaignError::CandidacyLost);
            }
            let Some(next) = place.ahead else {
                return Ok(place.revision);
            };
            let watcher = match &mut ahead {
                Some((created, watcher)) if *created == next.create_revision => watcher,
                other => {
                    info!("standing by behind {}", String::from_utf8_lossy(&next.value));
                    let range = KeyRange::key(next.key);
                    let mut watcher = Watcher::new(self.etcd, range, place.revision.next());
                    watcher.open().await;
                    &mut other.insert((next.create_revision, watcher)).1
                }
            };
            // After any change of the two, and after a compaction, the candidate looks again.
            tokio::select! {
                _ = own.next() => {}
                _ = watcher.next() => {}
                () = tokio::time::sleep(LOOK_AGAIN.delay(1)) => {}
            }
        }
    }
}

/// Whether this is still the key that its candidate wrote. A plain put takes it off its lease.
pub(super) fn is_held(found: &KeyValue, term: Revision, lease: LeaseId) -> bool {
    found.create_revision == term && found.lease == Some(lease)
}

/// Repeats a read until etcd answers it. A failed read costs no candidate its place, which its key holds for as long as its
/// lease lives. The caller gives up once the window of that closes.
async fn answered<T, F: Future<Output = Result<T, Error>>>(read: impl Fn() -> F) -> Result<T, Error> {
    let mut delays = Delays::etcd();
    loop {
        match read().await {
            Err(error) if error.is_retryable() => {
                debug!("a candidate's read failed, trying again: {error}");
                delays.wait().await;
            }
            answer => return answer,
        }
    }
}

impl Etcd {
    #[expect(
        clippy::disallowed_methods,
        reason = "a candidate has no fence yet, and its key is absent or its own"
    )]
    async fn unfenced_entry(&self, entry: Txn) -> Result<Revision, TxnError> {
        self.unfenced(entry).await.map(|committed| committed.revision)
    }
}
