//! Executes an action: commits its transaction, or calls etcd. A change of etcd's members starts inside the window of the
//! term, has a limit, and comes after its committed intent (INV-3).

use std::time::{Duration, Instant};

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use jiff::Timestamp;

use super::actions::{Action, NewMemberRecord, Witness};
use super::restarts::restarting;
use crate::clock;
use crate::etcd::members::{ChangeError, ChangeFault, ListedMember};
use crate::etcd::{Class, Error, Etcd, Fence, MemberId, Revision, Stop, Txn};
use crate::failpoint;
use crate::roles::reason::Reason;
use crate::store::Store;

/// The limit of a single change of the member list, from the proof that roles are not paused on.
pub const CHANGE_LIMIT: Duration = Duration::from_secs(5);

/// How long the proof in the transaction of an intent, that roles are not paused, does for the call that follows it. The call
/// keeps the better part of its limit.
const PROVEN_FOR: Duration = Duration::from_secs(2);

/// What to do about a change of members that etcd denies.
const NEEDS_ROOT: &str = "only a user with etcd's role root may change members: give it to the user of the replicas \
                          (etcdctl user grant-role USER root)";

/// What a decision knows of the pauses of roles.
#[derive(Clone, Copy, Debug)]
pub struct Unpaused {
    /// When the record of the last pause was written.
    pub last_pause: Revision,
    /// When the intent of this very call was sent: roles were not paused then.
    pub proven: Option<Instant>,
}

impl Unpaused {
    /// When the proof was sent, if it still does for a call.
    fn proof_at(&self, now: Instant) -> Option<Instant> {
        self.proven
            .filter(|sent| now.saturating_duration_since(*sent) < PROVEN_FOR)
    }
}

/// The revision of what an action wrote, if it wrote anything.
pub type Outcome = Result<Option<Revision>, NotDone>;

/// Why an action was not done, as far as is known.
#[derive(Debug)]
pub enum NotDone {
    /// Something that the decision was made from has changed; nothing was written.
    Stale,
    /// The action failed, or its outcome is unknown. What follows is decided from new reads.
    Failed(Reason, String),
    /// The call was not made, because what it depends on could not be read.
    NotCalled(Reason, String),
    /// The term is over.
    LostLeadership,
}

impl NotDone {
    /// How an action ended, in one word: for traces.
    pub fn outcome(outcome: &Outcome) -> &'static str {
        match outcome {
            Ok(_) => "OK",
            Err(Self::Stale) => "Stale",
            Err(Self::Failed(..)) => "Failed",
            Err(Self::NotCalled(..)) => "NotCalled",
            Err(Self::LostLeadership) => "LostLeadership",
        }
    }
}

/// Executes an action, or nothing where roles were paused since it was decided. A call that follows its own intent within
/// [`PROVEN_FOR`] is made all the same: its proof is that of the intent.
///
/// # Errors
/// [`NotDone`]
pub async fn execute(store: &Store, fence: &Fence, action: Action, decided: Unpaused) -> Outcome {
    let etcd = &store.etcd;
    let (pause, last) = (store.keys.roles_pause(), store.keys.last_roles_pause());
    let unpaused = |txn: Txn| txn.when_absent(&pause).when_unchanged(&last, decided.last_pause);
    let now = clock::now();
    let proven = decided.proof_at(now);
    let deadline = proven.unwrap_or(now) + CHANGE_LIMIT;
    if proven.is_none() && !matches!(action, Action::Commit(_) | Action::Forget { .. }) {
        check_unpaused(etcd, fence, unpaused(Txn::new()), deadline).await?;
    }
    check_restart(store, &action, deadline).await?;
    match action {
        Action::Commit(txn) => commit(etcd, fence, unpaused(txn)).await,
        Action::Forget {
            member,
            witnesses,
            forget,
        } => {
            confirm_removed(etcd, fence, member, &witnesses, None).await?;
            commit(etcd, fence, unpaused(forget)).await
        }
        Action::Remove {
            victim,
            through,
            witnesses,
            forget,
        } => {
            let confirmed = remove(etcd, fence, deadline, &victim, &through).await?;
            confirm_removed(etcd, fence, victim.id, &witnesses, confirmed).await?;
            failpoint::abort_at("roles.removal-confirmed");
            commit(etcd, fence, forget).await
        }
        Action::MoveLeadership { from, to } => {
            let moving = etcd.move_leadership(&from, to);
            done(call(fence, "roles.lose-move", deadline, moving).await?)
        }
        Action::Promote { through, learner } => {
            let promoting = etcd.promote_learner(&through, learner);
            match call(fence, "roles.lose-promotion", deadline, promoting).await? {
                // An earlier call has promoted it.
                Err(error) if error.fault == ChangeFault::NotALearner => Ok(None),
                answer => done(answer),
            }
        }
        Action::Add { through, record } => add(etcd, fence, deadline, &through, *record).await,
        Action::Readdress {
            through,
            member,
            peer_urls,
        } => {
            let updating = etcd.update_peer_urls(&through, member, &peer_urls);
            done(call(fence, "roles.lose-update", deadline, updating).await?)
        }
    }
}

/// Proves with a transaction that writes nothing that roles are not paused, nor were since the decision: a call cannot be
/// committed together with the proof, and the watch may be late. The proof may be as old as its request when it arrives, so
/// the call ends at the `deadline` of both: none is sent or awaited later than that after a pause. A call that follows its
/// intent at once has the proof in that: the deadline counts from when the intent was sent.
async fn check_unpaused(etcd: &Etcd, fence: &Fence, proof: Txn, deadline: Instant) -> Result<(), NotDone> {
    let proven = tokio::select! {
        biased;
        () = fence.window().closed() => return Err(NotDone::LostLeadership),
        () = clock::passed(deadline) => Err(no_answer()),
        proven = commit(etcd, fence, proof) => proven,
    };
    proven.map(drop).map_err(not_called)
}

/// A change of voters, or of where one is reached, waits while the etcd of another member starts again (INV-5). Its intent is stored
/// before this read, which is linearizable. So a permission that was recorded before the intent is seen here, and one that is recorded
/// after it is refused, or waits for the end of the intent (`identity/rotation/act.rs`). An intent by itself takes no voter away, so
/// that none is refused here.
async fn check_restart(store: &Store, action: &Action, deadline: Instant) -> Result<(), NotDone> {
    let changed = match action {
        Action::Remove { victim, .. } => Some(victim.id),
        Action::Readdress { member, .. } => Some(*member),
        Action::Promote { .. } => None,
        Action::Commit(_) | Action::Forget { .. } | Action::MoveLeadership { .. } | Action::Add { .. } => {
            return Ok(());
        }
    };
    let key = store.keys.rotation();
    let read = tokio::select! {
        biased;
        () = clock::passed(deadline) => return Err(not_called(no_answer())),
        read = store.etcd.get(&key) => read,
    };
    let unread = |error: Error| NotDone::NotCalled(Reason::EtcdUnavailable, error.to_string());
    let (stored, _) = read.map_err(unread)?;
    match stored.and_then(|stored| restarting(&stored.value, changed, Timestamp::now())) {
        Some(member) => {
            let message =
                format!("the etcd of member {member} starts again, for a rotation of the authorities");
            Err(NotDone::NotCalled(Reason::Pending, message))
        }
        None => Ok(()),
    }
}

/// The same for a call that was not made.
fn not_called(why: NotDone) -> NotDone {
    match why {
        NotDone::Failed(reason, message) => NotDone::NotCalled(reason, message),
        other => other,
    }
}

fn no_answer() -> NotDone {
    let message = format!("no answer within {CHANGE_LIMIT:?}");
    NotDone::Failed(Reason::EtcdUnavailable, message)
}

async fn commit(etcd: &Etcd, fence: &Fence, txn: Txn) -> Outcome {
    let committed = etcd
        .fenced(fence, txn)
        .await
        .map_err(|error| match error.into() {
            Stop::LostLeadership => NotDone::LostLeadership,
            Stop::Stale => NotDone::Stale,
            Stop::Unavailable(error) => NotDone::Failed(Reason::EtcdUnavailable, error.to_string()),
        })?;
    Ok(Some(committed.revision))
}

/// Makes a call that etcd cannot fence. `loses` is the failpoint that drops the reply.
async fn call<T>(
    fence: &Fence,
    loses: &str,
    deadline: Instant,
    calling: impl Future<Output = Result<T, ChangeError>>,
) -> Result<Result<T, ChangeError>, NotDone> {
    if !fence.window().is_open() {
        return Err(NotDone::LostLeadership);
    }
    // The machine may have been suspended since the proof.
    if clock::now() >= deadline {
        return Err(not_called(no_answer()));
    }
    let answer = tokio::select! {
        biased;
        () = fence.window().closed() => return Err(NotDone::LostLeadership),
        answer = calling => Some(answer).filter(|_| !failpoint::drop_reply_at(loses)),
        () = clock::passed(deadline) => None,
    };
    answer.ok_or_else(no_answer)
}

fn done<T>(answer: Result<T, ChangeError>) -> Outcome {
    answer.map(|_| None).map_err(refused)
}

fn refused(error: ChangeError) -> NotDone {
    let reason = match error.fault {
        ChangeFault::LearnerNotReady => Reason::LearnerNotInSync,
        ChangeFault::TooManyLearners => Reason::LearnerPending,
        ChangeFault::NotLeader | ChangeFault::BadTransferee => Reason::LeadershipNotMoved,
        ChangeFault::Unknown => Reason::EtcdUnavailable,
        ChangeFault::PeerUrlExists => Reason::PeerUrlTaken,
        ChangeFault::BadUrls => Reason::BadPeerUrl,
        ChangeFault::QuorumAtRisk
        | ChangeFault::NotALearner
        | ChangeFault::MemberNotFound
        | ChangeFault::Refused => Reason::EtcdRefused,
        // The next request has another token.
        ChangeFault::Denied if error.error.class == Class::StaleToken => Reason::EtcdRefused,
        ChangeFault::Denied => Reason::EtcdDenied,
    };
    let message = match reason {
        Reason::EtcdDenied => format!("{error}; {NEEDS_ROOT}"),
        _ => error.to_string(),
    };
    NotDone::Failed(reason, message)
}

async fn add(
    etcd: &Etcd,
    fence: &Fence,
    deadline: Instant,
    through: &ListedMember,
    record: NewMemberRecord,
) -> Outcome {
    let adding = etcd.add_learner(through, record.peer_urls());
    let added = call(fence, "roles.lose-add", deadline, adding).await?;
    let added = added.map_err(refused)?;
    failpoint::abort_at("roles.add-answered");
    commit(etcd, fence, record.txn(added.id)).await
}

/// Removes the member. Returns the voter that has confirmed it by its answer: one answers only once it has applied the change.
async fn remove(
    etcd: &Etcd,
    fence: &Fence,
    deadline: Instant,
    victim: &ListedMember,
    through: &ListedMember,
) -> Result<Option<MemberId>, NotDone> {
    let removing = etcd.remove_member(through, victim);
    let answer = call(fence, "roles.lose-removal", deadline, removing).await;
    failpoint::pause_at("roles.removal-answered").await;
    match answer? {
        Ok(()) => Ok(Some(through.id)),
        // An earlier call has removed it.
        Err(error) if error.fault == ChangeFault::MemberNotFound => Ok(None),
        Err(error) => Err(refused(error)),
    }
}

/// Waits until the lists of a quorum of the voters that stay are without the member, each given by that very voter.
/// `confirmed` is a voter that need not be asked.
async fn confirm_removed(
    etcd: &Etcd,
    fence: &Fence,
    removed: MemberId,
    witnesses: &[Witness],
    confirmed: Option<MemberId>,
) -> Result<(), NotDone> {
    let needed = witnesses.len() / 2 + 1;
    let (have, ask): (Vec<_>, Vec<_>) = witnesses
        .iter()
        .partition(|witness| Some(witness.voter.id) == confirmed);
    let mut confirmations = have.len();
    let mut last = String::new();
    let mut answers: FuturesUnordered<_> = ask
        .into_iter()
        .map(|witness| is_without(etcd, witness, removed))
        .collect();
    while confirmations < needed {
        let answer = tokio::select! {
            biased;
            () = fence.window().closed() => return Err(NotDone::LostLeadership),
            answer = answers.next() => answer,
        };
        match answer {
            Some((_, Ok(true))) => confirmations += 1,
            Some((voter, Ok(false))) => last = format!("; {voter} still lists it"),
            Some((voter, Err(error))) => last = format!("; {voter}: {error}"),
            None => {
                let message = format!(
                    "{confirmations} of {needed} voters confirm that member {removed} is removed{last}"
                );
                return Err(NotDone::Failed(Reason::MemberListUnreadable, message));
            }
        }
    }
    Ok(())
}

/// Whether the witness's list is without the member.
///
/// A list that a voter gives without asking the others may be old, and a list from before the member was added is without
/// it as well. If the voter is known to have had the member, its own list is as good as a linearizable one: members apply
/// changes in the order of the log and an id never comes back, so the voter has applied the removal. This saves the round
/// trips of a read through raft, which waits until the follower learns what is committed.
async fn is_without(etcd: &Etcd, witness: &Witness, removed: MemberId) -> (MemberId, Result<bool, Error>) {
    let Witness { voter, knew_member } = witness;
    let limit = etcd.config().request_timeout;
    if *knew_member
        && let Ok(list) = etcd.own_list_of(voter, limit).await
        && list.member(removed).is_none()
    {
        return (voter.id, Ok(true));
    }
    let list = etcd.list_through(voter, limit).await;
    (voter.id, list.map(|list| list.member(removed).is_none()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_proof_of_an_intent_does_for_two_seconds_and_for_no_call_without_one() {
        let sent = clock::now();
        let decided = |proven| Unpaused {
            last_pause: Revision::ABSENT,
            proven,
        };
        let later = |millis| sent + Duration::from_millis(millis);
        assert_eq!(decided(Some(sent)).proof_at(later(1_999)), Some(sent));
        assert_eq!(decided(Some(sent)).proof_at(later(2_000)), None);
        assert_eq!(decided(Some(later(5))).proof_at(sent), Some(later(5)));
        assert_eq!(decided(None).proof_at(sent), None);
    }
}
