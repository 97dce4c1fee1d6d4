//! Wakes the calls that wait for a record which the leader has yet to answer, once it changes.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use tracing::debug;

use crate::etcd::{Event, Watched, Watcher};
use crate::retry::Delays;
use crate::store::keys::CertificationKey;
use crate::store::{Keys, Name, Store};

/// A record that calls wait for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Awaited {
    /// The certificate of the node of this uid.
    Certificate(Box<str>),
    /// That of its member of etcd.
    EtcdCertificate(Box<str>),
    /// The join of the node of this name.
    Join(Name),
}

/// What wakes the calls that wait for a record, and their number.
type ByRecord = HashMap<Awaited, (Arc<Notify>, usize)>;

/// Who waits. It holds no data: who is woken reads again.
#[derive(Default)]
pub struct Wakes {
    waiting: Mutex<ByRecord>,
}

/// A call that waits for one record.
pub struct Waiting<'w> {
    wakes: &'w Wakes,
    record: Awaited,
    /// Wakes every call that waits when this is asked for, so ask before reading the record.
    pub changed: Arc<Notify>,
}

impl Wakes {
    /// Waits for a record.
    pub fn wait_for(&self, record: Awaited) -> Waiting<'_> {
        let changed = {
            let mut waiting = self.lock();
            let (changed, count) = waiting.entry(record.clone()).or_default();
            *count += 1;
            Arc::clone(changed)
        };
        Waiting {
            wakes: self,
            record,
            changed,
        }
    }

    /// Follows the records. Never ends.
    pub async fn follow(&self, store: &Store) {
        let Store { etcd, keys } = store;
        let range = keys.requests();
        let mut delays = Delays::etcd();
        let now = loop {
            // Any key says at which revision etcd is.
            match etcd.get(range.start()).await {
                Ok((_, now)) => break now,
                Err(error) => debug!("cannot watch requests yet: {error}"),
            }
            delays.wait().await;
        };
        // What has changed before was not watched.
        self.wake_all();
        self.watch(keys, Watcher::new(etcd, range, now.next())).await;
    }

    async fn watch(&self, keys: &Keys, mut watcher: Watcher) {
        loop {
            match watcher.next().await {
                Watched::Events(events) => events.iter().for_each(|event| self.wake(keys, event)),
                // What has changed meanwhile is unknown.
                Watched::Compacted => self.wake_all(),
            }
        }
    }

    fn wake_all(&self) {
        self.lock()
            .values()
            .for_each(|(changed, _)| changed.notify_waiters());
    }

    fn wake(&self, keys: &Keys, event: &Event) {
        let record = match keys.parse_certification(event.key()) {
            CertificationKey::Certificate(uid) => Some(Awaited::Certificate(uid.into())),
            CertificationKey::EtcdCertificate(uid) => Some(Awaited::EtcdCertificate(uid.into())),
            CertificationKey::Join(node) => node.parse().ok().map(Awaited::Join),
            CertificationKey::RevocationList
            | CertificationKey::RotationRequest
            | CertificationKey::Rotation
            | CertificationKey::ReplicaTrust(_)
            | CertificationKey::Registration(_)
            | CertificationKey::Member(_)
            | CertificationKey::Node(_)
            | CertificationKey::Removed(_)
            | CertificationKey::Other => None,
        };
        if let Some(record) = record
            && let Some((changed, _)) = self.lock().get(&record)
        {
            changed.notify_waiters();
        }
    }

    fn lock(&self) -> MutexGuard<'_, ByRecord> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut waiting = self.wakes.lock();
        if let Some((_, count)) = waiting.get_mut(&self.record) {
            *count -= 1;
            if *count == 0 {
                waiting.remove(&self.record);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_no_more_leaves_nothing_behind() {
        let wakes = Wakes::default();
        let record = || Awaited::Certificate("u".into());
        let (first, second) = (wakes.wait_for(record()), wakes.wait_for(record()));
        let other = wakes.wait_for(Awaited::EtcdCertificate("u".into()));
        assert!(Arc::ptr_eq(&first.changed, &second.changed));
        assert!(!Arc::ptr_eq(&first.changed, &other.changed));
        drop((first, other));
        assert_eq!(wakes.lock().len(), 1);
        drop(second);
        assert_eq!(wakes.lock().len(), 0);
    }
}
