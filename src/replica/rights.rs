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

/// How often a leader asks. One that has nothing to write would not notice otherwise.
const INTERVAL: Policy = Policy::new(Duration::from_secs(5), Duration::from_secs(5));

/// After a refused write the leader asks at once, but no more often than this: of many objects each may be refused. As its
/// term begins it waits as long, since its first writes would wait for the answer.
const PAUSE: Policy = Policy::new(Duration::from_secs(1), Duration::from_secs(1));

/// For how long etcd refuses a leader before that steps down: a password may change in etcd a moment before it changes on
/// disk.
const PATIENCE: Duration = Duration::from_secs(3);

/// The rights of this replica's user.
pub(super) struct Rights {
    pub store: Store,
    pub refusal: Refusal,
}

impl Rights {
    /// Resolves once etcd does not refuse this replica. A replica that etcd refuses waits here, so that it holds no place
    /// among the candidates. Where etcd does not answer, the candidacy shows what comes of it.
    pub async fn granted(&self) {
        let mut delays = Delays::etcd();
        while let Some(refused) = self.ask().await {
            self.note(Some(refused));
            delays.wait().await;
        }
        self.note(None);
    }

    /// Resolves once etcd has refused this leader for [`PATIENCE`].
    pub async fn revoked(&self) {
        loop {
            tokio::time::sleep(PAUSE.delay(1)).await;
            if let Some(refused) = self.lasting_refusal().await {
                self.note(Some(refused));
                return;
            }
            tokio::select! {
                () = tokio::time::sleep(INTERVAL.delay(1)) => {}
                () = self.store.etcd.write_denied() => {}
            }
        }
    }

    async fn lasting_refusal(&self) -> Option<String> {
        let began = Instant::now();
        let mut delays = Delays::new(PATIENCE / 10, PATIENCE / 3);
        loop {
            let refused = self.ask().await?;
            if began.elapsed() >= PATIENCE {
                return Some(refused);
            }
            delays.wait().await;
        }
    }

    /// Why etcd refuses this replica. A request that fails on the way proves nothing.
    async fn ask(&self) -> Option<String> {
        let Store { etcd, keys } = &self.store;
        match election::may_stand(etcd, &keys.election()).await {
            Err(error) if error.class == Class::Denied => {
                Some(format!("etcd refuses the writes of this replica: {error}"))
            }
            _ => None,
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
