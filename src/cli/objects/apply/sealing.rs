//! The values of a Secret are encrypted before they are written, where the leader has published a key for that.

use super::input::Manifest;
use crate::cli::exit::Failure;
use crate::etcd::{Revision, Txn};
use crate::proto::Secret;
use crate::secrets::{Keyring, Recipient, encrypted};
use crate::store::Store;
use crate::store::object::Object as _;
use crate::store::object::change::Step;
use crate::wipe::wipe;

/// The published key, as it was when a value was made.
pub struct Published {
    key: Vec<u8>,
    read_at: Revision,
}

impl Published {
    /// Compares that the key is still this one, or that there is still none: no value is written plain once there is one.
    pub fn compare(&self, txn: Txn) -> Txn {
        txn.when_unchanged(&self.key, self.read_at)
    }
}

/// Encrypts what the step writes, if that is a Secret; `None` for another kind.
///
/// # Errors
/// 1 if etcd did not answer, or the published key is none.
pub async fn seal(store: &Store, manifest: &Manifest, step: &mut Step) -> Result<Option<Published>, Failure> {
    let (Step::Create(value) | Step::Configure(value)) = step else {
        return Ok(None);
    };
    if manifest.kind.words.kind != Secret::KIND {
        return Ok(None);
    }
    let key = store.keys.encryption_key();
    let (stored, _) = store.etcd.get(&key).await?;
    let read_at = stored.as_ref().map_or(Revision::ABSENT, |kv| kv.mod_revision);
    if let Some(stored) = stored {
        let recipient = Recipient::published(&stored.value).ok_or_else(|| {
            Failure::failed("the encryption key in etcd is malformed, so that nothing is written").hint(
                "the next leader that has a key writes it again: give --encryption-key-file to the replicas",
            )
        })?;
        let (name, etcd_key) = (&manifest.name.name, store.keys.secret(&manifest.name.name));
        let made = encrypted(&recipient, &Keyring::default(), &etcd_key, name.as_str(), value);
        if let Some(made) = made.map_err(Failure::failed)? {
            let mut plain = std::mem::replace(value, made);
            wipe(&mut plain);
        }
    }
    Ok(Some(Published { key, read_at }))
}
