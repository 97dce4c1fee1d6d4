//! A term: what exists only while leading, as one set of tasks that ends with it.

use std::time::Duration;

use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use crate::etcd::Fence;
use crate::etcd::election::Leadership;
use crate::mutation::{self, Guard};

mod acts;
mod gauges;
mod node_writes;
mod notices;
mod watchdog;

pub use acts::Acts;
pub use gauges::TermGauges;
pub use node_writes::{Held, NodeWrites};
pub use notices::{LeaderNotices, Notices};
use watchdog::Watchdog;

/// How long the tasks of a term may take to end once they are cancelled, while the process stops.
const STOP_LIMIT: Duration = Duration::from_secs(1);

/// A write was refused because the term is over: the work of the term ends.
pub struct TermOver;

/// Why a term ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The replica stops, or is no longer eligible.
    Stopped,
    /// The lease or the election key is lost, or a task ended, which none does while the replica leads.
    Lost,
}

/// Runs the tasks that `start` spawns, until `stop` or until leadership is lost. Then closes the window, cancels the
/// tasks and joins them, and only after that gives the lease back (INV-10).
///
/// Aborts the process if the tasks do not end in time: after a lost lease within `margin`, since a successor may already
/// lead (INV-2). The time counts from the cancellation, so that a process that was paused does not abort for the pause.
pub async fn run(
    leadership: Leadership,
    margin: Duration,
    stop: &CancellationToken,
    start: impl FnOnce(&Fence, &mut JoinSet<()>),
) -> End {
    let fence = leadership.fence();
    let watchdog = match Watchdog::start(fence.window().clone(), margin) {
        Ok(watchdog) => watchdog,
        Err(error) => {
            // Without a watchdog a term that hangs would never end.
            error!("not leading, since no watchdog of the term can be started: {error}");
            leadership.resign().await;
            return End::Lost;
        }
    };
    info!(term = %fence.term(), "leading");
    let mut tasks = JoinSet::new();
    start(fence, &mut tasks);
    let end = wait_for_end(&leadership, stop, &mut tasks).await;
    fence.window().close();
    let limit = match end {
        End::Lost => margin,
        End::Stopped => STOP_LIMIT,
    };
    if mutation::without(Guard::Join) {
        leadership.resign().await;
        tasks.shutdown().await;
        return end;
    }
    watchdog.cancelled(limit);
    tasks.shutdown().await;
    drop(watchdog);
    leadership.resign().await;
    end
}

async fn wait_for_end(leadership: &Leadership, stop: &CancellationToken, tasks: &mut JoinSet<()>) -> End {
    let fence = leadership.fence();
    let end = tokio::select! {
        // First: a leader whose lease is lost must hurry, also when it is asked to stop.
        biased;
        () = fence.window().closed() => End::Lost,
        () = stop.cancelled() => End::Stopped,
        () = leadership.key_lost() => End::Lost,
        ended = tasks.join_next() => {
            if let Some(Err(panicked)) = ended {
                error!("a task of the term failed: {panicked}");
            }
            End::Lost
        }
    };
    match end {
        End::Lost => warn!(term = %fence.term(), "no longer leading"),
        End::Stopped => info!(term = %fence.term(), "stepping down"),
    }
    end
}
