//! A watch that continues over broken connections, silent ones and members cut off from their cluster.

use std::sync::Arc;
use std::time::{Duration, Instant};

use etcd_client::{WatchOptions, WatchResponse, WatchStream};
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use tokio::sync::watch;
use tracing::{debug, warn};

use super::connect::{Etcd, LARGEST_MESSAGE, SLOW};
use super::error::{Class, Error};
use super::kv::{KeyRange, KeyValue, Revision, revision_of};
use super::range::Pages;
use super::store_identity::{Epoch, Header};
use crate::metrics::Reason;
use crate::retry::Delays;

mod calm;
mod event;
mod history;
mod progress;

pub(crate) use calm::delay_after;
pub use event::Event;
use event::event_of;
use history::LastChange;
pub use progress::Progress;
use progress::request_progress;

/// What a watch returns.
#[derive(Debug)]
pub enum Watched {
    /// Changes, oldest first. None is left out, none comes twice.
    Events(Vec<Event>),
    /// Changes are lost: compacted, or more at once than one message can hold; or etcd may have been restored while the
    /// watch was interrupted, so that its changes are not those of before. List the range again. The watch continues at a
    /// revision that such a list has reached, so that nothing after the list is missed.
    Compacted,
}

/// A watch over a range. Never fails: it reopens, after growing delays, where it was.
///
/// The watcher owns what it has begun: its requests, delays and deadlines outlive the future of [`Watcher::next`], and the
/// next call continues them. A caller may therefore drop that future as often as it likes.
pub struct Watcher {
    /// The steps of a [`Watch`]. Never ends. The first step is the first attempt to open the stream.
    steps: BoxStream<'static, Option<Watched>>,
    first_step_done: bool,
}

impl Watcher {
    /// Watches from `from`, the changes at that revision included. Sends nothing before [`Watcher::next`] or
    /// [`Watcher::open`].
    pub fn new(etcd: &Etcd, range: KeyRange, from: Revision) -> Self {
        Self::over(Watch::new(etcd, range, from))
    }

    /// Watches the range of a list that was just read, from the revision after the list, and answers `progress`. Where the
    /// history of the store may have changed since the first page, the watch begins with [`Watched::Compacted`] (INV-11).
    pub fn after(list: &Pages, progress: &Arc<Progress>) -> Self {
        let mut watch = Watch::new(&list.etcd, list.range.clone(), list.revision().next());
        watch.progress = Arc::clone(progress);
        watch.epoch.clone_from(&list.epoch);
        // Between two pages the store may have been restored without any request that failed.
        watch.interrupted = list.pages_read > 1;
        Self::over(watch)
    }

    fn over(watch: Watch) -> Self {
        let steps = stream::unfold(watch, |mut watch| async {
            let step = watch.step().await;
            Some((step, watch))
        });
        Self {
            steps: Box::pin(steps),
            first_step_done: false,
        }
    }

    /// Opens the watch now, so that etcd serves it at once when the first change comes. A watch that is opened later at a
    /// past revision waits for etcd's next sync, up to 100 ms. Makes one attempt; [`Watcher::next`] makes the others.
    pub async fn open(&mut self) {
        if !self.first_step_done {
            let _ = self.steps.next().await;
            self.first_step_done = true;
        }
    }

    /// The next changes. Safe to cancel.
    pub async fn next(&mut self) -> Watched {
        self.open().await;
        loop {
            if let Some(Some(watched)) = self.steps.next().await {
                return watched;
            }
        }
    }
}

/// After this long a stream has brought what was missed before it was opened, which etcd sends in a loop of 100 ms: its progress
/// counts from then on.
const CAUGHT_UP: Duration = Duration::from_secs(1);

/// The state of a [`Watcher`] between two steps. No step is ever cancelled.
struct Watch {
    etcd: Etcd,
    range: KeyRange,
    /// The first revision whose changes were not returned yet.
    next: Revision,
    /// Whether to open one revision earlier: see [`Watch::start`].
    from_before: bool,
    stream: Option<WatchStream>,
    /// Whether the store had not reached the first revision of the stream when the stream was opened, and no change came
    /// since.
    ahead: bool,
    /// The signs of the store, from the first stream on.
    epoch: Option<Epoch>,
    /// The last change that was returned.
    last: Option<LastChange>,
    /// Whether changes may have been missed since the last response.
    interrupted: bool,
    /// When the stream was opened.
    opened: Instant,
    /// Changes when an endpoint leaves the channel.
    endpoint_left: watch::Receiver<()>,
    /// After this long without a message etcd is asked for one, and after as long again the stream is reopened.
    silence: Duration,
    /// When the silence began.
    silent_since: Instant,
    asked_for_progress: bool,
    progress: Arc<Progress>,
    /// Whether the token was renewed since the last delay. One attempt at that is enough.
    renewed_token: bool,
    /// Before the stream is opened again.
    pause: Option<Duration>,
    delays: Delays,
}

impl Watch {
    fn new(etcd: &Etcd, range: KeyRange, from: Revision) -> Self {
        Self {
            etcd: etcd.clone(),
            range,
            next: from,
            from_before: false,
            stream: None,
            ahead: false,
            epoch: None,
            last: None,
            interrupted: false,
            opened: Instant::now(),
            endpoint_left: etcd.0.left.subscribe(),
            silence: etcd.config().watch_silence,
            silent_since: Instant::now(),
            asked_for_progress: false,
            progress: Arc::default(),
            renewed_token: false,
            pause: None,
            delays: Delays::etcd(),
        }
    }

    /// Opens the stream, or takes one message from it.
    async fn step(&mut self) -> Option<Watched> {
        let Some(stream) = &mut self.stream else {
            self.open().await;
            return None;
        };
        let silent_until = (self.silent_since + self.silence).into();
        let (progress, caught_up) = (&self.progress, self.opened + CAUGHT_UP);
        let asked = async {
            progress.asked().await;
            tokio::time::sleep_until(caught_up.into()).await;
        };
        let message = tokio::select! {
            biased;
            message = tokio::time::timeout_at(silent_until, stream.message()) => message,
            Ok(()) = self.endpoint_left.changed() => {
                // It may be the one that serves this stream.
                self.silence = self.silence.min(SLOW);
                self.silent_since = Instant::now();
                self.asked_for_progress = request_progress(stream, self.silence).await;
                return None;
            }
            () = asked => {
                // However often it is asked, a silence lasts.
                request_progress(stream, SLOW).await;
                return None;
            }
        };
        match message {
            Ok(Ok(Some(response))) => self.on_response(response).await,
            Ok(Ok(None)) => {
                self.reopen("closed");
                None
            }
            Ok(Err(error)) => self.on_error(Error::from_client("watch", error)).await,
            Err(_) if !self.asked_for_progress && request_progress(stream, self.silence).await => {
                self.asked_for_progress = true;
                self.silent_since = Instant::now();
                None
            }
            Err(_) if self.ahead => {
                self.reopen_behind();
                None
            }
            Err(_) => {
                self.etcd.0.recheck.notify_one();
                self.reopen("silent");
                None
            }
        }
    }

    async fn open(&mut self) {
        if let Some(pause) = self.pause.take() {
            tokio::time::sleep(pause).await;
        }
        match self.try_open().await {
            Ok(stream) => {
                self.stream = Some(stream);
                self.opened = Instant::now();
                self.silent_since = self.opened;
                self.silence = self.etcd.config().watch_silence;
                self.endpoint_left.mark_unchanged();
            }
            Err(error) => {
                warn!("opening a watch failed, trying again: {error}");
                self.from_before = true;
                self.interrupted = true;
                self.pause = Some(self.delays.next_delay());
            }
        }
    }

    async fn on_response(&mut self, response: WatchResponse) -> Option<Watched> {
        self.asked_for_progress = false;
        self.silence = self.etcd.config().watch_silence;
        self.silent_since = Instant::now();
        let header = response.header().map(Header::from);
        if let Some(header) = header
            && self.etcd.check_header("watch", header, None).is_err()
        {
            self.reopen("error");
            return None;
        }
        if response.compact_revision() > 0 {
            return Some(self.skip_past(Revision(response.compact_revision()), "compacted"));
        }
        if response.canceled() {
            self.on_canceled(response.cancel_reason()).await;
            return None;
        }
        if response.created()
            && let Some(header) = header
        {
            match self.recognizes(header).await {
                Ok(true) => {}
                Ok(false) => return self.begin_again().await,
                Err(error) => return self.on_error(error).await,
            }
        }
        if response.created() {
            self.ahead = revision_of(response.header()) < self.start();
        }
        if response.created() && !self.from_before && !self.ahead {
            // The watch starts in the past.
            self.stream = None;
            self.from_before = true;
            return None;
        }
        if response.events().is_empty() && !response.created() {
            self.progress.show(revision_of(response.header()));
        }
        let events: Vec<Event> = response
            .events()
            .iter()
            .filter_map(event_of)
            .filter(|event| event.revision() >= self.next)
            .collect();
        // The watch advances by events alone: before etcd 3.4.25 the header of a progress notification could run ahead of
        // events still to come (etcd issue 15220).
        let last = events.last()?;
        self.ahead = false;
        self.next = last.revision().next();
        self.last = Some(LastChange::of(last));
        self.progress.show(last.revision());
        self.delays.reset();
        Some(Watched::Events(events))
    }

    async fn on_canceled(&mut self, reason: &str) {
        warn!("etcd ended a watch, reopening it: {reason}");
        // Older releases report a token that they no longer know as a missing permission.
        let denied = ["auth", "Unauthenticated", "permission denied"];
        let denied = denied.iter().any(|text| reason.contains(text));
        if denied && !self.renewed_token && self.etcd.renew_token(self.opened).await.is_ok() {
            // Reopens without a delay, in which the new token might expire as well.
            self.close("canceled");
            self.renewed_token = true;
        } else {
            self.reopen("canceled");
        }
    }

    async fn on_error(&mut self, error: Error) -> Option<Watched> {
        debug!("a watch broke: {error}");
        if error.class == Class::TooLarge
            && let Ok((_, now)) = self.etcd.get(&self.range.start).await
        {
            // etcd sends what a late watch missed in batches of 1,000 revisions, whatever their size. It would send the
            // same batch again and again.
            return Some(self.skip_past(now, "too_large"));
        }
        self.etcd.0.recheck.notify_one();
        self.reopen("error");
        None
    }

    /// Continues after `revision`, which a list made from now on has reached, so that a caller that lists again does not
    /// meet the same gap at every turn (INV-9).
    fn skip_past(&mut self, revision: Revision, reason: &'static str) -> Watched {
        self.close(reason);
        self.next = self.next.max(revision.next());
        Watched::Compacted
    }

    fn reopen(&mut self, reason: &'static str) {
        self.close(reason);
        self.renewed_token = false;
        self.pause = Some(delay_after(self.opened.elapsed(), &mut self.delays));
    }

    /// Reopens the stream at a revision that the store has reached. Newer etcd (3.5.30, unlike 3.5.16; its issue 20221) does
    /// not answer a request for progress before the store has reached the first revision of the watch, so that the silence
    /// of such a watch proves nothing.
    fn reopen_behind(&mut self) {
        self.stream = None;
        self.asked_for_progress = false;
        self.from_before = true;
        self.interrupted = true;
    }

    fn close(&mut self, reason: &'static str) {
        self.reopen_behind();
        self.etcd
            .metrics()
            .watch_restarts
            .get_or_create(&Reason { reason })
            .inc();
    }

    /// The revision to open at. In the past it is one whose changes were returned already; they are left out. A watch that
    /// is opened at the compacted revision itself does not report the compaction, but in many releases it misses the
    /// deletes of that revision (etcd issues 18089 and 19179).
    fn start(&self) -> Revision {
        // 0 would mean from now on. At 1 a store is empty.
        Revision((self.next.0 - i64::from(self.from_before)).max(1))
    }

    async fn try_open(&self) -> Result<WatchStream, Error> {
        let options = WatchOptions::new()
            .with_range(self.range.end.clone())
            .with_start_revision(self.start().0);
        self.etcd
            .call("watch", |connection| {
                let (start, options) = (self.range.start.clone(), options.clone());
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
    /// [`Etcd::while_key`], for a key of which it is known that `holds` is true at this revision: reads nothing before the key
    /// changes.
    pub(super) async fn while_key_since(
        &self,
        key: &[u8],
        known: Revision,
        holds: impl Fn(&KeyValue) -> bool,
    ) {
        Watcher::new(self, KeyRange::key(key), known.next()).next().await;
        self.while_key(key, holds).await;
    }

    /// Resolves once the key is gone or `holds` is false for it. While etcd does not answer, the state of the key is
    /// unknown and this waits: the caller's lease limits for how long.
    pub async fn while_key(&self, key: &[u8], holds: impl Fn(&KeyValue) -> bool) {
        let mut delays = Delays::etcd();
        loop {
            match self.get(key).await {
                Ok((Some(found), now)) if holds(&found) => {
                    // Whatever the watch returns after this read, a compaction too, the key is read again.
                    Watcher::new(self, KeyRange::key(key), now.next()).next().await;
                    delays.reset();
                }
                Ok(_) => return,
                Err(_) => delays.wait().await,
            }
        }
    }
}
