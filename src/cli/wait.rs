//! Waiting until the leader has carried out what was asked for, telling what holds it up.

use std::time::Duration;

use clap::Args;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use super::duration::duration;
use super::exit::{Exit, Failure};
use super::objects::view::{LiveView, View};
use super::output::one_line;
use crate::etcd::KeyRange;
use crate::store::Store;

/// Between two lines about what holds it up.
const TELL_EVERY: Duration = Duration::from_secs(1);

/// Whether to wait, and how long.
#[derive(Args, Debug)]
pub struct WaitArgs {
    /// Wait until it is done, telling what holds it up
    #[arg(long)]
    pub wait: bool,

    /// Give up waiting after this long (30s, 5m, 1h30m) [default: never]
    #[arg(long, value_name = "DURATION", value_parser = duration, requires = "wait")]
    pub timeout: Option<Duration>,
}

/// What a look showed.
pub enum Look<T> {
    /// It is done.
    Done(T),
    /// It is not, for these reasons.
    Waits(Vec<String>),
}

/// Looks at these ranges, and at who leads, whenever they change, until it is done.
///
/// # Errors
/// What a look ended with; 2 if the time is over, `hint` says what becomes of the request then.
pub async fn until<T>(
    store: &Store,
    mut ranges: Vec<KeyRange>,
    limit: Option<Duration>,
    hint: &str,
    mut look: impl FnMut(&View) -> Result<Look<T>, Failure>,
) -> Result<T, Failure> {
    ranges.push(store.keys.candidates());
    let mut live = LiveView::new(&store.etcd, store.keys.clone(), ranges);
    let mut seen: Vec<String> = Vec::new();
    let followed = async {
        live.changes().await;
        let mut tick = tokio::time::interval(TELL_EVERY);
        tick.set_missed_tick_behavior(MissedTickBehavior::Skip);
        // The first comes at once: what is over in an instant needs no words.
        tick.tick().await;
        let mut told: Vec<String> = Vec::new();
        loop {
            match look(&live.view)? {
                Look::Done(done) => return Ok(done),
                Look::Waits(lines) => {
                    seen = lines;
                    if live.view.below(&store.keys.candidates()).next().is_none() {
                        seen.push("no replica of Quorate leads, so nobody carries it out".to_owned());
                    }
                }
            }
            tokio::select! {
                _ = live.changes() => {}
                _ = tick.tick() => {
                    for line in seen.iter().filter(|line| !told.contains(line)) {
                        eprintln!("waiting: {}", one_line(line));
                    }
                    told.clone_from(&seen);
                }
            }
        }
    };
    // A wait outlives members: the endpoints follow the member list meanwhile, until this future is dropped.
    let endpoints = store.etcd.follow_endpoints(CancellationToken::new());
    let limit_over = async {
        match limit {
            Some(limit) => tokio::time::sleep(limit).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        done = followed => return done,
        () = limit_over => {}
        () = endpoints => {}
    }
    let what = match seen.is_empty() {
        true => "nothing was heard of it".to_owned(),
        false => seen.join("\n  "),
    };
    let limit = limit.unwrap_or_default();
    Err(Failure::new(Exit::TimedOut, format!("not done after {limit:?}\n  {what}")).hint(hint))
}
