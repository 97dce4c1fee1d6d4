//! The clients of members, one each, and the members that get no requests any more.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use etcd_client::Client;
use tokio::sync::Notify;

use crate::etcd::connection::Connection;
use crate::etcd::kv::MemberId;

/// One client per member, kept from one request to the next.
#[derive(Default)]
pub(in crate::etcd) struct Contacts {
    kept: Mutex<BTreeMap<MemberId, Kept>>,
    /// Members whose removal was begun, with their client URLs while they are listed. etcd can panic when it is asked for
    /// its status in the second after its removal. So such a member gets no requests from before the call on, unless etcd
    /// refuses the removal. An entry stays: an id is never used again, and a caller may still go by an older list.
    excluded: Mutex<BTreeMap<MemberId, BTreeSet<String>>>,
    /// How many status requests each member has yet to answer. A request sent just before a removal may be answered just
    /// after it, so the removal waits for the answer.
    pending: Mutex<BTreeMap<MemberId, usize>>,
    answered: Notify,
}

/// A status request under way. See [`Contacts::begin_status`].
pub(super) struct PendingStatus<'c> {
    contacts: &'c Contacts,
    id: MemberId,
}

impl Drop for PendingStatus<'_> {
    fn drop(&mut self) {
        let mut pending = self.contacts.pending();
        match pending.get_mut(&self.id) {
            Some(count) if *count > 1 => *count -= 1,
            _ => _ = pending.remove(&self.id),
        }
        self.contacts.answered.notify_waiters();
    }
}

struct Kept {
    client: Client,
    urls: Vec<String>,
    /// The connection whose credentials the client has.
    connection: Arc<Connection>,
}

impl Contacts {
    // Every state of these maps is valid, also one that a panic left behind.
    fn kept(&self) -> MutexGuard<'_, BTreeMap<MemberId, Kept>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn excluded(&self) -> MutexGuard<'_, BTreeMap<MemberId, BTreeSet<String>>> {
        self.excluded.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pending(&self) -> MutexGuard<'_, BTreeMap<MemberId, usize>> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The kept client of a member, unless its URLs or the credentials have changed since.
    pub(super) fn client(
        &self,
        id: MemberId,
        urls: &[String],
        connection: &Arc<Connection>,
    ) -> Option<Client> {
        let kept = self.kept();
        let known = kept.get(&id)?;
        (known.urls == urls && Arc::ptr_eq(&known.connection, connection)).then(|| known.client.clone())
    }

    /// Keeps the client of a member, unless its removal has begun.
    pub(super) fn keep(&self, id: MemberId, urls: &[String], connection: Arc<Connection>, client: &Client) {
        if !self.is_excluded(id) {
            let client = client.clone();
            let urls = urls.to_vec();
            self.kept().insert(
                id,
                Kept {
                    client,
                    urls,
                    connection,
                },
            );
        }
    }

    /// Drops the client of a member, so that its next request goes over a new connection.
    pub(super) fn forget(&self, id: MemberId) {
        self.kept().remove(&id);
    }

    /// Drops the clients and URLs of members that are no longer listed. Their URLs may become those of other members.
    pub(in crate::etcd) fn keep_only(&self, members: &BTreeSet<MemberId>) {
        self.kept().retain(|id, _| members.contains(id));
        for (id, urls) in self.excluded().iter_mut() {
            if !members.contains(id) {
                urls.clear();
            }
        }
    }

    /// Counts a status request until the result is dropped. Call it before [`Etcd::contact`](crate::etcd::Etcd).
    pub(super) fn begin_status(&self, id: MemberId) -> PendingStatus<'_> {
        *self.pending().entry(id).or_default() += 1;
        PendingStatus { contacts: self, id }
    }

    /// Waits until no status request to this member is under way. Each is limited in time.
    pub(super) async fn no_status_pending(&self, id: MemberId) {
        loop {
            let mut answered = std::pin::pin!(self.answered.notified());
            answered.as_mut().enable();
            if !self.pending().contains_key(&id) {
                return;
            }
            answered.await;
        }
    }

    /// Excludes a member from all requests and drops its client.
    pub(super) fn exclude(&self, id: MemberId, client_urls: BTreeSet<String>) {
        self.excluded().insert(id, client_urls);
        self.forget(id);
    }

    /// Admits a member again, whose removal was not made. Returns whether it was excluded.
    pub(super) fn readmit(&self, id: MemberId) -> bool {
        self.excluded().remove(&id).is_some()
    }

    /// Client URLs of the excluded members.
    pub(in crate::etcd) fn excluded_urls(&self) -> BTreeSet<String> {
        self.excluded().values().flatten().cloned().collect()
    }

    /// Whether the removal of this member has begun.
    pub(super) fn is_excluded(&self, id: MemberId) -> bool {
        self.excluded().contains_key(&id)
    }
}
