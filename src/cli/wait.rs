//! Waiting until the leader has carried out a request, and reporting what holds it up.

use std::time::{Duration, Instant};

use clap::Args;
use tokio::time::{MissedTickBehavior, timeout};

use super::duration::{duration, shown};
use super::exit::{Exit, Failure};
use super::objects::view::{LiveView, View};
use super::outage;
use super::output::one_line;
use crate::etcd::KeyRange;
use crate::lines;
use crate::store::Store;

/// Between two reports of what holds a request up: thousands of tasks may end at once.
const REPORT_EVERY: Duration = Duration::from_secs(1);

/// Whether to wait, and how long.
#[derive(Args, Debug)]
pub struct WaitArgs {
    /// Wait until it is done, and report what holds it up
    #[arg(long)]
    pub wait: bool,

    /// Give up waiting after this long (30s, 5m, 1h30m) [default: never]
    #[arg(long, value_name = "DURATION", value_parser = duration, requires = "wait")]
    pub timeout: Option<Duration>,
}

/// How far a request is.
pub enum Progress<T> {
    /// It is carried out.
    Done(T),
    /// It is not yet, for these reasons.
    Waiting(Vec<String>),
}

/// Observes these ranges whenever a key in them or the leader changes, until the request is carried out.
///
/// # Errors
/// A failure of `observe`; 2 after `limit`, with `hint`, which says what becomes of the request.
pub async fn until<T>(
    store: &Store,
    mut ranges: Vec<KeyRange>,
    limit: Option<Duration>,
    hint: &str,
    mut observe: impl FnMut(&View) -> Result<Progress<T>, Failure>,
) -> Result<T, Failure> {
    ranges.push(store.keys.candidates());
    let mut live = LiveView::new(&store.etcd, store.keys.clone(), ranges);
    // `None` before the first observation.
    let mut reasons: Option<Vec<String>> = None;
    let done = async {
        live.changes().await;
        let mut tick = tokio::time::interval(REPORT_EVERY);
        tick.set_missed_tick_behavior(MissedTickBehavior::Skip);
        // The first tick comes at once: a request that takes an instant is not reported.
        tick.tick().await;
        let mut reported: Vec<String> = Vec::new();
        loop {
            let mut now = match observe(&live.view)? {
                Progress::Done(done) => return Ok(done),
                Progress::Waiting(now) => now,
            };
            if live.view.below(&store.keys.candidates()).next().is_none() {
                now.push("no Quorate leader is elected; what a leader does stays queued".to_owned());
            }
            let now = reasons.insert(now);
            tokio::select! {
                _ = live.changes() => {}
                _ = tick.tick() => reported = report(now, &reported),
            }
        }
    };
    // A wait can outlive members of etcd: the endpoints follow the member list meanwhile.
    let done = outage::following(&store.etcd, done);
    let Some(limit) = limit else { return done.await? };
    if let Ok(done) = timeout(limit, done).await {
        return done?;
    }
    let reasons = match reasons.as_deref() {
        None => "etcd did not answer".to_owned(),
        Some([]) => "the leader has yet to carry it out".to_owned(),
        Some(reasons) => reasons
            .iter()
            .map(|reason| one_line(reason))
            .collect::<Vec<_>>()
            .join("\n  "),
    };
    Err(Failure::new(
        Exit::TimedOut,
        format!("not done after {}\n  {reasons}", shown(limit)),
    )
    .hint(hint))
}

/// Prints the reasons that were not printed the last time, and returns all of them.
fn report(reasons: &[String], reported: &[String]) -> Vec<String> {
    for reason in reasons.iter().filter(|reason| !reported.contains(reason)) {
        lines::stderr().line(format_args!("waiting: {}", one_line(reason)));
    }
    reasons.to_vec()
}

/// Objects whose reasons are found whenever something changes. Those of more are found once a report: many that end change as
/// often as there are of them, and finding a reason takes longer than seeing that it is gone.
const EXPLAINED_AT_ONCE: usize = 16;

/// [`until`] for several objects: `observe` returns why one is not done yet, or `None` once it is. Its last argument says whether
/// the reason is wanted; if not, any text will do.
///
/// # Errors
/// As [`until`].
pub async fn until_all<T: Copy>(
    store: &Store,
    ranges: Vec<KeyRange>,
    limit: Option<Duration>,
    hint: &str,
    objects: &[T],
    mut observe: impl FnMut(&View, T, bool) -> Result<Option<String>, Failure>,
) -> Result<(), Failure> {
    let mut left: Vec<(T, String)> = objects.iter().map(|object| (*object, String::new())).collect();
    let mut explained: Option<Instant> = None;
    until(store, ranges, limit, hint, |view| {
        let is_due = explained.is_none_or(|at| at.elapsed() >= REPORT_EVERY);
        let explain = is_due || left.len() <= EXPLAINED_AT_ONCE;
        for (object, before) in std::mem::take(&mut left) {
            if let Some(now) = observe(view, object, explain)? {
                left.push((object, if explain { now } else { before }));
            }
        }
        if explain {
            explained = Some(Instant::now());
        }
        Ok(match left.is_empty() {
            true => Progress::Done(()),
            false => Progress::Waiting(left.iter().map(|(_, reason)| reason.clone()).collect()),
        })
    })
    .await
}
