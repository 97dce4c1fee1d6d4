//! One session: heartbeats come up, views go down.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::{self, Stream, StreamExt as _};
use jiff::Timestamp;
use tokio::time::{Instant, sleep, timeout};
use tonic::Status;
use tracing::debug;

use super::judgement::{Facts, OLDEST, Verdict};
use super::place::Place;
use super::{Sessions, alive, secrets};
use crate::clock;
use crate::control::caller::Caller;
use crate::control::refusal;
use crate::etcd::{Class, Error, LeaseId};
use crate::proto::{Role, SessionRequest, SessionResponse};
use crate::retry::{sleep_until, spread};

/// How long the first heartbeat may take.
const FIRST: Duration = Duration::from_secs(10);

/// How often the copy is looked at while it has not come to the beginning of the session: changes that concern no session wake none.
const LOOK: Duration = Duration::from_millis(20);

/// After this long a secret that was missing is looked for again: no session follows secrets, whose values would come along.
const SECRETS_AGAIN: Duration = Duration::from_secs(5);

/// Heartbeats in a lease, of which one alone has to arrive.
const HEARTBEATS: u32 = 3;

/// A session that is older ends, up to a quarter earlier, so that the agents spread over the replicas again after a rollout.
const OLDEST_SESSION: Duration = Duration::from_secs(3600);

/// A heartbeat that comes before this part of a lease has passed since the last renewal renews nothing.
const LEAST_PART: u32 = 10;

/// Serves the session of an authenticated caller. The caller polls the stream, so what was not sent yet is never built.
pub fn serve<S>(
    sessions: Arc<Sessions>,
    caller: Caller,
    heartbeats: S,
) -> impl Stream<Item = Result<SessionResponse, Status>> + Send
where
    S: Stream<Item = Result<SessionRequest, Status>> + Unpin + Send + 'static,
{
    let session = Session {
        sessions,
        caller,
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
    heartbeats: S,
    /// `None` before the first heartbeat.
    open: Option<Open>,
    has_ended: bool,
}

/// A session that is on record.
struct Open {
    facts: Facts,
    place: Place,
    lease: LeaseId,
    ttl: Duration,
    since: Instant,
    until: Instant,
    heard: Instant,
    /// When the last renewal of the lease began, and that renewal.
    renewed: Instant,
    renewing: Option<BoxFuture<'static, Result<(), Error>>>,
    /// The digest of the last view that was sent, and which publications lacked a secret in it.
    sent: Option<(u64, Vec<usize>)>,
    /// When missing secrets are looked for again.
    secrets_at: Option<Instant>,
}

/// Why a session ends.
enum Ending {
    Verdict(Verdict),
    /// The copy of etcd by which it is judged is too old.
    Stale,
    /// The certificate of the connection has ended.
    Certificate,
    /// The replica stops. The node stays ready for as long as its lease lasts.
    Stopped,
    /// It has lasted long enough.
    Aged,
    /// The agent ended it, or its connection did.
    Closed,
    /// It could not begin.
    Refused(Status),
}

impl From<Verdict> for Ending {
    fn from(verdict: Verdict) -> Self {
        Self::Verdict(verdict)
    }
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
            heartbeats,
            ..
        } = self;
        let beginning = async {
            match timeout(FIRST, heartbeats.next()).await {
                Ok(Some(Ok(SessionRequest {}))) => {}
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
            let taken = alive::take(&sessions.store, caller, sessions.lease).await;
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
        let now = Instant::now();
        Ok(Open {
            facts,
            place,
            lease: taken.lease,
            ttl: taken.ttl,
            since: now,
            until: now + OLDEST_SESSION - spread(OLDEST_SESSION / 4),
            heard: now,
            renewed: now,
            renewing: None,
            sent: None,
            secrets_at: None,
        })
    }

    /// Judges the session, and returns what there is to send.
    async fn look(&mut self) -> Result<Option<SessionResponse>, Ending> {
        let Some(open) = &mut self.open else {
            return Ok(None);
        };
        if Timestamp::now() >= self.caller.valid_until() {
            return Err(Ending::Certificate);
        }
        let now = Instant::now();
        let is_due = open.secrets_at.is_some_and(|at| at <= now);
        if is_due {
            open.secrets_at = Some(now + SECRETS_AGAIN);
        }
        let Some(shown) = self.sessions.look(&open.facts)? else {
            return Ok(None);
        };
        let digest = shown.digest();
        let sent = open.sent.as_ref().filter(|(sent, _)| *sent == digest);
        if sent.is_some() && !is_due {
            return Ok(None);
        }
        // Nothing is shown from an old copy (INV-13).
        if self.sessions.is_stale() {
            return Err(Ending::Stale);
        }
        let (mut view, store) = (shown.view, &self.sessions.store);
        let has_secrets = !shown.secrets.is_empty();
        let lacks = secrets::fill(store, &mut view, shown.secrets).await;
        open.secrets_at = (!lacks.is_empty()).then(|| now + SECRETS_AGAIN);
        if sent.is_some_and(|(_, lacked)| *lacked == lacks) {
            return Ok(None);
        }
        if has_secrets {
            // They are not shown by any copy, however young.
            let again = self.caller.clone().again(store).await;
            again.map_err(Ending::Refused)?;
        }
        open.sent = Some((digest, lacks));
        Ok(Some(SessionResponse {
            session_id: open.facts.id.clone(),
            lease: duration(open.ttl),
            heartbeat_interval: duration(open.ttl / HEARTBEATS),
            view: Some(view),
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
            () = open.place.woken() => Ok(true),
            renewed = ended(&mut open.renewing) => {
                open.renewing = None;
                open.on_renewed(renewed).map(|()| false)
            }
            heartbeat = self.heartbeats.next() => match heartbeat {
                Some(Ok(SessionRequest {})) if Timestamp::now() >= self.caller.valid_until() => {
                    Err(Ending::Certificate)
                }
                Some(Ok(SessionRequest {})) => open.on_heartbeat(&self.sessions).map(|()| false),
                Some(Err(_)) | None => Err(Ending::Closed),
            },
            () = sleep_until(open.secrets_at) => Ok(true),
            () = sleep_until(Some(open.until)) => Err(Ending::Aged),
        }
    }

    /// Records why the session ends. Returns what its agent gets to know of it.
    fn end(&mut self, ending: Ending) -> Option<Status> {
        let name = self.caller.name();
        let (reason, status) = match ending {
            Ending::Refused(status) => ("refused", status),
            Ending::Closed => return None,
            Ending::Verdict(verdict) => self.of_verdict(verdict),
            Ending::Stale => {
                let why = format!("this replica has not seen for {OLDEST:?} what is in etcd");
                ("stale", Status::unavailable(why))
            }
            Ending::Certificate => {
                let why = "the certificate of the connection has ended";
                ("certificate", refusal::denied(why))
            }
            Ending::Aged => {
                let why = "the session is old enough: begin another one, with any replica";
                ("aged", Status::unavailable(why))
            }
            Ending::Stopped => ("stopped", Status::unavailable("this replica stops")),
        };
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

    fn of_verdict(&self, verdict: Verdict) -> (&'static str, Status) {
        let (name, uid) = (self.caller.name(), self.caller.uid());
        match verdict {
            Verdict::Removed => ("removed", refusal::removed(uid)),
            Verdict::Gone => ("gone", refusal::gone(uid)),
            Verdict::Unreadable => ("unreadable", refusal::unreadable(format_args!("node {name}"))),
            Verdict::NotAccepted => ("pending", refusal::not_accepted()),
            Verdict::RoleChanged => {
                let why = format!("the observed role of node {name} has changed");
                ("role", Status::aborted(why))
            }
            Verdict::Superseded => {
                let why = format!("another session of node {name} has begun");
                ("superseded", Status::aborted(why))
            }
            Verdict::Lapsed => {
                let why =
                    format!("the lease of the session of node {name} has ended: no heartbeat renewed it");
                ("lapsed", Status::unavailable(why))
            }
        }
    }
}

impl Open {
    /// Judges a heartbeat, and renews the lease with it.
    fn on_heartbeat(&mut self, sessions: &Sessions) -> Result<(), Ending> {
        if let Some(verdict) = sessions.judge(&self.facts) {
            return Err(verdict.into());
        }
        if sessions.is_stale() {
            return Err(Ending::Stale);
        }
        let now = Instant::now();
        self.heard = now;
        sessions.store.etcd.metrics().session_heartbeats.inc();
        if now - self.since > Sessions::calm_after(sessions.lease) {
            sessions.calm(&self.facts);
        }
        let is_early = now - self.renewed < self.ttl / LEAST_PART;
        if self.renewing.is_none() && !is_early {
            let (etcd, lease) = (sessions.store.etcd.clone(), self.lease);
            self.renewed = now;
            self.renewing = Some(Box::pin(async move { etcd.renew_lease(lease).await }));
        }
        Ok(())
    }

    fn on_renewed(&self, renewed: Result<(), Error>) -> Result<(), Ending> {
        match renewed {
            Err(error) if error.class == Class::LeaseNotFound => Err(Verdict::Lapsed.into()),
            // The next heartbeat tries again.
            Err(error) => {
                debug!(
                    "node {}: the lease of its session is not renewed: {error}",
                    self.facts.name
                );
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }
}

/// Resolves once the renewal that is under way has ended.
async fn ended(renewing: &mut Option<BoxFuture<'static, Result<(), Error>>>) -> Result<(), Error> {
    match renewing {
        Some(renewing) => renewing.await,
        None => pending().await,
    }
}

/// As messages have it. A lease has whole seconds, and a third of one whole nanoseconds.
fn duration(duration: Duration) -> Option<prost_types::Duration> {
    duration.try_into().ok()
}
