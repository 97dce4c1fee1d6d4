//! Changes of the member list, each requested from one given member, and the meaning of each refusal.
//!
//! The leader decides whether a change is safe before it calls (INV-5). Nothing here checks that.

use std::future::Future;
use std::time::Instant;

use etcd_client::{Client, MemberAddOptions};

use super::list::ListedMember;
use crate::etcd::connect::Etcd;
use crate::etcd::error::{Class, Error};
use crate::etcd::kv::MemberId;
use crate::mutation::{self, Guard};

/// Why a change was not confirmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ChangeFault {
    /// etcd gave no answer, or failed after it had proposed the change: the change may have been made. Read the list, then
    /// decide.
    Unknown,
    /// The learner has not caught up with the raft leader.
    LearnerNotReady,
    /// There is a learner already, and etcd admits only one at a time.
    TooManyLearners,
    /// The member is a voter already.
    NotALearner,
    /// The member is not listed (any more).
    MemberNotFound,
    /// Another member has one of these peer URLs. One that was added in the same second even has the same id.
    PeerUrlExists,
    /// etcd's own rule: too few members would be up for a quorum. It counts a member only after 5 s of connection.
    QuorumAtRisk,
    /// The peer URLs are invalid.
    BadUrls,
    /// The request needs the raft leader, and went to another member.
    NotLeader,
    /// The member cannot take the leadership: it is a learner or unknown.
    BadTransferee,
    /// The user lacks the permission.
    Denied,
    /// etcd refused the change for any other reason.
    Refused,
}

/// A change of the member list that etcd did not confirm.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{error}")]
pub struct ChangeError {
    /// The kind of the failure.
    pub fault: ChangeFault,
    /// The failed request.
    pub error: Error,
}

impl ChangeError {
    fn new(error: Error) -> Self {
        Self {
            fault: classify(&error),
            error,
        }
    }

    /// A change that makes no sense, for which no request was made.
    fn not_asked(operation: &'static str, why: String) -> Self {
        Self {
            fault: ChangeFault::Refused,
            error: Error::new(operation, "InvalidArgument", Class::Refused, why),
        }
    }
}

/// The table. Its texts are etcd's own, from api/v3rpc/rpctypes/error.go, and the same from 3.4 to 3.6. etcd returns each
/// of them before it proposes anything, or when it finds on applying that the proposal is void. For any other text the
/// class of the error decides: "no leader" and "request timed out" can also follow a proposal.
fn classify(error: &Error) -> ChangeFault {
    const TEXTS: &[(&str, ChangeFault)] = &[
        // Before the next text, which is a part of the same message.
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
        // A learner that was taken for a voter: it refuses before it does anything.
        ("rpc not supported for learner", ChangeFault::Refused),
    ];
    let text = error.message();
    if let Some((_, fault)) = TEXTS.iter().find(|(known, _)| text.contains(known)) {
        return *fault;
    }
    match error.class {
        Class::Unavailable | Class::StoreLost => ChangeFault::Unknown,
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
        // A change concerns the whole cluster, so it does not matter which member answered.
        let asked = self
            .ask_member(operation, through, limit, |client| async move {
                Ok((None, call(client).await?))
            })
            .await;
        asked.map_err(ChangeError::new)
    }

    /// Adds a learner. Never adds a voter, which would count for the quorum before it runs (INV-5).
    ///
    /// # Errors
    /// [`ChangeError`]. Read the list before a second attempt: etcd refuses the repetition of an add that was made, with
    /// [`ChangeFault::PeerUrlExists`].
    pub async fn add_learner(
        &self,
        through: &ListedMember,
        peer_urls: &[String],
    ) -> Result<ListedMember, ChangeError> {
        let urls = peer_urls.to_vec();
        let added = self
            .change("member_add", through, |client| async move {
                let options = match mutation::without(Guard::Learner) {
                    true => MemberAddOptions::new(),
                    false => MemberAddOptions::new().with_is_learner(),
                };
                client.cluster_client().member_add(urls, Some(options)).await
            })
            .await?;
        added.member().map(ListedMember::from_client).ok_or_else(|| {
            let text = "etcd's answer lacks the new member".to_owned();
            ChangeError::new(Error::new("member_add", "Unknown", Class::Unavailable, text))
        })
    }

    /// Promotes a learner to a voter. `leader` must be the raft leader: before 3.5.28 a follower cannot forward the request
    /// if users have passwords.
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

    /// Removes a member. etcd can panic when it is asked for its status in the second between its removal and its end. So
    /// before the call this drops every connection to the victim, takes its endpoints out of the balanced channel and
    /// waits for pending status requests. The victim gets no further request, unless etcd refuses the removal.
    ///
    /// # Errors
    /// [`ChangeError`]. [`ChangeFault::MemberNotFound`] means that the member is gone.
    pub async fn remove_member(
        &self,
        through: &ListedMember,
        victim: &ListedMember,
    ) -> Result<(), ChangeError> {
        let operation = "member_remove";
        if through.id == victim.id {
            let why = format!("member {} cannot be removed through itself", victim.id);
            return Err(ChangeError::not_asked(operation, why));
        }
        self.exclude(victim, through).await;
        self.0.contacts.no_status_pending(victim.id).await;
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
                    self.readmit_member(victim.id);
                }
                Err(error)
            }
        }
    }

    /// Lets a member get requests again that [`Etcd::remove_member`] excluded, since it is not removed.
    pub fn readmit_member(&self, id: MemberId) {
        if self.0.contacts.readmit(id) {
            // The next check brings its endpoints back.
            self.0.recheck.notify_one();
        }
    }

    /// Drops every connection to a member and takes its endpoints out of the balanced channel, unless none would remain.
    async fn exclude(&self, victim: &ListedMember, other: &ListedMember) {
        let urls = self.client_urls(victim);
        self.0.contacts.exclude(victim.id, urls.clone(), Instant::now());
        let mut live = self.live_endpoints();
        live.retain(|endpoint| !urls.contains(endpoint));
        if live.is_empty() && self.config().sync_endpoints {
            live.extend(self.client_urls(other));
        }
        self.use_endpoints(live).await;
    }

    /// Gives a voter other peer URLs. Not for learners: etcd before 3.5.31 makes a voter of an updated learner.
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

    /// Moves the raft leadership to another voter. `leader` must be the raft leader, which alone can do it.
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
    fn each_refusal_of_a_change_has_its_fault() {
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
