//! Sessions: an agent that is connected keeps its node ready, and is shown what concerns the node.
//!
//! `/alive/<name>` names the session of a node, and hangs on a lease that a heartbeat renews, just received and judged. The replica to which
//! an agent turns next goes on with that lease. All sessions of a replica are judged by, and shown, one copy of etcd, the
//! [`Index`], which must not be older than [`judgement::OLDEST`].

use std::collections::HashMap;
use std::hash::RandomState;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures::future::{join_all, pending};
use futures::{Stream, StreamExt as _};
use tokio::sync::{Notify, mpsc};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tonic::Status;
use tracing::{debug, warn};

use super::caller::Caller;
use super::proof::Proof;
use crate::clock;
use crate::etcd::{Progress, Revision};
use crate::proto::{SessionRequest, SessionResponse};
use crate::roles::summary::NodesSummary;
use crate::secrets::Reader;
use crate::store::{Follower, Name, Store, Update};
use crate::summary::{Latest, Summarizer};
use collisions::Collisions;
use duplicates::Note;
use index::{Affected, Index, Part};
use judgement::{Facts, OLDEST, Verdict};
use place::Place;
use view::Shown;

mod alive;
mod collisions;
mod duplicates;
mod ending;
pub mod index;
mod judgement;
mod members;
mod place;
mod secrets;
mod seen_node;
mod stream;
mod summary;
mod view;

/// A node is down this long after its last heartbeat, unless `--session-lease-ms` says otherwise.
pub const LEASE: Duration = Duration::from_secs(30);

/// How often the copy is dated: several times before it is too old, and rarely enough to cost etcd nothing.
const DATE_EVERY: Duration = Duration::from_secs(1);

/// The least time from one date to the next.
const DATE_LEAST: Duration = Duration::from_millis(50);

/// The limit of a read that dates the copy: one that gets no answer leaves time for others before the copy is too old.
const DATE_LIMIT: Duration = Duration::from_millis(1500);

/// Sessions of one node on one replica at a time: that which begins, and others that have yet to notice that they have ended.
const MOST_PLACES: usize = 4;

/// Notes that wait to be written. A session notes again what was not taken.
const MOST_NOTES: usize = 256;

/// What a session sends.
pub type SessionStream = Pin<Box<dyn Stream<Item = Result<SessionResponse, Status>> + Send>>;

/// The sessions of one replica.
pub struct Sessions {
    store: Store,
    secrets: Reader,
    /// This replica.
    replica: Name,
    lease: Duration,
    stop: CancellationToken,
    state: Mutex<State>,
    /// Wakes what dates the copy.
    date_wanted: Notify,
    /// The key of digests of secrets.
    secrets_key: RandomState,
    notes: mpsc::Sender<Note>,
    noted: tokio::sync::Mutex<mpsc::Receiver<Note>>,
}

/// What the sessions share.
struct State {
    index: Index,
    /// The index holds at least what etcd held at this moment.
    as_of: Option<Instant>,
    /// Wakes each session of a node. A wake-up carries no data: the session looks again.
    places: HashMap<Name, Vec<Arc<Notify>>>,
    collisions: Collisions,
}

impl Sessions {
    /// No sessions yet, of the replica with this name. `lease` is that of a session; all end once `stop` is cancelled.
    pub fn new(
        store: Store,
        secrets: Reader,
        replica: Name,
        lease: Duration,
        stop: CancellationToken,
    ) -> Self {
        let (notes, noted) = mpsc::channel(MOST_NOTES);
        let state = State {
            index: Index::new(store.keys.clone()),
            as_of: None,
            places: HashMap::new(),
            collisions: Collisions::within(Self::calm_after(lease)),
        };
        Self {
            store,
            secrets,
            replica,
            lease,
            stop,
            state: Mutex::new(state),
            date_wanted: Notify::new(),
            secrets_key: RandomState::new(),
            notes,
            noted: tokio::sync::Mutex::new(noted),
        }
    }

    /// Two agents are recognized within this time, and without another session for as long there is one: a minute.
    fn calm_after(lease: Duration) -> Duration {
        2 * lease
    }

    /// Follows what the sessions need. `summaries` gets the nodes, for people. Never ends.
    pub async fn follow(&self, summaries: &Latest<NodesSummary>) {
        let follower = |part: Part| Follower::new(&self.store.etcd, part.range(&self.store.keys));
        let [mut alive, mut records, mut volumes] = Part::ALL.map(follower);
        let dated_by = [alive.progress(), records.progress(), volumes.progress()];
        let following = async {
            let mut summarizer = Summarizer::new(summaries);
            loop {
                let is_complete = self.lock().index.is_complete();
                let (part, update) = tokio::select! {
                    update = alive.next() => (Part::Alive, update),
                    update = records.next() => (Part::Records, update),
                    update = volumes.next() => (Part::Volumes, update),
                    () = summarizer.due(), if is_complete => {
                        summarizer.publish(|| summary::nodes(&self.lock().index));
                        continue;
                    }
                };
                self.take_in(part, update);
                // Volumes are in no summary; the end of their first list makes the copy whole.
                if part != Part::Volumes || !is_complete {
                    summarizer.note_change();
                }
            }
        };
        tokio::join!(following, self.keep_dated(&dated_by), self.write_notes());
    }

    /// Serves the session of an authenticated caller, for as long as the certificate of its connection proves that. It begins with
    /// the first heartbeat.
    pub fn open<S>(self: &Arc<Self>, caller: Caller, proof: Proof, heartbeats: S) -> SessionStream
    where
        S: Stream<Item = Result<SessionRequest, Status>> + Unpin + Send + 'static,
    {
        stream::serve(Arc::clone(self), caller, proof, heartbeats).boxed()
    }

    fn take_in(&self, part: Part, update: Update) {
        let mut state = self.lock();
        let affected = state.index.take_in(part, update);
        let wake = |places: &Vec<Arc<Notify>>| places.iter().for_each(|place| place.notify_one());
        match affected {
            Affected::All => state.places.values().for_each(wake),
            Affected::Nodes(nodes) => nodes
                .iter()
                .filter_map(|node| state.places.get(node))
                .for_each(wake),
        }
    }

    /// Dates the copy: it holds what etcd held when a linearizable read began, once each range has come to the revision of that
    /// read. The watches alone would not show that etcd is gone, or that the member that serves them is cut off.
    async fn keep_dated(&self, ranges: &[Arc<Progress>]) {
        loop {
            // A machine that sleeps misses changes meanwhile, and this clock goes on.
            let asked = clock::now();
            let any_key = Part::Alive.range(&self.store.keys);
            let read = self.store.etcd.get(any_key.start());
            match timeout(DATE_LIMIT, read).await {
                Ok(Ok((_, revision))) => self.date(asked, revision, ranges).await,
                Ok(Err(error)) => debug!("cannot tell how old the sessions' copy of etcd is: {error}"),
                Err(_) => debug!(
                    "cannot tell how old the sessions' copy of etcd is: no answer within {DATE_LIMIT:?}"
                ),
            }
            // A session that begins waits for a date, and many that begin share one.
            tokio::time::sleep(DATE_LEAST).await;
            let _ = timeout(DATE_EVERY, self.date_wanted.notified()).await;
        }
    }

    async fn date(&self, asked: Instant, revision: Revision, ranges: &[Arc<Progress>]) {
        let come = join_all(ranges.iter().map(|range| range.come_to(revision)));
        if timeout(OLDEST, come).await.is_ok() {
            let mut state = self.lock();
            if state.index.is_complete() {
                state.as_of = Some(asked);
            }
        }
    }

    async fn write_notes(&self) {
        let mut noted = self.noted.lock().await;
        while let Some(note) = noted.recv().await {
            if let Err(status) = note.write(&self.store).await {
                warn!("node {}: {}", note.node(), status.message());
            }
        }
        // The sender lives as long as this.
        pending().await
    }

    fn is_stale(&self) -> bool {
        judgement::is_stale(self.lock().as_of, clock::now())
    }

    /// Whether the copy holds at least what etcd held at this moment; if not, it is dated ahead of time.
    fn is_as_of(&self, moment: Instant) -> bool {
        let is_so = self.lock().as_of.is_some_and(|as_of| as_of >= moment);
        if !is_so {
            self.date_wanted.notify_one();
        }
        is_so
    }

    /// Whether the copies have come to the beginning of a session.
    fn shows(&self, session: &Facts) -> bool {
        let state = self.lock();
        let index = &state.index;
        index.is_complete()
            && index.shows(Part::Alive, session.held_at)
            && index.shows(Part::Records, session.seen_at)
    }

    /// What the node is shown now; `None` while that is not known.
    fn look(&self, session: &Facts) -> Result<Option<Shown>, Verdict> {
        let state = self.lock();
        match judgement::judge(&state.index, session) {
            Some(verdict) => Err(verdict),
            None => Ok(state.index.view(&session.name, &session.uid)),
        }
    }

    fn judge(&self, session: &Facts) -> Option<Verdict> {
        judgement::judge(&self.lock().index, session)
    }

    /// A newer session has ended this one, whose agent was alive.
    fn collided(&self, session: &Facts) {
        if self.lock().collisions.count(&session.name, clock::now()) {
            self.note(Note::duplicate(session));
        }
    }

    /// No other session has begun for as long as it takes to recognize two agents.
    fn calm(&self, session: &Facts) {
        let node = self.lock().index.node(&session.name).flatten().cloned();
        if node.is_some_and(|node| node.is_duplicate) {
            self.note(Note::single(session));
        }
    }

    fn note(&self, note: Note) {
        let _ = self.notes.try_send(note);
    }

    /// `None` if the node has too many sessions here.
    fn enter(self: &Arc<Self>, node: &Name) -> Option<Place> {
        let woken = Arc::<Notify>::default();
        let mut state = self.lock();
        let places = state.places.entry(node.clone()).or_default();
        if places.len() >= MOST_PLACES {
            return None;
        }
        places.push(Arc::clone(&woken));
        drop(state);
        Some(Place::new(Arc::clone(self), node.clone(), woken))
    }

    fn leave(&self, node: &Name, woken: &Arc<Notify>) {
        let mut state = self.lock();
        if let Some(places) = state.places.get_mut(node) {
            places.retain(|place| !Arc::ptr_eq(place, woken));
            if places.is_empty() {
                state.places.remove(node);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A step that panicked left a copy that is read again or a counter: each is usable.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
