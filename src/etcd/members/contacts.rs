//! The clients of members, one each, and the members that get no requests any more.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use etcd_client::Client;
use tokio::sync::Notify;

use crate::etcd::connection::Connection;
use crate::etcd::kv::MemberId;

/// How long after a call for its removal a member that is still listed gets requests again. The leader waits for 30 s until it takes
/// the call for failed; one whose term ended does not learn of that, so it waits twice as long.
const READMITTED_AFTER: Duration = Duration::from_secs(60);

/// One client per member, kept from one request to the next.
#[derive(Default)]
pub(in crate::etcd) struct Contacts {
    kept: Mutex<BTreeMap<MemberId, Kept>>,
    /// Members whose removal was begun. etcd can panic when it is asked for its status in the second after its removal. So
    /// such a member gets no requests from before the call on, unless etcd refuses the removal, or the member is still listed
    /// after [`READMITTED_AFTER`]. The entry of one that is gone stays: an id is never used again, and a caller may still go
    /// by an older list.
    excluded: Mutex<BTreeMap<MemberId, Excluded>>,
    /// How many status requests each member has yet to answer. A request sent just before a removal may be answered just
    /// after it, so the removal waits for the answer.
    pending: Mutex<BTreeMap<MemberId, usize>>,
    answered: Notify,
}

struct Excluded {
    /// When the last call for its removal was begun.
    since: Instant,
    /// Its client URLs, while it is listed.
    client_urls: BTreeSet<String>,
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

    fn excluded(&self) -> MutexGuard<'_, BTreeMap<MemberId, Excluded>> {
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

    /// Drops the clients and URLs of members that are no longer listed: their URLs may become those of other members. Admits
    /// those again whose removal was begun long ago and that are listed all the same.
    pub(in crate::etcd) fn keep_only(&self, members: &BTreeSet<MemberId>, now: Instant) {
        self.kept().retain(|id, _| members.contains(id));
        let may_be_made =
            |excluded: &Excluded| now.saturating_duration_since(excluded.since) < READMITTED_AFTER;
        self.excluded()
            .retain(|id, excluded| !members.contains(id) || may_be_made(excluded));
        for (id, excluded) in self.excluded().iter_mut() {
            if !members.contains(id) {
                excluded.client_urls.clear();
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
    pub(super) fn exclude(&self, id: MemberId, client_urls: BTreeSet<String>, since: Instant) {
        self.excluded().insert(id, Excluded { since, client_urls });
        self.forget(id);
    }

    /// Admits a member again, whose removal was not made. Returns whether it was excluded.
    pub(super) fn readmit(&self, id: MemberId) -> bool {
        self.excluded().remove(&id).is_some()
    }

    /// Client URLs of the excluded members.
    pub(in crate::etcd) fn excluded_urls(&self) -> BTreeSet<String> {
        let excluded = self.excluded();
        let urls = excluded.values().flat_map(|excluded| &excluded.client_urls);
        urls.cloned().collect()
    }

    /// Whether the removal of this member has begun.
    pub(super) fn is_excluded(&self, id: MemberId) -> bool {
        self.excluded().contains_key(&id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_that_is_listed_long_after_its_removal_was_begun_gets_requests_again_and_one_that_is_gone_none()
     {
        let begun = Instant::now();
        let after = |seconds| begun + Duration::from_secs(seconds);
        let (contacts, stays, gone) = (Contacts::default(), MemberId(1), MemberId(2));
        let exclude = |id: MemberId, at| contacts.exclude(id, BTreeSet::from([id.to_string()]), at);
        let excluded = |at| {
            contacts.keep_only(&BTreeSet::from([stays]), at);
            [stays, gone].map(|id| contacts.is_excluded(id))
        };
        exclude(stays, begun);
        exclude(gone, begun);
        assert_eq!(excluded(after(59)), [true, true]);
        assert_eq!(contacts.excluded_urls(), BTreeSet::from([stays.to_string()]));
        // The next call.
        exclude(stays, after(50));
        assert_eq!(excluded(after(100)), [true, true]);
        assert_eq!(excluded(after(110)), [false, true]);
        assert!(contacts.excluded_urls().is_empty());
    }
}
