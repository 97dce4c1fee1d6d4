//! Whether etcd lets this replica write. One whose user has lost its rights neither leads nor stands for election.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tracing::{error, info};

use crate::etcd::{Class, election};
use crate::retry::{Delays, Policy};
use crate::store::Store;

/// Why etcd refuses the writes of this replica, in words; `None` while etcd is not known to.
pub(super) type Refusal = Arc<watch::Sender<Option<String>>>;

/// How often a leader asks. The first write that etcd refuses has it ask at once; until then it has nothing to write, and a lost
/// right does no harm but that no operator sees it. Each question is a proposal to etcd, so it is asked seldom.
pub const INTERVAL: Duration = Duration::from_secs(60);

/// After a refused write the leader asks at once, but no more often than this: of many objects each may be refused.
const PAUSE: Policy = Policy::new(Duration::from_secs(1), Duration::from_secs(1));

/// For how long etcd refuses a leader before that steps down: a password may change in etcd a moment before it changes on
/// disk.
const PATIENCE: Duration = Duration::from_secs(3);

/// What etcd says about the rights of this replica's user.
enum Answer {
    Accepted,
    /// Why, in words.
    Refused(String),
    /// The request failed on the way, which proves nothing.
    Unknown,
}

/// The rights of this replica's user.
pub(super) struct Rights {
    pub store: Store,
    pub refusal: Refusal,
    /// [`INTERVAL`], or another in tests.
    pub interval: Duration,
}

impl Rights {
    /// Resolves once etcd accepts this replica. A replica that etcd refuses waits here, so that it holds no place among the
    /// candidates. Where etcd does not answer and has not refused before, the candidacy shows what comes of it.
    pub async fn granted(&self) {
        let mut delays = Delays::etcd();
        loop {
            match self.ask().await {
                Answer::Accepted => {
                    self.note(None);
                    return;
                }
                Answer::Refused(refused) => self.note(Some(refused)),
                Answer::Unknown if !self.are_refused() => return,
                Answer::Unknown => {}
            }
            delays.wait().await;
        }
    }

    fn are_refused(&self) -> bool {
        self.refusal.borrow().is_some()
    }

    /// Resolves once etcd has refused this leader for [`PATIENCE`].
    pub async fn revoked(&self) {
        let interval = Policy::new(self.interval, self.interval);
        loop {
            // It has just asked, or been refused, or stood for election.
            tokio::time::sleep(PAUSE.delay(1)).await;
            tokio::select! {
                () = tokio::time::sleep(interval.delay(1)) => {}
                () = self.store.etcd.write_denied() => {}
            }
            if let Some(refused) = self.lasting_refusal().await {
                self.note(Some(refused));
                return;
            }
        }
    }

    /// Why etcd refuses this leader, once [`PATIENCE`] has passed since the first refusal; `None` if there is none. A request
    /// that fails on the way neither begins that time nor ends it.
    async fn lasting_refusal(&self) -> Option<String> {
        let mut first = None;
        let mut delays = Delays::new(PATIENCE / 10, PATIENCE / 3);
        loop {
            match (self.ask().await, first) {
                (Answer::Accepted, _) | (Answer::Unknown, None) => return None,
                (Answer::Refused(refused), Some(first)) if Instant::elapsed(&first) >= PATIENCE => {
                    return Some(refused);
                }
                (Answer::Refused(_), None) => first = Some(Instant::now()),
                (Answer::Refused(_) | Answer::Unknown, Some(_)) => {}
            }
            delays.wait().await;
        }
    }

    async fn ask(&self) -> Answer {
        let Store { etcd, keys } = &self.store;
        match election::may_stand(etcd, &keys.election()).await {
            Ok(()) => Answer::Accepted,
            Err(error) if error.class == Class::Denied => {
                Answer::Refused(format!("etcd refuses the writes of this replica: {error}"))
            }
            Err(_) => Answer::Unknown,
        }
    }

    fn note(&self, refusal: Option<String>) {
        self.refusal.send_if_modified(|before| {
            let is_news = before.is_some() != refusal.is_some();
            match &refusal {
                Some(refusal) if is_news => error!("{refusal}: it neither leads nor stands for election"),
                None if is_news => info!("etcd accepts the writes of this replica again"),
                _ => {}
            }
            *before = refusal;
            is_news
        });
    }
}
