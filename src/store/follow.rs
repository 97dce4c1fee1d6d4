//! List, then watch, without an end: the keys of a range now, and every change from then on.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt;
use futures::stream::{self, BoxStream};
use tracing::warn;

use crate::etcd::{
    Etcd, Event, KeyRange, KeyValue, Pages, Progress, Revision, Watched, Watcher, delay_after,
};
use crate::retry::Delays;

/// A step of following a range.
#[derive(Debug)]
pub enum Update {
    /// Part of a list, all of which is at one revision. A list comes at the start and after a compaction. It starts again
    /// with its first page if a later one cannot be read.
    Page {
        /// Whether the page is the first of its list: it voids earlier pages of an unfinished list.
        first: bool,
        /// The keys, in order.
        keys: Vec<KeyValue>,
    },
    /// The list is complete: a key that was not in it does not exist at its revision.
    Listed(Revision),
    /// Changes after the list, oldest first.
    Events(Vec<Event>),
}

/// Follows a range. Never fails: it retries, after growing delays.
///
/// The follower owns what it has begun: page reads, delays and deadlines outlive the future of [`Follower::next`], and the
/// next call continues them. A caller may therefore drop that future as often as it likes.
pub struct Follower {
    /// The updates of a [`Follow`]. Never ends.
    updates: BoxStream<'static, Update>,
    progress: Arc<Progress>,
}

impl Follower {
    /// Follows this range. Reads nothing before [`Follower::next`].
    pub fn new(etcd: &Etcd, range: KeyRange) -> Self {
        let progress = Arc::default();
        let follow = Follow {
            progress: Arc::clone(&progress),
            state: State::Listing(etcd.pages(range.clone())),
            etcd: etcd.clone(),
            range,
            delays: Delays::etcd(),
        };
        let updates = stream::unfold(follow, |mut follow| async {
            let update = follow.next().await;
            Some((update, follow))
        });
        Self {
            updates: Box::pin(updates),
            progress,
        }
    }

    /// Says how far the follower has come, for as long as another task or future calls [`Follower::next`].
    pub fn progress(&self) -> Arc<Progress> {
        Arc::clone(&self.progress)
    }

    /// The next step. Safe to cancel.
    pub async fn next(&mut self) -> Update {
        match self.updates.next().await {
            Some(update) => update,
            None => std::future::pending().await,
        }
    }
}

/// The state of a [`Follower`] between two updates. No step is ever cancelled.
struct Follow {
    etcd: Etcd,
    range: KeyRange,
    state: State,
    progress: Arc<Progress>,
    delays: Delays,
}

enum State {
    Listing(Pages),
    /// Since this moment.
    Watching(Watcher, Instant),
}

impl Follow {
    async fn next(&mut self) -> Update {
        loop {
            match &mut self.state {
                State::Listing(pages) => {
                    let (first, revision) = (pages.revision() == Revision::ABSENT, pages.revision());
                    match pages.next().await {
                        Ok(Some(keys)) => return Update::Page { first, keys },
                        Ok(None) => {
                            let mut watcher = Watcher::after(pages, &self.progress);
                            // Before the caller acts on the list, so that the first change after it comes at once.
                            watcher.open().await;
                            self.state = State::Watching(watcher, Instant::now());
                            self.progress.show(revision);
                            return Update::Listed(revision);
                        }
                        Err(error) => {
                            warn!("listing etcd failed, trying again: {error}");
                            self.list_again(Duration::ZERO).await;
                        }
                    }
                }
                State::Watching(watcher, since) => match watcher.next().await {
                    Watched::Events(events) => {
                        // Only now it is sure that the list was not in vain.
                        self.delays.reset();
                        return Update::Events(events);
                    }
                    Watched::Compacted => {
                        let watched = since.elapsed();
                        self.list_again(watched).await;
                    }
                },
            }
        }
    }

    /// Begins the list again, after a watch that lasted this long.
    async fn list_again(&mut self, watched: Duration) {
        self.progress.forget();
        tokio::time::sleep(delay_after(watched, &mut self.delays)).await;
        self.state = State::Listing(self.etcd.pages(self.range.clone()));
    }
}
