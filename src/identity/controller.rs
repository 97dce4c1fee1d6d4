//! Answers requests for certificates, under one term.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use jiff::{SignedDuration, Timestamp};
use tracing::{debug, info, warn};

use super::authority::{Authority, AuthorityKind};
use super::directory;
use super::index::{Index, Record};
use super::node::{self, NodeHolder, NodeRole};
use super::plan::{AtHand, Decision, Refusal, Wait, plan};
use super::record::{issued, refused};
use super::recorded_node::RecordedNode;
use super::request::RequestedKey;
use crate::etcd::{ClusterId, Fence, FencedError, Revision};
use crate::failpoint;
use crate::kube::events::{Notice, Severity};
use crate::metrics::{Metrics, State as StateLabel};
use crate::proto::node_certificate::State;
use crate::retry::{Backoff, Policy};
use crate::store::object::node::role_word;
use crate::store::writer::{Proof, Unit, Writer, writer};
use crate::store::{Follower, Name, Store};
use crate::term::{Notices, TermGauges, TermOver};

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
        let state = TermState {
            index: Index::new(self.store.keys.clone()),
            held: HashMap::new(),
            backoff: Backoff::default(),
            under_way: FuturesUnordered::new(),
            gauges: Gauges::new(self.store.etcd.metrics()),
            authority: read_authority(&self.settings.ca_dir),
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

fn read_authority(directory: &Path) -> ReadAuthority {
    let read = directory::read(directory, AuthorityKind::Node, Timestamp::now());
    read.map(Arc::new).map_err(|error| error.to_string())
}

/// An answer to a request, before it is made.
struct Answer {
    uid: Box<str>,
    record: Record,
    reply: Reply,
}

enum Reply {
    /// A certificate for a node that was last written at this revision.
    Certificate {
        key: RequestedKey,
        role: NodeRole,
        node: Revision,
        authority: Arc<Authority>,
        cluster: ClusterId,
    },
    Refusal(Refusal),
}

/// An answer as it is reported: to which node, and the role that was signed for, or the refusal.
struct Recorded {
    node: String,
    answer: Result<NodeRole, Refusal>,
}

/// What became of an answer.
enum Outcome {
    /// Recorded at this revision.
    Done(Revision, Recorded),
    /// Something changed since it was decided. Nothing was written.
    Refused,
    /// It could not be made, or etcd did not take it or answer.
    Failed(String),
    /// The term is over.
    LostLeadership,
}

impl From<FencedError> for Outcome {
    fn from(error: FencedError) -> Self {
        match error {
            FencedError::Conflict => Self::Refused,
            FencedError::LostLeadership(_) => Self::LostLeadership,
            FencedError::Failed(error) | FencedError::Unknown(error) => Self::Failed(error.to_string()),
        }
    }
}

/// The state of one term.
struct TermState<'c> {
    certifier: &'c Certifier,
    writer: Writer,
    index: Index,
    /// Uids whose answer is under way (`None`), or was recorded at a revision that the index does not show yet.
    held: HashMap<Box<str>, Option<Revision>>,
    backoff: Backoff<Box<str>>,
    under_way: FuturesUnordered<BoxFuture<'c, (Box<str>, Outcome)>>,
    gauges: Gauges,
    authority: ReadAuthority,
    /// How many requests wait for what, as it was reported last.
    waits: BTreeMap<Wait, usize>,
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
                Some((uid, outcome)) = self.under_way.next() => {
                    if let Err(over) = self.on_ended(uid, outcome) {
                        return over;
                    }
                }
                rested = self.backoff.next_due() => {
                    for uid in rested.iter().filter(|uid| !self.index.is_pending(uid)) {
                        self.backoff.succeeded(uid);
                    }
                }
                _ = every.tick() => {
                    self.look_for_authority();
                    self.gauges.set(&self.index);
                }
            }
        }
    }

    /// Reads the authority again: it may be there by now, or be another.
    fn look_for_authority(&mut self) {
        let now = read_authority(&self.certifier.settings.ca_dir);
        match (&self.authority, &now) {
            (Err(_), Ok(authority)) => info!("the node authority {} can sign", authority.digest()),
            (Ok(before), Ok(after)) if before.digest() != after.digest() => {
                info!("the node authority is now {}", after.digest());
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
        self.held
            .retain(|_, done| done.is_none_or(|revision| !synced.shows(revision)));
        let (at_hand, cluster) = (self.at_hand(), self.certifier.store.etcd.cluster_id());
        let now = Timestamp::now();
        let mut waits = BTreeMap::new();
        let mut answers = Vec::new();
        for (uid, record, holder) in self.index.pending() {
            let uid: Box<str> = uid.into();
            let room = self.under_way.len() + answers.len() < UNDER_WAY;
            if self.held.contains_key(&uid) || self.backoff.is_resting(&uid) || !room {
                continue;
            }
            let reply = match plan(&record.value, holder, at_hand, now) {
                Decision::Leave => continue,
                Decision::Wait(wait) => {
                    *waits.entry(wait).or_default() += 1;
                    continue;
                }
                Decision::Refuse(refusal) => Reply::Refusal(refusal),
                Decision::Sign { key, role } => {
                    let (RecordedNode::Node(node), Ok(authority), Some(cluster)) =
                        (holder, &self.authority, cluster)
                    else {
                        *waits.entry(Wait::Authority).or_default() += 1;
                        continue;
                    };
                    Reply::Certificate {
                        key,
                        role,
                        node: node.revision,
                        authority: Arc::clone(authority),
                        cluster,
                    }
                }
            };
            let record = record.clone();
            answers.push(Answer { uid, record, reply });
        }
        self.report_waits(waits);
        for answer in answers {
            self.held.insert(answer.uid.clone(), None);
            let (certifier, writer) = (self.certifier, self.writer.clone());
            self.under_way.push(Box::pin(async move {
                let uid = answer.uid.clone();
                (uid, act(certifier, &writer, answer).await)
            }));
        }
    }

    fn at_hand(&self) -> AtHand {
        match &self.authority {
            Ok(authority) => AtHand::Usable {
                not_before: authority.not_before(),
                not_after: authority.not_after(),
            },
            Err(_) => AtHand::Unusable,
        }
    }

    /// Reports what requests wait for, where that has changed.
    fn report_waits(&mut self, waits: BTreeMap<Wait, usize>) {
        for (wait, count) in &waits {
            if self.waits.contains_key(wait) {
                continue;
            }
            let cause = match (wait, &self.authority) {
                (Wait::Authority, Err(error)) => format!("{wait}: {error}"),
                _ => wait.to_string(),
            };
            let note = format!("requests for certificates wait ({count}): {cause}");
            warn!("{note}");
            self.certifier.notify(Severity::Warning, "CertificatesWait", note);
        }
        self.waits = waits;
    }

    fn on_ended(&mut self, uid: Box<str>, outcome: Outcome) -> Result<(), TermOver> {
        match outcome {
            Outcome::Done(revision, recorded) => {
                self.backoff.succeeded(&uid);
                self.report(&uid, &recorded);
                self.held.insert(uid, Some(revision));
                return Ok(());
            }
            Outcome::Refused => debug!("something changed before the answer to {uid} was recorded"),
            Outcome::Failed(error) => {
                warn!("could not answer the request for a certificate of {uid}, retrying: {error}");
            }
            Outcome::LostLeadership => return Err(TermOver),
        }
        self.held.remove(&uid);
        self.backoff.failed(uid, Policy::ETCD);
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

/// Makes an answer and records it, if the node and the record are what they were when it was decided (INV-13).
async fn act(certifier: &Certifier, writer: &Writer, answer: Answer) -> Outcome {
    failpoint::pause_at("identity.before-sign").await;
    let Answer { uid, record, reply } = answer;
    let keys = &certifier.store.keys;
    let (after, node, answer) = match reply {
        Reply::Refusal(refusal) => (refused(&record, &refusal), None, Err(refusal)),
        Reply::Certificate {
            key,
            role,
            node,
            authority,
            cluster,
        } => {
            // The index takes no node for one of another name.
            let Ok(name) = record.value.node.parse::<Name>() else {
                return Outcome::Refused;
            };
            let holder = NodeHolder {
                cluster,
                uid: &uid,
                name: name.as_str(),
                role,
            };
            let life = certifier.settings.life;
            let signed = match node::certificate(&authority, &key, holder, life, Timestamp::now()) {
                Ok(signed) => signed,
                Err(error) => return Outcome::Failed(error.to_string()),
            };
            let after = issued(&record, role, &signed);
            (after, Some((keys.node(&name), node)), Ok(role))
        }
    };
    let mut unit = Unit::new().put(keys.certificate(&uid), record.revision, after);
    if let Some((node, revision)) = node {
        unit = unit
            .proving(Proof::Unchanged(node, revision))
            .proving(Proof::Unchanged(keys.removed(&uid), Revision::ABSENT));
    }
    failpoint::pause_at("identity.before-store").await;
    let outcome = writer.write(unit).await;
    failpoint::pause_at("identity.after-store").await;
    let node = record.value.node;
    outcome.map_or_else(Outcome::from, |revision| {
        Outcome::Done(revision, Recorded { node, answer })
    })
}

/// The gauges of this term.
struct Gauges {
    metrics: Metrics,
    _end_with_the_term: TermGauges,
}

/// The states of records, as metrics name them.
const STATES: [(&str, Option<State>); 5] = [
    ("pending", Some(State::Pending)),
    ("issued", Some(State::Issued)),
    ("failed", Some(State::Failed)),
    ("rotate", Some(State::Rotate)),
    ("malformed", None),
];

impl Gauges {
    fn new(metrics: &Metrics) -> Self {
        let gauges = STATES.map(|(state, _)| {
            metrics
                .node_certificates
                .get_or_create(&StateLabel { state })
                .clone()
        });
        Self {
            _end_with_the_term: TermGauges::new(gauges),
            metrics: metrics.clone(),
        }
    }

    fn set(&self, index: &Index) {
        if !index.synced().is_complete() {
            return;
        }
        for (state, of) in STATES {
            let count = index.states().filter(|found| *found == of).count();
            let gauge = self
                .metrics
                .node_certificates
                .get_or_create(&StateLabel { state });
            gauge.set(i64::try_from(count).unwrap_or(i64::MAX));
        }
    }
}
