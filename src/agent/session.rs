//! The session of the node: keeps it ready, and brings what concerns it.
//!
//! One connection to one server at a time. Where it ends, the agent turns to another server: within a third of the lease, so that
//! the node stays ready, and at a random moment of it, so that the agents of a server that is gone do not come at once.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at, sleep, timeout};
use tonic::Streaming;
use tracing::{info, warn};

use super::calls::{CALL_LIMIT, CallError, NodeRemoved, within};
use super::plan::{Seen, Shown};
use super::servers::{Identity, Link, Servers};
use super::status::AgentStatus;
use crate::metrics::Metrics;
use crate::proto::{CsiNode, MemberReport, NodeView, ReportRequest, SessionRequest, SessionResponse};
use crate::release::Release;
use crate::retry::{Delays, spread};

/// The lease of a session before a server has said which one it has.
const USUAL_LEASE: Duration = Duration::from_secs(30);

/// The delay after the first failure to open a session.
const FIRST_DELAY: Duration = Duration::from_millis(200);

/// After so long, a session that is ended to begin again begins at once.
const LASTED: Duration = Duration::from_secs(1);

/// The limit until a session shows what concerns the node.
const OPEN_LIMIT: Duration = Duration::from_secs(10);

/// The longest lease and interval that count, whatever a server says.
const LONGEST: Duration = Duration::from_secs(3600);

/// The least interval between two heartbeats, whatever a server says.
const LEAST_INTERVAL: Duration = Duration::from_millis(100);

/// Delays between attempts to report.
const FIRST_REPORT_DELAY: Duration = Duration::from_secs(1);
const MOST_REPORT_DELAY: Duration = Duration::from_secs(60);

/// What keeps the session of the node.
pub(super) struct Sessions<'a> {
    pub(super) servers: Servers,
    pub(super) identities: watch::Receiver<Option<Arc<Identity>>>,
    /// The connection of the session, for other calls.
    pub(super) links: &'a watch::Sender<Option<Link>>,
    pub(super) views: &'a watch::Sender<Option<Arc<NodeView>>>,
    pub(super) seen: &'a watch::Sender<Seen>,
    pub(super) csi: watch::Receiver<Option<Vec<CsiNode>>>,
    pub(super) member: watch::Receiver<Option<MemberReport>>,
    pub(super) facts: AgentFacts,
    pub(super) status: &'a AgentStatus,
    pub(super) metrics: &'a Metrics,
}

/// What an agent reports of itself, and what stays as it is while it runs.
#[derive(Clone, Copy, Debug)]
pub(super) struct AgentFacts {
    pub(super) release: Release,
    /// It keeps the etcd of its node.
    pub(super) keeps_etcd: bool,
}

/// How a session ended.
enum End {
    /// The node has another certificate, which the next session shows.
    OtherCertificate,
    /// The connection or the session is gone, or there was none.
    Lost(Lost),
}

/// Why there is no session.
struct Lost {
    why: CallError,
    /// Whether there was one.
    was_open: bool,
}

impl Lost {
    /// No session was opened.
    fn unopened(why: CallError) -> Self {
        Self { why, was_open: false }
    }

    /// How long to rest before the next attempt, where this one has lasted so long.
    ///
    /// A server that is gone has ended all its sessions, old ones and young ones: in a rollout each server is replaced soon after the
    /// one before. So their agents come back at different moments. A session that is aborted is ended alone: the role of the node has
    /// changed, and what comes next waits for the session; or another process with this certificate disputes it.
    fn rest(&self, lasted: Duration, lease: Duration, delays: &mut Delays) -> Duration {
        if lasted > lease {
            delays.reset();
        }
        let spread = spread(lease / 6);
        match &self.why {
            CallError::Aborted(_) if self.was_open && lasted > LASTED => Duration::ZERO,
            CallError::Aborted(_) => delays.next_delay(),
            _ if lasted > lease => spread,
            // Never sooner than the delay: a server may end each session as soon as it is open (INV-9).
            _ if self.was_open => delays.next_delay().max(spread),
            _ => delays.next_delay(),
        }
    }
}

/// What a session needs to be kept.
struct Opened {
    /// The view that the server sends with the beginning.
    view: Option<NodeView>,
    answers: Streaming<SessionResponse>,
    beats: mpsc::Sender<SessionRequest>,
    every: Interval,
}

impl Sessions<'_> {
    /// Keeps a session open until the node was removed.
    pub(super) async fn run(mut self) -> NodeRemoved {
        let mut lease = USUAL_LEASE;
        let mut delays = delays(lease);
        let mut said = String::new();
        loop {
            let identity = self.identity().await;
            let begun = Instant::now();
            let before = lease;
            let end = match self.servers.connect(&identity).await {
                Ok(link) => self.serve(&link, &identity, &mut lease, &mut said).await,
                Err(error) => End::Lost(Lost::unopened(CallError::Failed(error.to_string()))),
            };
            self.links.send_replace(None);
            if lease != before {
                delays = self::delays(lease);
            }
            let End::Lost(lost) = end else {
                // The leader has issued the certificate, so that servers serve this node.
                delays.reset();
                continue;
            };
            if matches!(lost.why, CallError::Removed) {
                return NodeRemoved;
            }
            let lasted = begun.elapsed();
            self.report_end_of_certificate(&lost.why);
            self.report_loss(&lost.why.to_string(), lasted > lease, &mut said);
            self.servers.turn_to_another();
            sleep(lost.rest(lasted, lease, &mut delays)).await;
        }
    }

    /// Waits for a certificate.
    async fn identity(&mut self) -> Arc<Identity> {
        loop {
            if let Some(identity) = self.identities.borrow_and_update().clone() {
                return identity;
            }
            if self.identities.changed().await.is_err() {
                // The agent ends.
                std::future::pending::<()>().await;
            }
        }
    }

    /// Has the certificate replaced where it has ended by the clock of the server. A server that takes it later takes that back.
    fn report_end_of_certificate(&self, why: &CallError) {
        // Otherwise the refused one was replaced already.
        let is_present = self.identities.has_changed().is_ok_and(|changed| !changed);
        if matches!(why, CallError::CertificateEnded(_)) && is_present {
            self.seen.send_replace(Seen::Ended);
        }
    }

    /// Logs a loss once, until a session was open. The end of a session that has lasted is expected: a server ends it after an hour.
    fn report_loss(&self, why: &str, has_lasted: bool, said: &mut String) {
        self.metrics.agent_session.set(0);
        self.status.session.send_replace(Some(why.to_owned()));
        if has_lasted {
            info!("the session has ended: {why}; turning to another server");
        } else if said != why {
            warn!("no session: {why}; trying again");
            why.clone_into(said);
        }
    }

    /// Opens a session and keeps it until it ends.
    async fn serve(
        &mut self,
        link: &Link,
        identity: &Identity,
        lease: &mut Duration,
        said: &mut String,
    ) -> End {
        let uid = identity.chain.node.uid.as_str();
        let opening = timeout(OPEN_LIMIT, self.open(link, uid, lease)).await;
        let mut opened = match opening {
            Ok(Ok(opened)) => opened,
            Ok(Err(error)) => return End::Lost(Lost::unopened(error)),
            Err(_) => {
                let why = format!("{} opens no session", link.server);
                return End::Lost(Lost::unopened(CallError::Failed(why)));
            }
        };
        // In this order, and one right after the other: while there is a session its view counts, and the last one of the session
        // before may be hours old (INV-6).
        if let Some(view) = opened.view.take() {
            show(self.views, self.seen, view);
        }
        self.status.session.send_replace(None);
        info!("session open at {}", link.server);
        said.clear();
        self.metrics.agent_session.set(1);
        self.metrics.agent_sessions_opened.inc();
        // Not before: without a session, other calls would fail as well.
        self.links.send_replace(Some(link.clone()));
        let reports = report(link, uid, self.facts, self.csi.clone(), self.member.clone());
        let why = tokio::select! {
            // First: what the old session shows now is not about the new certificate.
            biased;
            _ = self.identities.changed() => return End::OtherCertificate,
            ended = follow(&mut opened, uid, |view| show(self.views, self.seen, view)) => ended,
            removed = reports => removed,
            () = link.ended.cancelled() => CallError::Failed("the connection has ended".to_owned()),
        };
        End::Lost(Lost { why, was_open: true })
    }

    /// Opens a session, and receives its first message.
    async fn open(&self, link: &Link, uid: &str, lease: &mut Duration) -> Result<Opened, CallError> {
        let (beats, received) = mpsc::channel(1);
        // The first one opens the session. The channel has room for it.
        let _ = beats.try_send(SessionRequest {});
        let requests = futures::stream::unfold(received, |mut received| async move {
            received.recv().await.map(|beat| (beat, received))
        });
        let mut client = link.client();
        let mut answers = client
            .session(requests)
            .await
            .map_err(|status| CallError::of(&status, uid))?
            .into_inner();
        let first = next(&mut answers, uid).await?;
        let named = |duration: Option<prost_types::Duration>| {
            let named = Duration::try_from(duration?).ok()?;
            Some(named.min(LONGEST))
        };
        if let Some(granted) = named(first.lease).filter(|granted| !granted.is_zero()) {
            *lease = granted;
        }
        let every = named(first.heartbeat_interval).unwrap_or(*lease / 3);
        let every = every.max(LEAST_INTERVAL);
        let mut every = interval_at(Instant::now() + every, every);
        every.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Ok(Opened {
            view: first.view,
            answers,
            beats,
            every,
        })
    }
}

/// Delays between attempts: none longer than a third of the lease, its jitter included.
fn delays(lease: Duration) -> Delays {
    Delays::new(FIRST_DELAY.min(lease / 4), lease / 4)
}

async fn next(answers: &mut Streaming<SessionResponse>, uid: &str) -> Result<SessionResponse, CallError> {
    let answer = answers.message().await;
    let answer = answer.map_err(|status| CallError::of(&status, uid))?;
    answer.ok_or_else(|| CallError::Failed("the server has ended the session".to_owned()))
}

/// Sends heartbeats and shows what comes, until the session ends.
async fn follow(opened: &mut Opened, uid: &str, mut show: impl FnMut(NodeView)) -> CallError {
    let Opened {
        answers,
        beats,
        every,
        ..
    } = opened;
    loop {
        tokio::select! {
            answer = next(answers, uid) => match answer {
                Ok(SessionResponse { view: Some(view), .. }) => show(view),
                Ok(_) => {}
                Err(error) => return error,
            },
            // Where the last one has not left yet, the connection hangs: another one behind it would keep nothing alive.
            _ = every.tick() => {
                let _ = beats.try_send(SessionRequest {});
            }
        }
    }
}

fn show(views: &watch::Sender<Option<Arc<NodeView>>>, seen: &watch::Sender<Seen>, view: NodeView) {
    seen.send_replace(Seen::Shown(Shown {
        role: view.role(),
        certificate: view.certificate(),
    }));
    views.send_replace(Some(Arc::new(view)));
}

/// Reports these facts, the CSI plugins and the data of the member at the beginning of a session, since another process may have
/// reported others, and when they change. Ends where the node was removed.
async fn report(
    link: &Link,
    uid: &str,
    facts: AgentFacts,
    mut csi: watch::Receiver<Option<Vec<CsiNode>>>,
    mut member: watch::Receiver<Option<MemberReport>>,
) -> CallError {
    let mut delays = Delays::new(FIRST_REPORT_DELAY, MOST_REPORT_DELAY);
    let mut said = String::new();
    loop {
        let known = csi.borrow_and_update().clone();
        let failed = match known {
            // Not all plugins have answered: a report would take away what is on record.
            None => None,
            Some(csi) => {
                let message = ReportRequest {
                    agent_release: Some(facts.release.to_proto()),
                    csi,
                    member: member.borrow_and_update().clone(),
                    keeps_etcd: facts.keeps_etcd,
                };
                let called = link.client().report(within(CALL_LIMIT, message)).await;
                called.err().map(|status| CallError::of(&status, uid))
            }
        };
        match failed {
            Some(CallError::Removed) => return CallError::Removed,
            Some(error) => {
                let error = error.to_string();
                if said != error {
                    warn!("the report was not taken: {error}; trying again");
                    said = error;
                }
                let _ = timeout(delays.next_delay(), another(&mut csi, &mut member)).await;
            }
            None => {
                delays.reset();
                said.clear();
                another(&mut csi, &mut member).await;
            }
        }
    }
}

/// Waits until there is something else to report.
async fn another(
    csi: &mut watch::Receiver<Option<Vec<CsiNode>>>,
    member: &mut watch::Receiver<Option<MemberReport>>,
) {
    let ended = tokio::select! {
        changed = csi.changed() => changed.is_err(),
        changed = member.changed() => changed.is_err(),
    };
    if ended {
        // The agent ends.
        std::future::pending::<()>().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(30);

    fn open(why: CallError) -> Lost {
        Lost { why, was_open: true }
    }

    fn gone() -> CallError {
        CallError::Failed("the connection has ended".to_owned())
    }

    #[test]
    fn a_thousand_agents_of_a_server_that_is_gone_come_back_at_different_moments_however_young_their_sessions_are()
     {
        for lasted in [LEASE / 30, LEASE * 2] {
            let mut back = [0; 10];
            for _ in 0..1000 {
                let rest = open(gone()).rest(lasted, LEASE, &mut delays(LEASE));
                assert!(rest <= LEASE / 6, "{rest:?}");
                let half_second = usize::try_from(rest.as_millis() / 500).unwrap();
                back[half_second.min(9)] += 1;
            }
            assert!(back.iter().all(|agents| *agents < 200), "{lasted:?}: {back:?}");
        }
    }

    /// INV-9.
    #[test]
    fn attempts_that_fail_and_sessions_that_end_as_soon_as_they_begin_follow_each_other_ever_less_often() {
        let disputed = || open(CallError::Aborted("another session".to_owned()));
        for lost in [Lost::unopened(gone()), disputed(), open(gone())] {
            let mut delays = delays(LEASE);
            let rests: Vec<_> = (0..8)
                .map(|_| lost.rest(Duration::ZERO, LEASE, &mut delays))
                .collect();
            assert!(rests[7] > LEASE / 6, "{rests:?}");
            assert!(rests.iter().all(|rest| *rest < LEASE / 3), "{rests:?}");
        }
    }

    /// Its agent may just need the certificate of another role.
    #[test]
    fn a_session_that_is_ended_to_begin_again_begins_soon() {
        let aborted = || open(CallError::Aborted("the observed role has changed".to_owned()));
        for lasted in [LEASE / 10, LEASE * 2] {
            let rest = aborted().rest(lasted, LEASE, &mut delays(LEASE));
            assert_eq!(rest, Duration::ZERO, "{lasted:?}");
        }
        let rest = aborted().rest(Duration::ZERO, LEASE, &mut delays(LEASE));
        assert!(rest > Duration::ZERO && rest < LEASE / 60, "{rest:?}");
    }
}
