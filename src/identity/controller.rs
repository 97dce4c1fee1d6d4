//! Answers requests for certificates, under one term.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use jiff::{SignedDuration, Timestamp};
use tokio::task::spawn_blocking;
use tracing::{debug, info, warn};

use super::answer::{Answer, Grant, Outcome, Recorded, Unrecorded, act};
use super::authority::{Authority, AuthorityKind};
use super::directory;
use super::gauges::Gauges;
use super::index::Index;
use super::plan::{AtHand, Decision, Wait, plan};
use super::recorded_node::RecordedNode;
use crate::etcd::{ClusterId, Fence, Stop};
use crate::kube::events::{Notice, Severity};
use crate::store::object::node::role_word;
use crate::store::writer::{Writer, writer};
use crate::store::{Follower, Store};
use crate::term::{Acts, Notices, TermOver};

/// How often the files of the authority are read, two of a kilobyte each, and records are counted.
const EVERY: Duration = Duration::from_secs(1);

/// Answers under way at once: enough for two full transactions, each answer taking three compares.
const UNDER_WAY: usize = 84;

/// How nodes get their certificates.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The directory of the authorities.
    pub ca_dir: PathBuf,
    /// How long a certificate is valid.
    pub life: SignedDuration,
}

/// What a leader needs to answer requests for certificates.
pub struct Certifier {
    /// Where requests and certificates are stored.
    pub store: Store,
    /// The term.
    pub fence: Fence,
    /// Where certificates and hindrances are reported.
    pub notices: Notices,
    /// The authority, and the life of certificates.
    pub settings: Settings,
}

impl Certifier {
    /// Answers requests until leadership is lost.
    pub async fn run(self) {
        let (writer, transactions) = writer(&self.store.etcd, &self.fence);
        let authority = read_authority(self.settings.ca_dir.clone()).await;
        if let Err(error) = &authority {
            warn!("the node authority cannot sign: {error}");
        }
        let state = TermState {
            index: Index::new(self.store.keys.clone()),
            acts: Acts::default(),
            looks: FuturesUnordered::new(),
            gauges: Gauges::new(self.store.etcd.metrics()),
            authority,
            waits: BTreeMap::new(),
            writer,
            certifier: &self,
        };
        tokio::select! {
            TermOver = state.run() => {}
            () = transactions => {}
        }
    }

    fn notify(&self, severity: Severity, reason: &'static str, note: String) {
        self.notices.send(Notice {
            severity,
            reason,
            action: "Certify",
            note,
        });
    }
}

/// The authority, or why there is none.
type ReadAuthority = Result<Arc<Authority>, String>;

/// Reads the authority on a thread that may wait: the file system may hang, and with it no other task of the term.
async fn read_authority(directory: PathBuf) -> ReadAuthority {
    let reading = spawn_blocking(move || directory::read(&directory, AuthorityKind::Node, Timestamp::now()));
    let read = reading.await.map_err(|failed| failed.to_string())?;
    read.map(Arc::new).map_err(|error| error.to_string())
}

/// The requests that wait for the same, in words.
struct Waiting {
    cause: String,
    whose: String,
}

/// The state of one term.
struct TermState<'c> {
    certifier: &'c Certifier,
    writer: Writer,
    index: Index,
    /// By the uid of the node.
    acts: Acts<'c, Box<str>, Outcome>,
    gauges: Gauges,
    authority: ReadAuthority,
    /// The look at the files of the authority that is under way, if one is.
    looks: FuturesUnordered<BoxFuture<'static, ReadAuthority>>,
    /// What requests wait for.
    waits: BTreeMap<Wait, Waiting>,
}

impl<'c> TermState<'c> {
    async fn run(mut self) -> TermOver {
        let Store { etcd, keys } = &self.certifier.store;
        let mut follower = Follower::new(etcd, keys.certification());
        let mut every = tokio::time::interval(EVERY);
        every.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
        loop {
            self.begin();
            tokio::select! {
                update = follower.next() => self.index.take_in(update),
                ended = self.acts.next(|uid| self.index.is_pending(uid)) => {
                    for (uid, outcome) in ended {
                        if let Err(over) = self.ended(uid, outcome) {
                            return over;
                        }
                    }
                }
                Some(now) = self.looks.next() => self.take_in_authority(now),
                _ = every.tick() => {
                    self.look_for_authority();
                    self.gauges.set(&self.index);
                }
            }
        }
    }

    /// Reads the authority again, unless that is under way.
    fn look_for_authority(&mut self) {
        if self.looks.is_empty() {
            let directory = self.certifier.settings.ca_dir.clone();
            self.looks.push(Box::pin(read_authority(directory)));
        }
    }

    /// The authority may be there by now, or be another.
    fn take_in_authority(&mut self, now: ReadAuthority) {
        match (&self.authority, &now) {
            (Err(_), Ok(authority)) => info!("the node authority {} can sign", authority.digest()),
            (Ok(before), Ok(after)) if before.digest() != after.digest() => {
                info!("the node authority is now {}", after.digest());
            }
            (Ok(_), Err(error)) => warn!("the node authority cannot sign any more: {error}"),
            (Err(before), Err(error)) if before != error => {
                warn!("the node authority still cannot sign: {error}");
            }
            (Ok(_) | Err(_), Ok(_) | Err(_)) => {}
        }
        self.authority = now;
    }

    /// Begins whatever can be answered.
    fn begin(&mut self) {
        let synced = self.index.synced();
        if !synced.is_complete() {
            return;
        }
        self.acts.seen(|revision| synced.shows(revision));
        let cluster = self.certifier.store.etcd.cluster_id();
        let (at_hand, now) = (self.at_hand(cluster), Timestamp::now());
        let mut waiting = BTreeMap::new();
        let mut answers = Vec::new();
        for (uid, record, holder) in self.index.pending() {
            let decision = plan(&record.value, holder, at_hand, now);
            // Of every request, whether or not there is room to answer it: what is left out would be reported again.
            if let Decision::Wait(wait) = decision {
                let (count, _) = waiting.entry(wait).or_insert((0, &record.value.node));
                *count += 1;
                continue;
            }
            let uid: Box<str> = uid.into();
            let room = self.acts.under_way() + answers.len() < UNDER_WAY;
            if !room || !self.acts.is_free(&uid) {
                continue;
            }
            let reply = match (decision, holder, &self.authority, cluster) {
                (Decision::Refuse(refusal), ..) => Err(refusal),
                (Decision::Sign(role), RecordedNode::Node(node), Ok(authority), Some(cluster)) => Ok(Grant {
                    role,
                    node: node.revision,
                    authority: Arc::clone(authority),
                    cluster,
                }),
                // The plan signs where all of that is there.
                _ => continue,
            };
            let record = record.clone();
            answers.push(Answer { uid, record, reply });
        }
        let waiting = waiting
            .into_iter()
            .map(|(wait, (count, node))| (wait, self.waiting(wait, count, node)));
        let waiting = waiting.collect();
        self.report_waits(waiting);
        for answer in answers {
            let uid = answer.uid.clone();
            let (certifier, writer) = (self.certifier, self.writer.clone());
            let life = certifier.settings.life;
            let acting = async move { act(&certifier.store, &writer, life, answer).await };
            self.acts.begin(uid, acting);
        }
    }

    fn at_hand(&self, cluster: Option<ClusterId>) -> AtHand {
        match (&self.authority, cluster) {
            (Err(_), _) => AtHand::Unusable,
            (Ok(_), None) => AtHand::NoCluster,
            (Ok(authority), Some(_)) => AtHand::Usable {
                not_before: authority.not_before(),
                not_after: authority.not_after(),
            },
        }
    }

    /// Why requests wait, and which.
    fn waiting(&self, wait: Wait, count: usize, first: &str) -> Waiting {
        Waiting {
            cause: match (wait, &self.authority) {
                (Wait::Authority, Err(error)) => format!("{wait}: {error}"),
                _ => wait.to_string(),
            },
            whose: match count - 1 {
                0 => format!("node {first}"),
                others => format!("node {first} and {others} more"),
            },
        }
    }

    /// Reports what requests wait for, where that or its cause is new.
    fn report_waits(&mut self, waits: BTreeMap<Wait, Waiting>) {
        for (wait, Waiting { cause, whose }) in &waits {
            let reported = self.waits.get(wait).map(|before| &before.cause);
            if reported == Some(cause) {
                continue;
            }
            let note = format!("requests for certificates wait ({whose}): {cause}");
            let severity = match wait {
                // Operators who accept each node expect it.
                Wait::NotAccepted => Severity::Normal,
                Wait::NodeMissing | Wait::NodeUnreadable | Wait::NoRole | Wait::Authority | Wait::Cluster => {
                    Severity::Warning
                }
            };
            match severity {
                Severity::Normal => info!("{note}"),
                Severity::Warning => warn!("{note}"),
            }
            self.certifier.notify(severity, "CertificatesWait", note);
        }
        self.waits = waits;
    }

    fn ended(&mut self, uid: Box<str>, outcome: Outcome) -> Result<(), TermOver> {
        match outcome {
            Ok((revision, recorded)) => {
                self.report(&uid, &recorded);
                self.acts.done(uid, revision);
                return Ok(());
            }
            Err(Unrecorded::Stopped(Stop::LostLeadership)) => return Err(TermOver),
            Err(Unrecorded::Stopped(Stop::Stale)) => {
                debug!("something changed before the answer to {uid} was recorded");
            }
            Err(error) => warn!("could not answer the request for a certificate of {uid}, retrying: {error}"),
        }
        self.acts.failed(uid);
        Ok(())
    }

    fn report(&self, uid: &str, Recorded { node, answer }: &Recorded) {
        match answer {
            Ok(role) => {
                let role = role_word(role.to_proto().into());
                self.gauges.metrics.node_certificates_issued.inc();
                info!("issued a certificate for node {node} ({uid}), {role}");
            }
            Err(refusal) => {
                let note = format!("refused the request of node {node} ({uid}) for a certificate: {refusal}");
                warn!("{note}");
                self.certifier
                    .notify(Severity::Warning, "CertificateRefused", note);
            }
        }
    }
}
