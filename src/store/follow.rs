//! List, then watch, for ever: what is under a range now, and every change from then on.

use tracing::warn;

use crate::etcd::{Class, Etcd, Event, KeyRange, KeyValue, Pages, Revision, Watched, Watcher};
use crate::retry::Delays;

/// A step of following a range.
#[derive(Debug)]
pub enum Update {
    /// Part of a list, which is at one revision. A list begins at the start, after a compaction, and again from
    /// its first page when its revision was compacted away under way.
    Page {
        /// Whether it is the first of its list: what earlier pages of an unfinished list said is void.
        first: bool,
        /// The keys.
        keys: Vec<KeyValue>,
    },
    /// The list is complete: whatever was not in it does not exist at its revision.
    Listed(Revision),
    /// Changes after the list, oldest first.
    Events(Vec<Event>),
}

/// Follows a range. Never fails: it retries, with growing delays.
pub struct Follower {
    etcd: Etcd,
    range: KeyRange,
    state: State,
    delays: Delays,
}

enum State {
    Listing(Pages),
    Watching {
        watcher: Box<Watcher>,
        /// The revision of the list before, until it was told.
        listed: Option<Revision>,
    },
}

impl Follower {
    /// Follows this range; nothing is read before [`Follower::next`].
    pub fn new(etcd: &Etcd, range: KeyRange) -> Self {
        let state = State::Listing(etcd.pages(range.clone()));
        Self {
            etcd: etcd.clone(),
            range,
            state,
            delays: Delays::etcd(),
        }
    }

    /// The next step. Safe to cancel: nothing is lost.
    pub async fn next(&mut self) -> Update {
        loop {
            match &mut self.state {
                State::Listing(pages) => {
                    let first = pages.revision() == Revision::ABSENT;
                    match pages.next().await {
                        Ok(Some(keys)) => return Update::Page { first, keys },
                        Ok(None) => {
                            let revision = pages.revision();
                            let watcher =
                                Box::new(Watcher::new(&self.etcd, self.range.clone(), revision.next()));
                            self.state = State::Watching {
                                watcher,
                                listed: Some(revision),
                            };
                        }
                        Err(error) if error.class == Class::Compacted => self.list_anew(),
                        Err(error) => {
                            warn!("listing etcd failed, to be tried again: {error}");
                            self.delays.wait().await;
                        }
                    }
                }
                State::Watching { watcher, listed } => {
                    if listed.is_some() {
                        // Before anyone acts on the list, so that the first change after it comes at once.
                        watcher.open().await;
                        self.delays.reset();
                    }
                    if let Some(revision) = listed.take() {
                        return Update::Listed(revision);
                    }
                    match watcher.next().await {
                        Watched::Events(events) => return Update::Events(events),
                        Watched::Compacted => self.list_anew(),
                    }
                }
            }
        }
    }

    fn list_anew(&mut self) {
        self.state = State::Listing(self.etcd.pages(self.range.clone()));
    }
}
