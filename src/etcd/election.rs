//! The election, by the recipe of etcd's clientv3/concurrency, so that `etcdctl elect` can take part and listen.
//!
//! It uses plain transactions and watches, not the Election RPC. The RPC does not notice that the candidate's own lease has
//! ended, and can elect a candidate that has no key.

use std::time::Duration;

use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info};

use super::connect::Etcd;
use super::error::Error;
use super::fence::Fence;
use super::kv::{KeyRange, KeyValue, LeaseId, Revision};
use super::session::{Pulse, Session, SessionError};
use super::txn::{Txn, TxnError};
use super::watch::Watcher;

/// A won election: the session that holds the key, and the fence for writes. End it with [`Leadership::resign`].
pub struct Leadership {
    session: Session,
    fence: Fence,
    /// Beats the pulse of a leader that has no other.
    _beating: JoinSet<()>,
}

impl Leadership {
    /// The proof of leadership that every write of the leader carries.
    pub fn fence(&self) -> &Fence {
        &self.fence
    }

    /// Resolves when leadership is lost: its window closed, or its election key is gone.
    pub async fn lost(&self) {
        tokio::select! {
            biased;
            () = self.fence.window().closed() => {}
            () = self.key_lost() => {}
        }
    }

    /// Resolves when the election key is gone, even if the lease still lives: an operator may have deleted the key. The next
    /// candidate then leads, and a leader that seldom writes notices it only by this.
    pub async fn key_lost(&self) {
        let Fence { key, term, .. } = &self.fence;
        let held = |found: &KeyValue| found.create_revision == *term;
        self.session.etcd().while_key(key, held).await;
    }

    /// Gives up leadership: revokes the lease, so that the next candidate leads. Call it only after all work has ended
    /// (INV-10).
    pub async fn resign(self) {
        self.session.close().await;
    }
}

/// Why a campaign ended without a win.
#[derive(Debug, thiserror::Error)]
pub enum CampaignError {
    /// The caller withdrew the candidate.
    #[error("withdrawn")]
    Withdrawn,
    /// There is no lease for the candidate.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// The candidate's lease ended or its key was deleted while it waited.
    #[error("the candidate's key or lease is gone")]
    CandidacyLost,
    /// etcd did not write the candidate's key.
    #[error("the candidate's key was not written")]
    Enter(#[from] TxnError),
    /// etcd did not list the candidates.
    #[error("the candidates cannot be read")]
    Observe(#[from] Error),
}

/// A candidate, as its key in etcd shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The value of its key: its node id.
    pub name: String,
    /// The whole key.
    pub key: Vec<u8>,
    /// The lease of its key. A plain put detaches the key from its lease. Then no lease ends the key, and candidates that
    /// entered later wait until it is deleted.
    pub lease: Option<LeaseId>,
    /// The create revision of its key. The leader's is the term.
    pub entered: Revision,
}

/// Lists all candidates, the leader first. `prefix` is that of `etcdctl elect`, without a trailing slash.
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

/// Stands for election below `prefix` until elected. `prefix` is that of `etcdctl elect`, `name` the value that it shows.
///
/// The lease is renewed while this runtime runs its tasks, and ends soon after if the runtime hangs or the process ends.
/// Dropping the future gives the candidacy up: its key goes with its lease, after a TTL.
///
/// # Errors
/// [`CampaignError`]. To try again, call this again.
pub async fn elect(
    etcd: &Etcd,
    prefix: &str,
    name: &str,
    ttl: Duration,
) -> Result<Leadership, CampaignError> {
    let pulse = Pulse::default();
    let mut beating = JoinSet::new();
    beating.spawn(pulse.clone().beat_forever());
    let leadership = campaign(etcd, prefix, name, ttl, &pulse, &CancellationToken::new()).await?;
    Ok(Leadership {
        _beating: beating,
        ..leadership
    })
}

/// Like [`elect`], for a process with a pulse of its own, which it has to beat: the lease is renewed only while it does.
/// Stands for election until elected or withdrawn. Every other result than a win revokes the lease, so that
/// no key is left behind that could win later. A caller that wants to continue after an error campaigns again, with a new
/// lease.
///
/// # Errors
/// [`CampaignError`]
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
        won = wait_until_first(etcd, prefix, &key, name, session.lease(), ttl) => won,
    };
    match won {
        Ok(term) if session.window().is_open() => {
            let fence = Fence::new(key, term, session.window().clone());
            Ok(Leadership {
                session,
                fence,
                _beating: JoinSet::new(),
            })
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

/// Writes the candidate's key and waits until no older one is left. The list that shows this also confirms the own key: it
/// is linearizable and shows the key with its create revision and lease (INV-2).
async fn wait_until_first(
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
        // No other process writes this key, so the key itself shows whether the write was applied.
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
            // After any change, and after a compaction, list the keys again.
            _ = watcher.next() => {}
            // Level-triggered, in case a watch ever misses a change. One list per TTL costs little.
            () = tokio::time::sleep(poll) => {}
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

/// The range that holds the keys of all candidates below a prefix.
pub fn range_of(prefix: &str) -> KeyRange {
    KeyRange::prefix(format!("{prefix}/"))
}
