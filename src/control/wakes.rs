//! Wakes the calls that wait for the record of a certificate, once it changes.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use tracing::debug;

use crate::etcd::{Event, Watched, Watcher};
use crate::retry::Delays;
use crate::store::keys::{CertificationKey, KeySpace};
use crate::store::{Keys, Store};

/// What wakes the calls that wait for a node, and their number.
type ByUid = HashMap<Box<str>, (Arc<Notify>, usize)>;

/// Who waits. It holds no data: who is woken reads again.
#[derive(Default)]
pub struct Wakes {
    waiting: Mutex<ByUid>,
}

/// A call that waits for one record.
pub struct Waiting<'w> {
    wakes: &'w Wakes,
    uid: Box<str>,
    /// Wakes every call that waits when this is asked for, so ask before reading the record.
    pub changed: Arc<Notify>,
}

impl Wakes {
    /// Waits for the record of this uid.
    pub fn wait_for(&self, uid: &str) -> Waiting<'_> {
        let changed = {
            let mut waiting = self.lock();
            let (changed, count) = waiting.entry(uid.into()).or_default();
            *count += 1;
            Arc::clone(changed)
        };
        Waiting {
            wakes: self,
            uid: uid.into(),
            changed,
        }
    }

    /// Follows the records. Never ends.
    pub async fn follow(&self, store: &Store) {
        let Store { etcd, keys } = store;
        let range = KeySpace::CERTIFICATES.all(keys);
        let mut delays = Delays::etcd();
        let now = loop {
            // Any key says at which revision etcd is.
            match etcd.get(range.start()).await {
                Ok((_, now)) => break now,
                Err(error) => debug!("cannot watch certificates yet: {error}"),
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
        if let CertificationKey::Certificate(uid) = keys.parse_certification(event.key())
            && let Some((changed, _)) = self.lock().get(uid)
        {
            changed.notify_waiters();
        }
    }

    fn lock(&self) -> MutexGuard<'_, ByUid> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut waiting = self.wakes.lock();
        if let Some((_, count)) = waiting.get_mut(&self.uid) {
            *count -= 1;
            if *count == 0 {
                waiting.remove(&self.uid);
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
        let (first, second) = (wakes.wait_for("u"), wakes.wait_for("u"));
        assert!(Arc::ptr_eq(&first.changed, &second.changed));
        drop(first);
        assert_eq!(wakes.lock().len(), 1);
        drop(second);
        assert_eq!(wakes.lock().len(), 0);
    }
}
