//! Role transitions of nodes without a member, in batches and several at once.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;

use crate::etcd::{Fence, FencedError, Revision};
use crate::failpoint;
use crate::retry::Delays;
use crate::roles::index::Index;
use crate::roles::transitions::{Transition, plan_transitions, transaction};
use crate::store::{Name, Store};

/// Transactions under way at once: enough to keep etcd busy over a network round trip.
const IN_FLIGHT: usize = 8;

type Committed = Result<Revision, FencedError>;

/// What is under way, written or rests.
pub struct Transitions {
    under_way: FuturesUnordered<BoxFuture<'static, (Vec<Transition>, Committed)>>,
    /// Not to be decided on: in a transaction, written but not yet brought by the watch, or resting.
    taken: BTreeSet<Name>,
    /// Written at this revision: decided on again once the index has come so far.
    written: Vec<(Revision, Vec<Name>)>,
    resting: BTreeMap<Instant, Vec<Name>>,
    delays: Delays,
    /// The next transaction has one node only: any of those before may be what was in the way of the others (INV-8).
    alone: BTreeSet<Name>,
}

/// A batch that ended.
pub enum Ended {
    /// All of them were made.
    Made(Vec<Transition>),
    /// None was; to be decided anew.
    NotMade(Vec<Transition>, FencedError),
}

impl Transitions {
    pub fn new() -> Self {
        Self {
            under_way: FuturesUnordered::new(),
            taken: BTreeSet::new(),
            written: Vec::new(),
            resting: BTreeMap::new(),
            delays: Delays::etcd(),
            alone: BTreeSet::new(),
        }
    }

    /// Begins whatever can be done.
    pub fn begin(&mut self, index: &Index, store: &Store, fence: &Fence) {
        let seen = index.revision();
        for (_, names) in self.written.extract_if(.., |(revision, _)| *revision <= seen) {
            for name in names {
                self.taken.remove(&name);
            }
        }
        while self.under_way.len() < IN_FLIGHT {
            let mut batch = plan_transitions(index, &self.taken);
            if let Some(alone) = batch.iter().position(|one| self.alone.contains(&one.node)) {
                batch = vec![batch.swap_remove(alone)];
            }
            if batch.is_empty() {
                return;
            }
            self.taken.extend(batch.iter().map(|one| one.node.clone()));
            let txn = transaction(&store.keys, &batch);
            let (etcd, fence) = (store.etcd.clone(), fence.clone());
            self.under_way.push(Box::pin(async move {
                failpoint::abort_at("roles.changing-roles");
                let committed = etcd.fenced(&fence, txn).await;
                failpoint::abort_at("roles.changed-roles");
                (batch, committed.map(|committed| committed.revision))
            }));
        }
    }

    /// Resolves when a batch has ended, or something has rested long enough (`None`). Safe to cancel.
    pub async fn next(&mut self) -> Option<Ended> {
        let rested = self.resting.first_key_value().map(|(until, _)| *until);
        let rest = async {
            match rested {
                Some(until) => tokio::time::sleep_until(until.into()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            Some((batch, committed)) = self.under_way.next() => Some(self.end(batch, committed)),
            () = rest => {
                for name in self.resting.pop_first().into_iter().flat_map(|(_, names)| names) {
                    self.taken.remove(&name);
                }
                None
            }
        }
    }

    fn end(&mut self, batch: Vec<Transition>, committed: Committed) -> Ended {
        let names: Vec<Name> = batch.iter().map(|one| one.node.clone()).collect();
        match committed {
            Ok(revision) => {
                for name in &names {
                    self.alone.remove(name);
                }
                self.delays.reset();
                self.written.push((revision, names));
                Ended::Made(batch)
            }
            Err(error) => {
                // What was refused is taken apart, so that one node delays no other; a single one rests.
                if names.len() > 1 && !matches!(error, FencedError::Unknown(_)) {
                    for name in names {
                        self.taken.remove(&name);
                        self.alone.insert(name);
                    }
                } else {
                    let until = Instant::now() + self.delays.next_delay();
                    self.resting.entry(until).or_default().extend(names);
                }
                Ended::NotMade(batch, error)
            }
        }
    }
}
