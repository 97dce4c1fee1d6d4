//! One session: heartbeats come up, views go down.

use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, Stream, StreamExt as _};
use tokio::time::{Instant, sleep, timeout};
use tonic::Status;
use tracing::{debug, warn};

use super::ending::Ending;
use super::judgement::{Facts, OLDEST};
use super::secrets::{Lacks, Unsent};
use super::{Sessions, alive, secrets};
use crate::clock;
use crate::control::caller::Caller;
use crate::control::proof::Proof;
use crate::control::refusal;
use crate::proto::{Role, SessionRequest, SessionResponse};
use crate::retry::{sleep_until, spread};
use crate::secrets::few;
use open::{Open, Sent, ended};

mod open;

/// How long the first heartbeat may take.
const FIRST: Duration = Duration::from_secs(10);

/// How often the copy is looked at while it has not come to the beginning of the session: changes that concern no session wake none.
const LOOK: Duration = Duration::from_millis(20);

/// After this long a secret that was missing is looked for again: no session follows secrets, whose values would come along.
const SECRETS_AGAIN: Duration = Duration::from_secs(5);

/// After this long, and up to a half more, secrets that were sent are read again: an operator replaces a wrong one, or one whose time
/// is over. A thousand nodes with one secret each cost etcd 40 reads a second.
const SECRETS_ANOTHER: Duration = Duration::from_secs(20);

/// Heartbeats in a lease, of which one alone has to arrive.
const HEARTBEATS: u32 = 3;

/// Serves the session of an authenticated caller. The caller polls the stream, so what was not sent yet is never built.
pub fn serve<S>(
    sessions: Arc<Sessions>,
    caller: Caller,
    proof: Proof,
    heartbeats: S,
) -> impl Stream<Item = Result<SessionResponse, Status>> + Send
where
    S: Stream<Item = Result<SessionRequest, Status>> + Unpin + Send + 'static,
{
    let session = Session {
        sessions,
        caller,
        proof,
        heartbeats,
        open: None,
        has_ended: false,
    };
    stream::unfold(session, |mut session| async move {
        let item = session.next().await?;
        Some((item, session))
    })
}

struct Session<S> {
    sessions: Arc<Sessions>,
    caller: Caller,
    /// The certificate of its connection: the session ends with it.
    proof: Proof,
    heartbeats: S,
    /// `None` before the first heartbeat.
    open: Option<Open>,
    has_ended: bool,
}

impl<S> Session<S>
where
    S: Stream<Item = Result<SessionRequest, Status>> + Unpin + Send + 'static,
{
    async fn next(&mut self) -> Option<Result<SessionResponse, Status>> {
        if self.has_ended {
            return None;
        }
        let ending = match self.next_view().await {
            Ok(response) => return Some(Ok(response)),
            Err(ending) => ending,
        };
        self.has_ended = true;
        let status = self.end(ending).map(Err);
        // Its place is free once its end is decided, whenever the stream is dropped.
        self.open = None;
        status
    }

    /// Keeps the session until there is something to send.
    async fn next_view(&mut self) -> Result<SessionResponse, Ending> {
        if self.open.is_none() {
            self.open = Some(self.begin().await?);
        }
        loop {
            if let Some(response) = self.look().await? {
                return Ok(response);
            }
            while !self.wait().await? {}
        }
    }

    /// Puts the session on record with the first heartbeat, and waits until the copy shows it.
    async fn begin(&mut self) -> Result<Open, Ending> {
        let Self {
            sessions,
            caller,
            proof,
            heartbeats,
            ..
        } = self;
        let beginning = async {
            match timeout(FIRST, heartbeats.next()).await {
                Ok(Some(Ok(SessionRequest {}))) => drop(proof.judge()?),
                Ok(Some(Err(_)) | None) => return Err(Ending::Closed),
                Err(_) => {
                    let why = format!("a session begins with a heartbeat, and none came within {FIRST:?}");
                    return Err(Ending::Refused(refusal::invalid(why)));
                }
            }
            let fresh = async {
                while sessions.is_stale() {
                    sleep(LOOK).await;
                }
            };
            if timeout(OLDEST, fresh).await.is_err() {
                return Err(Ending::Stale);
            }
            // Before it is on record, so that no change after that is missed.
            let Some(place) = sessions.enter(caller.name()) else {
                let why = format!("node {} has too many sessions with this replica", caller.name());
                return Err(Ending::Refused(refusal::exhausted(why)));
            };
            let begun = clock::now();
            let taken = alive::take(
                &sessions.store,
                caller,
                proof.authority(),
                &sessions.replica,
                sessions.lease,
            )
            .await;
            Ok((place, begun, taken.map_err(Ending::Refused)?))
        };
        let (mut place, begun, taken) = tokio::select! {
            biased;
            () = sessions.stop.cancelled() => return Err(Ending::Stopped),
            beginning = beginning => beginning?,
        };
        let status = caller.node().status.as_ref();
        let facts = Facts {
            name: caller.name().clone(),
            uid: caller.uid().to_owned(),
            role: status.map_or(Role::Unspecified, |status| status.role()),
            seen_at: caller.revision(),
            id: taken.id,
            held_at: taken.held_at,
        };
        // What the agent has done through another replica is in the first view: a volume that it has confirmed to be unmounted
        // there is not shown again (INV-6).
        let shown = async {
            while !(sessions.is_as_of(begun) && sessions.shows(&facts)) {
                sleep(LOOK).await;
            }
        };
        if timeout(OLDEST, shown).await.is_err() {
            place.ends_for("stale");
            return Err(Ending::Stale);
        }
        debug!(
            "node {}: session {} begins on lease {}",
            facts.name, facts.id, taken.lease
        );
        place.opens();
        Ok(Open::now(facts, place, taken.lease, taken.ttl))
    }

    /// Judges the session, and returns what there is to send.
    async fn look(&mut self) -> Result<Option<SessionResponse>, Ending> {
        let Some(open) = &mut self.open else {
            return Ok(None);
        };
        self.proof.judge()?;
        let now = Instant::now();
        let is_due = open.secrets_at.is_some_and(|at| at <= now);
        if is_due {
            open.secrets_at = Some(now + SECRETS_AGAIN);
        }
        let Some(shown) = self.sessions.look(&open.facts)? else {
            return Ok(None);
        };
        let digest = shown.digest();
        let sent = open.sent.as_ref().filter(|sent| sent.view == digest);
        if sent.is_some() && !is_due {
            return Ok(None);
        }
        // Nothing is shown from an old copy (INV-13).
        if self.sessions.is_stale() {
            return Err(Ending::Stale);
        }
        let (mut view, store) = (Unsent::new(shown.view), &self.sessions.store);
        let has_secrets = !shown.secrets.is_empty();
        let Lacks {
            publications: lacks,
            why: unread,
        } = secrets::fill(&self.sessions.secrets, store, &mut view, shown.secrets).await;
        let read_again = match (has_secrets, lacks.is_empty()) {
            (false, _) => None,
            (true, false) => Some(SECRETS_AGAIN),
            (true, true) => Some(SECRETS_ANOTHER + spread(SECRETS_ANOTHER / 2)),
        };
        open.secrets_at = read_again.map(|after| now + after);
        let secrets = secrets::digest(&self.sessions.secrets_key, &view);
        if sent.is_some_and(|sent| sent.serves(secrets, &lacks)) {
            return Ok(None);
        }
        let is_said = open.sent.as_ref().is_some_and(|sent| sent.unread == unread);
        if !unread.is_empty() && !is_said {
            // No condition says so: the leader may have the key that this replica lacks.
            warn!("node {} waits for volumes: {}", open.facts.name, few(&unread));
        }
        if has_secrets {
            // They are not shown by any copy, however young.
            let again = self.caller.clone().again(store).await;
            again.map_err(Ending::Refused)?;
            self.proof.judge()?;
        }
        open.sent = Some(Sent {
            view: digest,
            lacks,
            unread,
            secrets,
        });
        Ok(Some(SessionResponse {
            session_id: open.facts.id.clone(),
            lease: duration(open.ttl),
            heartbeat_interval: duration(open.ttl / HEARTBEATS),
            view: Some(view.sent()),
        }))
    }

    /// Waits for the next thing to happen. Returns whether there may be something to send.
    async fn wait(&mut self) -> Result<bool, Ending> {
        let Some(open) = &mut self.open else {
            return Ok(true);
        };
        tokio::select! {
            biased;
            () = self.sessions.stop.cancelled() => Err(Ending::Stopped),
            () = self.proof.may_have_changed(self.caller.valid_until()) => Ok(true),
            () = open.place.woken() => Ok(true),
            renewed = ended(&mut open.renewing) => {
                open.renewing = None;
                open.on_renewed(renewed).map(|()| false)
            }
            heartbeat = self.heartbeats.next() => match heartbeat {
                Some(Ok(SessionRequest {})) => {
                    self.proof.judge()?;
                    open.on_heartbeat(&self.sessions).map(|()| false)
                }
                Some(Err(_)) | None => Err(Ending::Closed),
            },
            () = sleep_until(open.secrets_at) => Ok(true),
            () = sleep_until(Some(open.until)) => Err(Ending::Aged),
        }
    }

    /// Records why the session ends. Returns what its agent gets to know of it.
    fn end(&mut self, ending: Ending) -> Option<Status> {
        let name = self.caller.name();
        let (reason, status) = ending.answer(name, self.caller.uid())?;
        if let Some(open) = &mut self.open {
            open.place.ends_for(reason);
            debug!(
                "node {name}: session {} ends: {}",
                open.facts.id,
                status.message()
            );
            let is_alive = open.heard.elapsed() < open.ttl / 2;
            if reason == "superseded" && is_alive {
                self.sessions.collided(&open.facts);
            }
        }
        Some(status)
    }
}

/// As messages have it. A lease has whole seconds, and a third of one whole nanoseconds.
fn duration(duration: Duration) -> Option<prost_types::Duration> {
    duration.try_into().ok()
}
