//! The election: plain transactions and watches, by the recipe of etcd's clientv3/concurrency, so that
//! `etcdctl elect` takes part and listens.
//!
//! Not the Election RPC: it does not notice that the candidate's own lease ended, and makes a leader without a
//! key of it (REQ-E-1).

use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tracing::{debug, info};

use super::connect::Etcd;
use super::error::Error;
use super::fence::Fence;
use super::kv::{KeyRange, KeyValue, LeaseId, Revision};
use super::session::{Pulse, Session, SessionError};
use super::txn::{Txn, TxnError};
use super::watch::Watcher;

/// Won: the session that holds the key, and the proof for writes. End it with [`Leadership::resign`].
pub struct Leadership {
    session: Session,
    fence: Fence,
}

impl Leadership {
    /// What every write of the leader carries.
    pub fn fence(&self) -> &Fence {
        &self.fence
    }

    /// Resolves when the election key is gone although the lease may live: deleted by an operator, say. The next
    /// candidate then leads, and nothing but this tells a leader that writes seldom.
    pub async fn key_lost(&self) {
        let Fence { key, term, .. } = &self.fence;
        let held = |found: &KeyValue| found.create_revision == *term;
        self.session.etcd().while_key(key, held).await;
    }

    /// Gives leadership up: the lease is revoked, the next candidate leads. Only after all work has ended.
    pub async fn resign(self) {
        self.session.close().await;
    }
}

/// Why a campaign ended without a leader.
#[derive(Debug, thiserror::Error)]
pub enum CampaignError {
    /// The caller withdrew.
    #[error("withdrawn")]
    Withdrawn,
    /// No lease, so no candidate.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// The candidate's lease ended, or its key was deleted, while it waited.
    #[error("the candidate's key or lease is gone")]
    CandidacyLost,
    /// etcd did not take the candidate's key.
    #[error("the candidate's key was not written: {0}")]
    Enter(#[from] TxnError),
    /// The candidates cannot be read.
    #[error("the candidates cannot be read: {0}")]
    Observe(#[from] Error),
}

/// Who leads, by the keys in etcd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// What the candidate wrote: its node id.
    pub name: String,
    /// Its key.
    pub key: Vec<u8>,
    /// The lease of its key. A plain put takes the key off it, and then it ends with nobody: whoever entered later waits
    /// until the key is deleted.
    pub lease: Option<LeaseId>,
    /// Create revision of its key; the term of the one that leads.
    pub entered: Revision,
}

/// All candidates, the leader first. `prefix` as in `etcdctl elect`, without a trailing slash.
///
/// # Errors
/// [`Error`] if etcd did not answer.
pub async fn candidates(etcd: &Etcd, prefix: &str) -> Result<Vec<Candidate>, Error> {
    let (mut keys, _) = etcd.list(&range_of(prefix)).await?;
    keys.sort_by_key(|kv| kv.create_revision);
    let candidate = |kv: KeyValue| Candidate {
        name: String::from_utf8_lossy(&kv.value).into_owned(),
        key: kv.key,
        lease: kv.lease,
        entered: kv.create_revision,
    };
    Ok(keys.into_iter().map(candidate).collect())
}

/// Stands for election below `prefix` until elected or withdrawn. Every way out but victory revokes the lease
/// (REQ-E-2); a campaign that is to go on after an error starts anew, with a fresh lease.
///
/// # Errors
/// [`CampaignError`], with nothing left behind that could win later.
pub async fn campaign(
    etcd: &Etcd,
    prefix: &str,
    name: &str,
    ttl: Duration,
    pulse: &Pulse,
    withdraw: &CancellationToken,
) -> Result<Leadership, CampaignError> {
    let session = tokio::select! {
        biased;
        () = withdraw.cancelled() => return Err(CampaignError::Withdrawn),
        session = Session::open(etcd, ttl, pulse) => session?,
    };
    let key = format!("{prefix}/{}", session.lease()).into_bytes();
    let won = tokio::select! {
        biased;
        () = withdraw.cancelled() => Err(CampaignError::Withdrawn),
        () = session.window().closed() => Err(CampaignError::CandidacyLost),
        won = wait_for_office(etcd, prefix, &key, name, session.lease(), ttl) => won,
    };
    match won {
        Ok(term) if session.window().is_open() => {
            let fence = Fence::new(key, term, session.window().clone());
            Ok(Leadership { session, fence })
        }
        Ok(_) => {
            session.close().await;
            Err(CampaignError::CandidacyLost)
        }
        Err(error) => {
            session.close().await;
            Err(error)
        }
    }
}

/// Puts the key and waits until no older one is left. The list that shows this is the confirmation too: it is
/// linearizable, and holds the own key with its create revision and lease (INV-2).
async fn wait_for_office(
    etcd: &Etcd,
    prefix: &str,
    key: &[u8],
    name: &str,
    lease: LeaseId,
    poll: Duration,
) -> Result<Revision, CampaignError> {
    let entry = Txn::new().when_absent(key).put_leased(key, name, lease);
    let term = match etcd.unfenced_entry(entry).await {
        Ok(term) => term,
        // Whether it was applied is answered by the key itself, which nobody else writes.
        Err(TxnError::Unknown(_) | TxnError::Conflict { .. }) => {
            let (own, _) = etcd.get(key).await?;
            own.filter(|own| own.lease == Some(lease))
                .ok_or(CampaignError::CandidacyLost)?
                .create_revision
        }
        Err(error) => return Err(error.into()),
    };
    debug!(%lease, %term, "entered the election");

    let range = range_of(prefix);
    let mut watcher: Option<Watcher> = None;
    let mut ahead_before = None;
    loop {
        let (keys, revision) = etcd.list(&range).await?;
        let own = keys.iter().find(|kv| kv.key == key);
        if !own.is_some_and(|own| own.create_revision == term && own.lease == Some(lease)) {
            return Err(CampaignError::CandidacyLost);
        }
        let ahead = keys
            .iter()
            .filter(|kv| kv.create_revision < term)
            .min_by_key(|kv| kv.create_revision);
        let Some(ahead) = ahead else { return Ok(term) };
        if ahead_before != Some(ahead.create_revision) {
            ahead_before = Some(ahead.create_revision);
            info!(
                "standing by; the leader is {}",
                String::from_utf8_lossy(&ahead.value)
            );
        }
        let watching = watcher.is_some();
        let watcher = watcher.get_or_insert_with(|| Watcher::new(etcd, range.clone(), revision.next()));
        if !watching {
            watcher.open().await;
        }
        tokio::select! {
            // Whatever changed, and also a compaction: look at the keys again.
            _ = watcher.next() => {}
            // Level-triggered, should a watch ever lie: once a TTL costs next to nothing.
            () = tokio::time::sleep(poll) => {}
        }
    }
}

impl Etcd {
    #[expect(
        clippy::disallowed_methods,
        reason = "a candidate has no fence yet; the key is absent or its own"
    )]
    async fn unfenced_entry(&self, entry: Txn) -> Result<Revision, TxnError> {
        self.unfenced(entry).await.map(|committed| committed.revision)
    }
}

/// The keys of all candidates below a prefix.
pub fn range_of(prefix: &str) -> KeyRange {
    KeyRange::prefix(format!("{prefix}/"))
}
