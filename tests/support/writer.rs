//! A client that writes all the while.

use std::time::{Duration, Instant};

use quorate::etcd::{Config, Txn};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::client::{commit, config, connect_with, follow};
use super::etcd::TestEtcd;

/// The limit until one more write is confirmed: longer than an election, and a change of members on a busy machine.
const LIMIT: Duration = Duration::from_secs(90);

/// Flags of etcd for elections that take so long that a busy machine is no reason for one, and that a gap for want of a
/// leader cannot be missed.
pub const LONG_ELECTIONS: [&str; 2] = ["--election-timeout=4000", "--heartbeat-interval=200"];

/// The election timeout of [`LONG_ELECTIONS`].
pub const ELECTION: Duration = Duration::from_secs(4);

/// One write after the other, until it is dropped. A write that etcd drops while leadership moves is never answered: it
/// is given up after half an election timeout.
pub struct Writer {
    /// How many were confirmed, and the longest time between two of them.
    written: watch::Receiver<(u32, Duration)>,
    _writing: JoinSet<()>,
}

impl Writer {
    /// Writes to this cluster, whose members may come and go. Returns once the first write was confirmed.
    pub async fn start(etcd: &TestEtcd) -> Self {
        Self::with(config(etcd.endpoints())).await
    }

    /// The same with these credentials.
    pub async fn with(config: Config) -> Self {
        let (sender, written) = watch::channel((0, Duration::ZERO));
        let etcd = connect_with(config).await;
        let mut tasks = follow(&etcd);
        let writing = async move {
            let mut last = None;
            loop {
                let txn = Txn::new().put(b"/written", "again");
                if commit(&etcd, txn).await.is_ok() {
                    let gap = last
                        .replace(Instant::now())
                        .map_or(Duration::ZERO, |last| last.elapsed());
                    sender
                        .send_modify(|(count, longest)| (*count, *longest) = (*count + 1, gap.max(*longest)));
                }
            }
        };
        tasks.spawn(writing);
        let mut writer = Self {
            written,
            _writing: tasks,
        };
        writer.once_more().await;
        writer
    }

    /// Waits for one more write.
    async fn once_more(&mut self) -> (u32, Duration) {
        let (before, _) = *self.written.borrow();
        let more = self.written.wait_for(|(count, _)| *count > before);
        let more = tokio::time::timeout(LIMIT, more).await;
        *more.expect("writes are confirmed").unwrap()
    }

    /// The longest time without a confirmed write, from the first one to the next one from now.
    pub async fn longest_gap(mut self) -> Duration {
        let (count, gap) = self.once_more().await;
        eprintln!("{count} writes, the longest gap was {gap:?}");
        gap
    }
}
