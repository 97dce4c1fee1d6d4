//! The agent of a node, as far as its session is concerned.

use std::time::Duration;

use futures::FutureExt as _;
use futures::channel::mpsc::{self, UnboundedSender};
use prost::Message;
use quorate::etcd::{KeyValue, LeaseId};
use quorate::proto::{NodeSession, NodeView, SessionRequest, SessionResponse};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tonic::{Status, Streaming};

use crate::control::site::{Client, Member, Site};
use crate::support::quorate::TestReplica;
use crate::support::wait::{SOON, eventually};

/// From one heartbeat of [`Agent::keep_beating`] to the next.
const BEAT: Duration = Duration::from_millis(300);

/// An open session.
pub struct Agent {
    heartbeats: UnboundedSender<SessionRequest>,
    answers: Streaming<SessionResponse>,
    /// The first answer.
    pub begun: SessionResponse,
    beating: JoinSet<()>,
    /// Its connection ends with it.
    _client: Client,
}

impl Agent {
    /// Opens a session of the node at a replica.
    pub async fn open(site: &Site, replica: &mut TestReplica, node: &Member) -> Self {
        let client = site.client_of(replica, node).await;
        Self::over(client).await.unwrap()
    }

    /// The same over this connection.
    pub async fn over(mut client: Client) -> Result<Self, Status> {
        let (heartbeats, sent) = mpsc::unbounded();
        heartbeats.unbounded_send(SessionRequest {}).unwrap();
        let mut answers = client.session(sent).await?.into_inner();
        let begun = timeout(SOON, answers.message()).await;
        let begun = begun.expect("the session begins")?;
        Ok(Self {
            heartbeats,
            answers,
            begun: begun.expect("a session answers"),
            beating: JoinSet::new(),
            _client: client,
        })
    }

    /// Sends heartbeats until the session is dropped.
    pub fn keep_beating(&mut self) {
        let heartbeats = self.heartbeats.clone();
        self.beating.spawn(async move {
            while heartbeats.unbounded_send(SessionRequest {}).is_ok() {
                sleep(BEAT).await;
            }
        });
    }

    /// Sends no more heartbeats, as an agent that is suspended.
    pub fn stop_beating(&mut self) {
        self.beating.abort_all();
    }

    /// The next view.
    pub async fn next_view(&mut self) -> NodeView {
        let answer = timeout(SOON, self.answers.message()).await;
        let answer = answer.expect("another view comes");
        answer.unwrap().expect("the session goes on").view.unwrap()
    }

    /// Waits for a view that `is_wanted`.
    pub async fn view_where(&mut self, is_wanted: impl Fn(&NodeView) -> bool) -> NodeView {
        let first = self.begun.view.take().filter(|view| is_wanted(view));
        if let Some(view) = first {
            return view;
        }
        loop {
            let view = self.next_view().await;
            if is_wanted(&view) {
                return view;
            }
        }
    }

    /// Whether the session has ended, as far as answers have arrived.
    pub fn is_over(&mut self) -> bool {
        let answer = self.answers.message().now_or_never();
        matches!(answer, Some(Ok(None) | Err(_)))
    }

    /// Waits until the session is ended by the replica. Returns how.
    pub async fn ended(&mut self) -> Status {
        let reading = async {
            loop {
                match self.answers.message().await {
                    Ok(Some(_)) => {}
                    Ok(None) => panic!("a replica says why it ends a session"),
                    Err(status) => return status,
                }
            }
        };
        timeout(SOON, reading).await.expect("the session ends")
    }
}

/// The key of the node's session, if there is one.
pub async fn alive(site: &Site, node: &str) -> Option<KeyValue> {
    site.read(&site.store.keys.alive(&node.parse().unwrap())).await
}

/// The session of a node, and its lease. Panics where the node is down.
pub async fn held(site: &Site, node: &str) -> (NodeSession, LeaseId) {
    let alive = alive(site, node).await.expect("the node is ready");
    let lease = alive.lease.expect("a session has a lease");
    (NodeSession::decode(&*alive.value).unwrap(), lease)
}

/// Waits until the lease of the node's session has ended.
pub async fn down(site: &Site, node: &str) {
    eventually(SOON, "the node is down", async || match alive(site, node).await {
        Some(alive) => Err(format!("{alive:?}")),
        None => Ok(()),
    })
    .await;
}

/// What a table says of a node, in the column of this title.
pub async fn cell(site: &Site, node: &str, title: &str) -> String {
    let table = site.run(&["get", "node", node]).await.expect_done();
    let mut lines = table.lines().map(|line| line.split_whitespace());
    let (mut titles, mut row) = (lines.next().unwrap(), lines.next().unwrap());
    let at = titles.position(|found| found == title).unwrap();
    row.nth(at).unwrap().to_owned()
}
