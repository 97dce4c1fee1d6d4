//! `quorate wait-ready`: blocks until the reconciled state admits a release.

use std::cell::RefCell;
use std::fmt::Display;
use std::time::{Duration, Instant};

use clap::Args;
use tokio::sync::{Notify, watch};
use tokio::time::{sleep, timeout};

use super::LAST_LINES_LIMIT;
use super::connection::{self, EtcdArgs};
use super::duration::{duration, shown as in_words};
use super::exit::{Exit, Failure};
use super::outage;
use crate::gate::{Requirements, wait_ready};
use crate::lines::Lines;
use crate::release::Release;
use crate::resources::Bundle;

/// Arguments of `quorate wait-ready`.
#[derive(Args, Debug)]
#[command(
    after_long_help = "This is a start-up check for other programs. It registers nothing, so no upgrade waits for a process \
that ran it: only replicas (quorate run) and nodes that are flagged as controllers hold back an upgrade.\n\n\
Each new reason to wait is printed to stdout once. Until the first connection, an etcd that does not answer is a reason to \
wait; later, a note on stderr says so. One look is always made: --timeout 0s asks whether the release is admitted now.\n\n\
Exit codes: 0 ready, 1 error, 2 timed out, 64 usage."
)]
pub struct WaitReadyArgs {
    /// Give up after this long (30s, 5m, 1h30m) [default: never]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub timeout: Option<Duration>,

    /// The release that wants to start [default: the built-in bundle's]
    #[arg(long, value_name = "RELEASE")]
    pub release: Option<Release>,

    /// The least release that must have reconciled the state [default: the built-in bundle's]
    #[arg(long, value_name = "RELEASE")]
    pub min_reconciler_release: Option<Release>,
}

/// Waits. Prints each new reason to wait, and finally that the release is admitted.
///
/// # Errors
/// 2 if the timeout is over; 1 for what waiting does not mend, such as a certificate that etcd refuses.
pub async fn run(args: WaitReadyArgs, etcd: &EtcdArgs) -> Result<(), Failure> {
    let builtin = Bundle::builtin();
    let requirements = Requirements {
        release: args.release.unwrap_or(builtin.release()),
        min_reconciler: args
            .min_reconciler_release
            .unwrap_or(builtin.min_reconciler_release),
    };
    if requirements.min_reconciler > requirements.release {
        let failure = Failure::usage(format!(
            "--min-reconciler-release {} is above --release {}: no state can admit it",
            requirements.min_reconciler, requirements.release
        ));
        return Err(match args.min_reconciler_release {
            Some(_) => failure,
            None => failure.hint("that is what this program needs; say what the other release needs as well"),
        });
    }
    // A stdout that is closed, full or not read is no failure: the exit code is the answer, in time.
    let shown = Lines::to(std::io::stdout());
    let look = Look::default();
    let ready = async {
        let store = connection::connect_patiently(etcd, |error| {
            look.failed(&shown, error.to_string());
        })
        .await?;
        look.unanswered.replace(Some(store.etcd.unanswered()));
        let waiting = wait_ready(&store, requirements, |reason| look.excluded(&shown, reason));
        outage::following(&store.etcd, waiting).await??;
        shown.line(format_args!(
            "ready: the reconciled state admits release {}",
            requirements.release
        ));
        Ok(())
    };
    let done = match args.timeout {
        None => ready.await,
        Some(limit) => tokio::select! {
            // An answer counts before the time that it took.
            biased;
            done = ready => done,
            () = look.over(limit) => Err(look.timed_out(requirements.release, limit)),
        },
    };
    shown.flush(LAST_LINES_LIMIT);
    done
}

/// How long the first look may take, however short the timeout is.
const LOOK_LIMIT: Duration = Duration::from_secs(5);

/// What was seen of the state so far.
#[derive(Default)]
struct Look {
    last: RefCell<Seen>,
    made: Notify,
    /// Since when etcd has not answered, from the first connection on.
    unanswered: RefCell<Option<watch::Receiver<Option<Instant>>>>,
}

#[derive(Default, PartialEq)]
enum Seen {
    #[default]
    Nothing,
    /// etcd did not answer, for this reason.
    NoAnswer(String),
    /// The state excludes the release.
    Excluded,
}

impl Look {
    fn failed(&self, shown: &Lines, error: String) {
        let is_new = *self.last.borrow() != Seen::NoAnswer(error.clone());
        if is_new {
            shown.line(format_args!("waiting: {error}"));
        }
        self.made(Seen::NoAnswer(error));
    }

    fn excluded(&self, shown: &Lines, reason: impl Display) {
        shown.line(format_args!("waiting: {reason}"));
        self.made(Seen::Excluded);
    }

    fn made(&self, seen: Seen) {
        self.last.replace(seen);
        self.made.notify_one();
    }

    /// Waits until the time is over and one look was made.
    async fn over(&self, limit: Duration) {
        sleep(limit).await;
        if *self.last.borrow() == Seen::Nothing {
            // Over in any case.
            let _ = timeout(LOOK_LIMIT, self.made.notified()).await;
        }
    }

    /// For how many seconds etcd has not answered, where it has answered before.
    fn silence(&self) -> Option<u64> {
        let unanswered = self.unanswered.borrow();
        let since = *unanswered.as_ref()?.borrow();
        Some(since?.elapsed().as_secs()).filter(|seconds| *seconds > 0)
    }

    fn timed_out(&self, release: Release, limit: Duration) -> Failure {
        let failure = |message| Failure::new(Exit::TimedOut, message);
        let limit = in_words(limit);
        match &*self.last.borrow() {
            Seen::Excluded => match self.silence() {
                None => failure(format!("release {release} is not admitted after {limit}")),
                Some(seconds) => failure(format!(
                    "release {release} is not admitted after {limit}; etcd has not answered for the last {seconds} s"
                )),
            }
            .hint("quorate status shows what the state is waiting for"),
            Seen::NoAnswer(error) => failure(format!("the state was not seen within {limit}: {error}")),
            Seen::Nothing => failure(format!(
                "the state was not seen within {limit}: etcd did not answer"
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_out_says_since_when_etcd_has_not_answered() {
        let look = Look::default();
        look.made(Seen::Excluded);
        let (sender, unanswered) = watch::channel(None);
        look.unanswered.replace(Some(unanswered));
        let said = || {
            look.timed_out(Release::new(0, 4, 0), Duration::from_secs(9))
                .to_string()
        };
        assert!(!said().contains("answered"), "{}", said());
        sender.send_replace(Instant::now().checked_sub(Duration::from_secs(7)));
        let said = said();
        assert!(said.contains("etcd has not answered for the last "), "{said}");
    }
}
