//! The published key: the leader keeps it that of its first key, and says so where it is none of its keys.

use jiff::Timestamp;
use prost::Message as _;
use tracing::{debug, info, warn};

use super::key::{Key, KeyId, Keyring, Recipient};
use crate::etcd::{Fence, KeyRange, Revision, Stop, Txn};
use crate::kube::events::{Notice, Severity};
use crate::retry::Delays;
use crate::store::object::time;
use crate::store::{Follower, Store};
use crate::term::{Notices, TermOver};

/// Failures in a row after which the log says why the key is not published: those of an election of etcd are fewer.
const PATIENCE: u32 = 5;

/// Publishes the first key of this replica.
pub(super) struct Publisher<'k> {
    store: &'k Store,
    fence: &'k Fence,
    keyring: &'k Keyring,
    notices: &'k Notices,
    /// What was said last of a key that stays.
    said: Option<String>,
}

/// What the published key is to a replica.
#[derive(Debug, PartialEq, Eq)]
enum Standing {
    /// There is none.
    Absent,
    /// The one that this replica publishes.
    First,
    /// Another one that it has.
    Held,
    /// One that it does not have: what is encrypted with it cannot be read here.
    Foreign(KeyId),
    /// The record holds no key.
    Malformed,
}

impl Standing {
    fn of(value: Option<&[u8]>, keyring: &Keyring) -> Self {
        let Some(value) = value else {
            return Self::Absent;
        };
        let Some(published) = Recipient::published(value) else {
            return Self::Malformed;
        };
        match keyring.get(published.id().as_str()) {
            // The whole key is compared: an id is the beginning of a digest.
            Some(held) if *held.recipient() != published => Self::Foreign(published.id().clone()),
            Some(_) if keyring.first().map(Key::recipient) == Some(&published) => Self::First,
            Some(_) => Self::Held,
            None => Self::Foreign(published.id().clone()),
        }
    }

    /// What was published and is none of this replica's keys, in words; `None` for what may stand.
    fn stranger(&self) -> Option<String> {
        match self {
            Self::Absent | Self::First | Self::Held => None,
            Self::Foreign(id) => Some(format!(
                "the published encryption key is {id}, which no key file of this replica holds"
            )),
            Self::Malformed => Some("the record of the published encryption key holds no key".to_owned()),
        }
    }
}

impl<'k> Publisher<'k> {
    pub(super) fn new(
        store: &'k Store,
        fence: &'k Fence,
        keyring: &'k Keyring,
        notices: &'k Notices,
    ) -> Self {
        Self {
            store,
            fence,
            keyring,
            notices,
            said: None,
        }
    }

    /// Returns only once the term is over.
    pub(super) async fn keep(mut self) -> TermOver {
        let Store { etcd, keys } = self.store;
        let mut published = Follower::new(etcd, KeyRange::key(keys.encryption_key()));
        loop {
            // A wake-up carries no data: the record is read again.
            published.next().await;
            if let Err(over) = self.publish().await {
                return over;
            }
        }
    }

    /// Publishes the first key, unless it stands. The record of a key that is gone from the files gives way to it.
    async fn publish(&mut self) -> Result<(), TermOver> {
        let (mut delays, mut failures) = (Delays::etcd(), 0);
        loop {
            match self.publish_once().await {
                Ok(()) => return Ok(()),
                Err(Stop::LostLeadership) => return Err(TermOver),
                Err(Stop::Stale) => {}
                Err(Stop::Unavailable(error)) => {
                    failures += 1;
                    match failures == PATIENCE {
                        true => {
                            warn!("the encryption key cannot be published, which is tried again: {error}")
                        }
                        false => debug!("the encryption key cannot be published: {error}"),
                    }
                }
            }
            delays.wait().await;
        }
    }

    async fn publish_once(&mut self) -> Result<(), Stop> {
        let Store { etcd, keys } = self.store;
        let key = keys.encryption_key();
        let (stored, _) = etcd.get(&key).await?;
        let standing = Standing::of(stored.as_ref().map(|kv| kv.value.as_slice()), self.keyring);
        let Some(first) = self.keyring.first() else {
            self.report_missing(&standing);
            return Ok(());
        };
        if standing == Standing::First {
            return Ok(());
        }
        let read_at = stored.map_or(Revision::ABSENT, |kv| kv.mod_revision);
        let record = first.recipient().to_record(time::to_proto(Timestamp::now()));
        let txn = Txn::new()
            .when_unchanged(&key, read_at)
            .put(&key, record.encode_to_vec());
        etcd.fenced(self.fence, txn).await?;
        info!("secrets are encrypted with key {} from now on", first.id());
        if let Some(stranger) = standing.stranger() {
            let note = format!(
                "{stranger}; it gives way to key {}: a Secret that was encrypted with it cannot be read. If no replica had that \
                 key before, another client wrote it, and may read what was applied meanwhile",
                first.id()
            );
            self.say("EncryptionKeyReplaced", note);
        }
        Ok(())
    }

    /// Says once that commands encrypt what this replica cannot read.
    fn report_missing(&mut self, standing: &Standing) {
        let note = standing.stranger().map(|stranger| {
            format!("{stranger}: Secrets that are applied now cannot be read; give each replica the file with --encryption-key-file")
        });
        if note == self.said {
            return;
        }
        if let Some(note) = &note {
            self.say("EncryptionKeyMissing", note.clone());
        }
        self.said = note;
    }

    fn say(&self, reason: &'static str, note: String) {
        warn!("{note}");
        self.notices.send(Notice {
            severity: Severity::Warning,
            reason,
            action: "Secrets",
            note,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::super::key::tests::keyring;
    use super::*;

    #[test]
    fn a_published_key_is_the_first_or_held_or_foreign_or_none() {
        let record = |key: u8| {
            let keys = keyring(&[key]);
            let recipient = keys.first().unwrap().recipient().clone();
            recipient
                .to_record(prost_types::Timestamp::default())
                .encode_to_vec()
        };
        let id = keyring(&[3]).first().unwrap().id().clone();
        let (own, none) = (keyring(&[1, 2]), Keyring::default());
        let foreign = Standing::Foreign(id.clone());
        assert_eq!(Standing::of(None, &own), Standing::Absent);
        assert_eq!(Standing::of(Some(&record(1)), &own), Standing::First);
        assert_eq!(Standing::of(Some(&record(2)), &own), Standing::Held);
        assert_eq!(Standing::of(Some(&record(3)), &own), foreign);
        assert_eq!(Standing::of(Some(&record(3)), &none), foreign);
        assert_eq!(Standing::of(Some(b"\xff"), &own), Standing::Malformed);
        assert_eq!(Standing::of(Some(b""), &own), Standing::Malformed);
        assert!(foreign.stranger().is_some_and(|said| said.contains(id.as_str())));
        for sound in [Standing::Absent, Standing::First, Standing::Held] {
            assert_eq!(sound.stranger(), None);
        }
    }
}
