//! Whether a watch that was interrupted continues the history that it has followed so far (INV-11).

use std::time::Duration;

use etcd_client::GetOptions;
use tracing::debug;

use super::{Event, Watch, Watched};
use crate::etcd::connect::Etcd;
use crate::etcd::error::{Class, Error};
use crate::etcd::kv::Revision;
use crate::etcd::store_identity::{Epoch, Header, Witness};
use crate::retry::spread;

/// Over this time the processes spread that list their ranges again.
const SPREAD: Duration = Duration::from_secs(1);

/// A change, to find it again in the history of the store.
pub(super) struct LastChange {
    key: Vec<u8>,
    revision: Revision,
    /// Whether the key was written, and not deleted.
    put: bool,
}

impl LastChange {
    pub(super) fn of(event: &Event) -> Self {
        Self {
            key: event.key().to_vec(),
            revision: event.revision(),
            put: matches!(event, Event::Put(_)),
        }
    }
}

impl Watch {
    /// Whether the stream that was just opened continues the history that the watch has followed so far (INV-11). An error
    /// where that is unknown.
    pub(super) async fn recognizes(&mut self, header: Header) -> Result<bool, Error> {
        let now = Epoch {
            raft_term: header.raft_term,
            witness: self.etcd.0.store.witness().clone(),
        };
        if !self.interrupted {
            return Ok(self.epoch.get_or_insert(now.clone()).may_become(&now));
        }
        if !self.epoch.as_ref().is_some_and(|epoch| epoch.may_become(&now)) {
            return Ok(false);
        }
        // A linearizable read, which is refused where the store went back; a watch from a revision to come is silent.
        let registered = match &now.witness {
            Some(Witness { key, mod_revision }) => shows(self.etcd.get(key).await, |(found, _)| {
                found.is_some_and(|kv| kv.mod_revision == *mod_revision)
            }),
            None => shows(self.etcd.get(&self.range.start).await, |_| true),
        };
        let continues = registered? && self.has_last_change().await?;
        if continues {
            self.epoch = Some(now);
            self.interrupted = false;
        }
        Ok(continues)
    }

    /// Whether the store still has the last change in its history. If it has, every change before is in it as well.
    async fn has_last_change(&self) -> Result<bool, Error> {
        let Some(LastChange { key, revision, put }) = &self.last else {
            return Ok(true);
        };
        match self.etcd.mod_revision_at(key, *revision).await {
            // A compaction takes the sign away, and says nothing about the history.
            Err(error) if error.class == Class::Compacted => Ok(true),
            read => shows(read, |written| match written {
                Some(written) => *put && written == *revision,
                None => !put,
            }),
        }
    }

    /// Continues after the current revision, whatever the revisions of before, for a caller that lists again.
    pub(super) async fn begin_again(&mut self) -> Option<Watched> {
        match self.etcd.get(&self.range.start).await {
            Ok((_, now)) => {
                debug!("a watch was interrupted while etcd may have been restored: listing again");
                // After a change of raft leader every process lists its ranges again.
                tokio::time::sleep(spread(SPREAD)).await;
                self.next = Revision::ABSENT;
                (self.epoch, self.last) = (None, None);
                let watched = self.skip_past(now, "other_history");
                self.interrupted = false;
                Some(watched)
            }
            Err(error) => self.on_error(error).await,
        }
    }
}

/// Whether what was read `holds`. An error where a later read may still show it; a read that is refused shows nothing.
fn shows<T>(read: Result<T, Error>, holds: impl FnOnce(T) -> bool) -> Result<bool, Error> {
    match read {
        Ok(found) => Ok(holds(found)),
        Err(error) if error.is_retryable() => Err(error),
        Err(_) => Ok(false),
    }
}

impl Etcd {
    /// When the key was last written, as of this revision; `None` if it did not exist then.
    async fn mod_revision_at(&self, key: &[u8], at: Revision) -> Result<Option<Revision>, Error> {
        let response = self
            .call("range", |connection| {
                let options = GetOptions::new().with_revision(at.0).with_keys_only();
                let key = key.to_vec();
                async move { connection.client.kv_client().get(key, Some(options)).await }
            })
            .await?;
        let found = response.kvs().first();
        Ok(found.map(|kv| Revision(kv.mod_revision())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_without_an_answer_says_nothing_about_the_history() {
        let failed = |class| Err::<bool, _>(Error::new("range", "Any", class, String::new()));
        for class in [Class::Unavailable, Class::Exhausted, Class::StaleToken] {
            assert!(shows(failed(class), |found| found).is_err(), "{class:?}");
        }
        for (read, shown) in [
            (Ok(true), true),
            (Ok(false), false),
            (failed(Class::Denied), false),
        ] {
            assert_eq!(shows(read, |found| found).unwrap(), shown);
        }
    }
}
