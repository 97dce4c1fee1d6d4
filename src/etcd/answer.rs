//! Where every answer of etcd passes: it is checked against the store that this process has read (INV-11).

use etcd_client::{
    GetResponse, LeaseGrantResponse, LeaseRevokeResponse, MemberListResponse, ResponseHeader, TxnResponse,
    WatchStream,
};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;
use tracing::error;

use super::connect::Etcd;
use super::error::{Class, Error};
use super::kv::{MemberId, Revision};
use super::store_identity::{ClusterId, Header, Refused, StoreIdentity, StoreLost, Witness};

impl From<&ResponseHeader> for Header {
    fn from(header: &ResponseHeader) -> Self {
        Self {
            cluster: Some(ClusterId(header.cluster_id())).filter(|id| id.0 > 0),
            member: MemberId(header.member_id()),
            revision: Revision(header.revision()),
            raft_term: header.raft_term(),
        }
    }
}

/// A response of etcd.
pub(super) trait Answer {
    /// Whether it shows everything that was committed before its request was sent. A member that lags can give any other.
    const LINEARIZABLE: bool;

    /// What it says about its store, if it says that.
    fn header(&self) -> Option<Header>;
}

macro_rules! linearizable {
    ($($response:ty),*) => {$(
        impl Answer for $response {
            const LINEARIZABLE: bool = true;

            fn header(&self) -> Option<Header> {
                self.header().map(Header::from)
            }
        }
    )*};
}

// The list of members is not read linearizably, and has no revision that could be compared. Requests for a lease go
// through the log of raft.
linearizable!(
    GetResponse,
    TxnResponse,
    LeaseGrantResponse,
    LeaseRevokeResponse,
    MemberListResponse
);

/// What one given member answers, which may lag behind the others.
impl<T> Answer for (Option<Header>, T) {
    const LINEARIZABLE: bool = false;

    fn header(&self) -> Option<Header> {
        self.0
    }
}

/// The answers come later, one by one.
impl Answer for WatchStream {
    const LINEARIZABLE: bool = false;

    fn header(&self) -> Option<Header> {
        None
    }
}

/// The store that this process has read, whether it is lost, and how to recognize it.
#[derive(Debug, Default)]
pub(super) struct KnownStore {
    identity: Mutex<StoreIdentity>,
    lost: watch::Sender<Option<StoreLost>>,
    witness: Mutex<Option<Witness>>,
}

impl KnownStore {
    pub fn of(cluster: Option<ClusterId>) -> Self {
        Self {
            identity: Mutex::new(StoreIdentity::of(cluster)),
            ..Self::default()
        }
    }

    // Every state of both is whole, also one that a panic left behind.
    fn identity(&self) -> MutexGuard<'_, StoreIdentity> {
        self.identity.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn witness(&self) -> Option<Witness> {
        let witness = self.witness.lock().unwrap_or_else(PoisonError::into_inner);
        witness.clone()
    }

    fn lose(&self, lost: StoreLost) {
        let first = self.lost.send_if_modified(|known| {
            let first = known.is_none();
            known.get_or_insert_with(|| lost.clone());
            first
        });
        if first {
            error!("{lost}");
        }
    }
}

impl Etcd {
    /// The highest revision seen, before a request. An error once the store is lost: nothing that was decided on it may be
    /// sent.
    pub(super) fn before_request(&self, operation: &'static str) -> Result<Revision, Error> {
        match &*self.0.store.lost.borrow() {
            Some(lost) => Err(of_lost(operation, lost)),
            None => Ok(self.0.store.identity().highest()),
        }
    }

    /// Checks what a response says about its store. `floor` is the answer of [`Etcd::before_request`] for a linearizable
    /// one.
    pub(super) fn check_header(
        &self,
        operation: &'static str,
        header: Header,
        floor: Option<Revision>,
    ) -> Result<(), Error> {
        let checked = self.0.store.identity().take_in(header, floor);
        checked.map_err(|refused| match refused {
            Refused::Foreign { .. } => {
                // The check of the endpoints names this one.
                self.0.recheck.notify_one();
                foreign(operation, &refused)
            }
            Refused::Lost(lost) => {
                self.0.store.lose(lost.clone());
                of_lost(operation, &lost)
            }
        })
    }

    /// Judges the clusters that answered at the endpoints.
    pub(super) fn judge_clusters(&self, asked: usize, answered: impl IntoIterator<Item = ClusterId>) {
        let judged = self.0.store.identity().judge(asked, answered);
        if let Err(lost) = judged {
            self.0.store.lose(lost);
        }
    }

    /// Resolves once the store is no longer the one that this process has read: etcd was restored, or replaced. From then
    /// on every request fails. The process must end, since whatever it remembers is void.
    pub async fn store_lost(&self) -> StoreLost {
        let mut lost = self.0.store.lost.subscribe();
        let seen = lost.wait_for(Option::is_some).await;
        match seen.as_deref() {
            Ok(Some(lost)) => lost.clone(),
            // The sender lives as long as this connection.
            _ => std::future::pending().await,
        }
    }

    /// Names the key by which interrupted watches recognize the store from now on: one that this process wrote and no other
    /// writes.
    pub fn set_witness(&self, witness: Option<Witness>) {
        let known = &self.0.store.witness;
        *known.lock().unwrap_or_else(PoisonError::into_inner) = witness;
    }
}

fn foreign(operation: &'static str, refused: &Refused) -> Error {
    // A write went to the wrong store, if anywhere. To the caller it is one that got no answer.
    Error::new(operation, "Unavailable", Class::Unavailable, refused.to_string())
}

fn of_lost(operation: &'static str, lost: &StoreLost) -> Error {
    Error::new(operation, "DataLoss", Class::StoreLost, lost.to_string())
}
