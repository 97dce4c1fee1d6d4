//! Keeps the certificate of the node: joins, and replaces it as the plan says. A key is written before it is sent anywhere, so that
//! a lost reply, or a restart, repeats the same request with the same key.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant as StdInstant};

use jiff::Timestamp;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use tonic::Code;
use tracing::{info, warn};

use super::calls::{CALL_LIMIT, CallError, Calls, NodeRemoved, within};
use super::plan::{Held, Joining, Now, Reason, Seen, Shown, Since, Step, plan, renewed_at};
use super::servers::{Identity, Link, NoLink, Servers};
use super::state::{State, StateDirectory, StateError, StoredCertificate};
use super::status::AgentStatus;
use super::trust::Pinned;
use crate::clock;
use crate::etcd::ClusterId;
use crate::identity::control::{cluster_of, server_name};
use crate::identity::node::NodeRole;
use crate::identity::rotation::record::digest;
use crate::identity::token::BadToken;
use crate::identity::{AuthorityDigest, NodeChain, NodeKey, NotMade, Token};
use crate::metrics::Metrics;
use crate::proto::node_certificate::State as Answer;
use crate::proto::{
    CertificateStatusRequest, CertificateStatusResponse, NodeJoinRequest, RenewRequest, Role,
};
use crate::retry::{self, Delays};
use crate::store::object::node::role_word;

/// How long a server may wait for the answer to a request before it says that there is none yet.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);

/// The same for the first question, so that an operator soon reads in the log that the node waits to be accepted.
const FIRST_ANSWER_LIMIT: Duration = Duration::from_secs(5);

/// A server that says so sooner is asked again after a growing delay. So long, too, is the time between two certificates at least.
const CALM: Duration = Duration::from_secs(1);

/// Delays between attempts: soon after a lost connection, and not often at a server that refuses the token.
const FIRST_DELAY: Duration = Duration::from_millis(200);
const MOST_DELAY: Duration = Duration::from_secs(10);

/// How often the time is looked at: no timer counts while the machine is suspended.
const LOOK: Duration = Duration::from_secs(10);

/// More than any token has.
const MOST_TOKEN_BYTES: u64 = 1024;

/// Why a certificate was not got.
#[derive(Debug, thiserror::Error)]
pub(super) enum Fault {
    #[error(transparent)]
    Call(#[from] CallError),
    #[error(transparent)]
    NoLink(#[from] NoLink),
    #[error("there is no connection to a server")]
    NoSession,
    #[error(transparent)]
    State(#[from] StateError),
    #[error(transparent)]
    NotMade(#[from] NotMade),
    #[error("without --join-token-file the node cannot join")]
    NoToken,
    #[error("cannot read {}: {source}", path.display())]
    TokenFile { path: PathBuf, source: std::io::Error },
    #[error("{}: {bad}", path.display())]
    Token { path: PathBuf, bad: BadToken },
    #[error("the state holds a key or a certificate that cannot be read")]
    Unreadable,
    #[error("the request was refused: {0}")]
    Refused(String),
    #[error("another request of this node was answered instead")]
    OtherRequest,
    #[error("the server has answered with the certificate of another node")]
    OtherNode,
    #[error("no server shows the authority {0} as the one which has signed the certificate")]
    OtherAuthority(AuthorityDigest),
    #[error(
        "another certificate is there, and is not valid before {0}: the clock of this node is behind, or that of the leader which has \
         signed it was ahead"
    )]
    NotYetValid(Timestamp),
    #[error(
        "the name belongs to another node now, with uid {0}: quorate token create --node makes a token to take it over"
    )]
    OtherUid(String),
}

/// What keeps the certificate of the node.
pub(super) struct Keeper<'a> {
    pub(super) directory: &'a StateDirectory,
    pub(super) state: State,
    pub(super) token_file: Option<&'a Path>,
    /// Replaces each certificate at this age, in place of the random one.
    pub(super) renewed_at: Option<Duration>,
    pub(super) servers: Servers,
    pub(super) calls: Calls,
    /// What the session shows to servers.
    pub(super) identities: &'a watch::Sender<Option<Arc<Identity>>>,
    /// What servers make of the present certificate.
    pub(super) seen: &'a watch::Sender<Seen>,
    pub(super) status: &'a AgentStatus,
    pub(super) metrics: &'a Metrics,
    /// The certificate; `None` before [`Keeper::resume`] or without any.
    pub(super) held: Option<Held>,
    /// When this process last made a key for a request.
    pub(super) key_made: Option<StdInstant>,
}

fn now() -> Now {
    Now {
        monotonic: clock::now(),
        wall: Timestamp::now(),
    }
}

impl Keeper<'_> {
    /// Takes up what an earlier process has left.
    pub(super) fn resume(&mut self) -> Result<(), Fault> {
        if let Some(stored) = self.state.certificate.clone() {
            let key = NodeKey::read(&stored.key).map_err(|_| Fault::Unreadable)?;
            let chain = NodeChain::read(&stored.chain).map_err(|_| Fault::Unreadable)?;
            let since = Since::Issued(chain.issued());
            self.take(key, chain, since)?;
        }
        Ok(())
    }

    /// Keeps the certificate until the node was removed.
    pub(super) async fn run(mut self) -> NodeRemoved {
        let mut delays = Delays::new(FIRST_DELAY, MOST_DELAY);
        let mut said = String::new();
        let mut changes = self.seen.subscribe();
        loop {
            let seen = *changes.borrow_and_update();
            let (shown, now) = (seen.shown().copied(), now());
            if let Some(held) = &mut self.held {
                held.is_refused_as_ended = matches!(seen, Seen::Ended);
            }
            self.count(now);
            let attempt = match plan(self.held.as_ref(), shown.as_ref(), now) {
                Step::Rest(due) => {
                    // The sender lives as long as this agent.
                    let _ = timeout(due.min(LOOK), changes.changed()).await;
                    continue;
                }
                Step::Join(why) => self.join(why).await,
                Step::Renew(why) => self.renew(why, shown).await,
            };
            match attempt {
                Ok(()) => {
                    delays.reset();
                    said.clear();
                    // Whatever a certificate says of its life.
                    sleep(CALM).await;
                }
                Err(Fault::Call(CallError::Removed)) => return NodeRemoved,
                Err(fault) => {
                    self.report(&fault.to_string(), &mut said);
                    delays.wait().await;
                }
            }
        }
    }

    /// Logs a fault once, and shows it on `/readyz` where there is no valid certificate.
    fn report(&self, fault: &str, said: &mut String) {
        let now = now();
        let (lacking, shown) = match self.held {
            None => ("no certificate yet", Some("the node has none yet")),
            Some(held) if held.left(now).is_zero() => (
                "the certificate of the node has ended, and no other one was received",
                Some("it has ended"),
            ),
            Some(_) => ("the certificate of the node was not replaced yet", None),
        };
        if let Some(shown) = shown {
            self.status
                .certificate
                .send_replace(Some(format!("{shown}: {fault}")));
        }
        let line = format!("{lacking}: {fault}");
        if *said != line {
            warn!("{line}; trying again");
            *said = line;
        }
    }

    fn count(&self, now: Now) {
        let left = self.held.map_or(Duration::ZERO, |held| held.left(now));
        self.metrics.agent_certificate_seconds.set(left.as_secs_f64());
        let is_held = self.held.is_some();
        self.status.certificate.send_if_modified(|hindrance| {
            match (is_held, left.is_zero(), hindrance.is_some()) {
                // A fault that is shown with it stays.
                (true, true, false) => *hindrance = Some("it has ended".to_owned()),
                // A server takes it after all.
                (true, false, true) => *hindrance = None,
                _ => return false,
            }
            true
        });
    }

    /// Joins with the token, or repeats a join whose reply was lost.
    async fn join(&mut self, why: Joining) -> Result<(), Fault> {
        let joined = self.join_at_present_server(why).await;
        joined.inspect_err(|_| self.servers.turn_to_another())
    }

    async fn join_at_present_server(&mut self, why: Joining) -> Result<(), Fault> {
        let token = self.token()?;
        let key = self.requested_key()?;
        let pinned = Pinned {
            authority: token.authority(),
            cluster: self.cluster(),
        };
        let link = self.servers.connect_to_join(pinned).await?;
        if self.state.uid.is_some() {
            self.expect_node(&link, why).await?;
        }
        let message = NodeJoinRequest {
            token: token.reveal(),
            name: self.state.name.clone(),
            csr: key.request()?,
        };
        let joined = link.client().join(within(CALL_LIMIT, message)).await;
        let joined = joined.map_err(|status| CallError::of(&status, self.uid()))?;
        let uid = joined.into_inner().node_uid;
        if why == Joining::Ended && self.state.uid.as_ref() != Some(&uid) {
            return Err(Fault::OtherUid(uid));
        }
        info!(node = self.state.name, uid, "joined through {}", link.server);
        self.state.uid = Some(uid);
        self.state.authority = Some(token.authority().to_string());
        self.state.server_name = Some(server_name(link.cluster));
        self.directory.save(&self.state)?;
        self.collect(&link, key).await
    }

    /// Fails where the node that has joined is gone: a token would make another one of its name. A server says that the node was
    /// removed also to one without a certificate. Without a certificate, a node that is unknown and was not removed joins again
    /// (INV-12): nothing is lost with its uid.
    async fn expect_node(&self, link: &Link, why: Joining) -> Result<(), Fault> {
        let message = CertificateStatusRequest {
            node_uid: self.uid().to_owned(),
        };
        let mut client = link.client();
        // A server waits for so long where the request has no answer yet.
        let asked = client
            .certificate_status(within(FIRST_ANSWER_LIMIT, message))
            .await;
        match asked {
            Err(status) if why == Joining::First && status.code() == Code::NotFound => Ok(()),
            Err(status) => Err(CallError::of(&status, self.uid()).into()),
            Ok(_) => Ok(()),
        }
    }

    /// Requests another certificate.
    async fn renew(&mut self, why: Reason, shown: Option<Shown>) -> Result<(), Fault> {
        let link = timeout(ANSWER_LIMIT, self.calls.link()).await;
        let link = link.map_err(|_| Fault::NoSession)?;
        info!("requesting another certificate: {why}");
        let key = self.requested_key()?;
        let held = self.held.map_or(NodeRole::Worker, |held| held.role);
        let observed = shown.map(|shown| shown.role);
        let message = RenewRequest {
            csr: key.request()?,
            role: observed
                .filter(|role| *role != Role::Unspecified)
                .unwrap_or(held.to_proto())
                .into(),
        };
        let asked = link.client().renew(within(CALL_LIMIT, message)).await;
        asked.map_err(|status| CallError::of(&status, self.uid()))?;
        let collected = self.collect(&link, key).await;
        if matches!(collected, Err(Fault::Refused(_) | Fault::OtherRequest)) {
            // The next request has a key of its own.
            self.state.requested_key = None;
            self.directory.save(&self.state)?;
            self.await_another(false);
        }
        if matches!(collected, Err(Fault::NoLink(_) | Fault::OtherAuthority(_))) {
            self.servers.turn_to_another();
        }
        collected
    }

    /// Waits for the answer to the request with this key, and takes the certificate.
    async fn collect(&mut self, link: &Link, key: NodeKey) -> Result<(), Fault> {
        let mut delays = Delays::new(FIRST_DELAY, MOST_DELAY);
        let mut client = link.client();
        let (mut limit, mut accepted) = (FIRST_ANSWER_LIMIT, true);
        loop {
            let begun = Instant::now();
            let message = CertificateStatusRequest {
                node_uid: self.uid().to_owned(),
            };
            let asked = client.certificate_status(within(limit, message)).await;
            let answer = asked
                .map_err(|status| CallError::of(&status, self.uid()))?
                .into_inner();
            if let Ok(chain) = NodeChain::read(&answer.chain)
                && chain.node.public_key == key.public_key()
            {
                self.check_signer(link, &chain, &answer.authority_sha256).await?;
                return self.receive(key, chain, answer.chain, &answer.authority_sha256);
            }
            match answer.state() {
                Answer::Pending => {}
                Answer::Failed => return Err(Fault::Refused(refusal(&answer))),
                _ => return Err(Fault::OtherRequest),
            }
            limit = ANSWER_LIMIT;
            // The answer may be days away, and the certificate in use ends meanwhile.
            self.count(now());
            if answer.membership_pending && accepted {
                accepted = false;
                info!(
                    "an operator has yet to accept the node: quorate accept {}",
                    self.state.name
                );
            }
            delays.rest_after(begun.elapsed(), CALM).await;
        }
    }

    /// Fails where the answer names another authority than the one by which servers are known, and no server has shown that. The answer is
    /// as it was recorded in etcd, and an authority that a record names counts only where a server has it in its own files (INV-13).
    async fn check_signer(&self, link: &Link, chain: &NodeChain, signer: &[u8]) -> Result<(), Fault> {
        let Some(signer) = digest(signer) else {
            return Ok(());
        };
        let pinned = Pinned {
            authority: self.authority()?,
            cluster: self.cluster(),
        };
        let leaf = chain.certificates.first().ok_or(Fault::Unreadable)?;
        if signer == pinned.authority || link.shows_signer(signer, leaf) {
            return Ok(());
        }
        // The connection may be older than the rotation: a server shows what it has at the handshake.
        let present = self.servers.connect_to_join(pinned).await?;
        match present.shows_signer(signer, leaf) {
            true => Ok(()),
            false => Err(Fault::OtherAuthority(signer)),
        }
    }

    /// Replaces the certificate by one that was just received. It may have been issued long before. From then on servers are known by the
    /// authority that has signed it: in a rotation every server shows that one by now, and the former one goes. One that is not valid yet
    /// replaces none that is: the answer stays on record, and is collected again later.
    fn receive(&mut self, key: NodeKey, chain: NodeChain, pem: String, signer: &[u8]) -> Result<(), Fault> {
        let node = &chain.node;
        let is_own = node.uid == self.uid()
            && node.name.as_str() == self.state.name
            && Some(node.cluster) == self.cluster();
        if !is_own {
            return Err(Fault::OtherNode);
        }
        let held = self.held;
        if held.is_some_and(|held| held.outlasts(node.not_before, now())) {
            return Err(Fault::NotYetValid(node.not_before));
        }
        let before = self.state.clone();
        self.state.certificate = Some(StoredCertificate {
            chain: pem,
            key: key.pem(),
        });
        self.state.requested_key = None;
        if let Some(signer) = digest(signer) {
            self.state.authority = Some(signer.to_string());
        }
        if let Err(error) = self.directory.save(&self.state) {
            self.state = before;
            return Err(error.into());
        }
        let role = role_word(node.role.to_proto().into());
        info!(role, until = %node.not_after, "received a certificate");
        self.metrics.agent_certificates_received.inc();
        let since = Since::received(chain.issued(), self.key_made, now());
        self.take(key, chain, since)
    }

    /// Shows this certificate from now on: over a new connection.
    fn take(&mut self, key: NodeKey, chain: NodeChain, since: Since) -> Result<(), Fault> {
        let authority = self.authority()?;
        let life = Duration::try_from(chain.life()).unwrap_or_default();
        let random = retry::random();
        self.held = Some(Held {
            role: chain.node.role,
            life,
            since,
            renewed_at: self.renewed_at.unwrap_or_else(|| renewed_at(life, random)),
            awaits_another: self.state.requested_key.is_some(),
            is_refused_as_ended: false,
        });
        // Before the agent is ready.
        self.count(now());
        let pinned = Pinned {
            authority,
            cluster: Some(chain.node.cluster),
        };
        // What was seen of another certificate led to this one, maybe.
        self.seen.send_replace(Seen::Nothing);
        self.status.certificate.send_replace(None);
        let identity = Identity { key, chain, pinned };
        self.identities.send_replace(Some(Arc::new(identity)));
        Ok(())
    }

    /// The key of the request that has no answer yet, or else a new one.
    fn requested_key(&mut self) -> Result<NodeKey, Fault> {
        if let Some(key) = &self.state.requested_key {
            return NodeKey::read(key).map_err(|_| Fault::Unreadable);
        }
        let (made, key) = (clock::now(), NodeKey::create()?);
        self.state.requested_key = Some(key.pem());
        if let Err(error) = self.directory.save(&self.state) {
            self.state.requested_key = None;
            return Err(error.into());
        }
        self.key_made = Some(made);
        self.await_another(true);
        Ok(key)
    }

    fn await_another(&mut self, awaits: bool) {
        if let Some(held) = &mut self.held {
            held.awaits_another = awaits;
        }
    }

    /// The authority by which servers are known.
    fn authority(&self) -> Result<AuthorityDigest, Fault> {
        let authority = self.state.authority.as_deref().and_then(|text| text.parse().ok());
        authority.ok_or(Fault::Unreadable)
    }

    /// The cluster, once the node has joined it.
    fn cluster(&self) -> Option<ClusterId> {
        cluster_of(self.state.server_name.as_deref()?)
    }

    fn uid(&self) -> &str {
        self.state.uid.as_deref().unwrap_or_default()
    }

    /// Reads the token for this attempt alone: the file may have been replaced.
    fn token(&self) -> Result<Token, Fault> {
        let path = self.token_file.ok_or(Fault::NoToken)?;
        let mut text = String::new();
        fs::File::open(path)
            .and_then(|file| file.take(MOST_TOKEN_BYTES).read_to_string(&mut text))
            .map_err(|source| Fault::TokenFile {
                path: path.to_owned(),
                source,
            })?;
        text.trim().parse().map_err(|bad| Fault::Token {
            path: path.to_owned(),
            bad,
        })
    }
}

fn refusal(answer: &CertificateStatusResponse) -> String {
    format!("{} ({})", answer.message, answer.reason)
}
