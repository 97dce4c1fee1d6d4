//! Changes of the member list, each asked of one given member, and what an answer in the negative means.
//!
//! Nothing here decides whether a change is safe (INV-5): the leader does, before it calls.

use std::future::Future;

use etcd_client::{Client, MemberAddOptions};

use super::list::ListedMember;
use crate::etcd::connect::Etcd;
use crate::etcd::error::{Class, Error};
use crate::etcd::kv::MemberId;

/// What became of a change that was not confirmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ChangeFault {
    /// No answer, or one that came after the change was proposed: it may have been made. Read the list, then decide.
    Unknown,
    /// The learner has not caught up with the raft leader.
    LearnerNotReady,
    /// etcd lets in no further learner while there is one.
    TooManyLearners,
    /// The member is a voter already.
    NotALearner,
    /// The member is not in the list, or no longer.
    MemberNotFound,
    /// A member has one of these peer URLs already. Made in the same second, it even has the same id.
    PeerUrlExists,
    /// etcd's own rule: too few members would be up for a quorum. It counts a member only from 5 s after it connected.
    QuorumAtRisk,
    /// The URLs are none.
    BadUrls,
    /// The member that was asked is not the raft leader, which alone can do it.
    NotLeader,
    /// Leadership cannot move to that member: it is a learner or unknown.
    BadTransferee,
    /// The user may not do this.
    Denied,
    /// Anything else that etcd said no to.
    Refused,
}

/// A change of the member list that was not confirmed.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{error}")]
pub struct ChangeError {
    /// What follows from it.
    pub fault: ChangeFault,
    /// What was said.
    pub error: Error,
}

impl ChangeError {
    fn new(error: Error) -> Self {
        Self {
            fault: classify(&error),
            error,
        }
    }

    /// etcd was not asked, since this cannot be meant.
    fn not_asked(operation: &'static str, why: String) -> Self {
        Self {
            fault: ChangeFault::Refused,
            error: Error::new(operation, "InvalidArgument", Class::Refused, why),
        }
    }
}

/// The one table. Texts are etcd's own, from api/v3rpc/rpctypes/error.go, the same from 3.4 to 3.6. All of these are said
/// before anything is proposed, or by the member that found the proposal void when it applied it. What is not here is
/// decided by the class of the error: "no leader" and "request timed out" come after a proposal, too.
fn classify(error: &Error) -> ChangeFault {
    const TEXTS: &[(&str, ChangeFault)] = &[
        // Before the shorter text that it begins with.
        ("which is in sync with leader", ChangeFault::LearnerNotReady),
        ("can only promote a learner member", ChangeFault::NotALearner),
        ("too many learner members", ChangeFault::TooManyLearners),
        ("member not found", ChangeFault::MemberNotFound),
        ("Peer URLs already exists", ChangeFault::PeerUrlExists),
        ("member ID already exist", ChangeFault::PeerUrlExists),
        ("not enough started members", ChangeFault::QuorumAtRisk),
        ("unhealthy cluster", ChangeFault::QuorumAtRisk),
        ("member URLs are invalid", ChangeFault::BadUrls),
        ("etcdserver: not leader", ChangeFault::NotLeader),
        ("bad leader transferee", ChangeFault::BadTransferee),
        // A member that was taken for a voter; it refuses before it does anything.
        ("rpc not supported for learner", ChangeFault::Refused),
    ];
    let text = error.message();
    if let Some((_, fault)) = TEXTS.iter().find(|(known, _)| text.contains(known)) {
        return *fault;
    }
    match error.class {
        Class::Unavailable => ChangeFault::Unknown,
        Class::Denied | Class::StaleToken => ChangeFault::Denied,
        Class::Compacted
        | Class::LeaseNotFound
        | Class::TooLarge
        | Class::Exhausted
        | Class::Refused
        | Class::Settings => ChangeFault::Refused,
    }
}

impl Etcd {
    async fn change<T, Fut>(
        &self,
        operation: &'static str,
        through: &ListedMember,
        call: impl FnOnce(Client) -> Fut,
    ) -> Result<T, ChangeError>
    where
        Fut: Future<Output = Result<T, etcd_client::Error>>,
    {
        let limit = self.config().request_timeout;
        // A change is one of the whole cluster, whoever takes it: it does not matter who answered.
        let asked = self
            .ask_member(operation, through, limit, |client| async move {
                Ok((None, call(client).await?))
            })
            .await;
        asked.map_err(ChangeError::new)
    }

    /// Adds a learner: never a voter, which would count for the quorum before it runs (INV-5).
    ///
    /// # Errors
    /// [`ChangeError`]; not to be repeated before the list was read, since the repetition of an add that was made is
    /// refused as [`ChangeFault::PeerUrlExists`].
    pub async fn add_learner(
        &self,
        through: &ListedMember,
        peer_urls: &[String],
    ) -> Result<ListedMember, ChangeError> {
        let urls = peer_urls.to_vec();
        let added = self
            .change("member_add", through, |client| async move {
                let options = MemberAddOptions::new().with_is_learner();
                client.cluster_client().member_add(urls, Some(options)).await
            })
            .await?;
        added.member().map(ListedMember::from_client).ok_or_else(|| {
            let text = "etcd answered, but without the new member".to_owned();
            ChangeError::new(Error::new("member_add", "Unknown", Class::Unavailable, text))
        })
    }

    /// Makes a voter of a learner. `leader` is to be the raft leader: before 3.5.28 a follower cannot pass the request on
    /// where users have passwords.
    ///
    /// # Errors
    /// [`ChangeError`]
    pub async fn promote_learner(&self, leader: &ListedMember, learner: MemberId) -> Result<(), ChangeError> {
        self.change("member_promote", leader, |client| async move {
            client.cluster_client().member_promote(learner.0).await
        })
        .await
        .map(drop)
    }

    /// Removes a member. Before the call every connection to the victim is dropped and its endpoints leave the balanced
    /// channel; nothing is asked of it any more, unless etcd refuses, and what was asked before is waited for (REQ-M-7): a
    /// member that is asked for its status in the second between its removal and its end dies of a panic.
    ///
    /// # Errors
    /// [`ChangeError`]; [`ChangeFault::MemberNotFound`] means that it is gone.
    pub async fn remove_member(
        &self,
        through: &ListedMember,
        victim: &ListedMember,
    ) -> Result<(), ChangeError> {
        let operation = "member_remove";
        if through.id == victim.id {
            let why = format!("member {} is not removed through itself", victim.id);
            return Err(ChangeError::not_asked(operation, why));
        }
        self.part_from(victim, through).await;
        self.0.contacts.all_answered(victim.id).await;
        let id = victim.id.0;
        let removed = self
            .change(operation, through, |client| async move {
                client.cluster_client().member_remove(id).await
            })
            .await;
        match removed {
            Ok(_) => Ok(()),
            Err(error) => {
                if !matches!(error.fault, ChangeFault::Unknown | ChangeFault::MemberNotFound) {
                    self.0.contacts.take_back(victim.id);
                    // Its endpoints come back with the next look.
                    self.0.recheck.notify_one();
                }
                Err(error)
            }
        }
    }

    /// Drops every connection to a member and takes its endpoints out of use, as far as others remain.
    async fn part_from(&self, victim: &ListedMember, other: &ListedMember) {
        let urls = self.client_urls(victim);
        self.0.contacts.part_from(victim.id, urls.clone());
        let mut live = self.live_endpoints();
        live.retain(|endpoint| !urls.contains(endpoint));
        if live.is_empty() && self.config().sync_endpoints {
            live.extend(self.client_urls(other));
        }
        if !live.is_empty() {
            self.use_endpoints(live).await;
        }
    }

    /// Gives a voter other peer URLs. Not for learners: etcd before 3.5.31 makes voters of those that are updated.
    ///
    /// # Errors
    /// [`ChangeError`]
    pub async fn update_peer_urls(
        &self,
        through: &ListedMember,
        voter: MemberId,
        peer_urls: &[String],
    ) -> Result<(), ChangeError> {
        let urls = peer_urls.to_vec();
        self.change("member_update", through, |client| async move {
            client.cluster_client().member_update(voter.0, urls).await
        })
        .await
        .map(drop)
    }

    /// Moves the raft leadership to another voter. `leader` is to be the raft leader, which alone can do it.
    ///
    /// # Errors
    /// [`ChangeError`]
    pub async fn move_leadership(&self, leader: &ListedMember, to: MemberId) -> Result<(), ChangeError> {
        self.change("move_leader", leader, |client| async move {
            client.maintenance_client().move_leader(to.0).await
        })
        .await
        .map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_refusal_of_a_change_falls_into_its_class() {
        for (class, text, fault) in [
            (
                Class::Refused,
                "etcdserver: can only promote a learner member which is in sync with leader",
                ChangeFault::LearnerNotReady,
            ),
            (
                Class::Refused,
                "etcdserver: can only promote a learner member",
                ChangeFault::NotALearner,
            ),
            (
                Class::Refused,
                "etcdserver: too many learner members in cluster",
                ChangeFault::TooManyLearners,
            ),
            (
                Class::Refused,
                "etcdserver: member not found",
                ChangeFault::MemberNotFound,
            ),
            (
                Class::Refused,
                "etcdserver: Peer URLs already exists",
                ChangeFault::PeerUrlExists,
            ),
            (
                Class::Refused,
                "etcdserver: member ID already exist",
                ChangeFault::PeerUrlExists,
            ),
            (
                Class::Refused,
                "etcdserver: re-configuration failed due to not enough started members",
                ChangeFault::QuorumAtRisk,
            ),
            (
                Class::Unavailable,
                "etcdserver: unhealthy cluster",
                ChangeFault::QuorumAtRisk,
            ),
            (
                Class::Refused,
                "etcdserver: given member URLs are invalid",
                ChangeFault::BadUrls,
            ),
            (Class::Refused, "etcdserver: not leader", ChangeFault::NotLeader),
            (
                Class::Refused,
                "etcdserver: bad leader transferee",
                ChangeFault::BadTransferee,
            ),
            (
                Class::Unavailable,
                "etcdserver: rpc not supported for learner",
                ChangeFault::Refused,
            ),
            (
                Class::Denied,
                "etcdserver: permission denied",
                ChangeFault::Denied,
            ),
            (Class::Unavailable, "etcdserver: no leader", ChangeFault::Unknown),
            (
                Class::Unavailable,
                "etcdserver: request timed out",
                ChangeFault::Unknown,
            ),
            (Class::Unavailable, "no answer within 5s", ChangeFault::Unknown),
            (
                Class::Exhausted,
                "etcdserver: mvcc: database space exceeded",
                ChangeFault::Refused,
            ),
        ] {
            let error = Error::new("member_add", "code", class, text.to_owned());
            assert_eq!(classify(&error), fault, "{class:?} {text}");
        }
    }
}
