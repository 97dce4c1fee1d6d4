//! Answers requests for certificates, revokes those of etcd of nodes that are no managers any more, and carries a rotation of the
//! authorities on, under one term.

use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use jiff::{SignedDuration, Timestamp};
use tracing::{debug, info, warn};

use super::answer::{Answer, Grant, Holder, Lives, Recorded, Unrecorded, act as answer};
use super::authorities::{Authorities, Found};
use super::authority::AuthorityKind;
use super::gauges::Gauges;
use super::index::Index;
use super::new_nodes::NewNodes;
use super::plan::{Decision, Wait, plan, plan_of_etcd};
use super::recorded_node::RecordedNode;
use super::revoke::Revoked;
use super::rotation::view::Looks;
use super::rotator::{Moved, Rotator};
use super::waits::{Waiting, Waits};
use crate::etcd::{Fence, Revision, Stop};
use crate::kube::events::{Notice, Severity};
use crate::retry::Policy;
use crate::span;
use crate::store::writer::{Writer, writer};
use crate::store::{Follower, Store};
use crate::term::{Acts, Notices, TermOver};

mod reporting;
mod revoking;
mod rotating;

/// How often the files of the authorities are read, eight of a kilobyte each, and records are counted.
const EVERY: Duration = Duration::from_secs(1);

/// Answers under way at once: enough for two full transactions, each answer taking three compares.
const UNDER_WAY: usize = 84;

/// How nodes get their certificates.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The directory of the authorities.
    pub ca_dir: PathBuf,
    /// How long a certificate of a node is valid.
    pub life: SignedDuration,
    /// How long a certificate of a node's etcd is valid.
    pub etcd_life: SignedDuration,
}

/// What a leader needs to answer requests for certificates.
pub struct Certifier {
    /// Where requests and certificates are stored.
    pub store: Store,
    /// The term.
    pub fence: Fence,
    /// Where certificates and hindrances are reported.
    pub notices: Notices,
    /// The authorities, and the lives of certificates.
    pub settings: Settings,
}

impl Certifier {
    /// Answers requests until leadership is lost.
    pub async fn run(self) {
        let (writer, transactions) = writer(&self.store.etcd, &self.fence);
        let found = Found::read(self.settings.ca_dir.clone()).await;
        let index = Index::new(self.store.keys.clone());
        let authorities = found.choose(index.rotation());
        authorities.report();
        let state = TermState {
            found,
            rotator: Rotator::new(self.store.etcd.metrics()),
            rotation_looks: FuturesUnordered::new(),
            index,
            acts: Acts::default(),
            looks: FuturesUnordered::new(),
            gauges: Gauges::new(self.store.etcd.metrics()),
            authorities,
            waits: Waits::default(),
            new_nodes: NewNodes::default(),
            duplicates: BTreeSet::new(),
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

/// What an act is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum About {
    /// The request of the node of this uid, to this authority.
    Request(AuthorityKind, Box<str>),
    /// The list of revoked certificates.
    RevocationList,
    /// What the removed node of this uid has left.
    Left(Box<str>),
    /// How far the rotation of the authorities is.
    Rotation,
    /// That the node of this uid replaces its certificate of this authority.
    Ask(AuthorityKind, Box<str>),
    /// What this replica has reported of a rotation.
    Report(Box<str>),
}

/// What was done.
enum Done {
    Answered(Recorded),
    Revoked(Revoked),
    Forgotten,
    Moved(Moved),
    Asked,
}

/// What became of an act: done at this revision, or not.
type Outcome = Result<(Revision, Done), Unrecorded>;

/// How an act ended, in one word: for traces.
fn outcome<T>(done: &Result<T, Unrecorded>) -> &'static str {
    if done.is_ok() { "OK" } else { "Unrecorded" }
}

/// The state of one term.
struct TermState<'c> {
    certifier: &'c Certifier,
    writer: Writer,
    index: Index,
    acts: Acts<'c, About, Outcome>,
    gauges: Gauges,
    /// What the files of the authorities hold.
    found: Found,
    /// Those of them that sign.
    authorities: Authorities,
    /// The look at the files of the authorities that is under way, if one is.
    looks: FuturesUnordered<BoxFuture<'static, Found>>,
    rotator: Rotator,
    /// The look at sessions and members that is under way for a rotation, if one is.
    rotation_looks: FuturesUnordered<BoxFuture<'static, Looks>>,
    /// What requests and revocations wait for.
    waits: Waits,
    new_nodes: NewNodes,
    /// The nodes that several agents run as, as far as they were reported.
    duplicates: BTreeSet<Box<str>>,
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
                ended = self.acts.next(|about| is_due(&self.index, about)) => {
                    for (about, outcome) in ended {
                        if let Err(over) = self.ended(about, outcome) {
                            return over;
                        }
                    }
                }
                Some(now) = self.looks.next() => {
                    self.found = now;
                    self.choose_authorities();
                }
                Some(looks) = self.rotation_looks.next() => self.rotate(&looks),
                _ = every.tick() => {
                    self.look_for_authorities();
                    self.look_for_rotation();
                    let now = Timestamp::now();
                    self.gauges.set(&self.index, now);
                    let authority = self.authorities.of(AuthorityKind::Node);
                    let end = authority.as_ref().ok().map(|authority| authority.not_after());
                    self.gauges.set_authority(end, now);
                    self.report_new_nodes();
                    self.report_duplicates();
                }
            }
        }
    }

    /// Reads the authorities again, unless that is under way.
    fn look_for_authorities(&mut self) {
        if self.looks.is_empty() {
            let directory = self.certifier.settings.ca_dir.clone();
            self.looks.push(Box::pin(Found::read(directory)));
        }
    }

    /// Begins whatever can be done.
    fn begin(&mut self) {
        let synced = self.index.synced();
        if !synced.is_complete() {
            return;
        }
        self.acts.seen(|revision| synced.shows(revision));
        if self.rotator.is_news(self.index.rotation()) {
            self.choose_authorities();
        }
        let now = Timestamp::now();
        let mut waits = Waits::default();
        for kind in AuthorityKind::ALL {
            for answer in self.answers(kind, now, &mut waits) {
                self.begin_answer(answer);
            }
        }
        if let Some(due) = self.due_list(now, &mut waits) {
            self.begin_list(due);
        }
        self.note_unknown(&mut waits);
        for left in self.ended_records(now) {
            self.begin_forgetting(left);
        }
        let certifier = self.certifier;
        let notify = |severity, reason, note| certifier.notify(severity, reason, note);
        self.waits.replace(waits, notify);
    }

    /// The answers that can be given now. Notes what the other requests wait for.
    fn answers(&self, kind: AuthorityKind, now: Timestamp, waits: &mut Waits) -> Vec<Answer> {
        let cluster = self.certifier.store.etcd.cluster_id();
        let at_hand = self.authorities.at_hand(kind, cluster);
        let mut answers = Vec::new();
        for (uid, record, node) in self.index.pending(kind) {
            let decision = match kind {
                AuthorityKind::Node => plan(&record.value, node, at_hand, now).map(Holder::Node),
                AuthorityKind::Etcd => {
                    let joined = self.index.joined(&record.value.node, uid);
                    plan_of_etcd(&record.value, node, joined, at_hand, now).map(Holder::Member)
                }
            };
            let reply = match (decision, node, self.authorities.with_trust(kind), cluster) {
                // Of every request, whether or not there is room to answer it: what is left out would be reported again.
                (Decision::Wait(wait), ..) => {
                    let cause = || self.cause(kind, wait);
                    waits.add(Waiting::Requests(kind, wait), &record.value.node, cause);
                    continue;
                }
                (Decision::Refuse(refusal), ..) => Err(refusal),
                (Decision::Sign(to), RecordedNode::Node(node), Ok((authority, trusted)), Some(cluster)) => {
                    Ok(Grant {
                        to,
                        node: node.revision,
                        authority: Arc::clone(authority),
                        trusted: trusted.to_owned(),
                        cluster,
                    })
                }
                // The plan signs where all of that is there.
                _ => continue,
            };
            let room = self.acts.under_way() + answers.len() < UNDER_WAY;
            if room && self.acts.is_free(&About::Request(kind, uid.into())) {
                answers.push(Answer {
                    kind,
                    uid: uid.into(),
                    record: record.clone(),
                    reply,
                });
            }
        }
        answers
    }

    fn cause(&self, kind: AuthorityKind, wait: Wait) -> String {
        match (wait, self.authorities.with_trust(kind)) {
            (Wait::Authority, Err(error)) => format!("{}: {error}", wait.words(kind)),
            _ => wait.words(kind).to_owned(),
        }
    }

    fn begin_answer(&mut self, decided: Answer) {
        let about = About::Request(decided.kind, decided.uid.clone());
        let (certifier, writer) = (self.certifier, self.writer.clone());
        let lives = Lives {
            node: certifier.settings.life,
            etcd: certifier.settings.etcd_life,
        };
        let step = span::step(
            "certificates",
            "answer a request",
            format_args!("node/{}", decided.record.value.node),
        );
        let acting = async move {
            let acting = answer(&certifier.store, &writer, lives, decided);
            let recorded = span::within(step, acting, outcome).await;
            recorded.map(|(written, recorded)| (written, Done::Answered(recorded)))
        };
        self.acts.begin(about, acting);
    }

    fn ended(&mut self, about: About, outcome: Outcome) -> Result<(), TermOver> {
        let error = match outcome {
            Ok((revision, done)) => {
                self.report(&about, &done);
                self.acts.done(about, revision);
                return Ok(());
            }
            Err(Unrecorded::Stopped(Stop::LostLeadership)) => return Err(TermOver),
            Err(error) => error,
        };
        if matches!(error, Unrecorded::Stopped(Stop::Stale)) {
            debug!("something changed before {about} was recorded");
        } else {
            warn!("could not record {about}, retrying: {error}");
        }
        let policy = match error {
            Unrecorded::Stopped(stop) => stop.policy(),
            Unrecorded::Failed(_) => Policy::ETCD,
        };
        self.acts.failed(about, policy);
        Ok(())
    }

    fn report(&mut self, about: &About, done: &Done) {
        match (about, done) {
            (About::Request(_, uid), Done::Answered(recorded)) => self.report_answer(uid, recorded),
            (_, Done::Revoked(revoked)) => self.report_revoked(revoked),
            (About::Left(uid), Done::Forgotten) => {
                info!(
                    "deleted the record of the certificates of etcd of {uid} (it was removed, and they have ended)"
                );
            }
            (_, Done::Moved(moved)) => {
                let certifier = self.certifier;
                moved.report(|severity, reason, note| certifier.notify(severity, reason, note));
            }
            (About::Ask(kind, uid), Done::Asked) => {
                debug!(
                    "asked {uid} to replace its certificate of the {} authority",
                    kind.word()
                );
            }
            // Each act has its own outcome.
            (
                About::Request(..)
                | About::RevocationList
                | About::Left(_)
                | About::Rotation
                | About::Ask(..)
                | About::Report(_),
                Done::Answered(_) | Done::Forgotten | Done::Asked,
            ) => {}
        }
    }
}

impl fmt::Display for About {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Request(AuthorityKind::Node, uid) => write!(f, "the answer to {uid}"),
            Self::Request(AuthorityKind::Etcd, uid) => write!(f, "the answer to the etcd of {uid}"),
            Self::RevocationList => f.write_str("the list of revoked certificates of etcd"),
            Self::Left(uid) => write!(f, "that the record of the etcd of {uid} is over"),
            Self::Rotation => f.write_str("how far the rotation of the authorities is"),
            Self::Ask(kind, uid) => {
                write!(
                    f,
                    "that {uid} replaces its certificate of the {} authority",
                    kind.word()
                )
            }
            Self::Report(replica) => write!(f, "that the rotation is over for replica {replica}"),
        }
    }
}

/// Whether an act that failed has still to be done.
fn is_due(index: &Index, about: &About) -> bool {
    match about {
        About::Request(kind, uid) => index.records(*kind).is_pending(uid),
        About::RevocationList | About::Rotation => true,
        About::Ask(kind, uid) => index.records(*kind).get(uid).is_some(),
        About::Report(replica) => index.reports().any(|(name, _)| *name == **replica),
        About::Left(uid) => index.records(AuthorityKind::Etcd).get(uid).is_some(),
    }
}
