//! `quorate wait-ready`: blocks until the reconciled state admits a release.

use std::time::Duration;

use clap::Args;

use super::LAST_LINES_LIMIT;
use super::connection::{self, EtcdArgs};
use super::duration::duration;
use super::exit::{Exit, Failure};
use crate::gate::{Requirements, wait_ready};
use crate::lines::Lines;
use crate::release::Release;
use crate::resources::Bundle;

/// Arguments of `quorate wait-ready`.
#[derive(Args, Debug)]
#[command(
    after_long_help = "This is a start-up check for other programs. It registers nothing, so no upgrade waits for a process \
that ran it: only replicas (quorate run) and nodes that are flagged as controllers hold back an upgrade.\n\n\
Each new reason to wait is printed to stdout once.\n\n\
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
/// A failure if etcd cannot be reached at the start, or the timeout is over.
pub async fn run(args: WaitReadyArgs, etcd: &EtcdArgs) -> Result<(), Failure> {
    let builtin = Bundle::builtin();
    let requirements = Requirements {
        release: args.release.unwrap_or(builtin.release()),
        min_reconciler: args
            .min_reconciler_release
            .unwrap_or(builtin.min_reconciler_release),
    };
    if requirements.min_reconciler > requirements.release {
        return Err(Failure::usage(format!(
            "--min-reconciler-release {} is above --release {}: no state can admit it",
            requirements.min_reconciler, requirements.release
        )));
    }
    // A stdout that is closed, full or not read is no failure: the exit code is the answer, in time.
    let shown = Lines::to(std::io::stdout());
    let ready = async {
        let store = connection::connect(etcd).await?;
        let waiting = wait_ready(&store, requirements, |reason| {
            shown.line(format_args!("waiting: {reason}"));
        });
        store.etcd.following(waiting).await;
        shown.line(format_args!(
            "ready: the reconciled state admits release {}",
            requirements.release
        ));
        Ok(())
    };
    let done = match args.timeout {
        None => ready.await,
        Some(limit) => tokio::time::timeout(limit, ready).await.unwrap_or_else(|_| {
            Err(Failure::new(
                Exit::TimedOut,
                format!("release {} is not admitted after {limit:?}", requirements.release),
            )
            .hint("quorate status shows what the state is waiting for"))
        }),
    };
    shown.flush(LAST_LINES_LIMIT);
    done
}
