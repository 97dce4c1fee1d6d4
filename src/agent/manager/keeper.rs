//! Observe, plan, act: one loop over everything that happens to the etcd of a node.
//!
//! Views, calls that end, the end of etcd itself, rests that are over and a look every few seconds: each leads to a plan from what is
//! seen then. Calls run beside the loop, so that a replica that does not answer delays neither a start nor a stop.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant as Moment};

use futures::StreamExt;
use futures::future::LocalBoxFuture;
use futures::stream::FuturesUnordered;
use jiff::Timestamp;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use super::calls::{Fault, Startable};
use super::certificate::Held;
use super::etcd::Etcd;
use super::files::{FilesError, TlsFiles};
use super::plan::{Answered, Certificate, List, Noted, Process, Rest, Seen, Shown, Stage, Step, Task, Tls};
use super::record::{Notes, Record};
use super::shown::Scene;
use super::{Settings, Wiring, data, health, urls};
use crate::agent::freshness::Freshness;
use crate::agent::plan::{Now, Since};
use crate::agent::servers::Identity;
use crate::agent::state::StateError;
use crate::clock;
use crate::identity::crl;
use crate::identity::etcd::Host;
use crate::identity::leaf::Leaf;
use crate::retry::{self, Backoff, Policy};
use answers::Called;
use views::{another_view, read};

mod acts;
mod answers;
#[cfg(test)]
mod tests;
mod views;

/// An etcd that ends sooner after its start has failed again. A start with a large log takes most of it.
const CALM: Duration = Duration::from_secs(60);

/// After a start that failed, or an etcd that has ended.
const START_POLICY: Policy = Policy::new(Duration::from_secs(1), Duration::from_secs(60));

/// After a failure with a file, or a process that does not stop: the disk may have room again.
const LOCAL_POLICY: Policy = Policy::new(Duration::from_secs(1), Duration::from_secs(30));

/// After a call that failed: another replica may answer.
const CALL_POLICY: Policy = Policy::new(Duration::from_millis(500), Duration::from_secs(10));

/// After a call that a replica refused. It takes ten writes of a node within a hundred seconds.
const REFUSED_POLICY: Policy = Policy::new(Duration::from_secs(5), Duration::from_secs(60));

/// After a call whose deadline came first. The replica has waited.
const WAITS_POLICY: Policy = Policy::new(Duration::from_secs(1), Duration::from_secs(1));

/// What keeps the etcd of a node.
pub(super) struct Keeper {
    settings: Settings,
    wiring: Wiring,
    notes: Notes,
    record: Option<Record>,
    /// `None` where all URLs are in clear text.
    files: Option<TlsFiles>,
    leaf: Option<Leaf>,
    held: Option<Held>,
    /// When this process last made a key for a request.
    key_made: Option<Moment>,
    /// The certificates that were received one after the other and lack a host of the URLs.
    lacking: u32,
    etcd: Etcd,
    /// Since when it runs, as far as this process knows.
    runs_since: Option<Moment>,
    is_healthy: bool,
    look: Option<Look>,
    shown: Shown,
    freshness: Freshness,
    /// The list of revoked certificates that the session shows; empty if it shows none.
    list: Vec<u8>,
    /// The restart that the session shows, with what etcd trusts from then on (PEM).
    restart: Option<(u64, String)>,
    answered: Option<(Startable, Moment)>,
    calls: FuturesUnordered<LocalBoxFuture<'static, Called>>,
    under_way: BTreeSet<Task>,
    backoff: Backoff<Task>,
    faults: BTreeMap<Task, String>,
}

/// The look at the health of etcd that comes next, or is under way. It outlasts what happens meanwhile: events that come more often
/// than looks would otherwise put each off.
struct Look {
    /// Since when that etcd runs; `None` where none does. It says nothing of another one.
    of: Option<Moment>,
    answer: LocalBoxFuture<'static, bool>,
}

/// What an earlier process has left.
pub(super) struct Left {
    notes: Notes,
    record: Option<Record>,
    files: Option<TlsFiles>,
}

impl Left {
    /// Reads it, and makes the directory of the files of TLS where any URL needs them.
    ///
    /// # Errors
    /// If the note or the directory cannot be read.
    pub fn read(settings: &Settings) -> Result<Self, StateError> {
        let notes = Notes::beside(&settings.data);
        let listened = [&settings.listen_peer_urls, &settings.listen_client_urls];
        let needs_tls = listened.into_iter().any(|urls| urls::any_is_encrypted(urls));
        Ok(Self {
            record: notes.load()?,
            notes,
            files: needs_tls.then(|| TlsFiles::beside(&settings.data)).transpose()?,
        })
    }
}

/// Why a step failed.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Call(#[from] Fault),
    #[error(transparent)]
    State(#[from] StateError),
    #[error(transparent)]
    Files(#[from] FilesError),
    #[error("{0}")]
    Etcd(#[from] std::io::Error),
    #[error("what was planned from has changed meanwhile")]
    Overtaken,
}

impl Failure {
    /// The word for traces.
    fn outcome<T>(done: &Result<T, Self>) -> &'static str {
        match done {
            Ok(_) => "OK",
            Err(Self::Call(_)) => "CallFailed",
            Err(Self::State(_) | Self::Files(_)) => "FilesFailed",
            Err(Self::Etcd(_)) => "EtcdFailed",
            Err(Self::Overtaken) => "Overtaken",
        }
    }
}

impl Keeper {
    /// Goes on from what an earlier process has left.
    pub fn new(settings: Settings, wiring: Wiring, left: Left) -> Self {
        let Left { notes, record, files } = left;
        Self {
            etcd: Etcd::new(&settings.launch, settings.data.clone()),
            settings,
            wiring,
            notes,
            record,
            files,
            leaf: None,
            held: None,
            key_made: None,
            lacking: 0,
            runs_since: None,
            is_healthy: false,
            look: None,
            shown: Shown::default(),
            freshness: Freshness::default(),
            list: Vec::new(),
            restart: None,
            answered: None,
            calls: FuturesUnordered::new(),
            under_way: BTreeSet::new(),
            backoff: Backoff::default(),
            faults: BTreeMap::new(),
        }
    }

    /// Keeps etcd. Never returns.
    pub async fn run(&mut self) {
        loop {
            let step = self.next().await;
            self.show(&step);
            match step {
                Step::Rest(_) => self.wait().await,
                Step::Join => self.call_join(),
                Step::Certify(why) => {
                    info!("requesting a certificate for etcd: {why}");
                    self.call_certify();
                }
                step => self.take(step).await,
            }
        }
    }

    /// The node was removed: the data of etcd stays where it is. The leader takes the member out of the cluster, which ends etcd. Until
    /// then it runs on, also after this has waited long enough: its vote may be the one that the quorum needs, for that removal as well.
    pub async fn end(&mut self) {
        self.take_view();
        let noted = self.record.as_ref().map(|record| record.noted);
        let Some(Noted { own, stage }) = noted else { return };
        if self.etcd.observe().await == Process::Stopped || self.has_data_of_another(own.id) {
            return;
        }
        let limit = self.settings.times.evicted_within;
        let stopped = if stage == Stage::Ended || self.shown.removed.contains(&own.id) {
            self.etcd.stop().await
        } else {
            info!("the node was removed: etcd runs on until its member is out of the cluster");
            let gone = timeout(limit, self.etcd.gone()).await;
            let lasts = || format!("{own} was in the cluster still after {limit:?}; once it is out, it ends");
            gone.map_err(|_| std::io::Error::other(lasts()))
        };
        match stopped {
            Ok(()) => info!(
                "etcd is stopped; its data stays in {}",
                self.settings.data.display()
            ),
            Err(error) => warn!("etcd runs on: {error}"),
        }
    }

    async fn next(&mut self) -> Step {
        self.take_view();
        let is_current = self
            .freshness
            .is_current(&self.wiring.session, &self.wiring.views);
        let process = self.etcd.observe().await;
        self.take_process(&process);
        let now = now();
        let tls = self.observe_tls(now);
        let resting = self.backoff.resting().chain(&self.under_way).copied().collect();
        let identity = self.wiring.identities.borrow().clone();
        Seen {
            noted: self.record.as_ref().map(|record| record.noted),
            has_moved: self.record.as_ref().is_some_and(|record| self.has_moved(record)),
            data: data::look(&self.settings.data),
            process,
            certified: identity.map(|identity| identity.chain.node.role),
            shown: &self.shown,
            is_current,
            answered: self.answered.as_ref().map(|(startable, at)| Answered {
                own: startable.own,
                has_started: startable.has_started,
                age: now.monotonic.saturating_duration_since(*at),
            }),
            tls,
            restarted: self.record.as_ref().map_or(0, |record| record.restarted),
            resting: &resting,
        }
        .plan()
    }

    fn has_moved(&self, record: &Record) -> bool {
        record.peer_urls != self.settings.peer_urls || record.client_urls != self.settings.client_urls
    }

    /// Takes over what the session shows. What changed ends the rests of calls.
    fn take_view(&mut self) {
        let Some(view) = self.wiring.views.borrow_and_update().clone() else {
            return;
        };
        let (shown, list) = read(&view);
        if shown != self.shown || list != self.list {
            self.backoff.wake(&Task::Join);
            self.backoff.wake(&Task::Certify);
        }
        self.shown = shown;
        list.clone_into(&mut self.list);
        let restart = view.member.as_ref().and_then(|member| member.restart.as_ref());
        self.restart = restart.map(|restart| (restart.number, restart.authorities.clone()));
    }

    /// An etcd that was not started by this process runs, or one that systemd keeps has ended.
    fn take_process(&mut self, process: &Process) {
        match (process, self.runs_since) {
            (Process::Running, None) => {
                info!("etcd runs already");
                self.runs_since = Some(clock::now());
            }
            (Process::Stopped, Some(_)) => self.take_end("as systemd says"),
            _ => {}
        }
    }

    fn take_end(&mut self, how: &str) {
        self.etcd.forget();
        self.is_healthy = false;
        let since = self.runs_since.take();
        let ran = since.map_or(Duration::ZERO, |since| {
            clock::now().saturating_duration_since(since)
        });
        warn!("etcd has ended after {} s ({how})", ran.as_secs());
        if ran >= CALM {
            self.backoff.succeeded(&Task::Start);
        }
        self.backoff.failed(Task::Start, START_POLICY);
        let why = format!("it has ended ({how}), and starts again after a while");
        self.faults.insert(Task::Start, why);
    }

    fn observe_tls(&mut self, now: Now) -> Tls {
        let Some(files) = &self.files else {
            return Tls::Unneeded;
        };
        let leaf = files.certificate();
        if leaf != self.leaf {
            let since = leaf.as_ref().map(|leaf| Since::Issued(leaf.issued()));
            self.held = leaf
                .as_ref()
                .zip(since)
                .map(|(leaf, since)| self.hold(leaf, since));
            self.leaf = leaf;
        }
        let left = self.held.map_or(Duration::ZERO, |held| held.left(now));
        self.wiring
            .metrics
            .agent_etcd_certificate_seconds
            .set(left.as_secs_f64());
        let renewal = |held: Held| held.renewal(files.awaits_answer(), self.shown.rotates, now);
        let list = files.list();
        Tls::Needed {
            certificate: self
                .held
                .map_or(Certificate::Missing, |held| Certificate::Held(renewal(held))),
            list: List {
                has_changed: self.shows_later_list(list.as_deref()),
                is_there: list.is_some(),
            },
        }
    }

    /// Whether the list that the session shows is a later one than this. Another replica may be behind, and show what was revoked
    /// since as valid.
    fn shows_later_list(&self, held: Option<&[u8]>) -> bool {
        held != Some(&*self.list) && crl::number(&self.list) > held.and_then(crl::number)
    }

    fn hold(&self, leaf: &Leaf, since: Since) -> Held {
        let life = Duration::try_from(leaf.life()).unwrap_or_default();
        let lacking = match self.unnamed_hosts(leaf).is_empty() {
            true => 0,
            false => self.lacking.max(1),
        };
        Held {
            is_by_hand: !leaf.names_node,
            ..Held::new(life, since, lacking, retry::random())
        }
    }

    /// The hosts of the URLs of etcd that a certificate does not name.
    fn unnamed_hosts(&self, leaf: &Leaf) -> Vec<Host> {
        let mut hosts = urls::hosts(self.settings.peer_urls.iter().chain(&self.settings.client_urls));
        hosts.retain(|host| !leaf.hosts.contains(host));
        hosts
    }

    /// Shows what comes next, and what hinders etcd.
    fn show(&mut self, step: &Step) {
        let scene = Scene {
            node: self.wiring.node.as_str(),
            data: &self.settings.data,
            noted: self.record.as_ref().map(|record| record.noted),
            runs: self.runs_since.is_some(),
            is_healthy: self.is_healthy,
            faults: &self.faults,
        };
        let hindrance = scene.hindrance(step);
        let report = scene.report(step);
        let is_lost = matches!(step, Step::Rest(Rest::Lost { .. }));
        let metrics = &self.wiring.metrics;
        metrics
            .agent_etcd_running
            .set(i64::from(self.runs_since.is_some()));
        metrics
            .agent_etcd_healthy
            .set(i64::from(self.runs_since.is_some() && self.is_healthy));
        metrics.agent_etcd_data_lost.set(i64::from(is_lost));
        if let Some(report) = report {
            self.wiring.report.send_if_modified(|stored| {
                let differs = stored.as_ref() != Some(&report);
                *stored = Some(report);
                differs
            });
        }
        self.wiring.hindrance.send_if_modified(|stored| {
            let differs = *stored != hindrance;
            if let Some(why) = hindrance.as_ref().filter(|_| differs && is_lost) {
                warn!("etcd does not start: {why}");
            }
            *stored = hindrance;
            differs
        });
    }

    /// Waits until something may have changed.
    async fn wait(&mut self) {
        let of = self.runs_since;
        let kept = self.look.take().filter(|look| look.of == of);
        let next = kept.unwrap_or_else(|| self.next_look());
        let look = self.look.insert(next);
        tokio::select! {
            how = self.etcd.ended() => self.take_end(&how),
            Some(called) = self.calls.next() => self.take_call(called),
            () = another_view(&mut self.wiring.views, &self.shown, &self.list) => {}
            () = another_identity(&mut self.wiring.identities) => {}
            _ = self.backoff.next_due() => {}
            healthy = &mut look.answer => {
                self.is_healthy = healthy;
                self.look = None;
            }
        }
    }

    fn next_look(&self) -> Look {
        let pause = match self.runs_since.is_some() && !self.is_healthy {
            true => self.settings.times.until_healthy,
            false => self.settings.times.look_every,
        };
        let asked = self.runs_since.map(|_| self.settings.metrics);
        Look {
            of: self.runs_since,
            answer: Box::pin(look(pause, asked)),
        }
    }

    fn succeed(&mut self, task: Task) {
        self.backoff.succeeded(&task);
        self.faults.remove(&task);
    }

    /// A step has failed. It is logged once.
    fn fail(&mut self, task: Task, failure: &Failure) {
        let policy = match (failure, task) {
            (Failure::Call(Fault::Waits(_)), _) => WAITS_POLICY,
            (Failure::Call(Fault::Refused(_)), _) => REFUSED_POLICY,
            (Failure::Call(_), _) => CALL_POLICY,
            (_, Task::Start) => START_POLICY,
            _ => LOCAL_POLICY,
        };
        self.backoff.failed(task, policy);
        let why = failure.to_string();
        if self.faults.get(&task) != Some(&why) {
            match failure {
                Failure::Call(Fault::Waits(_)) => info!("etcd waits: {why}"),
                _ => warn!("etcd: {why}; trying again"),
            }
        }
        self.faults.insert(task, why);
    }
}

async fn another_identity(identities: &mut watch::Receiver<Option<Arc<Identity>>>) {
    if identities.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// After this long, whether the etcd at this address is healthy; none is where there is no address.
async fn look(pause: Duration, address: Option<SocketAddr>) -> bool {
    sleep(pause).await;
    match address {
        Some(address) => health::is_healthy(address).await,
        None => false,
    }
}

fn now() -> Now {
    Now {
        monotonic: clock::now(),
        wall: Timestamp::now(),
    }
}
