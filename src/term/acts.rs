//! What a controller does about single objects: one act at a time for each, and none by a copy of the store that does not show the
//! last one.

use std::collections::HashMap;
use std::hash::Hash;

use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};

use crate::etcd::Revision;
use crate::retry::{Backoff, Policy};

/// The acts of a controller under one term. `K` is what an act is about, `T` what came of it.
pub struct Acts<'t, K, T> {
    /// Those whose act is under way (`None`), or was done at a revision that the copy of the store does not show yet.
    held: HashMap<K, Option<Revision>>,
    rests: Backoff<K>,
    under_way: FuturesUnordered<BoxFuture<'t, (K, T)>>,
}

impl<K, T> Default for Acts<'_, K, T> {
    fn default() -> Self {
        Self {
            held: HashMap::new(),
            rests: Backoff::default(),
            under_way: FuturesUnordered::new(),
        }
    }
}

impl<'t, K: Clone + Hash + Ord + Send + 't, T> Acts<'t, K, T> {
    /// The copy of the store has come further: it shows what was done at the revisions that `shows` names.
    pub fn seen(&mut self, shows: impl Fn(Revision) -> bool) {
        self.held
            .retain(|_, done| done.is_none_or(|revision| !shows(revision)));
    }

    /// Whether no act about it is under way, the copy shows the last one, and it does not rest after a failure.
    pub fn is_free(&self, about: &K) -> bool {
        !self.held.contains_key(about) && !self.rests.is_resting(about)
    }

    /// How many acts are under way.
    pub fn under_way(&self) -> usize {
        self.under_way.len()
    }

    /// Begins an act.
    pub fn begin(&mut self, about: K, act: impl Future<Output = T> + Send + 't) {
        self.held.insert(about.clone(), None);
        self.under_way.push(Box::pin(async move { (about, act.await) }));
    }

    /// Waits until acts have ended, and returns all that have: those that shared a transaction end together. The caller says of each
    /// whether it is [`done`](Self::done) or has [`failed`](Self::failed). Returns none where rests are over; of what is no longer
    /// due, the failures are forgotten then. Safe to cancel.
    pub async fn next(&mut self, is_due: impl Fn(&K) -> bool) -> Vec<(K, T)> {
        let first = tokio::select! {
            Some(first) = self.under_way.next() => first,
            rested = self.rests.next_due() => {
                for about in rested.iter().filter(|about| !is_due(about)) {
                    self.rests.succeeded(about);
                }
                return Vec::new();
            }
        };
        let mut ended = vec![first];
        while let Some(Some(other)) = self.under_way.next().now_or_never() {
            ended.push(other);
        }
        ended
    }

    /// It was done at this revision.
    pub fn done(&mut self, about: K, at: Revision) {
        self.rests.succeeded(&about);
        self.held.insert(about, Some(at));
    }

    /// It was not done, as far as is known: it rests, longer with each failure in a row.
    pub fn failed(&mut self, about: K, policy: Policy) {
        self.held.remove(&about);
        self.rests.failed(about, policy);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_object_is_free_once_the_copy_shows_what_was_done_or_its_rest_is_over() {
        let mut acts: Acts<'_, &str, u32> = Acts::default();
        acts.begin("a", async { 1 });
        acts.begin("b", async { 2 });
        assert!(!acts.is_free(&"a") && acts.is_free(&"c") && acts.under_way() == 2);
        let mut ended = acts.next(|_| true).await;
        ended.sort_unstable();
        assert_eq!(ended, [("a", 1), ("b", 2)], "together");
        acts.done("a", Revision(7));
        acts.failed("b", Policy::ETCD);
        acts.seen(|revision| revision < Revision(7));
        assert!(!acts.is_free(&"a") && !acts.is_free(&"b"));
        acts.seen(|revision| revision <= Revision(7));
        assert!(acts.is_free(&"a") && !acts.is_free(&"b"));
        assert_eq!(acts.next(|_| true).await, []);
        assert!(acts.is_free(&"b"));
        // Its next failure is the second in a row, unless it was not due any more.
        acts.failed("b", Policy::REFUSED);
        assert_eq!(acts.rests.failures(&"b"), 2);
        assert_eq!(acts.next(|_| false).await, []);
        assert_eq!(acts.rests.failures(&"b"), 0);
        // What was done has not failed.
        acts.failed("a", Policy::ETCD);
        acts.done("a", Revision(8));
        assert_eq!(acts.rests.failures(&"a"), 0);
    }
}
