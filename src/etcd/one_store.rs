//! Where every answer of etcd passes: it is checked against the store that this process has read (INV-11).

use super::connect::Etcd;
use super::error::{Class, Error};
use super::kv::Revision;
use super::store_identity::{ClusterId, Header, Refused, StoreLost, Witness};
use crate::mutation::{self, Guard};

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
        let checked = self.check_probe(operation, header, floor);
        // The check of the endpoints names a foreign one.
        checked.inspect_err(|_| self.0.recheck.notify_one())
    }

    /// The same for what an endpoint answered to the check of the endpoints, which does not request itself again.
    pub(super) fn check_probe(
        &self,
        operation: &'static str,
        header: Header,
        floor: Option<Revision>,
    ) -> Result<(), Error> {
        if mutation::without(Guard::OwnStore) {
            return Ok(());
        }
        let checked = self.0.store.identity().take_in(header, floor);
        checked.map_err(|refused| match refused {
            Refused::Foreign { .. } => foreign(operation, &refused),
            Refused::Lost(lost) => {
                self.0.store.lose(lost.clone());
                of_lost(operation, &lost)
            }
        })
    }

    /// The id of the cluster; `None` if every answer so far came through a proxy that leaves it out.
    pub fn cluster_id(&self) -> Option<ClusterId> {
        self.0.store.identity().cluster()
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
        match seen.ok().and_then(|seen| seen.clone()) {
            Some(lost) => lost,
            // The sender lives as long as this connection.
            None => std::future::pending().await,
        }
    }

    /// Names the key by which interrupted watches recognize the store from now on: one that this process wrote and no other
    /// writes.
    pub fn set_witness(&self, witness: Option<Witness>) {
        *self.0.store.witness() = witness;
    }
}

fn foreign(operation: &'static str, refused: &Refused) -> Error {
    // The other store may have taken a write. For this one, the request got no answer.
    Error::new(operation, "Unavailable", Class::Unavailable, refused.to_string())
}

fn of_lost(operation: &'static str, lost: &StoreLost) -> Error {
    Error::new(operation, "DataLoss", Class::StoreLost, lost.to_string())
}
