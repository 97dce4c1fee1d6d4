//! The election, by the recipe of etcd's clientv3/concurrency, so that `etcdctl elect` can take part and listen.
//!
//! It uses plain transactions and watches, not the Election RPC. The RPC does not notice that the candidate's own lease has
//! ended, and can elect a candidate that has no key.

use std::time::Duration;

use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::connect::Etcd;
use super::error::{Class, Error};
use super::fence::Fence;
use super::kv::{KeyRange, KeyValue, LeaseId, Revision};
use super::session::{Pulse, Session, SessionError};
use super::txn::{Txn, TxnError};
use super::watch::{Event, Watched, Watcher};
use crate::retry::{Delays, spread};

mod candidacy;

use candidacy::{Candidacy, is_held};

/// A won election: the session that holds the key, and the fence for writes. End it with [`Leadership::resign`].
pub struct Leadership {
    session: Session,
    fence: Fence,
    /// The revision of the read that showed the won key.
    confirmed: Revision,
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
    /// candidate then leads, and a leader that seldom writes notices it only by this. Also when a put took the key off the
    /// lease, which would no longer end it: [`Leadership::resign`] deletes such a key.
    pub async fn key_lost(&self) {
        let Fence { key, term, .. } = &self.fence;
        let held = |found: &KeyValue| is_held(found, *term, self.session.lease());
        let etcd = self.session.etcd();
        etcd.while_key_since(key, self.confirmed, held).await;
    }

    /// Gives up leadership: deletes the key and revokes the lease, so that the next candidate leads. Call it only after all
    /// work has ended (INV-10).
    pub async fn resign(self) {
        let Fence { key, term, .. } = &self.fence;
        leave(self.session, key, Some(*term)).await;
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
    /// etcd refused to show the candidates.
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
/// Stands for election until elected or withdrawn. A read that fails meanwhile is repeated. Every other result than a win
/// deletes the key and revokes the lease, so that no key is left behind that could win later. A caller that wants to
/// continue after an error campaigns again, with a new lease.
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
    let mut entered = None;
    let won = tokio::select! {
        biased;
        () = withdraw.cancelled() => Err(CampaignError::Withdrawn),
        () = session.window().closed() => Err(CampaignError::CandidacyLost),
        won = async {
            let candidacy = Candidacy::enter(etcd, prefix, &key, name, session.lease()).await?;
            entered = Some(candidacy.term);
            let confirmed = candidacy.wait_until_first().await?;
            Ok((candidacy.term, confirmed))
        } => won,
    };
    let lost = match won {
        Ok((term, confirmed)) if session.window().is_open() => {
            let fence = Fence::new(key, term, session.window().clone());
            return Ok(Leadership {
                session,
                fence,
                confirmed,
                _beating: JoinSet::new(),
            });
        }
        Ok(_) => CampaignError::CandidacyLost,
        Err(error) => error,
    };
    leave(session, &key, entered).await;
    Err(lost)
}

/// Gives the lease back, and deletes the key that was created at this revision if a put has taken it off the lease, whose end
/// does not delete it then. That is read first: a second write would have the successor wait for it. What fails is repeated
/// within [`Session::CLOSE_LIMIT`]: such a key blocks the election.
async fn leave(session: Session, key: &[u8], created: Option<Revision>) {
    let (etcd, lease) = (session.etcd().clone(), session.lease());
    let deleted = async {
        let Some(created) = created else { return };
        let mut delays = Delays::new(Session::CLOSE_LIMIT / 20, Session::CLOSE_LIMIT / 5);
        // Without an answer the key stays, and `quorate status` names it.
        while let Err(error) = delete_off_lease(&etcd, key, created, lease).await
            && error.is_retryable()
        {
            delays.wait().await;
        }
    };
    // Closing comes first, since it closes the window (INV-10).
    let deleted = tokio::time::timeout(Session::CLOSE_LIMIT, deleted);
    let ((), _) = tokio::join!(biased; session.close(), deleted);
}

/// Deletes the key that was created at this revision, if it is not on the lease.
async fn delete_off_lease(etcd: &Etcd, key: &[u8], created: Revision, lease: LeaseId) -> Result<(), Error> {
    let (found, _) = etcd.get(key).await?;
    if found.is_none_or(|found| found.create_revision != created || found.lease == Some(lease)) {
        return Ok(());
    }
    let own = Txn::new().first_created_at(key, created).delete(key);
    match etcd.unfenced_exit(own).await {
        // A key that is already gone is a conflict.
        Ok(()) | Err(TxnError::Conflict { .. }) => Ok(()),
        Err(TxnError::Unknown(error) | TxnError::Failed(error)) => Err(error),
    }
}

/// After a change an observer reads who leads within this time, at random. Its read must not come between the requests by which
/// the next leader takes over, nor those of a thousand observers together.
const OBSERVED_WITHIN: Duration = Duration::from_millis(200);

/// Who leads, as an observer has found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leader {
    /// The value of its key: its node id.
    pub name: String,
    /// Its term: the create revision of its key.
    pub term: Revision,
}

/// Follows who leads below `prefix`: calls `on_leader` with the leader, `None` while there is none. Reads once
/// after each change of the leader, a moment later, however many candidates there are: the event of a change does not name the
/// next leader, and a watch of all candidates would bring each of their changes to every observer. Never ends.
pub async fn observe(etcd: &Etcd, prefix: &str, mut on_leader: impl FnMut(Option<Leader>)) {
    let range = range_of(prefix);
    let mut delays = Delays::etcd();
    loop {
        match etcd.first_created(&range).await {
            Ok((Some(first), now)) => {
                delays.reset();
                on_leader(Some(Leader {
                    name: String::from_utf8_lossy(&first.value).into_owned(),
                    term: first.create_revision,
                }));
                // Any change of the key, and a compaction, has the first key read again.
                Watcher::new(etcd, KeyRange::key(first.key), now.next())
                    .next()
                    .await;
                tokio::time::sleep(spread(OBSERVED_WITHIN)).await;
            }
            Ok((None, now)) => {
                delays.reset();
                on_leader(None);
                Watcher::new(etcd, range.clone(), now.next()).next().await;
            }
            Err(_) => delays.wait().await,
        }
    }
}

/// A candidate that an observer found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing<'a> {
    /// Its name.
    pub name: &'a str,
    /// The create revision of its key: no two candidacies have the same.
    pub entered: Revision,
    /// Whether it led when it was found.
    pub leads: bool,
}

/// Follows whether one of the `wanted` candidates stands for election below `prefix`: calls `on_change` with the first that
/// does, `None` while none does. Reads only when such a one may have come or gone. Never ends.
pub async fn observe_any(
    etcd: &Etcd,
    prefix: &str,
    wanted: impl Fn(&str) -> bool,
    mut on_change: impl FnMut(Option<Standing<'_>>),
) {
    let range = range_of(prefix);
    let name = |kv: &KeyValue| String::from_utf8_lossy(&kv.value).into_owned();
    let mut delays = Delays::etcd();
    loop {
        let (keys, now) = match etcd.list(&range).await {
            Ok(listed) => listed,
            Err(_) => {
                delays.wait().await;
                continue;
            }
        };
        delays.reset();
        // The first of them: the others lead only after it.
        let standing = keys.iter().filter(|kv| wanted(&name(kv)));
        if let Some(found) = standing.min_by_key(|kv| kv.create_revision) {
            let mut created = keys.iter().map(|kv| kv.create_revision);
            on_change(Some(Standing {
                name: &name(found),
                entered: found.create_revision,
                leads: created.all(|other| other >= found.create_revision),
            }));
            let stands = |kv: &KeyValue| kv.create_revision == found.create_revision && wanted(&name(kv));
            etcd.while_key(&found.key, stands).await;
            continue;
        }
        on_change(None);
        let enters = |event: &Event| matches!(event, Event::Put(kv) if wanted(&name(kv)));
        let mut watcher = Watcher::new(etcd, range.clone(), now.next());
        while let Watched::Events(events) = watcher.next().await {
            if events.iter().any(enters) {
                break;
            }
        }
    }
}

/// Asks etcd whether this client may write the key of a candidate below `prefix`, and changes nothing. A client that is refused has
/// its certificates and password read again soon.
///
/// # Errors
/// [`Error`]: of class [`Class::Denied`] if etcd refuses the client. After any other the rights are not known.
pub async fn may_stand(etcd: &Etcd, prefix: &str) -> Result<(), Error> {
    let asked = etcd.may_write(range_of(prefix).start()).await;
    if asked.as_ref().is_err_and(|error| error.class == Class::Denied) {
        etcd.0.recheck.notify_one();
    }
    asked
}

impl Etcd {
    /// Resolves once etcd has refused a write of the leader for missing rights since the last call.
    pub async fn write_denied(&self) {
        self.0.denied.notified().await;
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "the key is the candidate's own, and its term is over or never began"
    )]
    async fn unfenced_exit(&self, exit: Txn) -> Result<(), TxnError> {
        self.unfenced(exit).await.map(drop)
    }
}

/// The range that holds the keys of all candidates below a prefix.
fn range_of(prefix: &str) -> KeyRange {
    KeyRange::prefix(format!("{prefix}/"))
}
