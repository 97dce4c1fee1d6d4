//! Which store answers (INV-11): its cluster id, and the highest revision that it has shown. Pure.
//!
//! A restore from a snapshot takes the store back while processes use it. What they remember then is true of no store: a proof by
//! a revision of before proves nothing, and a watch from such a revision is silent until the store has passed it. A restore with
//! the same URLs and token keeps the cluster id, so that no single check is enough.

use std::collections::BTreeMap;
use std::fmt;

use super::kv::{MemberId, Revision};

/// The id of an etcd cluster. Prints like in etcdctl: hexadecimal, lower case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClusterId(pub u64);

impl fmt::Display for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}", self.0)
    }
}

/// What a response says about the store that it is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    /// A proxy may leave it out.
    pub cluster: Option<ClusterId>,
    /// The member that answered.
    pub member: MemberId,
    /// The revision of the store at the answering member; [`Revision::ABSENT`] in a response that has none.
    pub revision: Revision,
    pub raft_term: u64,
}

/// Why this process cannot continue: the store is not the one that it has read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreLost {
    /// A linearizable answer was below the highest revision seen.
    #[error(
        "etcd is at revision {now} and was at {before}: it was restored from a snapshot, or lost data. What this process \
         knows of it is void. Start it again, and after a restore record the members of etcd with quorate adopt"
    )]
    WentBack {
        /// The highest revision seen.
        before: Revision,
        /// The revision of the answer.
        now: Revision,
    },
    /// The endpoints belong to another cluster.
    #[error(
        "the etcd endpoints belong to cluster {now} and belonged to {before}: etcd was restored or replaced. What this \
         process knows of it is void. Start it again if that was intended, and record the members of etcd with quorate adopt"
    )]
    Replaced {
        /// The cluster that this process has read.
        before: ClusterId,
        /// The cluster that answers now.
        now: ClusterId,
    },
}

/// Why an answer does not count.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refused {
    /// It is from another cluster. The pinned one may still answer elsewhere.
    #[error("etcd cluster {answered} answers here, and not cluster {pinned}")]
    Foreign { pinned: ClusterId, answered: ClusterId },
    /// The store is lost.
    #[error(transparent)]
    Lost(#[from] StoreLost),
}

/// What this process has seen of its store.
#[derive(Debug, Default)]
pub(super) struct StoreIdentity {
    cluster: Option<ClusterId>,
    highest: Revision,
}

impl StoreIdentity {
    /// A store of this cluster, or of that of the first answer.
    pub fn of(cluster: Option<ClusterId>) -> Self {
        Self {
            cluster,
            highest: Revision::ABSENT,
        }
    }

    /// The cluster; `None` before the first answer that names it.
    pub fn cluster(&self) -> Option<ClusterId> {
        self.cluster
    }

    /// The highest revision seen so far. A linearizable answer to a request that is sent from now on is not below it. An
    /// answer to an earlier request may be.
    pub fn highest(&self) -> Revision {
        self.highest
    }

    /// Takes in what a response says. `floor` is [`StoreIdentity::highest`] before the request, for a linearizable one.
    /// Any other may come from a member that lags.
    pub fn take_in(&mut self, header: Header, floor: Option<Revision>) -> Result<(), Refused> {
        if let Some(answered) = header.cluster {
            let pinned = *self.cluster.get_or_insert(answered);
            if answered != pinned {
                return Err(Refused::Foreign { pinned, answered });
            }
        }
        if header.revision == Revision::ABSENT {
            return Ok(());
        }
        if let Some(before) = floor
            && header.revision < before
        {
            let now = header.revision;
            return Err(StoreLost::WentBack { before, now }.into());
        }
        // Where a watch joins another one at a proxy, the proxy answers itself: without a cluster, at the revision that was
        // asked for, which may be yet to come.
        if header.cluster.is_some() {
            self.highest = self.highest.max(header.revision);
        }
        Ok(())
    }

    /// Judges the answers of endpoints, those without an answer counted in `asked`: the store is replaced once another cluster
    /// answers at most of them, and the pinned one at none. A single endpoint that was misconfigured is refused.
    pub fn judge(
        &self,
        asked: usize,
        answered: impl IntoIterator<Item = ClusterId>,
    ) -> Result<(), StoreLost> {
        let (Some(before), votes) = (self.cluster, count(answered)) else {
            return Ok(());
        };
        if votes.contains_key(&before) {
            return Ok(());
        }
        match votes.into_iter().find(|(_, count)| 2 * count > asked) {
            Some((now, _)) => Err(StoreLost::Replaced { before, now }),
            None => Ok(()),
        }
    }
}

/// How many answered of each cluster.
pub(super) fn count<C: Ord>(answered: impl IntoIterator<Item = C>) -> BTreeMap<C, usize> {
    let mut votes = BTreeMap::new();
    for cluster in answered {
        *votes.entry(cluster).or_default() += 1;
    }
    votes
}

/// The cluster of a first connection: that of most endpoints; `None` if no endpoint names its cluster.
///
/// # Errors
/// As many endpoints belong to one cluster as to another, so that none can be preferred.
pub(super) fn prevailing(answered: impl IntoIterator<Item = ClusterId>) -> Result<Option<ClusterId>, ()> {
    let votes = count(answered);
    let most = votes.values().max().copied();
    let mut first = votes.into_iter().filter(|(_, count)| Some(*count) == most);
    match (first.next(), first.next()) {
        (Some(_), Some(_)) => Err(()),
        (cluster, _) => Ok(cluster.map(|(cluster, _)| cluster)),
    }
}

/// A key that only this process writes, at the revision of its last write. Once the store lacks it at that revision, the
/// process was forgotten, or the store has another history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Witness {
    /// The whole key.
    pub key: Vec<u8>,
    /// The revision of the last write.
    pub mod_revision: Revision,
}

/// The signs that must be unchanged for an interrupted watch to continue: a restored store may have passed the old revision
/// meanwhile, and then holds another history before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Epoch {
    pub raft_term: u64,
    pub witness: Option<Witness>,
}

impl Epoch {
    /// Whether a watch may continue as this one became `now`. A process that has registered since is no sign of another
    /// history: the store may still have the registration.
    pub fn may_become(&self, now: &Self) -> bool {
        self.raft_term == now.raft_term && (self.witness.is_none() || self.witness == now.witness)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: ClusterId = ClusterId(0xa);
    const OTHER: ClusterId = ClusterId(0xb);

    fn header(cluster: ClusterId, revision: i64) -> Header {
        Header {
            cluster: Some(cluster),
            member: MemberId(1),
            revision: Revision(revision),
            raft_term: 2,
        }
    }

    #[test]
    fn the_first_answer_pins_the_cluster_and_another_one_is_refused_by_name() {
        let mut store = StoreIdentity::default();
        assert_eq!(store.take_in(header(OURS, 5), None), Ok(()));
        let refused = store.take_in(header(OTHER, 900), None).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "etcd cluster b answers here, and not cluster a"
        );
        assert_eq!(store.highest(), Revision(5), "its revision does not count");
    }

    #[test]
    fn a_linearizable_answer_below_the_highest_revision_before_its_request_is_a_restore() {
        let mut store = StoreIdentity::of(Some(OURS));
        store.take_in(header(OURS, 413), None).unwrap();
        let floor = store.highest();
        assert_eq!(store.take_in(header(OURS, 413), Some(floor)), Ok(()));
        let lost = StoreLost::WentBack {
            before: Revision(413),
            now: Revision(12),
        };
        assert_eq!(store.take_in(header(OURS, 12), Some(floor)), Err(lost.into()));
    }

    #[test]
    fn a_lagging_member_and_an_answer_that_was_overtaken_are_no_restore() {
        let mut store = StoreIdentity::of(Some(OURS));
        store.take_in(header(OURS, 10), None).unwrap();
        let floor = store.highest();
        store.take_in(header(OURS, 20), Some(floor)).unwrap();
        assert_eq!(store.take_in(header(OURS, 3), None), Ok(()), "not linearizable");
        assert_eq!(
            store.take_in(header(OURS, 11), Some(floor)),
            Ok(()),
            "sent before"
        );
        let unnamed = Header {
            cluster: None,
            ..header(OTHER, 20)
        };
        assert_eq!(store.take_in(unnamed, None), Ok(()), "from a proxy");
        assert_eq!(
            store.take_in(header(OURS, 0), Some(Revision(20))),
            Ok(()),
            "it names no revision"
        );
        assert_eq!(store.highest(), Revision(20));
    }

    #[test]
    fn a_revision_that_a_proxy_made_up_does_not_count() {
        let mut store = StoreIdentity::of(Some(OURS));
        store.take_in(header(OURS, 20), None).unwrap();
        let made_up = Header {
            cluster: None,
            ..header(OURS, 21)
        };
        assert_eq!(store.take_in(made_up, None), Ok(()));
        let floor = store.highest();
        assert_eq!(
            store.take_in(header(OURS, 20), Some(floor)),
            Ok(()),
            "the store is idle"
        );
    }

    #[test]
    fn an_epoch_ends_with_its_raft_term_and_with_its_witness_but_not_as_the_first_witness_comes() {
        let epoch = |raft_term, witness: Option<i64>| Epoch {
            raft_term,
            witness: witness.map(|revision| Witness {
                key: b"/own".to_vec(),
                mod_revision: Revision(revision),
            }),
        };
        for (before, now, continues) in [
            (epoch(2, Some(7)), epoch(2, Some(7)), true),
            (epoch(2, None), epoch(2, None), true),
            (epoch(2, None), epoch(2, Some(7)), true),
            (epoch(2, Some(7)), epoch(2, Some(8)), false),
            (epoch(2, Some(7)), epoch(2, None), false),
            (epoch(2, None), epoch(3, Some(7)), false),
        ] {
            assert_eq!(before.may_become(&now), continues, "{before:?}, then {now:?}");
        }
    }

    #[test]
    fn the_store_is_replaced_once_most_endpoints_are_of_another_cluster_and_none_of_the_own() {
        let store = StoreIdentity::of(Some(OURS));
        let replaced = Err(StoreLost::Replaced {
            before: OURS,
            now: OTHER,
        });
        for (asked, answered, judged) in [
            (1, vec![OTHER], replaced.clone()),
            (3, vec![OTHER, OTHER], replaced),
            (3, vec![OTHER], Ok(())),
            (2, vec![OTHER], Ok(())),
            (3, vec![OTHER, OTHER, OURS], Ok(())),
            (3, vec![], Ok(())),
        ] {
            assert_eq!(
                store.judge(asked, answered.clone()),
                judged,
                "{answered:?} of {asked}"
            );
        }
    }

    #[test]
    fn a_connection_begins_with_the_cluster_of_most_endpoints() {
        assert_eq!(prevailing([OTHER, OURS, OURS]), Ok(Some(OURS)));
        assert_eq!(prevailing([]), Ok(None));
        assert_eq!(prevailing([OTHER, OURS]), Err(()));
    }
}
