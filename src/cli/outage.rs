//! Reports to a person who follows etcd that etcd has stopped answering, and that it answers again.

use std::convert::Infallible;
use std::time::{Duration, Instant};

use tokio::sync::watch;

use super::output::note;
use crate::etcd::{Etcd, StoreLost};

/// An outage shorter than this is not reported: the election of a raft leader, or one endpoint that hangs.
const SHORT: Duration = Duration::from_secs(3);

/// [`Etcd::following`], with a line on standard error when etcd has not answered for a while, and one when it answers
/// again.
///
/// # Errors
/// [`StoreLost`] if etcd is restored or replaced meanwhile.
pub async fn following<T>(etcd: &Etcd, work: impl Future<Output = T>) -> Result<T, StoreLost> {
    tokio::select! {
        done = etcd.following(work) => done,
        never = report(etcd.unanswered()) => match never {},
    }
}

async fn report(mut unanswered: watch::Receiver<Option<Instant>>) -> Infallible {
    loop {
        let since = *wait_for(&mut unanswered, Option::is_some).await;
        let answered = wait_for(&mut unanswered, Option::is_none);
        let reported_at = since.unwrap_or_else(Instant::now) + SHORT;
        if tokio::time::timeout_at(reported_at.into(), answered)
            .await
            .is_ok()
        {
            continue;
        }
        note("etcd does not answer; waiting for it");
        wait_for(&mut unanswered, Option::is_none).await;
        note("etcd answers again");
    }
}

/// The value once it fits.
async fn wait_for(
    unanswered: &mut watch::Receiver<Option<Instant>>,
    fits: impl FnMut(&Option<Instant>) -> bool,
) -> watch::Ref<'_, Option<Instant>> {
    match unanswered.wait_for(fits).await {
        Ok(value) => value,
        // The connection is gone, and with it the work.
        Err(_) => std::future::pending().await,
    }
}
