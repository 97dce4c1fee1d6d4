//! What an answer of etcd says about its store, and what is known of the store of this process.

use std::sync::{Mutex, MutexGuard, PoisonError};

use etcd_client::{
    AlarmResponse, GetResponse, LeaseGrantResponse, LeaseRevokeResponse, MemberListResponse, ResponseHeader,
    TxnResponse, WatchStream,
};
use tokio::sync::watch;
use tracing::error;

use super::kv::{MemberId, Revision};
use super::store_identity::{ClusterId, Header, StoreIdentity, StoreLost, Witness};

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
    /// Whether it shows everything that was committed before its request was sent. Others may come from a member that lags.
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

// The list of members is not read linearizably, and has no revision that could be compared. Requests for a lease and for
// the alarms go through the log of raft.
linearizable!(
    AlarmResponse,
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
    pub lost: watch::Sender<Option<StoreLost>>,
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
    pub fn identity(&self) -> MutexGuard<'_, StoreIdentity> {
        self.identity.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn witness(&self) -> MutexGuard<'_, Option<Witness>> {
        self.witness.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on the store is lost. Logs why, the first time.
    pub fn lose(&self, lost: StoreLost) {
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
