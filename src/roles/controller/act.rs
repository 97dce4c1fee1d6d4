//! What is committed and called, and what became of it. Every call to etcd's membership runs inside the window of the
//! term, within a limit, and after its intent was committed (INV-3).

use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;

use super::prepare::{Deed, Stays};
use crate::etcd::members::{ChangeError, ChangeFault};
use crate::etcd::{Error, Etcd, Fence, FencedError, MemberId, Revision, Txn};
use crate::failpoint;
use crate::roles::reason::Reason;
use crate::store::Store;

/// For one change of the member list (the constant of the origin).
pub const CHANGE_LIMIT: Duration = Duration::from_secs(5);

/// What became of a step.
#[derive(Debug)]
pub enum Outcome {
    /// Done. Whatever it wrote is at this revision.
    Done(Option<Revision>),
    /// Something changed since it was decided; nothing was done.
    Refused,
    /// Not done, or not known to be: to be decided anew, later.
    Failed(Reason, String),
    /// The term is over.
    LostLeadership,
}

/// Does it.
pub async fn act(store: &Store, fence: &Fence, deed: Deed) -> Outcome {
    let etcd = &store.etcd;
    match deed {
        Deed::Commit(txn) => commit(etcd, fence, txn).await,
        Deed::Forget(id, voters, txn) => match confirm_gone(etcd, fence, id, &voters, None).await {
            Some(failed) => failed,
            None => commit(etcd, fence, txn).await,
        },
        Deed::Remove {
            victim,
            through,
            voters,
            forget,
        } => {
            let removed = call(fence, "roles.lose-removal", etcd.remove_member(&through, &victim)).await;
            failpoint::pause_at("roles.removal-answered").await;
            let said = match removed {
                // A voter answers once it has applied the change itself.
                Call::Said(Ok(())) => Some(through.id),
                Call::Said(Err(error)) if error.fault == ChangeFault::MemberNotFound => None,
                other => return other.failed(),
            };
            if let Some(failed) = confirm_gone(etcd, fence, victim.id, &voters, said).await {
                return failed;
            }
            failpoint::abort_at("roles.removal-confirmed");
            commit(etcd, fence, forget).await
        }
        Deed::MoveLeadership(from, to) => call(fence, "roles.lose-move", etcd.move_leadership(&from, to))
            .await
            .outcome(),
        Deed::Promote(through, learner) => match call(
            fence,
            "roles.lose-promotion",
            etcd.promote_learner(&through, learner),
        )
        .await
        {
            Call::Said(Err(error)) if error.fault == ChangeFault::NotALearner => Outcome::Done(None),
            other => other.outcome(),
        },
        Deed::Add(through, urls, draft) => {
            match call(fence, "roles.lose-add", etcd.add_learner(&through, &urls)).await {
                Call::Said(Ok(added)) => {
                    failpoint::abort_at("roles.add-answered");
                    commit(etcd, fence, draft.txn(added.id)).await
                }
                other => other.failed(),
            }
        }
        Deed::Readdress(through, id, urls) => call(
            fence,
            "roles.lose-update",
            etcd.update_peer_urls(&through, id, &urls),
        )
        .await
        .outcome(),
    }
}

async fn commit(etcd: &Etcd, fence: &Fence, txn: Txn) -> Outcome {
    match etcd.fenced(fence, txn).await {
        Ok(committed) => Outcome::Done(Some(committed.revision)),
        Err(FencedError::Conflict) => Outcome::Refused,
        Err(FencedError::LostLeadership(_)) => Outcome::LostLeadership,
        // Everything is read again before it is decided again, in any case.
        Err(FencedError::Failed(error) | FencedError::Unknown(error)) => {
            Outcome::Failed(Reason::EtcdUnavailable, error.to_string())
        }
    }
}

/// What came of a call that etcd cannot fence.
enum Call<T> {
    Said(Result<T, ChangeError>),
    NoAnswer,
    WindowClosed,
}

async fn call<T>(fence: &Fence, loses: &str, asked: impl Future<Output = Result<T, ChangeError>>) -> Call<T> {
    if !fence.window().is_open() {
        return Call::WindowClosed;
    }
    tokio::select! {
        biased;
        () = fence.window().closed() => Call::WindowClosed,
        said = asked => match failpoint::drop_reply_at(loses) {
            true => Call::NoAnswer,
            false => Call::Said(said),
        },
        () = tokio::time::sleep(CHANGE_LIMIT) => Call::NoAnswer,
    }
}

impl<T> Call<T> {
    fn outcome(self) -> Outcome {
        match self {
            Self::Said(Ok(_)) => Outcome::Done(None),
            other => other.failed(),
        }
    }

    fn failed(self) -> Outcome {
        match self {
            Self::Said(Ok(_)) => Outcome::Done(None),
            Self::WindowClosed => Outcome::LostLeadership,
            Self::NoAnswer => Outcome::Failed(
                Reason::EtcdUnavailable,
                format!("no answer within {CHANGE_LIMIT:?}"),
            ),
            Self::Said(Err(error)) => {
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
                    | ChangeFault::Denied
                    | ChangeFault::Refused => Reason::EtcdRefused,
                };
                Outcome::Failed(reason, error.to_string())
            }
        }
    }
}

/// Waits until a quorum of the voters that stay has a list without the member, each of that very voter (REQ-M-6b); one of
/// them may have `said` so already. `None`: so it is.
async fn confirm_gone(
    etcd: &Etcd,
    fence: &Fence,
    id: MemberId,
    voters: &[Stays],
    said: Option<MemberId>,
) -> Option<Outcome> {
    let needed = voters.len() / 2 + 1;
    let (confirmed, asked): (Vec<_>, Vec<_>) = voters.iter().partition(|voter| Some(voter.member.id) == said);
    let mut without = confirmed.len();
    let mut told = String::new();
    let mut asked: FuturesUnordered<_> = asked
        .into_iter()
        .map(|voter| is_without(etcd, voter, id))
        .collect();
    while without < needed {
        let answer = tokio::select! {
            biased;
            () = fence.window().closed() => return Some(Outcome::LostLeadership),
            answer = asked.next() => answer,
        };
        match answer {
            Some((_, Ok(true))) => without += 1,
            Some((voter, Ok(false))) => told = format!("; {voter} has it"),
            Some((voter, Err(error))) => told = format!("; {voter}: {error}"),
            None => {
                let message = format!("{without} of {needed} voters confirm that member {id} is gone{told}");
                return Some(Outcome::Failed(Reason::MemberListUnreadable, message));
            }
        }
    }
    None
}

/// Whether this voter's list is without the member.
///
/// A list that a voter gives without a word with the others may be old, and one from before the member was added is
/// without it, too. Where the voter is known to have had the member it is as good as a linearizable one: members apply
/// changes in the order of the log, and no id comes twice, so it has applied the removal. That saves the round trips
/// of a read through raft, the latter of which waits for the follower to hear of what is committed.
async fn is_without(etcd: &Etcd, voter: &Stays, id: MemberId) -> (MemberId, Result<bool, Error>) {
    let Stays { member, had_it } = voter;
    let limit = etcd.config().request_timeout;
    if *had_it
        && let Ok(list) = etcd.own_list_of(member, limit).await
        && list.member(id).is_none()
    {
        return (member.id, Ok(true));
    }
    let list = etcd.list_through(member, limit).await;
    (member.id, list.map(|list| list.member(id).is_none()))
}
