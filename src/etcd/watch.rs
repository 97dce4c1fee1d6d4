//! A watch that goes on: over broken connections, silent ones and members cut off from their cluster.

use std::time::Duration;

use etcd_client::{WatchOptions, WatchStream};
use tracing::{debug, warn};

use super::connect::{Etcd, LARGEST_MESSAGE};
use super::error::{Class, Error};
use super::kv::{KeyRange, KeyValue, Revision, revision_of};
use crate::metrics::Reason;
use crate::retry::Delays;

/// A change of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// It was written.
    Put(KeyValue),
    /// It was deleted, or its lease ended.
    Delete {
        /// Which key.
        key: Vec<u8>,
        /// When.
        revision: Revision,
    },
}

impl Event {
    /// When it happened.
    pub fn revision(&self) -> Revision {
        match self {
            Self::Put(kv) => kv.mod_revision,
            Self::Delete { revision, .. } => *revision,
        }
    }

    /// The key that changed.
    pub fn key(&self) -> &[u8] {
        match self {
            Self::Put(kv) => &kv.key,
            Self::Delete { key, .. } => key,
        }
    }
}

/// What a watch brings.
#[derive(Debug)]
pub enum Watched {
    /// Changes, oldest first, none left out, none twice.
    Events(Vec<Event>),
    /// Changes are lost: compacted, or more at once than one message can hold. List anew: the watch goes on at a
    /// revision that such a list is at or past, so that nothing after it is missed.
    Compacted,
}

/// A watch over a range. Never fails: it reopens, with growing delays, from where it was.
pub struct Watcher {
    etcd: Etcd,
    range: KeyRange,
    /// The first revision whose changes were not told yet.
    next: Revision,
    /// Whether to open one revision earlier: see [`Watcher::start`].
    from_before: bool,
    stream: Option<WatchStream>,
    asked_for_life: bool,
    /// Whether the token was renewed since the last delay: once is enough to try it.
    renewed_token: bool,
    delays: Delays,
}

impl Watcher {
    /// Watches from `from`, that revision's changes included. Nothing is sent before [`Watcher::next`] or
    /// [`Watcher::open`].
    pub fn new(etcd: &Etcd, range: KeyRange, from: Revision) -> Self {
        Self {
            etcd: etcd.clone(),
            range,
            next: from,
            from_before: false,
            stream: None,
            asked_for_life: false,
            renewed_token: false,
            delays: Delays::etcd(),
        }
    }

    /// Opens the watch now, so that it is served at once when the first change comes: one that is opened later
    /// at a past revision waits for etcd's next sync, up to 100 ms.
    pub async fn open(&mut self) {
        if self.stream.is_none() {
            match self.try_open().await {
                Ok(stream) => self.stream = Some(stream),
                Err(error) => debug!("opening a watch failed, to be tried again: {error}"),
            }
        }
    }

    /// The next changes. Safe to cancel: nothing is lost.
    pub async fn next(&mut self) -> Watched {
        loop {
            let Some(stream) = &mut self.stream else {
                match self.try_open().await {
                    Ok(stream) => self.stream = Some(stream),
                    Err(error) => {
                        warn!("watching etcd failed, to be tried again: {error}");
                        self.from_before = true;
                        self.delays.wait().await;
                    }
                }
                continue;
            };
            let silence = self.etcd.config().watch_silence;
            match tokio::time::timeout(silence, stream.message()).await {
                Ok(Ok(Some(response))) => {
                    self.asked_for_life = false;
                    if response.compact_revision() > 0 {
                        return self.skip_past(Revision(response.compact_revision()), "compacted");
                    }
                    if response.canceled() {
                        let reason = response.cancel_reason().to_owned();
                        warn!("etcd ended a watch, opening it anew: {reason}");
                        // Older releases call a token that they no longer know a missing permission.
                        let denied = ["auth", "Unauthenticated", "permission denied"];
                        let denied = denied.iter().any(|text| reason.contains(text));
                        if denied && !self.renewed_token && self.etcd.renew_token().await.is_ok() {
                            // At once: after a delay the fresh one may have expired as well.
                            self.renewed_token = true;
                            self.from_before = true;
                            self.stream = None;
                            self.count("canceled");
                            continue;
                        }
                        self.reopen("canceled").await;
                        continue;
                    }
                    if response.created() && !self.from_before && revision_of(response.header()) >= self.next
                    {
                        // Not from the present after all.
                        self.stream = None;
                        self.from_before = true;
                        continue;
                    }
                    let events: Vec<Event> = response
                        .events()
                        .iter()
                        .filter_map(event_of)
                        .filter(|event| event.revision() >= self.next)
                        .collect();
                    // By the events alone: before etcd 3.4.25 the header of a progress notification could run
                    // ahead of events still to come (etcd issue 15220).
                    let Some(last) = events.last() else { continue };
                    self.next = last.revision().next();
                    self.delays.reset();
                    return Watched::Events(events);
                }
                Ok(Ok(None)) => self.reopen("closed").await,
                Ok(Err(error)) => {
                    let error = Error::from_client("watch", error);
                    debug!("a watch broke: {error}");
                    if error.class == Class::TooLarge
                        && let Ok((_, now)) = self.etcd.get(&self.range.start).await
                    {
                        // etcd sends what a late watch missed in batches of 1,000 revisions, whatever their size;
                        // it would send the same one again and again.
                        return self.skip_past(now, "too_large");
                    }
                    self.etcd.0.recheck.notify_one();
                    self.reopen("error").await;
                }
                Err(_) if !self.asked_for_life && request_progress(stream, silence).await => {
                    self.asked_for_life = true;
                }
                Err(_) => {
                    self.etcd.0.recheck.notify_one();
                    self.reopen("silent").await;
                }
            }
        }
    }

    /// Goes on after `revision`, which a list made from now on is at or past, so that whoever waits in a loop does
    /// not meet the same gap at every turn (INV-9).
    fn skip_past(&mut self, revision: Revision, reason: &'static str) -> Watched {
        self.stream = None;
        self.asked_for_life = false;
        self.from_before = true;
        self.next = self.next.max(revision.next());
        self.count(reason);
        Watched::Compacted
    }

    /// The revision to open at. From the past it is one that was told already, whose changes are left out: opened at
    /// the compacted revision itself, a watch does not report the compaction, but the deletes of that revision are
    /// gone in many releases (etcd issues 18089 and 19179).
    fn start(&self) -> Revision {
        // 0 would mean from now on; at 1 a store is empty.
        Revision((self.next.0 - i64::from(self.from_before)).max(1))
    }

    async fn reopen(&mut self, reason: &'static str) {
        self.stream = None;
        self.asked_for_life = false;
        self.from_before = true;
        self.renewed_token = false;
        self.count(reason);
        self.delays.wait().await;
    }

    fn count(&self, reason: &'static str) {
        self.etcd
            .metrics()
            .watch_restarts
            .get_or_create(&Reason { reason })
            .inc();
    }

    async fn try_open(&self) -> Result<WatchStream, Error> {
        let options = || {
            WatchOptions::new()
                .with_range(self.range.end.clone())
                .with_start_revision(self.start().0)
        };
        self.etcd
            .call("watch", |connection| {
                let (start, options) = (self.range.start.clone(), options());
                async move {
                    let mut watch = connection
                        .client
                        .watch_client()
                        .max_decoding_message_size(LARGEST_MESSAGE);
                    watch.watch(start, Some(options)).await
                }
            })
            .await
    }
}

impl Etcd {
    /// Resolves once the key is gone, or `holds` is no longer true of it. As long as etcd does not answer nothing is
    /// known: how long that may last is for the caller's lease to say.
    pub async fn while_key(&self, key: &[u8], holds: impl Fn(&KeyValue) -> bool) {
        let mut delays = Delays::etcd();
        loop {
            match self.get(key).await {
                Ok((Some(found), now)) if holds(&found) => {
                    // Changes after this read. Whatever comes, a compaction too, the key is looked at again.
                    Watcher::new(self, KeyRange::key(key), now.next()).next().await;
                    delays.reset();
                }
                Ok(_) => return,
                Err(_) => delays.wait().await,
            }
        }
    }
}

/// Asks for a message. Whether it could be asked at all: a full send queue is a dead connection.
async fn request_progress(stream: &mut WatchStream, limit: Duration) -> bool {
    matches!(
        tokio::time::timeout(limit, stream.request_progress()).await,
        Ok(Ok(()))
    )
}

fn event_of(event: &etcd_client::Event) -> Option<Event> {
    let kv = event.kv()?;
    // A deleted key has version 0, a written one at least 1. The client's `event_type()` is not used: it
    // panics on a kind that it does not know.
    Some(if kv.version() == 0 {
        Event::Delete {
            key: kv.key().to_vec(),
            revision: Revision(kv.mod_revision()),
        }
    } else {
        Event::Put(KeyValue::take(kv.clone()))
    })
}
