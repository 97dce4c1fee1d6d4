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
use super::plan::Shown;
use super::servers::{Identity, Link, Servers};
use super::status::AgentStatus;
use crate::metrics::Metrics;
use crate::proto::{CsiNode, NodeView, ReportRequest, SessionRequest, SessionResponse};
use crate::release::Release;
use crate::retry::{Delays, spread};

/// The lease of a session before a server has said which one it has.
const USUAL_LEASE: Duration = Duration::from_secs(30);

/// The delay after the first failure to open a session.
const FIRST_DELAY: Duration = Duration::from_millis(200);

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
    pub(super) shown: &'a watch::Sender<Option<Shown>>,
    pub(super) csi: watch::Receiver<Option<Vec<CsiNode>>>,
    pub(super) release: Release,
    pub(super) status: &'a AgentStatus,
    pub(super) metrics: &'a Metrics,
}

/// How a session ended.
enum End {
    /// The node has another certificate, which the next session shows.
    OtherCertificate,
    /// The connection or the session is gone.
    Lost(CallError),
}

/// What a session needs to be kept.
struct Opened {
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
                Err(error) => End::Lost(CallError::Failed(error.to_string())),
            };
            self.links.send_replace(None);
            if lease != before {
                delays = self::delays(lease);
            }
            match end {
                End::OtherCertificate => continue,
                End::Lost(CallError::Removed) => return NodeRemoved,
                End::Lost(why) => self.report_loss(&why.to_string(), &mut said),
            }
            self.servers.turn_to_another();
            // One that has lasted was kept by a server that is gone now, with all its sessions. One that has not may be disputed
            // by another process with this certificate.
            if begun.elapsed() > lease {
                delays.reset();
                sleep(spread(lease / 6)).await;
            } else {
                delays.wait().await;
            }
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

    /// Logs a loss once, until a session was open.
    fn report_loss(&self, why: &str, said: &mut String) {
        self.metrics.agent_session.set(0);
        self.status.session.send_replace(Some(why.to_owned()));
        if said != why {
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
            Ok(Err(error)) => return End::Lost(error),
            Err(_) => return End::Lost(CallError::Failed(format!("{} opens no session", link.server))),
        };
        info!("session open at {}", link.server);
        said.clear();
        self.metrics.agent_session.set(1);
        self.metrics.agent_sessions_opened.inc();
        self.status.session.send_replace(None);
        // Not before: without a session, other calls would fail as well.
        self.links.send_replace(Some(link.clone()));
        let reports = report(link, uid, self.release, self.csi.clone());
        let lost = tokio::select! {
            // First: what the old session shows now is not about the new certificate.
            biased;
            _ = self.identities.changed() => return End::OtherCertificate,
            lost = follow(&mut opened, uid, |view| show(self.views, self.shown, view)) => lost,
            removed = reports => removed,
            () = link.ended.cancelled() => CallError::Failed("the connection has ended".to_owned()),
        };
        End::Lost(lost)
    }

    /// Opens a session, and takes what it shows first.
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
        if let Some(view) = first.view {
            show(self.views, self.shown, view);
        }
        let mut every = interval_at(Instant::now() + every, every);
        every.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Ok(Opened {
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

fn show(views: &watch::Sender<Option<Arc<NodeView>>>, shown: &watch::Sender<Option<Shown>>, view: NodeView) {
    shown.send_replace(Some(Shown {
        role: view.role(),
        certificate: view.certificate(),
    }));
    views.send_replace(Some(Arc::new(view)));
}

/// Reports the release and the CSI plugins at the beginning of a session, since another process may have reported others, and when
/// they change. Ends where the node was removed.
async fn report(
    link: &Link,
    uid: &str,
    release: Release,
    mut csi: watch::Receiver<Option<Vec<CsiNode>>>,
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
                    agent_release: Some(release.to_proto()),
                    csi,
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
                let _ = timeout(delays.next_delay(), csi.changed()).await;
            }
            None if csi.changed().await.is_err() => std::future::pending().await,
            None => delays.reset(),
        }
    }
}
