//! What requests about roles are checked against, and what is shown of members: the leader's model of the membership,
//! without its joins. Commands and replicas read it for a single decision.

use std::collections::BTreeSet;
use std::time::Duration;

use futures::future::{join_all, try_join_all};

use super::index::Index;
use super::membership::{Membership, membership};
use super::owner::Owner;
use crate::etcd::members::{Evidence, ListedMember, NotAsked};
use crate::etcd::{Error, MemberId, Txn};
use crate::store::{Name, Store, Update};

/// How long a member may take to prove that it is healthy, where a decision depends on it.
const HEALTH_LIMIT: Duration = Duration::from_secs(2);

/// How long a member may take to answer where it is only shown. With a member that hangs, the command takes
/// 0.3 s to connect, and should take less than a second as a whole. That is enough for a connection and an answer over a link of
/// 100 ms.
const SHOWN_LIMIT: Duration = Duration::from_millis(400);

/// What the members are asked.
#[derive(Clone, Copy)]
enum Asked<'a> {
    Nothing,
    /// Those whose removal is decided, only whether they serve.
    Health,
    /// The same, for less time.
    Shown,
    /// These alone for their status, unless their removal is decided.
    Releases(&'a BTreeSet<MemberId>),
    EveryStatus,
}

/// What one member is asked.
#[derive(Debug, PartialEq, Eq)]
enum Question {
    Nothing(NotAsked),
    /// Whether it serves.
    Read,
    ReadAndStatus,
}

impl Asked<'_> {
    /// The question to a member. `leaves` says whether its removal is decided.
    fn of(self, id: MemberId, leaves: bool) -> Question {
        match (self, leaves) {
            (Self::Nothing, _) => Question::Nothing(NotAsked::NotNeeded),
            (Self::Releases(_), true) => Question::Nothing(NotAsked::Leaving),
            (Self::Releases(answering), false) if !answering.contains(&id) => {
                Question::Nothing(NotAsked::NotYet)
            }
            (Self::Health | Self::Shown, true) => Question::Read,
            (Self::Health | Self::Shown | Self::Releases(_), false) | (Self::EveryStatus, _) => {
                Question::ReadAndStatus
            }
        }
    }
}

/// What could not be read. It proves nothing.
#[derive(Debug, thiserror::Error)]
pub enum NotRead {
    /// Etcd's own list.
    #[error("the member list cannot be read")]
    MemberList(#[source] Error),
    /// The records.
    #[error(transparent)]
    Records(#[from] Error),
}

/// The store's part and etcd's part, read for a single decision.
#[derive(Debug)]
pub struct Facts {
    /// The members with their records and nodes.
    pub membership: Membership,
    /// Every member record at one revision, and the nodes that the records name, each read later.
    index: Index,
}

impl Facts {
    /// Reads everything, and asks each member for its health.
    ///
    /// # Errors
    /// etcd did not answer: what could not be read proves nothing.
    pub async fn with_health(store: &Store) -> Result<Self, NotRead> {
        Self::gather(store, Asked::Health).await
    }

    /// [`Facts::with_health`] for a table: a member that is slow to answer is shown as one that has not answered. Decide nothing
    /// by it.
    ///
    /// # Errors
    /// As [`Facts::with_health`].
    pub async fn to_show(store: &Store) -> Result<Self, NotRead> {
        Self::gather(store, Asked::Shown).await
    }

    /// Reads everything, and asks the members but the `settled` ones for their status, and so for their releases.
    ///
    /// For questions that are repeated until a member answers: such a member may be about to be removed because it does not answer, and a
    /// question that still waits in it can end it. So it is asked only once it has answered a read, and its record is read after that.
    ///
    /// # Errors
    /// etcd did not answer: what could not be read proves nothing.
    pub async fn with_releases(store: &Store, settled: &BTreeSet<MemberId>) -> Result<Self, NotRead> {
        let list = store.etcd.list_members().await.map_err(NotRead::MemberList)?;
        let asked = list.members.iter().filter(|listed| !settled.contains(&listed.id));
        let asked = asked.map(|listed| store.etcd.survey_leaving(listed, HEALTH_LIMIT));
        let evidence = join_all(asked).await.into_iter();
        let answering = evidence.filter(|evidence| evidence.read.answer().is_some());
        let answering: BTreeSet<MemberId> = answering.map(|evidence| evidence.member).collect();
        Self::gather(store, Asked::Releases(&answering)).await
    }

    /// Reads everything, and asks each member for its health and its status, those too whose removal is decided. Only where
    /// no voter serves: then no removal can be under way, which the request for a status could disturb.
    ///
    /// # Errors
    /// etcd did not answer: what could not be read proves nothing.
    pub async fn with_every_status(store: &Store) -> Result<Self, NotRead> {
        Self::gather(store, Asked::EveryStatus).await
    }

    /// Reads everything but the health of the members. They count as unhealthy, which only checks of quorum use.
    ///
    /// # Errors
    /// etcd did not answer: what could not be read proves nothing.
    pub async fn without_health(store: &Store) -> Result<Self, NotRead> {
        Self::gather(store, Asked::Nothing).await
    }

    async fn gather(store: &Store, asked: Asked<'_>) -> Result<Self, NotRead> {
        let list = store.etcd.list_members().await.map_err(NotRead::MemberList)?;
        let list = list.members;
        let mut index = Index::new(store.keys.clone());
        // As late as possible, since a member is not asked once its removal is recorded.
        let (keys, revision) = store.etcd.list(&store.keys.members()).await?;
        index.take_in(Update::Page { first: true, keys });
        let evidence = survey(store, &list, &index, asked).await;
        let names = recorded_nodes(&index);
        let nodes = names
            .iter()
            .map(async |name| store.etcd.get(&store.keys.node(name)).await);
        let nodes = try_join_all(nodes).await?;
        index.take_in(Update::Page {
            first: false,
            keys: nodes.into_iter().filter_map(|(node, _)| node).collect(),
        });
        let missing = index
            .records()
            .filter(|(_, record, _)| index.owner(record) == Owner::Missing);
        let missing = missing.map(|(_, record, _)| store.keys.removed(&record.node_uid));
        let removed = try_join_all(missing.map(async |key| store.etcd.get(&key).await)).await?;
        index.take_in(Update::Page {
            first: false,
            keys: removed.into_iter().filter_map(|(removed, _)| removed).collect(),
        });
        index.take_in(Update::Listed(revision));
        Ok(Self {
            membership: membership(&index, &list, evidence, true),
            index,
        })
    }

    /// The versions of etcd that the members report.
    pub fn versions(&self) -> impl Iterator<Item = &str> {
        let statuses = self
            .membership
            .listed()
            .filter_map(|member| member.evidence.status.answer());
        statuses.map(|status| status.version.as_str())
    }

    /// Adds the compares that nothing has changed that the check used, except the node of the request itself, which the
    /// request compares. etcd's own list cannot be compared; the leader reads it again.
    pub fn compare(&self, mut txn: Txn, store: &Store, except: &Name) -> Txn {
        for name in recorded_nodes(&self.index).iter().filter(|name| *name != except) {
            txn = txn.when_unchanged(&store.keys.node(name), self.index.node_revision(name.as_str()));
        }
        for (id, revision) in self.index.record_revisions() {
            txn = txn.when_unchanged(&store.keys.member(id), revision);
        }
        // No record was added either.
        txn.when_range_unwritten_since(&store.keys.members(), self.index.revision())
    }
}

/// The nodes that the records name.
fn recorded_nodes(index: &Index) -> BTreeSet<Name> {
    let names = index.records().map(|(_, record, _)| record.node.parse());
    names.filter_map(Result::ok).collect()
}

/// Asks the listed members.
async fn survey(store: &Store, list: &[ListedMember], index: &Index, asked: Asked<'_>) -> Vec<Evidence> {
    let limit = match asked {
        Asked::Shown => SHOWN_LIMIT,
        Asked::Nothing | Asked::Health | Asked::Releases(_) | Asked::EveryStatus => HEALTH_LIMIT,
    };
    let asked = list.iter().map(async |listed| {
        let record = index.record(listed.id);
        let leaves = record.is_some_and(|(record, _)| record.removal.is_some());
        match asked.of(listed.id, leaves) {
            Question::Nothing(why) => Evidence::not_asked(listed.id, listed.learner, why),
            Question::Read => store.etcd.survey_leaving(listed, limit).await,
            Question::ReadAndStatus => store.etcd.survey_one(listed, limit).await,
        }
    });
    join_all(asked).await
}

#[cfg(test)]
mod tests {
    use super::*;

    /// etcd can panic where it is asked for its status while it is removed.
    #[test]
    fn a_member_that_does_not_answer_or_leaves_is_not_asked_for_its_release() {
        let (answers, hangs) = (MemberId(1), MemberId(2));
        let answering = BTreeSet::from([answers]);
        let asked = Asked::Releases(&answering);
        for (id, leaves, question) in [
            (answers, false, Question::ReadAndStatus),
            (answers, true, Question::Nothing(NotAsked::Leaving)),
            (hangs, false, Question::Nothing(NotAsked::NotYet)),
            (hangs, true, Question::Nothing(NotAsked::Leaving)),
        ] {
            assert_eq!(asked.of(id, leaves), question, "{id}, {leaves}");
        }
        for asked in [Asked::Health, Asked::Shown] {
            assert_eq!(asked.of(hangs, false), Question::ReadAndStatus);
            assert_eq!(asked.of(hangs, true), Question::Read);
        }
    }
}
